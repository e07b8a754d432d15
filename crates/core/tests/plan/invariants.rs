//! What every plan and every world keeps, whatever happens: budgets, one step at a time, a look before each act, nothing left behind.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use nrh_core::drain::{Owner, cannot_end};
use nrh_core::episode::{Episode, HealState, Phase, StepRecord, StepState, episode_of, since};
use nrh_core::fault::{FaultState, FaultType};
use nrh_core::hand_off::HandedOff;
use nrh_core::narrow::PodSeen;
use nrh_core::order::NodeAction;
use nrh_core::plan::{Effect, Operation, Plan};
use nrh_core::policy::{ActionType, Mode, Policy, Rule, Step};
use nrh_core::snapshot::{NodeView, Snapshot, Tri};
use nrh_core::taint::TaintEffect;
use nrh_core::window;
use nrh_simulate::remediator::Object;

use crate::events::{LABEL, NODES, NOT_DB, happen};
use crate::random_worlds::Round;
use crate::told::Told;
use crate::world::{World, secs};

/// The policy in whose name an episode acts.
fn policy_of<'s>(snapshot: &'s Snapshot, episode: &Episode) -> &'s Policy {
    let named = snapshot.policies.iter().find(|policy| policy.name == episode.policy);
    named.unwrap_or_else(|| panic!("in the name of a policy that is gone: {episode:?}"))
}

/// The rule by which a step is taken, and its rung there.
fn rung_of<'s>(snapshot: &'s Snapshot, record: &Episode, step: &StepRecord) -> (&'s Rule, &'s Step) {
    let fault = record.fault(&step.fault_id).unwrap();
    let rule = policy_of(snapshot, record).rule(&fault.rule).unwrap();
    (rule, &rule.steps[step.rung as usize])
}

/// The policy that such a fault of the node is for: of those that act and select the node, the one that goes first of those that
/// name the fault.
fn owner<'s>(snapshot: &'s Snapshot, node: &str, kind: FaultType) -> Option<&'s str> {
    let labels = &snapshot.nodes.get(node)?.labels;
    let names = |policy: &&Policy| match kind {
        FaultType::NodeCondition => policy.rules.iter().any(|rule| !rule.conditions.is_empty()),
        kind => policy.rules.iter().any(|rule| rule.faults.contains(&kind)),
    };
    let acts = snapshot.policies.iter().filter(|policy| policy.mode == Mode::Enforce);
    let all = acts.filter(|policy| policy.selector.matches(labels)).filter(names);
    all.min_by_key(|policy| (Reverse(policy.priority), &policy.name)).map(|policy| policy.name.as_str())
}

/// No fault enters an episode of a policy that it is not for.
fn check_owner(snapshot: &Snapshot, episode: &Episode) {
    if episode.mode == Mode::DryRun || episode.phase.is_final() {
        return;
    }
    let known = snapshot.episodes.get(&episode.name);
    let was_open = |id: &str| known.and_then(|known| known.fault(id)).is_some_and(|was| was.state == HealState::Open);
    let entered = episode.faults.iter().filter(|fault| fault.state == HealState::Open && !was_open(&fault.id));
    for fault in entered {
        let owner = owner(snapshot, &episode.node, fault.kind);
        assert!(owner.is_none_or(|owner| owner == episode.policy), "{fault:?} is for {owner:?}: {episode:?}");
    }
}

