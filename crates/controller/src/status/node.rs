//! The controller's part of a NodeRuntimeHealth, and how far the current status is from it.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::cache::report::ControllerStatus;
use nrh_api::condition::condition_since;
use nrh_api::health::{RemediationStatus, Summary};
use nrh_api::{ConditionReason, ConditionType, NodeRuntimeHealthStatus, WrittenFlap};
use nrh_core::condition::checked_conditions;
use nrh_core::fault::{Fault, FaultType, MAX_FAULTS};
use nrh_core::plan::{NodeStatusView, SelfHealing};
use nrh_core::snapshot::TriState;
use nrh_core::text::bounded;

/// The controller's part of the status of a node. The fields of the probe stay empty: an apply that names one takes it over.
pub fn node_part(
    status_view: &NodeStatusView,
    blocked: &[String],
    current: &ControllerStatus,
    now: Timestamp,
) -> NodeRuntimeHealthStatus {
    let mut cluster_faults = status_view.cluster_faults.clone();
    cluster_faults.truncate(MAX_FAULTS);
    NodeRuntimeHealthStatus {
        observed_generation: Some(current.generation),
        kubelet_version: status_view.kubelet_version.clone(),
        remediation: Some(RemediationStatus {
            policy: status_view.policy.clone(),
            name: status_view.remediation.clone(),
            blocked: blocked.to_vec(),
            cancelled: status_view.stopped.clone(),
        }),
        summary: Some(Summary {
            health: status_view.health,
            top_fault_type: status_view.top_fault_type,
            top_fault: bounded(&status_view.top_fault, 256),
            activity: bounded(&status_view.activity, 256),
        }),
        conditions: node_conditions(status_view, current, now),
        flapping: status_view.flap.clone().map(|flap| WrittenFlap(Ok(flap))),
        cluster_faults,
        ..NodeRuntimeHealthStatus::default()
    }
}

fn node_conditions(status_view: &NodeStatusView, current: &ControllerStatus, now: Timestamp) -> Vec<Condition> {
    use ConditionReason as Why;
    let of = |kind, status, reason, message: &str| {
        let same = current.conditions.get(kind).filter(|before| before.text.status == status);
        let since = same.map_or(now, |before| before.since);
        let generation = Some(current.generation);
        Condition { observed_generation: generation, ..condition_since(kind, status, reason, message, since) }
    };
    let by = |status, good, bad| match status {
        TriState::True => good,
        TriState::False => bad,
        TriState::Unknown => Why::NotYetChecked,
    };
    let stuck = status_view.cluster_faults.iter().find(|fault| fault.kind.spec().holds_up_pods);
    let progress = match (stuck, status_view.pods_progressing) {
        (Some(fault), _) => fault.message.as_str(),
        (None, TriState::True) => "no pod of a DaemonSet is stuck on this node",
        (None, _) => "a pod of a DaemonSet is not ready or was not read, or the probe does not report",
    };
    let heartbeats = match status_view.probe_reporting {
        TriState::True => "heartbeats arrive as promised",
        TriState::False => "the probe has missed its promised heartbeats",
        TriState::Unknown => "the next report of the probe is late, or there was none yet",
    };
    let healing = match status_view.self_healing {
        SelfHealing::NoFault => Why::NoFault,
        SelfHealing::Allowed => Why::Allowed,
        SelfHealing::ManualActionRequired => Why::ManualActionRequired,
        SelfHealing::DryRun => Why::DryRun,
        SelfHealing::Suspended => Why::Suspended,
        SelfHealing::Excluded => Why::Excluded,
        SelfHealing::Unknown => Why::NotYetChecked,
    };
    let blocked = status_view.cluster_faults.iter().any(|fault| fault.kind == FaultType::KubeletStartBlocked);
    let stale = if blocked {
        "the kubelet's start is blocked: what it waits for would block the next one too"
    } else {
        "the probe's last report is too old, or the node cannot be reached"
    };
    let (reporting, pods) = (status_view.probe_reporting, status_view.pods_progressing);
    let (is_stable, reason, message) = stable(status_view, current);
    let reported = by(reporting, Why::Reporting, Why::HeartbeatMissed);
    let mut conditions = vec![
        // The object is Ready while a probe reports into it, however faulty its node is.
        of(ConditionType::Ready, reporting, reported, heartbeats),
        of(ConditionType::ProbeReporting, reporting, reported, heartbeats),
        of(ConditionType::PodsProgressing, pods, by(pods, Why::NoFault, Why::FaultConfirmed), progress),
        of(ConditionType::SelfHealing, status_view.self_healing.status(), healing, &status_view.activity),
        of(ConditionType::NodeStable, is_stable, reason, message),
    ];
    let stale_kinds = stale_conditions(status_view, current).into_iter();
    conditions.extend(stale_kinds.map(|kind| of(kind, TriState::Unknown, Why::Stale, stale)));
    conditions
}

