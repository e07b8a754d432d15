//! One turn of an open episode: its step is moved on, its faults are marked healed, new ones join, and the next
//! step is reserved.

use jiff::Timestamp;

use super::evidence::{Cure, NodeFacts, Probe, Seen};
use super::ladder::{Look, Relapse};
use super::payment::Payment;
use super::scope::{self, Scope};
use super::turn::Turn;
use super::{
    Ctx, Hold, HoldReason, Wake, approval, attempt, cause, drain, ending, going_down, hand_off, ladder, lanes, quiet,
    readiness, reboot, refused, steps, taint,
};
use crate::budget::Slots;
use crate::episode::{Episode, EpisodeFault, HealState, Lane, MAX_EPISODE_FAULTS, MAX_STEPS, StepState, since};
use crate::fault::{FaultState, FaultType};
use crate::policy::{Action, ActionType, Found, Mode, Policy, Rule, Step};

/// Takes the episode as far as it goes now.
pub(super) fn take(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    episode: &Episode,
    payment: &Payment,
    slots: &mut Slots,
    wake: &mut Wake,
) -> Turn {
    let mut turn = Turn::new(episode.clone());
    hand_off::note_uncordon(ctx, facts, &mut turn.episode);
    let is_known = ending::note_put_back(ctx, facts, &mut turn.episode);
    if !episode.phase.is_final() {
        match (ending::must_end(ctx, facts, &turn.episode), payment, ending::policy_of(ctx, episode)) {
            (Some(why), ..) => ending::cancel(ctx, &mut turn.episode, &why),
            (None, Payment::Refused(why), _) => ending::cancel(ctx, &mut turn.episode, why),
            (None, _, Some(policy)) if is_known => go_on(ctx, facts, policy, &mut turn, (payment, slots), wake),
            (None, _, _) => {}
        }
    }
    if quiet::is_awaited(ctx, facts, &mut turn, wake) {
        return turn;
    }
    if turn.episode.is_watched() {
        // From here on what it owes is put back, which the record has to say before that is begun.
        turn.episode.set_phase();
    }
    if let Some(undo) = ending::put_back(ctx, facts, &mut turn.episode, wake) {
        turn.effect = Some(undo);
        wake.at(ctx.settings.retry);
    }
    going_down::note(ctx, facts, &mut turn, wake);
    turn
}

fn go_on(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    policy: &Policy,
    turn: &mut Turn,
    (payment, slots): (&Payment, &mut Slots),
    wake: &mut Wake,
) {
    steps::move_on(ctx, facts, policy, turn, payment, wake);
    if let Some(why) = scope::broken(policy) {
        set_aside(turn, &why, ctx.snapshot.now);
    }
    mark_healed(ctx, facts, &mut turn.episode);
    if turn.episode.phase.is_final() {
        return;
    }
    if turn.episode.current_step().is_none() {
        if let Some(why) = ending::must_stop(ctx, facts, &turn.episode) {
            // One that has nothing left to do comes to its own end, and takes nothing new.
            if turn.episode.has_work() {
                ending::cancel(ctx, &mut turn.episode, &why);
            }
            return;
        }
        join(ctx, facts, policy, turn, slots, wake);
        // A remediator whose step is at its end lets go before anything else is done to the node.
        if let Some(back) = hand_off::take_back(ctx, &mut turn.episode) {
            turn.effect = Some(back);
            hand_off::hold_back(ctx, turn, wake);
            wake.at(ctx.settings.retry);
        }
        if turn.effect.is_none() {
            match scope::broken(policy) {
                Some(why) => hold_open(turn, &why, wake),
                None => next_step(ctx, facts, policy, turn, payment, wake),
            }
        }
    } else {
        let held = turn.held.len();
        wait_for_step(turn, wake);
        join(ctx, facts, policy, turn, slots, wake);
        give_way(ctx, facts, policy, turn, held, payment, wake);
    }
    turn.episode.set_phase();
}