/// What every plan keeps, by what it was decided from.
pub fn check_plan(snapshot: &Snapshot, plan: &Plan) {
    if let Some(next) = plan.next {
        assert!(next > Duration::ZERO);
    }
    let mut acts = BTreeMap::<&str, u32>::new();
    for (place, effect) in plan.effects.iter().enumerate() {
        match effect {
            Effect::StoreLedger(ledger) => {
                assert_eq!(place, 0, "the ledger comes first");
                let had = snapshot.ledger.as_ref().map_or(0, |ledger| ledger.slots.len());
                let open = snapshot.episodes.values().filter(|e| e.is_open() && e.mode == Mode::Enforce).count();
                let most = usize::try_from(snapshot.ceiling).unwrap();
                assert!(ledger.slots.len() <= most.max(had).max(open), "{ledger:?}");
            }
            Effect::WriteEpisode(episode) => {
                check_episode(episode);
                check_new(snapshot, episode);
                check_owner(snapshot, episode);
            }
            Effect::BeginWish(episode) => {
                check_episode(episode);
                check_wish(snapshot, plan, episode);
                check_owner(snapshot, episode);
            }
            Effect::TellWish { name, message, .. } => {
                let wish = &snapshot.wishes[name];
                assert!(since(snapshot.now, wish.asked_at) < wish.wish.timeout, "it waits for ever");
                assert!(*message != wish.message && message.len() <= 512, "{message}");
            }
            Effect::Act { episode, operation_id, node, node_uid, operation } => {
                *acts.entry(node).or_default() += 1;
                let written = plan.effects[..place].iter().find_map(|effect| match effect {
                    Effect::WriteEpisode(written) | Effect::BeginWish(written) if written.name == *episode => {
                        Some(written.as_ref())
                    }
                    _ => None,
                });
                let record = written.or_else(|| snapshot.episodes.get(episode)).unwrap();
                let step = record.current_step().unwrap();
                assert_eq!(step.operation_id, *operation_id, "reserved before the act");
                assert!(record.cancel.is_none(), "an act after a person's no was seen");
                check_act(snapshot, record, node, node_uid, operation);
                check_approved(snapshot, record, step);
                assert_eq!(rung_of(snapshot, record, step).1.mode, Mode::Enforce, "a step that is a dry run");
                let is_new = |known: &Episode| known.steps.iter().all(|had| had.operation_id != *operation_id);
                if snapshot.episodes.get(episode).is_none_or(is_new) {
                    let owner = owner(snapshot, node, record.fault(&step.fault_id).unwrap().kind);
                    assert_eq!(owner, Some(record.policy.as_str()), "begun by another policy: {step:?}");
                }
                check_pod(snapshot, record, step, operation);
                if matches!(operation, Operation::HandOff(_)) {
                    let owed = record.undo.hand_off_of(operation_id).unwrap();
                    assert_eq!(&owed.name, node, "what is to be deleted is remembered before it is made");
                }
                if matches!(operation, Operation::Cordon) {
                    assert!(record.undo.owes_cordon(), "the undo is remembered before the act");
                }
                if matches!(operation, Operation::Taint(_)) {
                    assert!(record.undo.owes_taint(), "the undo is remembered before the act");
                }
            }
            Effect::Uncordon { episode, node, .. } => {
                let mark = snapshot.nodes[node].cordoned_by.as_ref();
                assert!(mark.is_none_or(|mark| mark == episode), "someone else's mark");
                if let Some(known) = snapshot.episodes.get(episode) {
                    // On a replaced node for the mark that came back with it, and nothing else: the cordon stays (`check_opened`).
                    assert!(known.node_uid == snapshot.nodes[node].uid || mark.is_some(), "on a replaced node");
                }
            }
            Effect::Untaint { episode, node } => {
                let mark = snapshot.nodes[node].tainted_by.as_ref();
                assert!(mark.is_none_or(|mark| mark.episode == *episode), "someone else's mark");
                if let Some(known) = snapshot.episodes.get(episode) {
                    let is_owed = known.undo.owes_taint() && known.node_uid == snapshot.nodes[node].uid;
                    assert!(is_owed || !known.may_own_taint_of(&snapshot.nodes[node].uid), "it is another's");
                    assert!(!known.is_contained() || !is_owed, "a taint outlasts no episode");
                }
            }
            Effect::TimeOutHandOff { episode, handed, at, .. } => {
                let record = &snapshot.episodes[episode];
                assert_eq!(record.current_step().unwrap().operation_id, handed.operation_id);
                assert!(*at <= snapshot.now, "before its time is over");
            }
            Effect::TakeBackHandOff { episode, handed, .. } => {
                let step = snapshot.episodes[episode].current_step();
                assert!(
                    step.is_none_or(|step| step.operation_id != handed.operation_id)
                        || plan.effects[..place]
                            .iter()
                            .any(|e| matches!(e, Effect::WriteEpisode(w) if w.name == *episode)),
                    "taken back under way"
                );
            }
            Effect::DeleteEpisode { name } => assert!(!snapshot.episodes[name].is_live()),
            Effect::WithdrawOrder { .. } | Effect::DeleteJob { .. } => {}
        }
    }
    assert!(acts.values().all(|count| *count == 1), "one step a node: {acts:?}");
    check_room(snapshot, plan);
}