/// Status, reason and message of `NodeStable`. A controller that has just started keeps a True of its predecessor.
fn stable<'v>(status_view: &'v NodeStatusView, current: &ControllerStatus) -> (TriState, ConditionReason, &'v str) {
    let stood = current.conditions.status(ConditionType::NodeStable) == TriState::True;
    match status_view.stable {
        TriState::False => {
            let flapping = status_view.cluster_faults.iter().find(|fault| fault.kind == FaultType::NodeFlapping);
            (TriState::False, ConditionReason::FaultConfirmed, flapping.map_or("", |fault| fault.message.as_str()))
        }
        TriState::Unknown if !stood => {
            let why = "the node was not watched for long enough to know whether it flaps";
            (TriState::Unknown, ConditionReason::NotYetChecked, why)
        }
        _ => (TriState::True, ConditionReason::NoFault, "neither Ready nor a fault of the node comes and goes"),
    }
}

/// Current conditions of the probe that nothing confirms now.
fn stale_conditions(status_view: &NodeStatusView, current: &ControllerStatus) -> Vec<ConditionType> {
    let silent = status_view.cluster_faults.iter().any(|fault| fault.kind == FaultType::ProbeNotReporting);
    let of_probe = checked_conditions().chain([ConditionType::RestartSafe]);
    of_probe
        .filter(|kind| current.conditions.get(*kind).is_some())
        .filter(|kind| {
            let safe_no_more = *kind == ConditionType::RestartSafe
                && !status_view.restart_safe_known
                && current.conditions.status(*kind) != TriState::False;
            silent || safe_no_more
        })
        .collect()
}

/// How far the current status is from the wanted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    /// No visible difference, times aside.
    None,
    /// Only that the node was watched for long enough: all nodes reach that at the same moment.
    Watched,
    /// Only texts: written, but not more often than every few seconds.
    Words,
    /// Something that people or the probe react to.
    Matter,
}

