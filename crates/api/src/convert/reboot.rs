//! The steps that have a node boot anew, read and checked.

use std::time::Duration;

use super::super::policy::{PolicyStep, default_timeout};
use nrh_core::policy::{ActionType, Mode};
use nrh_core::reboot::sentinel_name;

/// Shortest time that a machine is given to boot anew.
const LEAST: Duration = Duration::from_mins(5);
/// Shortest time that another tool is given to have it boot.
const LEAST_MARK: Duration = Duration::from_mins(15);

/// What is wrong with one step by itself. A mark needs no cordon and no drain of ours: the tool that reboots a marked node does both.
pub(super) fn check(step: &PolicyStep, at: &str, errors: &mut Vec<String>) {
    match step.action {
        ActionType::Reboot => {
            check_care(step, at, "ends every pod of the node", (LEAST, "a machine needs time to boot"), errors);
        }
        ActionType::MarkForReboot => {
            if let Some(with) = step.mark_for_reboot.as_ref().filter(|with| sentinel_name(&with.path).is_none()) {
                errors.push(format!(
                    "{at}.markForReboot.path: expected a file directly in /run with reboot in its name, such as /run/reboot-required \
                     (/var/run is the same folder), at most 69 letters, digits, dots, dashes and underscores, found {:?}",
                    with.path
                ));
            }
            let slow = "the tool that reboots the node checks for the file now and then, in its windows only (kured once an hour, as shipped)";
            check_care(step, at, "has another tool end every pod of the node", (LEAST_MARK, slow), errors);
        }
        _ => {}
    }
}

/// Checks that somebody has decided on the approval, that the step is tried once, and that it has the time it takes.
fn check_care(step: &PolicyStep, at: &str, harm: &str, (least, slow): (Duration, &str), errors: &mut Vec<String>) {
    let action = step.action.as_str();
    if step.approval.is_none() {
        errors.push(format!(
            "{at}.approval: {action} {harm}, so it has no default: write approval: Manual or approval: Automatic"
        ));
    }
    if step.max_attempts != 1 {
        errors.push(format!("{at}.maxAttempts: {action} is tried once, found {}", step.max_attempts));
    }
    if step.timeout.get() < least {
        let (minutes, found) = (least.as_secs() / 60, step.timeout);
        // Nobody finds a number in a file that does not have it.
        let unset = if found == default_timeout() { ", the default where timeout is not set" } else { "" };
        errors.push(format!("{at}.timeout: {slow}, expected at least {minutes}m with {action}, found {found}{unset}"));
    }
}

/// Whether each reboot of a rule has a cordon before it, and a drain unless it is done without. Both must run where the reboot runs.
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