/// Faults that are gone by a clean look, whether by a step or by themselves.
fn mark_healed(ctx: Ctx<'_>, facts: &NodeFacts<'_>, episode: &mut Episode) {
    let current = episode.current_step().map(|step| step.fault_id.clone());
    let mut healed = Vec::new();
    for fault in &episode.faults {
        if fault.state == HealState::Healed || current.as_deref() == Some(fault.id.as_str()) {
            continue;
        }
        let after = episode.steps.iter().filter(|s| s.fault_id == fault.id).filter_map(|s| s.acted_at).max();
        if facts.cure(fault, after, ctx.snapshot.now, ctx.settings.evidence_max_age) == Cure::Clean {
            healed.push((fault.id.clone(), fault.kind, after.is_some()));
        }
    }
    for (id, kind, was_acted_on) in healed {
        if let Some(fault) = episode.fault_mut(&id) {
            fault.state = HealState::Healed;
        }
        let how = if was_acted_on { "is gone now" } else { "recovered by itself" };
        episode.say(&format!("{kind} {how}"));
    }
}

/// Confirmed faults of the node that are not in the episode yet, or have come back.
fn join(ctx: Ctx<'_>, facts: &NodeFacts<'_>, policy: &Policy, turn: &mut Turn, slots: &mut Slots, wake: &mut Wake) {
    let scope = ctx.scopes.get(policy.name.as_str());
    let selects = facts.policies.iter().any(|selecting| selecting.name == policy.name);
    for seen in facts.seen.iter().filter(|seen| seen.fault.state == FaultState::Confirmed) {
        let id = seen.fault.id.as_str();
        match turn.episode.fault(id).map(|fault| fault.state) {
            Some(HealState::Open) => continue,
            Some(HealState::GivenUp) => {
                let is_fresh = ladder::evidence(facts, seen, ctx).is_ok();
                let how =
                    if is_fresh { "and it is still there" } else { "and nobody can look whether it is still there" };
                let message = format!(
                    "{} ({}): its ladder is at an end {how}; a person is needed",
                    seen.fault.kind, seen.fault.subject
                );
                turn.hold(id, Hold::new(HoldReason::LadderExhausted, &message), wake);
                continue;
            }
            Some(HealState::Healed) | None => {}
        }
        if !selects {
            // What is under way is finished, and nothing new is taken on in the name of a policy that is not for the node any more.
            let message = format!(
                "{} ({}): policy {} does not select node {} any more; its episode {} has the node until its end",
                seen.fault.kind, seen.fault.subject, policy.name, facts.name, turn.episode.name
            );
            turn.hold(id, Hold::new(HoldReason::OtherFaultFirst, &message), wake);
            continue;
        }
        let other = facts.policy_for(&seen.fault).filter(|other| other.name != policy.name);
        if let Some((other, Found::Perhaps(rule, lack))) = other.map(|other| (other, facts.rule_of(other, &seen.fault)))
        {
            turn.hold(id, readiness::doubtful(other, rule, &seen.fault, &lack), wake);
            continue;
        }
        if let Some(other) = other {
            let message = format!(
                "{} ({}) is for policy {}; episode {} of policy {} has the node until its end",
                seen.fault.kind, seen.fault.subject, other.name, turn.episode.name, policy.name
            );
            turn.hold(id, Hold::new(HoldReason::OtherFaultFirst, &message), wake);
            continue;
        }
        match readiness::judge(ctx, facts, policy, seen).and_then(|rule| not_blocked(facts, scope, rule)) {
            Err(hold) => turn.hold(id, hold, wake),
            // A node that boots shows much that goes by itself.
            Ok(_) if reboot::is_under_way(&turn.episode) => under_way(turn, id, wake),
            Ok(rule) => {
                let kind = seen.fault.kind;
                if let Some(scope) = scope.filter(|scope| scope.limits(kind) && !turn.episode.kinds().contains(&kind))
                    && let Some(hold) = limited(ctx, facts, scope, turn, kind, slots)
                {
                    turn.hold(id, hold, wake);
                    continue;
                }
                if let Some(fault) = turn.episode.fault_mut(id) {
                    (fault.state, fault.since) = (HealState::Open, readiness::standing(ctx, seen, rule).since);
                    fault.clean_since = None;
                } else if turn.episode.faults.len() < MAX_EPISODE_FAULTS {
                    turn.episode.faults.push(readiness::standing(ctx, seen, rule));
                } else {
                    let message =
                        format!("episode {} holds as many faults as it may; the next one takes it", turn.episode.name);
                    turn.hold(id, Hold::new(HoldReason::OtherFaultFirst, &message), wake);
                    continue;
                }
                if turn.episode.current_step().is_some() {
                    under_way(turn, id, wake);
                }
            }
        }
    }
}

