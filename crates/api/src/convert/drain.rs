//! The step Drain, read and checked.

use super::is_namespace;
use crate::policy::{self, PolicyStep};
use nrh_core::action::{ActionType, Drain};
use nrh_core::policy::Mode;

pub(super) fn read(with: &policy::Drain) -> Drain {
    Drain {
        grace_period_seconds: with.grace_period.and_then(|period| u32::try_from(period.get().as_secs()).ok()),
        delete_empty_dir_data: with.delete_empty_dir_data.unwrap_or(false),
        force: with.force.unwrap_or(false),
        ignore_runtime_hang: with.ignore_runtime_hang.unwrap_or(false),
        excluded_namespaces: with.excluded_namespaces.clone(),
    }
}

/// What is wrong with the parameters of one step.
pub(super) fn check(step: &PolicyStep, at: &str, errors: &mut Vec<String>) {
    let Some(with) = &step.drain else { return };
    for name in with.excluded_namespaces.iter().filter(|name| !is_namespace(name)) {
        errors.push(format!(
            "{at}.drain.excludedNamespaces: expected the name of a namespace, with `*` at its end at most, found {name:?}: name \
             each one, or what they begin with"
        ));
    }
}

/// Whether each drain of a rule has a cordon before it that runs where the drain runs.
pub(super) fn check_place(steps: &[PolicyStep], at: &str, errors: &mut Vec<String>) {
    let mut cordons: Vec<Mode> = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        match step.action {
            ActionType::Cordon => cordons.push(step.mode),
            ActionType::Drain if cordons.is_empty() => errors.push(format!(
                "{at}.steps[{i}]: expected a Cordon step before Drain, found none, so evicted pods would come back"
            )),
            ActionType::Drain if step.mode == Mode::Enforce && !cordons.contains(&Mode::Enforce) => errors.push(format!(
                "{at}.steps[{i}]: expected a Cordon of mode Enforce before Drain, found only a dry run, so evicted pods would \
                 come back: make that Cordon Enforce, or the Drain a dry run, too"
            )),
            _ => {}
        }
    }
}
