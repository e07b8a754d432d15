//! Orders to the probe: they stand in an object into which others write, too.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::fake_api::Fault;
use crate::fake_api::world::World;

#[tokio::test(start_paused = true)]
async fn an_order_that_meets_another_write_is_given_at_once_after_another_look() {
    let world = World::new(1);
    world.policy("hung", "Enforce", &World::release());
    world.kubelets();
    let replica = world.controller("a");
    world.probe("w1");
    let status = || world.status("w1");
    world.until("it has reported", || status()["summary"]["health"] == "Healthy").await;
    sleep(Duration::from_mins(4)).await;
    world.restart_kubelet("w1");
    // Such a kubelet starts no Job.
    world.until("its start is blocked", || status()["clusterFaults"][0]["type"] == "KubeletStartBlocked").await;

    let (orders, looked) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(0)));
    let (tries, looks) = (Arc::clone(&orders), Arc::clone(&looked));
    world.api.hook(move |call| {
        if call.target.plural != "noderuntimehealths" {
            return None;
        }
        if call.verb == "get" {
            *looks.lock().unwrap() += 1;
        }
        if call.body["status"]["order"]["operationId"] == Value::Null {
            return None;
        }
        let mut tries = tries.lock().unwrap();
        tries.push(Instant::now());
        (tries.len() < 3).then_some(Fault::Code(409))
    });
    world.set_sick("w1", true);
    world.until("the probe is ordered", || status()["order"]["action"] == "ReleaseCont").await;
    let tries = orders.lock().unwrap().clone();
    assert_eq!(tries.len(), 3);
    let first = tries.first().unwrap();
    // What has failed waits for a tenth of a second at least; time stands still here while anything is to be done.
    assert!(tries.iter().all(|at| at.duration_since(*first) < Duration::from_millis(100)), "{tries:?}");
    assert!(*looked.lock().unwrap() >= 3, "each time on what was read right before");
    sleep(Duration::from_secs(1)).await;
    replica.crash().await;
}
