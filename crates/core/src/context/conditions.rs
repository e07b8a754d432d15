//! Conditions that other tools write on a Node: which of them are faults, for how long, and when they are resolved.

use std::borrow::Cow;
use std::time::Duration;

use super::{NodeContext, ObservedFault};
use crate::condition_history::{matchers, rules};
use crate::external_condition::{ConditionState, ObservedCondition, askings, state_of};
use crate::faults::ShowsIn;
use crate::policy::Rule;
use crate::remediation::RemediationFault;
use crate::tri_state::TriState;

/// The observed conditions that a policy of this node asks for. The controller watches the Node, so they are as last written,
/// whether or not the kubelet still reports.
pub(crate) fn seen<'a>(node: &NodeContext<'_>) -> impl Iterator<Item = ObservedFault<'a>> {
    let is_asked = |observed: &&ObservedCondition| {
        matchers(node.policies.iter().copied()).any(|matcher| matcher.is_met_by(&observed.condition))
    };
    let view = node.view.into_iter();
    view.flat_map(move |view| {
        node.matched_conditions.iter().filter(is_asked).map(move |observed| ObservedFault {
            checked: Duration::ZERO,
            lasted: observed.longest(),
            fault: Cow::Owned(observed.fault(node.name, view.ready != TriState::Unknown)),
        })
    })
}

/// How long the fault has been there, as the rule counts it. A rule that asks for some reasons of a condition does not count the
/// time in which the condition had another reason. Where the node or the condition flaps, a short absence does not restart the
/// time.
pub(crate) fn lasted(node: &NodeContext<'_>, seen: &ObservedFault<'_>, rule: &Rule) -> Duration {
    if seen.fault.kind.spec().shows_in != ShowsIn::Condition {
        return node.flap.map_or(seen.lasted, |flap| flap.stayed(&seen.fault).max(seen.lasted));
    }
    let node_flaps = node.flap.is_some_and(|flap| flap.flapping.is_some());
    let same = node.matched_conditions.iter().filter(|observed| observed.id(node.name) == seen.fault.id);
    same.map(|observed| observed.lasted_for(&rule.conditions, node_flaps)).max().unwrap_or_default()
}

/// Whether the condition of a remediation's fault has another status now, or a reason that no policy asks for. Two cases prove
/// nothing: no policy asks for the condition type any more, or the Node has the condition twice. A state that a rule asks for
/// together with the former state is not another one either.
pub(crate) fn is_other(node: &NodeContext<'_>, fault: &RemediationFault) -> bool {
    let (Some(view), Some(kind), Some(was)) = (node.view, &fault.subject.name, &fault.subject.condition) else {
        return false;
    };
    let policies = || node.policies.iter().copied();
    match state_of(&view.conditions, kind) {
        ConditionState::Absent => true,
        ConditionState::Contradictory => false,
        ConditionState::As(now) if now.status != was.status => !askings(rules(policies()), kind).iter().any(|asking| {
            asking.iter().any(|matcher| matcher.status == was.status)
                && asking.iter().any(|matcher| matcher.is_met_by(now))
        }),
        ConditionState::As(now) => {
            let of_type = || matchers(policies()).filter(|matcher| matcher.kind == *kind);
            // While any rule asks for the condition in its current state, the fault is there, even if another rule excludes its
            // reason.
            let is_met = of_type().any(|matcher| matcher.is_met_by(now));
            !is_met && of_type().any(|matcher| matcher.status == now.status)
        }
    }
}
