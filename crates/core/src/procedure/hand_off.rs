//! Hand-offs: when the controller hands a node to a remediator, how it awaits the answer, and how it cleans up the object that
//! it created.
//!
//! The probe's clean check decides, as for every step. A node that reboots is silent: no verdict before the step's timeout.

use std::time::Duration;

use super::{AttemptContext, Expiry, Poll, Procedure, StepContext};
use crate::action::{ActionType, HandOff};
use crate::context::{Block, ClearCheck, ClusterContext, NodeContext, Requeue, exclusion, of_policy};
use crate::fault::Fault;
use crate::hand_off::{HandOffView, HandedOff};
use crate::moment::{after, clock, since};
use crate::plan::{BlockReason, Effect, Operation};
use crate::policy::{Policy, Step};
use crate::remediation::{Marker, Remediation, RemediationFault, Resolution, StepRecord, StepState};
use crate::snapshot::TriState;

/// How long the controller retries the deletion of an object, counted from the end of its step.
const TAKE_BACK_WITHIN: Duration = Duration::from_mins(10);

/// How long the controller retries to notify a remediator that its time is over.
const NOTIFY_WITHIN: Duration = Duration::from_hours(1);

/// How long after the end of a hand-off the remediator may still change the node.
const TIDY_UP: Duration = Duration::from_mins(15);

impl Procedure for HandOff {
    /// An object of a node is created once in a remediation. What it did not resolve, a second one does not resolve
    /// either, for any fault.
    fn require_untried(&self, _: &Step, remediation: &Remediation) -> Result<(), &'static str> {
        let is_done = begun(remediation, self).any(|step| step.state.is_final());
        if is_done { Err("the node was handed to this remediator in this remediation already") } else { Ok(()) }
    }

    /// Nothing begins for a step whose kinds the controller is known not to be allowed to use.
    fn require_available(&self, node: &NodeContext<'_>) -> Result<(), Block> {
        if node.cluster.snapshot.lacking.contains(&self.remediation_template) {
            require_proof(node.cluster, self)
        } else {
            Ok(())
        }
    }

    fn admit(&self, cx: &StepContext<'_>) -> Result<(), Block> {
        require_proof(cx.node.cluster, self)?;
        require_apart(cx.node, self)
    }

    fn template_version<'x>(&self, cluster: ClusterContext<'x>) -> Option<&'x str> {
        cluster.snapshot.template_versions.get(&self.remediation_template).map(String::as_str)
    }

    fn marker(&self, remediation: &Remediation, record: &StepRecord) -> Option<Marker> {
        Some(Marker::HandOff(HandedOff::new(&self.remediation_template, &remediation.node, &record.operation_id)))
    }

    fn operation(&self, _: &AttemptContext<'_>, _: &Fault) -> Option<Operation> {
        Some(Operation::HandOff(self.clone()))
    }

    /// The object exists, although nobody has recorded its creation.
    fn observe(&self, node: &NodeContext<'_>, record: &mut StepRecord) {
        let is_made = node.cluster.snapshot.hand_offs.get(&record.operation_id).is_some_and(|view| view.exists);
        if record.state == StepState::Scheduled && is_made {
            record.state = StepState::Started;
            record.started_at = Some(node.cluster.snapshot.now);
        }
    }

    /// The step counts also if the policy has moved it to another place meanwhile.
    fn named_step<'p>(&self, policy: &'p Policy, remediation: &Remediation, record: &StepRecord) -> Option<&'p Step> {
        let rule = remediation.fault(&record.fault_id).and_then(|fault| policy.rule(&fault.rule));
        let moved = || rule?.steps.iter().find(|step| step.action.hand_off() == Some(self));
        of_policy::step_of(policy, remediation, record).or_else(moved)
    }

    /// The remediator's result and the probe's check are awaited, until the step's timeout.
    fn poll(&self, cx: &AttemptContext<'_>, _: &mut Requeue) -> Poll {
        let AttemptContext { node, policy, remediation, record, step } = *cx;
        let (now, settings) = (node.cluster.snapshot.now, node.cluster.settings);
        // A hand-off may last for long, and a person who stops it does not have to wait. Markers of other tools on the node may
        // come from this very remediator.
        if let Some(why) = exclusion::suspended(node).or_else(|| of_policy::stopped_reason(policy)) {
            return Poll::Stop(why);
        }
        let began = cx.began();
        let is_cured = |fault: &RemediationFault| node.clear_check(fault, Some(began)) == ClearCheck::Clean;
        let is_clean = remediation.fault(&record.fault_id).is_none_or(is_cured);
        let limit = step.map_or(settings.answer_within, |step| step.timeout);
        let view = view(node.cluster, record, began);
        // A node that is shut down may look clean. While the remediator says that it is working, that is no clear check.
        let is_working = view.is_some_and(|view| view.processing == TriState::True && view.succeeded != TriState::True);
        let age = since(now, began);
        if is_working {
            if age < limit {
                return Poll::Working(limit.saturating_sub(age));
            }
            return Poll::Expire(limit, format!("its remediator is still at work after {}s", limit.as_secs()));
        }
        if !is_clean && let Some(why) = view.and_then(|view| failed(remediation, record, view)) {
            return Poll::End(StepState::Failed, why);
        }
        let is_done = view.is_some_and(|view| view.succeeded == TriState::True);
        if record.state == StepState::Verifying || is_clean || is_done {
            // From here on, too, the step's time counts from the hand-off.
            let message = view.filter(|_| is_done).map(|view| format!("its remediator is done: {}", view.message));
            return Poll::Verify(began, message);
        }
        if age < limit {
            return Poll::Wait(limit.saturating_sub(age));
        }
        let message = view.map_or_else(String::new, |view| format!("; it said last: {}", view.message));
        Poll::Expire(limit, format!("not resolved within {}s{message}", limit.as_secs()))
    }

    /// The remediator is notified first, then the attempt ends. One that cannot be notified delays nothing for long.
    fn expire(&self, cx: &AttemptContext<'_>, timeout: Duration, why: &str) -> Expiry {
        let (now, began) = (cx.node.cluster.snapshot.now, cx.began());
        let late = since(now, began).saturating_sub(timeout);
        let handed = cx.remediation.cleanup.hand_off_of(&cx.record.operation_id).cloned();
        let Some(handed) = handed.filter(|_| late < NOTIFY_WITHIN) else {
            return Expiry::TimesOut(format!("{why}; its remediator could not be notified that its time is over"));
        };
        Expiry::First(Effect::TimeOutHandOff {
            remediation: cx.remediation.name.clone(),
            node: cx.remediation.node.clone(),
            handed,
            // The same value in every retry.
            at: began.checked_add(timeout).unwrap_or(now),
            why: crate::text::bounded(why, crate::fault::MAX_LINE),
        })
    }
}

