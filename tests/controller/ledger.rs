//! One that leads no more and does not know it, since its machine stood still with all its clocks: what the ledger keeps it from.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use crate::die_with_a_remediation_open;
use crate::fake_api::Call;
use crate::fake_api::world::World;

fn is_ledger(call: &Call) -> bool {
    call.target.plural == "configmaps"
}

#[tokio::test(start_paused = true)]
async fn nothing_is_spent_from_a_ledger_that_somebody_else_has_written_since() {
    let world = World::healthy();
    let _replica = world.controller("a");
    world.until("it leads", || world.api.get("configmaps", "nrh-ledger").is_some()).await;
    let mut is_opened = false;
    // Right before the last check of the first act the next leader writes the ledger, as it does before anything else.
    let is_check = move |call: &Call| {
        is_opened |= call.is("create", "noderemediations");
        call.verb == "get" && is_ledger(call) && is_opened
    };
    world.api.meanwhile(is_check, |api| {
        api.change("configmaps", "nrh-ledger", |map| map["data"]["written"] = json!("in term 7, over version 1"));
    });
    world.api.forget_calls();
    world.set_sick("w1", true);
    world.healed().await;
    let calls: Vec<String> = world.api.calls().iter().filter(|call| call.verb != "watch").map(Call::line).collect();
    let of = |start: &str| -> Vec<usize> {
        calls.iter().enumerate().filter(|(_, call)| call.starts_with(start)).map(|(at, _)| at).collect()
    };
    let (jobs, writes) = (of("create jobs/"), of("patch configmaps/nrh-ledger"));
    assert_eq!(jobs.len(), 1, "{calls:#?}");
    let (first, job) = (of("get configmaps/nrh-ledger")[0], jobs[0]);
    assert!(first < job && writes.iter().any(|write| (first..job).contains(write)), "{calls:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_slot_whose_remediation_does_not_show_is_given_back_only_after_a_search_that_nobody_can_have_overtaken() {
    let world = World::healthy();
    world.set_kubelet(false);
    die_with_a_remediation_open(&world).await;
    world.api.unhook();
    // Its creation arrives late: when the next leader has written the ledger for the first time.
    let remediation = world.remediation();
    let name = remediation["metadata"]["name"].as_str().unwrap().to_owned();
    world.api.remove("noderemediations", &name);
    sleep(Duration::from_mins(3)).await;
    let is_write = |call: &Call| call.verb == "patch" && is_ledger(call);
    let stored = || -> Vec<String> {
        let of = |call: &Call| call.body["data"]["ledger.json"].as_str().unwrap().to_owned();
        world.api.calls().iter().filter(|call| is_write(call)).map(of).collect()
    };
    world.api.forget_calls();
    world.api.meanwhile(is_write, move |api| drop(api.put(remediation)));
    let _next = world.controller("b");
    world.until("it has written the ledger", || !stored().is_empty()).await;
    sleep(Duration::from_mins(1)).await;
    assert_eq!(world.phases().len(), 1, "one remediation, and no second one beside it");
    assert!(stored().iter().all(|slots| slots.contains(&name)), "{:#?}", stored());
}