/// What joins an open episode is as new as what would open one: where nothing new may be begun, it waits.
fn not_blocked<'p>(facts: &NodeFacts<'_>, scope: Option<&Scope<'_>>, rule: &'p Rule) -> Result<&'p Rule, Hold> {
    let blocked = scope.and_then(|scope| scope.blocked(Some(facts)));
    blocked.map_or(Ok(rule), |(reason, message)| Err(Hold::new(reason, &message)))
}

/// Why a fault of a kind with a limit of its own does not join the episode now, if so: enough others are dealt with, or its kind is
/// not noted in the stored slot yet, by which the next leader counts.
fn limited(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    scope: &Scope<'_>,
    turn: &Turn,
    kind: FaultType,
    slots: &mut Slots,
) -> Option<Hold> {
    if let Some((reason, message)) = scope.full(kind, facts.name, slots) {
        return Some(Hold::new(reason, &message));
    }
    if slots.is_noted(&turn.episode.name, kind) {
        return None;
    }
    slots.note(&turn.episode.name, kind);
    let message =
        format!("{kind} has a limit of its own (limits.perFault): it is noted in the ledger before it is dealt with");
    Some(Hold::new(HoldReason::FaultLimit, &message).until(ctx.settings.retry))
}

/// Takes back what has not begun, is asked for, or would need a further look before each of its rounds: no such look says yes to a
/// policy that cannot be used, and what was never tried must not count as tried. It has its turn again when the policy is mended.
fn set_aside(turn: &mut Turn, why: &str, now: Timestamp) {
    let Some(step) = turn.episode.current_step() else { return };
    let is_waiting = match step.state {
        StepState::AwaitingApproval => true,
        StepState::Reserved => step.started_at.is_none(),
        StepState::Started => step.action == ActionType::Drain,
        _ => false,
    };
    if is_waiting {
        attempt::end(turn, StepState::Cancelled, why, now);
        turn.effect = None;
    }
}

/// Nothing is begun for any of its faults, for this reason.
fn hold_open(turn: &mut Turn, why: &str, wake: &mut Wake) {
    for id in open_but(&turn.episode, None) {
        turn.hold(&id, Hold::new(HoldReason::Paused, why), wake);
    }
}

fn wait_for_step(turn: &mut Turn, wake: &mut Wake) {
    let Some(current) = turn.episode.current_step().map(|step| step.fault_id.clone()) else { return };
    for id in open_but(&turn.episode, Some(&current)) {
        under_way(turn, &id, wake);
    }
}

/// The open faults but one.
fn open_but(episode: &Episode, but: Option<&str>) -> Vec<String> {
    let open = episode.faults.iter().filter(|fault| fault.state == HealState::Open);
    open.map(|fault| fault.id.clone()).filter(|id| Some(id.as_str()) != but).collect()
}

fn under_way(turn: &mut Turn, id: &str, wake: &mut Wake) {
    let Some(step) = turn.episode.current_step() else { return };
    let how = if step.state == StepState::AwaitingApproval { "awaits approval" } else { "is under way" };
    let message = format!("{} {how} on node {}; one step at a time", step.phrase(), turn.episode.node);
    turn.hold(id, Hold::new(HoldReason::StepUnderWay, &message), wake);
}

