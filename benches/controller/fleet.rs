//! The probes of simulated nodes, played: they report, send heartbeats, and carry out what they are told to.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use nrh::api::NodeRuntimeHealth;
use nrh::core::command::{ActionCommand, Outcome};
use nrh::core::examples;
use nrh::core::fault::{Fault, FaultState, FaultType, Subject, SubjectKind, Target};
use nrh::core::tri_state::TriState;
use nrh_simulate::cleared_by::ClearedBy;
use nrh_simulate::world::{InjectedFault, WorldNode};

use crate::simulated_node;

/// Time between two heartbeats of a probe. Real ones that suspect something or are being remediated promise another every quarter of a
/// minute: all of 5,000 would be more than an API server on two cores takes.
const BEAT: Duration = Duration::from_mins(5);
/// How often the heartbeats that are due are sent.
const TICK: Duration = Duration::from_millis(500);
/// Reports in flight: more brings nothing on two cores.
const PARALLEL: usize = 32;

/// What is done about a fault, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executor {
    /// A Job: the kubelet starts pods.
    Job,
    /// A command to the probe: it does not.
    Command,
    /// The API server alone is asked.
    Cordon,
}

#[derive(Debug)]
struct Probe {
    /// A probe writes one report after another: none comes after a later one.
    writes: Arc<tokio::sync::Mutex<()>>,
    node: WorldNode,
}

impl Probe {
    fn of(name: &str) -> Self {
        let mut node = WorldNode::new(name);
        if let Some(heartbeat) = &mut node.report.heartbeat {
            heartbeat.interval = BEAT;
            "5ab1a3f2-7a0c-4f6e-9b43-2f5c5d1e9a10".clone_into(&mut heartbeat.boot_id);
        }
        node.view.boot_id = None;
        Self { writes: Arc::default(), node }
    }
}

/// All probes.
#[derive(Debug, Default)]
pub struct Fleet {
    probes: Mutex<BTreeMap<String, Probe>>,
    /// Heartbeats that are due or sent.
    beats: AtomicUsize,
    /// Nodes that were taken.
    taken: AtomicUsize,
    /// Rounds of faults.
    rounds: AtomicU64,
}

impl Fleet {
    /// Takes these nodes in.
    pub fn join(&self, names: impl IntoIterator<Item = String>) {
        let mut probes = self.probes();
        for name in names {
            probes.entry(name.clone()).or_insert_with(|| Probe::of(&name));
        }
    }

    /// All names.
    pub fn names(&self) -> Vec<String> {
        self.probes().keys().cloned().collect()
    }

    /// The next `count` nodes, in turn: none comes again before all others have.
    pub fn take(&self, count: usize) -> Vec<String> {
        let names = self.names();
        let count = count.min(names.len());
        let first = self.taken.fetch_add(count, Ordering::Relaxed);
        (first..first + count).filter_map(|at| names.get(at % names.len()).cloned()).collect()
    }

    /// These nodes have a fault from now on, which their next report tells: another one than ever before.
    pub fn sicken(&self, names: &[String], executor: Executor, state: FaultState) {
        let round = self.rounds.fetch_add(1, Ordering::Relaxed) + 1;
        let mut probes = self.probes();
        for name in names {
            let node = &mut probes.entry(name.clone()).or_insert_with(|| Probe::of(name)).node;
            let fault = Fault { state, ..fault(name, executor, round) };
            node.sick = vec![InjectedFault { fault, cleared_by: [ClearedBy::CleanupOrphans].into() }];
            if let Some(heartbeat) = &mut node.report.heartbeat {
                heartbeat.kubelet_works = if executor == Executor::Command { TriState::False } else { TriState::True };
            }
        }
    }

    /// Nothing is wrong there any more.
    pub fn resolve(&self, names: &[String]) {
        let mut probes = self.probes();
        for name in names {
            if let Some(probe) = probes.get_mut(name) {
                well(&mut probe.node);
            }
        }
    }

    /// One report.
    pub async fn report(&self, client: &Client, node: &str) -> Result<()> {
        let api: Api<NodeRuntimeHealth> = Api::all(client.clone());
        let writes = self.probes().entry(node.to_owned()).or_insert_with(|| Probe::of(node)).writes.clone();
        let _writes = writes.lock().await;
        let sent = self.probes().get_mut(node).map(|probe| {
            probe.node.send();
            probe.node.clone()
        });
        let status = simulated_node::report(&sent.context("a probe that was taken in")?, Timestamp::now());
        api.patch_status(node, &PatchParams::apply("nrh-probe").force(), &Patch::Apply(&status)).await?;
        Ok(())
    }

    /// A report of each of these; how long they took.
    pub async fn report_all(&self, client: &Client, names: &[String]) -> Result<Duration> {
        let begun = Instant::now();
        let reports = stream::iter(names).map(Ok).try_for_each_concurrent(PARALLEL, |name| self.report(client, name));
        reports.await?;
        Ok(begun.elapsed())
    }

    /// Heartbeats in their rhythm, for as long as it is polled.
    pub async fn beats(&self, client: &Client) -> Result<Infallible> {
        let (begun, mut sent) = (Instant::now(), 0);
        loop {
            tokio::time::sleep(TICK).await;
            let names = self.names();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of nodes")]
            #[expect(clippy::cast_precision_loss, reason = "a count of nodes")]
            let due = (begun.elapsed().as_secs_f64() / BEAT.as_secs_f64() * names.len() as f64) as usize;
            let first = self.beats.fetch_add(due - sent, Ordering::Relaxed);
            let now: Vec<String> =
                (first..first + due - sent).filter_map(|at| names.get(at % names.len()).cloned()).collect();
            sent = due;
            self.report_all(client, &now).await?;
        }
    }

    /// The node executes this command, and is well again; none where it has done so before.
    pub fn carry_out(&self, command: &ActionCommand) -> Option<Outcome> {
        let mut probes = self.probes();
        let node = &mut probes.get_mut(&command.node)?.node;
        if node.claimed.contains_key(&command.operation_id) {
            return None;
        }
        let outcome = node.execute(command, Timestamp::now(), &mut BTreeMap::new());
        well(node);
        node.report.agent = Some(outcome.clone());
        Some(outcome)
    }

    fn probes(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Probe>> {
        self.probes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nothing is wrong there any more.
fn well(node: &mut WorldNode) {
    node.sick.clear();
    if let Some(heartbeat) = &mut node.report.heartbeat {
        heartbeat.kubelet_works = TriState::True;
    }
}

fn fault(node: &str, executor: Executor, round: u64) -> Fault {
    let id = format!("{round:064x}");
    // Something else than what is resolved: its rule cordons.
    let kind = if executor == Executor::Cordon { FaultType::OrphanContainer } else { FaultType::LeakedShim };
    let (subject, target) = if executor == Executor::Cordon {
        let subject = Subject { id: Some(id.clone()), ..Subject::of(SubjectKind::Container) };
        (subject, Target { container_id: Some(id.clone()), sandbox_id: Some(id), ..Target::default() })
    } else {
        examples::shim(&id)
    };
    Fault {
        id: format!("{}-{node}-{round}", kind.as_str().to_lowercase()),
        subject,
        target,
        first_seen: Timestamp::now(),
        duration_seconds: 90,
        confirmations: 3,
        ..examples::fault(kind)
    }
}
