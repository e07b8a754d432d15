//! What every plan and every world keeps, whatever happens: budgets, one step at a time, a check before each act, nothing left behind.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use nrh_core::drain::{RecreatedBy, cannot_end};
use nrh_core::fault::{FaultState, FaultType};
use nrh_core::hand_off::HandedOff;
use nrh_core::matching::PodSeen;
use nrh_core::moment::since;
use nrh_core::plan::{Effect, Operation, Plan};
use nrh_core::policy::{ActionType, Mode, Policy, Rule, Step};
use nrh_core::remediation::{
    Marker, MarkerRecord, Phase, Remediation, Resolution, StepRecord, StepState, remediation_of,
};
use nrh_core::snapshot::{NodeView, Slot, Snapshot, TriState};
use nrh_core::taint::TaintEffect;
use nrh_core::window;
use nrh_simulate::remediator::Object;

use crate::events::{LABEL, NODES, NOT_DB, happen};
use crate::random_worlds::Round;
use crate::told::Told;
use crate::world::{World, secs, stored};

/// The policy in whose name a remediation acts.
fn policy_of<'s>(snapshot: &'s Snapshot, remediation: &Remediation) -> &'s Policy {
    let named = snapshot.policies.iter().find(|policy| policy.name == remediation.policy);
    named.unwrap_or_else(|| panic!("in the name of a policy that is gone: {remediation:?}"))
}

/// The rule by which a step is taken, and its step there.
fn step_index_of<'s>(snapshot: &'s Snapshot, record: &Remediation, step: &StepRecord) -> (&'s Rule, &'s Step) {
    let fault = record.fault(&step.fault_id).unwrap();
    let rule = policy_of(snapshot, record).rule(&fault.rule).unwrap();
    (rule, &rule.steps[step.step_index as usize])
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

/// No fault enters a remediation of a policy that it is not for.
fn check_owner(snapshot: &Snapshot, remediation: &Remediation) {
    if remediation.mode == Mode::DryRun || remediation.phase.is_final() {
        return;
    }
    let known = snapshot.remediations.get(&remediation.name);
    let was_open = |id: &str| known.and_then(|known| known.fault(id)).is_some_and(|was| was.state == Resolution::Open);
    let entered = remediation.faults.iter().filter(|fault| fault.state == Resolution::Open && !was_open(&fault.id));
    for fault in entered {
        let owner = owner(snapshot, &remediation.node, fault.kind);
        assert!(owner.is_none_or(|owner| owner == remediation.policy), "{fault:?} is for {owner:?}: {remediation:?}");
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
                let open = snapshot.remediations.values().filter(|e| e.is_open() && e.mode == Mode::Enforce).count();
                let most = usize::try_from(snapshot.ceiling).unwrap();
                assert!(ledger.slots.len() <= most.max(had).max(open), "{ledger:?}");
            }
            Effect::WriteRemediation(remediation) => {
                check_remediation(remediation);
                check_new(snapshot, remediation);
                check_owner(snapshot, remediation);
            }
            Effect::BeginManualRequest(remediation) => {
                check_remediation(remediation);
                check_manual(snapshot, plan, remediation);
                check_owner(snapshot, remediation);
            }
            Effect::UpdateManualRequest { name, message, .. } => {
                let manual = &snapshot.manual_requests[name];
                assert!(since(snapshot.now, manual.asked_at) < manual.manual.timeout, "it waits for ever");
                assert!(*message != manual.message && message.len() <= 512, "{message}");
            }
            Effect::Act { node, .. } => {
                *acts.entry(node).or_default() += 1;
                check_start(snapshot, plan, place);
            }
            Effect::Remove { remediation, node, marker: Marker::Cordon, .. } => {
                let mark = snapshot.nodes[node].cordoned_by.as_ref();
                assert!(mark.is_none_or(|mark| mark == remediation), "someone else's mark");
                if let Some(known) = snapshot.remediations.get(remediation) {
                    // On a replaced node for the mark that came back with it, and nothing else: the cordon stays (`check_opened`).
                    assert!(known.node_uid == snapshot.nodes[node].uid || mark.is_some(), "on a replaced node");
                }
            }
            Effect::Remove { remediation, node, marker: Marker::Taint, .. } => {
                let mark = snapshot.nodes[node].tainted_by.as_ref();
                assert!(mark.is_none_or(|mark| mark.remediation == *remediation), "someone else's mark");
                if let Some(known) = snapshot.remediations.get(remediation) {
                    let is_pending =
                        known.cleanup.has_pending(&Marker::Taint) && known.node_uid == snapshot.nodes[node].uid;
                    assert!(is_pending || !known.may_own(&Marker::Taint, &snapshot.nodes[node].uid), "it is another's");
                    assert!(!known.is_quarantined() || !is_pending, "a taint outlasts no remediation");
                }
            }
            Effect::TimeOutHandOff { remediation, handed, at, .. } => {
                let record = &snapshot.remediations[remediation];
                assert_eq!(record.current_step().unwrap().operation_id, handed.operation_id);
                assert!(*at <= snapshot.now, "before its time is over");
            }
            Effect::Remove { remediation, marker: Marker::HandOff(handed), .. } => {
                let step = snapshot.remediations[remediation].current_step();
                assert!(
                    step.is_none_or(|step| step.operation_id != handed.operation_id)
                        || plan.effects[..place]
                            .iter()
                            .any(|e| matches!(e, Effect::WriteRemediation(w) if w.name == *remediation)),
                    "taken back under way"
                );
            }
            Effect::DeleteRemediation { name } => assert!(!snapshot.remediations[name].is_live()),
            Effect::WithdrawCommand { .. } | Effect::DeleteJob { .. } => {}
        }
    }
    assert!(acts.values().all(|count| *count == 1), "one step a node: {acts:?}");
    check_room(snapshot, plan);
}

