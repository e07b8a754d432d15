//! Advances the current step: reserved, then started, then verified.

use std::time::Duration;

use jiff::Timestamp;

use super::update::RemediationUpdate;
use super::{PolicyContext, approval, attempt, ending, rounds};
use crate::command::{Outcome, OutcomeReason, OutcomeState};
use crate::context::{ClearCheck, NodeContext, Probe, of_policy};
use crate::moment::since;
use crate::plan::BlockReason;
use crate::procedure::{self, Expiry, Poll, Verification, executors};
use crate::remediation::{Executor, Remediation, Resolution, StepRecord, StepState};
use crate::snapshot::JobView;

/// Records what the node and its objects prove about the latest attempts: that one has begun, and how one has ended.
pub(super) fn observe(node: &NodeContext<'_>, remediation: &mut Remediation) {
    // Another machine of that name proves nothing.
    if node.view.is_none_or(|view| view.uid != remediation.node_uid) {
        return;
    }
    take_late_answer(node, remediation);
    let Some(record) = remediation.current_step().cloned() else { return };
    if matches!(record.state, StepState::Scheduled | StepState::Started) {
        take_answer(node, remediation, &record.operation_id);
        if let Some(step) = remediation.current_step_mut() {
            procedure::of(&record.action).observe(node, step);
        }
    }
}

pub(super) fn move_on(cx: PolicyContext<'_>, update: &mut RemediationUpdate) {
    let Some(record) = update.remediation.current_step().cloned() else { return };
    match record.state {
        StepState::AwaitingApproval => approval::wait(cx, update, &record),
        StepState::Scheduled => repeat(cx, update, &record),
        StepState::Started if record.action.traits().evicts_pods => rounds::go_on(cx, update, &record),
        StepState::Started | StepState::Verifying => poll(cx, update, &record),
        _ => {}
    }
}

fn poll(cx: PolicyContext<'_>, update: &mut RemediationUpdate, record: &StepRecord) {
    let now = cx.snapshot.now;
    let attempt = attempt::context(cx, &update.remediation, record);
    match procedure::of(&record.action).poll(&attempt, &mut update.requeue) {
        Poll::ByAnswer if record.state == StepState::Started => wait(cx, update, record),
        Poll::ByAnswer => verify(cx, update),
        Poll::Wait(rest) => update.requeue.after(rest),
        Poll::Working(rest) => {
            if let Some(current) = update.remediation.current_step_mut() {
                current.clear_since = None;
            }
            update.requeue.after(rest);
        }
        Poll::Verify(executed_at, message) => {
            if let Some(current) = update.remediation.current_step_mut().filter(|step| step.state == StepState::Started)
            {
                current.state = StepState::Verifying;
                current.executed_at = Some(executed_at);
                if let Some(message) = message {
                    current.say(&message);
                }
            }
            verify(cx, update);
        }
        Poll::End(state, why) => attempt::end(update, state, &why, now),
        Poll::Expire(timeout, why) => expire(cx, update, record, timeout, &why),
        Poll::Stop(why) => ending::cancel(cx.ctx, &mut update.remediation, &why),
    }
}

/// Returns the node's result from either executor. The best result counts.
fn answer<'a>(node: &NodeContext<'a>, operation: &str) -> Option<&'a Outcome> {
    let job = node.cluster.snapshot.jobs.get(operation).and_then(|job| job.outcome.as_ref());
    let agent = node.own_report().and_then(|report| report.agent.as_ref());
    let rank = |outcome: &Outcome| match (outcome.state, outcome.reason) {
        (OutcomeState::Done, _) => 0,
        (OutcomeState::Running, _) => 1,
        (OutcomeState::Failed, _) => 2,
        // A refusal after a check is stored with its claim. So beside an open claim, no other refusal ends the operation.
        (OutcomeState::Refused, OutcomeReason::AlreadyExecuted) => 3,
        (OutcomeState::Refused, _) => 4,
    };
    [job, agent].into_iter().flatten().filter(|outcome| outcome.operation_id == operation).min_by_key(|o| rank(o))
}

