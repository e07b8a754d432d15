//! The two collectors that check the resources of the runtime and the kubelet: the kernel's limits, and the disks. Other
//! collectors find the daemons to check.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::pace::{Checker, Pace, drive};
use super::slot::Failure;
use super::worker::Worker;
use super::{Shared, lock};
use crate::collect::disks::Disks;
use crate::collect::host::{Daemon, Host, Who};
use nrh_core::observation::{Owner, ProcessRole};
use nrh_core::text::bounded;

/// Where the kernel shows its devices.
const SYS: &str = "/sys";
/// How long a first check waits for the collectors that find the daemons.
const FIRST: Duration = Duration::from_secs(5);
const FIRST_STEP: Duration = Duration::from_millis(100);

pub(super) async fn host(shared: Arc<Shared>, pace: Pace) {
    let for_worker = Arc::clone(&shared);
    let worker = Worker::new("nrh-host", move || {
        let (mut scanner, shared) = (Host::new(&for_worker.proc), Arc::clone(&for_worker));
        move || {
            let failed = |error: std::io::Error| Failure::Failed(bounded(&error.to_string(), 300));
            let listed = lock(&shared.lists).value().map(|round| round.ids().map(str::to_owned).collect());
            scanner.check(&Who { listed, ..who(&shared) }).map_err(failed)
        }
    });
    drive(&shared, "host", &shared.host, DaemonChecker { worker }, pace).await;
}

pub(super) async fn disks(shared: Arc<Shared>, pace: Pace) {
    let for_worker = Arc::clone(&shared);
    let worker = Worker::new("nrh-disks", move || {
        let (mut scanner, shared) = (Disks::new(&for_worker.proc, Path::new(SYS)), Arc::clone(&for_worker));
        move || Ok(scanner.check(&who(&shared)))
    });
    drive(&shared, "disks", &shared.disks, DaemonChecker { worker }, pace).await;
}

/// The daemons as the other collectors last saw them. A pid is only a hint: the reader verifies the start time.
fn who(shared: &Shared) -> Who {
    let mut who = Who { pod_groups: lock(&shared.pod_groups).clone(), ..Who::default() };
    let mut unseen = |why: &str| {
        who.unseen.get_or_insert_with(|| why.to_owned());
    };
    match lock(&shared.kubelet).value().map(|kubelet| kubelet.process) {
        Some(Some((pid, start_ticks, _))) => who.daemons.push(Daemon { owner: Owner::Kubelet, pid, start_ticks }),
        Some(None) => unseen("no kubelet runs that could be checked"),
        None => unseen("whether a kubelet runs is not known"),
    }
    let table = lock(&shared.processes);
    let Some(table) = table.value() else {
        unseen("the process table is not known");
        return who;
    };
    let runtimes = table.processes.iter().filter(|process| process.role == ProcessRole::Runtime);
    let before = who.daemons.len();
    who.daemons.extend(runtimes.map(|process| Daemon {
        owner: Owner::Runtime(process.command.clone()),
        pid: process.pid,
        start_ticks: process.start_ticks,
    }));
    who.inits.clone_from(&table.inits);
    if who.daemons.len() == before {
        unseen("no process of the runtime is seen");
    }
    if let Some(why) = &table.left_out.processes {
        unseen(why);
    }
    who
}

/// Waits a limited time until the other collectors have checked once.
pub(super) async fn others_have_checked(shared: &Shared) {
    let began = Instant::now();
    let never = || lock(&shared.kubelet).has_never_ended() || lock(&shared.processes).has_never_ended();
    while never() && began.elapsed() < FIRST {
        sleep(FIRST_STEP).await;
    }
}

/// Checks the daemons that the other collectors have found.
struct DaemonChecker<T> {
    worker: Worker<T>,
}

impl<T: Send + 'static> Checker for DaemonChecker<T> {
    type Value = T;

    async fn check(&mut self, shared: &Shared) -> Result<T, Failure> {
        others_have_checked(shared).await;
        self.worker.ask().await
    }
}
