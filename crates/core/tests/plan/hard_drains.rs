//! Drains that would empty nothing, or for nothing: on a node that cannot end pods, before a release that cannot wait, for a cure that
//! is held, and what is taken for empty too early.

use nrh_core::fault::{Fault, FaultState, FaultType};
use nrh_core::plan::{BlockReason, Effect};
use nrh_core::policy::{ActionType, Mode, OnFailure, Step};
use nrh_core::remediation::{ActionResult, Phase, Remediation, Resolution, StepRecord, StepState, executed};
use nrh_core::snapshot::TriState;

use crate::samples::{
    asked, cont, cordon, drain, drain_all_the_same, fault, hung, kept, kill, notify, restart_runtime, rule, secs,
    workload,
};
use crate::world::{Change, ClearedBy, JOB_CONT, World, acts, reasons};

/// A cordon that is wanted for its own sake.
fn keep() -> Step {
    kept(secs(7_200), secs(60))
}

/// How many rounds in a row found nothing left.
fn empty(step: &StepRecord) -> u32 {
    step.rounds.map_or(0, |rounds| rounds.empty)
}

fn sick(fault: Fault, by: impl Into<Option<ClearedBy>>, steps: &[Step], pods: usize) -> World {
    World::sick(fault, by, steps).with_pods(pods)
}

/// All records of drains.
fn drains(world: &World) -> Vec<StepRecord> {
    let steps = world.remediations.values().flat_map(|remediation| &remediation.steps);
    steps.filter(|step| step.action == ActionType::Drain).cloned().collect()
}

fn only_drain(world: &World) -> StepRecord {
    let [record] = &drains(world)[..] else { panic!("{:?}", drains(world)) };
    record.clone()
}

fn untouched(world: &World) -> bool {
    world.nodes["n1"].workloads.iter().all(|one| one.evicted_at.is_none())
}

#[test]
fn a_node_whose_runtime_or_kubelet_cannot_end_pods_is_not_drained_and_the_record_says_why() {
    let stuck = [
        FaultType::RuntimeUnreachable,
        FaultType::RuntimeListHung,
        FaultType::RuntimeUpdateBlocked,
        FaultType::KubeletDown,
        FaultType::KubeletCrashLoop,
        FaultType::SyncLoopStalled,
    ];
    for kind in stuck {
        let world = sick(fault(kind, "x"), None, &[keep(), drain(), notify()], 3).ran(60);
        assert_eq!(world.did(), ["cordon", "notify"], "{kind}");
        assert!(untouched(&world), "{kind}");
        let record = only_drain(&world);
        assert_eq!(record.state, StepState::Refused);
        let said = &record.message;
        assert!(
            said.starts_with("skipped: ") && said.contains(kind.as_str()) && said.contains("drain.ignoreRuntimeHang"),
            "{said}"
        );
        // Who says so has them evicted; they stay there, and nobody waits for them.
        let world = sick(fault(kind, "x"), None, &[keep(), drain_all_the_same(), notify()], 3).ran(300);
        assert!(world.nodes["n1"].workloads.iter().all(|one| one.evicted_at.is_some()), "{kind}");
        let record = only_drain(&world);
        assert_eq!((record.state, empty(&record)), (StepState::Succeeded, 2));
        assert!(record.message.contains("since the node cannot end them"), "{}", record.message);
    }
    // What resolves it does not wait for that. Nor does anything harsher follow, where the policy says so.
    let stop = Step { on_failure: OnFailure::Stop, ..drain() };
    for (drain, then) in [(drain(), "command RestartRuntime"), (stop, "notify")] {
        let steps = [cordon(), drain, restart_runtime(true), notify()];
        let mut world = sick(fault(FaultType::RuntimeUnreachable, "x"), ClearedBy::RestartRuntime, &steps, 3);
        world.run(secs(120));
        assert_eq!(world.did(), ["cordon", then, "uncordon"]);
    }
}

