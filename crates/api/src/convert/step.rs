//! One step of a rule, read and checked.

use std::time::Duration;

use super::{drain, reboot};
use crate::HumanDuration;
use crate::policy::{Cordon, PolicyStep, Verify};
use nrh_core::action::{self, Action, ActionParams, ActionType, Quarantine, is_service};
use nrh_core::policy::{ApprovalMode, Step};

/// Default of `approvalTimeout`.
const APPROVED_WITHIN: Duration = Duration::from_hours(1);

/// Default of `cordon.healthyDelay`: how long a fault must stay absent before the controller uncordons the quarantined node.
const HEALTHY_DELAY: Duration = Duration::from_mins(5);

/// The action of a step. `None` if it needs parameters, and the step has none.
pub fn action(step: &PolicyStep) -> Option<Action> {
    step.action.with(&params(step))
}

fn params(step: &PolicyStep) -> ActionParams {
    let release = |with: &crate::policy::ReleaseHungProcess| action::ReleaseHungProcess {
        signal: with.signal,
        allow_running_pods: with.allow_running_pods,
    };
    let taint = |with: &crate::policy::Taint| action::Taint { effect: with.effect.unwrap_or_default() };
    ActionParams {
        cordon: step.cordon.as_ref().map(|cordon| action::Cordon { quarantine: Some(keep(cordon)) }),
        notify: step.notify.as_ref().map(|with| action::Notify { message: with.message.clone() }),
        release_hung_process: step.release_hung_process.as_ref().map(release),
        restart: step.restart.clone(),
        hand_off: step.hand_off.clone(),
        taint: step.taint.as_ref().map(taint),
        drain: step.drain.as_ref().map(drain::read),
        reboot: step.reboot.clone(),
        mark_for_reboot: step.mark_for_reboot.clone(),
    }
}

/// Whether each parameter is one of the step's action.
fn check_params(step: &PolicyStep, at: &str, errors: &mut Vec<String>) {
    use ActionType as A;
    let fields: [(&str, bool, &[ActionType]); 9] = [
        ("releaseHungProcess", step.release_hung_process.is_some(), &[A::ReleaseHungProcess]),
        ("restart", step.restart.is_some(), &[A::RestartKubelet, A::RestartRuntime]),
        ("cordon", step.cordon.is_some(), &[A::Cordon]),
        ("taint", step.taint.is_some(), &[A::Taint]),
        ("drain", step.drain.is_some(), &[A::Drain]),
        ("reboot", step.reboot.is_some(), &[A::Reboot]),
        ("markForReboot", step.mark_for_reboot.is_some(), &[A::MarkForReboot]),
        ("handOff", step.hand_off.is_some(), &[A::HandOff]),
        ("notify", step.notify.is_some(), &[A::Notify]),
    ];
    for (field, _, of) in fields.into_iter().filter(|(_, is_set, of)| *is_set && !of.contains(&step.action)) {
        let of: Vec<&str> = of.iter().map(|action| action.as_str()).collect();
        let (plural, found) = (if of.len() > 1 { "s" } else { "" }, step.action.as_str());
        errors.push(format!("{at}.{field}: goes with action{plural} {}, found {found}", of.join(" and ")));
    }
}

pub(super) fn read(step: &PolicyStep, at: &str, errors: &mut Vec<String>) -> Option<Step> {
    if step.max_attempts == 0 || step.max_attempts > 5 {
        errors.push(format!("{at}.maxAttempts: expected 1 to 5, found {}", step.max_attempts));
    }
    if step.verify.stable_for >= step.timeout {
        let (found, timeout) = (step.verify.stable_for, step.timeout);
        let unset = if found == Verify::default().stable_for { ", the default where it is not set" } else { "" };
        errors.push(format!(
            "{at}.verify.stableFor: expected less than the timeout of {timeout}, found {found}{unset}: the step could never succeed"
        ));
    }
    if step.approval == Some(ApprovalMode::Manual) && step.action.notifies() {
        errors.push(format!("{at}.approval: Notify needs no approval, expected Automatic, found Manual"));
    }
    if step.approval_timeout.is_some() && step.approval != Some(ApprovalMode::Manual) {
        errors.push(format!("{at}.approvalTimeout: goes with approval Manual, without which nobody is asked"));
    }
    check_params(step, at, errors);
    if let Some(unit) = step.restart.as_ref().and_then(|with| with.unit.as_ref()).filter(|unit| !is_service(unit)) {
        errors
            .push(format!("{at}.restart.unit: expected the name of a service such as kubelet.service, found {unit:?}"));
    }
    check_hand_off(step, at, errors);
    drain::check(step, at, errors);
    reboot::check(step, at, errors);
    if step.action == ActionType::ReleaseHungProcess && step.release_hung_process.is_none() {
        errors.push(format!("{at}.releaseHungProcess: needed with action ReleaseHungProcess, with the signal to send"));
    }
    Some(Step {
        action: action(step)?,
        timeout: step.timeout.get(),
        max_attempts: step.max_attempts,
        cooldown: step.cooldown.get(),
        stable_for: step.verify.stable_for.get(),
        on_failure: step.on_failure,
        approval: step.approval.unwrap_or_default(),
        approval_timeout: step.approval_timeout.map_or(APPROVED_WITHIN, HumanDuration::get),
        mode: step.mode,
    })
}

fn keep(cordon: &Cordon) -> Quarantine {
    let healthy_delay = cordon.healthy_delay.map_or(HEALTHY_DELAY, HumanDuration::get);
    Quarantine { quarantine_for: cordon.quarantine_for.get(), healthy_delay }
}

fn check_hand_off(step: &PolicyStep, at: &str, errors: &mut Vec<String>) {
    let is_one = step.action == ActionType::HandOff;
    match &step.hand_off {
        Some(with) if is_one => {
            let problems = with.remediation_template.problems();
            errors.extend(problems.iter().map(|problem| format!("{at}.handOff.remediationTemplate.{problem}")));
        }
        None if is_one => {
            errors.push(format!("{at}.handOff: needed with action HandOff, with the template of the remediator"));
        }
        _ => {}
    }
    if is_one && step.max_attempts != 1 {
        errors.push(format!(
            "{at}.maxAttempts: HandOff is tried once, since its remediator tries by itself; found {}",
            step.max_attempts
        ));
    }
}
