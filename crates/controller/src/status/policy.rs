//! The status of policies and of the `RemediationConfig`.

use jiff::Timestamp;

use crate::cache::policies::{ConfigRow, PolicyRow};
use nrh_api::condition::condition;
use nrh_api::policy::PolicyLimitsStatus;
use nrh_api::{ConditionReason, ConditionType, RemediationConfigStatus, RemediationPolicyStatus};
use nrh_core::plan::{MAX_SHOWN, PolicyStatusView};
use nrh_core::policy::Mode;
use nrh_core::remediation::Remediation;
use nrh_core::snapshot::{Snapshot, TriState};

/// The status of a policy.
pub fn policy_status(
    row: &PolicyRow,
    status_view: Option<&PolicyStatusView>,
    now: Timestamp,
) -> RemediationPolicyStatus {
    use ConditionReason as Why;
    let none = PolicyStatusView::default();
    let seen = status_view.unwrap_or(&none);
    let of = |kind, status, reason, message: &str| {
        let mut made = condition(&row.status.conditions, kind, status, reason, message, now);
        made.observed_generation = Some(row.generation);
        made
    };
    let (ready, stalled) = match row.flaws() {
        [] => (of(ConditionType::Ready, TriState::True, Why::Accepted, "the policy is valid"), None),
        flaws => {
            let of = |kind, status| of(kind, status, Why::Invalid, &flaws.join("; "));
            (of(ConditionType::Ready, TriState::False), Some(of(ConditionType::Stalled, TriState::True)))
        }
    };
    // A policy that lacks a right for some of its steps still takes the others.
    let (is_allowed, reason, message) = match status_view.map(|seen| &seen.blocked) {
        _ if !row.errors.is_empty() => (TriState::False, Why::Invalid, "the policy is not valid"),
        Some(None) => (TriState::True, Why::Allowed, "nothing blocks it"),
        Some(Some((_, why))) => (TriState::False, Why::Blocked, why.as_str()),
        None => (TriState::Unknown, Why::NotYetChecked, "nothing was planned yet"),
    };
    let allowed = of(ConditionType::RemediationAllowed, is_allowed, reason, message);
    RemediationPolicyStatus {
        observed_generation: Some(row.generation),
        selected_nodes: seen.selected,
        unhealthy_nodes: seen.unhealthy,
        unknown_nodes: seen.unknown,
        in_flight: seen.in_flight,
        max_unhealthy: seen.max_unhealthy,
        max_in_flight: seen.max_in_flight,
        limits: PolicyLimitsStatus::of(&seen.limits),
        windows: seen.windows.iter().take(MAX_SHOWN).cloned().collect(),
        storms: seen.storms.iter().take(MAX_SHOWN).map(Into::into).collect(),
        overlapping_policies: seen.overlaps.iter().take(MAX_SHOWN).cloned().collect(),
        conditions: [ready, allowed].into_iter().chain(stalled).collect(),
    }
}

/// Whether a policy's conditions, or the faults of its storms, have changed: the writer writes that at once. Numbers and texts
/// change with each remediation while many nodes are faulty, so they can wait.
pub fn news_of_policy(current: &RemediationPolicyStatus, now: &RemediationPolicyStatus) -> bool {
    let verdicts = |status: &RemediationPolicyStatus| {
        let mut all: Vec<_> =
            status.conditions.iter().map(|one| (one.type_.clone(), one.status.clone(), one.reason.clone())).collect();
        all.sort();
        all
    };
    current.observed_generation != now.observed_generation
        || verdicts(current) != verdicts(now)
        || !current.storms.iter().map(|storm| &storm.fault).eq(now.storms.iter().map(|storm| &storm.fault))
}

/// Whether two statuses of a policy are equal, times aside.
pub fn same_policy_status(a: &RemediationPolicyStatus, b: &RemediationPolicyStatus) -> bool {
    let timeless = |status: &RemediationPolicyStatus| {
        let mut status = status.clone();
        for condition in &mut status.conditions {
            condition.last_transition_time.0 = Timestamp::UNIX_EPOCH;
        }
        status.conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        status
    };
    timeless(a) == timeless(b)
}

