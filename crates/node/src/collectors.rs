//! The collectors: each asks one dependency at its own interval, and none can delay another.
//!
//! ```text
//! version · lists · status · tasks · port · bus (async calls, connections of their own)
//! processes · kubelet · host · disks (blocking, one thread each)
//!        └──────────► slots: last outcome and the call that is out ──► Observations (a copy, at any moment)
//! ```
//!
//! A call past its deadline is an observation at once, and stays out. A second call would only add to what hangs, because an
//! abandoned call leaves work behind in the server. After a long bound the collector drops and counts the call, and asks again
//! after longer and longer waits.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::collect::host::PodGroups;
use crate::collect::kubelet::server::RunningServer;
use crate::collect::lists::ListCall;
use crate::collect::{HostPaths, pressure};
use crate::cri::endpoint::{Endpoint, Flags, NamedBy};
use crate::lock::lock;
use nrh_api::evidence::CallCounts;
use nrh_core::observation::{
    BusSeen, ClockSeen, DisksSeen, HostSeen, KubeletSeen, ListRound, Observations, PortSeen, ProcessTable, Reading,
    RuntimeKind, RuntimeSeen, StatusSeen,
};

mod bus;
mod hints;
mod host;
mod local;
mod pace;
mod port;
mod runtime;
mod slot;
mod tasks;
mod worker;

pub use hints::Hints;
pub use pace::{Pace, Paces};
use slot::Slot;
use tasks::Table;

/// What the collectors need to know.
#[derive(Clone, Debug, Default)]
pub struct CollectorSettings {
    /// Sockets that a person has named.
    pub sockets: Flags,
    /// The socket that an earlier probe used since the last boot.
    pub saved_endpoint: Option<Endpoint>,
    /// The kubelet's version, where an earlier probe learned it since the last boot.
    pub kubelet_version: Option<String>,
    /// Where the host's files and processes are.
    pub host: HostPaths,
    /// The file with the token for the kubelet's own port, where there is one.
    pub token: Option<PathBuf>,
    /// The kernel's log, where the probe follows it.
    pub kernel_log: Option<PathBuf>,
    /// The intervals and deadlines.
    pub paces: Paces,
}

/// The running collectors. They end when this is dropped.
#[derive(Debug)]
pub struct Collectors {
    shared: Arc<Shared>,
    _running: JoinSet<()>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CheckMode {
    urgent: bool,
    /// Counts the requests for a check by all collectors.
    asked: u64,
}

/// The state that all collectors write to and read from.
#[derive(Debug)]
struct Shared {
    version: Mutex<Slot<RuntimeSeen>>,
    lists: Mutex<Slot<ListRound>>,
    status: Mutex<Slot<StatusSeen>>,
    list_call: Mutex<ListCall>,
    /// Whether the last round failed because a list was too large.
    list_too_large: Mutex<bool>,
    rechecks_out: Mutex<usize>,
    processes: Mutex<Slot<ProcessTable>>,
    kubelet: Mutex<Slot<KubeletSeen>>,
    host: Mutex<Slot<HostSeen>>,
    disks: Mutex<Slot<DisksSeen>>,
    port: Mutex<Slot<PortSeen>>,
    /// The kubelet whose own port may be asked, or why there is none.
    served: Mutex<Result<RunningServer, String>>,
    bus: Mutex<Slot<BusSeen>>,
    /// No collector fills it: answers to reports bring it.
    clock: Mutex<Slot<ClockSeen>>,
    /// The host's process table.
    proc: PathBuf,
    tasks: Mutex<Table>,
    endpoint: Mutex<Option<Endpoint>>,
    /// Where the kubelet keeps the control groups of pods.
    pod_groups: Mutex<PodGroups>,
    /// The kubelet's version; other components report it.
    kubelet_version: Mutex<Option<String>>,
    /// Docker's own socket, where Docker is the runtime.
    docker: Mutex<Option<PathBuf>>,
    /// What kind of runtime has answered last.
    kind: Mutex<RuntimeKind>,
    /// Whether this socket exists for the kubelet, or for the node where no kubelet runs.
    socket_exists: Mutex<Option<(PathBuf, bool)>>,
    /// Counts of dropped and delayed calls. The calls that are out are counted when they are read.
    calls: Mutex<CallCounts>,
    hints: Mutex<Hints>,
    tempo: watch::Sender<CheckMode>,
    /// Wakes the task collector when its objects or suspects have changed.
    tasks_changed: Notify,
    /// Wakes the process collector when the runtime lists what the last table does not show.
    processes_wanted: Notify,
    changed: Notify,
}

/// A slot whatever its value is.
trait AnySlot {
    fn is_out(&self) -> bool;
    fn was_suspended(&self, slept: Duration);
}

impl<T> AnySlot for Mutex<Slot<T>> {
    fn is_out(&self) -> bool {
        lock(self).is_out()
    }

