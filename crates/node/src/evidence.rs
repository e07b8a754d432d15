//! Evidence that the probe keeps of a confirmed fault, collected before any action: one bundle per fault, on the node.
//!
//! ```text
//! judged ─► offered, at most once per fault ─► queue ─► one at a time: process by process, kernel log ─► folder
//!                                                           (threads of their own, each with an end)
//! command ─► gate: waits for the bundle of its fault, not for long ─► executor
//! ```
//!
//! Hanging reads are expected: what cannot be read in time is omitted, and the bundle says so. The probe starts no
//! process, enters no container and touches nothing below a pod's folder. It does not read arguments, environment or
//! open files. If a bundle cannot be kept, neither the fault nor the actions change.

mod involved;
mod kernel;
mod process;
mod room;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::kmsg::KMSG;
use crate::lock::lock;
use crate::proc;
use crate::reader::Reader;
use involved::involved;
use nrh_api::NodeRuntimeHealthStatus;
use nrh_api::evidence::{Bundle, CallCounts, ProcessEvidence, Section};
use nrh_api::local::{Folder, name};
use nrh_core::fault::{Fault, FaultState};
use nrh_core::observation::Observations;

/// Maximum number of bundles in the queue. If the queue is full, the fault is offered again with the next judgement.
const QUEUE: usize = 8;
/// Deadline for reading one process, for reading the kernel log, and for writing the file.
const DEADLINE: Duration = Duration::from_secs(2);
/// How long a command waits for the bundle of its fault.
const BEFORE_ACT: Duration = Duration::from_secs(10);
/// How many seconds before the first sight of the fault the suggested journal excerpt begins.
const BEFORE_FAULT: i64 = 300;
/// The signal that makes runtimes write their goroutine stacks: SIGUSR1, signal 10.
const SIGUSR1: u64 = 1 << 9;

/// Sources of the evidence, and the folder that keeps it.
#[derive(Clone, Debug)]
pub struct EvidenceSettings {
    /// Name of this node.
    pub node: String,
    /// Id of this boot.
    pub boot_id: String,
    /// The process table.
    pub proc: PathBuf,
    /// Path of the kernel log.
    pub kmsg: PathBuf,
    /// Folder that keeps the bundles.
    pub folder: Folder,
}

impl EvidenceSettings {
    /// Settings with the standard paths.
    pub fn new(node: &str, boot_id: &str, state_dir: &Path) -> Self {
        Self {
            node: node.to_owned(),
            boot_id: boot_id.to_owned(),
            proc: PathBuf::from(proc::PROC),
            kmsg: PathBuf::from(KMSG),
            folder: Folder::below(state_dir),
        }
    }
}

/// How many bundles were kept and how many were lost since the probe started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Kept in the folder.
    pub kept: u64,
    /// Collected, but could not be kept.
    pub lost: u64,
}

/// Ids of confirmed faults whose bundle is not finished; `None` before the first judgement.
type Pending = Option<BTreeSet<String>>;

/// The bundles of this node.
#[derive(Debug)]
pub struct Evidence {
    settings: EvidenceSettings,
    wanted: mpsc::Sender<Bundle>,
    ended: mpsc::Receiver<Option<BTreeSet<String>>>,
    pending: watch::Sender<Pending>,
    /// Names of the bundles in the folder.
    kept: BTreeSet<String>,
    /// Names of the bundles that this probe has tried to collect while their fault is still reported. They are not
    /// collected again, whatever the result was.
    tried: BTreeSet<String>,
    counts: Counts,
}

/// The gate that a command passes before its execution.
#[derive(Clone, Debug)]
pub struct Gate(watch::Receiver<Pending>);

impl Evidence {
    /// Starts the collection, with the bundles of an earlier probe in the folder.
    pub fn start(settings: EvidenceSettings) -> Self {
        let kept = settings.folder.names().unwrap_or_else(|error| {
            tracing::warn!(folder = %settings.folder.path().display(), %error, "cannot read the folder of evidence");
            Vec::new()
        });
        let (wanted, queue) = mpsc::channel(QUEUE);
        let (sender, ended) = mpsc::channel(QUEUE);
        let pending = watch::Sender::new(None);
        tokio::spawn(collect_all(settings.clone(), queue, pending.clone(), sender));
        let (kept, tried) = (kept.into_iter().collect(), BTreeSet::new());
        Self { settings, wanted, ended, pending, kept, tried, counts: Counts::default() }
    }

