//! The explanation as text.

use std::fmt::Write;

use super::objects::Told;
use super::report::{collectors, seen};
use crate::core::fault::{Fault, FaultState};
use crate::core::plan::{Effect, Health, Operation, Plan};
use crate::core::policy::{Action, Policy, Rule};
use crate::core::snapshot::Snapshot;

/// Most objects that are named which cannot be used.
const MOST_INVALID: usize = 20;

/// The explanation of one node. Writing to a string cannot fail, so its results are not looked at.
pub(super) fn explanation(node: &str, snapshot: &Snapshot, decided: &Plan, told: &Told, invalid: &[String]) -> String {
    let mut out = String::new();
    let outlook = decided.nodes.get(node).cloned().unwrap_or_default();
    let beyond: Vec<&Fault> =
        told.faults.iter().filter(|f| !outlook.cluster_faults.iter().any(|own| own.id == f.id)).collect();
    let health = match &told.summary {
        Some(summary) if !beyond.is_empty() => summary.health,
        _ if beyond.iter().any(|fault| fault.state == FaultState::Confirmed) => Health::Unhealthy,
        _ => outlook.health,
    };
    let _ = writeln!(out, "node {node}: {health:?}");
    if let Some(why) = unused(node, snapshot) {
        let _ = writeln!(out, "  {why}");
    }
    if let Some(beat) = snapshot.reports.get(node).and_then(|report| report.heartbeat.as_ref()) {
        let can = if beat.actions_enabled { "executes commands" } else { "only reports" };
        let _ = writeln!(
            out,
            "  probe: last heard of {} s ago, the next report promised within {} s; {can}",
            beat.arrived.as_secs(),
            beat.interval.as_secs()
        );
    } else {
        let what = if told.is_unreadable { "what it reports cannot be read" } else { "has never reported" };
        let _ = writeln!(out, "  probe: {what}, so nothing is known and nothing is done");
    }
    for line in &told.missing {
        let _ = writeln!(out, "  missing: {line}");
    }
    collectors(&mut out, &told.blind);
    for line in invalid.iter().take(MOST_INVALID) {
        let _ = writeln!(out, "  {line}");
    }
    if let Some(more) = invalid.len().checked_sub(MOST_INVALID).filter(|more| *more > 0) {
        let _ = writeln!(out, "  and {more} more that cannot be used");
    }
    if let Some(flap) = snapshot.flaps.get(node).filter(|flap| flap.flapping.is_some()) {
        let _ = writeln!(out, "  the node flaps: {}", flap.told());
        let _ = writeln!(
            out,
            "    match.minDuration adds up the times in which a fault was present, without short gaps; only the controller has seen those: a fault that is blocked here as MinDurationNotReached may be due sooner"
        );
    }
    let reported =
        snapshot.reports.get(node).into_iter().flat_map(|report| report.faults.iter().map(|seen| &seen.fault));
    let faults: Vec<&Fault> = reported.chain(&outlook.cluster_faults).collect();
    if faults.is_empty() && beyond.is_empty() {
        let looks = snapshot.reports.get(node).is_some_and(|report| report.heartbeat.is_some());
        let what = match (looks, told.blind.is_empty()) {
            (false, _) => "no fault is known",
            (true, false) => "no fault is suspected, as far as the probe can check",
            (true, true) => "no fault is suspected",
        };
        let _ = writeln!(out, "  {what}");
    }
    for fault in faults {
        one(&mut out, node, fault, snapshot, decided);
    }
    controllers_own(&mut out, &beyond, told);
    for effect in &decided.effects {
        if let Effect::Act { node: target, operation, .. } = effect
            && target == node
        {
            let _ = writeln!(out, "  now: {}", act(operation));
        }
    }
    remediations(&mut out, node, snapshot);
    match decided.next {
        Some(next) => {
            let _ = writeln!(out, "  decided again in {} s at the latest, and at every change", next.as_secs().max(1));
        }
        None => {
            let _ = writeln!(out, "  decided again at the next change");
        }
    }
    out
}

/// Why nothing is decided on the report, if so: without that every fault looks as if no policy wanted it.
fn unused(node: &str, snapshot: &Snapshot) -> Option<String> {
    let Some(view) = snapshot.nodes.get(node) else {
        return Some(format!("Node {node} is not among the objects: without it nothing is decided"));
    };
    let owner = snapshot.reports.get(node)?.node_uid.as_deref();
    (owner != Some(view.uid.as_str())).then(|| {
        let owner = owner.unwrap_or("none");
        format!(
            "the report is not about this Node (expected an owner with uid {}, found {owner}): it is not used",
            view.uid
        )
    })
}