fn take_answer(node: &NodeContext<'_>, remediation: &mut Remediation, operation: &str) {
    let now = node.cluster.snapshot.now;
    let answer = answer(node, operation).cloned();
    let Some(step) = remediation.current_step_mut() else { return };
    let is_given = match step.executor {
        Executor::Job => node.cluster.snapshot.jobs.contains_key(operation),
        Executor::Probe => node.own_command().is_some_and(|command| command.operation_id == operation),
        Executor::Controller => false,
    };
    if step.state == StepState::Scheduled && (is_given || answer.is_some()) {
        step.state = StepState::Started;
        step.started_at = Some(now);
    }
    let Some(answer) = answer else { return };
    if !step.learns_from(answer.reason) {
        return;
    }
    match (answer.state, answer.reason) {
        (OutcomeState::Running, _) => return,
        // A command to reboot, or the reboot marker on the node, does not prove a reboot. Only the boot id proves it.
        (OutcomeState::Done, _)
        | (OutcomeState::Refused, OutcomeReason::AlreadyExecuted | OutcomeReason::AlreadyRebooted)
            if step.action.ends_boot() =>
        {
            step.say(&answer.message);
        }
        // Another start of the same operation has claimed it and given no result yet: it may still be at it.
        (OutcomeState::Refused, OutcomeReason::AlreadyExecuted) => return step.say(&answer.message),
        (OutcomeState::Done, _) => {
            step.state = StepState::Verifying;
            step.executed_at = Some(now);
            step.say(&answer.message);
        }
        (OutcomeState::Refused, _) => step.finish(StepState::Refused, &answer.message, now),
        (OutcomeState::Failed, _) => step.finish(StepState::Failed, &answer.message, now),
    }
    step.reason = Some(answer.reason);
}

/// Records an answer to an attempt that has ended without one.
fn take_late_answer(node: &NodeContext<'_>, remediation: &mut Remediation) {
    let Some(step) = remediation.steps.iter_mut().rev().find(|step| step.is_given()) else { return };
    let Some(answer) = answer(node, &step.operation_id).filter(|_| step.is_unanswered()) else { return };
    let is_claimed = answer.reason == OutcomeReason::AlreadyExecuted && !step.action.ends_boot();
    if answer.state == OutcomeState::Running || is_claimed {
        return;
    }
    step.reason = Some(answer.reason);
    step.say(&format!("{}; later answered: {}", step.message, answer.message));
    if answer.state == OutcomeState::Done && !step.action.ends_boot() {
        (step.state, step.executed_at) = (StepState::TimedOut, Some(node.cluster.snapshot.now));
    }
}

/// Repeats a reserved step. The action may or may not have been executed. The controller repeats the same checks first.
fn repeat(cx: PolicyContext<'_>, update: &mut RemediationUpdate, record: &StepRecord) {
    let now = cx.snapshot.now;
    let gone = "the fault was gone before the action was known to be executed";
    let Some((open_fault, step)) = attempt::purpose(cx, update, record, gone) else { return };
    let again = attempt::again(cx, &update.remediation, &open_fault, step);
    // A release of a hung process goes first. Nobody has tried this step, so it costs no attempt.
    if record.started_at.is_none()
        && let Err(block) = &again
        && block.reason == BlockReason::HungProcessFirst
    {
        return attempt::end(update, StepState::Cancelled, block.message(), now);
    }
    let (age, unpaid) = (since(now, record.scheduled_at), update.slot.require().err());
    if age >= cx.settings.answer_within {
        let against = again.err().filter(|_| record.started_at.is_none());
        // Nobody tries a step while its slot is not stored, or while nobody knows enough. Such a step costs no attempt, and no harsher
        // step follows it.
        let against = against.as_ref();
        let (state, why) = match (unpaid.as_ref(), against) {
            (Some(block), _) => (StepState::Cancelled, block.message()),
            (None, Some(block)) if block.is_no_verdict() => (StepState::Cancelled, block.message()),
            // Nobody was asked: every call for it failed, or the controller waited for something else, such as the end of an older object.
            // A node that goes down for a reboot may have been asked all the same.
            (None, None) if is_unasked(record) => {
                if let Some(step) = update.remediation.current_step_mut() {
                    step.reason = Some(OutcomeReason::RequestFailed);
                }
                (StepState::Failed, "the controller could not begin it in time; its log says why")
            }
            (None, _) => return time_out(cx, update, record, "the action could not be started in time"),
        };
        return attempt::end(update, state, why, now);
    }
    update.requeue.after(cx.settings.answer_within.saturating_sub(age));
    if let Some(block) = unpaid {
        return update.block(&record.fault_id, block);
    }
    if step.needs_approval() && update.remediation.approved(&record.operation_id).is_none() {
        let why = "its approval was withdrawn, or the policy requires one now";
        return attempt::end(update, StepState::Cancelled, why, now);
    }
    match again {
        Ok(fault) => attempt::act(cx, update, record, fault, step),
        Err(block) => update.block(&record.fault_id, block),
    }
}