/// What stands on a machine that carries the mark of an episode of another one is nobody's here: it is never opened for the sake of
/// that mark. Of `before` is what was so when the plan was carried out, whatever that was decided from.
fn check_opened(before: &Snapshot, plan: &Plan, world: &World) {
    for effect in &plan.effects {
        let Effect::Uncordon { episode, node, .. } = effect else { continue };
        let Some((known, view)) = before.episodes.get(episode).zip(before.nodes.get(node)) else { continue };
        let stays = known.node_uid != view.uid && view.unschedulable;
        assert!(!stays || world.nodes[node].view.unschedulable, "{node} was opened for {episode}, of another machine");
    }
}

/// What is opened has room by the fleet as it is: a percent of a fleet that has shrunk is less than it was.
fn check_room(snapshot: &Snapshot, plan: &Plan) {
    let written = |effect: &Effect| match effect {
        Effect::WriteEpisode(episode) | Effect::BeginWish(episode) => Some(episode.as_ref().clone()),
        _ => None,
    };
    let is_running = |e: &&Episode| e.mode == Mode::Enforce && !e.phase.is_final();
    let written: BTreeMap<String, Episode> =
        plan.effects.iter().filter_map(written).map(|episode| (episode.name.clone(), episode)).collect();
    let opened = |of: &dyn Fn(&Episode) -> bool| {
        written.values().filter(is_running).filter(|e| of(e) && !snapshot.episodes.contains_key(&e.name)).count()
    };
    let running = |of: &dyn Fn(&Episode) -> bool| {
        let known = snapshot.episodes.values().map(|known| written.get(&known.name).unwrap_or(known));
        known.filter(is_running).filter(|e| of(e)).count() + opened(of)
    };
    let all = running(&|_| true);
    assert!(opened(&|_| true) == 0 || all <= usize::try_from(snapshot.ceiling).unwrap(), "{all} in flight");
    for policy in &snapshot.policies {
        let own = |episode: &Episode| episode.policy == policy.name;
        let selected = selected(snapshot, policy).count();
        let most = policy.limits.max_in_flight.of(u32::try_from(selected).unwrap());
        let all = running(&own);
        let is_within = opened(&own) == 0 || all <= usize::try_from(most).unwrap();
        assert!(is_within, "{all} of {} in flight, {most} of {selected} nodes", policy.name);
        for limit in &policy.limits.per_topology {
            for place in ["0", "1"] {
                let is_there = |node: &NodeView| node.labels.get(&limit.key).is_some_and(|value| value == place);
                let there = |e: &Episode| own(e) && snapshot.nodes.get(&e.node).is_some_and(is_there);
                let nodes = self::selected(snapshot, policy).filter(|node| is_there(node)).count();
                let most = limit.max_in_flight.of(u32::try_from(nodes).unwrap());
                let is_within = opened(&there) == 0 || running(&there) <= usize::try_from(most).unwrap();
                assert!(is_within, "{} in zone {place}, {most} of {nodes} nodes", running(&there));
            }
        }
        for limit in &policy.limits.per_fault {
            let such = |e: &Episode| own(e) && !e.kinds().is_disjoint(&limit.faults);
            let most = limit.max_in_flight.of(u32::try_from(selected).unwrap());
            let is_within = opened(&such) == 0 || running(&such) <= usize::try_from(most).unwrap();
            assert!(is_within, "{} for {:?}, {most} of {selected} nodes", running(&such), limit.faults);
        }
    }
}

/// The nodes that a policy is for.
fn selected<'s>(snapshot: &'s Snapshot, policy: &Policy) -> impl Iterator<Item = &'s NodeView> {
    snapshot.nodes.values().filter(|node| !node.deleting && policy.selector.matches(&node.labels))
}

/// Where nothing new may be begun no episode is opened, and by a policy that cannot be used no step is begun in one that is open.
fn check_new(snapshot: &Snapshot, episode: &Episode) {
    let Some(known) = snapshot.episodes.get(&episode.name) else {
        // The record of a start by hand that was not begun.
        if episode.wish.is_some() && episode.phase.is_final() {
            return;
        }
        let policy = policy_of(snapshot, episode);
        assert!(!policy.suspend && !policy.is_broken && policy.pause_requests.is_empty(), "opened: {episode:?}");
        assert!(policy.selector.matches(&snapshot.nodes[&episode.node].labels), "not its node: {episode:?}");
        // What else is unhealthy comes on top of these.
        let down = selected(snapshot, policy).filter(|node| node.ready != Tri::True).count();
        let selected = u32::try_from(selected(snapshot, policy).count()).unwrap();
        let most = usize::try_from(policy.limits.max_unhealthy.of(selected)).unwrap();
        assert!(down <= most, "opened with {down} nodes that are not Ready, maxUnhealthy is {most}: {episode:?}");
        return;
    };
    let policy = snapshot.policies.iter().find(|policy| policy.name == episode.policy);
    let is_usable = policy.is_some_and(|policy| !policy.is_broken);
    assert!(is_usable || episode.steps.len() <= known.steps.len(), "a step by a policy that cannot be used");
}

