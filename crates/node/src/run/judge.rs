//! From the collectors to the next report: diagnosis, tracker and conditions in one place, with one memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tokio::time::Instant;

use super::status::{self, About};
use crate::state::{KubeletProcess, Saved};
use nrh_api::NodeRuntimeHealthStatus;
use nrh_api::condition::condition;
use nrh_api::health::{KubeletStatus, RestartSafeStatus, RuntimeStatus};
use nrh_core::condition::of_probe;
use nrh_core::diagnose::diagnose;
use nrh_core::fault::{Fault, FaultState, FaultType, SubjectKind};
use nrh_core::finding::Findings;
use nrh_core::observation::{ContainerSeen, ContainerState, Observations, ProcessRole, ProcessSeen, RuntimeKind};
use nrh_core::restart_safety::{RestartSafety, restart_safety};
use nrh_core::thresholds::Thresholds;
use nrh_core::tracker::{Tracked, Tracker};

/// Most ids handed to the task collector as suspects.
const MAX_SUSPECTS: usize = 128;
/// The start of a kubelet is computed from its age: two results closer than this many seconds are the same moment.
const SAME_MOMENT: i64 = 3;

/// The memory between judgements.
#[derive(Debug)]
pub(super) struct Evaluator {
    thresholds: Thresholds,
    pub tracker: Tracker,
    pub conditions: Vec<Condition>,
    /// Ids of the faults in the last judgement.
    known: BTreeSet<String>,
    /// Ids of the confirmed faults in the last judgement; `None` before the first one, which contains what an earlier
    /// probe confirmed.
    confirmed: Option<BTreeSet<String>>,
    /// Number of confirmed faults per kind since this probe started.
    pub confirmations: BTreeMap<FaultType, u64>,
    /// When a new fault was last suspected.
    pub suspected: Option<Instant>,
    runtime: Option<RuntimeStatus>,
    kubelet: KubeletStatus,
    /// The kubelet's process as last seen.
    pub process: Option<KubeletProcess>,
}

#[derive(Debug)]
pub(super) struct Evaluation {
    /// The probe's part of the status.
    pub status: NodeRuntimeHealthStatus,
    /// Whether the daemons can be restarted.
    pub safety: RestartSafety,
    /// Ids of tasks that are worth a query at once.
    pub suspects: Vec<String>,
    /// Whether any fault is reported that can change from one moment to the next.
    pub urgent: bool,
}

impl Evaluator {
    pub(super) fn new(thresholds: Thresholds, saved: Saved) -> Self {
        Self {
            thresholds,
            tracker: saved.tracker,
            conditions: saved.conditions,
            process: saved.kubelet,
            known: BTreeSet::new(),
            confirmed: None,
            confirmations: BTreeMap::new(),
            suspected: None,
            runtime: None,
            kubelet: KubeletStatus::default(),
        }
    }

    pub(super) fn judge(&mut self, seen: &Observations, about: &About, wall: Timestamp, at: Instant) -> Evaluation {
        let thresholds = self.beside_the_kubelet(seen);
        let findings = diagnose(seen, self.tracker.known(), &thresholds);
        let tracked = self.tracker.step(seen.now, wall, &findings, &thresholds);
        self.log_changes(&tracked.faults, at);
        let safety = restart_safety(&tracked.faults, tracked.left_out, &findings);
        self.conditions = of_probe(&tracked, &findings, &safety)
            .into_iter()
            .map(|one| condition(&self.conditions, one.kind, one.status, one.reason, &one.message, wall))
            .collect();
        self.runtime = status::runtime(seen, about.endpoint.as_deref(), self.runtime.take());
        self.learn_kubelet(seen, &findings, wall);
        Evaluation {
            suspects: suspects(&tracked.faults, seen, &findings),
            urgent: tracked.faults.iter().any(|fault| !fault.kind.spec().lasting),
            status: self.status(seen, about, tracked, &safety),
            safety,
        }
    }

