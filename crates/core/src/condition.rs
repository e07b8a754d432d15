//! The conditions of our objects: a closed set of types and reasons, all positive (True = good).

use std::collections::BTreeSet;

pub use super::condition_type::ConditionType;
use super::fault::{FaultState, FaultType};
use super::finding::{Findings, Verdict};
pub use super::reason::ConditionReason;
use super::restart_safety::RestartSafety;
use super::tracker::Tracked;
use super::tri_state::TriState;

/// One condition as judged, before it gets its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The type.
    pub kind: ConditionType,
    /// The status.
    pub status: TriState,
    /// Why, from the closed set.
    pub reason: ConditionReason,
    /// Why, in words.
    pub message: String,
}

/// The conditions that the probe judges by its checks.
pub fn checked_conditions() -> impl Iterator<Item = ConditionType> {
    OF_PROBE.iter().map(|(kind, _)| *kind)
}

/// The conditions that the probe judges, each with the message where no fault of it is seen. Each condition is about the kinds of
/// fault whose [`FaultSpec`](crate::faults::FaultSpec) names it. A check that is impossible for one condition is no gap of
/// another.
const OF_PROBE: [(ConditionType, &str); 14] = [
    (ConditionType::RuntimeReady, "the runtime answers, and so do its lists"),
    (
        ConditionType::ContainersResponsive,
        "every running container answers, what is listed as running runs, and no client of the runtime hangs",
    ),
    (
        ConditionType::SandboxesConsistent,
        "every container has its sandbox and every sandbox is there, no pod has two, no shim is left over, \
         no container neither starts nor goes, and ended ones do not pile up",
    ),
    (ConditionType::NetworkPluginResponsive, "no network plugin is older than its bound"),
    (ConditionType::NetworkReady, "the runtime says that its network is ready"),
    (ConditionType::KubeletReady, "the kubelet has completed its start"),
    (ConditionType::SyncLoopRunning, "the kubelet's sync loop goes round, by its own check"),
    (ConditionType::PlegHealthy, "the kubelet relists its pods quickly"),
    (
        ConditionType::HostHealthy,
        "there is room for processes and open files, nothing of runtime and kubelet hangs in the kernel, and the runtime \
         knows whose processes run in pods",
    ),
    (ConditionType::StorageReady, "the file systems of runtime and kubelet have room and take writes"),
    (ConditionType::SystemdResponsive, "systemd answers over the system bus, or does not run this node"),
    (ConditionType::ClientCertificateValid, "the kubelet's client certificate is renewed in time, or it has none"),
    (ConditionType::ClockSynchronised, "the node's clock is near the API server's"),
    (ConditionType::ProbeCoverageComplete, "every collector of the probe works"),
];

/// The kinds of fault that one of the probe's conditions is about; none for the other conditions.
pub fn faults_of(condition: ConditionType) -> impl Iterator<Item = FaultType> {
    FaultType::ALL.into_iter().filter(move |kind| kind.spec().condition == Some(condition))
}

/// Kinds of fault about which a report without them says nothing: nobody checked, or not everywhere. `state_of` returns the state
/// of a condition in the report, with its reason. A missing condition says nothing. A suspicion is no gap, since the report
/// contains it.
pub fn unchecked<'a>(state_of: impl Fn(ConditionType) -> Option<(TriState, &'a str)>) -> BTreeSet<FaultType> {
    let has_gap = |kind: ConditionType| match state_of(kind) {
        Some((TriState::Unknown, reason)) => reason != ConditionReason::FaultSuspected.as_str(),
        Some((TriState::False, reason)) => reason == ConditionReason::FaultWithPartialCoverage.as_str(),
        Some((TriState::True, _)) => false,
        None => true,
    };
    checked_conditions().filter(|kind| has_gap(*kind)).flat_map(faults_of).collect()
}

/// The probe's conditions: False on a confirmed fault, Unknown on a suspicion or where nobody could check, True on a clean check.
pub fn of_probe(tracked: &Tracked, findings: &Findings, safety: &RestartSafety) -> Vec<Judged> {
    let faults = &tracked.faults;
    let mut judged: Vec<Judged> =
        OF_PROBE.iter().map(|(kind, clean)| of_faults(*kind, clean, tracked, findings)).collect();
    let (status, message) = (safety.both(), safety.message());
    let reason = match status {
        TriState::True => ConditionReason::NoFault,
        TriState::False => ConditionReason::FaultConfirmed,
        TriState::Unknown if faults.iter().any(|fault| fault.state != FaultState::Confirmed) => {
            ConditionReason::FaultSuspected
        }
        TriState::Unknown if findings.shortage.is_some() => ConditionReason::ResourcePressure,
        TriState::Unknown => ConditionReason::NotYetChecked,
    };
    judged.push(Judged { kind: ConditionType::RestartSafe, status, reason, message });
    judged
}

