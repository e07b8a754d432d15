//! Manual requests: whether a person's request can begin now, why not, and when the controller gives it up.
//!
//! A person who has examined one node knows more about it than a rule does. So a manual request skips what the engine requires
//! of itself: how long the fault has to last (`match.minDuration`), what earlier remediations say against another one, a storm
//! that blocks the policy, the cheaper steps before it and, for its first attempt, the approval. A storm blocks automatic
//! remediation because many nodes may share one cause, or a detector may be wrong. A person can test one node with a manual
//! request. It skips no protection: budgets and limits, `maxUnhealthy`, exclusions and suspension, windows, fresh evidence of a
//! confirmed fault, the safeguards of pods and restarts, one open remediation per node.

use std::collections::{BTreeMap, BTreeSet};

use super::select::{self, EvidenceRequirement};
use super::slot::SlotReservation;
use super::update::RemediationUpdate;
use super::{Ctx, PolicyContext, next_step, slot};
use crate::budget::Slots;
use crate::context::{Block, ClusterContext, NodeContext, ObservedFault, Requeue, exclusion, of_policy};
use crate::fault::{FaultState, MAX_LINE};
use crate::faults::ShowsIn;
use crate::manual::{MARK, MAX_NAME, MAX_WAITING, OpenManualRequest, steps};
use crate::moment::since;
use crate::plan::{BlockReason, Blocked, Effect};
use crate::policy::{Mode, Rule};
use crate::procedure;
use crate::remediation::{CANCELLED_PREFIX, Remediation, RemediationFault};
use crate::text::bounded;

#[derive(Debug, Default)]
pub(super) struct Begun {
    /// Requests that begin, each with its first action.
    pub updates: Vec<RemediationUpdate>,
    /// What the controller writes about the other requests.
    pub effects: Vec<Effect>,
    pub blocked: Vec<Blocked>,
    /// Nodes on which a person has cancelled a request right now. Nothing begins there in this pass; after it the record says so.
    pub stopped: Vec<String>,
}

/// Why a request does not begin.
enum No {
    Never(String),
    Now(Block),
}

impl From<Block> for No {
    fn from(block: Block) -> Self {
        Self::Now(block)
    }
}

fn never<T>(why: String) -> Result<T, No> {
    Err(No::Never(why))
}

/// Begins the requests that can begin: the oldest first, one per node. `busy` names nodes whose remediation ends in this pass.
pub(super) fn begin(ctx: Ctx<'_>, busy: &BTreeSet<&str>, slots: &mut Slots, requeue: &mut Requeue) -> Begun {
    let mut begun = Begun::default();
    let mut waiting: Vec<&OpenManualRequest> = ctx.snapshot.manual_requests.values().collect();
    waiting.sort_by(|a, b| (a.asked_at, &a.name).cmp(&(b.asked_at, &b.name)));
    let mut first: BTreeMap<&str, &OpenManualRequest> = BTreeMap::new();
    for manual in waiting {
        let started = match first.get(manual.node.as_str()) {
            Some(first) => never(format!(
                "{} for node {} was written before and is not finished; one manual request at a time",
                first.name, manual.node
            )),
            None if first.len() >= MAX_WAITING => never(format!(
                "{MAX_WAITING} manual requests wait already: write it again when some of them are finished"
            )),
            None => start(ctx, manual, busy, slots, requeue),
        };
        match started {
            Ok(update) => {
                first.insert(&manual.node, manual);
                begun.updates.push(update);
            }
            Err(No::Never(why)) => {
                // A person's cancellation stops the engine too, whether or not anything had begun.
                begun.stopped.extend(manual.cancel.as_ref().map(|_| manual.node.clone()));
                let message = manual
                    .cancel
                    .as_ref()
                    .map(|cancel| format!("{CANCELLED_PREFIX}its manual request was cancelled {}", cancel.by_whom()));
                let remediation =
                    manual.refused(&message.unwrap_or_else(|| format!("not started: {why}")), ctx.snapshot.now);
                begun.effects.push(Effect::WriteRemediation(Box::new(remediation)));
            }
            Err(No::Now(block)) => {
                first.insert(&manual.node, manual);
                // The controller does not write every changed number: in an incident many requests wait, and the API server is busy.
                let why = format!("cannot start yet ({:?}): ", block.reason);
                let message = format!("{why}{}", block.message());
                if !manual.message.starts_with(&why) {
                    begun.effects.push(Effect::UpdateManualRequest {
                        name: manual.name.clone(),
                        identity: manual.identity.clone(),
                        node: manual.node.clone(),
                        message: bounded(&message, MAX_LINE),
                    });
                }
                let mut blocked = block.about(&manual.node, None, Some(&manual.policy), requeue);
                let whole = format!("manual request {} ({}): {}", manual.name, manual.phrase(), blocked.message);
                blocked.message = bounded(&whole, MAX_LINE);
                begun.blocked.push(blocked);
            }
        }
    }
    begun
}

