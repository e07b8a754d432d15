//! Starts by hand: whether what a person wants can begin now, why not, and when it is given up.
//!
//! A person who has looked at one node knows more of it than a rule does. So a start by hand passes over what the engine asks of
//! itself: how long the fault has to last (`match.for`), what earlier episodes say against another one, a storm that holds the
//! policy, the cheaper steps below and, for its first attempt, the approval. A storm keeps the engine from healing many nodes
//! for one cause, or for a detector that errs; to try one of them is how a person finds out which. It passes over
//! nothing that protects: budgets and limits, `maxUnhealthy`, vetoes and suspension, windows, fresh evidence of a confirmed
//! fault, what guards pods and restarts, one open episode per node.

use std::collections::{BTreeMap, BTreeSet};

use super::evidence::{NodeFacts, Nodes, Seen};
use super::ladder::{self, Look, Relapse};
use super::payment::Payment;
use super::turn::Turn;
use super::{Ctx, Effect, Held, Hold, HoldReason, Wake, advance, ending, hand_off, readiness};
use crate::budget::{Bounds, Slots};
use crate::episode::{EpisodeFault, STOPPED_BY_A_PERSON, since};
use crate::fault::{FaultState, FaultType, MAX_LINE};
use crate::policy::{ActionType, Found, Mode, Policy, Rule};
use crate::snapshot::Slot;
use crate::text::bounded;
use crate::wish::{MARK, MAX_NAME, MAX_WAITING, OpenWish, steps};

/// What the starts by hand came to.
#[derive(Debug, Default)]
pub(super) struct Begun {
    /// Those that begin, each with its first act.
    pub turns: Vec<Turn>,
    /// What is written about the others.
    pub told: Vec<Effect>,
    /// What is held.
    pub held: Vec<Held>,
    /// Nodes on which a person has said no right now: nothing begins there in this pass, and after it the record says so.
    pub stopped: Vec<String>,
}

/// Why one does not begin.
enum No {
    /// It never can.
    Never(String),
    /// Not now.
    Now(Hold),
}

impl From<Hold> for No {
    fn from(hold: Hold) -> Self {
        Self::Now(hold)
    }
}

fn never<T>(why: String) -> Result<T, No> {
    Err(No::Never(why))
}

/// Begins those that can: the oldest first, one for each node. `busy` are nodes with an episode that ends in this pass.
pub(super) fn begin<'a>(
    ctx: Ctx<'a>,
    nodes: &Nodes<'a>,
    busy: &BTreeSet<&str>,
    slots: &mut Slots,
    wake: &mut Wake,
) -> Begun {
    let mut begun = Begun::default();
    let mut waiting: Vec<&OpenWish> = ctx.snapshot.wishes.values().collect();
    waiting.sort_by(|a, b| (a.asked_at, &a.name).cmp(&(b.asked_at, &b.name)));
    let mut first: BTreeMap<&str, &OpenWish> = BTreeMap::new();
    for wish in waiting {
        let started = match first.get(wish.node.as_str()) {
            Some(first) => never(format!(
                "{} for node {} was written before and is not done; one start by hand at a time",
                first.name, wish.node
            )),
            None if first.len() >= MAX_WAITING => {
                never(format!("{MAX_WAITING} starts by hand wait already: write it again when some of them are over"))
            }
            None => start(ctx, nodes, wish, busy, slots, wake),
        };
        let no = match started {
            Ok(turn) => {
                first.insert(&wish.node, wish);
                begun.turns.push(turn);
                continue;
            }
            Err(no) => no,
        };
        match no {
            No::Never(why) => {
                // A person's no holds for the engine as well, whether or not anything had begun.
                begun.stopped.extend(wish.cancel.as_ref().map(|_| wish.node.clone()));
                let said = wish
                    .cancel
                    .as_ref()
                    .map(|cancel| format!("{STOPPED_BY_A_PERSON}its start by hand was cancelled {}", cancel.told()));
                let episode = wish.refused(&said.unwrap_or_else(|| format!("not begun: {why}")), ctx.snapshot.now);
                begun.told.push(Effect::WriteEpisode(Box::new(episode)));
            }
            No::Now(hold) => {
                first.insert(&wish.node, wish);
                // Not for every number that changes: in an incident many wait, and the API server has enough to do.
                let why = format!("waits to begin ({:?}): ", hold.reason);
                let message = format!("{why}{}", hold.message());
                if !wish.message.starts_with(&why) {
                    begun.told.push(Effect::TellWish {
                        name: wish.name.clone(),
                        identity: wish.identity.clone(),
                        node: wish.node.clone(),
                        message: bounded(&message, MAX_LINE),
                    });
                }
                let mut told = hold.about(wish.node.clone(), None, Some(&wish.policy), wake);
                let whole = format!("start by hand {} ({}): {}", wish.name, wish.phrase(), told.message);
                told.message = bounded(&whole, MAX_LINE);
                begun.held.push(told);
            }
        }
    }
    begun
}