/// What asks for a person is done with his word for this very attempt.
fn check_approved(snapshot: &Snapshot, record: &Episode, step: &StepRecord) {
    let (_, rung) = rung_of(snapshot, record, step);
    let is_agreed = record.approved(&step.operation_id).is_some() || record.wish.is_some();
    assert!(!rung.needs_approval() || is_agreed, "nobody has agreed: {step:?}");
}

/// What a person starts by hand is one episode, paid for, on a node that has no other.
fn check_wish(snapshot: &Snapshot, plan: &Plan, episode: &Episode) {
    let wish = &snapshot.wishes[&episode.name];
    assert!(wish.cancel.is_none() && !wish.deleting && !snapshot.episodes.contains_key(&episode.name));
    assert_eq!((episode.identity.as_ref(), episode.wish.as_ref()), (Some(&wish.identity), Some(&wish.wish)));
    assert!(snapshot.episodes.values().all(|other| other.node != episode.node || !other.is_open()), "a second episode");
    let stored =
        plan.effects.iter().find_map(|e| if let Effect::StoreLedger(ledger) = e { Some(ledger) } else { None });
    let ledger = stored.or(snapshot.ledger.as_ref()).unwrap();
    assert!(ledger.slots.contains_key(&episode.name), "no slot: {ledger:?}");
    let policy = policy_of(snapshot, episode);
    assert!(!policy.suspend && policy.mode == Mode::Enforce && policy.pause_requests.is_empty() && !policy.is_broken);
    let step = episode.current_step().unwrap();
    let agreed = (wish.wish.policy_generation == Some(policy.generation)).then_some("ann");
    assert_eq!((step.action, step.approved_by.as_deref()), (wish.wish.action, agreed));
    let rule = policy.rule(&episode.faults[0].rule).unwrap();
    let first = rule.steps.iter().position(|one| one.mode == Mode::Enforce && one.action.kind() == step.action);
    assert_eq!(first, Some(step.rung as usize), "a later step in the place of the first");
    assert!(since(snapshot.now, wish.asked_at) < wish.wish.timeout, "what was wanted long ago");
    let reported = snapshot.reports[&episode.node].faults.iter().find(|seen| seen.fault.id == step.fault_id);
    assert!(reported.is_none_or(|seen| seen.fault.state == FaultState::Confirmed), "no fault that is confirmed");
}

fn check_episode(episode: &Episode) {
    let under_way = episode.steps.iter().filter(|step| !step.state.is_final()).count();
    assert!(under_way <= 1, "{episode:?}");
    assert!(episode.mode == Mode::Enforce || episode.phase.is_final(), "a dry run is over at once");
    assert!(!episode.phase.is_final() || under_way == 0, "{episode:?}");
    assert!(episode.phase != Phase::Succeeded || !episode.undo.is_owed(), "{episode:?}");
    assert!(!episode.is_contained() || episode.undo.is_owed(), "{episode:?}");
    assert!(episode.name.len() <= 58 && episode.message.len() <= 512);
}

/// How often a node was acted on in the name of a policy, by what is remembered, under whichever uid.
fn acted(snapshot: &Snapshot, policy: &Policy, node: &str) -> usize {
    let within = policy.limits.per_node.within;
    let is_its = |e: &Episode| e.mode == Mode::Enforce && e.policy == policy.name;
    let of_node = |e: &&Episode| is_its(e) && e.node == node;
    let steps = snapshot.episodes.values().filter(of_node).flat_map(|episode| &episode.steps);
    let healing =
        steps.filter(|step| !matches!(step.action, ActionType::Cordon | ActionType::Taint | ActionType::Notify));
    let touched = healing.filter(|step| step.state != StepState::Refused && !step.is_refused_call());
    touched.filter_map(|step| step.acted_at.or(step.started_at)).filter(|at| since(snapshot.now, *at) < within).count()
}