/// Ends a request after its timeout, even where nobody decided meanwhile. A request of the evening must not run in the morning.
fn in_time(ctx: Ctx<'_>, manual: &OpenManualRequest, requeue: &mut Requeue) -> Result<(), No> {
    let (age, timeout) = (since(ctx.snapshot.now, manual.asked_at), manual.manual.timeout);
    if age < timeout {
        requeue.after(timeout.saturating_sub(age));
        return Ok(());
    }
    let last = manual.message.split_once("): ").map_or("nobody decided on it meanwhile", |(_, last)| last);
    never(format!("it could not within {} min: {last}", timeout.as_secs() / 60))
}

fn start(
    ctx: Ctx<'_>,
    manual: &OpenManualRequest,
    busy: &BTreeSet<&str>,
    slots: &mut Slots,
    requeue: &mut Requeue,
) -> Result<RemediationUpdate, No> {
    let cx = place(ctx, manual, requeue)?;
    let node = cx.node;
    if let Some(open) = node.open.first() {
        let message = format!("remediation {} has node {} until its end", open.name, node.name);
        return Err(Block::new(BlockReason::LowerUrgency, &message).into());
    }
    if busy.contains(node.name) {
        let message = format!("a remediation of node {} is ending", node.name);
        return Err(Block::new(BlockReason::LowerUrgency, &message).into());
    }
    exclusion::excluded(node)?;
    let seen = fault(node, manual)?;
    let mut update = RemediationUpdate::new(manual.begun(ctx.snapshot.now), SlotReservation::of_new(slots));
    let (rule, open_fault) = step_index(cx, &update.remediation, manual, seen)?;
    room(cx, manual, slots)?;

    update.remediation.faults.push(open_fault.clone());
    next_step::reserve_for_most_urgent(cx, &mut update);
    let step = update.remediation.current_step();
    if !step.is_some_and(|step| step.action == manual.manual.action && step.step_index == open_fault.step_index) {
        requeue.merge(update.requeue);
        // Report what blocks the requested step. A different step in its place was not requested, so its block is not reported.
        let message =
            update.blocked.first().filter(|_| step.is_none()).map(|blocked| (blocked.reason, blocked.message.clone()));
        let action = manual.manual.action.as_str();
        let otherwise = || (BlockReason::ActionsDisabled, format!("{action} of rule {} cannot start now", rule.name));
        return Err(Block::from(message.unwrap_or_else(otherwise)).into());
    }
    update.remediation.say(&format!("started {}; {}", manual.manual.by_whom(), update.remediation.message));
    update.remediation.set_phase();
    slot::take(ctx, slots, &update.remediation);
    Ok(update)
}

