//! The lane that asks systemd whether it is there, over the system bus. What restarts a unit, and what makes a control group
//! for a pod, goes that way.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Shared;
use super::pace::{Looker, Pace, drive};
use super::slot::{Failure, Slot};
use super::worker::Worker;
use crate::core::observation::BusSeen;
use crate::core::text::bounded;
use crate::node::bus::{BusError, ping};
use crate::node::collect::HostPaths;

/// The one place of it on every distribution that has one.
const SOCKET: &str = "/run/dbus/system_bus_socket";
/// What systemd makes where it runs the machine, and no image brings along: see `sd_booted(3)`.
const BOOTED: &str = "/run/systemd/system";
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
    let there = |path: &str| match paths.socket(Path::new(path)).metadata() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Failure::Blind(bounded(&format!("{path}: {error}"), 200))),
    };
    let booted = there(BOOTED)?;
    if booted && there(SOCKET)? {
        return Ok(Way::Bus(paths.socket(Path::new(SOCKET))));
    }
    // What is not there for us is not there on the node, where that can be seen.
    if paths.root == Path::new("/") && paths.proc.join("1/root").metadata().is_err() {
        let reason = "whether the node has a system bus is not known: the root of process 1 cannot be looked at";
        return Err(Failure::Blind(reason.to_owned()));
    }
    Ok(Way::Nobody)
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