    fn was_suspended(&self, slept: Duration) {
        lock(self).was_suspended(slept);
    }
}

fn reading<T: Clone>(slot: &Mutex<Slot<T>>, at: Instant) -> Reading<T> {
    lock(slot).reading(at)
}

impl Collectors {
    /// Starts all collectors on the current tokio runtime, and the threads of those that may block.
    pub fn start(settings: CollectorSettings) -> Self {
        let shared = Arc::new(Shared::new(&settings));
        let mut running = JoinSet::new();
        running.spawn(runtime::version(Arc::clone(&shared), settings.paces.version));
        running.spawn(runtime::lists(Arc::clone(&shared), settings.paces.lists));
        running.spawn(runtime::status(Arc::clone(&shared), settings.paces.status));
        running.spawn(tasks::run(Arc::clone(&shared)));
        running.spawn(local::processes(Arc::clone(&shared), settings.paces.processes));
        running.spawn(host::host(Arc::clone(&shared), settings.paces.host));
        running.spawn(host::disks(Arc::clone(&shared), settings.paces.disks));
        running.spawn(port::port(Arc::clone(&shared), settings.token.clone(), settings.paces.port));
        running.spawn(bus::bus(Arc::clone(&shared), settings.host.clone(), settings.paces.bus));
        running.spawn(hints::follow(Arc::clone(&shared), settings.kernel_log.clone()));
        running.spawn(local::kubelet(Arc::clone(&shared), settings));
        Self { shared, _running: running }
    }

    /// A copy of what every collector knew at `at`; never waits. `now` is the same moment on the node's clock that stands still while
    /// the node is suspended.
    pub fn observations(&self, now: Duration, at: Instant) -> Observations {
        let shared = &self.shared;
        let lists = reading(&shared.lists, at);
        let sandbox_list_hung =
            matches!(lists, Reading::Hung { .. }) && *lock(&shared.list_call) == ListCall::Sandboxes;
        // One lock at a time: a guard in a struct expression would live until its end.
        let (runtime, status) = (reading(&shared.version, at), reading(&shared.status, at));
        let kind = *lock(&shared.kind);
        let tasks = lock(&shared.tasks).readings(at);
        let list_too_large = matches!(lists, Reading::Failed { .. }) && *lock(&shared.list_too_large);
        Observations {
            now,
            runtime,
            status,
            kind,
            lists,
            sandbox_list_hung,
            list_too_large,
            tasks,
            processes: reading(&shared.processes, at),
            kubelet: reading(&shared.kubelet, at),
            host: reading(&shared.host, at),
            disks: reading(&shared.disks, at),
            port: reading(&shared.port, at),
            bus: reading(&shared.bus, at),
            clock: reading(&shared.clock, at),
            pressure: pressure::read(&shared.proc),
        }
    }

    /// Waits until, since the last return, a check has brought a result that must be judged at once. Such a result is one that
    /// failed or passed its deadline, the first one after that, one that stands out, and any one while a fault is suspected or
    /// a check was requested. All other results at rest wait for the next evaluation.
    pub async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    /// Requests a check by all collectors now. A collector whose call is out still waits for it.
    pub fn refresh(&self) {
        self.shared.refresh();
    }

    /// Makes every result older by the time for which the node was suspended, and requests a check by all collectors.
    pub fn was_suspended(&self, slept: Duration) {
        let shared = &self.shared;
        shared.slots().iter().for_each(|(_, slot)| slot.was_suspended(slept));
        lock(&shared.tasks).was_suspended(slept);
        lock(&shared.clock).was_suspended(slept);
        shared.refresh();
    }

    /// Shortens the intervals while a fault is suspected.
    pub fn set_urgent(&self, urgent: bool) {
        self.shared.tempo.send_if_modified(|tempo| std::mem::replace(&mut tempo.urgent, urgent) != urgent);
    }

    /// Gives priority to the tasks of these containers (or sandboxes), until the next call of this. Ids that the runtime does
    /// not list are ignored.
    pub fn suspects(&self, ids: Vec<String>) {
        if lock(&self.shared.tasks).suspect(ids.into_iter().collect()) {
            self.shared.tasks_changed.notify_one();
        }
    }

    /// The runtime's socket in use, if one is known.
    pub fn endpoint(&self) -> Option<Endpoint> {
        lock(&self.shared.endpoint).clone()
    }

    /// Sets the kubelet's version: on the node alone, only a run of its program would show it.
    pub fn kubelet_is(&self, version: Option<String>) {
        *lock(&self.shared.kubelet_version) = version;
    }

    /// Sets what an answer of the API server shows about the node's clock.
    pub fn clock_is(&self, seen: ClockSeen) {
        lock(&self.shared.clock).ended(Ok(seen), Instant::now(), Duration::ZERO);
    }

