//! When etcd was restored from a backup while the same replica leads.

use std::time::Duration;

use nrh::controller::run::Ended;
use tokio::time::sleep;

use crate::fake_api::world::World;

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
