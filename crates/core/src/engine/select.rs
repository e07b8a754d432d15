//! The steps of a rule: which step is next for a fault, whether it may be taken now, and which executor takes it.

use crate::context::{Block, NodeContext, ObservedFault, Probe, unreadable};
use crate::plan::{BlockReason, Operation};
use std::time::Duration;

use super::{
    Ctx, cause, drain, executors, hand_off, limits, mark, readiness, reboot, recurrence, refused, restart, safeguards,
    taint,
};
use crate::command::{ActionCommand, CommandAction, Signal};
use crate::fault::Fault;
use crate::faults::ShowsIn;
use crate::moment::{clock, since};
use crate::policy::Applicability;
use crate::policy::{Action, ActionType, Daemon, Mode, OnFailure, Policy, Rule, RuleMatch, Step};
use crate::reboot as of_reboot;
use crate::remediation::{Executor, Remediation, RemediationFault, StepRecord, StepState};
use crate::window;

/// How often the engine tries a step again at no cost when only its target had changed.
const FREE_TRIES: usize = 5;
/// Least time between a refusal for a changed target and the next try.
const FREE_WAIT: Duration = Duration::from_secs(10);

/// Checks whether the action can do anything about the fault at all; if not, returns why.
pub(super) fn applies(action: &Action, fault: &Fault, facts: &NodeContext<'_>) -> Result<(), &'static str> {
    let remedy = &fault.kind.spec().remedy;
    match action {
        Action::Notify { .. } => Ok(()),
        Action::ReleaseHungProcess { .. } => remedy.hung_process.map(drop),
        Action::CleanupOrphans => remedy.leftover,
        Action::Restart { daemon, .. } => (remedy.restart)(&fault.subject).of(*daemon),
        Action::Reboot(_) => remedy.new_boot,
        Action::MarkForReboot(_) => of_reboot::marking_helps(fault.kind),
        Action::HandOff(_) => remedy.other_machine,
        Action::Taint(effect) if remedy.new_pod.is_ok() && effect.repels_daemon_sets() => Err(
            "with NoSchedule no successor of a DaemonSet's pod would come to the node, as one comes with PreferNoSchedule",
        ),
        Action::Cordon(_) | Action::Taint(_) | Action::Drain(_) => remedy.fewer_pods,
        Action::DeletePod => {
            remedy.new_pod?;
            if safeguards::is_being_deleted(facts, fault) && safeguards::hung_process(facts, fault).is_none() {
                return Err("the pod is being deleted already");
            }
            Ok(())
        }
    }
}

/// Checks whether a cordon, taint or drain serves a remediating step that can do something about this fault. Without such a step
/// the node is not quarantined. The check does not apply to a rule without remediating steps, nor to a rule that keeps the
/// cordon: the author of such a rule wants the cordon for itself.
fn containing_helps(step: &Step, rule: &Rule, fault: &Fault, facts: &NodeContext<'_>) -> Result<(), &'static str> {
    let mut healing = rule.steps.iter().filter(|step| step.heals()).map(|step| &step.action).peekable();
    let is_for_healing = match step.action {
        Action::Cordon(keep) => keep.is_none(),
        Action::Taint(_) | Action::Drain(_) => !rule.keeps_cordon(),
        _ => false,
    };
    // A restart that was awaited in vain does not help either.
    let helps =
        |action| applies(action, fault, facts).is_ok() && restart::require_waiting(action, fault, facts, rule).is_ok();
    if !is_for_healing || healing.peek().is_none() || healing.any(helps) {
        return Ok(());
    }
    Err("no step of the rule can resolve it, so the node is not cordoned, tainted or drained for it")
}

/// Whether a step counts as failed if it resolved a fault that came back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Recurrence<'c> {
    Counts(Ctx<'c>),
    Ignored,
}

impl<'c> Recurrence<'c> {
    /// Returns what applies to this remediation. A person who makes a manual request knows what has been done.
    pub fn of(ctx: Ctx<'c>, remediation: Option<&Remediation>) -> Self {
        if remediation.is_some_and(|remediation| remediation.manual.is_some()) {
            Self::Ignored
        } else {
            Self::Counts(ctx)
        }
    }
}

/// Whether a later remediating step may be taken now, without approval. The engine does not give up what has helped for a while
/// for a step that is blocked, impossible, or waiting for a person.
fn is_more(ctx: Ctx<'_>, facts: &NodeContext<'_>, fault: &Fault, standing: &RemediationFault, rule: &Rule) -> bool {
    let (Some(seen), Some(policy)) = (facts.find(&fault.id), facts.policy_for(fault)) else { return false };
    let above = usize::try_from(standing.step_index).map_or(usize::MAX, |step_index| step_index.saturating_add(1));
    for step in rule.steps.iter().skip(above).filter(|step| step.acts()) {
        if drain::unavailable(ctx, facts, &step.action).is_some() {
            return false;
        }
        if step.heals() && applies(&step.action, fault, facts).is_ok() {
            let may = || may_take(ctx, facts, policy, seen, rule, step, EvidenceRequirement::Fresh).is_ok();
            return !step.needs_approval() && hand_off::unavailable(ctx, &step.action).is_none() && may();
        }
    }
    false
}

/// Selects the next step for the fault, by what counts of its past. Returns `None` where no step of the rule is left.
pub(super) fn select_step<'r>(
    relapse: Recurrence<'_>,
    standing: &mut RemediationFault,
    rule: &'r Rule,
    remediation: Option<&Remediation>,
    facts: &NodeContext<'_>,
    fault: Option<&Fault>,
    notes: &mut Vec<String>,
) -> Option<&'r Step> {
    let spent = |standing: &RemediationFault, step: &Step| match relapse {
        Recurrence::Counts(ctx) => {
            let fault = fault?;
            let policy = facts.policy_for(fault)?;
            recurrence::spent_reason(facts, standing, policy, step)
                .filter(|_| is_more(ctx, facts, fault, standing, rule))
        }
        Recurrence::Ignored => None,
    };
    loop {
        let step = rule.steps.get(usize::try_from(standing.step_index).ok()?)?;
        if is_used_up(standing, step, remediation) {
            if let Some(why) = notify_only_reason(standing, step, remediation) {
                let (number, action) = (standing.step_index + 1, step.action.kind().as_str());
                notes.push(format!("step {number} {action} of rule {} {why}, and nothing harsher follows", rule.name));
                standing.step_index = rule.next_notify_step(standing.step_index + 1);
            } else {
                standing.step_index += 1;
            }
            continue;
        }
        if let Some(why) = spent(standing, step) {
            notes.push(left_out(standing, rule, step, &why));
            standing.step_index += 1;
            continue;
        }
        let useful = fault.map_or(Ok(()), |fault| {
            applies(&step.action, fault, facts)?;
            restart::require_waiting(&step.action, fault, facts, rule)?;
            hand_off::require_untried(&step.action, remediation)?;
            reboot::require_untried(step, remediation)?;
            containing_helps(step, rule, fault, facts)
        });
        match useful {
            Ok(()) => return Some(step),
            Err(why) => {
                notes.push(left_out(standing, rule, step, why));
                standing.step_index += 1;
            }
        }
    }
}

