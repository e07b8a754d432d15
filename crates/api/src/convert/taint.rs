//! The step Taint, read and checked.

use super::super::policy::PolicyStep;
use nrh_core::policy::ActionType;
use nrh_core::taint::TaintEffect;

/// What the taint of a step does, if it is one: as it says, or by default.
pub fn taint(step: &PolicyStep) -> Option<TaintEffect> {
    let effect = step.taint.as_ref().and_then(|with| with.effect);
    (step.action == ActionType::Taint).then(|| effect.unwrap_or_default())
}

/// What is wrong with one step by itself.
pub(super) fn check(step: &PolicyStep, at: &str, errors: &mut Vec<String>) {
    if step.taint.is_some() && step.action != ActionType::Taint {
        errors.push(format!("{at}.taint: goes with action Taint, found {}", step.action.as_str()));
    }
}

/// Whether each taint of a ladder goes with its other steps.
pub(super) fn check_beside(steps: &[PolicyStep], at: &str, errors: &mut Vec<String>) {
    let effects: Vec<(usize, TaintEffect)> =
        steps.iter().enumerate().filter_map(|(i, step)| Some((i, taint(step)?))).collect();
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