/// Whether nobody has been asked to execute the step, as far as the controller knows. It would know of a deletion or a creation of
/// its own: the pod would be gone, and it would have observed the object of the hand-off.
fn is_unasked(record: &StepRecord) -> bool {
    let shows = record.executor != Executor::Controller || record.action.resolves();
    record.started_at.is_none() && shows && !record.action.ends_boot()
}

/// Waits for the result of a started step. The other executor takes over once, if the first has not begun in time or cannot begin.
fn wait(cx: PolicyContext<'_>, update: &mut RemediationUpdate, record: &StepRecord) {
    let (now, settings) = (cx.snapshot.now, cx.settings);
    // The age counts per executor: the other executor gets time of its own.
    let age = since(now, record.started_at.unwrap_or(record.scheduled_at));
    let answer = answer(cx.node, &record.operation_id);
    let (is_running, is_job) = (answer.is_some(), record.executor == Executor::Job);
    if is_job || executors::is_of_either(&record.action) {
        update.requeue.when_past(if is_job { settings.job_start } else { settings.agent_start }, age);
    }
    if let Some((to, why)) = other_executor(cx.node, record, is_running, age) {
        let record = switch_executor(update, record, to, &why, now);
        return repeat(cx, update, &record);
    }
    let is_late = is_job && !is_running && age >= settings.job_start;
    if let Some(job) = cx.snapshot.jobs.get(&record.operation_id).filter(|job| job.finished && is_late) {
        return match refused(job) {
            Some(why) => attempt::end(update, StepState::Failed, &why, now),
            // The result may still arrive: the pod comes by another watch than its Job.
            None => attempt::end(update, StepState::TimedOut, "the Job ended without a result", now),
        };
    }
    let limit = match of_policy::step_of(cx.policy, &update.remediation, record) {
        Some(step) if is_running => settings.answer_within.max(step.timeout),
        _ => settings.answer_within,
    };
    if age >= limit {
        let why = match answer.map(|answer| answer.reason) {
            Some(OutcomeReason::AlreadyExecuted) => "the executor that claimed it has given no result",
            _ => "no answer from the node in time",
        };
        let why = if is_running { done_message(record, why) } else { why.to_owned() };
        return time_out(cx, update, record, &why);
    }
    update.requeue.after(limit.saturating_sub(age));
}

/// Ends an attempt without an answer. While the node is out of reach it counts as one that nobody could try.
fn time_out(cx: PolicyContext<'_>, update: &mut RemediationUpdate, record: &StepRecord, why: &str) {
    let now = cx.snapshot.now;
    if !is_out_of_reach(cx, record) {
        return attempt::end(update, StepState::TimedOut, why, now);
    }
    let message = format!("{why}, and the probe of node {} does not report", cx.node.name);
    attempt::end(update, StepState::Refused, &message, now);
}

/// Whether the node is silent and nothing shows that it has begun the attempt. A restart or a reboot may itself be why it is silent.
fn is_out_of_reach(cx: PolicyContext<'_>, record: &StepRecord) -> bool {
    let may_silence = record.action.ends_boot() || record.action.traits().restarts.is_some();
    let has_begun = cx.snapshot.jobs.get(&record.operation_id).is_some_and(JobView::has_begun)
        || answer(cx.node, &record.operation_id).is_some();
    record.executor != Executor::Controller && cx.node.probe != Probe::Reporting && !may_silence && !has_begun
}

/// Returns the other executor and why to switch to it. `None`: the first one has begun, or the attempt has already switched.
fn other_executor(
    node: &NodeContext<'_>,
    record: &StepRecord,
    is_running: bool,
    age: Duration,
) -> Option<(Executor, String)> {
    let settings = node.cluster.settings;
    let actions_enabled = node.heartbeat().is_some_and(|heartbeat| heartbeat.actions_enabled);
    if !actions_enabled || record.executor_changed_at.is_some() {
        return None;
    }
    // The attempt counts from its beginning. Towards its end the controller does not begin it again.
    let spent = since(node.cluster.snapshot.now, record.scheduled_at);
    let late = |limit: Duration, begins_within: Duration| {
        let has_time = spent.saturating_add(begins_within) <= settings.answer_within;
        (has_time && age >= limit).then_some(limit.as_secs())
    };
    match record.executor {
        Executor::Job => {
            let job = node.cluster.snapshot.jobs.get(&record.operation_id);
            // Kubernetes makes no other pod for such a Job, so there is nothing to wait for.
            let refused = job.and_then(refused);
            let is_waiting = !job.is_some_and(JobView::has_begun);
            let unbegun = || {
                let late = late(settings.job_start, settings.retry).filter(|_| is_waiting)?;
                Some(format!("no Job started within {late}s"))
            };
            refused.or_else(unbegun).map(|why| (Executor::Probe, why))
        }
        // The kubelet may have recovered meanwhile, and the probe's watch for commands may not have.
        Executor::Probe if executors::is_of_either(&record.action) => {
            let is_possible = !is_running && executors::choose(node).0 == Executor::Job;
            let late = late(settings.agent_start, settings.job_start).filter(|_| is_possible)?;
            Some((Executor::Job, format!("the probe has not answered the command within {late}s")))
        }
        Executor::Probe | Executor::Controller => None,
    }
}