    /// Returns the gate that commands pass before their execution.
    pub fn gate(&self) -> Gate {
        Gate(self.pending.subscribe())
    }

    /// Returns how many bundles were kept and lost.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Queues a bundle for each confirmed fault that has none, and writes the names of the kept bundles into the
    /// faults. Never waits.
    pub fn note(&mut self, status: &mut NodeRuntimeHealthStatus, seen: &Observations, calls: &CallCounts) {
        let present: BTreeSet<String> = status.faults.iter().map(name).collect();
        self.tried.retain(|name| present.contains(name));
        let without = |fault: &&Fault| {
            let name = name(fault);
            fault.state == FaultState::Confirmed && !self.kept.contains(&name) && !self.tried.contains(&name)
        };
        let new: Vec<&Fault> = status.faults.iter().filter(without).collect();
        self.pending.send_modify(|pending| {
            let pending = pending.get_or_insert_default();
            pending.retain(|id| status.faults.iter().any(|fault| fault.id == *id));
            pending.extend(new.iter().map(|fault| fault.id.clone()));
        });
        for fault in new {
            let Ok(place) = self.wanted.try_reserve() else { break };
            let bundle = self.settings.begun(fault, status, seen, calls);
            self.tried.insert(bundle.name.clone());
            place.send(bundle);
        }
        for fault in &mut status.faults {
            fault.evidence_bundle = Some(name(fault)).filter(|name| self.kept.contains(name));
        }
    }

    /// Waits for the end of a collection; for ever if there is none.
    pub async fn ended(&mut self) {
        match self.ended.recv().await {
            Some(Some(kept)) => {
                self.kept = kept;
                self.counts.kept = self.counts.kept.saturating_add(1);
            }
            Some(None) => self.counts.lost = self.counts.lost.saturating_add(1),
            None => std::future::pending().await,
        }
    }
}

impl Gate {
    /// Waits until the bundle of this fault is kept or has failed. The wait is bounded: remediation is more important.
    pub async fn pass(&self, fault_id: &str) {
        let mut pending = self.0.clone();
        let there =
            |pending: &Pending| pending.as_ref().is_some_and(|pending: &BTreeSet<String>| !pending.contains(fault_id));
        if timeout(BEFORE_ACT, pending.wait_for(there)).await.is_err() {
            tracing::warn!(fault = fault_id, "the command does not wait any longer for the evidence of its fault");
        }
    }
}

impl EvidenceSettings {
    /// Fills in what is known without further reading.
    fn begun(
        &self,
        fault: &Fault,
        status: &NodeRuntimeHealthStatus,
        seen: &Observations,
        calls: &CallCounts,
    ) -> Bundle {
        Bundle {
            name: name(fault),
            node: self.node.clone(),
            boot_id: self.boot_id.clone(),
            collected_at: Timestamp::now(),
            probe_version: env!("CARGO_PKG_VERSION").to_owned(),
            fault: fault.clone(),
            runtime: status.runtime.clone(),
            kubelet: status.kubelet.clone(),
            collectors: status.probe.iter().flat_map(|probe| probe.collectors.iter().cloned()).collect(),
            calls: calls.clone(),
            processes: involved(fault, seen),
            kernel_log: Section::default(),
            journal: Section::default(),
            goroutines: Section::default(),
        }
    }
}

/// Collects one bundle after the other until the probe ends.
async fn collect_all(
    settings: EvidenceSettings,
    mut queue: mpsc::Receiver<Bundle>,
    pending: watch::Sender<Pending>,
    ended: mpsc::Sender<Option<BTreeSet<String>>>,
) {
    // Separate readers: a thread that the kernel blocks must not stop the executor from checking, nor a bundle from
    // being kept.
    let (eyes, pen) = (Reader::default(), Reader::default());
    while let Some(bundle) = queue.recv().await {
        let (id, name, began) = (bundle.fault.id.clone(), bundle.name.clone(), Instant::now());
        let kept = match keep(&settings, &pen, collect(&settings, &eyes, bundle).await).await {
            Ok(kept) => {
                tracing::info!(fault = id, bundle = name, took = ?began.elapsed(), "evidence kept");
                Some(kept)
            }
            Err(error) => {
                let folder = settings.folder.path().display();
                tracing::warn!(fault = id, bundle = name, %folder, error, "evidence of a fault is lost: it cannot be kept");
                None
            }
        };
        // The receiver is gone only when the probe ends.
        let _ = ended.send(kept).await;
        pending.send_modify(|pending| {
            pending.get_or_insert_default().remove(&id);
        });
    }
}

