//! A leader that dies at each of its writes, and a way to the API server on which calls are late, refused and lost: on a real API
//! server, with the controller's own rights and admission as shipped. Nothing is done twice, nothing is left undone, and no
//! budget is passed.
//!
//! On such a server, too: what a dry run writes, how nodes are handed to remediators, and a leader that slept past its Lease.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod account;
mod dry_run;
mod fleet;
mod hand_offs;
#[path = "../remediators/mod.rs"]
mod remediators;
mod sleeper;
mod stand_in;
mod way;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, Patch, PatchParams};
use kube::config::AuthInfo;
use kube::{Api, Client};
use nrh::api::NodeRemediation;
use nrh::api::convert;
use nrh::cli::ControllerArgs;
use nrh::controller::calls::Calls;
use nrh::controller::clock::Clock;
use nrh::controller::run::{Controller, Ended};
use nrh_testbed::{Bed, BedOptions};
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::fleet::Fleet;
use crate::way::{Call, Fate, rough};

/// What the Deployment of the shipped manifests names.
const IMAGE: &str = "runtimehealth.io/nrh:dev";
/// Nodes that may be healed at a time on the rough way.
const AT_A_TIME: usize = 2;
/// Nodes that are sick at once there.
const SICK: usize = 8;
/// More than one healing takes; a healing of which no write is hit ends the count.
const MOST_POINTS: usize = 60;

const POLICY: &str = "
apiVersion: runtimehealth.io/v1alpha1
kind: RemediationPolicy
metadata: {name: leftovers}
spec:
  mode: Enforce
  limits: {maxUnhealthy: 100%, maxInFlight: 2, storm: {nodes: 100000}}
  rules:
    - name: leaked
      match: {faults: [LeakedShim]}
      steps:
        - {action: Taint, taint: {effect: NoSchedule}}
        - {action: Cordon}
        - {action: CleanupOrphans, attempts: 3, cooldown: 1s, verify: {for: 1s}}
";

/// Told in kubereboot/kured #660 and NVIDIA/NVSentinel #1280.
#[test]
fn whatever_is_cut_off_nothing_is_done_twice_and_nothing_is_left_undone() {
    let Some(bed) = up("interruptions") else { return };
    bed.kubectl_input(&["apply", "-f", "-"], POLICY).unwrap();
    let points = bed
        .run(async |admin| {
            let upstream = controllers_own(&bed).await?;
            let fleet = Fleet::new(admin.clone());
            let points = kill_points(&admin, &upstream, &fleet).await?;
            rough_way(&admin, &upstream, &fleet).await?;
            Ok(points)
        })
        .unwrap();
    println!("the leader was killed at {points} points: before and after each write of an episode");
    assert!(points >= 16, "an episode takes more than {points} / 2 writes");
    bed.down().unwrap();
}

#[test]
fn a_dry_run_touches_nothing_a_node_is_handed_off_once_and_a_leader_that_slept_does_nothing() {
    let Some(bed) = up("proofs") else { return };
    bed.run(async |admin| {
        let upstream = controllers_own(&bed).await?;
        let fleet = Fleet::new(admin.clone());
        let stage = Stage { bed: &bed, admin, upstream, fleet };
        hand_offs::install(&stage)?;
        dry_run::writes_only_its_account(&stage).await.context("the dry run")?;
        hand_offs::go_on_whatever_happens(&stage).await.context("the hand-offs")?;
        sleeper::does_nothing_when_it_wakes(&stage).await.context("the leader that slept")
    })
    .unwrap();
    bed.down().unwrap();
}

/// What everything here works with.
struct Stage<'a> {
    bed: &'a Bed,
    admin: Client,
    /// With the controller's rights.
    upstream: Client,
    fleet: Fleet,
}

