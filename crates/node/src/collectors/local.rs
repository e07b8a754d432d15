//! The two collectors that check the node itself: the process table, and the kubelet.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::pace::{Checker, Pace, drive};
use super::slot::Failure;
use super::worker::Worker;
use super::{CollectorSettings, Shared, lock};
use crate::collect::HostPaths;
use crate::collect::kubelet::server::RunningServer;
use crate::collect::kubelet::{Finder, Found, health, none_answers};
use crate::collect::processes::Processes;
use crate::cri::endpoint::{self, Endpoint, Flags, NamedBy};
use crate::proc::processor_time;
use crate::reader::Reader;
use nrh_core::faults::{kubelet, runtime_client_hung};
use nrh_core::observation::{
    KubeletSeen, KubeletSettings, ProcessRole, ProcessSeen, ProcessTable, RuntimeKind, is_unresponsive_state,
};
use nrh_core::text::bounded;

pub(super) async fn processes(shared: Arc<Shared>, pace: Pace) {
    // The memory of proofs outlives a thread.
    let scanner = Arc::new(Mutex::new(Processes::new(&shared.proc)));
    let for_worker = Arc::clone(&shared);
    let worker = Worker::new("nrh-processes", move || {
        let (scanner, shared) = (Arc::clone(&scanner), Arc::clone(&for_worker));
        move || {
            let with_docker = *lock(&shared.kind) == RuntimeKind::Docker;
            let endpoint = lock(&shared.endpoint).clone();
            let endpoint = endpoint.as_ref().and_then(Endpoint::named);
            let began = processor_time();
            let table = match scanner.try_lock() {
                Ok(mut scanner) => scanner.check(with_docker, endpoint),
                // The previous thread hangs inside its reading: start without its memory.
                Err(_) => Processes::new(&shared.proc).check(with_docker, endpoint),
            };
            Ok((table.map_err(|error| failure(&error))?, processor_time().saturating_sub(began)))
        }
    });
    let checker = ProcessChecker { worker, round: 0, cost: Duration::ZERO, settled: true };
    drive(&shared, "processes", &shared.processes, checker, pace).await;
}

pub(super) async fn kubelet(shared: Arc<Shared>, settings: CollectorSettings) {
    let (pace, healthz) = (settings.paces.kubelet, settings.host.healthz);
    let for_worker = Arc::clone(&shared);
    let worker = Worker::new("nrh-kubelet", move || {
        let mut finder = Finder::new(&settings.host.proc);
        let (flags, host, shared) = (settings.sockets.clone(), settings.host.clone(), Arc::clone(&for_worker));
        move || {
            let known = lock(&shared.endpoint).clone();
            let with_docker = *lock(&shared.kind) == RuntimeKind::Docker;
            let docker = with_docker.then(|| endpoint::docker(&flags, &host));
            Ok(Local { docker, ..check(&mut finder, &flags, known.as_ref(), &host) })
        }
    });
    let checker = KubeletChecker { worker, healthz, reader: Reader::default(), round: 0 };
    drive(&shared, "kubelet", &shared.kubelet, checker, pace).await;
}

fn failure(error: &io::Error) -> Failure {
    let text = bounded(&error.to_string(), 300);
    if error.kind() == io::ErrorKind::PermissionDenied { Failure::Unavailable(text) } else { Failure::Failed(text) }
}

struct ProcessChecker {
    worker: Worker<(ProcessTable, Duration)>,
    round: u64,
    /// Processor time of the last check.
    cost: Duration,
    settled: bool,
}

/// Only the next check shows whether a process makes progress, and most processes end before that.
fn is_to_be_followed(process: &ProcessSeen) -> bool {
    let is_one = match &process.role {
        ProcessRole::RuntimeClient { verb, .. } => runtime_client_hung::ENDING.contains(&verb.as_str()),
        ProcessRole::NetworkPlugin { .. } => true,
        _ => false,
    };
    is_one && (Duration::from_secs(5)..runtime_client_hung::AGE.shipped).contains(&process.age)
}

impl Checker for ProcessChecker {
    type Value = ProcessTable;

    fn is_suspicious(seen: &ProcessTable) -> bool {
        let is_odd = |process: &ProcessSeen| match process.role {
            ProcessRole::NetworkPlugin { .. } | ProcessRole::RuntimeClient { .. } => true,
            _ => is_unresponsive_state(process.state),
        };
        // The first process of a container chooses its own name, so it does not stand out. A client of the runtime waits for a
        // real one, and that client does.
        !seen.unproven.is_empty() || seen.processes.iter().any(is_odd)
    }

    fn stored(shared: &Shared) {
        shared.update_task_targets();
    }

    fn wanted(shared: &Shared) -> Option<&Notify> {
        Some(&shared.processes_wanted)
    }

    fn cost(&self) -> Duration {
        self.cost
    }

    fn settled(&self) -> bool {
        self.settled
    }

    async fn check(&mut self, _: &Shared) -> Result<ProcessTable, Failure> {
        // A check that fails is repeated at the normal interval.
        self.cost = Duration::ZERO;
        let (table, cost) = self.worker.ask().await?;
        self.cost = cost;
        self.round = self.round.saturating_add(1);
        self.settled = !table.processes.iter().any(is_to_be_followed);
        Ok(ProcessTable { round: self.round, ..table })
    }
}