/// Finds the node and the policy of a request, or says why the request cannot begin.
fn place<'a>(ctx: Ctx<'a>, manual: &OpenManualRequest, requeue: &mut Requeue) -> Result<PolicyContext<'a>, No> {
    if let Some(cancel) = &manual.cancel {
        return never(format!("taken back {}", cancel.by_whom()));
    }
    if manual.deleting {
        return never("it was deleted".to_owned());
    }
    if !manual.has_usable_name() {
        return never(format!(
            "its name cannot stand in names of operations: expected at most {MAX_NAME} lower-case letters, \
             digits and dashes, with {MARK} among them"
        ));
    }
    if manual.mode != Mode::Enforce {
        return never("spec.mode: a manual request is no dry run, expected Enforce".to_owned());
    }
    if manual.manual.action.traits().under_cordon {
        let action = manual.manual.action.as_str();
        return never(format!(
            "{action} is done under the cordon of its remediation: start the Cordon before it, and {action} follows"
        ));
    }
    in_time(ctx, manual, requeue)?;
    named(ctx, manual).map_err(|why| soon(ctx.cluster, manual, BlockReason::NoPolicy, why))
}

/// Refuses a request only after the cache lag. Each watch lags by itself and may not show a recent write yet.
fn soon(cluster: ClusterContext<'_>, manual: &OpenManualRequest, reason: BlockReason, why: String) -> No {
    let (age, lag) = (since(cluster.snapshot.now, manual.asked_at), cluster.settings.cache_lag);
    if age >= lag {
        return No::Never(why);
    }
    Block::new(reason, &format!("{why}; refused if that is still so in a moment")).until(lag.saturating_sub(age)).into()
}

/// Finds the node and the policy by their names, or says what does not match the request.
fn named<'a>(ctx: Ctx<'a>, manual: &OpenManualRequest) -> Result<PolicyContext<'a>, String> {
    let found = ctx.nodes.get(manual.node.as_str()).and_then(|node| Some((node, node.view?)));
    let Some((node, view)) = found else { return Err(format!("there is no node {}", manual.node)) };
    if view.uid != manual.node_uid {
        return Err(format!("node {} was replaced by another one of the same name", manual.node));
    }
    let Some(policy) = ctx.policies.get(manual.policy.as_str()).copied() else {
        return Err(format!("there is no policy {}, or it is not valid", manual.policy));
    };
    if let Some(why) = of_policy::stopped_reason(policy) {
        return Err(why);
    }
    if !node.policies.iter().any(|selecting| selecting.name == policy.name) {
        return Err(format!("policy {} does not select node {}", policy.name, manual.node));
    }
    let kind = manual.manual.fault;
    let is_for = |rule: &&Rule| match kind.spec().shows_in {
        ShowsIn::Condition => !rule.conditions.is_empty(),
        _ => rule.faults.contains(&kind),
    };
    let mut rules = policy.rules.iter().filter(is_for).peekable();
    if rules.peek().is_none() {
        return Err(format!("policy {} has no rule for {kind}", policy.name));
    }
    let action = manual.manual.action;
    if rules.all(|rule| steps(rule, Some(action)).next().is_none()) {
        let action = action.as_str();
        return Err(format!("no rule of policy {} for {kind} has a step {action} that is not a dry run", policy.name));
    }
    Ok(PolicyContext { ctx, node, policy })
}

fn fault<'f, 'a>(node: &'f NodeContext<'a>, manual: &OpenManualRequest) -> Result<&'f ObservedFault<'a>, No> {
    let (kind, id) = (manual.manual.fault, manual.manual.fault_id.as_deref());
    let is_meant = |seen: &&ObservedFault<'_>| seen.fault.kind == kind && id.is_none_or(|id| seen.fault.id == id);
    let confirmed = |seen: &&ObservedFault<'_>| seen.fault.state == FaultState::Confirmed;
    let which = id.map_or_else(String::new, |id| format!(" with id {id}"));
    // The person who made the request did not see a fault that is absent. A fault that appears later is a different one.
    if !node.seen.iter().any(|seen| is_meant(&seen)) {
        let why = format!("no {kind}{which} is seen on node {}", node.name);
        return Err(soon(node.cluster, manual, BlockReason::NotConfirmed, why));
    }
    let mut all: Vec<&ObservedFault<'_>> = node.seen.iter().filter(is_meant).filter(confirmed).collect();
    // The order is fixed, so the same faults give the same message.
    all.sort_by(|a, b| a.fault.id.cmp(&b.fault.id));
    match all.as_slice() {
        [one] => Ok(one),
        [] => {
            let message = format!("no {kind}{which} is confirmed on node {}; it begins when one is", node.name);
            Err(Block::new(BlockReason::NotConfirmed, &message).into())
        }
        several => {
            let ids: Vec<&str> = several.iter().take(4).map(|seen| seen.fault.id.as_str()).collect();
            let (count, name) = (several.len(), node.name);
            let message = format!(
                "node {name} has {count} of {kind}, such as {}, and none is named in spec.manual.faultId: it begins when there is one",
                ids.join(", ")
            );
            Err(Block::new(BlockReason::NotConfirmed, &message).into())
        }
    }
}