/// A control plane with the manifests as shipped; none without root.
fn up(name: &str) -> Option<Bed> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: a real API server needs root (network namespace); this test did not run");
        return None;
    }
    let options = BedOptions { name: name.into(), control_plane_only: true, ..BedOptions::default() };
    let bed = Bed::up(options).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/default");
    bed.kubectl(&["apply", "-k", &folder.display().to_string()]).unwrap();
    bed.kubectl(&[
        "wait",
        "--for=condition=Established",
        "--timeout=30s",
        "crd",
        "-l",
        "app.kubernetes.io/part-of=nrh",
    ])
    .unwrap();
    Some(bed)
}

/// Asks again and again until there is an answer.
async fn until<T>(what: &str, limit: Duration, mut ask: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let ends = std::time::Instant::now() + limit;
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        ensure!(std::time::Instant::now() < ends, "{what}: not within {} s", limit.as_secs());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A client with the rights of the controller's account.
async fn controllers_own(bed: &Bed) -> Result<Client> {
    let token = bed.kubectl(&["-n", "nrh-system", "create", "token", "nrh-controller", "--duration=2h"])?;
    let mut config = bed.client_config().await?;
    config.auth_info = AuthInfo { token: Some(token.trim().to_owned().into()), ..AuthInfo::default() };
    Ok(Client::try_from(config)?)
}

/// Starts a controller.
fn start(client: &Client) -> JoinHandle<Result<(), Ended>> {
    start_as(client, "interrupted")
}

fn start_as(client: &Client, identity: &str) -> JoinHandle<Result<(), Ended>> {
    let args = ControllerArgs {
        image: Some(IMAGE.into()),
        listen: "127.0.0.1:0".parse().unwrap(),
        max_in_flight: 10,
        node_conditions: "".parse().unwrap(),
        identity: identity.into(),
    };
    let controller = Controller::new(Calls::new(client.clone(), client.clone()), Clock::system(), &args);
    tokio::spawn(controller.run(CancellationToken::new()))
}

/// It dies without a word, and its Lease runs out: that alone is not waited for.
async fn kill(admin: &Client, leader: JoinHandle<Result<(), Ended>>) -> Result<()> {
    leader.abort();
    let _ = leader.await;
    let leases: Api<Lease> = Api::namespaced(admin.clone(), "nrh-system");
    let nobody = Patch::Merge(json!({"spec": {"holderIdentity": null}}));
    match leases.patch("nrh-controller", &PatchParams::default(), &nobody).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Kills the leader before and after each write of an episode, one episode for each; how many points there were.
async fn kill_points(admin: &Client, upstream: &Client, fleet: &Fleet) -> Result<usize> {
    let mut points = 0;
    for fate in [Fate::Lost, Fate::Unanswered] {
        let how = if fate == Fate::Lost { "before" } else { "after" };
        for stop_at in 0..MOST_POINTS {
            let node = format!("{how}-{stop_at}");
            fleet.sick_node(&node).await?;
            let (gone, count) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
            let hit = Arc::new(Mutex::new(None));
            let (counted, noted, its) = (count.clone(), hit.clone(), node.clone());
            let judge = move |call: &Call| {
                if !call.is_of_episode(&its) {
                    return Fate::Answered;
                }
                match counted.fetch_add(1, Ordering::SeqCst) {
                    at if at < stop_at => Fate::Answered,
                    at if at == stop_at => {
                        *noted.lock().unwrap() = Some(call.line());
                        fate
                    }
                    // Others of that moment.
                    _ => Fate::Lost,
                }
            };
            let first = start(&rough(upstream.clone(), gone.clone(), judge));
            tokio::select! {
                () = gone.notified() => {}
                healed = fleet.healed(&node) => healed.context("without a crash")?,
            }
            kill(admin, first).await?;
            let point = hit.lock().unwrap().clone();
            let second = start(upstream);
            let healed = fleet.healed(&node).await;
            healed.with_context(|| format!("killed {how} write {stop_at}: {point:?}"))?;
            fleet.check(&node).await.with_context(|| format!("killed {how} write {stop_at}: {point:?}"))?;
            fleet.ledger_is_empty().await?;
            kill(admin, second).await?;
            fleet.remove(&node).await?;
            let Some(point) = point else { break };
            println!("killed {how} write {stop_at}: {point}");
            points += 1;
        }
    }
    Ok(points)
}

/// Heals many nodes over a way on which every kind of call goes wrong now and then. A leader that stands down is replaced.
async fn rough_way(admin: &Client, upstream: &Client, fleet: &Fleet) -> Result<()> {
    let nodes: Vec<String> = (1..=SICK).map(|number| format!("rough-{number}")).collect();
    for node in &nodes {
        fleet.sick_node(node).await?;
    }
    let (mut state, fates) = (0x9e37_79b9_7f4a_7c15_u64, Arc::new(Mutex::new(BTreeMap::<String, usize>::new())));
    let told = fates.clone();
    let judge = move |call: &Call| {
        // xorshift: the same numbers in every run, the calls come as they come.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let fate = fate(call, state % 64, state / 64 % 1000);
        if fate != Fate::Answered {
            let kind = format!("{fate:?}");
            let kind = kind.split_once("Late").map_or(kind.clone(), |_| "Late".to_owned());
            *told.lock().unwrap().entry(kind).or_default() += 1;
        }
        fate
    };
    let way = rough(upstream.clone(), Arc::new(Notify::new()), judge);
    let mut leader = start(&way);
    let episodes: Api<NodeRemediation> = Api::all(admin.clone());
    let ends = std::time::Instant::now() + Duration::from_mins(5);
    let (mut most, mut replaced) = (0, 0);
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if leader.is_finished() {
            leader = start(&way);
            replaced += 1;
        }
        let all: Vec<_> = episodes.list(&ListParams::default()).await?.iter().map(convert::episode).collect();
        let ours = || all.iter().filter(|episode| nodes.contains(&episode.node));
        most = most.max(ours().filter(|episode| episode.is_open()).count());
        ensure!(most <= AT_A_TIME, "{most} episodes at a time, at most {AT_A_TIME} are allowed");
        let healed = |node: &String| ours().any(|episode| episode.node == *node && episode.finished_at.is_some());
        if nodes.iter().all(healed) {
            break;
        }
        if std::time::Instant::now() > ends {
            bail!(
                "not all are healed after 5 min: {:#?}",
                ours().map(|e| (&e.node, e.phase, &e.message)).collect::<Vec<_>>()
            );
        }
    }
    kill(admin, leader).await?;
    let calm = start(upstream);
    for node in &nodes {
        fleet.healed(node).await?;
        fleet.check(node).await?;
    }
    fleet.ledger_is_empty().await?;
    kill(admin, calm).await?;
    let fates = fates.lock().unwrap().clone();
    println!(
        "{SICK} nodes healed, {most} at a time, over a way with {fates:?}; the leader was replaced {replaced} times"
    );
    ensure!(fates.len() >= 5, "expected nearly every kind of trouble, met {fates:?}");
    Ok(())
}

/// What becomes of a call, by two numbers.
fn fate(call: &Call, of_64: u64, of_1000: u64) -> Fate {
    let late = Fate::Late(Duration::from_millis(of_1000));
    if call.is_watch {
        return match of_64 {
            0..8 => Fate::Refused(410),
            8..16 => Fate::Refused(500),
            16..24 => late,
            _ => Fate::Answered,
        };
    }
    if call.is_of_lease() {
        return if of_64 < 8 { late } else { Fate::Answered };
    }
    match (of_64, call.is_write()) {
        (0..6, _) => late,
        (6..9, _) => Fate::Refused(500),
        (9..12, _) => Fate::Refused(429),
        // That a list or a watch is not answered at all is noticed by the connection, which this way has none of.
        (12..14, true) => Fate::Lost,
        (14..17, true) => Fate::Refused(409),
        (17..20, true) => Fate::Unanswered,
        _ => Fate::Answered,
    }
}
