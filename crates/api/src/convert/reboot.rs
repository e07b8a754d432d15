//! The steps that have a node boot anew, read and checked.

use std::time::Duration;

use super::super::policy::PolicyStep;
use nrh_core::policy::{ActionType, Mode};
use nrh_core::reboot::sentinel_name;

/// Shortest time that a machine is given to boot anew.
const LEAST: Duration = Duration::from_mins(5);
/// Shortest time that another tool is given to have it boot.
const LEAST_MARK: Duration = Duration::from_mins(15);

/// What is wrong with a mark by itself. No cordon and no drain of ours is asked for: who reboots a marked node sees to both.
fn check_mark(step: &PolicyStep, at: &str, errors: &mut Vec<String>) {
    if step.action != ActionType::MarkForReboot {
        return;
    }
    if let Some(with) = step.mark_for_reboot.as_ref().filter(|with| sentinel_name(&with.path).is_none()) {
        errors.push(format!(
            "{at}.markForReboot.path: expected a file directly in /run with reboot in its name, such as /run/reboot-required \
             (/var/run is the same folder), at most 69 letters, digits, dots, dashes and underscores, found {:?}",
            with.path
        ));
    }
    if step.approval.is_none() {
        errors.push(format!(
            "{at}.approval: MarkForReboot has another tool end every pod of the node, so it has no default: write approval: Manual or approval: Automatic"
        ));
    }
    if step.max_attempts != 1 {
        errors.push(format!("{at}.maxAttempts: MarkForReboot is tried once, found {}", step.max_attempts));
    }
    if step.timeout.get() < LEAST_MARK {
        errors.push(format!(
            "{at}.timeout: the tool that reboots the node checks for the file now and then, in its windows only (kured once an hour, as shipped), expected at least 15m with MarkForReboot, found {}",
            step.timeout
        ));
    }
}

/// What is wrong with one step by itself.
pub(super) fn check(step: &PolicyStep, at: &str, errors: &mut Vec<String>) {
    check_mark(step, at, errors);
    if step.action != ActionType::Reboot {
        return;
    }
    if step.approval.is_none() {
        errors.push(format!(
            "{at}.approval: Reboot ends every pod of the node, so it has no default: write approval: Manual or approval: Automatic"
        ));
    }
    if step.max_attempts != 1 {
        errors.push(format!("{at}.maxAttempts: Reboot is tried once, found {}", step.max_attempts));
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
                "{at}.steps[{i}]: expected a Cordon step before Reboot, of mode Enforce unless it is a dry run itself, \
                 found none"
            ));
        }
        if step.reboot.as_ref().is_none_or(|with| with.require_drain) && !has(ActionType::Drain) {
            errors.push(format!(
                "{at}.steps[{i}]: expected a Drain step before Reboot, of mode Enforce unless it is a dry run itself, or \
                 reboot.requireDrain: false, found neither"
            ));
        }
    }
}