/// Whether the controller may use the kinds of the remediator. Nothing is handed to it while this is unknown.
fn require_proof(ctx: ClusterContext<'_>, params: &HandOff) -> Result<(), Block> {
    let template = &params.remediation_template;
    if !ctx.snapshot.unproven.contains(template) {
        return Ok(());
    }
    let (kind, namespace) = (template.object_kind(), &template.namespace);
    let message = format!(
        "{template}: it is not proven that the controller may create {kind} in namespace {namespace}; condition Ready of the \
         policy says what is lacking, and the controller checks it again regularly"
    );
    Err(Block::new(BlockReason::ActionsDisabled, &message))
}

/// The steps of a remediation that handed, or may have handed, its node to this remediator.
fn begun<'e>(remediation: &'e Remediation, params: &HandOff) -> impl Iterator<Item = &'e StepRecord> {
    let object = |params: &HandOff| HandedOff::new(&params.remediation_template, &remediation.node, "");
    let planned = object(params);
    let is_its =
        move |step: &&StepRecord| step.action.hand_off().is_some_and(|params| object(params).is_same_object(&planned));
    remediation.steps.iter().filter(|step| step.started_at.is_some()).filter(is_its)
}

/// Whether this Node may be handed to the remediator, given earlier Nodes of the same name. A machine that was deleted and
/// recreated in vain is not deleted again at once, and then again.
fn require_apart(node: &NodeContext<'_>, params: &HandOff) -> Result<(), Block> {
    let was_handed =
        |remediation: &Remediation| begun(remediation, params).any(|step| step.state != StepState::Refused);
    let handed = node.on_others_of_its_name().filter(|(remediation, _)| was_handed(remediation));
    let Some((remediation, at)) = handed.max_by_key(|(_, at)| *at) else { return Ok(()) };
    let (memory, passed) = (node.cluster.settings.failed_memory, since(node.cluster.snapshot.now, at));
    if passed >= memory {
        return Ok(());
    }
    let until = clock(after(at, memory));
    let message = format!(
        "node {} was handed to {} as another Node object of that name (remediation {}), and is unhealthy again: not handed to it before {until}",
        node.name,
        params.remediation_template.object_kind(),
        remediation.name
    );
    Err(Block::new(BlockReason::NodeLimit, &message).until(memory.saturating_sub(passed)))
}

/// The object of an attempt, as read after `then`.
fn view<'a>(ctx: ClusterContext<'a>, record: &StepRecord, then: jiff::Timestamp) -> Option<&'a HandOffView> {
    let now = ctx.snapshot.now;
    ctx.snapshot.hand_offs.get(&record.operation_id).filter(|view| view.read < since(now, then))
}

/// Why the remediator will not remediate the node, by its own object.
fn failed(remediation: &Remediation, record: &StepRecord, view: &HandOffView) -> Option<String> {
    let object = remediation.cleanup.hand_off_of(&record.operation_id)?;
    if !view.exists {
        return Some(format!("{object} was deleted"));
    }
    (view.succeeded == TriState::False).then(|| format!("{object}: its remediator has failed: {}", view.message))
}