/// The remediation that an effect writes.
fn writes(effect: &Effect) -> Option<&Remediation> {
    match effect {
        Effect::WriteRemediation(written) | Effect::BeginManualRequest(written) => Some(written.as_ref()),
        _ => None,
    }
}

/// What holds for the action at this place of the plan.
fn check_start(snapshot: &Snapshot, plan: &Plan, place: usize) {
    let Effect::Act { remediation, operation_id, node, node_uid, operation } = &plan.effects[place] else { return };
    let written = plan.effects[..place].iter().filter_map(writes).find(|written| written.name == *remediation);
    let record = written.or_else(|| snapshot.remediations.get(remediation)).unwrap();
    let step = record.current_step().unwrap();
    assert_eq!(step.operation_id, *operation_id, "reserved before the act");
    assert!(record.cancel.is_none(), "an act after a person's no was seen");
    check_act(snapshot, record, node, node_uid, operation);
    check_approved(snapshot, record, step);
    assert_eq!(step_index_of(snapshot, record, step).1.mode, Mode::Enforce, "a step that is a dry run");
    let is_new = |known: &Remediation| known.steps.iter().all(|had| had.operation_id != *operation_id);
    if snapshot.remediations.get(remediation).is_none_or(is_new) {
        let owner = owner(snapshot, node, record.fault(&step.fault_id).unwrap().kind);
        assert_eq!(owner, Some(record.policy.as_str()), "begun by another policy: {step:?}");
    }
    check_pod(snapshot, record, step, operation);
    if matches!(operation, Operation::HandOff(_)) {
        let owed = record.cleanup.hand_off_of(operation_id).unwrap();
        assert_eq!(&owed.name, node, "what is to be deleted is remembered before it is made");
    }
    if matches!(operation, Operation::Cordon) {
        assert!(record.cleanup.has_pending_cordon(), "the cleanup is remembered before the act");
    }
    if matches!(operation, Operation::Taint(_)) {
        assert!(record.cleanup.has_pending(&Marker::Taint), "the cleanup is remembered before the act");
    }
}

