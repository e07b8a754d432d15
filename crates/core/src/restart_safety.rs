//! Whether the kubelet and the runtime can be restarted without harm, and if not, why.
//!
//! False only on confirmed evidence; True only if the task of every running container and the checks of the node itself have
//! answered lately; Unknown in all other cases.

use std::time::Duration;

use super::fault::{Daemon, Fault, FaultState, FaultType};
use super::finding::Findings;
use super::tri_state::TriState;

/// Most reasons given. A person needs only the first few.
const MAX_REASONS: usize = 4;

/// Whether one component can be restarted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Safety {
    /// True, False, or Unknown where nobody could check.
    pub safe: TriState,
    /// Why it is not True; empty if it is.
    pub reasons: Vec<String>,
    /// Whether the component is confirmed to be down (for the runtime: without any process). The question is then what keeps it
    /// from starting, not what a restart would break.
    pub down: bool,
}

/// The safety of both components.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestartSafety {
    /// The kubelet.
    pub kubelet: Safety,
    /// The container runtime.
    pub runtime: Safety,
    /// Greatest age of the answers of single containers behind a True.
    pub task_max_age: Duration,
}

impl RestartSafety {
    /// The worse of the two.
    pub fn both(&self) -> TriState {
        match (self.kubelet.safe, self.runtime.safe) {
            (TriState::False, _) | (_, TriState::False) => TriState::False,
            (TriState::True, TriState::True) => TriState::True,
            _ => TriState::Unknown,
        }
    }

    /// That of one component.
    pub const fn of(&self, daemon: Daemon) -> &Safety {
        match daemon {
            Daemon::Kubelet => &self.kubelet,
            Daemon::Runtime => &self.runtime,
        }
    }

    /// One sentence about one component.
    pub fn message_of(&self, daemon: Daemon) -> String {
        self.say(daemon.as_str(), self.of(daemon))
    }

    /// One sentence for the condition.
    pub fn message(&self) -> String {
        if self.kubelet == self.runtime {
            return self.say("kubelet or the runtime", &self.kubelet);
        }
        format!("{}; {}", self.message_of(Daemon::Kubelet), self.message_of(Daemon::Runtime))
    }

    fn say(&self, name: &str, safety: &Safety) -> String {
        let why = safety.reasons.join("; ");
        match (safety.safe, safety.down) {
            (TriState::True, false) => {
                let age = self.task_max_age.as_secs();
                format!("the {name} can be restarted: every running container answered within {age} s")
            }
            (TriState::False, false) => format!("a restart of the {name} does harm: {why}"),
            (TriState::Unknown, false) => format!("whether the {name} can be restarted is not known: {why}"),
            (TriState::True, true) => {
                format!("the {name} is down; a restart of it would not meet anything that hangs")
            }
            (TriState::False, true) => format!("the {name} is down; a restart of it would be blocked by {why}"),
            (TriState::Unknown, true) => {
                format!("the {name} is down; whether a restart of it would be blocked is not known: {why}")
            }
        }
    }
}

/// What only the confirmed faults among these say about a restart of the kubelet and the runtime, whatever was not checked.
pub fn by_faults<'a>(faults: impl IntoIterator<Item = &'a Fault>) -> (TriState, TriState) {
    let confirmed = faults.into_iter().filter(|fault| fault.state == FaultState::Confirmed);
    let (mut kubelet, mut runtime) = (TriState::True, TriState::True);
    for harms in confirmed.map(|fault| (fault.kind.spec().restart_harms)(fault)) {
        kubelet = if harms.kubelet { TriState::False } else { kubelet };
        runtime = if harms.runtime { TriState::False } else { runtime };
    }
    (kubelet, runtime)
}

