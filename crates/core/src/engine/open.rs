//! Opens new remediations while the budgets last: first the node that has waited longest, then the most severe fault.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::slot::SlotReservation;
use super::update::RemediationUpdate;
use super::{Ctx, PolicyContext, cause, dry_run, next_step, readiness, slot};
use crate::budget::Slots;
use crate::context::{Block, NodeContext, ObservedFault, Requeue};
use crate::fault::{FaultState, Severity};
use crate::plan::{BlockReason, Blocked};
use crate::policy::{Mode, Policy, Rule};
use crate::remediation::{MAX_REMEDIATION_FAULTS, Remediation, remediation_name};

/// Most remediations that one pass opens. Otherwise the end of a pass would act on checks that were fresh only at its beginning, and
/// what it has begun would wait. The next pass decides on the rest, on newer evidence, as soon as these have begun.
const IN_ONE_PASS: usize = 64;

/// A remediation that could begin: one node, one policy.
struct Candidate<'c> {
    cx: PolicyContext<'c>,
    ready: Vec<ReadyFault<'c>>,
    worst: Severity,
    /// When the node was last served, if that was recently.
    served: Option<Timestamp>,
    /// Whether it is a dry run beside a policy that acts. The controller records it and reports nothing else of it.
    is_parallel_dry_run: bool,
}

type ReadyFault<'c> = (&'c ObservedFault<'c>, &'c Rule);

impl<'c> Candidate<'c> {
    fn new(cx: PolicyContext<'c>, (seen, rule): ReadyFault<'c>, is_parallel_dry_run: bool) -> Self {
        let (worst, served) = (seen.fault.severity, cx.node.last_served());
        Self { cx, ready: vec![(seen, rule)], worst, served, is_parallel_dry_run }
    }
}

#[derive(Debug, Default)]
pub(super) struct Opened {
    /// New remediations with their first action.
    pub updates: Vec<RemediationUpdate>,
    pub blocked: Vec<Blocked>,
}

/// Opens remediations on nodes that have none. Skips the nodes in `ending`, whose remediation ends in this same pass.
pub(super) fn open(ctx: Ctx<'_>, ending: &BTreeSet<&str>, slots: &mut Slots, requeue: &mut Requeue) -> Opened {
    let mut opened = Opened::default();
    let mut candidates: Vec<Candidate<'_>> = Vec::new();
    for node in ctx.nodes.values().filter(|node| node.open.is_empty() && !ending.contains(node.name)) {
        candidates.extend(on_node(ctx, node, slots, &mut opened.blocked, requeue));
    }
    let (mut taken, mut tried): (BTreeMap<&str, &Policy>, BTreeMap<&str, &Policy>) = Default::default();
    for node in ctx.nodes.values() {
        tried.extend(dry_run::remember_simulated(node, slots, requeue).map(|policy| (node.name, policy)));
    }
    // The sort is stable: on one node the policy of the most urgent fault comes first. Trials come after everything that acts.
    candidates.sort_by(|a, b| {
        // A node that is faulty again and again, or says so, does not go before a node that was not served.
        let by_turn = a.served.cmp(&b.served);
        let by_urgency = b.worst.cmp(&a.worst).then_with(|| a.cx.node.name.cmp(b.cx.node.name));
        a.is_parallel_dry_run.cmp(&b.is_parallel_dry_run).then(by_turn).then(by_urgency)
    });
    for candidate in candidates {
        let PolicyContext { node, policy, .. } = candidate.cx;
        let node_name = node.name;
        // A policy that starts nothing keeps no other policy from the node. A dry run keeps only other dry runs from it, as it
        // would if all of them acted.
        let is_dry = policy.mode == Mode::DryRun;
        let is_other = |first: &&&Policy| is_dry && first.name != policy.name;
        let begun = match taken.get(node_name).or_else(|| tried.get(node_name).filter(is_other)) {
            Some(first) if !candidate.is_parallel_dry_run => Err(priority_of_other(node_name, first)),
            _ => begin(&candidate, slots, &opened.updates, requeue),
        };
        match begun {
            Ok(mut update) if candidate.is_parallel_dry_run => {
                update.blocked.clear();
                opened.updates.push(update);
            }
            // Only the policy that acts reports on the node.
            Err(_) if candidate.is_parallel_dry_run => {}
            Ok(update) => {
                let by_node = if is_dry { &mut tried } else { &mut taken };
                by_node.insert(node_name, policy);
                opened.updates.push(update);
            }
            Err(why) => {
                for (seen, _) in &candidate.ready {
                    let policy = Some(policy.name.as_str());
                    opened.blocked.push(why.clone().about(node_name, Some(&seen.fault.id), policy, requeue));
                }
            }
        }
    }
    opened
}

