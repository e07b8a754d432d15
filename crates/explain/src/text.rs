//! The explanation as text.

use std::fmt::Write;

use super::explanation::{ExplainedFault, Explanation};
use super::report::{by_probe, collectors, lasting, seen};
use nrh_api::suspension::suspended_everywhere;
use nrh_core::blocked::BlockReason;
use nrh_core::fault::{Fault, FaultState};
use nrh_core::faults::ShowsIn;
use nrh_core::moment::clock;

/// The explanation as text for people. A write to a string cannot fail, so its results are ignored.
pub(super) fn text(explanation: &Explanation<'_>) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "node {}: {:?}", explanation.node, explanation.health);
    if let Some(by) = explanation.suspended {
        let _ = writeln!(out, "  {}", suspended_everywhere(by));
    }
    if let Some(why) = &explanation.excluded {
        let _ = writeln!(out, "  {why}");
    }
    if let Some(why) = &explanation.report_unused {
        let _ = writeln!(out, "  {why}");
    }
    if let Some(probe) = &explanation.probe {
        let can = if probe.actions_enabled { "actions are enabled" } else { "actions are disabled" };
        let (last, interval) = (probe.last_report_seconds, probe.interval_seconds);
        let next = match interval.checked_sub(last) {
            Some(left) => format!("the next one within {}", lasting(left)),
            None => format!("it was expected within {}", lasting(interval)),
        };
        let _ = writeln!(out, "  probe: last report {} ago, {next}; {can}", lasting(last));
    } else {
        let what = if explanation.report_unreadable {
            "its report cannot be read, so its faults are not known"
        } else {
            "it has never reported, so nothing is known and nothing is done"
        };
        let _ = writeln!(out, "  probe: {what}");
    }
    for line in &explanation.missing_capabilities {
        let _ = writeln!(out, "  missing: {line}");
    }
    collectors(&mut out, explanation.collectors.iter().copied());
    for line in &explanation.invalid {
        let _ = writeln!(out, "  {line}");
    }
    if explanation.invalid_omitted > 0 {
        let _ = writeln!(out, "  and {} more that cannot be used", explanation.invalid_omitted);
    }
    if let Some(flapping) = &explanation.flapping {
        let _ = writeln!(out, "  the node flaps: {flapping}");
        let _ = writeln!(
            out,
            "    match.minDuration adds up the times in which a fault was present, without short gaps; only the controller has seen those: a fault that is blocked here as MinDurationNotReached may be due sooner"
        );
    }
    let has_no_fault = explanation.faults.is_empty() && explanation.controller_faults.is_empty();
    if has_no_fault && !explanation.report_unreadable {
        let what = match (&explanation.probe, explanation.collectors.as_slice()) {
            (None, _) => "no fault is known",
            (Some(_), []) => "no fault",
            (Some(_), _) => "no fault, as far as the probe can check",
        };
        let _ = writeln!(out, "  {what}");
    }
    for fault in &explanation.faults {
        one(&mut out, fault, explanation);
    }
    of_the_controller(&mut out, explanation);
    let how = if explanation.controller_is_blocked { "would start now, by these objects" } else { "starts now" };
    for step in &explanation.passed_over {
        let _ = writeln!(out, "  passed over: {step}");
    }
    for action in &explanation.now {
        let _ = writeln!(out, "  {how}: {action}");
    }
    if explanation.controller_is_blocked && !explanation.now.is_empty() && explanation.controller_faults.is_empty() {
        last_written(&mut out, explanation);
    }
    remediations(&mut out, explanation);
    let within = |seconds| format!("within {}, or at any change", lasting(seconds));
    let when = explanation.decided_again_seconds.map_or_else(|| "at the next change".to_owned(), within);
    let _ = writeln!(out, "  the controller decides again {when}");
    out
}