async fn collect(settings: &EvidenceSettings, eyes: &Reader, mut bundle: Bundle) -> Bundle {
    for process in &mut bundle.processes {
        let evidence = Arc::new(Mutex::new(process.clone()));
        let (proc, shared) = (settings.proc.clone(), Arc::clone(&evidence));
        let (pid, start_ticks) = (process.pid, process.start_ticks);
        let checked = eyes.run(DEADLINE, move || process::check(&proc, pid, start_ticks, &shared)).await;
        process.clone_from(&lock(&evidence));
        if let Err(why) = checked {
            process.note = format!("not all of it could be read: {why}");
        }
    }
    let kmsg = settings.kmsg.clone();
    let lines = eyes.run(DEADLINE, move || kernel::last_lines(&kmsg)).await;
    bundle.kernel_log = lines.unwrap_or_else(|why| Section::missing(why.to_string()));
    let daemon = bundle.processes.iter().find(|process| process.part == "runtime");
    bundle.goroutines = goroutines(&bundle.fault, daemon);
    bundle.journal = journal(&bundle.fault, daemon);
    bundle
}

/// Writes the bundle and returns the names of all bundles kept afterwards.
async fn keep(settings: &EvidenceSettings, pen: &Reader, bundle: Bundle) -> Result<BTreeSet<String>, String> {
    let (name, folder) = (bundle.name.clone(), settings.folder.clone());
    let json = bundle.into_json().map_err(|error| error.to_string())?;
    let kept = pen.run(DEADLINE, move || folder.keep(&name, &json)).await;
    kept.map_err(|why| why.to_string())?.map_err(|error| error.to_string())
}

/// Explains how to read the journals. The probe does not read them: their format is for their own library, which is not
/// part of this program.
fn journal(fault: &Fault, daemon: Option<&ProcessEvidence>) -> Section {
    let runtime = match daemon.map(|daemon| daemon.command.as_str()) {
        Some("dockerd") => "docker",
        Some("crio") => "crio",
        Some("cri-dockerd") => "cri-docker",
        _ => "containerd",
    };
    let since = fault.first_seen.as_second().saturating_sub(BEFORE_FAULT);
    Section::missing(format!(
        "the probe does not read journals: `journalctl -u {runtime} -u kubelet --since @{since}` as root on the node \
         shows them"
    ))
}

/// Explains how to get goroutine stacks. The probe sends nothing to a runtime without a command, and no command asks
/// for them. A person can.
fn goroutines(fault: &Fault, daemon: Option<&ProcessEvidence>) -> Section {
    let Some(daemon) = daemon.filter(|_| fault.kind.spec().runtime_unresponsive) else { return Section::default() };
    let pid = daemon.pid;
    match daemon.caught_signals.as_deref().and_then(|caught| u64::from_str_radix(caught, 16).ok()) {
        Some(caught) if caught & SIGUSR1 != 0 => {}
        Some(_) => {
            return Section::missing(format!(
                "not asked for, and not to be asked for: process {pid} has no handler for USR1, which would end it"
            ));
        }
        None => return Section::missing(format!("not asked for: whether process {pid} has a handler is not known")),
    }
    let place = match daemon.command.as_str() {
        "containerd" => format!("/tmp/containerd.{pid}.stacks.log (below its own root) and its journal"),
        "dockerd" => "goroutine-stacks-*.log in its exec root (/var/run/docker)".to_owned(),
        "crio" => "/tmp/crio-goroutine-stacks-*.log".to_owned(),
        _ => return Section::missing(format!("not asked for: {} is not known to tell them", daemon.command)),
    };
    Section::missing(format!("not asked for: `kill -USR1 {pid}` as root on the node has them written to {place}"))
}
