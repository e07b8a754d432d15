//! The collector that asks systemd whether it is there, over the system bus. What restarts a unit, and what makes a control group
//! for a pod, goes that way.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Shared;
use super::pace::{Looker, Pace, drive};
use super::slot::{Failure, Slot};
use super::worker::Worker;
use crate::core::observation::BusSeen;
use crate::node::bus::{BusError, ping, socket};
use crate::node::collect::HostPaths;

/// End of a look: a bus at rest answers within a millisecond.
const LIMIT: Duration = Duration::from_secs(5);

pub(super) async fn bus(shared: Arc<Shared>, paths: HostPaths, pace: Pace) {
    let make = move || -> Box<dyn FnMut() -> Result<Way, Failure> + Send> {
        let paths = paths.clone();
        Box::new(move || way(&paths))
    };
    // The folders are in memory on most nodes; where the root comes over a network, the way to them may hang.
    drive(&shared, BusLooker { worker: Worker::new("nrh-bus", Box::new(make)) }, pace).await;
}

/// The way to systemd.
enum Way {
    /// Where it is asked.
    Bus(PathBuf),
    /// systemd does not run this node, or has no bus.
    Nobody,
}

fn way(paths: &HostPaths) -> Result<Way, Failure> {
    socket(paths).map(|found| found.map_or(Way::Nobody, Way::Bus)).map_err(Failure::Blind)
}

struct BusLooker {
    worker: Worker<Way>,
}

impl Looker for BusLooker {
    type Value = BusSeen;
    const NAME: &'static str = "bus";

    fn slot(shared: &Shared) -> &Mutex<Slot<BusSeen>> {
        &shared.bus
    }

    async fn look(&mut self) -> Result<BusSeen, Failure> {
        let Way::Bus(socket) = self.worker.ask().await? else { return Ok(BusSeen::NoBus) };
        match ping(&socket, LIMIT).await {
            Ok(seen) => Ok(seen),
            // It was there a moment ago.
            Err(error @ (BusError::Missing(_) | BusError::Odd(_))) => Err(Failure::Failed(error.to_string())),
            Err(error @ BusError::Forbidden(_)) => Err(Failure::Blind(error.to_string())),
        }
    }
}