    fn status(
        &self,
        seen: &Observations,
        about: &About,
        tracked: Tracked,
        safety: &RestartSafety,
    ) -> NodeRuntimeHealthStatus {
        let (faults, left_out) = tracked.reported();
        NodeRuntimeHealthStatus {
            restart_safe: Some(RestartSafeStatus { kubelet: safety.kubelet.safe, runtime: safety.runtime.safe }),
            probe: Some(status::probe(seen, about)),
            runtime: self.runtime.clone(),
            kubelet: Some(self.kubelet.clone()),
            faults,
            faults_omitted: (left_out > 0).then_some(left_out),
            command_result: about.agent.clone(),
            conditions: self.conditions.clone(),
            ..NodeRuntimeHealthStatus::default()
        }
    }

    /// Records new suspicions, and logs the faults that appeared and disappeared.
    fn log_changes(&mut self, faults: &[Fault], at: Instant) {
        let now: BTreeSet<String> = faults.iter().map(|fault| fault.id.clone()).collect();
        for fault in faults.iter().filter(|fault| !self.known.contains(&fault.id)) {
            tracing::warn!(fault = fault.id, state = ?fault.state, message = fault.message, "fault seen");
            // A lasting fault can appear on all nodes at once, for example because of a wrong clock of the API server.
            if !fault.kind.spec().lasting {
                self.suspected = Some(at);
            }
        }
        for id in self.known.difference(&now) {
            tracing::info!(fault = id, "fault gone");
        }
        self.known = now;
        let confirmed = || faults.iter().filter(|fault| fault.state != FaultState::Suspected);
        if let Some(before) = &self.confirmed {
            for fault in confirmed().filter(|fault| !before.contains(&fault.id)) {
                let count = self.confirmations.entry(fault.kind).or_default();
                *count = count.saturating_add(1);
            }
        }
        self.confirmed = Some(confirmed().map(|fault| fault.id.clone()).collect());
    }

    /// Returns the thresholds for the running kubelet, or for the last kubelet that was running.
    fn beside_the_kubelet(&self, seen: &Observations) -> Thresholds {
        let now = seen.kubelet.value().and_then(|kubelet| kubelet.settings);
        let settings = now.or(self.kubelet.settings).unwrap_or_default();
        self.thresholds.beside(settings.request_timeout)
    }

    fn learn_kubelet(&mut self, seen: &Observations, findings: &Findings, wall: Timestamp) {
        self.kubelet.started = findings.kubelet.started;
        let Some(kubelet) = seen.kubelet.value() else { return };
        self.kubelet.settings = kubelet.settings.or(self.kubelet.settings);
        let age = |age| status::age(&seen.kubelet).unwrap_or_default().saturating_add(age);
        self.process = kubelet.process.and_then(|(pid, start_ticks, since)| {
            let known = self.process.filter(|known| (known.pid, known.start_ticks) == (pid, start_ticks));
            let began = begun(wall, age(since))?;
            Some(KubeletProcess {
                pid,
                start_ticks,
                began: known.map_or(began, |known| earlier(known.began, began)),
                // The value stays true once it was true: the pods can be gone again.
                creates_pods: findings.kubelet.creates_pods || known.is_some_and(|known| known.creates_pods),
            })
        });
        self.kubelet.started_at = self.process.map(|process| process.began);
        let is_known = |process: &KubeletProcess| process.creates_pods || shows_new_pods(seen);
        self.kubelet.creates_pods = self.process.filter(is_known).map(|process| process.creates_pods);
    }
}

/// Whether these observations would show a pod that is created.
fn shows_new_pods(seen: &Observations) -> bool {
    let (Some(table), Some(_)) = (seen.processes.value(), seen.lists.value()) else { return false };
    let is_conmon = |process: &ProcessSeen| matches!(process.role, ProcessRole::Monitor { pod: Some(_), .. });
    match seen.kind {
        RuntimeKind::Containerd | RuntimeKind::Docker => true,
        // CRI-O can run other programs beside its containers.
        RuntimeKind::CriO => table.processes.iter().any(is_conmon),
        RuntimeKind::Unknown | RuntimeKind::Other => false,
    }
}