/// Never on suspicion, on old evidence, on another node, against a no.
fn check_act(snapshot: &Snapshot, record: &Episode, node: &str, uid: &str, operation: &Operation) {
    let (view, report) = (&snapshot.nodes[node], &snapshot.reports[node]);
    assert_eq!(view.uid, uid);
    assert!(view.vetoes.is_empty() && !view.deleting && report.suspended.is_none());
    assert_eq!(report.node_uid.as_ref(), Some(&view.uid));
    let policy = policy_of(snapshot, record);
    assert!(!policy.suspend && policy.mode == Mode::Enforce);
    let is_told = matches!(operation, Operation::Notify(_));
    // A drain that goes on is counted already, and asks for no hour: what has begun is finished.
    let open = snapshot.episodes.values().find(|episode| episode.node == node && episode.is_open());
    let step = open.and_then(Episode::current_step);
    let goes_on = step.is_some_and(|step| step.action == ActionType::Drain && step.state == StepState::Started);
    assert!(is_told || goes_on || window::shut(&policy.windows, ActionType::DeletePod, snapshot.now).is_none());
    assert!(snapshot.ledger.is_some() || snapshot.episodes.values().any(|e| e.node == node && e.is_open()));
    let heartbeat = report.heartbeat.as_ref().unwrap();
    if matches!(operation, Operation::Notify(_)) && heartbeat.arrived > heartbeat.interval {
        return;
    }
    assert!(heartbeat.arrived <= heartbeat.interval * 3 / 2, "a missed heartbeat");
    if matches!(operation, Operation::Drain(_)) {
        assert_eq!(snapshot.may_evict, Tri::True);
        let own = view.cordoned_by.as_ref().and_then(|mark| snapshot.episodes.get(mark)).unwrap();
        assert!(view.unschedulable && own.is_open(), "drained without a cordon of its episode");
        let faults = report.faults.iter().map(|seen| &seen.fault);
        assert_eq!(cannot_end(view.ready, heartbeat.kubelet_works, faults), None, "drained where no pod ends");
    }
    if !goes_on && !matches!(operation, Operation::Cordon | Operation::Taint(_) | Operation::Notify(_)) {
        assert!(acted(snapshot, policy, node) < policy.limits.per_node.acts as usize, "more acts than a node may have");
    }
    if let Operation::HandOff(with) = operation {
        let lately =
            |e: &&Episode| since(snapshot.now, e.finished_at.unwrap_or(snapshot.now)) < Duration::from_hours(1);
        let others = snapshot.episodes.values().filter(|e| e.node == node && e.node_uid != uid);
        let steps = others.filter(|e| e.mode == Mode::Enforce).filter(lately).flat_map(|e| &e.steps);
        let mut begun = steps.filter(|step| step.started_at.is_some() && step.state != StepState::Refused);
        assert!(begun.all(|step| step.hand_off.as_ref() != Some(with)), "handed off again as another Node object");
    }
    // Whatever is begun is begun on a fresh look at a fault that is confirmed, or that shows in the API.
    if let Some(step) = record.current_step().filter(|_| !is_told && !goes_on) {
        if let Some(seen) = report.faults.iter().find(|seen| seen.fault.id == step.fault_id) {
            assert!(seen.fault.state == FaultState::Confirmed && seen.looked <= secs(45), "{seen:?}");
        } else {
            let kind = record.fault(&step.fault_id).map(|fault| fault.kind);
            assert!(kind.is_some_and(FaultType::is_cluster_fault), "{step:?}");
        }
    }
    if let Operation::RunJob(order) | Operation::GiveOrder(order) = operation {
        let seen = report.faults.iter().find(|seen| seen.fault.id == order.fault_id).unwrap();
        assert_eq!(seen.fault.state, FaultState::Confirmed);
        assert!(seen.looked <= secs(45), "an old look");
    }
    if let Operation::GiveOrder(order) | Operation::RunJob(order) = operation
        && let Some(with) = &order.restart
    {
        let safe = match order.action {
            NodeAction::RestartKubelet => report.restart.kubelet,
            NodeAction::RestartRuntime => report.restart.runtime,
            other => panic!("{other:?} is no restart"),
        };
        assert!(safe == Tri::True || with.even_if_unsafe, "{:?} while that is not safe", order.action);
        assert!(matches!(operation, Operation::GiveOrder(_)), "a restart by a Job");
    }
    check_reboot(snapshot, node, operation);
    if let Operation::DeletePod(target) = operation {
        let pod = snapshot.pods.iter().find(|pod| pod.pod == *target).unwrap();
        assert!(pod.daemon_set.is_some() && pod.node == node && pod.read <= secs(45));
        assert!(!report.faults.iter().any(|seen| seen.fault.kind == FaultType::HungContainer
            && seen.fault.subject.pod.as_ref().is_some_and(|pod| pod.uid == target.uid)));
    }
}