/// Returns the note that the step is not for the fault.
fn left_out(standing: &RemediationFault, rule: &Rule, step: &Step, why: &str) -> String {
    let (number, action) = (standing.step_index + 1, step.action.kind().as_str());
    format!("step {number} {action} of rule {} left out for {}: {why}", rule.name, standing.kind)
}

fn is_used_up(standing: &RemediationFault, step: &Step, remediation: Option<&Remediation>) -> bool {
    let Some(remediation) = remediation else { return false };
    // A cordon lasts for the whole remediation, unless a remediator has made the node schedulable again.
    let is_lasting = remediation.cleanup.uncordoned_at.is_none();
    let kind = step.action.kind();
    if kind.marks() && (is_lasting || kind == ActionType::Taint) && remediation.marked_at(kind).is_some() {
        // The record has to say that a stricter taint was wanted.
        return taint::skip_reason(remediation, step).is_none();
    }
    if drain::is_done(step, Some(remediation)) {
        return true;
    }
    let (mut used, mut free) = (0_u32, 0_usize);
    for record in attempts(remediation, standing) {
        match record.state {
            _ if record.is_free() => free += 1,
            _ if record.is_refused_call() => {}
            // A dry-run step that is recorded is used up.
            StepState::Simulated if step.mode == Mode::DryRun => return true,
            StepState::Cancelled | StepState::Simulated => {}
            state if state.is_final() => used += 1,
            _ => {}
        }
    }
    used >= step.max_attempts || free >= FREE_TRIES || is_refused(standing, remediation)
}

/// Why only notifications follow a step that is used up. `None` = the next step follows, as after a cordon, a taint or a drain.
fn notify_only_reason(
    standing: &RemediationFault,
    step: &Step,
    remediation: Option<&Remediation>,
) -> Option<&'static str> {
    if step.mode != Mode::Enforce || step.action.kind().marks() || drain::is_done(step, remediation) {
        return None;
    }
    if remediation.is_some_and(|remediation| is_refused(standing, remediation)) {
        return Some("is refused by the API server");
    }
    (step.on_failure == OnFailure::Stop).then_some("has failed (onFailure: Stop)")
}