    /// The kubelet's version, if any component has reported it.
    pub fn kubelet_version(&self) -> Option<String> {
        lock(&self.shared.kubelet_version).clone()
    }

    /// Docker's own socket, where Docker is the runtime and it is known.
    pub fn docker_socket(&self) -> Option<PathBuf> {
        lock(&self.shared.docker).clone()
    }

    /// Counts of what has been read from the kernel's log.
    pub fn hints(&self) -> Hints {
        *lock(&self.shared.hints)
    }

    /// How many calls are out, and how many were dropped.
    pub fn call_counts(&self) -> CallCounts {
        let shared = &self.shared;
        let mut call_counts = lock(&shared.calls).clone();
        let slots = shared.slots().map(|(collector, slot)| (collector, usize::from(slot.is_out())));
        let others = [("rechecks", *lock(&shared.rechecks_out)), ("tasks", lock(&shared.tasks).out())];
        call_counts.out = slots.into_iter().chain(others).map(|(name, count)| (name.to_owned(), count)).collect();
        call_counts
    }
}

impl Shared {
    /// Requests a check by all collectors now.
    fn refresh(&self) {
        self.tempo.send_modify(|tempo| tempo.asked = tempo.asked.wrapping_add(1));
    }

    fn new(settings: &CollectorSettings) -> Self {
        let paces = &settings.paces;
        let named = settings.sockets.runtime.clone();
        Self {
            version: Mutex::new(Slot::new(paces.version.deadline)),
            lists: Mutex::new(Slot::new(paces.lists.deadline)),
            status: Mutex::new(Slot::new(paces.status.deadline)),
            list_call: Mutex::new(ListCall::Sandboxes),
            list_too_large: Mutex::new(false),
            rechecks_out: Mutex::new(0),
            processes: Mutex::new(Slot::new(paces.processes.deadline)),
            kubelet: Mutex::new(Slot::new(paces.kubelet.deadline)),
            host: Mutex::new(Slot::new(paces.host.deadline)),
            disks: Mutex::new(Slot::new(paces.disks.deadline)),
            port: Mutex::new(Slot::new(paces.port.deadline)),
            served: Mutex::new(Err("the kubelet was not checked yet".to_owned())),
            bus: Mutex::new(Slot::new(paces.bus.deadline)),
            clock: Mutex::new(Slot::new(Duration::ZERO)),
            proc: settings.host.proc.clone(),
            tasks: Mutex::new(Table::new(paces)),
            endpoint: Mutex::new(
                named
                    .map(|socket| Endpoint::cri(socket, NamedBy::Flag))
                    .or_else(|| settings.saved_endpoint.clone().filter(|saved| saved.socket.is_absolute())),
            ),
            pod_groups: Mutex::default(),
            kubelet_version: Mutex::new(settings.kubelet_version.clone()),
            docker: Mutex::new(settings.sockets.docker.clone()),
            kind: Mutex::new(RuntimeKind::Unknown),
            socket_exists: Mutex::new(None),
            calls: Mutex::new(CallCounts::default()),
            hints: Mutex::new(Hints::default()),
            tempo: watch::Sender::new(CheckMode::default()),
            tasks_changed: Notify::new(),
            processes_wanted: Notify::new(),
            changed: Notify::new(),
        }
    }

    /// The collectors that have one slot, by name.
    fn slots(&self) -> [(&'static str, &dyn AnySlot); 9] {
        [
            ("runtime", &self.version),
            ("lists", &self.lists),
            ("status", &self.status),
            ("processes", &self.processes),
            ("kubelet", &self.kubelet),
            ("host", &self.host),
            ("disks", &self.disks),
            ("port", &self.port),
            ("bus", &self.bus),
        ]
    }

    fn call_abandoned(&self, collector: &str) {
        let mut calls = lock(&self.calls);
        let count = calls.abandoned.entry(collector.to_owned()).or_default();
        *count = count.saturating_add(1);
    }

    /// Records time in which a call of this collector was out and this process could not run.
    fn was_stalled(&self, collector: &str, by: Duration) {
        if !by.is_zero() {
            *lock(&self.calls).stalled_seconds.entry(collector.to_owned()).or_default() += by.as_secs_f64();
        }
    }

    /// Passes the current objects to the task collector after a check of another collector. A failed check changes nothing: the
    /// previous result is still the best available list of what to ask for.
    fn update_task_targets(&self) {
        let mut changed = false;
        let answered = lock(&self.version).value().map(|seen| RuntimeKind::of(&seen.name));
        if let Some(kind) = answered {
            *lock(&self.kind) = kind;
            changed |= lock(&self.tasks).serve(kind);
        }
        if let Some(table) = lock(&self.processes).value() {
            changed |= lock(&self.tasks).note(table);
        }
        if let Some(round) = lock(&self.lists).value() {
            changed |= lock(&self.tasks).update_targets(round);
        }
        if changed {
            self.tasks_changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