/// A rule that asks for the labels of pods is for no fault whose pod's labels nobody knows.
fn check_pod(snapshot: &Snapshot, record: &Episode, step: &StepRecord, operation: &Operation) {
    let narrow = &rung_of(snapshot, record, step).0.narrow;
    if narrow.pods.is_none() || matches!(operation, Operation::Notify(_)) {
        return;
    }
    let fault = record.fault(&step.fault_id).unwrap();
    let pod = fault.subject.pod.as_ref().or(step.target.pod.as_ref()).unwrap();
    match snapshot.pods_seen.get(pod) {
        Some(PodSeen::Read(traits)) => assert_ne!(traits.labels[LABEL].as_deref(), Some(NOT_DB)),
        other => panic!("acted on pod {pod} of which nothing is known: {other:?}"),
    }
}

/// What the world keeps after every pass, however it was disturbed.
/// For the boot that the node is in, and once in an episode; by its own agent only under the cordon of that episode.
fn check_reboot(snapshot: &Snapshot, node: &str, operation: &Operation) {
    let Operation::GiveOrder(order) = operation else {
        assert!(!matches!(operation, Operation::RunJob(order) if order.boot_id.is_some()), "by a Job");
        return;
    };
    assert_eq!(order.mark.is_some(), order.action == NodeAction::MarkForReboot);
    if !matches!(order.action, NodeAction::Reboot | NodeAction::MarkForReboot) {
        return assert_eq!(order.boot_id, None);
    }
    let (view, report) = (&snapshot.nodes[node], &snapshot.reports[node]);
    assert!(order.boot_id.is_some() && order.boot_id == view.boot_id, "for another boot");
    assert_eq!(view.boot_id.as_ref(), report.heartbeat.as_ref().map(|heartbeat| &heartbeat.boot_id));
    let is_begun = |step: &&StepRecord| {
        step.action.boots() && step.started_at.is_some() && step.operation_id != order.operation_id
    };
    // One that begins just now has none of before.
    let begun =
        |own: &Episode| own.steps.iter().filter(is_begun).filter(|step| step.state != StepState::Refused).count();
    let own = snapshot.episodes.get(episode_of(&order.operation_id));
    assert_eq!(own.map_or(0, begun), 0, "twice in one episode");
    if order.action == NodeAction::MarkForReboot {
        return assert_ne!(view.ready, Tri::Unknown, "marked although nobody knows how it is");
    }
    let own = view.cordoned_by.as_ref().and_then(|mark| snapshot.episodes.get(mark)).unwrap();
    assert!(view.unschedulable && own.is_open() && own.undo.owes_cordon(), "without a cordon of its episode");
}

/// No machine boots more often than it was told to.
fn check_boots(world: &World) {
    for (name, node) in &world.nodes {
        let told = world
            .log
            .iter()
            .filter(|(of, what)| of == name && ["order Reboot", "order MarkForReboot"].contains(&what.as_str()))
            .count();
        assert!(
            node.boots.count as usize <= told,
            "{name} was booted {} times, and told to {told} times",
            node.boots.count
        );
    }
}

pub fn check_world(world: &World) {
    check_boots(world);
    for node in NODES {
        let open = world.episodes.values().filter(|e| e.node == node && e.current_step().is_some()).count();
        assert!(open <= 1, "two steps on {node}");
    }
    assert!(world.acts.values().all(|count| *count == 1), "an operation was done twice: {:?}", world.acts);
    // What is at its end and only puts back a cordon that it has kept holds no slot.
    let in_flight = |e: &&Episode| !e.phase.is_final() && e.mode == Mode::Enforce;
    let open: Vec<&Episode> = world.episodes.values().filter(in_flight).collect();
    assert!(open.len() <= usize::try_from(world.ceiling).unwrap(), "{} in flight of {}", open.len(), world.ceiling);
    for node in NODES {
        let here = open.iter().filter(|episode| episode.node == node).count();
        assert!(here <= 1, "{here} episodes of {node}");
    }
    for policy in &world.policies {
        let own: Vec<&Episode> = open.iter().filter(|episode| episode.policy == policy.name).copied().collect();
        check_limits(world, policy, &own);
    }
    if let Some(ledger) = &world.ledger {
        assert!(ledger.slots.len() <= usize::try_from(world.ceiling).unwrap(), "{ledger:?}");
    }
    check_hand_offs(world);
    check_drains(world);
    world.episodes.values().for_each(|episode| check_refusals(world, episode));
}