/// Whether the API server has refused the step in a row as often as the engine tries it.
fn is_refused(standing: &RemediationFault, remediation: &Remediation) -> bool {
    attempts(remediation, standing).rev().take_while(|record| record.is_refused_call()).count() >= refused::TRIES
}

fn attempts<'e>(
    remediation: &'e Remediation,
    standing: &RemediationFault,
) -> impl DoubleEndedIterator<Item = &'e StepRecord> {
    let (id, step_index) = (standing.id.clone(), standing.step_index);
    remediation.steps.iter().filter(move |record| record.fault_id == id && record.step_index == step_index)
}

/// Checks that the evidence is good enough to act on: the probe reports, about this node, and has checked recently.
pub(super) fn evidence(facts: &NodeContext<'_>, seen: &ObservedFault<'_>, ctx: Ctx<'_>) -> Result<(), Block> {
    let fault = &seen.fault;
    if fault.kind.spec().shows_in == ShowsIn::Heartbeats {
        return Ok(());
    }
    match facts.probe {
        Probe::Reporting => {}
        Probe::WrongNode => {
            let message = format!("the report on {} is about another node of that name", facts.name);
            return Err(Block::new(BlockReason::NodeReplaced, &message));
        }
        Probe::Never | Probe::Missed | Probe::Silent => {
            let message = format!(
                "{}: the probe of {} has missed its promised heartbeat, so its state is unknown; blocked until it reports again",
                fault.kind, facts.name
            );
            return Err(Block::new(BlockReason::ProbeNotReporting, &message));
        }
    }
    let limit = ctx.settings.evidence_max_age;
    if seen.looked > limit {
        let message = format!(
            "{} ({}): its last check is older than {}s; a new check was requested",
            fault.kind,
            fault.subject,
            limit.as_secs()
        );
        return Err(Block::new(BlockReason::StaleEvidence, &message).until(Duration::from_secs(5)));
    }
    Ok(())
}

/// How good the evidence has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvidenceRequirement {
    /// The probe reports, and has checked recently.
    Fresh,
    /// The last observation. It is enough to notify people when nobody can check the fault any more.
    Any,
}

/// Checks whether this step may be taken on this fault now, and returns its executor.
pub(super) fn may_take(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    policy: &Policy,
    seen: &ObservedFault<'_>,
    rule: &Rule,
    step: &Step,
    look: EvidenceRequirement,
) -> Result<Executor, Block> {
    unreadable::may_begin(facts)?;
    // The window comes before the evidence: no harsher step replaces one that waits for its window, or for a person.
    in_window(ctx, policy, step)?;
    if step.disturbs() {
        of_node(ctx, facts, policy)?;
    }
    still_asked_for(facts, policy, rule, &seen.fault, step)?;
    match evidence(facts, seen, ctx) {
        Err(block) if look == EvidenceRequirement::Any && block.awaits_look() => {}
        looked => looked?,
    }
    if !matches!(step.action, Action::Notify { .. }) {
        may_be_touched(facts, &seen.fault)?;
    }
    match &step.action {
        Action::Cordon(_) | Action::Taint(_) | Action::Notify { .. } => Ok(Executor::Controller),
        Action::HandOff(with) => {
            hand_off::require_proof(ctx, with)?;
            hand_off::admit(ctx, facts, with).map(|()| Executor::Controller)
        }
        Action::Drain(with) => drain::may_begin(ctx, facts, policy, &seen.fault, with).map(|()| Executor::Controller),
        Action::DeletePod => safeguards::delete_pod(ctx, facts, seen, rule, step).map(|()| Executor::Controller),
        Action::ReleaseHungProcess { signal, allow_running_pods } => {
            named_target(facts, &seen.fault)?;
            safeguards::release(ctx, &seen.fault, *signal, *allow_running_pods)?;
            Ok(executors::choose(facts).0)
        }
        Action::CleanupOrphans => {
            named_target(facts, &seen.fault)?;
            Ok(executors::choose(facts).0)
        }
        // The probe always executes these. Nobody could report the end of a Job while the kubelet is away, and the runtime may
        // take a Job down with it.
        Action::Reboot(_) | Action::MarkForReboot(_) => {
            named_target(facts, &seen.fault)?;
            reboot::admit(ctx, facts, &step.action).map(|()| Executor::Probe)
        }
        Action::Restart { daemon, with } => {
            restart::require_safe(facts, &seen.fault, *daemon, with).map(|()| Executor::Probe)
        }
    }
}