fn refused(job: &JobView) -> Option<String> {
    job.rejected.as_ref().map(|why| format!("the kubelet refused the Job's pod ({why})"))
}

/// Hands the same operation to the other executor, after the same checks. The node claims an operation once, so only the first
/// executor to arrive executes it. The controller removes what the first executor left in the same pass, before the action.
fn switch_executor(
    update: &mut RemediationUpdate,
    record: &StepRecord,
    to: Executor,
    why: &str,
    now: Timestamp,
) -> StepRecord {
    if let Some(current) = update.remediation.current_step_mut() {
        executors::note_switch(current, to, why, now);
        // The record still says that the operation has begun once: the first executor may still be on its way.
        current.state = StepState::Scheduled;
        let instead = if to == Executor::Job { "a Job is made instead" } else { "the probe is asked instead" };
        current.message = format!("{why}, {instead}");
    }
    StepRecord { executor: to, executor_changed_at: Some(now), ..record.clone() }
}

/// Verifies an executed step. The probe's clean check decides, for as long as the step requires.
fn verify(cx: PolicyContext<'_>, update: &mut RemediationUpdate) {
    let Some(record) = update.remediation.current_step().cloned() else { return };
    let now = cx.snapshot.now;
    let attempt = attempt::context(cx, &update.remediation, &record);
    let Verification { from, timeout, stable_for, is_checkable } = procedure::of(&record.action).verification(&attempt);
    let executed_at = record.executed_at.unwrap_or(record.scheduled_at);
    let cure = match update.remediation.fault(&record.fault_id) {
        Some(_) if !is_checkable => ClearCheck::Unknown,
        Some(fault) => cx.node.clear_check(fault, Some(executed_at)),
        None => ClearCheck::Clean,
    };
    update.asks_for_check |=
        cure != ClearCheck::Clean && cx.node.arrived().is_none_or(|arrived| arrived >= since(now, executed_at));
    let clear_since = (cure == ClearCheck::Clean).then(|| record.clear_since.unwrap_or(now));
    if let Some(current) = update.remediation.current_step_mut() {
        current.clear_since = clear_since;
    }
    let age = since(now, from);
    match clear_since.map(|at| since(now, at)) {
        Some(clean) if clean >= stable_for => {
            attempt::end(update, StepState::Succeeded, &done_message(&record, "the fault is gone"), now);
            if let Some(fault) = update.remediation.fault_mut(&record.fault_id) {
                fault.state = Resolution::Resolved;
                let message = format!("{} resolved by {}", fault.kind, record.phrase());
                update.remediation.say(&message);
            }
        }
        Some(clean) => update.requeue.after(stable_for.saturating_sub(clean)),
        None if age >= timeout => {
            let why =
                if cure == ClearCheck::Present { "the fault is still there" } else { "nobody could check the fault" };
            expire(cx, update, &record, timeout, &done_message(&record, why));
        }
        None => update.requeue.after(timeout.saturating_sub(age)),
    }
}

/// Ends an attempt whose time is over, or does first what its action asks for then.
fn expire(cx: PolicyContext<'_>, update: &mut RemediationUpdate, record: &StepRecord, timeout: Duration, why: &str) {
    let now = cx.snapshot.now;
    let attempt = attempt::context(cx, &update.remediation, record);
    match procedure::of(&record.action).expire(&attempt, timeout, why) {
        Expiry::Fails => attempt::end(update, StepState::Failed, why, now),
        Expiry::TimesOut(why) => attempt::end(update, StepState::TimedOut, &why, now),
        Expiry::First(effect) => {
            update.effect = Some(effect);
            update.requeue.after(cx.settings.retry);
        }
    }
}

fn done_message(record: &StepRecord, what: &str) -> String {
    if record.message.is_empty() { what.to_owned() } else { format!("{}; {what}", record.message) }
}
