//! One that leads no more and does not know it, since its machine stood still with all its clocks: what the ledger keeps it from.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use crate::die_with_a_remediation_open;
use crate::fake_api::world::World;
use crate::fake_api::{Call, FakeApi, Fault};

fn is_ledger(call: &Call) -> bool {
    call.target.plural == "configmaps"
}

/// The next leader writes the ledger, as it does before anything else.
fn somebody_else_writes(api: &FakeApi) {
    api.change("configmaps", "nrh-ledger", |map| map["data"]["written"] = json!("in term 7, over version 1"));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_spent_from_a_ledger_that_somebody_else_has_written_since() {
    let world = World::healthy();
    let _replica = world.controller("a");
    world.until("it leads", || world.api.get("configmaps", "nrh-ledger").is_some()).await;
    let (mut is_opened, mut is_written) = (false, false);
    // Right before the last check of the first act.
    world.api.hook(move |call| {
        is_opened |= call.is("create", "noderemediations");
        let is_check = call.verb == "get" && is_ledger(call) && is_opened;
        let is_first = is_check && !is_written;
        is_written |= is_check;
        is_first.then(|| Fault::Meanwhile(Box::new(somebody_else_writes)))
    });
    world.api.forget_calls();
    world.set_sick("w1", true);
    world.healed().await;
    let calls: Vec<String> = world.api.calls().iter().filter(|call| call.verb != "watch").map(Call::line).collect();
    let of =
        |line: &str| calls.iter().enumerate().filter(|(_, call)| *call == line).map(|(at, _)| at).collect::<Vec<_>>();
    let (checks, writes) = (of("get configmaps/nrh-ledger"), of("patch configmaps/nrh-ledger"));
    let jobs: Vec<usize> =
        calls.iter().enumerate().filter(|(_, call)| call.starts_with("create jobs/")).map(|(at, _)| at).collect();
    assert_eq!(jobs.len(), 1, "{calls:#?}");
    let [job] = jobs[..] else { unreachable!() };
    let first = checks[0];
    assert!(first < job && writes.iter().any(|write| (first..job).contains(write)), "{calls:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_slot_whose_remediation_does_not_show_is_given_back_only_after_a_search_that_nobody_can_have_overtaken() {
    let world = World::healthy();
    world.set_kubelet(false);
    die_with_a_remediation_open(&world).await;
    world.api.unhook();
    // Its creation arrives late: when the next leader has written the ledger for the first time.
    let remediation = world.remediation().clone();
    let name = remediation["metadata"]["name"].as_str().unwrap().to_owned();
    world.api.remove("noderemediations", &name);
    sleep(Duration::from_mins(3)).await;
    let stored = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&stored);
    world.api.hook(move |call| {
        if call.verb != "patch" || !is_ledger(call) {
            return None;
        }
        let mut seen = seen.lock().unwrap();
        seen.push(call.body["data"]["ledger.json"].as_str().unwrap().to_owned());
        let remediation = remediation.clone();
        (seen.len() == 1).then(|| {
            Fault::Meanwhile(Box::new(move |api: &FakeApi| {
                api.put(remediation);
            }))
        })
    });
    let _next = world.controller("b");
    world.until("it has written the ledger", || !stored.lock().unwrap().is_empty()).await;
    sleep(Duration::from_mins(1)).await;
    assert_eq!(world.phases().len(), 1, "one remediation, and no second one beside it");
    let stored = stored.lock().unwrap().clone();
    assert!(stored.iter().all(|slots| slots.contains(&name)), "{stored:#?}");
}