/// Checks that the rule still applies to the fault. Another tool may have changed the reason to one that only another rule names.
/// The pod may have other labels by now, and the node another kubelet. No rule that takes precedence may turn out to apply as
/// well. Unknown data never prevents a notification.
pub(super) fn still_asked_for(
    facts: &NodeContext<'_>,
    policy: &Policy,
    rule: &Rule,
    fault: &Fault,
    step: &Step,
) -> Result<(), Block> {
    if fault.kind.spec().shows_in == ShowsIn::Condition && !rule.is_for(fault) {
        let message =
            format!("{} ({}): its reason now is none that rule {} names", fault.kind, fault.subject, rule.name);
        return Err(Block::new(BlockReason::NotConfirmed, &message));
    }
    match policy.still_means(rule, fault, &facts.around) {
        Applicability::No(why) => {
            let message =
                format!("{} ({}): rule {} is not for it any more: {why}", fault.kind, fault.subject, rule.name);
            Err(Block::new(BlockReason::NotConfirmed, &message))
        }
        Applicability::Other(other) => {
            let message = format!(
                "{} ({}) is for rule {} of policy {} by now, which goes before rule {}",
                fault.kind, fault.subject, other.name, policy.name, rule.name
            );
            Err(Block::new(BlockReason::NotConfirmed, &message))
        }
        _ if matches!(step.action, Action::Notify { .. }) => Ok(()),
        Applicability::Perhaps(other, lack) => Err(readiness::doubtful(policy, other, fault, &lack)),
        Applicability::Yes => {
            let Some(first) = facts.policy_for(fault) else { return Ok(()) };
            match facts.rule_of(first, fault) {
                RuleMatch::Perhaps(other, lack) => Err(readiness::doubtful(first, other, fault, &lack)),
                RuleMatch::Rule(_) | RuleMatch::Nothing => Ok(()),
            }
        }
    }
}

/// Checks whether the policy may act on the node once more.
fn of_node(ctx: Ctx<'_>, facts: &NodeContext<'_>, policy: &Policy) -> Result<(), Block> {
    let (limit, now) = (policy.limits.per_node, ctx.snapshot.now);
    let Some(spent) = limits::spent(facts, policy, now, ctx.settings.answer_within) else { return Ok(()) };
    let message = if spent.is_slow {
        format!(
            "node {} has kept policy {} waiting for its answers for a quarter of {} min or more (limits.perNode); the turn is \
             the other nodes', not its own again before {}",
            facts.name,
            policy.name,
            limit.window.as_secs() / 60,
            clock(spent.until)
        )
    } else {
        format!(
            "node {} got {} actions within {} min by policy {} (limits.perNode); the next one not before {}",
            facts.name,
            spent.actions,
            limit.window.as_secs() / 60,
            policy.name,
            clock(spent.until)
        )
    };
    Err(Block::new(BlockReason::NodeLimit, &message).until(since(spent.until, now).min(limit.window)))
}

/// Checks whether a window of the policy is open for such a step now.
fn in_window(ctx: Ctx<'_>, policy: &Policy, step: &Step) -> Result<(), Block> {
    let Some(shut) = window::shut(&policy.windows, step.action.kind(), ctx.snapshot.now) else { return Ok(()) };
    let block = Block::new(BlockReason::OutsideWindow, &format!("policy {}: {}", policy.name, shut.message));
    Err(match shut.until {
        Some(until) => block.until(until),
        None => block,
    })
}

/// Checks whether the node's probe may act. Where actions are disabled, or the probe's self-check failed, nothing acts on the
/// node, whichever executor would do it.
pub(super) fn may_be_touched(facts: &NodeContext<'_>, fault: &Fault) -> Result<(), Block> {
    let heartbeat = facts.report.and_then(|report| report.heartbeat.as_ref());
    if heartbeat.is_some_and(|heartbeat| heartbeat.actions_enabled) {
        return Ok(());
    }
    let message = format!(
        "{} on {}: no action is executed on this node, since actions are disabled there (--allow-actions is off, or the self-check of its probe failed)",
        fault.kind, facts.name
    );
    Err(Block::new(BlockReason::ActionsDisabled, &message))
}

fn named_target(facts: &NodeContext<'_>, fault: &Fault) -> Result<(), Block> {
    if (fault.kind.spec().names)(&fault.target) {
        return Ok(());
    }
    let message =
        format!("{} ({}) on {}: the probe does not say which object to touch", fault.kind, fault.subject, facts.name);
    Err(Block::new(BlockReason::ActionsDisabled, &message))
}