/// Faults that only the controller can find, since it alone reads pods, with what it says of them.
fn controllers_own(out: &mut String, faults: &[&Fault], told: &Told) {
    if faults.is_empty() {
        return;
    }
    for fault in faults {
        let severity = fault.severity.as_str();
        let _ = writeln!(out, "  fault {} ({:?}, {severity}): {}", fault.kind, fault.state, fault.subject);
        let _ = writeln!(out, "    {}", fault.message);
        for line in &fault.evidence {
            let _ = writeln!(out, "    evidence: {line}");
        }
    }
    let _ = writeln!(out, "    found by the controller, which alone reads pods; what it last wrote:");
    let activity =
        told.summary.as_ref().map(|summary| summary.activity.as_str()).filter(|activity| !activity.is_empty());
    for line in activity.into_iter().chain(told.blocked.iter().map(String::as_str)) {
        let _ = writeln!(out, "    {line}");
    }
}

fn one(out: &mut String, node: &str, fault: &Fault, snapshot: &Snapshot, decided: &Plan) {
    seen(out, fault);
    match rule_for(node, fault, snapshot, decided) {
        Some((policy, rule)) => {
            let _ = writeln!(out, "    policy {}, rule {}: {}", policy.name, rule.name, ladder(rule));
        }
        None if unused(node, snapshot).is_some() => {}
        None => {
            let _ = writeln!(out, "    no policy has a rule for it, as far as is known");
        }
    }
    if fault.state != FaultState::Confirmed {
        let _ = writeln!(out, "    blocked: it is not confirmed; a suspicion starts no action");
    }
    for blocked in
        decided.blocked.iter().filter(|blocked| blocked.node == node && blocked.fault_id.as_deref() == Some(&fault.id))
    {
        let _ = writeln!(out, "    blocked ({:?}): {}", blocked.reason, blocked.message);
    }
}

/// The rule that the decision has chosen for a fault, with its policy.
fn rule_for<'s>(node: &str, fault: &Fault, snapshot: &'s Snapshot, decided: &Plan) -> Option<(&'s Policy, &'s Rule)> {
    let remedy = decided.nodes.get(node)?.remedies.get(&fault.id)?;
    let policy = snapshot.policies.iter().find(|policy| policy.name == remedy.policy)?;
    Some((policy, policy.rule(remedy.rule.as_deref()?)?))
}

fn act(operation: &Operation) -> String {
    match operation {
        Operation::Cordon => "Cordon".to_owned(),
        Operation::Taint(effect) => format!("Taint({})", effect.as_str()),
        Operation::Drain(_) => "Drain".to_owned(),
        Operation::DeletePod(pod) => format!("DeletePod {pod}"),
        Operation::RunJob(order) => format!("{} by a Job", name(order.action)),
        Operation::GiveOrder(order) => format!("{} by the probe", name(order.action)),
        Operation::HandOff(with) => format!("HandOff by {}", with.remediation_template),
        Operation::Notify(message) => format!("Notify: {message}"),
    }
}

const fn name(action: crate::core::order::NodeAction) -> &'static str {
    use crate::core::order::NodeAction;
    match action {
        NodeAction::ReleaseCont => "ReleaseHungProcess (SIGCONT)",
        NodeAction::ReleaseKill => "ReleaseHungProcess (SIGKILL)",
        NodeAction::CleanupOrphans => "CleanupOrphans",
        NodeAction::RestartKubelet => "RestartKubelet",
        NodeAction::RestartRuntime => "RestartRuntime",
        NodeAction::Reboot => "Reboot",
        NodeAction::MarkForReboot => "MarkForReboot",
    }
}

fn ladder(rule: &Rule) -> String {
    let step = |action: &Action| match action {
        Action::ReleaseHungProcess { signal, .. } => format!("ReleaseHungProcess ({})", signal.as_str()),
        Action::HandOff(with) => format!("HandOff ({})", with.remediation_template.object_kind()),
        Action::Taint(effect) => format!("Taint ({})", effect.as_str()),
        other => other.kind().as_str().to_owned(),
    };
    rule.steps.iter().map(|one| step(&one.action)).collect::<Vec<_>>().join(" → ")
}

fn remediations(out: &mut String, node: &str, snapshot: &Snapshot) {
    let mut mine: Vec<_> = snapshot.remediations.values().filter(|remediation| remediation.node == node).collect();
    mine.sort_by_key(|remediation| std::cmp::Reverse(remediation.started_at));
    for manual in snapshot.manual_requests.values().filter(|manual| manual.node == node).take(5) {
        let (name, policy, phrase) = (&manual.name, &manual.policy, manual.phrase());
        let _ = writeln!(out, "  manual request {name} ({policy}, Pending): {phrase}; {}", manual.message);
    }
    for remediation in mine.into_iter().take(5) {
        let _ = writeln!(
            out,
            "  remediation {} ({}, {}): {}",
            remediation.name,
            remediation.policy,
            remediation.phase.as_str(),
            remediation.message
        );
        for step in &remediation.steps {
            let _ = writeln!(
                out,
                "    {} {:?} by {:?}: {:?} {}",
                step.scheduled_at, step.action, step.executor, step.state, step.message
            );
            if !step.executor_reason.is_empty() {
                let _ = writeln!(out, "      executor: {}", step.executor_reason);
            }
        }
    }
}