/// Reserves the next step: of the most urgent fault for which one may be taken now.
pub(super) fn next_step(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    policy: &Policy,
    turn: &mut Turn,
    payment: &Payment,
    wake: &mut Wake,
) {
    next_step_but(ctx, facts, policy, turn, None, payment, wake);
}

/// The same for all faults but one.
fn next_step_but(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    policy: &Policy,
    turn: &mut Turn,
    but: Option<&str>,
    payment: &Payment,
    wake: &mut Wake,
) {
    for id in by_urgency(&turn.episode, facts).into_iter().filter(|id| Some(id.as_str()) != but) {
        if let Some(step) = turn.episode.current_step() {
            let message = format!("{} for a more urgent fault of node {} goes first", step.phrase(), facts.name);
            turn.hold(&id, Hold::new(HoldReason::OtherFaultFirst, &message), wake);
            continue;
        }
        if let Err(hold) = try_fault(ctx, facts, policy, turn, &id, payment, wake) {
            turn.hold(&id, hold, wake);
        }
    }
}

/// Open faults, most urgent first; those that the probe does not name now come last.
fn by_urgency(episode: &Episode, facts: &NodeFacts<'_>) -> Vec<String> {
    let place = |fault: &EpisodeFault| facts.seen.iter().position(|s| s.fault.id == fault.id).unwrap_or(usize::MAX);
    let mut open: Vec<&EpisodeFault> = episode.faults.iter().filter(|f| f.state == HealState::Open).collect();
    open.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| a.id.cmp(&b.id)));
    open.into_iter().map(|fault| fault.id.clone()).collect()
}

fn try_fault(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    policy: &Policy,
    turn: &mut Turn,
    id: &str,
    payment: &Payment,
    wake: &mut Wake,
) -> Result<(), Hold> {
    loop {
        let Some(mut standing) = turn.episode.fault(id).cloned() else { return Ok(()) };
        let Some(rule) = policy.rule(&standing.rule) else { return Ok(()) };
        refused::cooled_down(ctx, &turn.episode, &standing, rule)?;
        let seen = facts.find(id);
        if turn.episode.wish.is_none() {
            cause::looked_for_again(ctx, facts, policy, &standing)?;
        }
        let mut notes = Vec::new();
        let step = ladder::climb(
            Relapse::of(ctx, Some(&turn.episode)),
            &mut standing,
            rule,
            Some(&turn.episode),
            facts,
            seen.map(|seen| seen.fault.as_ref()),
            &mut notes,
        );
        for note in notes {
            turn.episode.say(&note);
        }
        let is_full = turn.episode.steps.len() >= MAX_STEPS;
        let Some(step) = step.filter(|_| !is_full) else {
            standing.state = HealState::GivenUp;
            let why = if is_full { "the episode has as many steps as it may" } else { "its ladder is at an end" };
            turn.episode.say(&format!("{} ({}): {why}; a person is needed", standing.kind, standing.subject));
            replace(&mut turn.episode, standing);
            return Ok(());
        };
        replace(&mut turn.episode, standing.clone());
        if step.mode == Mode::DryRun {
            shadow(ctx, facts, policy, turn, standing, seen, rule, step);
            continue;
        }
        // Nothing is begun for the sake of a hand-off that cannot be; what is under way waits for it.
        let is_new = turn.episode.identity.is_none();
        if let Some(hold) = hand_off::is_lacking(ctx, &step.action).filter(|_| is_new) {
            turn.episode.say(hold.message());
            standing.rung += 1;
            replace(&mut turn.episode, standing);
            continue;
        }
        let out_of_place = drain::is_out_of_place(ctx, facts, &turn.episode, step);
        let out_of_place = out_of_place.or_else(|| taint::is_out_of_place(&turn.episode, step));
        if let Some(why) = out_of_place.or_else(|| reboot::is_out_of_place(&turn.episode, step)) {
            // Recorded: that the node was not emptied, or not rebooted, is to be seen afterwards, too.
            let mut record = attempt::record(ctx, &turn.episode, &standing, step, Lane::Api);
            record.finish(StepState::Refused, &why, ctx.snapshot.now);
            turn.episode.steps.push(record);
            standing.rung = drain::rung_without(step, rule, standing.rung);
            replace(&mut turn.episode, standing);
            continue;
        }
        ladder::cooled_down(ctx, facts, &turn.episode, &standing, step)?;
        payment.is_made()?;
        let hold = match judged(ctx, facts, policy, &turn.episode, &standing, seen, rule, step) {
            Ok((seen, lane))
                if step.needs_approval() && turn.episode.wished_by(&standing, step.action.kind(), policy).is_none() =>
            {
                approval::ask(ctx, turn, seen, &standing, step, lane, wake);
                return Ok(());
            }
            Ok((seen, lane)) => {
                reserve(ctx, facts, turn, seen, &standing, step, lane, wake);
                return Ok(());
            }
            Err(hold) => hold,
        };
        if hold.reason == HoldReason::CoolDown {
            return Err(hold);
        }
        let waits = hold.waits_for_its_hour();
        // What one fault has waited for in vain, all others of the node wait for as well: not each for itself.
        let activity = if waits { turn.episode.last_touched() } else { turn.episode.last_activity() };
        let (patience, idle) = (ctx.patience(step), since(ctx.snapshot.now, activity));
        let tells = matches!(step.action, Action::Notify { .. }) && hold.awaits_look();
        if let Some(seen) = seen.filter(|_| tells && (idle >= patience || facts.probe == Probe::Silent)) {
            // What was seen last was bad, and nobody can look any more: people are told all the same.
            let lane = ladder::may_take(ctx, facts, policy, seen, rule, step, Look::Any)?;
            reserve(ctx, facts, turn, seen, &standing, step, lane, wake);
            return Ok(());
        }
        let rest = patience.saturating_sub(idle);
        if !rest.is_zero() && !hold.outlasts(rest) {
            wake.at(rest);
            return Err(hold);
        }
        pass_over(ctx, turn, standing, rule, step, &hold);
    }
}