/// What is open in the name of a policy is within its limits, and so are its slots.
fn check_limits(world: &World, policy: &Policy, open: &[&Episode]) {
    let most = usize::try_from(policy.limits.max_in_flight.of(4)).unwrap();
    assert!(open.len() <= most, "{} of {} in flight, {most} allowed", open.len(), policy.name);
    for limit in &policy.limits.per_topology {
        let zone = |episode: &Episode| world.nodes.get(&episode.node).map(|node| node.view.labels[&limit.key].clone());
        for place in ["0", "1"] {
            let here = open.iter().filter(|episode| zone(episode).as_deref() == Some(place)).count();
            assert!(here <= usize::try_from(limit.max_in_flight.of(2)).unwrap(), "{here} in zone {place}");
        }
    }
    for limit in &policy.limits.per_fault {
        let such = open.iter().filter(|episode| !episode.kinds().is_disjoint(&limit.faults)).count();
        assert!(such <= usize::try_from(limit.max_in_flight.of(4)).unwrap(), "{such} for {:?}", limit.faults);
    }
    let slots = world.ledger.iter().flat_map(|ledger| ledger.slots.values());
    let slots = slots.filter(|slot| slot.policy == policy.name).count();
    assert!(slots <= most, "{slots} slots of {}, {most} allowed", policy.name);
}

/// Nothing is made twice, nor beside another of the same kind, nor is anything left that no episode will take back.
fn check_hand_offs(world: &World) {
    let hand_offs = &world.remediators;
    assert!(hand_offs.made.values().all(|count| *count == 1), "made twice: {:?}", hand_offs.made);
    for object in &hand_offs.objects {
        let is_kept_in_mind =
            |episode: &Episode, owed: &HandedOff| owed.deleted_at.is_none() || is_given_up(episode, owed);
        assert!(is_of_any(world, object, is_kept_in_mind), "stranded: {object:?}");
    }
    for step in world.episodes.values().flat_map(|episode| &episode.steps) {
        let in_vain = step.action == ActionType::HandOff && step.state == StepState::TimedOut;
        if in_vain && step.started_at.is_some() && !step.message.contains("could not be told") {
            assert!(hand_offs.told.contains(&step.operation_id), "its remediator knows nothing: {step:?}");
        }
    }
}

/// Whether an episode has made that object, and what it says of it is so.
fn is_of_any(world: &World, object: &Object, says: impl Fn(&Episode, &HandedOff) -> bool) -> bool {
    let mut made = world.episodes.values().flat_map(|e| e.undo.handed_off.iter().map(move |owed| (e, owed)));
    made.any(|(episode, owed)| {
        owed.is_of_episode(&object.handed.operation_id) && owed.is_same_object(&object.handed) && says(episode, owed)
    })
}

/// Its deletion has failed for ten minutes: it goes with the episode, which owns it.
fn is_given_up(episode: &Episode, owed: &HandedOff) -> bool {
    let step = episode.steps.iter().find(|step| step.operation_id == owed.operation_id);
    let ended = step.and_then(|step| step.finished_at);
    owed.deleted_at.zip(ended).is_some_and(|(at, ended)| since(at, ended) >= secs(600))
}

/// What stays, or is held up, is not evicted, and a drain that is done has left nothing behind that was to go.
fn check_drains(world: &World) {
    for node in world.nodes.values() {
        for pod in node.workloads.iter().filter(|one| one.evicted_at.is_some()) {
            let may_go = pod.pod.owner != Owner::DaemonSet && !pod.pod.has_empty_dir && pod.budget.is_none();
            assert!(may_go, "evicted: {pod:?}");
        }
    }
    for step in world.episodes.values().flat_map(|episode| &episode.steps) {
        let is_drain = step.action == ActionType::Drain;
        if is_drain && step.state == StepState::TimedOut && step.started_at.is_some() {
            // Its second look may have been held until its time was over.
            let said = if step.quiet_rounds > 0 { "looked at once more" } else { "pod(s) left" };
            assert!(step.message.contains(said), "says not what is left: {step:?}");
        }
        if is_drain && step.state == StepState::Started {
            let began = step.started_at.unwrap();
            assert!(step.continued_at.is_some_and(|at| at >= began), "{step:?}");
        }
    }
}