/// Of what does harm only without a kubelet.
const UNDECIDED: &str = "whether what is left over does harm depends on whether a kubelet works, which is not known";

fn of_faults(kind: ConditionType, clean: &str, tracked: &Tracked, findings: &Findings) -> Judged {
    let of: Vec<FaultType> = faults_of(kind).collect();
    let ours = || tracked.faults.iter().filter(|fault| of.contains(&fault.kind));
    let worst = ours().find(|fault| fault.state == FaultState::Confirmed).or_else(|| ours().next());
    // A fault of one kind hides no gap of another kind.
    let shortage = findings.shortage.filter(|_| kind == ConditionType::HostHealthy);
    let undecided =
        |kind| tracked.undecided.contains(kind).then(|| (ConditionReason::NotYetChecked, UNDECIDED.to_owned()));
    let mut unseen = of.iter().filter(|kind| ours().all(|fault| fault.kind != **kind));
    let gap = unseen.find_map(|kind| gap(*kind, findings).or_else(|| undecided(kind)));
    let of_shortage =
        |resource| format!("the node is short of {resource}: what gives no answer may be slow and not hung");
    let gap = gap.or_else(|| shortage.map(|resource| (ConditionReason::ResourcePressure, of_shortage(resource))));
    // Any of those may be of this kind.
    let untracked = || format!("{} more faults than are tracked", tracked.left_out);
    let gap = gap.or_else(|| (tracked.left_out > 0).then(|| (ConditionReason::CheckFailed, untracked())));
    let beside = |reason| if gap.is_some() { ConditionReason::FaultWithPartialCoverage } else { reason };
    let (status, reason, message) = match worst {
        Some(fault) if fault.state == FaultState::Confirmed => {
            (TriState::False, beside(ConditionReason::FaultConfirmed), fault.message.clone())
        }
        Some(fault) => (TriState::Unknown, beside(ConditionReason::FaultSuspected), fault.message.clone()),
        None => match gap {
            Some((reason, detail)) => (TriState::Unknown, reason, detail),
            None if of.contains(&FaultType::HungContainer) => {
                let message = format!("{clean}; the answers are at most {} s old", findings.task_max_age.as_secs());
                (TriState::True, ConditionReason::NoFault, message)
            }
            None => (TriState::True, ConditionReason::NoFault, clean.to_owned()),
        },
    };
    Judged { kind, status, reason, message }
}

