//! The step Taint beside the other steps of its rule.

use super::super::policy::PolicyStep;
use super::step;
use nrh_core::action::{Action, ActionType};
use nrh_core::taint::TaintEffect;

/// Whether each taint of a rule goes with its other steps.
pub(super) fn check_beside(steps: &[PolicyStep], at: &str, errors: &mut Vec<String>) {
    let effects: Vec<(usize, TaintEffect)> =
        steps.iter().enumerate().filter_map(|(i, step)| Some((i, effect(step)?))).collect();
    let deletes = steps.iter().position(|step| step.action == ActionType::DeletePod);
    if let (Some(delete), Some((i, _))) = (deletes, effects.iter().find(|(_, effect)| effect.repels_daemon_sets())) {
        errors.push(format!(
            "{at}.steps[{i}].taint.effect: expected PreferNoSchedule in a rule with DeletePod (steps[{delete}]), found NoSchedule, \
             under which the deleted pod has no successor"
        ));
    }
    let first = effects.first().map(|(_, effect)| *effect);
    if let Some((i, other)) = effects.iter().find(|(_, effect)| Some(*effect) != first) {
        errors.push(format!(
            "{at}.steps[{i}].taint.effect: expected the one of the Taint before it, since a remediation puts on one taint, found {}: \
             take one of the two steps out",
            other.as_str()
        ));
    }
}

fn effect(step: &PolicyStep) -> Option<TaintEffect> {
    match step::action(step)? {
        Action::Taint(with) => Some(with.effect),
        _ => None,
    }
}