/// The fault as it shows now, and the lane in which this step may be taken on it.
#[expect(clippy::too_many_arguments, reason = "the same that a step is taken with")]
fn judged<'s, 'a>(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    policy: &Policy,
    episode: &Episode,
    standing: &EpisodeFault,
    seen: Option<&'s Seen<'a>>,
    rule: &Rule,
    step: &Step,
) -> Result<(&'s Seen<'a>, Lane), Hold> {
    let seen = present(facts, standing, seen)?;
    let lane = ladder::may_take(ctx, facts, policy, seen, rule, step, Look::Fresh)?;
    drain::is_cordoned(facts, episode, step)?;
    drain::is_worth_it(ctx, facts, policy, episode, standing, seen, rule, step)?;
    reboot::is_ready(facts, step)?;
    Ok((seen, lane))
}

/// The fault as it shows now; without that nothing is done about it.
fn present<'s, 'a>(
    facts: &NodeFacts<'_>,
    standing: &EpisodeFault,
    seen: Option<&'s Seen<'a>>,
) -> Result<&'s Seen<'a>, Hold> {
    let what = format!("{} ({}) on {}", standing.kind, standing.subject, facts.name);
    match seen {
        Some(seen) if seen.fault.state == FaultState::Confirmed => Ok(seen),
        Some(_) => Err(Hold::new(HoldReason::NotConfirmed, &format!("{what} is not confirmed any more"))),
        None => Err(Hold::new(HoldReason::NotConfirmed, &format!("{what} does not show now; its end is not sure yet"))),
    }
}

fn replace(episode: &mut Episode, standing: EpisodeFault) {
    if let Some(fault) = episode.fault_mut(&standing.id)
        && *fault != standing
    {
        *fault = standing;
    }
}