/// Faults that only the controller can find, with its messages about them.
fn of_the_controller(out: &mut String, explanation: &Explanation<'_>) {
    if explanation.controller_faults.is_empty() {
        return;
    }
    for fault in &explanation.controller_faults {
        let severity = fault.severity.as_str();
        let _ = writeln!(out, "  fault {} ({:?}, {severity}): {}", fault.kind, fault.state, fault.subject);
        let _ = writeln!(out, "    {}", fault.message);
        for line in &fault.evidence {
            let _ = writeln!(out, "    evidence: {line}");
        }
    }
    let _ = writeln!(out, "    found by the controller, which alone reads pods");
    last_written(out, explanation);
}

fn last_written(out: &mut String, explanation: &Explanation<'_>) {
    let _ = writeln!(out, "    what the controller last wrote:");
    for line in &explanation.controller_messages {
        let _ = writeln!(out, "    {line}");
    }
}

/// Since when a fault is known, and to whom. The age of one that the controller finds is in no object.
fn since(fault: &Fault, explanation: &Explanation<'_>) -> String {
    let last = explanation.probe.as_ref().map(|probe| lasting(probe.last_report_seconds));
    match last.filter(|_| fault.kind.spec().shows_in == ShowsIn::Heartbeats) {
        Some(last) => format!("found by the controller, last report {last} ago"),
        None if fault.kind.is_cluster_fault() => "found by the controller".to_owned(),
        None => by_probe(fault),
    }
}

fn one(out: &mut String, explained: &ExplainedFault<'_>, explanation: &Explanation<'_>) {
    seen(out, explained.fault, &since(explained.fault, explanation));
    match (explained.policy, explained.rule) {
        (Some(policy), Some(rule)) => {
            let _ = writeln!(out, "    policy {policy}, rule {rule}: {}", explained.steps.join(" → "));
        }
        _ if explanation.report_unused.is_some() => {}
        _ => {
            let _ = writeln!(out, "    no known policy has a rule for it");
        }
    }
    if explained.fault.state != FaultState::Confirmed {
        let _ = writeln!(out, "    blocked (NotConfirmed): {}", not_confirmed(explained.fault.state));
    }
    for blocked in &explained.blocked {
        let _ = writeln!(out, "    blocked ({:?}): {}", blocked.reason, blocked.message);
    }
    let may_be_missing = |reason| matches!(reason, BlockReason::NoPolicy | BlockReason::NoRule);
    let unusable = explanation.unusable_policies.join(", ");
    if explained.blocked.iter().any(|blocked| may_be_missing(blocked.reason)) && !unusable.is_empty() {
        let _ = writeln!(out, "    not considered, since not valid: {unusable}");
    }
}

/// Why nothing starts for a fault in this state.
const fn not_confirmed(state: FaultState) -> &'static str {
    match state {
        FaultState::Clearing => "the last check found it gone; the next one decides",
        FaultState::Suspected | FaultState::Confirmed => "it is not confirmed yet; a suspicion starts no action",
    }
}

fn remediations(out: &mut String, explanation: &Explanation<'_>) {
    for manual in &explanation.manual_requests {
        let (name, policy) = (manual.name, manual.policy);
        let _ = writeln!(out, "  manual request {name} ({policy}, Pending): {}; {}", manual.request, manual.message);
    }
    for remediation in &explanation.remediations {
        let (name, policy, phase) = (remediation.name, remediation.policy, remediation.phase.as_str());
        let ended = remediation.finished_at.map_or_else(String::new, |at| format!(" {}", clock(at)));
        let _ = writeln!(out, "  remediation {name} ({policy}, {phase}{ended}): {}", remediation.message);
        for step in remediation.attempts {
            let ended = step.finished_at.map_or_else(String::new, |at| format!(" {}", clock(at)));
            let message = if step.message.is_empty() { String::new() } else { format!(": {}", step.message) };
            let (began, what) = (clock(step.scheduled_at), step.phrase());
            let _ = writeln!(out, "    {began} {what} by {:?}: {:?}{ended}{message}", step.executor, step.state);
            if !step.executor_reason.is_empty() {
                let _ = writeln!(out, "      why {}", step.executor_reason);
            }
        }
    }
}