/// Judges both components.
pub fn restart_safety(faults: &[Fault], left_out: u32, findings: &Findings) -> RestartSafety {
    let mut safety = RestartSafety { task_max_age: findings.task_max_age, ..RestartSafety::default() };
    let (mut kubelet, mut runtime) = (Reasons::default(), Reasons::default());
    for fault in faults {
        let harms = (fault.kind.spec().restart_harms)(fault);
        let line = format!("{} ({})", fault.subject, fault.kind);
        for (applies, reasons) in [(harms.kubelet, &mut kubelet), (harms.runtime, &mut runtime)] {
            match (applies, fault.state) {
                (false, _) => {}
                (true, FaultState::Confirmed) => reasons.no.push(line.clone()),
                (true, FaultState::Suspected) => reasons.unknown.push(format!("suspected: {line}")),
                (true, FaultState::Clearing) => reasons.unknown.push(format!("clearing: {line}")),
            }
        }
    }
    runtime.no.extend(findings.in_flight.iter().cloned());
    let is_confirmed = |kind| faults.iter().any(|fault| fault.kind == kind && fault.state == FaultState::Confirmed);
    // If the runtime has no process, a restart interrupts nothing half-way, and nobody can ask the runtime.
    let runtime_gone = findings.runtime_gone && is_confirmed(FaultType::RuntimeUnreachable);
    if left_out > 0 {
        let line = format!("{left_out} more faults than are tracked");
        kubelet.unknown.push(line.clone());
        runtime.unknown.push(line);
    }
    if let Some(resource) = findings.shortage {
        // A component that is confirmed to be down is not slow.
        let line = format!("the node is short of {resource}");
        if !is_confirmed(FaultType::KubeletDown) {
            kubelet.unknown.push(line.clone());
        }
        if !runtime_gone {
            runtime.unknown.push(line);
        }
    }
    if findings.unasked > 0 {
        let line = format!("not every running container answered within {} s", findings.task_max_age.as_secs());
        kubelet.unknown.push(line.clone());
        if !runtime_gone {
            runtime.unknown.push(line);
        }
    }
    // A disk or a bus that hangs keeps a daemon from starting, also one that is down.
    for line in &findings.silent_checks {
        kubelet.unknown.push(line.clone());
        runtime.unknown.push(line.clone());
    }
    let gap = |kind: FaultType, reasons: &mut Reasons| match findings.coverage.get(&kind) {
        None => reasons.unknown.push(format!("{kind} was not checked")),
        Some(coverage) => reasons.unknown.extend(coverage.gap().map(|(_, detail)| detail.to_owned())),
    };
    for kind in
        FaultType::ALL.into_iter().filter(|kind| *kind == FaultType::HungContainer || kind.spec().runtime_unresponsive)
    {
        gap(kind, &mut kubelet);
        if !runtime_gone {
            gap(kind, &mut runtime);
        }
    }
    for kind in [FaultType::LeakedShim, FaultType::NetworkPluginHung, FaultType::RuntimeClientHung] {
        // Only the runtime's lists show which shims are leaked. The node is checked for a stopped shim before the action.
        if !(runtime_gone && kind == FaultType::LeakedShim) {
            gap(kind, &mut runtime);
        }
    }
    safety.kubelet = kubelet.judge();
    safety.kubelet.down = is_confirmed(FaultType::KubeletDown);
    safety.runtime = runtime.judge();
    safety.runtime.down = runtime_gone;
    safety
}

#[derive(Default)]
struct Reasons {
    no: Vec<String>,
    unknown: Vec<String>,
}