/// What the thread of the kubelet collector finds.
struct Local {
    kubelet: Result<Option<Found>, Failure>,
    /// When its age was read.
    at: Instant,
    endpoint: Option<Endpoint>,
    socket_exists: Option<(PathBuf, bool)>,
    /// Docker's own socket, where Docker is the runtime.
    docker: Option<PathBuf>,
}

fn check(finder: &mut Finder, flags: &Flags, known: Option<&Endpoint>, host: &HostPaths) -> Local {
    let (at, kubelet) = (Instant::now(), finder.find().map_err(|error| failure(&error)));
    let settings = kubelet.as_ref().ok().and_then(Option::as_ref).and_then(|found| found.settings.as_ref().ok());
    let named = settings.and_then(|settings| settings.runtime_endpoint.as_deref());
    let endpoint = endpoint::find(flags, named, settings.and_then(|settings| settings.usual_runtime), host);
    let used = endpoint.as_ref().filter(|found| found.named_by != NamedBy::Nobody).or(known);
    // Where no kubelet runs, the root of process 1 is the node's.
    let pid = kubelet.as_ref().ok().map(|found| found.as_ref().map_or(1, |found| found.pid));
    let socket_exists = used
        .zip(pid)
        .and_then(|(used, pid)| Some((used.socket.clone(), endpoint::is_there_for(pid, &used.socket, host)?)));
    Local { kubelet, at, endpoint, socket_exists, docker: None }
}

struct KubeletChecker {
    worker: Worker<Local>,
    healthz: SocketAddr,
    reader: Reader,
    round: u64,
}

impl Checker for KubeletChecker {
    type Value = KubeletSeen;

    fn is_suspicious(seen: &KubeletSeen) -> bool {
        // A kubelet that dies at its start may answer for a moment each time.
        let is_young = |(_, _, age): (i32, u64, Duration)| age < kubelet::START_AGE.shipped * 2;
        seen.process.is_none_or(is_young) || seen.healthz != Some(true)
    }

    async fn check(&mut self, shared: &Shared) -> Result<KubeletSeen, Failure> {
        let local = self.worker.ask().await?;
        *lock(&shared.socket_exists) = local.socket_exists;
        learn(shared, local.endpoint);
        learn_docker(shared, local.docker);
        let found = local.kubelet?;
        self.round = self.round.saturating_add(1);
        let version = lock(&shared.kubelet_version).clone();
        let mut seen = KubeletSeen { round: self.round, version, ..KubeletSeen::default() };
        let Some(found) = found else {
            *lock(&shared.served) = Err("no kubelet runs".to_owned());
            none_answers(self.healthz).await.map_err(Failure::Failed)?;
            return Ok(seen);
        };
        let pod_groups = found.settings.as_ref().map(|settings| settings.pod_groups.clone());
        *lock(&shared.pod_groups) = pod_groups.unwrap_or_default();
        seen.settings = Some(found.settings.as_ref().map_or_else(|_| KubeletSettings::default(), |read| read.kubelet));
        let health = health(&found, &shared.proc, &self.reader).await;
        seen.healthz = health.as_ref().ok().map(Result::is_ok);
        seen.note = health.and_then(|answer| answer).err();
        *lock(&shared.served) = served(&found, &seen);
        // The call may have taken long since then, and the age is compared with the end of this check.
        seen.process = Some((found.pid, found.start_ticks, found.age + local.at.elapsed()));
        Ok(seen)
    }
}

/// Whether this kubelet may be asked at its own port. One that does not answer, or has just started, has enough load already.
fn served(found: &Found, seen: &KubeletSeen) -> Result<RunningServer, String> {
    let settings = found.settings.as_ref().map_err(Clone::clone)?;
    if seen.healthz == Some(false) || found.age < kubelet::START_AGE.shipped {
        return Err("no kubelet has completed its start".to_owned());
    }
    if !settings.same_network {
        return Err("the kubelet is in another network namespace: its port cannot be asked".to_owned());
    }
    let server = settings.server.clone().ok_or("where a kubelet of this kind has its port is not known")?;
    Ok(RunningServer { pid: found.pid, start_ticks: found.start_ticks, server })
}

/// Takes over a found socket. A known socket stays known while no other one is named: when the kubelet is gone, the
/// runtime's socket is still known, and a guess is no better than the socket that an earlier probe used.
fn learn(shared: &Shared, found: Option<Endpoint>) {
    let Some(found) = found else { return };
    let mut known = lock(&shared.endpoint);
    if known.as_ref().is_some_and(|known| !found.replaces(known)) {
        return;
    }
    tracing::info!(socket = %found.socket.display(), named_by = ?found.named_by, api = ?found.api, "runtime socket");
    *known = Some(found);
    drop(known);
    // The collectors that were unavailable until now should not wait for their next turn.
    shared.refresh();
}

fn learn_docker(shared: &Shared, found: Option<PathBuf>) {
    let Some(found) = found else { return };
    if lock(&shared.docker).as_ref() == Some(&found) {
        return;
    }
    tracing::info!(socket = %found.display(), "Docker's socket");
    *lock(&shared.docker) = Some(found);
    shared.tasks_changed.notify_one();
    // The collectors that were unavailable until now should not wait for their next turn.
    shared.refresh();
}