/// Compares the current status with the wanted one.
pub fn difference(current: &ControllerStatus, part: &NodeRuntimeHealthStatus) -> Difference {
    let states = |faults: &[Fault]| faults.iter().map(|f| (f.id.clone(), f.state, f.severity)).collect::<Vec<_>>();
    let words = |faults: &[Fault]| faults.iter().map(|f| (f.message.clone(), f.impact.clone())).collect::<Vec<_>>();
    let key = |is: &RemediationStatus| {
        (is.policy.clone(), is.name.clone(), is.cancelled.as_ref().map(|by| by.remediation.clone()))
    };
    // `NodeStable` is missing, as before an upgrade, or Unknown: to write either is not urgent.
    let is_watched = |want: &Condition| {
        want.type_ == ConditionType::NodeStable.as_str()
            && want.status != "False"
            && current.conditions.status(ConditionType::NodeStable) == TriState::Unknown
    };
    let empty = (RemediationStatus::default(), Summary::default());
    let [remediation, wanted] = [&current.remediation, &part.remediation].map(|is| is.as_ref().unwrap_or(&empty.0));
    let [summary, wanted_summary] = [&current.summary, &part.summary].map(|is| is.as_ref().unwrap_or(&empty.1));
    let matter = current.remediation.is_none()
        || current.summary.is_none()
        || current.observed_generation != part.observed_generation
        || current.kubelet_version != part.kubelet_version
        || summary.health != wanted_summary.health
        || key(remediation) != key(wanted)
        || states(&current.cluster_faults) != states(&part.cluster_faults)
        || part.conditions.iter().filter(|want| !is_watched(want)).any(|want| {
            let known = current.conditions.named(&want.type_).map(|known| &known.text);
            known.is_none_or(|text| (text.status.as_str(), &text.reason) != (want.status.as_str(), &want.reason))
        });
    if matter {
        return Difference::Matter;
    }
    let differs =
        summary != wanted_summary
            || current.flap != part.flapping
            || remediation.blocked != wanted.blocked
            || words(&current.cluster_faults) != words(&part.cluster_faults)
            || part.conditions.iter().filter(|want| !is_watched(want)).any(|want| {
                current.conditions.named(&want.type_).is_some_and(|known| known.text.message != want.message)
            });
    if differs {
        return Difference::Words;
    }
    let is_news = part.conditions.iter().any(|want| is_watched(want) && want.status == "True");
    if is_news { Difference::Watched } else { Difference::None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::report_conditions::Conditions;
    use serde_json::json;

    fn now() -> Timestamp {
        "2025-01-01T00:00:00Z".parse().unwrap()
    }

    fn status_of(part: NodeRuntimeHealthStatus) -> ControllerStatus {
        ControllerStatus {
            cluster_faults: part.cluster_faults,
            observed_generation: part.observed_generation,
            kubelet_version: part.kubelet_version,
            remediation: part.remediation,
            summary: part.summary,
            flap: part.flapping,
            conditions: Conditions::of(&part.conditions),
            ..ControllerStatus::default()
        }
    }

    fn of_type<'a>(part: &'a NodeRuntimeHealthStatus, kind: &str) -> Option<&'a Condition> {
        part.conditions.iter().find(|c| c.type_ == kind)
    }

    #[test]
    fn what_was_written_is_not_written_again() {
        let status_view =
            NodeStatusView { activity: "waiting".into(), restart_safe_known: true, ..NodeStatusView::default() };
        let part = node_part(&status_view, &["MinDurationNotReached: x".into()], &ControllerStatus::default(), now());
        assert_eq!(difference(&ControllerStatus::default(), &part), Difference::Matter);
        let written = serde_json::to_value(&part).unwrap();
        let fields: Vec<&str> = written.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, ["conditions", "observedGeneration", "remediation", "summary"], "no field of the probe");
        let stable = of_type(&part, "NodeStable").unwrap();
        assert!(stable.status == "Unknown" && stable.message.contains("not watched for long enough"), "{stable:?}");
        let progressing = of_type(&part, "PodsProgressing").unwrap();
        assert!(!progressing.message.is_empty(), "{progressing:?}");
        let current = status_of(part.clone());
        assert_eq!(difference(&current, &part), Difference::None);
        let later = "2025-01-01T01:00:00Z".parse().unwrap();
        let again = node_part(&status_view, &["MinDurationNotReached: x".into()], &current, later);
        assert_eq!(again, part, "transition times are kept");
        let words = node_part(&status_view, &["MinDurationNotReached: y".into()], &current, later);
        assert_eq!(difference(&current, &words), Difference::Words);
        let watched = NodeStatusView { stable: TriState::True, ..status_view.clone() };
        let watched = node_part(&watched, &["MinDurationNotReached: x".into()], &current, later);
        assert_eq!(difference(&current, &watched), Difference::Watched);
        let begun = NodeStatusView { remediation: Some("e".into()), ..status_view.clone() };
        let begun = node_part(&begun, &["MinDurationNotReached: x".into()], &current, later);
        assert_eq!(difference(&current, &begun), Difference::Matter);
    }

    #[test]
    fn that_nobody_has_watched_the_nodes_yet_is_not_written_to_each_after_an_upgrade() {
        let status_view = NodeStatusView { restart_safe_known: true, ..NodeStatusView::default() };
        let before = node_part(&status_view, &[], &ControllerStatus::default(), now());
        let mut old = before.clone();
        old.conditions.retain(|condition| condition.type_ != "NodeStable");
        let current = status_of(old);
        assert_eq!(difference(&current, &node_part(&status_view, &[], &current, now())), Difference::None);
        let of = |stable| NodeStatusView { stable, ..status_view.clone() };
        let difference_of = |stable| difference(&current, &node_part(&of(stable), &[], &current, now()));
        assert_eq!([TriState::True, TriState::False].map(difference_of), [Difference::Watched, Difference::Matter]);
    }

    #[test]
    fn restart_safe_true_is_not_vouched_for_when_the_word_is_too_old_but_false_stays() {
        let with = |status: &str| {
            let conditions = [("RestartSafe", status), ("RuntimeReady", "True")].map(|(kind, status)| {
                let time = now().to_string();
                json!({"type": kind, "status": status, "reason": "Clean", "message": "", "lastTransitionTime": time})
            });
            let conditions: Vec<Condition> = serde_json::from_value(json!(conditions)).unwrap();
            ControllerStatus { conditions: Conditions::of(&conditions), ..ControllerStatus::default() }
        };
        let late = NodeStatusView { restart_safe_known: false, ..NodeStatusView::default() };
        let part = node_part(&late, &[], &with("True"), now());
        assert_eq!(of_type(&part, "RestartSafe").unwrap().status, "Unknown");
        assert!(of_type(&part, "RuntimeReady").is_none());
        assert!(of_type(&node_part(&late, &[], &with("False"), now()), "RestartSafe").is_none());
        let known = NodeStatusView { restart_safe_known: true, ..NodeStatusView::default() };
        assert!(of_type(&node_part(&known, &[], &with("True"), now()), "RestartSafe").is_none());
    }
}