impl Reasons {
    fn judge(self) -> Safety {
        let (safe, mut reasons) = match (self.no.is_empty(), self.unknown.is_empty()) {
            (false, _) => (TriState::False, self.no),
            (true, false) => (TriState::Unknown, self.unknown),
            (true, true) => (TriState::True, Vec::new()),
        };
        reasons.dedup();
        reasons.truncate(MAX_REASONS);
        Safety { safe, reasons, down: false }
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::{Node, SANDBOX, check};
    use super::super::observation::{ContainerState, Reading};
    use super::super::tracker::Tracker;
    use super::*;
    use crate::fault::{Severity, SubjectKind};

    /// The state of the node after checks at these seconds.
    fn watched(mut node: Node, seconds: impl Iterator<Item = u64>) -> RestartSafety {
        let (mut tracker, mut safety) = (Tracker::default(), RestartSafety::default());
        for at in seconds {
            let (findings, seen) = check(&mut tracker, &mut node, at);
            safety = restart_safety(&seen.faults, seen.left_out, &findings);
        }
        safety
    }

    fn judge(node: Node) -> RestartSafety {
        watched(node, std::iter::once(1000))
    }

    /// Beside this confirmed fault on a healthy node.
    fn beside(fault: Fault) -> RestartSafety {
        let fault = Fault { state: FaultState::Confirmed, ..fault };
        restart_safety(&[fault], 0, &Node::healthy().findings())
    }

    #[test]
    fn a_complete_clean_check_is_safe() {
        let safety = judge(Node::healthy());
        assert_eq!(safety.both(), TriState::True, "{safety:?}");
        assert_eq!(
            safety.message(),
            "the kubelet or the runtime can be restarted: every running container answered within 90 s"
        );
    }

    #[test]
    fn one_task_not_asked_yet_is_unknown() {
        let safety = judge(Node::with(|node| node.tasks.clear()));
        assert_eq!(safety.both(), TriState::Unknown);
        assert!(safety.message().contains("not every running container answered within 90 s"), "{}", safety.message());
    }

    #[test]
    fn a_check_of_the_node_that_gives_no_answer_is_unknown_also_for_a_daemon_that_is_down() {
        fn silent<T>() -> Reading<T> {
            Reading::Hung { out: Duration::from_secs(30) }
        }
        type Silence = fn(&mut Node);
        let checks: [(Silence, &str); 3] = [
            (|node| node.disks = silent(), "the check of the node's file systems does not come back"),
            (|node| node.host = silent(), "the check of the kernel's limits does not come back"),
            (|node| node.bus = silent(), "the check of the system bus does not come back"),
        ];
        let down = Fault { state: FaultState::Confirmed, ..crate::examples::fault(FaultType::KubeletDown) };
        for (change, why) in checks {
            let findings = Node::with(change).findings();
            for safety in [restart_safety(&[], 0, &findings), restart_safety(std::slice::from_ref(&down), 0, &findings)]
            {
                assert_eq!((safety.kubelet.safe, safety.runtime.safe), (TriState::Unknown, TriState::Unknown), "{why}");
                assert_eq!(safety.kubelet.reasons, [why]);
            }
        }
    }

    #[test]
    fn a_check_that_the_platform_does_not_allow_is_no_reason() {
        let node = Node { bus: Reading::Unavailable { reason: "no access".into() }, ..Node::healthy() };
        assert_eq!(judge(node).both(), TriState::True);
    }

    #[test]
    fn of_a_node_that_is_short_of_something_it_is_unknown_unless_the_kubelet_is_down() {
        let node = Node::with(|node| node.pressure.cpu = 95);
        let safety = judge(node.clone());
        assert_eq!((safety.kubelet.safe, safety.runtime.safe), (TriState::Unknown, TriState::Unknown));
        assert!(safety.message().contains("the node is short of CPU"), "{}", safety.message());
        let down = Fault { state: FaultState::Confirmed, ..crate::examples::fault(FaultType::KubeletDown) };
        let safety = restart_safety(&[down], 0, &node.findings());
        assert_eq!((safety.kubelet.safe, safety.runtime.safe), (TriState::True, TriState::Unknown));
    }

    #[test]
    fn a_suspected_hang_is_unknown_and_a_confirmed_one_is_unsafe() {
        for (last, expected) in [(1000, TriState::Unknown), (1020, TriState::Unknown), (1040, TriState::False)] {
            let safety = watched(Node::with(|node| node.freeze(SANDBOX)), (1000..=last).step_by(20));
            assert_eq!((safety.kubelet.safe, safety.runtime.safe), (expected, expected), "at {last}: {safety:?}");
        }
    }

    #[test]
    fn a_fault_forbids_a_restart_of_what_would_not_come_up() {
        use FaultType as F;
        let node = Some(SubjectKind::Host);
        for (kind, severity, subject, kubelet, runtime) in [
            (F::ReadOnlyFilesystem, Severity::Critical, None, false, false),
            (F::PidExhaustion, Severity::High, None, false, false),
            (F::DiskFull, Severity::High, None, true, false),
            (F::UninterruptibleProcess, Severity::Medium, None, true, false),
            (F::UninterruptibleProcess, Severity::Medium, Some(SubjectKind::Kubelet), false, false),
            (F::FrozenCgroup, Severity::Medium, None, true, false),
            (F::FdExhaustion, Severity::High, node, false, false),
            (F::LeakedShim, Severity::Medium, None, true, false),
            // A kubelet that works removes it.
            (F::OrphanContainer, Severity::Medium, None, true, true),
            // A restart frees the open files that a daemon leaks.
            (F::FdExhaustion, Severity::High, None, true, true),
            (F::ExitedContainerBacklog, Severity::Medium, None, true, true),
            (F::ExitedContainerBacklog, Severity::High, None, false, true),
            (F::ClientCertificateExpiring, Severity::Medium, None, true, true),
            (F::ClientCertificateExpiring, Severity::High, None, false, true),
        ] {
            let mut fault = Fault { severity, ..crate::examples::fault(kind) };
            fault.subject.kind = subject.unwrap_or(SubjectKind::Runtime);
            let safety = beside(fault);
            let safe = |is| if is { TriState::True } else { TriState::False };
            assert_eq!(
                (safety.kubelet.safe, safety.runtime.safe),
                (safe(kubelet), safe(runtime)),
                "{kind} {severity:?}"
            );
        }
    }

    #[test]
    fn of_a_kubelet_that_is_down_it_says_what_blocks_a_restart() {
        let mut node = Node::with(Node::kubelet_gone);
        let safety = watched(node.clone(), (1000..=1120).step_by(10));
        assert_eq!((safety.kubelet.safe, safety.runtime.safe), (TriState::True, TriState::True), "{safety:?}");
        assert!(safety.message().starts_with("the kubelet is down; "), "{}", safety.message());
        assert!(
            safety.message().contains("; the runtime can be restarted: every running container"),
            "{}",
            safety.message()
        );

        node.orphan(ContainerState::Running);
        let safety = watched(node, (1000..=1120).step_by(10));
        assert_eq!((safety.kubelet.safe, safety.runtime.safe), (TriState::False, TriState::True), "{safety:?}");
        let message = safety.message();
        assert!(message.contains("the kubelet is down; a restart of it would be blocked by "), "{message}");
        assert!(message.contains("(OrphanContainer)"), "{message}");
    }

    #[test]
    fn no_check_at_all_is_unknown_with_a_reason() {
        let safety = restart_safety(&[], 0, &Findings::default());
        assert_eq!(safety.both(), TriState::Unknown);
        assert!(!safety.kubelet.reasons.is_empty());
    }

    #[test]
    fn a_create_that_has_been_out_for_long_forbids_a_restart_of_the_runtime() {
        let safety = judge(Node::with(|node| node.runtime_client("create", 31)));
        assert_eq!((safety.kubelet.safe, safety.runtime.safe), (TriState::True, TriState::False));
    }
}