/// Whether the step has handed the node off.
fn was_begun(step: &StepRecord) -> bool {
    step.action == ActionType::HandOff && step.started_at.is_some()
}

/// Gives up what a remediator tried and did not resolve, whatever ends the remediation. The remediator does not get the
/// fault again at once.
pub(crate) fn give_up(remediation: &mut Remediation) {
    let tried = remediation.steps.iter().filter(|step| was_begun(step) && !step.is_refused_call());
    for step in tried {
        for fault in
            remediation.faults.iter_mut().filter(|fault| fault.id == step.fault_id && fault.state == Resolution::Open)
        {
            fault.state = Resolution::Exhausted;
        }
    }
}

/// Whether the controller tries no longer to delete the object. It is removed with the remediation that owns it, or, where a Machine
/// owns it as well, before the next hand-off of the node.
pub(super) fn is_given_up(ctx: ClusterContext<'_>, remediation: &Remediation, handed: &HandedOff) -> bool {
    let end = remediation.attempt(&handed.operation_id).and_then(|step| step.finished_at);
    // A controller that was away meanwhile has not tried.
    let has_tried = ctx.snapshot.watched_for >= TAKE_BACK_WITHIN;
    has_tried && end.is_some_and(|end| since(ctx.snapshot.now, end) >= TAKE_BACK_WITHIN)
}

/// The addition to the end message of a remediation whose node disappeared while it was handed off.
pub(crate) fn on_the_way(ctx: ClusterContext<'_>, remediation: &Remediation) -> String {
    let under_way = remediation.current_step().filter(|step| step.started_at.is_some());
    let Some(object) = under_way.and_then(|step| remediation.cleanup.hand_off_of(&step.operation_id)) else {
        return String::new();
    };
    let view = ctx.snapshot.hand_offs.get(&object.operation_id);
    if view.is_some_and(|view| view.node_goes) {
        return format!(", as {object} had announced (PermanentNodeDeletionExpected)");
    }
    format!(", while it was handed to {object}")
}

/// Whether a remediator may have uncordoned the node: one works there, in any remediation, or did until a moment ago.
fn may_have_uncordoned(node: &NodeContext<'_>, remediation: &Remediation) -> bool {
    let here = node.remediations().filter(|other| other.node_uid == remediation.node_uid);
    let mut steps = here.flat_map(|other| &other.steps).filter(|step| was_begun(step));
    steps.any(|step| step.finished_at.is_none_or(|end| since(node.cluster.snapshot.now, end) < TIDY_UP))
}

/// Records that the node's remediator removed our cordon. A remediator uncordons what it has rebooted, so that is no sign of a
/// person. A later step may cordon the node again.
pub(crate) fn note_uncordon(node: &NodeContext<'_>, remediation: &mut Remediation) {
    let Some(view) = node.view.filter(|view| view.uid == remediation.node_uid && !view.unschedulable) else { return };
    let is_cordoning = remediation.current_step().is_some_and(|step| step.action == ActionType::Cordon);
    let Some(at) = remediation.pending_since(&Marker::Cordon).filter(|_| !is_cordoning) else { return };
    // Without the owner annotation, the view may be from before the cordon.
    let is_sure = view.cordoned_by.as_deref() == Some(remediation.name.as_str())
        || since(node.cluster.snapshot.now, at) >= node.cluster.settings.cache_lag;
    if is_sure && may_have_uncordoned(node, remediation) {
        remediation.cleanup.remove(&Marker::Cordon, node.cluster.snapshot.now);
    }
}

/// Why nothing else is done to the node before the object is deleted, once that takes longer than one call. `Err` = when it does.
pub(crate) fn deletion_block(ctx: ClusterContext<'_>, remediation: &Remediation) -> Result<Option<Block>, Duration> {
    let Some(handed) = remediation.cleanup.pending_hand_off() else { return Ok(None) };
    let step = remediation.attempt(&handed.operation_id);
    let Some((step, end)) = step.and_then(|step| Some((step, step.finished_at?))) else { return Ok(None) };
    let age = since(ctx.snapshot.now, end);
    if age < ctx.settings.retry {
        return Err(ctx.settings.retry.saturating_sub(age));
    }
    let least = TAKE_BACK_WITHIN.saturating_sub(ctx.snapshot.watched_for);
    let until = after(end, TAKE_BACK_WITHIN);
    let until = clock(until.max(ctx.snapshot.now.checked_add(least).unwrap_or(until)));
    let node = &remediation.node;
    let mut message = format!(
        "{handed} is to be deleted before anything else is done to node {node}, and the API server has not accepted that yet: \
         tried again until {until}"
    );
    let mut reason = BlockReason::InProgress;
    // What rejects the deletion most likely also rejected the creation.
    if step.is_refused_call() {
        reason = BlockReason::RequestRejected;
        message = format!("{message}; {}: {}", step.phrase(), step.message);
    }
    Ok(Some(Block::new(reason, &message)))
}