/// Why the probe did not check for this kind, if it did not. A single object that is neither faulty nor clean yet is no gap.
fn gap(kind: FaultType, findings: &Findings) -> Option<(ConditionReason, String)> {
    let Some(coverage) = findings.coverage.get(&kind) else {
        return Some((ConditionReason::NotYetChecked, format!("{kind} was not checked yet")));
    };
    let named = coverage.named.values();
    std::iter::once((&coverage.others, true)).chain(named.map(|verdict| (verdict, false))).find_map(
        |(verdict, whole)| match verdict {
            Verdict::Unknown { reason: ConditionReason::NotYetChecked, .. } if !whole => None,
            Verdict::Unknown { reason, detail } => Some((*reason, detail.clone())),
            Verdict::Clean { .. } => None,
        },
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::examples::{Node, SANDBOX, check};
    use super::super::tracker::Tracker;
    use super::*;
    use crate::restart_safety::restart_safety;

    fn judge(node: &mut Node, checks: &[u64]) -> Vec<(ConditionType, TriState, ConditionReason)> {
        let (mut tracker, mut judged) = (Tracker::default(), Vec::new());
        for at in checks {
            let (findings, seen) = check(&mut tracker, node, *at);
            judged = of_probe(&seen, &findings, &restart_safety(&seen.faults, seen.left_out, &findings));
        }
        judged.into_iter().map(|one| (one.kind, one.status, one.reason)).collect()
    }

    fn judge_one(condition: ConditionType, node: &mut Node, checks: &[u64]) -> (TriState, ConditionReason) {
        let judged = judge(node, checks);
        let (_, status, reason) = judged.into_iter().find(|(kind, ..)| *kind == condition).unwrap();
        (status, reason)
    }

    #[test]
    fn a_healthy_node_is_true_throughout() {
        let judged = judge(&mut Node::healthy(), &[1000]);
        assert_eq!(judged.len(), 15);
        assert!(
            judged.iter().all(|(_, status, reason)| (*status, *reason) == (TriState::True, ConditionReason::NoFault)),
            "{judged:?}"
        );
    }

    #[test]
    fn a_hung_container_turns_only_its_own_condition_and_restart_safe() {
        let mut node = Node::with(|node| node.freeze(SANDBOX));
        for (checks, status, reason) in [
            (&[1000][..], TriState::Unknown, ConditionReason::FaultSuspected),
            (&[1000, 1020, 1040][..], TriState::False, ConditionReason::FaultConfirmed),
        ] {
            for (kind, is, why) in judge(&mut node, checks) {
                if matches!(kind, ConditionType::ContainersResponsive | ConditionType::RestartSafe) {
                    assert_eq!((is, why), (status, reason), "{kind:?}");
                } else {
                    assert_eq!(is, TriState::True, "{kind:?}");
                }
            }
        }
    }

    #[test]
    fn a_fault_of_one_kind_hides_no_gap_of_another() {
        use crate::examples::done;
        use crate::observation::{Reading, TaskAnswer};
        // One task is lost. None of the other tasks was asked since the probe began without its memory.
        let mut node = Node::healthy();
        node.tasks.clear();
        let took = Duration::from_millis(3);
        let gone = Reading::Done { value: TaskAnswer::NotFound, age: Duration::from_secs(1), took };
        node.tasks.insert("aaaa1".into(), gone);
        let of = |node: &mut Node, checks: &[u64]| judge_one(ConditionType::ContainersResponsive, node, checks);
        assert_eq!(of(&mut node, &[1000]), (TriState::Unknown, ConditionReason::FaultWithPartialCoverage));
        let confirmed = of(&mut node, &[1000, 1020, 1040, 1060]);
        assert_eq!(confirmed, (TriState::False, ConditionReason::FaultWithPartialCoverage));
        for id in ["aaaa2", "bbbb1"] {
            node.tasks.insert(id.into(), done(TaskAnswer::Answered));
        }
        let complete = of(&mut node, &[1000]);
        assert_eq!(complete, (TriState::Unknown, ConditionReason::FaultSuspected), "all were looked at");
    }

    /// The removal of orphans is also verified while no kubelet runs.
    #[test]
    fn without_a_kubelet_what_is_left_over_is_still_checked_for() {
        let mut node = Node::with(Node::kubelet_gone);
        node.host().unseen = Some("no kubelet runs that could be checked".into());
        let findings = node.findings();
        let judged = of_probe(&Tracked::default(), &findings, &restart_safety(&[], 0, &findings));
        let sandboxes = judged.iter().find(|one| one.kind == ConditionType::SandboxesConsistent).unwrap();
        assert_eq!(sandboxes.status, TriState::True, "{sandboxes:?}");
    }

    /// As after a power loss: whether the kubelet is down is not confirmed yet, so what it may have died of is neither there nor gone.
    #[test]
    fn a_left_over_is_not_gone_while_it_is_open_whether_the_kubelet_works() {
        use crate::observation::ContainerState;
        let mut node = Node::with(|node| node.orphan(ContainerState::Exited));
        let of = |node: &mut Node, checks: &[u64]| judge_one(ConditionType::SandboxesConsistent, node, checks).0;
        assert_eq!(of(&mut node, &[1000]), TriState::True, "a live kubelet keeps it");
        let mut silent = node.clone();
        silent.kubelet().healthz = None;
        assert_eq!(of(&mut silent, &[1000]), TriState::True, "and so does one that cannot be asked");
        node.kubelet_gone();
        let checks: Vec<u64> = (1000..=1080).step_by(10).collect();
        for known in 1..checks.len() {
            assert_eq!(of(&mut node, &checks[..known]), TriState::Unknown, "after {known} checks");
        }
        assert_eq!(of(&mut node, &checks), TriState::False);
    }

    #[test]
    fn where_nobody_could_check_nothing_is_true() {
        let findings = Node::unavailable().findings();
        for one in of_probe(&Tracked::default(), &findings, &restart_safety(&[], 0, &findings)) {
            assert_eq!(one.status, TriState::Unknown, "{one:?}");
            assert!(!one.message.is_empty());
        }
    }

    #[test]
    fn what_nobody_checked_for_is_told_from_what_is_suspected() {
        let healthy = |kind| (kind != ConditionType::RuntimeReady).then_some((TriState::True, "Clean"));
        assert_eq!(
            unchecked(healthy),
            [FaultType::RuntimeUnreachable, FaultType::RuntimeListHung, FaultType::RuntimeUpdateBlocked].into()
        );
        for (status, reason, gap) in [
            (TriState::False, "FaultConfirmed", false),
            (TriState::False, "FaultWithPartialCoverage", true),
            (TriState::Unknown, "FaultWithPartialCoverage", true),
            (TriState::Unknown, "FaultSuspected", false),
            (TriState::Unknown, "NotYetChecked", true),
            (TriState::Unknown, "anything", true),
        ] {
            let state_of = |kind| {
                Some(if kind == ConditionType::ContainersResponsive {
                    (status, reason)
                } else {
                    (TriState::True, "Clean")
                })
            };
            assert_eq!(unchecked(state_of).contains(&FaultType::HungContainer), gap, "{reason}");
        }
    }
}
