//! What a new leader knows of what its predecessor has done, and when a leader ends by itself.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use axum::body::{Body, to_bytes};
use http::Request;
use nrh::controller::http::health;
use nrh::controller::leader::Lost;
use nrh::controller::run::Ended;
use serde_json::json;
use tokio::time::sleep;
use tower::ServiceExt;

use crate::fake_api::world::{Replica, World};
use crate::fake_api::{Call, Fault};

/// What the API server does with calls of the replica that stands by.
type Hook = fn(&Call) -> Option<Fault>;

/// A leader cordons w1, creates a Job there and dies. The other replica was started before, and leads now. First hook: while that
/// one starts; second hook: when it takes over.
async fn taken_over(at_start: Hook, at_takeover: Hook) -> (World, Replica) {
    let mut steps = json!([{"action": "Cordon"}, World::release()[0].clone()]);
    steps[1]["timeout"] = json!("10m");
    let world = World::probing(3, &steps);
    world.set_kubelet(false);
    world.kubelets();
    let first = world.controller("a");
    world.all_report().await;
    world.api.hook(at_start);
    let second = world.controller("b");
    world.until("the other has listed all", || second.served.cache.lock().is_synced()).await;
    sleep(Duration::from_secs(1)).await;
    world.set_sick("w1", true);
    world.until("a Job, behind the cordon", || !world.api.list("jobs").is_empty()).await;
    assert!(world.is_cordoned("w1"));
    // For so long a cache may be behind. After that, what it does not show counts as gone.
    sleep(Duration::from_secs(70)).await;
    world.api.hook(at_takeover);
    first.crash().await;
    world.api.forget_calls();
    let holder = || world.api.get("leases", "nrh-controller").unwrap()["spec"]["holderIdentity"].clone();
    world.until("the other leads", || holder().as_str().is_some_and(|holder| holder.starts_with("b_"))).await;
    (world, second)
}

/// The remediation goes on where the leader before has left it.
async fn resolved(world: &World) {
    world.set_kubelet(true);
    world.healed().await;
    world.until("uncordoned", || !world.is_cordoned("w1")).await;
}

/// All its watches were silent, so it knows nothing of the remediation, or that of Nodes alone, so it would take the cordon for one
/// that a person has removed.
#[tokio::test(start_paused = true)]
async fn a_new_leader_whose_watches_were_silent_reads_all_again_before_it_decides() {
    let silent: [Hook; 2] = [
        |call| call.is("watch", "nodes").then_some(Fault::Stall),
        |call| (call.verb == "watch").then_some(Fault::Stall),
    ];
    for silent in silent {
        let (world, _replica) = taken_over(silent, |_| None).await;
        sleep(Duration::from_secs(20)).await;
        assert_eq!((world.phases(), world.api.acts()), (vec!["Running".to_owned()], vec![]));
        resolved(&world).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_that_cannot_list_a_kind_holds_says_so_and_tries_again() {
    let of_nodes = |call: &Call| call.is("list", "nodes");
    let cases: [(Hook, _); 2] = [
        (|call| call.is("list", "nodes").then_some(Fault::Stall), 2..=4),
        (|call| call.is("list", "nodes").then_some(Fault::Code(403)), 4..=12),
    ];
    for (hook, tries) in cases {
        let (world, replica) = taken_over(|_| None, hook).await;
        sleep(Duration::from_mins(1)).await;
        let others = ["leases", "events", "selfsubjectaccessreviews"];
        let mut calls = world.api.calls();
        let listed = calls.iter().filter(|call| of_nodes(call)).count();
        assert!(tries.contains(&listed), "{listed} lists of Nodes in a minute");
        calls.retain(|call| call.is_write() && !others.contains(&call.target.plural.as_str()));
        // The probes of this world report by other ways than calls.
        assert_eq!(calls.iter().map(Call::line).collect::<Vec<_>>(), Vec::<String>::new());
        let why = "nothing is decided before the lists of these kinds are complete: Node";
        assert_eq!(ready(&replica).await, (503, why.into()));
        let leads = |says: &str| replica.served.metrics.text().unwrap().contains(&format!("nrh_leader {says}\n"));
        assert!(leads("0"), "a replica that decides nothing does not count as the leader");
        world.api.unhook();
        resolved(&world).await;
        assert!(leads("1"));
        assert_eq!(ready(&replica).await.0, 200);
    }
}

/// Its monotonic time stood still meanwhile, so its term seems to last and what it has read seems fresh.
#[tokio::test(start_paused = true)]
async fn a_replica_whose_machine_was_suspended_does_nothing_more_and_ends() {
    let world = World::healthy();
    let replicas = [world.controller("a"), world.controller("b")];
    let (machines, mut is_asleep) = (world.clone(), false);
    world.api.hook(move |call| {
        if call.is("create", "noderemediations") && !is_asleep {
            machines.suspend(Duration::from_hours(1));
            is_asleep = true;
        }
        (is_asleep && call.target.plural == "leases").then_some(Fault::Stall)
    });
    world.set_sick("w1", true);
    world.until("decided", || !world.api.list("noderemediations").is_empty()).await;
    sleep(Duration::from_secs(4)).await;
    assert!(replicas.iter().all(|replica| !replica.task.is_finished()), "the term seems to last");
    world.api.unhook();
    for mut replica in replicas {
        let ended = (&mut replica.task).await.unwrap();
        assert!(matches!(ended, Err(Ended::Lost(Lost::Suspended))), "{ended:?}");
    }
    assert!(world.api.list("jobs").is_empty());
    let _next = world.controller("c");
    world.healed().await;
}

#[tokio::test(start_paused = true)]
async fn while_the_clocks_of_server_and_controller_disagree_nothing_starts() {
    for (ahead, is_started) in [(Duration::from_mins(10), false), (Duration::ZERO, true)] {
        let world = World::healthy();
        let clock = world.clone();
        world.api.set_clock(move || clock.wall() + ahead);
        let _replica = world.controller_of_sick("a", "w1");
        sleep(Duration::from_mins(2)).await;
        assert_eq!(!world.api.list("noderemediations").is_empty(), is_started, "{ahead:?}");
    }
}

/// When etcd was restored from a backup while the same replica leads.
#[tokio::test(start_paused = true)]
async fn a_controller_that_is_answered_from_another_history_ends_and_the_next_one_resolves() {
    let world = World::healthy();
    let mut replica = world.controller("a");
    world.all_report().await;
    let backup = world.api.backup();
    sleep(Duration::from_mins(5)).await;
    assert!(!replica.task.is_finished());
    world.api.restore(backup);
    // No watch tells of it: what is written since heartbeats do not come is answered with a version that is long known.
    world.until("it ends", || replica.task.is_finished()).await;
    let ended = (&mut replica.task).await.unwrap();
    assert!(matches!(ended, Err(Ended::Part("the writer of statuses"))), "{ended:?}");
    let next = world.controller_of_sick("b", "w2");
    world.healed().await;
    next.stop().await.unwrap();
}

/// What `/readyz` answers.
async fn ready(replica: &Replica) -> (u16, String) {
    let request = Request::get("/readyz").body(Body::empty()).unwrap();
    let answer = health(replica.served.clone()).oneshot(request).await.unwrap();
    let code = answer.status().as_u16();
    (code, String::from_utf8(to_bytes(answer.into_body(), 1 << 10).await.unwrap().to_vec()).unwrap())
}
