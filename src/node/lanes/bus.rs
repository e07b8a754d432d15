//! The lane that asks systemd whether it is there, over the system bus. What restarts a unit, and what makes a control group
//! for a pod, goes that way.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Shared;
use super::pace::{Looker, Pace, drive};
use super::slot::{Failure, Slot};
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
    drive(&shared, BusLooker { paths }, pace).await;
}

struct BusLooker {
    paths: HostPaths,
}

impl BusLooker {
    async fn ask(&self) -> Result<BusSeen, Failure> {
        // Folders in memory: looking there waits for nobody.
        match self.paths.socket(Path::new(BOOTED)).metadata() {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return self.nobody(),
            Err(error) => return Err(Failure::Blind(bounded(&format!("{BOOTED}: {error}"), 200))),
        }
        match ping(&self.paths.socket(Path::new(SOCKET)), LIMIT).await {
            Ok(seen) => Ok(seen),
            Err(BusError::Missing(_)) => self.nobody(),
            Err(error @ BusError::Forbidden(_)) => Err(Failure::Blind(error.to_string())),
            Err(error @ BusError::Odd(_)) => Err(Failure::Failed(error.to_string())),
        }
    }

    /// What is not there for us is not there on the node, where that can be seen.
    fn nobody(&self) -> Result<BusSeen, Failure> {
        let root = self.paths.proc.join("1/root");
        if self.paths.root == Path::new("/") && root.metadata().is_err() {
            let reason = "whether the node has a system bus is not known: the root of process 1 cannot be looked at";
            return Err(Failure::Blind(reason.to_owned()));
        }
        Ok(BusSeen::NoBus)
    }
}

impl Looker for BusLooker {
    type Value = BusSeen;
    const NAME: &'static str = "bus";

    fn slot(shared: &Shared) -> &Mutex<Slot<BusSeen>> {
        &shared.bus
    }

    async fn look(&mut self) -> Result<BusSeen, Failure> {
        self.ask().await
    }
}