#[test]
fn a_drain_is_held_as_long_as_nobody_knows_whether_the_node_ends_pods() {
    fn suspected(state: FaultState) -> Fault {
        Fault { state, ..fault(FaultType::RuntimeListHung, "x") }
    }
    let cases: [Change; 5] = [
        |world| world.inject("n1", suspected(FaultState::Suspected), None),
        |world| world.inject("n1", suspected(FaultState::Clearing), None),
        |world| world.node("n1").view.ready = TriState::Unknown,
        |world| world.heartbeat("n1").kubelet_works = TriState::False,
        |world| world.heartbeat("n1").kubelet_works = TriState::Unknown,
    ];
    for (number, make_uncertain) in cases.into_iter().enumerate() {
        let mut world = sick(fault(FaultType::DiskFull, "d"), None, &[keep(), drain(), notify()], 40);
        make_uncertain(&mut world);
        let plan = world.pass();
        assert!(acts(&plan).is_empty(), "{number}: {:?}", plan.effects);
        assert_eq!(reasons(&plan), [BlockReason::ActionsDisabled], "{number}");
        assert!(plan.blocked[0].message.contains("would not end there"), "{number}: {:?}", plan.blocked);
        // Nor does one go on.
        let mut world = sick(fault(FaultType::DiskFull, "d"), None, &[keep(), drain(), notify()], 40).passed(2);
        assert_eq!(world.did(), ["cordon", "drain"]);
        make_uncertain(&mut world);
        let plan = world.pass_after(10);
        assert!(acts(&plan).is_empty(), "{number}: {:?}", plan.effects);
        assert!(reasons(&plan).contains(&BlockReason::ActionsDisabled), "{number}: {:?}", plan.blocked);
    }
}

/// Told in NVIDIA/NVSentinel #1857.
#[test]
fn a_node_is_drained_when_two_looks_in_a_row_find_nothing() {
    let mut world = sick(hung("x"), ClearedBy::Kill, &[cordon(), drain(), kill(true), notify()], 0).passed(2);
    let first = only_drain(&world);
    assert_eq!((first.state, empty(&first)), (StepState::Started, 1), "{}", first.message);
    // The scheduler had bound it right before the cordon.
    world.node("n1").workloads.push(workload("late"));
    world.pass_after(10);
    let second = only_drain(&world);
    assert_eq!((second.state, empty(&second)), (StepState::Started, 0), "{}", second.message);
    assert!(world.nodes["n1"].workloads[0].evicted_at.is_some());
    world.run(secs(120));
    assert_eq!(only_drain(&world).state, StepState::Succeeded);
    assert!(world.nodes["n1"].workloads.is_empty());
}

#[test]
fn two_checks_at_one_moment_are_one() {
    let world = sick(hung("x"), ClearedBy::Kill, &[cordon(), drain(), kill(true), notify()], 0).passed(2);
    let remediation = world.only_remediation().clone();
    let id = drains(&world)[0].operation_id.clone();
    let quiet = || ActionResult::Quiet { message: "no pod is left".into() };
    let of = |remediation: &Remediation| {
        remediation.steps.iter().find(|step| step.operation_id == id).map(|step| (step.state, empty(step))).unwrap()
    };
    let at = |after: u64| world.now.checked_add(secs(after)).unwrap();
    // Another leader, or the same again whose first answer was not written.
    let again = executed(&remediation, &id, quiet(), at(2));
    assert_eq!(of(&again), (StepState::Started, 1));
    assert_eq!(of(&executed(&again, &id, quiet(), at(10))), (StepState::Succeeded, 2));
    let busy = executed(&remediation, &id, ActionResult::InProgress { message: "1 pod(s) left".into() }, at(10));
    assert_eq!(of(&executed(&busy, &id, quiet(), at(20))), (StepState::Started, 1), "in a row");
}

/// Two rules: what drains, and what releases.
fn two_rules(release: &[Step]) -> World {
    let disk = rule("disk", &[FaultType::DiskFull], &[keep(), drain(), notify()]);
    let hangs = rule("hangs", &[FaultType::HungContainer], release);
    World::with_rules(&[disk, hangs]).ill(fault(FaultType::DiskFull, "d"), None).with_pods(3)
}

#[test]
fn a_release_does_not_wait_for_a_drain() {
    let mut world = two_rules(&[cont(), notify()]).ill(hung("x"), ClearedBy::Cont);
    let plan = world.pass();
    assert!(reasons(&plan).contains(&BlockReason::HungProcessFirst), "{:?}", plan.blocked);
    assert_eq!(world.did(), [JOB_CONT]);
    world.run(secs(300));
    assert_eq!(world.did(), [JOB_CONT, "cordon", "drain", "drain", "drain", "notify"]);
    // One that comes up in the middle of it.
    let mut world = two_rules(&[cont(), notify()]);
    world.node("n1").workloads.iter_mut().for_each(|one| one.takes = secs(100));
    world.passes(2);
    world.inject("n1", hung("x"), ClearedBy::Cont);
    world.tick(secs(10));
    world.run(secs(30));
    let first = only_drain(&world);
    assert_eq!(first.state, StepState::Cancelled);
    assert!(first.message.starts_with("it gives way to the release for HungContainer"), "{}", first.message);
    world.run(secs(400));
    assert_eq!(drains(&world).last().unwrap().state, StepState::Succeeded, "{:?}", drains(&world));
    assert!(world.only_remediation().faults.iter().any(|fault| fault.state == Resolution::Resolved));
    assert_eq!(world.phase(), Phase::Quarantined);
}