/// Of two computations of the same start the known one is kept, unless it is later than the new one, which means that
/// the wall clock was set back. With a clock that was set forward, the process would seem to start after what it has
/// written; with one that was set back, before the next thing that it writes.
fn earlier(known: Timestamp, now: Timestamp) -> Timestamp {
    if known.as_second() - now.as_second() > SAME_MOMENT { now } else { known }
}

/// Returns the second at which something of this age began.
fn begun(wall: Timestamp, age: Duration) -> Option<Timestamp> {
    let age = i64::try_from(age.as_secs()).ok()?;
    Timestamp::from_second(wall.as_second().checked_sub(age)?).ok()
}

/// Returns the tasks worth a query: those that the diagnosis asks for, and all tasks behind the shim of a reported
/// fault (the fault clears only when each of them has answered).
fn suspects(faults: &[Fault], seen: &Observations, findings: &Findings) -> Vec<String> {
    let mut ids = findings.ask.clone();
    let sandboxes: BTreeSet<&str> = faults
        .iter()
        .filter(|fault| fault.kind == FaultType::HungContainer)
        .filter(|fault| matches!(fault.subject.kind, SubjectKind::Container | SubjectKind::Sandbox))
        .filter_map(|fault| fault.subject.sandbox_id.as_deref())
        .collect();
    let containers = seen.lists.value().into_iter().flat_map(|lists| &lists.containers);
    let runs = |one: &&ContainerSeen| one.state == ContainerState::Running;
    let behind = containers.filter(runs).filter(|one| sandboxes.contains(one.sandbox_id.as_str()));
    ids.extend(behind.map(|container| container.id.clone()));
    ids.extend(sandboxes.into_iter().map(str::to_owned));
    ids.truncate(MAX_SUSPECTS);
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use nrh_api::{ConditionType, condition::status_of};
    use nrh_core::examples::{Node, SANDBOX, SIDECAR, WORK, plugin, pod, process};
    use nrh_core::snapshot::TriState;

    fn new() -> Evaluator {
        Evaluator::new(Thresholds::default(), Saved::default())
    }

    /// What is judged of the node this many seconds after its boot, and at that moment.
    fn pass_at(judge: &mut Evaluator, node: &mut Node, second: u64, wall: Timestamp) -> Evaluation {
        node.now = Duration::from_secs(second);
        judge.judge(&node.clone(), &About::default(), wall, Instant::now())
    }

    fn pass(judge: &mut Evaluator, node: &mut Node, second: u64) -> Evaluation {
        pass_at(judge, node, second, Timestamp::UNIX_EPOCH)
    }

    #[tokio::test(start_paused = true)]
    async fn a_healthy_node_makes_a_whole_report() {
        let mut judge = new();
        let wall = Timestamp::from_second(1_700_000_000).unwrap();
        let judged = pass_at(&mut judge, &mut Node::healthy(), 1000, wall);
        let status = judged.status;
        assert!(!judged.urgent && judged.suspects.is_empty() && status.faults.is_empty());
        assert_eq!(status.runtime.unwrap().version, "containerd://1.6.20");
        let kubelet = status.kubelet.unwrap();
        assert_eq!((kubelet.started, kubelet.started_at), (Some(true), Timestamp::from_second(1_699_999_400).ok()));
        assert_eq!(status.conditions.len(), 15);
        assert_eq!(status_of(&status.conditions, ConditionType::RestartSafe), TriState::True);
        let collectors = status.probe.unwrap().collectors;
        assert_eq!(collectors.len(), 10);
        let is_ok = |one: &nrh_api::health::CollectorStatus| one.state == nrh_api::health::CollectorState::Ok;
        assert!(collectors.iter().all(is_ok), "{collectors:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspicion_is_noted_once_and_its_tasks_are_wanted() {
        let (mut judge, mut node) = (new(), Node::healthy());
        node.freeze(SANDBOX);
        let first = Instant::now();
        let judged = pass(&mut judge, &mut node, 1000);
        assert!(judged.urgent && judged.suspects.contains(&"aaaa1".to_owned()));
        tokio::time::advance(Duration::from_secs(20)).await;
        pass(&mut judge, &mut node, 1020);
        assert_eq!(judge.suspected, Some(first));
    }

    #[tokio::test(start_paused = true)]
    async fn a_confirmation_is_counted_once_and_not_again_by_the_next_probe() {
        let (mut judge, mut node) = (new(), Node::healthy());
        node.freeze(SANDBOX);
        for second in (1000..1200).step_by(10) {
            pass(&mut judge, &mut node, second);
        }
        assert_eq!(judge.confirmations, [(FaultType::HungContainer, 1)].into());
        let saved = Saved { tracker: judge.tracker.clone(), ..Saved::default() };
        let mut next = Evaluator::new(Thresholds::default(), saved);
        let judged = pass(&mut next, &mut node, 1210);
        assert_eq!((judged.status.faults[0].state, next.confirmations.len()), (FaultState::Confirmed, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_node_itself_lacks_makes_no_collector_check_more_often() {
        use nrh_core::observation::Reading;
        let (mut judge, mut node) = (new(), Node::healthy());
        let Reading::Done { value: disks, .. } = &mut node.disks else { panic!("no look") };
        disks.filesystems[0].bytes.left = 0;
        let judged = pass(&mut judge, &mut node, 1000);
        assert_eq!(judged.status.faults.first().map(|fault| fault.kind), Some(FaultType::DiskFull));
        assert!(!judged.urgent);
        node.freeze(SANDBOX);
        assert!(pass(&mut judge, &mut node, 1010).urgent);
    }

    #[tokio::test(start_paused = true)]
    async fn conditions_keep_the_time_of_their_transition() {
        let (mut judge, mut node) = (new(), Node::healthy());
        let wall = |second| Timestamp::from_second(second).unwrap();
        pass_at(&mut judge, &mut node, 1000, wall(5000));
        let judged = pass_at(&mut judge, &mut node, 1010, wall(5010));
        assert!(judged.status.conditions.iter().all(|one| one.last_transition_time.0 == wall(5000)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_runtime_is_remembered_while_it_is_away() {
        let (mut judge, mut node) = (new(), Node::healthy());
        pass(&mut judge, &mut node, 1000);
        node.runtime = nrh_core::observation::Reading::Failed { error: "refused".into(), age: Duration::ZERO };
        let judged = pass(&mut judge, &mut node, 1010);
        assert_eq!(judged.status.runtime.unwrap().version, "containerd://1.6.20");
    }

    #[tokio::test(start_paused = true)]
    async fn the_start_of_the_kubelet_is_never_moved_past_what_it_has_written() {
        let second = |second| Timestamp::from_second(second).unwrap();
        let (mut judge, mut node) = (new(), Node::healthy());
        let mut began = |judge: &mut Evaluator, up: u64, wall: i64, ticks: u64| {
            node.kubelet().process = Some((60, ticks, Duration::from_secs(up - 400)));
            let judged = pass_at(judge, &mut node, up, second(wall));
            judged.status.kubelet.unwrap().started_at.unwrap().as_second()
        };
        assert_eq!(began(&mut judge, 1000, 50_600, 6000), 50_000);
        assert_eq!(began(&mut judge, 1010, 50_611, 6000), 50_000, "a second more or less is the same moment");
        assert_eq!(began(&mut judge, 1020, 60_620, 6000), 50_000, "the clock was set forward");
        // A restarted probe keeps it.
        let saved = Saved { kubelet: judge.process, ..Saved::default() };
        let mut judge = Evaluator::new(Thresholds::default(), saved);
        assert_eq!(began(&mut judge, 1030, 60_630, 6000), 50_000);
        assert_eq!(began(&mut judge, 1040, 40_640, 6000), 40_000, "the clock was set back");
        assert_eq!(began(&mut judge, 1050, 40_650, 6001), 40_000, "another process");
    }

    #[tokio::test(start_paused = true)]
    async fn a_kubelet_that_has_once_made_a_pod_since_its_start_goes_on_having_done_so() {
        let (mut judge, mut node) = (new(), Node::healthy());
        let makes = |judge: &mut Evaluator, node: &mut Node, second| {
            let judged = pass(judge, node, second);
            judged.status.kubelet.unwrap().creates_pods
        };
        assert_eq!(makes(&mut judge, &mut node, 1000), Some(true));
        node.table().retain(|process| !matches!(process.role, nrh_core::observation::ProcessRole::Shim { .. }));
        assert_eq!(makes(&mut judge, &mut node, 1010), Some(true));
        node.kubelet().process = Some((61, 90_000, Duration::from_secs(30)));
        assert_eq!(makes(&mut judge, &mut node, 1020), Some(false), "another process");
        node.kubelet_gone();
        assert_eq!(makes(&mut judge, &mut node, 1030), None);
        // Only CRI-O's conmons show it there. They began at 5,900 and 70,000 ticks, the kubelet at 6,000.
        let conmon = |id: &str| ProcessRole::Monitor { id: id.into(), pod: Some(pod("one")), living_children: 1 };
        let (old, young) = (process(59, conmon(SIDECAR)), process(700, conmon(WORK)));
        let foreign = process(700, conmon("of-no-pod"));
        for (conmons, expected) in [
            (vec![], None),
            (vec![old.clone()], Some(false)),
            (vec![old.clone(), foreign], Some(false)),
            (vec![old, young], Some(true)),
        ] {
            let mut node = Node { kind: RuntimeKind::CriO, ..Node::healthy() };
            node.table().retain(|process| !matches!(process.role, ProcessRole::Shim { .. }));
            node.table().extend(conmons);
            assert_eq!(makes(&mut new(), &mut node, 1000), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_plugin_that_hangs_is_not_gone_when_the_next_probe_cannot_read_whose_it_is() {
        let (mut judge, mut node) = (new(), Node::healthy());
        node.table().push(plugin(400, 90, SANDBOX, &[], false));
        (1000..1200).step_by(10).for_each(|second| drop(pass(&mut judge, &mut node, second)));
        let mut next = Evaluator::new(Thresholds::default(), Saved { tracker: judge.tracker, ..Saved::default() });
        let mut is_confirmed = |node: &mut Node, second| {
            let faults = pass(&mut next, node, second).status.faults;
            let is_it = |fault: &Fault| fault.subject.sandbox_id.as_deref() == Some(SANDBOX);
            faults.iter().any(|fault| is_it(fault) && fault.state == FaultState::Confirmed)
        };
        let ProcessRole::NetworkPlugin { sandbox_id, .. } = &mut node.table()[4].role else { panic!("no plugin") };
        *sandbox_id = None;
        assert!((1200..1800).step_by(10).all(|second| is_confirmed(&mut node, second)));
        node.table().pop();
        assert!(!(1800..2400).step_by(10).all(|second| is_confirmed(&mut node, second)), "it has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_patient_kubelet_is_waited_for_also_after_its_end() {
        use nrh_core::faults::leaked_shim;
        use nrh_core::observation::{KubeletSettings, SettingsSource};
        let (mut judge, mut node) = (new(), Node::healthy());
        assert_eq!(judge.beside_the_kubelet(&node), Thresholds::default());
        let request_timeout = Duration::from_mins(15);
        let settings = KubeletSettings { request_timeout, evented_pleg: false, source: SettingsSource::Flags };
        node.kubelet().settings = Some(settings);
        let status = pass(&mut judge, &mut node, 1000).status;
        let settings = status.kubelet.unwrap().settings.unwrap();
        assert_eq!((settings.source, settings.request_timeout), (SettingsSource::Flags, request_timeout));
        node.kubelet_gone();
        node.kubelet().settings = None;
        assert_eq!(judge.beside_the_kubelet(&node).bound(&leaked_shim::AGE), Duration::from_mins(31));
    }
}