/// Every wait has an end, also where nobody decided in the meantime: what was wanted an evening ago is not done in the morning.
fn in_time(ctx: Ctx<'_>, wish: &OpenWish, wake: &mut Wake) -> Result<(), No> {
    let (age, timeout) = (since(ctx.snapshot.now, wish.asked_at), wish.wish.timeout);
    if age < timeout {
        wake.at(timeout.saturating_sub(age));
        return Ok(());
    }
    let last = wish.message.split_once("): ").map_or("nobody decided on it meanwhile", |(_, last)| last);
    never(format!("it could not within {} min: {last}", timeout.as_secs() / 60))
}

fn start<'a>(
    ctx: Ctx<'a>,
    nodes: &Nodes<'a>,
    wish: &OpenWish,
    busy: &BTreeSet<&str>,
    slots: &mut Slots,
    wake: &mut Wake,
) -> Result<Turn, No> {
    let (facts, policy) = place(ctx, nodes, wish, wake)?;
    if let Some(open) = facts.open.first() {
        let message = format!("episode {} has node {} until its end", open.name, facts.name);
        return Err(Hold::new(HoldReason::OtherFaultFirst, &message).into());
    }
    if busy.contains(facts.name) {
        let message = format!("an episode of node {} is being brought to its end", facts.name);
        return Err(Hold::new(HoldReason::OtherFaultFirst, &message).into());
    }
    if let Some(why) = readiness::leave_alone(facts) {
        return Err(Hold::new(HoldReason::Vetoed, &why).into());
    }
    let seen = fault(ctx, facts, wish)?;
    let (rule, standing) = rung(ctx, facts, policy, wish, seen)?;
    room(ctx, nodes, facts, (wish, seen.fault.kind), slots)?;

    let mut turn = Turn::new(wish.begun(ctx.snapshot.now));
    turn.episode.faults.push(standing.clone());
    let payment = if slots.is_known() { Payment::Made } else { Payment::Awaited };
    advance::next_step(ctx, facts, policy, &mut turn, &payment, wake);
    let step = turn.episode.current_step();
    if !step.is_some_and(|step| step.action == wish.wish.action && step.rung == standing.rung) {
        // What is held of it; of another step in its place nothing is said, since it is not what was asked for.
        let said = turn.held.first().filter(|_| step.is_none()).map(|held| (held.reason, held.message.clone()));
        let action = wish.wish.action.as_str();
        let otherwise = || (HoldReason::CannotAct, format!("{action} of rule {} cannot be begun now", rule.name));
        let (reason, message) = said.unwrap_or_else(otherwise);
        return Err(Hold::new(reason, &message).into());
    }
    let said = format!("started {}; {}", wish.wish.told(), turn.episode.message);
    turn.episode.say(&said);
    turn.episode.set_phase();
    let slot = Slot {
        node: wish.node.clone(),
        policy: policy.name.clone(),
        taken_at: slots.held_since(&wish.name, ctx.snapshot.now, ctx.settings.cache_lag),
        kinds: Some(turn.episode.kinds()),
    };
    slots.take(&wish.name, slot, Mode::Enforce);
    Ok(turn)
}