/// After a call that the API server refused nothing is tried for that fault, and it is not given up, before the
/// step's cool-down is over.
fn check_refusals(world: &World, episode: &Episode) {
    let Some(policy) = world.policies.iter().find(|policy| policy.name == episode.policy) else { return };
    for fault in &episode.faults {
        let Some(rule) = policy.rule(&fault.rule) else { continue };
        let wait = |record: &StepRecord| {
            let rung = usize::try_from(record.rung).unwrap();
            let wait = rule.steps.get(rung).unwrap().cooldown.max(secs(10));
            record.finished_at.unwrap().checked_add(wait).unwrap()
        };
        let tried: Vec<&StepRecord> = episode.steps.iter().filter(|step| step.fault_id == fault.id).collect();
        for pair in tried.windows(2).filter(|pair| pair[0].is_refused_call()) {
            assert!(pair[1].reserved_at >= wait(pair[0]), "{pair:#?}");
        }
        // Another remediator had its turn before: the end of the episode gives the fault up.
        let is_given_up = fault.state == HealState::GivenUp && episode.phase != Phase::Cancelled;
        if let Some(last) = tried.last().filter(|last| last.is_refused_call() && is_given_up) {
            assert!(episode.finished_at.unwrap_or(world.now) >= wait(last), "{last:#?}");
        }
    }
}

/// Everybody lets go, and time passes: everything comes to an end and is put back.
fn calm_down(world: &mut World) {
    for policy in &mut world.policies {
        policy.suspend = false;
        // What is open waits for as long as the policy cannot be used: somebody mends it, at last.
        policy.is_broken = false;
        policy.windows.clear();
    }
    world.refuses = false;
    world.may_evict = Tri::True;
    for node in world.nodes.values_mut() {
        (node.probe_runs, node.job_starts, node.looked) = (true, true, secs(1));
        // Whoever wants a node left alone keeps it cordoned, too, for as long as he wants.
        node.report.suspended = None;
        node.view.vetoes.clear();
    }
    for _ in 0..2_000 {
        let plan = world.pass();
        check_world(world);
        let slots = world.ledger.as_ref().map_or(0, |ledger| ledger.slots.len());
        let is_over = world.wishes.is_empty() && !world.episodes.values().any(Episode::is_live);
        // An order of which nobody knows any more is taken back when its time is over.
        let is_ordered = world.nodes.values().any(|node| node.order.is_some());
        if plan.effects.is_empty() && slots == 0 && is_over && !is_ordered {
            break;
        }
        world.tick(secs(15));
    }
    assert!(world.wishes.is_empty(), "never begun and never ended: {:?}", world.wishes);
    let open: Vec<&Episode> = world.episodes.values().filter(|episode| episode.is_live()).collect();
    assert!(open.is_empty(), "never ended: {open:#?}");
    for (name, node) in &world.nodes {
        assert!(node.view.cordoned_by.is_none(), "the cordon of {name} is stranded");
        assert!(node.view.tainted_by.is_none(), "the mark of a taint on {name} is stranded");
        // Those of people have a value here.
        let is_ours = TaintEffect::ALL.into_iter().any(|effect| node.view.carries(effect));
        assert!(!is_ours, "the taint of {name} is stranded");
        assert!(node.order.is_none(), "the order of {name} stands for ever");
    }
    world.tick(secs(5));
    assert!(world.nodes.values().all(|node| node.boots.marked.is_none()), "a mark stands that nobody wants");
    for object in &world.remediators.objects {
        assert!(is_of_any(world, object, is_given_up), "never taken back: {object:?}");
    }
    assert!(world.jobs.values().all(|(_, job)| job.finished), "a Job waits for ever");
    assert_eq!(world.ledger.as_ref().map_or(0, |ledger| ledger.slots.len()), 0);
}

/// Plays the rounds and lets all become calm, and checks what holds all the while.
pub fn play(world: &mut World, told: &mut Told, rounds: &[Round]) {
    let mut before = world.snapshot();
    for (turn, round) in rounds.iter().enumerate() {
        happen(world, &round.event, turn);
        told.happens(secs(round.wait), &format!("{round:?}"));
        world.tick(secs(round.wait));
        let now = world.snapshot();
        let mut snapshot = if round.is_stale { before } else { now.clone() };
        snapshot.now = now.now;
        let plan = world.carry_out(&snapshot, &round.chaos);
        told.decided(world, &plan);
        check_plan(&snapshot, &plan);
        check_opened(&now, &plan, world);
        check_world(world);
        before = now;
    }
    told.happens(Duration::ZERO, "all becomes calm");
    calm_down(world);
}