/// Checks whether the cool-down after the step's last attempt is over.
pub(super) fn cooled_down(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    remediation: &Remediation,
    standing: &RemediationFault,
    step: &Step,
) -> Result<(), Block> {
    let Some(last) = attempts(remediation, standing).rev().find(|record| record.state.is_final()) else {
        return Ok(());
    };
    let Some(finished) = last.finished_at else { return Ok(()) };
    let age = since(ctx.snapshot.now, finished);
    let wait = if last.is_free() { step.cooldown.min(FREE_WAIT) } else { step.cooldown };
    let has_later_report = facts.arrived().is_some_and(|arrived| arrived < age);
    // A probe that becomes unresponsive meanwhile must not block the step, and with it the policy's slot, for ever. After the
    // block timeout the evidence check itself blocks the step, for no longer than anything may be blocked.
    let patience = ctx.block_timeout(step);
    if age >= wait && (!last.is_free() || has_later_report || age >= patience) {
        return Ok(());
    }
    if age >= wait {
        let message = format!(
            "{} on {}: after {} a new report of the probe is awaited",
            standing.kind,
            facts.name,
            last.phrase()
        );
        return Err(Block::new(BlockReason::Cooldown, &message).until(patience.saturating_sub(age)));
    }
    let until = finished.checked_add(wait).unwrap_or(finished);
    let message = format!(
        "{} on {}: {} waits for its cool-down until {}",
        standing.kind,
        facts.name,
        last.phrase(),
        clock(until)
    );
    Err(Block::new(BlockReason::Cooldown, &message).until(wait.saturating_sub(age)))
}

/// Returns the operation of a reserved step.
pub(super) fn operation(
    ctx: Ctx<'_>,
    facts: &NodeContext<'_>,
    record: &StepRecord,
    fault: &Fault,
    step: &Step,
) -> Option<Operation> {
    let mut allow = false;
    let action = match &step.action {
        Action::Cordon(_) => return Some(Operation::Cordon),
        Action::Taint(effect) => return Some(Operation::Taint(*effect)),
        Action::Drain(with) => return Some(Operation::Drain(with.clone())),
        Action::DeletePod => return record.target.pod.clone().map(Operation::DeletePod),
        Action::HandOff(with) => return Some(Operation::HandOff(with.clone())),
        Action::Notify { message } => {
            let is_fresh = facts.find(&fault.id).is_some_and(|seen| evidence(facts, seen, ctx).is_ok());
            let unlooked = match is_fresh {
                _ if cause::not_looked_for(facts, fault) => " (nobody has checked its cause)",
                true => "",
                false => " (nobody could check it since)",
            };
            // The message of a policy assumes that its steps were executed.
            let refused = refused::not_executed(facts, record);
            let message = refused.as_deref().or(message.as_deref());
            return Some(Operation::Notify(notice(facts.name, fault, message, unlooked)));
        }
        Action::CleanupOrphans => CommandAction::CleanupOrphans,
        Action::Reboot(_) => CommandAction::Reboot,
        Action::MarkForReboot(_) => CommandAction::MarkForReboot,
        Action::Restart { daemon: Daemon::Kubelet, .. } => CommandAction::RestartKubelet,
        Action::Restart { daemon: Daemon::Runtime, .. } => CommandAction::RestartRuntime,
        Action::ReleaseHungProcess { signal, allow_running_pods } => {
            allow = *allow_running_pods || safeguards::is_terminating(ctx, fault);
            match signal {
                Signal::Cont => CommandAction::ReleaseCont,
                Signal::Kill => CommandAction::ReleaseKill,
            }
        }
    };
    let order = ActionCommand {
        operation_id: record.operation_id.clone(),
        epoch: ctx.snapshot.epoch,
        node: facts.name.to_owned(),
        action,
        allow_running_pods: allow,
        fault_id: record.fault_id.clone(),
        fault_type: fault.kind,
        target: record.target.clone(),
        restart: record.restart.clone(),
        boot_id: record.boot_id.clone(),
        reboot_marker: mark::order(record, step),
        // Every repetition has the same time: a repeated command is the same command.
        issued_at: record.scheduled_at,
        ttl_seconds: ctx.settings.order_ttl_seconds,
    };
    Some(match record.executor {
        Executor::Job => Operation::RunJob(order),
        Executor::Probe | Executor::Controller => Operation::GiveCommand(order),
    })
}

fn notice(node: &str, fault: &Fault, message: Option<&str>, unlooked: &str) -> String {
    let more = message.map_or_else(String::new, |message| format!(" — {message}"));
    let text = format!("node {node}: {} ({}): {}{unlooked}{more}", fault.kind, fault.subject, fault.message);
    crate::text::bounded(&text, crate::fault::MAX_LINE * 2)
}
