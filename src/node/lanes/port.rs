//! The lane that asks the kubelet at its own port. Which kubelet, the kubelet's lane has found: while that one is down or
//! begins, nothing is asked here.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::host::others_have_looked;
use super::pace::{Looker, Pace, drive};
use super::slot::{Failure, Slot};
use super::worker::Worker;
use super::{Shared, lock};
use crate::core::observation::PortSeen;
use crate::node::collect::kubelet::port::Port;
use crate::node::collect::kubelet::server::{Door, door};

pub(super) async fn port(shared: Arc<Shared>, proc: PathBuf, token: Option<PathBuf>, pace: Pace) {
    let for_worker = Arc::clone(&shared);
    let make = move || -> Box<dyn FnMut() -> Result<Result<Door, String>, Failure> + Send> {
        let (shared, proc, token) = (Arc::clone(&for_worker), proc.clone(), token.clone());
        Box::new(move || {
            let served = lock(&shared.served).clone();
            Ok(served.and_then(|served| door(&proc, &served, token.as_deref())))
        })
    };
    // Certificates lie on the node's disks, and those may hang.
    let worker = Worker::new("nrh-port", Box::new(make));
    let looker = PortLooker { shared: Arc::clone(&shared), worker, port: Port::default(), settled: false };
    drive(&shared, looker, pace).await;
}

struct PortLooker {
    shared: Arc<Shared>,
    worker: Worker<Result<Door, String>>,
    port: Port,
    /// What was asked last has given all that it can.
    settled: bool,
}

impl Looker for PortLooker {
    type Value = PortSeen;
    const NAME: &'static str = "port";

    fn slot(shared: &Shared) -> &Mutex<Slot<PortSeen>> {
        &shared.port
    }

    async fn look(&mut self) -> Result<PortSeen, Failure> {
        others_have_looked(&self.shared).await;
        self.settled = false;
        match self.worker.ask().await? {
            Ok(door) => {
                let seen = self.port.look(&door).await;
                // Whoever was refused is refused the next time too; a first look at counters tells nothing yet.
                self.settled = seen.relists.as_ref().map_or(true, |relists| relists.mean.is_some());
                Ok(seen)
            }
            // Nobody was asked. Not blind: what is not granted, or not served, stays so.
            Err(why) => Ok(PortSeen { sync_loop: Err(why.clone()), relists: Err(why) }),
        }
    }

    fn settled(&self) -> bool {
        self.settled
    }
}