/// Records a step that is a dry run, or that even this would be held, and goes on to the next.
#[expect(clippy::too_many_arguments, reason = "the same that a step is taken with")]
fn shadow(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    policy: &Policy,
    turn: &mut Turn,
    mut standing: EpisodeFault,
    seen: Option<&Seen<'_>>,
    rule: &Rule,
    step: &Step,
) {
    let judged = judged(ctx, facts, policy, &turn.episode, &standing, seen, rule, step);
    let lane = judged.as_ref().map_or(Lane::Api, |(_, lane)| *lane);
    let mut record = attempt::record(ctx, &turn.episode, &standing, step, lane);
    let message = match judged {
        Ok((seen, _)) => {
            record.target = seen.fault.target.clone();
            "not done: the step is a dry run".to_owned()
        }
        Err(hold) => format!("not done: the step is a dry run, and would be held: {}", hold.message()),
    };
    record.finish(StepState::Simulated, &message, ctx.snapshot.now);
    turn.episode.steps.push(record);
    standing.rung += 1;
    replace(&mut turn.episode, standing);
}

#[expect(clippy::too_many_arguments, reason = "all of them make up the reservation")]
fn reserve(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    turn: &mut Turn,
    seen: &Seen<'_>,
    standing: &EpisodeFault,
    step: &Step,
    lane: Lane,
    wake: &mut Wake,
) {
    let mut record = attempt::record(ctx, &turn.episode, standing, step, lane);
    lanes::note(facts, &mut record);
    record.target = seen.fault.target.clone();
    let policy = ending::policy_of(ctx, &turn.episode);
    let agreed = policy.and_then(|policy| turn.episode.wished_by(standing, record.action, policy));
    record.approved_by = agreed.map(ToOwned::to_owned);
    attempt::owe(&mut turn.episode, &record);
    turn.episode.say(&format!("{} for {} ({}) by {lane:?}", record.phrase(), standing.kind, standing.subject));
    turn.effect = attempt::act(ctx, facts, &turn.episode, &record, &seen.fault, step);
    turn.episode.steps.push(record);
    wake.at(ctx.settings.retry);
}

/// Passes over a step that stayed held for too long, or that stays so for longer than anybody waits: every wait has an end. One that
/// waits for the hour of day, or since the node had its turn, or since nobody knows whose fault it is, is not replaced by a harsher
/// one: people are told instead, where the ladder says so.
fn pass_over(ctx: Ctx<'_>, turn: &mut Turn, mut standing: EpisodeFault, rule: &Rule, step: &Step, hold: &Hold) {
    let mut record = attempt::record(ctx, &turn.episode, &standing, step, Lane::Api);
    let why = if hold.reason == HoldReason::NodeLimit { "not done" } else { "held for too long" };
    record.finish(StepState::Refused, &format!("{why}: {}", hold.message()), ctx.snapshot.now);
    turn.episode.steps.push(record);
    standing.rung = drain::rung_without(step, rule, standing.rung);
    if hold.waits_for_its_hour() || hold.is_doubt() {
        standing.rung = rule.telling_rung(standing.rung);
    }
    replace(&mut turn.episode, standing);
}

/// What waits for a person keeps no other fault of the node waiting that can be healed without one: it is withdrawn for that, and
/// asked for again after it. `held` is how many holds the turn had before it was told what the others wait for.
fn give_way(
    ctx: Ctx<'_>,
    facts: &NodeFacts<'_>,
    policy: &Policy,
    turn: &mut Turn,
    held: usize,
    payment: &Payment,
    wake: &mut Wake,
) {
    let may = turn.episode.unanswered().is_some() && !policy.is_broken;
    let waiting = turn.episode.current_step().filter(|_| may);
    let Some(fault) = waiting.map(|step| step.fault_id.clone()) else { return };
    let mut other = Turn::new(turn.episode.clone());
    attempt::end(&mut other, StepState::Cancelled, approval::GAVE_WAY, ctx.snapshot.now);
    let mut later = *wake;
    next_step_but(ctx, facts, policy, &mut other, Some(&fault), payment, &mut later);
    let goes_first = other.episode.current_step().is_some_and(|step| step.action != ActionType::Notify);
    if other.effect.is_none() || !goes_first {
        return;
    }
    *wake = later;
    turn.held.truncate(held);
    turn.held.append(&mut other.held);
    (turn.episode, turn.effect) = (other.episode, other.effect);
}