fn priority_of_other(node: &str, first: &Policy) -> Block {
    let message = format!(
        "policy {} comes first on node {node}, with a more urgent fault, one remediation at a time",
        first.name
    );
    Block::new(BlockReason::LowerUrgency, &message)
}

/// Returns what could begin on the node, by policy. The policy with the most urgent fault comes first.
fn on_node<'c>(
    ctx: Ctx<'c>,
    node: &'c NodeContext<'_>,
    slots: &Slots,
    blocked: &mut Vec<Blocked>,
    requeue: &mut Requeue,
) -> Vec<Candidate<'c>> {
    let mut candidates = Vec::new();
    for seen in node.seen.iter().filter(|seen| seen.fault.state == FaultState::Confirmed) {
        let id = Some(seen.fault.id.as_str());
        let Some(policy) = node.policy_for(&seen.fault).filter(|_| node.view.is_some()) else {
            let message = format!("no policy selects node {}, so nothing is done about {}", node.name, seen.fault.kind);
            blocked.push(Block::new(BlockReason::NoPolicy, &message).about(node.name, id, None, requeue));
            continue;
        };
        let cx = PolicyContext { ctx, node, policy };
        match cause::judge(cx, seen) {
            Err(why) => {
                // A fleet that waits for a slot or for the end of a storm would else be checked every minute.
                let is_stale = why.reason == BlockReason::StaleEvidence;
                let why = is_stale.then(|| blocked_anyway(cx, seen, slots)).flatten().unwrap_or(why);
                blocked.push(why.about(node.name, id, Some(&policy.name), requeue));
            }
            Ok(rule) => add(&mut candidates, Candidate::new(cx, (seen, rule), false)),
        }
        let trial = node.dry_run_for(&seen.fault, policy).map(|policy| PolicyContext { policy, ..cx });
        if let Some((cx, rule)) = trial.and_then(|cx| Some((cx, cause::judge(cx, seen).ok()?))) {
            add(&mut candidates, Candidate::new(cx, (seen, rule), true));
        }
    }
    candidates
}

/// Why the fault is not remediated now, whatever a check would find.
fn blocked_anyway(cx: PolicyContext<'_>, seen: &ObservedFault<'_>, slots: &Slots) -> Option<Block> {
    let (PolicyContext { node, policy, .. }, kind) = (cx, seen.fault.kind);
    if policy.mode == Mode::DryRun
        && let Some(simulated) = dry_run::simulated(cx, seen)
    {
        return Some(dry_run::block(policy, Some(simulated)));
    }
    let scope = cx.scope()?;
    if let Some(blocked) = scope.blocked(Some(node)) {
        return Some(Block::from(blocked));
    }
    if let Some((rule, None)) = node.rule_of(policy, &seen.fault) {
        let storm = readiness::no_storm(cx, &seen.fault, rule).err();
        let storm = storm.or_else(|| readiness::after_storm(cx, kind, rule, slots));
        if storm.is_some() {
            return storm;
        }
    }
    if slots.nodes_in_flight(&policy.name, policy.mode).any(|name| name == node.name) {
        return None;
    }
    let of_fault = scope.fault_limit_reached(kind, node.name, slots).map(Block::from);
    of_fault.or_else(|| cx.limit_reached(slots))
}

/// Adds a candidate to those of the same policy. A dry run that owns the fault and a trial stay separate.
fn add<'c>(candidates: &mut Vec<Candidate<'c>>, one: Candidate<'c>) {
    let key = |one: &Candidate<'c>| (&one.cx.policy.name, one.is_parallel_dry_run);
    match candidates.iter_mut().find(|other| key(other) == key(&one)) {
        Some(same) => same.ready.extend(one.ready),
        None => candidates.push(one),
    }
}

