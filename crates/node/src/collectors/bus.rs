//! The collector that asks systemd over the system bus whether it responds. Programs restart a unit or create a pod's control
//! group through the same bus.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::pace::{Checker, Pace, drive};
use super::slot::Failure;
use super::worker::Worker;
use crate::bus::{BusError, ping, socket};
use crate::collect::HostPaths;
use nrh_core::observation::BusSeen;

/// Deadline of a check: a bus at rest answers within a millisecond.
const LIMIT: Duration = Duration::from_secs(5);

pub(super) async fn bus(shared: Arc<Shared>, paths: HostPaths, pace: Pace) {
    // The folders are in memory on most nodes. Where the root is on a network file system, reading their path may hang.
    let worker = Worker::new("nrh-bus", move || {
        let paths = paths.clone();
        move || socket(&paths).map_err(Failure::Unavailable)
    });
    drive(&shared, "bus", &shared.bus, BusChecker { worker }, pace).await;
}

struct BusChecker {
    worker: Worker<Option<PathBuf>>,
}

impl Checker for BusChecker {
    type Value = BusSeen;

    async fn check(&mut self, _: &Shared) -> Result<BusSeen, Failure> {
        let Some(socket) = self.worker.ask().await? else { return Ok(BusSeen::NoBus) };
        match ping(&socket, LIMIT).await {
            Ok(seen) => Ok(seen),
            // The socket existed a moment ago.
            Err(error @ (BusError::Missing(_) | BusError::Odd(_))) => Err(Failure::Failed(error.to_string())),
            Err(error @ BusError::Forbidden(_)) => Err(Failure::Unavailable(error.to_string())),
        }
    }
}