/// The node and the policy that are meant, where that is a start at all.
fn place<'n, 'a>(
    ctx: Ctx<'a>,
    nodes: &'n Nodes<'a>,
    wish: &OpenWish,
    wake: &mut Wake,
) -> Result<(&'n NodeFacts<'a>, &'a Policy), No> {
    if let Some(cancel) = &wish.cancel {
        return never(format!("taken back {}", cancel.told()));
    }
    if wish.deleting {
        return never("it was deleted".to_owned());
    }
    if !wish.has_usable_name() {
        return never(format!(
            "its name cannot stand in names of operations: expected at most {MAX_NAME} lower-case letters, \
             digits and dashes, with {MARK} among them"
        ));
    }
    if wish.mode != Mode::Enforce {
        return never("spec.mode: a start by hand is no dry run, expected Enforce".to_owned());
    }
    if wish.wish.action == ActionType::Drain {
        return never(
            "a node is drained under the cordon of its episode: start the Cordon before it, and Drain follows"
                .to_owned(),
        );
    }
    if wish.wish.action == ActionType::Reboot {
        return never(
            "a node is rebooted under the cordon of its episode: start the Cordon before it, and Reboot follows"
                .to_owned(),
        );
    }
    in_time(ctx, wish, wake)?;
    named(ctx, nodes, wish).map_err(|why| soon(ctx, wish, HoldReason::NoPolicy, why))
}

/// Each watch is behind by itself: what was written right before need not show yet.
fn soon(ctx: Ctx<'_>, wish: &OpenWish, reason: HoldReason, why: String) -> No {
    let (age, lag) = (since(ctx.snapshot.now, wish.asked_at), ctx.settings.cache_lag);
    if age >= lag {
        return No::Never(why);
    }
    let message = format!("{why}; refused if that is still so in a moment");
    Hold::new(reason, &message).until(lag.saturating_sub(age)).into()
}

/// The node and the policy by their names, or what of them is not as the start has it.
fn named<'n, 'a>(
    ctx: Ctx<'a>,
    nodes: &'n Nodes<'a>,
    wish: &OpenWish,
) -> Result<(&'n NodeFacts<'a>, &'a Policy), String> {
    let found = nodes.get(wish.node.as_str()).and_then(|facts| Some((facts, facts.view?)));
    let Some((facts, view)) = found else { return Err(format!("there is no node {}", wish.node)) };
    if view.uid != wish.node_uid {
        return Err(format!("node {} was replaced by another one of the same name", wish.node));
    }
    let Some(policy) = ctx.policies.get(wish.policy.as_str()).copied() else {
        return Err(format!("there is no policy {}, or it is not valid", wish.policy));
    };
    if let Some(why) = ending::is_stopped(policy) {
        return Err(why);
    }
    if !facts.policies.iter().any(|selecting| selecting.name == policy.name) {
        return Err(format!("policy {} does not select node {}", policy.name, wish.node));
    }
    let kind = wish.wish.fault;
    let is_for = |rule: &&Rule| match kind {
        FaultType::NodeCondition => !rule.conditions.is_empty(),
        kind => rule.faults.contains(&kind),
    };
    let mut rules = policy.rules.iter().filter(is_for).peekable();
    if rules.peek().is_none() {
        return Err(format!("policy {} has no rule for {kind}", policy.name));
    }
    let action = wish.wish.action;
    if rules.all(|rule| steps(rule, Some(action)).next().is_none()) {
        let action = action.as_str();
        return Err(format!("no rule of policy {} for {kind} has a step {action} that is not a dry run", policy.name));
    }
    Ok((facts, policy))
}

/// The one fault that is meant.
fn fault<'f, 'a>(ctx: Ctx<'_>, facts: &'f NodeFacts<'a>, wish: &OpenWish) -> Result<&'f Seen<'a>, No> {
    let (kind, id) = (wish.wish.fault, wish.wish.fault_id.as_deref());
    let is_meant = |seen: &&Seen<'_>| seen.fault.kind == kind && id.is_none_or(|id| seen.fault.id == id);
    let confirmed = |seen: &&Seen<'_>| seen.fault.state == FaultState::Confirmed;
    let which = id.map_or_else(String::new, |id| format!(" with id {id}"));
    // What is not there was not seen by who wants it healed: a fault that comes later is another matter.
    if !facts.seen.iter().any(|seen| is_meant(&seen)) {
        let why = format!("no {kind}{which} is seen on node {}", facts.name);
        return Err(soon(ctx, wish, HoldReason::NotConfirmed, why));
    }
    let mut all: Vec<&Seen<'_>> = facts.seen.iter().filter(is_meant).filter(confirmed).collect();
    // The same sentence for the same faults, whatever their order.
    all.sort_by(|a, b| a.fault.id.cmp(&b.fault.id));
    match all.as_slice() {
        [one] => Ok(one),
        [] => {
            let message = format!("no {kind}{which} is confirmed on node {}; it begins when one is", facts.name);
            Err(Hold::new(HoldReason::NotConfirmed, &message).into())
        }
        several => {
            let ids: Vec<&str> = several.iter().take(4).map(|seen| seen.fault.id.as_str()).collect();
            let (count, name) = (several.len(), facts.name);
            let message = format!(
                "node {name} has {count} of {kind}, such as {}, and none is named in spec.wish.faultId: it begins when there is one",
                ids.join(", ")
            );
            Err(Hold::new(HoldReason::NotConfirmed, &message).into())
        }
    }
}

