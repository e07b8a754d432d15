//! Conditions that other tools write on a Node: which of them are faults there, for how long, and when they are gone.

use std::borrow::Cow;
use std::time::Duration;

use super::evidence::{NodeContext, ObservedFault};
use crate::condition_history::{asked, rules};
use crate::external_condition::{ConditionState, ObservedCondition, askings, standing};
use crate::faults::ShowsIn;
use crate::policy::Rule;
use crate::remediation::RemediationFault;
use crate::tri_state::TriState;

/// Those for which a policy that selects the node asks. The Node is watched, so they are as they were last written, whether or
/// not anything is heard of its kubelet.
pub(super) fn seen<'a>(facts: &NodeContext<'_>) -> impl Iterator<Item = ObservedFault<'a>> {
    let is_asked = |noticed: &&ObservedCondition| {
        asked(facts.policies.iter().copied()).any(|asked| asked.is_met_by(&noticed.condition))
    };
    let view = facts.view.into_iter();
    view.flat_map(move |view| {
        facts.noticed.iter().filter(is_asked).map(move |noticed| ObservedFault {
            looked: Duration::ZERO,
            lasted: noticed.longest(),
            fault: Cow::Owned(noticed.fault(facts.name, view.ready != TriState::Unknown)),
        })
    })
}

/// For how long the fault has been there as the rule sees it: one that asks for some reasons of a condition has not seen it
/// while it had another one. Where the node flaps, or the condition does, one that was away for a moment has not begun anew.
pub(super) fn lasted(facts: &NodeContext<'_>, seen: &ObservedFault<'_>, rule: &Rule) -> Duration {
    if seen.fault.kind.spec().shows_in != ShowsIn::Condition {
        return facts.flap.map_or(seen.lasted, |flap| flap.stayed(&seen.fault).max(seen.lasted));
    }
    let node_flaps = facts.flap.is_some_and(|flap| flap.flapping.is_some());
    let same = facts.noticed.iter().filter(|noticed| noticed.id(facts.name) == seen.fault.id);
    same.map(|noticed| noticed.lasted_for(&rule.conditions, node_flaps)).max().unwrap_or_default()
}

/// Whether the condition of a remediation's fault stands otherwise now, or with a reason that nobody asks for. One that nobody
/// asks for at all any more, or that is there twice, proves nothing; nor does one that a rule asks for as it does for the former.
pub(super) fn is_other(facts: &NodeContext<'_>, fault: &RemediationFault) -> bool {
    let (Some(view), Some(kind), Some(was)) = (facts.view, &fault.subject.name, &fault.subject.condition) else {
        return false;
    };
    let policies = || facts.policies.iter().copied();
    match standing(&view.conditions, kind) {
        ConditionState::Absent => true,
        ConditionState::Contradictory => false,
        ConditionState::As(now) if now.status != was.status => !askings(rules(policies()), kind).iter().any(|asking| {
            asking.iter().any(|asked| asked.status == was.status) && asking.iter().any(|asked| asked.is_met_by(now))
        }),
        ConditionState::As(now) => {
            let of_type = || asked(policies()).filter(|asked| asked.kind == *kind);
            // As long as anybody asks for it as it stands, it is there, whatever another rule thinks of its reason.
            let is_met = of_type().any(|asked| asked.is_met_by(now));
            !is_met && of_type().any(|asked| asked.status == now.status)
        }
    }
}