/// The status of the `RemediationConfig`.
pub fn config_status(row: &ConfigRow, snapshot: &Snapshot, now: Timestamp) -> RemediationConfigStatus {
    let (reason, message) = match &snapshot.suspended {
        Some(by) => (ConditionReason::Suspended, format!("no step starts on any node ({by})")),
        None => (ConditionReason::Allowed, "remediation is not suspended".to_owned()),
    };
    let mut ready = condition(&row.status.conditions, ConditionType::Ready, TriState::True, reason, &message, now);
    ready.observed_generation = Some(row.generation);
    let is_active = |one: &&Remediation| one.is_open() && one.mode == Mode::Enforce;
    RemediationConfigStatus {
        observed_generation: Some(row.generation),
        active_remediations: u32::try_from(snapshot.remediations.values().filter(is_active).count())
            .unwrap_or(u32::MAX),
        conditions: vec![ready],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nrh_core::fault::FaultType;
    use nrh_core::plan::{FaultLimitView, LimitsView, NodeAtLimit, StormView, TopologyLimitView};
    use nrh_core::window;
    use serde_json::json;

    fn now() -> Timestamp {
        "2025-01-01T00:00:00Z".parse().unwrap()
    }

    #[test]
    fn an_invalid_policy_names_all_its_errors() {
        let row = PolicyRow { errors: vec!["first".into(), "second".into()], generation: 4, ..PolicyRow::default() };
        let status = policy_status(&row, None, now());
        let shown = |kind: &str| {
            let one = status.conditions.iter().find(|c| c.type_ == kind).unwrap();
            (one.status.as_str(), one.message.as_str())
        };
        assert_eq!((shown("Ready"), shown("Stalled")), (("False", "first; second"), ("True", "first; second")));
        assert!(same_policy_status(&status, &policy_status(&row, None, "2025-02-01T00:00:00Z".parse().unwrap())));
    }

    #[test]
    fn what_limits_windows_and_storms_come_to_is_told_and_not_written_twice() {
        let row = PolicyRow { generation: 4, ..PolicyRow::default() };
        let status_of = |limits: LimitsView, until: Timestamp| {
            let window = window::WindowView { window: "Allow window".into(), is_open: true, until: Some(until) };
            let storm = StormView {
                fault: FaultType::HungContainer,
                max_concurrent: 2,
                nodes: 12,
                new: 3,
                evidence: "x".repeat(9_999),
            };
            let status_view = PolicyStatusView {
                limits,
                windows: vec![window],
                storms: vec![storm; 40],
                ..PolicyStatusView::default()
            };
            policy_status(&row, Some(&status_view), now())
        };
        let room = TopologyLimitView { key: "zone".into(), value: None, nodes: 6, in_flight: 1, max_in_flight: 2 };
        let spent = NodeAtLimit { node: "n1".into(), actions: 20, is_slow: false, until: now() };
        let limits = LimitsView {
            topologies: vec![room],
            topologies_left_out: 3,
            faults: vec![FaultLimitView { faults: vec![FaultType::DiskFull], in_flight: 0, max_in_flight: 1 }],
            spent: vec![spent],
            spent_left_out: 0,
        };
        let status = status_of(limits.clone(), now());
        assert!(same_policy_status(&status, &status_of(limits.clone(), now())));
        assert!(!same_policy_status(&status, &status_of(LimitsView::default(), now())));
        let later = "2025-01-01T06:00:00Z".parse().unwrap();
        assert!(!same_policy_status(&status, &status_of(limits, later)));
        assert_eq!((status.storms.len(), status.storms[0].message.len() <= 512), (16, true));
        assert_eq!(
            serde_json::to_value(&status.limits).unwrap(),
            json!({"perTopology": [{"topologyKey": "zone", "nodes": 6, "inFlight": 1, "maxInFlight": 2}], "perTopologyOmitted": 3,
                "perFault": [{"faults": ["DiskFull"], "inFlight": 0, "maxInFlight": 1}],
                "perNode": [{"node": "n1", "actions": 20, "until": "2025-01-01T00:00:00Z"}]})
        );
        assert_eq!(status_of(LimitsView::default(), later).limits, None);
    }
}