/// The rung on which it begins: the first step of that action that can do something about the fault, and may now.
fn rung<'p>(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    policy: &'p Policy,
    wish: &OpenWish,
    seen: &Seen<'_>,
) -> Result<(&'p Rule, EpisodeFault), No> {
    let (fault, action) = (seen.fault.as_ref(), wish.wish.action);
    let what = format!("{} ({})", fault.kind, fault.subject);
    let rule = match facts.rule_of(policy, fault) {
        Found::Rule(rule) => rule,
        Found::Perhaps(rule, lack) => return Err(readiness::doubtful(policy, rule, fault, &lack).into()),
        Found::Nothing => {
            let severity = fault.severity.as_str();
            return never(format!("policy {} has no rule for {what} of severity {severity}", policy.name));
        }
    };
    // Another policy would take the fault over in the middle of it.
    if let Some(other) = facts.policy_for(fault).filter(|other| other.name != policy.name) {
        let (name, other) = (&policy.name, &other.name);
        return never(format!("{what} is for policy {other}, which goes before {name}: start it by that one"));
    }
    let none = || format!("rule {} of policy {} has no step {} for it", rule.name, policy.name, action.as_str());
    // The first, and no later one in its place, which may be harsher.
    let Some((rung, _)) = steps(rule, Some(action)).next() else { return never(none()) };
    let mut standing = readiness::standing(ctx, seen, rule);
    standing.rung = u32::try_from(rung).unwrap_or(u32::MAX);
    let (wanted, mut notes) = (standing.rung, Vec::new());
    let step = ladder::climb(Relapse::Ignored, &mut standing, rule, None, facts, Some(fault), &mut notes);
    let Some(step) = step.filter(|_| standing.rung == wanted) else {
        let why = notes.into_iter().next().unwrap_or_else(none);
        return Err(Hold::new(HoldReason::CannotAct, &why).into());
    };
    if let Some(hold) = hand_off::is_lacking(ctx, &step.action) {
        return Err(hold.into());
    }
    ladder::may_take(ctx, facts, policy, seen, rule, step, Look::Fresh)?;
    Ok((rule, standing))
}

/// Whether there is room for one more episode on the node: the same that the engine asks of its own, storms aside.
fn room<'a>(
    ctx: Ctx<'a>,
    nodes: &Nodes<'a>,
    facts: &NodeFacts<'a>,
    (wish, kind): (&OpenWish, FaultType),
    slots: &Slots,
) -> Result<(), Hold> {
    let scope = ctx.scopes.get(wish.policy.as_str());
    if let Some((reason, message)) = scope.and_then(|scope| scope.blocked(Some(facts))) {
        return Err(Hold::new(reason, &message));
    }
    if let Some(unseen) = slots.unseen_episode(facts.name, &wish.name) {
        let message = format!("episode {unseen} holds a slot for node {}, but does not show yet", facts.name);
        return Err(Hold::new(HoldReason::OtherFaultFirst, &message));
    }
    let own = slots.slot(&wish.name);
    if let Some(slot) = own.filter(|slot| (&slot.node, &slot.policy) != (&wish.node, &wish.policy)) {
        let message = format!("a slot for node {} is held under the same name until it is given back", slot.node);
        return Err(Hold::new(HoldReason::StepUnderWay, &message).until(ctx.settings.cache_lag));
    }
    // Its slot of before has room or not by the fleet as it is now, not as it was then.
    let others = own.is_some().then(|| slots.without(&wish.name));
    let slots = others.as_ref().unwrap_or(slots);
    let bounds = Bounds { in_flight: scope.map_or(0, |scope| scope.max_in_flight), mode: Mode::Enforce };
    let refused = slots
        .refuse(&wish.policy, bounds)
        .or_else(|| scope?.crowded(facts, nodes, slots))
        .or_else(|| scope?.full(kind, facts.name, slots));
    refused.map_or(Ok(()), |(reason, message)| Err(Hold::new(reason, &message)))
}
