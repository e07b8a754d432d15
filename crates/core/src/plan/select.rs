//! The ladder of a rule: which step is next for a fault, whether it may be taken now, and by whom.

use std::time::Duration;

use super::evidence::{NodeContext, ObservedFault, Probe};
use super::{
    Block, BlockReason, Ctx, Operation, cause, drain, executors, hand_off, limits, mark, readiness, reboot, recurrence,
    refused, restart, safeguards, taint, unreadable,
};
use crate::command::{ActionCommand, CommandAction, Restart, Signal};
use crate::fault::Fault;
use crate::faults::ShowsIn;
use crate::moment::{clock, since};
use crate::policy::Applicability;
use crate::policy::{Action, ActionType, Daemon, Mode, OnFailure, Policy, Rule, RuleMatch, Step};
use crate::reboot as of_reboot;
use crate::remediation::{Executor, Remediation, RemediationFault, StepRecord, StepState};
use crate::window;

/// How often a step is tried again for nothing when only its target had changed.
const FREE_TRIES: usize = 5;
/// Least time between a refusal for a changed target and the next try.
const FREE_WAIT: Duration = Duration::from_secs(10);

/// Whether the action can do anything about the fault at all; if not, why.
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

/// A node is not cordoned or drained for the sake of healing steps none of which can do anything about this fault. A rule without
/// any is another matter, and so is one that keeps it: who writes such a one wants the cordon for itself.
fn containing_helps(step: &Step, rule: &Rule, fault: &Fault, facts: &NodeContext<'_>) -> Result<(), &'static str> {
    let mut healing = rule.steps.iter().filter(|step| step.heals()).map(|step| &step.action).peekable();
    let is_for_healing = match step.action {
        Action::Cordon(keep) => keep.is_none(),
        Action::Taint(_) | Action::Drain(_) => !rule.keeps_cordon(),
        _ => false,
    };
    // Nor for a restart that was waited for in vain.
    let helps =
        |action| applies(action, fault, facts).is_ok() && restart::require_waiting(action, fault, facts, rule).is_ok();
    if !is_for_healing || healing.peek().is_none() || healing.any(helps) {
        return Ok(());
    }
    Err("no step of the rule can resolve it, so the node is not cordoned, tainted or drained for it")
}

/// Whether what has healed a fault that came back is an attempt that has failed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Recurrence<'c> {
    Counts(Ctx<'c>),
    Ignored,
}

impl<'c> Recurrence<'c> {
    /// As it is in this remediation: who starts a step by hand knows what has been done.
    pub fn of(ctx: Ctx<'c>, remediation: Option<&Remediation>) -> Self {
        if remediation.is_some_and(|remediation| remediation.manual.is_some()) {
            Self::Ignored
        } else {
            Self::Counts(ctx)
        }
    }
}

/// Whether a step above heals that may be taken now, and by nobody's word but the policy's: what has helped for a while is not given
/// up for what is held, cannot be done at all, or waits for a person.
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

/// Moves the fault up to the step that is next for it, by what counts of its past. `None` = its ladder is at an end.
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

/// That the step of this step is not for the fault.
fn left_out(standing: &RemediationFault, rule: &Rule, step: &Step, why: &str) -> String {
    let (number, action) = (standing.step_index + 1, step.action.kind().as_str());
    format!("step {number} {action} of rule {} left out for {}: {why}", rule.name, standing.kind)
}

fn is_used_up(standing: &RemediationFault, step: &Step, remediation: Option<&Remediation>) -> bool {
    let Some(remediation) = remediation else { return false };
    // It lasts for the whole remediation, unless a remediator has opened the node.
    let is_lasting = remediation.cleanup.uncordoned_at.is_none();
    let kind = step.action.kind();
    if kind.marks() && (is_lasting || kind == ActionType::Taint) && remediation.marked_at(kind).is_some() {
        // That a stricter one was wanted is recorded.
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
            // A step that is recorded and not done has had its turn.
            StepState::Simulated if step.mode == Mode::DryRun => return true,
            StepState::Cancelled | StepState::Simulated => {}
            state if state.is_final() => used += 1,
            _ => {}
        }
    }
    used >= step.max_attempts || free >= FREE_TRIES || is_refused(standing, remediation)
}

/// Why only notifications follow on a step that is used up; `None` = the next step does, as after a mark or a drain.
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

/// Whether the API server has refused the step as often in a row as it is tried.
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

/// Whether the evidence is good enough to act on: the probe reports, about this node, and has looked.
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
    /// The probe reports, and has looked lately.
    Fresh,
    /// What was seen last: enough to tell people of it when nobody can look any more.
    Any,
}

/// Whether this step may be taken on this fault now, and in which executor.
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
    // Before the evidence: what has to wait for its hour, or for a person, is not replaced by a harsher step.
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
        // By the probe, always: the end of a Job could not be told while the kubelet is away, and a Job may be among what a
        // runtime takes down with it.
        Action::Reboot(_) | Action::MarkForReboot(_) => {
            named_target(facts, &seen.fault)?;
            reboot::admit(ctx, facts, &step.action).map(|()| Executor::Probe)
        }
        Action::Restart { daemon, with } => {
            restart::require_safe(facts, &seen.fault, *daemon, with).map(|()| Executor::Probe)
        }
    }
}

/// Whether the rule still means it: another tool may have changed its reason to one that only another rule names, the pod may
/// have other labels by now, the node another kubelet; and whether no rule that goes first may turn out to mean it as well. What
/// nobody knows keeps nobody from being told.
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

/// Whether the node may be acted on once more.
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

/// Whether the policy lets such a step be taken at this time of day.
fn in_window(ctx: Ctx<'_>, policy: &Policy, step: &Step) -> Result<(), Block> {
    let Some(shut) = window::shut(&policy.windows, step.action.kind(), ctx.snapshot.now) else { return Ok(()) };
    let block = Block::new(BlockReason::OutsideWindow, &format!("policy {}: {}", policy.name, shut.message));
    Err(match shut.until {
        Some(until) => block.until(until),
        None => block,
    })
}

/// Whether the node's probe may act: where that is switched off, or its self-check failed, the node is only looked at, by
/// whatever hand an act would come.
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

/// Whether the step has to wait after its last attempt.
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
    // A probe that falls silent meanwhile must not hold the step, and with it the policy's slot, for ever: after that the
    // evidence itself holds it, and for no longer than anything is held.
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

/// What a reserved step does.
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
        // The same in every repetition: a repeated order is the same order.
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

/// How an action restarts its daemon.
pub(super) fn restart_with(action: &Action) -> Option<Restart> {
    match action {
        Action::Restart { with, .. } => Some(with.clone()),
        _ => None,
    }
}

/// The signal that an action sends.
pub(super) const fn signal(action: &Action) -> Option<Signal> {
    match action {
        Action::ReleaseHungProcess { signal, .. } => Some(*signal),
        _ => None,
    }
}