/// Keeps the faults without a block. Returns the first block where no fault is left.
fn retain(
    ready: &mut Vec<ReadyFault<'_>>,
    against: impl Fn(&ObservedFault<'_>, &Rule) -> Option<Block>,
) -> Result<(), Block> {
    let mut first = None;
    ready.retain(|(seen, rule)| match against(seen, rule) {
        Some(why) => {
            first.get_or_insert(why);
            false
        }
        None => true,
    });
    first.filter(|_| ready.is_empty()).map_or(Ok(()), Err)
}

fn begin(
    candidate: &Candidate<'_>,
    slots: &mut Slots,
    opened: &[RemediationUpdate],
    requeue: &mut Requeue,
) -> Result<RemediationUpdate, Block> {
    let cx = candidate.cx;
    let PolicyContext { ctx, node, policy } = cx;
    let scope = cx.scope();
    let mut ready: Vec<_> = candidate.ready.clone();
    // After a storm only some faults go on, and each kind may have a limit. Other faults of the node go on.
    retain(&mut ready, |seen, rule| readiness::after_storm(cx, seen.fault.kind, rule, slots))?;
    retain(&mut ready, |seen, _| scope?.fault_limit_reached(seen.fault.kind, node.name, slots).map(Block::from))?;
    if policy.mode == Mode::DryRun {
        ready.retain(|(seen, _)| dry_run::simulated(cx, seen).is_none());
    }
    let Some((first, _)) = ready.first() else {
        let known = candidate.ready.first().and_then(|(seen, _)| dry_run::simulated(cx, seen));
        return Err(dry_run::block(policy, known));
    };
    cx.require_unblocked()?;
    let uid = node.view.map_or_else(String::new, |view| view.uid.clone());
    let name = name(node, &uid, first, opened);
    if let Some(unseen) = slots.unseen_remediation(node.name, &name) {
        let message = format!("remediation {unseen} holds a slot for node {}, but does not show yet", node.name);
        return Err(Block::new(BlockReason::InProgress, &message));
    }
    // The current fleet decides on a slot that the remediation may hold already, not the fleet of that time.
    cx.limit_reached(&slots.without(&name)).map_or(Ok(()), Err)?;
    if opened.len() >= IN_ONE_PASS {
        let message =
            format!("{IN_ONE_PASS} other nodes are begun first, the more urgent ones; its turn comes right after");
        return Err(Block::new(BlockReason::Queued, &message).until(ctx.settings.retry));
    }
    ready.truncate(MAX_REMEDIATION_FAULTS);
    let mut update = RemediationUpdate::new(remediation(cx, name, uid, &ready), SlotReservation::of_new(slots));
    next_step::reserve_for_most_urgent(cx, &mut update);
    if update.remediation.current_step().is_none() {
        requeue.merge(update.requeue);
        let message = format!("no step can be taken on node {} now", node.name);
        return Err(Block::new(BlockReason::ActionsDisabled, &message));
    }
    slot::take(ctx, slots, &update.remediation);
    match policy.mode {
        Mode::Enforce => update.remediation.set_phase(),
        Mode::DryRun => dry_run::simulate(cx, &mut update, &ready),
    }
    Ok(update)
}

fn remediation(cx: PolicyContext<'_>, name: String, node_uid: String, ready: &[ReadyFault<'_>]) -> Remediation {
    Remediation {
        name,
        node: cx.node.name.to_owned(),
        node_uid,
        policy: cx.policy.name.clone(),
        mode: cx.policy.mode,
        started_at: cx.snapshot.now,
        faults: ready.iter().map(|(seen, rule)| seen.opened(cx.snapshot.now, rule)).collect(),
        ..Remediation::default()
    }
}

/// Returns the next free name for this occurrence. A name is never reused, since the node claims operations by it.
fn name(node: &NodeContext<'_>, uid: &str, first: &ObservedFault<'_>, opened: &[RemediationUpdate]) -> String {
    let one = remediation_name(node.name, uid, &first.fault, 1);
    let stem = one.strip_suffix('1').unwrap_or(&one);
    let last = node
        .remediations()
        .filter_map(|remediation| remediation.name.strip_prefix(stem)?.parse::<u32>().ok())
        .max()
        .unwrap_or(0);
    let mut ordinal = last.saturating_add(1);
    let mut name = remediation_name(node.name, uid, &first.fault, ordinal);
    // The name of another node may be cut to the same beginning, and this pass may have opened one for another policy.
    let is_taken = |name: &String| {
        node.cluster.snapshot.remediations.contains_key(name)
            || node.cluster.snapshot.manual_requests.contains_key(name)
            || node.cluster.snapshot.unreadable.contains_key(name)
            || opened.iter().any(|update| update.remediation.name == *name)
    };
    while is_taken(&name) && ordinal < 9_999 {
        ordinal = ordinal.saturating_add(1);
        name = remediation_name(node.name, uid, &first.fault, ordinal);
    }
    name
}