/// Finds the step to begin with: the first of the requested action, if it can do something about the fault and may be taken now.
fn step_index<'p>(
    cx: PolicyContext<'p>,
    begun: &Remediation,
    manual: &OpenManualRequest,
    seen: &ObservedFault<'_>,
) -> Result<(&'p Rule, RemediationFault), No> {
    let (fault, action) = (seen.fault.as_ref(), manual.manual.action);
    let Some(rule) = of_policy::known_rule(cx.node, cx.policy, fault)? else {
        let severity = fault.severity.as_str();
        return never(format!("policy {} has no rule for {fault} of severity {severity}", cx.policy.name));
    };
    // Another policy would take over the fault during the remediation.
    if let Some(other) = cx.node.policy_for(fault).filter(|other| other.name != cx.policy.name) {
        let (name, other) = (&cx.policy.name, &other.name);
        return never(format!("{fault} is for policy {other}, which goes before {name}: start it by that one"));
    }
    let no_such_step =
        || format!("rule {} of policy {} has no step {} for it", rule.name, cx.policy.name, action.as_str());
    // Only the first such step. A later one may be harsher.
    let Some((step_index, _)) = steps(rule, Some(action)).next() else { return never(no_such_step()) };
    let mut open_fault = seen.opened(cx.snapshot.now, rule);
    open_fault.step_index = u32::try_from(step_index).unwrap_or(u32::MAX);
    let (wanted, mut notes) = (open_fault.step_index, Vec::new());
    let step = select::select_step(cx, &mut open_fault, rule, Some(begun), Some(fault), &mut notes);
    let Some(step) = step.filter(|_| open_fault.step_index == wanted) else {
        let why = notes.into_iter().next().unwrap_or_else(no_such_step);
        return Err(Block::new(BlockReason::ActionsDisabled, &why).into());
    };
    procedure::of(&step.action).require_available(cx.node)?;
    select::may_take(cx, Some(begun), seen, rule, step, EvidenceRequirement::Fresh)?;
    Ok((rule, open_fault))
}

/// Checks that the node has room for one more remediation. The checks are those of the engine, except for storms.
fn room(cx: PolicyContext<'_>, manual: &OpenManualRequest, slots: &Slots) -> Result<(), Block> {
    cx.require_unblocked()?;
    let node = cx.node;
    if let Some(unseen) = slots.unseen_remediation(node.name, &manual.name) {
        let message = format!("remediation {unseen} holds a slot for node {}, but does not show yet", node.name);
        return Err(Block::new(BlockReason::LowerUrgency, &message));
    }
    let own = slots.slot(&manual.name);
    if let Some(slot) = own.filter(|slot| (&slot.node, &slot.policy) != (&manual.node, &manual.policy)) {
        let message = format!("a slot for node {} is taken under the same name until it is released", slot.node);
        return Err(Block::new(BlockReason::InProgress, &message).until(cx.settings.cache_lag));
    }
    // The current fleet decides on the slot that the request may hold already, not the fleet of that time.
    let slots = &slots.without(&manual.name);
    let of_fault = || cx.scope()?.fault_limit_reached(manual.manual.fault, node.name, slots).map(Block::from);
    cx.limit_reached(slots).or_else(of_fault).map_or(Ok(()), Err)
}