/// What stands on a machine that carries the mark of a remediation of another one is nobody's here: it is never opened for the sake of
/// that mark. Of `before` is what was so when the plan was carried out, whatever that was decided from.
fn check_opened(before: &Snapshot, plan: &Plan, world: &World) {
    for effect in &plan.effects {
        let Effect::Remove { remediation, node, marker: Marker::Cordon, .. } = effect else { continue };
        let Some((known, view)) = before.remediations.get(remediation).zip(before.nodes.get(node)) else { continue };
        let stays = known.node_uid != view.uid && view.unschedulable;
        let is_kept = !stays || world.nodes[node].view.unschedulable;
        assert!(is_kept, "{node} was opened for {remediation}, of another machine");
    }
}

/// What is opened has room by the fleet as it is: a percent of a fleet that has shrunk is less than it was.
fn check_room(snapshot: &Snapshot, plan: &Plan) {
    let is_running = |e: &&Remediation| e.mode == Mode::Enforce && !e.phase.is_final();
    let written: BTreeMap<&String, &Remediation> =
        plan.effects.iter().filter_map(writes).map(|written| (&written.name, written)).collect();
    let opened = |of: &dyn Fn(&Remediation) -> bool| {
        let new = written.values().copied().filter(|e| !snapshot.remediations.contains_key(&e.name));
        new.filter(is_running).filter(|e| of(e)).count()
    };
    let running = |of: &dyn Fn(&Remediation) -> bool| {
        let known = snapshot.remediations.values().map(|known| written.get(&known.name).copied().unwrap_or(known));
        known.filter(is_running).filter(|e| of(e)).count() + opened(of)
    };
    let all = running(&|_| true);
    assert!(opened(&|_| true) == 0 || all <= usize::try_from(snapshot.ceiling).unwrap(), "{all} in flight");
    for policy in &snapshot.policies {
        let own = |remediation: &Remediation| remediation.policy == policy.name;
        let selected = selected(snapshot, policy).count();
        let most = policy.limits.max_in_flight.of(u32::try_from(selected).unwrap());
        let all = running(&own);
        let is_within = opened(&own) == 0 || all <= usize::try_from(most).unwrap();
        assert!(is_within, "{all} of {} in flight, {most} of {selected} nodes", policy.name);
        for limit in &policy.limits.per_topology {
            for place in ["0", "1"] {
                let is_there = |node: &NodeView| node.labels.get(&limit.key).is_some_and(|value| value == place);
                let there = |e: &Remediation| own(e) && snapshot.nodes.get(&e.node).is_some_and(is_there);
                let nodes = self::selected(snapshot, policy).filter(|node| is_there(node)).count();
                let most = limit.max_in_flight.of(u32::try_from(nodes).unwrap());
                let is_within = opened(&there) == 0 || running(&there) <= usize::try_from(most).unwrap();
                assert!(is_within, "{} in zone {place}, {most} of {nodes} nodes", running(&there));
            }
        }
        for limit in &policy.limits.per_fault {
            let such = |e: &Remediation| own(e) && !e.kinds().is_disjoint(&limit.faults);
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

/// Where nothing new may be begun no remediation is opened, and by a policy that cannot be used no step is begun in one that is open.
fn check_new(snapshot: &Snapshot, remediation: &Remediation) {
    let Some(known) = snapshot.remediations.get(&remediation.name) else {
        // The record of a start by hand that was not begun.
        if remediation.manual.is_some() && remediation.phase.is_final() {
            return;
        }
        let policy = policy_of(snapshot, remediation);
        assert!(!policy.suspend && !policy.is_broken && policy.pause_requests.is_empty(), "opened: {remediation:?}");
        assert!(policy.selector.matches(&snapshot.nodes[&remediation.node].labels), "not its node: {remediation:?}");
        // What else is unhealthy comes on top of these.
        let down = selected(snapshot, policy).filter(|node| node.ready != TriState::True).count();
        let selected = u32::try_from(selected(snapshot, policy).count()).unwrap();
        let most = usize::try_from(policy.limits.max_unhealthy.of(selected)).unwrap();
        assert!(down <= most, "opened with {down} nodes that are not Ready, maxUnhealthy is {most}: {remediation:?}");
        return;
    };
    let policy = snapshot.policies.iter().find(|policy| policy.name == remediation.policy);
    let is_usable = policy.is_some_and(|policy| !policy.is_broken);
    assert!(is_usable || remediation.steps.len() <= known.steps.len(), "a step by a policy that cannot be used");
}

/// What asks for a person is done with his word for this very attempt.
fn check_approved(snapshot: &Snapshot, record: &Remediation, step: &StepRecord) {
    let (_, step_index) = step_index_of(snapshot, record, step);
    let is_agreed = record.approved(&step.operation_id).is_some() || record.manual.is_some();
    assert!(!step_index.needs_approval() || is_agreed, "nobody has agreed: {step:?}");
}

/// What a person starts by hand is one remediation, paid for, on a node that has no other.
fn check_manual(snapshot: &Snapshot, plan: &Plan, remediation: &Remediation) {
    let manual = &snapshot.manual_requests[&remediation.name];
    assert!(manual.cancel.is_none() && !manual.deleting && !snapshot.remediations.contains_key(&remediation.name));
    assert_eq!(remediation.identity.as_ref(), Some(&manual.identity));
    assert_eq!(remediation.manual.as_ref(), Some(&manual.manual));
    let mut others = snapshot.remediations.values();
    assert!(others.all(|other| other.node != remediation.node || !other.is_open()), "a second remediation");
    let ledger = stored(plan).or(snapshot.ledger.as_ref()).unwrap();
    assert!(ledger.slots.contains_key(&remediation.name), "no slot: {ledger:?}");
    let policy = policy_of(snapshot, remediation);
    assert!(!policy.suspend && policy.mode == Mode::Enforce && policy.pause_requests.is_empty() && !policy.is_broken);
    let step = remediation.current_step().unwrap();
    let agreed = (manual.manual.policy_generation == Some(policy.generation)).then_some("ann");
    assert_eq!((step.action.kind(), step.approved_by.as_deref()), (manual.manual.action, agreed));
    let rule = policy.rule(&remediation.faults[0].rule).unwrap();
    let first = rule.steps.iter().position(|one| one.mode == Mode::Enforce && one.action.kind() == step.action.kind());
    assert_eq!(first, Some(step.step_index as usize), "a later step in the place of the first");
    assert!(since(snapshot.now, manual.asked_at) < manual.manual.timeout, "what was wanted long ago");
    let reported = snapshot.reports[&remediation.node].faults.iter().find(|seen| seen.fault.id == step.fault_id);
    assert!(reported.is_none_or(|seen| seen.fault.state == FaultState::Confirmed), "no fault that is confirmed");
}

fn check_remediation(remediation: &Remediation) {
    let under_way = remediation.steps.iter().filter(|step| !step.state.is_final()).count();
    assert!(under_way <= 1, "{remediation:?}");
    assert!(remediation.mode == Mode::Enforce || remediation.phase.is_final(), "a dry run is over at once");
    assert!(!remediation.phase.is_final() || under_way == 0, "{remediation:?}");
    assert!(remediation.phase != Phase::Succeeded || !remediation.cleanup.is_pending(), "{remediation:?}");
    assert!(!remediation.is_quarantined() || remediation.cleanup.is_pending(), "{remediation:?}");
    assert!(remediation.name.len() <= 58 && remediation.message.len() <= 512);
}

/// How often a node was acted on in the name of a policy, by what is remembered, under whichever uid.
fn executed(snapshot: &Snapshot, policy: &Policy, node: &str) -> usize {
    let within = policy.limits.per_node.window;
    let is_its = |e: &Remediation| e.mode == Mode::Enforce && e.policy == policy.name;
    let of_node = |e: &&Remediation| is_its(e) && e.node == node;
    let steps = snapshot.remediations.values().filter(of_node).flat_map(|remediation| &remediation.steps);
    let resolving = steps.filter(|step| step.action.disturbs());
    let touched = resolving.filter(|step| step.state != StepState::Refused && !step.is_refused_call());
    touched
        .filter_map(|step| step.executed_at.or(step.started_at))
        .filter(|at| since(snapshot.now, *at) < within)
        .count()
}

/// Never on suspicion, on old evidence, on another node, against a no.
fn check_act(snapshot: &Snapshot, record: &Remediation, node: &str, uid: &str, operation: &Operation) {
    let (view, report) = (&snapshot.nodes[node], &snapshot.reports[node]);
    assert_eq!(view.uid, uid);
    assert!(view.exclusions.is_empty() && !view.deleting && report.suspended.is_none() && snapshot.suspended.is_none());
    assert_eq!(report.node_uid.as_ref(), Some(&view.uid));
    let policy = policy_of(snapshot, record);
    assert!(!policy.suspend && policy.mode == Mode::Enforce);
    let is_told = matches!(operation, Operation::Notify(_));
    // A drain that goes on is counted already, and asks for no hour: what has begun is finished.
    let open = snapshot.remediations.values().find(|remediation| remediation.node == node && remediation.is_open());
    let step = open.and_then(Remediation::current_step);
    let goes_on = step.is_some_and(|step| step.action == ActionType::Drain && step.state == StepState::Started);
    assert!(is_told || goes_on || window::shut(&policy.windows, ActionType::DeletePod, snapshot.now).is_none());
    assert!(snapshot.ledger.is_some() || snapshot.remediations.values().any(|e| e.node == node && e.is_open()));
    let heartbeat = report.heartbeat.as_ref().unwrap();
    if matches!(operation, Operation::Notify(_)) && heartbeat.arrived > heartbeat.interval {
        return;
    }
    assert!(heartbeat.arrived <= heartbeat.interval * 3 / 2, "a missed heartbeat");
    if matches!(operation, Operation::Drain(_)) {
        assert_eq!(snapshot.may_evict, TriState::True);
        let own = view.cordoned_by.as_ref().and_then(|mark| snapshot.remediations.get(mark)).unwrap();
        assert!(view.unschedulable && own.is_open(), "drained without a cordon of its remediation");
        let faults = report.faults.iter().map(|seen| &seen.fault);
        assert_eq!(cannot_end(view.ready, heartbeat.kubelet_works, faults), None, "drained where no pod ends");
    }
    let changes_executor = record.current_step().is_some_and(|step| step.executor_changed_at.is_some());
    if !goes_on
        && !changes_executor
        && !matches!(operation, Operation::Cordon | Operation::Taint(_) | Operation::Notify(_))
    {
        let most = policy.limits.per_node.max_actions as usize;
        assert!(executed(snapshot, policy, node) < most, "more acts than a node may have");
    }
    if let Operation::HandOff(with) = operation {
        let lately =
            |e: &&Remediation| since(snapshot.now, e.finished_at.unwrap_or(snapshot.now)) < Duration::from_hours(1);
        let others = snapshot.remediations.values().filter(|e| e.node == node && e.node_uid != uid);
        let steps = others.filter(|e| e.mode == Mode::Enforce).filter(lately).flat_map(|e| &e.steps);
        let mut begun = steps.filter(|step| step.started_at.is_some() && step.state != StepState::Refused);
        assert!(begun.all(|step| step.action.hand_off() != Some(with)), "handed off again as another Node object");
    }
    // Whatever is begun is begun on a fresh check of a fault that is confirmed, or that shows in the API.
    if let Some(step) = record.current_step().filter(|_| !is_told && !goes_on) {
        if let Some(seen) = report.faults.iter().find(|seen| seen.fault.id == step.fault_id) {
            assert!(seen.fault.state == FaultState::Confirmed && seen.checked <= secs(45), "{seen:?}");
        } else {
            let kind = record.fault(&step.fault_id).map(|fault| fault.kind);
            assert!(kind.is_some_and(FaultType::is_cluster_fault), "{step:?}");
        }
    }
    if let Operation::RunJob(command) | Operation::GiveCommand(command) = operation {
        let seen = report.faults.iter().find(|seen| seen.fault.id == command.fault_id).unwrap();
        assert_eq!(seen.fault.state, FaultState::Confirmed);
        assert!(seen.checked <= secs(45), "an old look");
        if let Some((daemon, with)) = command.action.traits().restarts.zip(command.action.params().restart) {
            let safe = report.restart.of(daemon);
            assert!(safe == TriState::True || with.skip_safety_check, "{:?} while that is not safe", command.action);
            assert!(matches!(operation, Operation::GiveCommand(_)), "a restart by a Job");
        }
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
fn check_pod(snapshot: &Snapshot, record: &Remediation, step: &StepRecord, operation: &Operation) {
    let matching = &step_index_of(snapshot, record, step).0.matching;
    if matching.pods.is_none() || matches!(operation, Operation::Notify(_)) {
        return;
    }
    let fault = record.fault(&step.fault_id).unwrap();
    let pod = fault.subject.pod.as_ref().or(step.target.pod.as_ref()).unwrap();
    match snapshot.pods_seen.get(pod) {
        Some(PodSeen::Read(traits)) => assert_ne!(traits.labels[LABEL].as_deref(), Some(NOT_DB)),
        other => panic!("acted on pod {pod} of which nothing is known: {other:?}"),
    }
}

/// For the boot that the node is in, and once in a remediation; by its own agent only under the cordon of that remediation.
fn check_reboot(snapshot: &Snapshot, node: &str, operation: &Operation) {
    let (Operation::GiveCommand(command) | Operation::RunJob(command)) = operation else { return };
    assert_eq!(command.marker_expires_after_seconds.is_some(), command.action == ActionType::MarkForReboot);
    assert!(command.boot_id.is_some(), "for any boot");
    if !command.action.ends_boot() {
        return;
    }
    assert!(matches!(operation, Operation::GiveCommand(_)), "by a Job");
    let (view, report) = (&snapshot.nodes[node], &snapshot.reports[node]);
    assert!(command.boot_id == view.boot_id, "for another boot");
    assert_eq!(view.boot_id.as_ref(), report.heartbeat.as_ref().map(|heartbeat| &heartbeat.boot_id));
    let is_begun = |step: &&StepRecord| {
        step.action.ends_boot() && step.started_at.is_some() && step.operation_id != command.operation_id
    };
    // One that begins just now has none of before.
    let begun =
        |own: &Remediation| own.steps.iter().filter(is_begun).filter(|step| step.state != StepState::Refused).count();
    let own = snapshot.remediations.get(remediation_of(&command.operation_id));
    assert_eq!(own.map_or(0, begun), 0, "twice in one remediation");
    if command.action == ActionType::MarkForReboot {
        return assert_ne!(view.ready, TriState::Unknown, "marked although nobody knows how it is");
    }
    let own = view.cordoned_by.as_ref().and_then(|mark| snapshot.remediations.get(mark)).unwrap();
    let is_cordoned = view.unschedulable && own.is_open() && own.cleanup.has_pending_cordon();
    assert!(is_cordoned, "without a cordon of its remediation");
}

/// No machine boots more often than it was told to.
fn check_boots(world: &World) {
    for (name, node) in &world.nodes {
        let is_told = |what: &str| ["command Reboot", "command MarkForReboot"].contains(&what);
        let told = world.log.iter().filter(|(of, what)| of == name && is_told(what)).count();
        let count = node.boots.count;
        assert!(count as usize <= told, "{name} was booted {count} times, and told to {told} times");
    }
}

/// What the world keeps after every pass, however it was disturbed.
pub fn check_world(world: &World) {
    check_boots(world);
    assert!(world.acts.values().all(|count| *count == 1), "an operation was done twice: {:?}", world.acts);
    // What is at its end and only puts back a cordon that it has kept holds no slot.
    let in_flight = |e: &&Remediation| !e.phase.is_final() && e.mode == Mode::Enforce;
    let open: Vec<&Remediation> = world.remediations.values().filter(in_flight).collect();
    assert!(open.len() <= usize::try_from(world.ceiling).unwrap(), "{} in flight of {}", open.len(), world.ceiling);
    for node in NODES {
        let steps = world.remediations.values().filter(|e| e.node == node && e.current_step().is_some()).count();
        assert!(steps <= 1, "two steps on {node}");
        let here = open.iter().filter(|remediation| remediation.node == node).count();
        assert!(here <= 1, "{here} remediations of {node}");
    }
    for policy in &world.policies {
        let own: Vec<&Remediation> =
            open.iter().filter(|remediation| remediation.policy == policy.name).copied().collect();
        check_limits(world, policy, &own);
    }
    let slots = slots_under_way(world).count();
    assert!(slots <= usize::try_from(world.ceiling).unwrap(), "{slots} slots: {:?}", world.ledger);
    check_hand_offs(world);
    check_drains(world);
    world.remediations.values().for_each(|remediation| check_refusals(world, remediation));
}

/// What is open in the name of a policy is within its limits, and so are its slots.
fn check_limits(world: &World, policy: &Policy, open: &[&Remediation]) {
    let most = usize::try_from(policy.limits.max_in_flight.of(4)).unwrap();
    assert!(open.len() <= most, "{} of {} in flight, {most} allowed", open.len(), policy.name);
    for limit in &policy.limits.per_topology {
        let zone = |remediation: &Remediation| {
            world.nodes.get(&remediation.node).map(|node| node.view.labels[&limit.key].clone())
        };
        for place in ["0", "1"] {
            let here = open.iter().filter(|remediation| zone(remediation).as_deref() == Some(place)).count();
            assert!(here <= usize::try_from(limit.max_in_flight.of(2)).unwrap(), "{here} in zone {place}");
        }
    }
    for limit in &policy.limits.per_fault {
        let such = open.iter().filter(|remediation| !remediation.kinds().is_disjoint(&limit.faults)).count();
        assert!(such <= usize::try_from(limit.max_in_flight.of(4)).unwrap(), "{such} for {:?}", limit.faults);
    }
    let slots = slots_under_way(world).filter(|slot| slot.policy == policy.name).count();
    assert!(slots <= most, "{slots} slots of {}, {most} allowed", policy.name);
}

/// Slots in the ledger, without those of remediations that have only cleanup left: a rebuilt ledger has one for each of them, also for
/// what gave its slot back while it was quarantined. Such a slot only blocks.
fn slots_under_way(world: &World) -> impl Iterator<Item = &Slot> {
    let has_ended = |name| world.remediations.get(name).is_some_and(|remediation| remediation.phase.is_final());
    let slots = world.ledger.iter().flat_map(|ledger| &ledger.slots);
    slots.filter(move |(name, _)| !has_ended(*name)).map(|(_, slot)| slot)
}

/// Nothing is made twice, nor beside another of the same kind, nor is anything left that no remediation will take back.
fn check_hand_offs(world: &World) {
    let hand_offs = &world.remediators;
    assert!(hand_offs.made.values().all(|count| *count == 1), "made twice: {:?}", hand_offs.made);
    for object in &hand_offs.objects {
        let is_kept_in_mind = |remediation: &Remediation, made: &MarkerRecord| {
            made.removed_at.is_none() || is_given_up(remediation, made)
        };
        assert!(is_of_any(world, object, is_kept_in_mind), "stranded: {object:?}");
    }
    for step in world.remediations.values().flat_map(|remediation| &remediation.steps) {
        let in_vain = step.action == ActionType::HandOff && step.state == StepState::TimedOut;
        if in_vain && step.started_at.is_some() && !step.message.contains("could not be notified") {
            assert!(hand_offs.notified.contains(&step.operation_id), "its remediator knows nothing: {step:?}");
        }
    }
}

/// Whether a remediation has made that object, and what it says of it is so.
fn is_of_any(world: &World, object: &Object, says: impl Fn(&Remediation, &MarkerRecord) -> bool) -> bool {
    let is_its = |handed: &HandedOff| {
        handed.is_of_remediation(&object.handed.operation_id) && handed.is_same_object(&object.handed)
    };
    let mut made = world.remediations.values().flat_map(|e| e.cleanup.0.iter().map(move |made| (e, made)));
    made.any(|(remediation, made)| made.marker.hand_off().is_some_and(is_its) && says(remediation, made))
}

/// Its deletion has failed for ten minutes: it goes with the remediation, which owns it.
fn is_given_up(remediation: &Remediation, made: &MarkerRecord) -> bool {
    let step = made.marker.hand_off().and_then(|handed| remediation.attempt(&handed.operation_id));
    made.removed_at.zip(step.and_then(|step| step.finished_at)).is_some_and(|(at, ended)| since(at, ended) >= secs(600))
}

/// What stays, or is held up, is not evicted, and a drain that is done has left nothing behind that was to go.
fn check_drains(world: &World) {
    for node in world.nodes.values() {
        for pod in node.workloads.iter().filter(|one| one.evicted_at.is_some()) {
            let may_go =
                pod.pod.recreated_by != RecreatedBy::DaemonSet && !pod.pod.has_empty_dir && pod.budget.is_none();
            assert!(may_go, "evicted: {pod:?}");
        }
    }
    for step in world.remediations.values().flat_map(|remediation| &remediation.steps) {
        let is_drain = step.action == ActionType::Drain;
        if is_drain && step.state == StepState::TimedOut && step.started_at.is_some() {
            // Its second check may have been held until its time was over.
            let said =
                if step.rounds.is_some_and(|rounds| rounds.empty > 0) { "checked once more" } else { "pod(s) left" };
            assert!(step.message.contains(said), "says not what is left: {step:?}");
        }
        if is_drain && step.state == StepState::Started {
            let began = step.started_at.unwrap();
            assert!(step.rounds.is_some_and(|rounds| rounds.last_at >= began), "{step:?}");
        }
    }
}

/// After a call that the API server refused nothing is tried for that fault, and it is not given up, before the
/// step's cool-down is over.
fn check_refusals(world: &World, remediation: &Remediation) {
    let Some(policy) = world.policies.iter().find(|policy| policy.name == remediation.policy) else { return };
    for fault in &remediation.faults {
        let Some(rule) = policy.rule(&fault.rule) else { continue };
        let wait = |record: &StepRecord| {
            let wait = rule.step(record.step_index).unwrap().cooldown.max(secs(10));
            record.finished_at.unwrap().checked_add(wait).unwrap()
        };
        let tried: Vec<&StepRecord> = remediation.steps.iter().filter(|step| step.fault_id == fault.id).collect();
        for pair in tried.windows(2).filter(|pair| pair[0].is_refused_call()) {
            assert!(pair[1].scheduled_at >= wait(pair[0]), "{pair:#?}");
        }
        // Another remediator had its turn before: the end of the remediation gives the fault up.
        let is_given_up = fault.state == Resolution::Exhausted && remediation.phase != Phase::Cancelled;
        if let Some(last) = tried.last().filter(|last| last.is_refused_call() && is_given_up) {
            assert!(remediation.finished_at.unwrap_or(world.now) >= wait(last), "{last:#?}");
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
    world.suspended = None;
    world.may_evict = TriState::True;
    for node in world.nodes.values_mut() {
        (node.probe_runs, node.job_starts, node.checked) = (true, true, secs(1));
        // Whoever wants a node left alone keeps it cordoned, too, for as long as he wants.
        node.report.suspended = None;
        node.view.exclusions.clear();
    }
    for _ in 0..2_000 {
        let plan = world.pass();
        check_world(world);
        let slots = world.ledger.as_ref().map_or(0, |ledger| ledger.slots.len());
        let is_over = world.manual_requests.is_empty() && !world.remediations.values().any(Remediation::is_live);
        // The controller withdraws a command without a remediation when its time is over.
        let has_command = world.nodes.values().any(|node| node.command.is_some());
        if plan.effects.is_empty() && slots == 0 && is_over && !has_command {
            break;
        }
        world.tick(secs(15));
    }
    assert!(world.manual_requests.is_empty(), "never begun and never ended: {:?}", world.manual_requests);
    let open: Vec<&Remediation> = world.remediations.values().filter(|remediation| remediation.is_live()).collect();
    assert!(open.is_empty(), "never ended: {open:#?}");
    for (name, node) in &world.nodes {
        assert!(node.view.cordoned_by.is_none(), "the cordon of {name} is stranded");
        assert!(node.view.tainted_by.is_none(), "the mark of a taint on {name} is stranded");
        // Those of people have a value here.
        let is_ours = TaintEffect::ALL.into_iter().any(|effect| node.view.carries(effect));
        assert!(!is_ours, "the taint of {name} is stranded");
        assert!(node.command.is_none(), "the command of {name} stands for ever");
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
