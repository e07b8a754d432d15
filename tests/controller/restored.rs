//! When etcd was restored from a backup while the same replica leads.

use std::time::Duration;

use nrh::controller::run::Ended;
use tokio::time::sleep;

use crate::fake_api::world::World;

#[tokio::test(start_paused = true)]
async fn a_controller_that_is_answered_from_another_history_ends_and_the_next_one_resolves() {
    let world = World::healthy();
    let mut replica = world.controller("a");
    let is_well = |node: &str| world.status(node)["summary"]["health"] == "Healthy";
    world.until("all are well", || ["w1", "w2", "w3"].into_iter().all(is_well)).await;
    let backup = world.api.backup();
    sleep(Duration::from_mins(5)).await;
    assert!(!replica.task.is_finished());
    world.api.restore(backup);
    // No watch tells of it: what is written since heartbeats do not come is answered with a version that is long known.
    world.until("it ends", || replica.task.is_finished()).await;
    let ended = (&mut replica.task).await.unwrap();
    assert!(matches!(ended, Err(Ended::Part("the writer of statuses"))), "{ended:?}");
    let next = world.controller("b");
    world.set_sick("w2", true);
    world.until("healed", || world.phases() == ["Succeeded"]).await;
    next.stop().await.unwrap();
}
