//! The step Reboot, read and checked.

use super::super::policy::PolicyStep;
use crate::core::policy::{ActionType, Mode};
use crate::core::reboot::Reboot;
use std::time::Duration;

/// Shortest time that a machine is given to boot anew.
const LEAST: Duration = Duration::from_mins(5);

/// With how much care a step reboots the node, if it does: with its own parameters, or as if there were none.
pub fn reboot(step: &PolicyStep) -> Option<Reboot> {
    (step.action == ActionType::Reboot).then(|| step.reboot.clone().unwrap_or_default())
}

/// What is wrong with one step by itself.
pub(super) fn check(step: &PolicyStep, at: &str, errors: &mut Vec<String>) {
    if step.action != ActionType::Reboot {
        if step.reboot.is_some() {
            errors.push(format!("{at}.reboot: goes with action Reboot, found {}", step.action.as_str()));
        }
        return;
    }
    if step.approval.is_none() {
        errors.push(format!(
            "{at}.approval: Reboot ends every pod of the node, so it has to be said whether a person is asked first: write \
             approval: Manual, or approval: Automatic"
        ));
    }
    if step.attempts != 1 {
        errors.push(format!("{at}.attempts: Reboot is tried once, found {}", step.attempts));
    }
    if step.timeout.get() < LEAST {
        errors.push(format!(
            "{at}.timeout: a machine takes its time to boot, expected at least 5m with Reboot, found {}",
            step.timeout
        ));
    }
}

/// Whether each reboot of a ladder has a cordon before it, and a drain unless it is to be done without, each of which is done where
/// the reboot is.
pub(super) fn check_place(steps: &[PolicyStep], at: &str, errors: &mut Vec<String>) {
    for (i, step) in steps.iter().enumerate().filter(|(_, step)| step.action == ActionType::Reboot) {
        let has = |action| {
            let mut before = steps.iter().take(i).filter(|other| other.action == action);
            before.any(|other| other.mode == Mode::Enforce || step.mode == Mode::DryRun)
        };
        if !has(ActionType::Cordon) {
            errors.push(format!(
                "{at}.steps[{i}]: expected a Cordon before Reboot in the ladder, of mode Enforce unless it is a dry run itself, \
                 found none"
            ));
        }
        if !step.reboot.as_ref().is_some_and(|with| with.even_if_not_drained) && !has(ActionType::Drain) {
            errors.push(format!(
                "{at}.steps[{i}]: expected a Drain before Reboot in the ladder, of mode Enforce unless it is a dry run itself, or \
                 reboot.evenIfNotDrained: true, found neither"
            ));
        }
    }
}