#[test]
fn a_drain_does_not_wait_for_a_release_that_will_not_come() {
    // Its pod is not being deleted, so it is held; one that asks a person; and one that has been tried.
    let asks = asked(cont());
    for (release, cure) in [(kill(false), Some(ClearedBy::Kill)), (asks, Some(ClearedBy::Cont)), (cont(), None)] {
        let world = two_rules(&[release.clone(), notify()]).ill(hung("x"), cure).ran(900);
        assert!(world.did().contains(&"drain"), "{:?}: {:?}", release.action, world.did());
    }
}

#[test]
fn a_hang_that_comes_and_goes_does_not_break_off_a_drain_for_ever() {
    let mut world = two_rules(&[cont(), notify()]);
    world.node("n1").workloads.iter_mut().for_each(|one| one.takes = secs(3_000));
    for _ in 0..20 {
        world.run(secs(60));
        if world.nodes["n1"].sick.len() < 2 {
            world.inject("n1", hung("x"), ClearedBy::Cont);
        }
        world.tick(secs(10));
    }
    let gave_way = drains(&world).iter().filter(|record| record.state == StepState::Cancelled).count();
    assert!(gave_way <= 3, "{:?}", drains(&world));
}

#[test]
fn no_node_is_emptied_for_a_restart_that_would_be_left_out() {
    // A runtime whose lists hang is not safe to restart, and was not for long enough that the restart is left out.
    let old = |fault: Fault| Fault { duration_seconds: 700, ..fault };
    let steps = [cordon(), drain_all_the_same(), restart_runtime(false), notify()];
    let mut world = sick(old(fault(FaultType::RuntimeListHung, "x")), ClearedBy::RestartRuntime, &steps, 3);
    // What keeps it from being safe.
    world.inject("n1", old(hung("y")), None);
    world.policies[0].rules[0].faults = [FaultType::RuntimeListHung].into();
    world.run(secs(300));
    assert!(untouched(&world), "{:?}", world.did());
    assert_eq!(world.did(), ["notify"]);
}

#[test]
fn no_node_is_emptied_in_a_remediation_for_a_cure_that_is_held_by_then() {
    // The first step resolves nothing, and the last one has to wait until its pod is being deleted.
    let mut world = sick(hung("x"), ClearedBy::Kill, &[cont(), cordon(), drain(), kill(false), notify()], 3);
    world.run(secs(1_200));
    assert!(!world.did().contains(&"drain"), "{:?}", world.did());
    assert!(untouched(&world) && world.did().contains(&"notify"), "{:?}", world.did());
    // When it may be, so is the drain.
    let mut world = sick(hung("x"), ClearedBy::Kill, &[cont(), cordon(), drain(), kill(true), notify()], 3);
    world.run(secs(1_200));
    assert!(world.did().contains(&"drain"), "{:?}", world.did());
}

#[test]
fn a_dry_run_says_that_it_would_be_left_out() {
    let shadow = Step { mode: Mode::DryRun, ..drain() };
    let steps = [cordon(), shadow, restart_runtime(true), notify()];
    let world = sick(fault(FaultType::RuntimeUnreachable, "x"), ClearedBy::RestartRuntime, &steps, 3).ran(120);
    let record = only_drain(&world);
    assert_eq!(record.state, StepState::Simulated);
    assert!(record.message.contains("would be blocked: node n1 is not drained"), "{}", record.message);
}

#[test]
fn the_cordon_of_another_remediation_is_not_the_one_that_a_drain_needs() {
    let mut world = sick(hung("x"), ClearedBy::Kill, &[cordon(), drain(), kill(true), notify()], 40).passed(2);
    let mut other = world.only_remediation().clone();
    other.name = "other".into();
    other.identity = Some(("u".into(), "1".into()));
    other.started_at = world.now;
    world.remediations.insert("other".into(), other);
    world.node("n1").view.cordoned_by = Some("other".into());
    world.tick(secs(10));
    let plan = world.plan();
    let is_of_first = |effect: &Effect| matches!(effect, Effect::Act { remediation, .. } if remediation != "other");
    assert!(!plan.effects.iter().any(is_of_first), "{:?}", plan.effects);
}
