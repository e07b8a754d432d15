//! What a person starts and cancels by hand.

use nrh_core::engine::plan;
use nrh_core::fault::{FaultState, FaultType, Severity};
use nrh_core::manual::MAX_WAITING;
use nrh_core::plan::{BlockReason, Effect};
use nrh_core::policy::{ActionType, Amount, Mode, Requirement, Step};
use nrh_core::remediation::{Approval, Cancel, ManualRequest, Phase, Remediation, StepState};
use nrh_core::snapshot::TriState;
use nrh_core::window::WindowType;

use crate::samples::{
    asked, cont, cordon, fault, hung, kept, kill, names, notify, policy, restart_runtime, rule, today,
};
use crate::world::{Change, Chaos, ClearedBy, JOB_CONT, JOB_KILL, World, acts, reasons, says, secs, written};

const KIND: FaultType = FaultType::HungContainer;
const RELEASE: ActionType = ActionType::ReleaseHungProcess;

/// What ann wants.
pub fn manual(fault: FaultType, action: ActionType) -> ManualRequest {
    ManualRequest {
        requested_by: "ann".into(),
        fault,
        fault_id: None,
        action,
        policy_generation: Some(1),
        reason: None,
        timeout: secs(3_600),
    }
}

fn no(reason: Option<&str>) -> Cancel {
    Cancel { cancelled_by: "bob".into(), reason: reason.map(ToOwned::to_owned) }
}

/// A node with a hung container that the engine leaves alone for now: the fault has to last for an hour.
fn left_alone(by: impl Into<Option<ClearedBy>>, steps: &[Step]) -> World {
    let mut world = World::sick(hung("log"), by, steps);
    world.policies[0].rules[0].min_duration = secs(3_600);
    world
}

/// The same, where ann has asked for the release.
fn requested(by: impl Into<Option<ClearedBy>>, steps: &[Step]) -> World {
    let mut world = left_alone(by, steps);
    world.ask("by-hand", "n1", "p", manual(KIND, RELEASE));
    world
}

fn is_begun(effect: &Effect) -> bool {
    matches!(effect, Effect::BeginManualRequest(_))
}

/// The finished remediation of that name.
fn ended<'w>(world: &'w World, name: &str) -> &'w Remediation {
    let remediation = &world.remediations[name];
    assert!(remediation.finished_at.is_some(), "{remediation:?}");
    remediation
}

#[test]
fn a_second_no_to_what_is_at_its_end_changes_nothing() {
    let mut world = World::sick(hung("log"), None, &[cordon(), cont(), kill(true)]).passed(2);
    let name = world.cancel("n1", &no(Some("I look at it myself"))).unwrap();
    world.run_to(400, Phase::Cancelled);
    world.remediations.get_mut(&name).unwrap().cancel = Some(no(None));
    assert_eq!(world.plan().effects, []);
}

#[test]
fn a_no_written_right_before_the_act_prevents_it() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
    let decided = world.schedule();
    world.cancel("n1", &no(None)).unwrap();
    let act = decided.effects.iter().find(|effect| matches!(effect, Effect::Act { .. })).unwrap();
    assert!(!world.apply(act, true));
    world.run(secs(60));
    assert_eq!(world.did(), Vec::<&str>::new());
    assert_eq!((world.phase(), world.step(0).state), (Phase::Cancelled, StepState::Cancelled));
}

#[test]
fn a_person_ends_the_keeping_of_a_cordon() {
    let mut world = World::sick(hung("log"), None, &[kept(secs(7_200), secs(60)), cont(), notify()]).ran(600);
    assert_eq!(world.phase(), Phase::Quarantined);
    let name = world.cancel("n1", &no(None)).unwrap();
    world.run(secs(60));
    assert_eq!(ended(&world, &name).phase, Phase::Cancelled);
    assert!(!world.is_cordoned(), "{:?}", world.did());
}

#[test]
fn a_manual_request_begins_on_its_step_index_without_being_asked_twice() {
    let steps = [cordon(), asked(Step { max_attempts: 2, ..cont() }), kill(true), notify()];
    let mut world = left_alone(None, &steps);
    assert_eq!(reasons(&world.pass()), [BlockReason::MinDurationNotReached]);
    world.ask("by-hand", "n1", "p", manual(KIND, RELEASE));
    let begun = world.pass();
    assert_eq!(acts(&begun), [("n1".into(), JOB_CONT.into())]);
    assert!(matches!(begun.effects[..2], [Effect::StoreLedger(_), Effect::BeginManualRequest(_)]), "{begun:?}");
    assert!(world.manual_requests.is_empty(), "it is a remediation from now on");
    let remediation = world.only_remediation();
    assert_eq!(remediation.steps[0].approved_by.as_deref(), Some("ann"));
    assert!(remediation.message.starts_with("started by ann; "), "{}", remediation.message);
    // The second attempt asks again, by the rule.
    world.run(secs(600));
    assert_eq!(world.did(), [JOB_CONT]);
    assert_eq!(world.phase(), Phase::AwaitingApproval);
}

#[test]
fn a_manual_request_goes_on_by_the_rule_and_resolves() {
    let world = requested(ClearedBy::Kill, &[cordon(), cont(), kill(true), notify()]).ran(900);
    assert_eq!(world.did(), [JOB_CONT, JOB_KILL], "the first such step, then what follows it");
    assert_eq!(ended(&world, "by-hand").phase, Phase::Succeeded);
    assert!(world.slots().is_empty());
}

#[test]
fn what_failed_and_what_a_person_stopped_a_person_may_start_again() {
    let mut world = World::sick(hung("log"), None, &[cont()]).ran(900);
    assert_eq!((world.phase(), reasons(&world.plan())), (Phase::Failed, vec![BlockReason::RecentlyFailed]));
    world.ask("by-hand-again", "n1", "p", manual(KIND, RELEASE));
    assert_eq!(acts(&world.pass()).len(), 1);
    world.cancel("n1", &no(None)).unwrap();
    world.run(secs(400));
    assert_eq!(ended(&world, "by-hand-again").phase, Phase::Cancelled);
    world.tick(secs(15));
    world.ask("by-hand-and-again", "n1", "p", manual(KIND, RELEASE));
    assert_eq!(acts(&world.pass()).len(), 1);
}

/// What blocks a manual request, with the reason in its status.
fn holds() -> [(BlockReason, Change); 12] {
    [
        (BlockReason::Suspended, |w| w.suspended = Some("by ann".into())),
        (BlockReason::Excluded, |w| w.node("n1").view.exclusions.push("drain".into())),
        (BlockReason::Suspended, |w| w.node("n1").report.suspended = Some("hands off".into())),
        (BlockReason::Paused, |w| w.policies[0].pause_requests.push("release".into())),
        (BlockReason::OutsideWindow, |w| w.policies[0].windows.push(today(WindowType::Deny))),
        (BlockReason::MaxUnhealthyExceeded, |w| w.policies[0].limits.max_unhealthy = Amount::Count(0)),
        (BlockReason::MaxInFlightReached, |w| w.policies[0].limits.max_in_flight = Amount::Count(0)),
        (BlockReason::ClusterLimit, |w| w.ceiling = 0),
        (BlockReason::LedgerUnavailable, |w| w.ledger = None),
        (BlockReason::ProbeNotReporting, |w| {
            w.node("n1").probe_runs = false;
            w.tick(secs(25));
        }),
        (BlockReason::NotConfirmed, |w| {
            w.node("n1").sick[0].fault.state = FaultState::Suspected;
            w.node("n1").send();
        }),
        (BlockReason::ActionsDisabled, |w| w.heartbeat("n1").actions_enabled = false),
    ]
}

/// A start by hand begins after what held it.
#[test]
fn what_protects_holds_it_and_it_begins_when_that_has_passed() {
    for (number, (reason, block)) in holds().into_iter().enumerate() {
        let mut world = left_alone(ClearedBy::Cont, &[cont()]);
        let mut lifted = world.clone();
        block(&mut world);
        world.ask("by-hand", "n1", "p", manual(KIND, RELEASE));
        let blocked = world.pass();
        assert_eq!(acts(&blocked), [], "case {number}");
        let about =
            blocked.blocked.iter().find(|blocked| blocked.message.starts_with("manual request by-hand")).unwrap();
        assert_eq!(about.reason, reason, "case {number}: {}", about.message);
        assert!(world.ledger.as_ref().is_none_or(|ledger| ledger.slots.is_empty()), "it waits without a slot");
        let told = world.manual_requests["by-hand"].message.clone();
        assert!(told.starts_with(&format!("cannot start yet ({reason:?}): ")), "case {number}: {told}");
        assert!(blocked.next.unwrap() <= secs(3_600));
        assert!(world.pass().effects.is_empty(), "case {number}: told once");
        (lifted.now, lifted.manual_requests) = (world.now, world.manual_requests.clone());
        lifted.node("n1").send();
        assert_eq!(acts(&lifted.pass()).len(), 1, "case {number}: {:?}", world.manual_requests);
    }
}

/// What can never begin ends, and says why: as soon as no watch can be behind any more.
#[test]
fn what_can_never_begin_ends_with_the_reason() {
    let cases: [(&'static str, Change); 16] = [
        ("there is no node n1", |w| drop(w.nodes.remove("n1"))),
        ("node n1 was replaced", |w| w.node("n1").view.uid = "other".into()),
        ("there is no policy p", |w| w.policies.clear()),
        ("policy p is suspended", |w| w.policies[0].suspend = true),
        ("policy p is a dry run", |w| w.policies[0].mode = Mode::DryRun),
        ("does not select node n1", |w| w.policies[0].selector.0.push(Requirement::Exists("pool".into()))),
        ("has no rule for HungContainer", |w| w.policies[0].rules[0].faults.retain(|kind| *kind != KIND)),
        ("has no rule for HungContainer (", |w| w.policies[0].rules[0].min_severity = Severity::Critical),
        ("has a step ReleaseHungProcess that is not a dry run", |w| {
            w.policies[0].rules[0].steps[0].mode = Mode::DryRun;
        }),
        ("is for policy a, which goes before p", |w| {
            let mut before = policy("a", &[rule("r", &[KIND], &[kill(true)])]);
            before.rules[0].min_duration = secs(3_600);
            w.policies.push(before);
        }),
        ("no HungContainer is seen on node n1", |w| w.recover("n1")),
        ("start the Cordon before it", |w| {
            w.manual_requests.get_mut("by-hand").unwrap().manual.action = ActionType::Drain;
        }),
        ("it was deleted", |w| w.manual_requests.get_mut("by-hand").unwrap().deleting = true),
        ("expected Enforce", |w| w.manual_requests.get_mut("by-hand").unwrap().mode = Mode::DryRun),
        ("cannot stand in names of operations", |w| {
            let mut manual = w.manual_requests.remove("by-hand").unwrap();
            manual.name = "By.Hand".into();
            w.manual_requests.insert("by-hand".into(), manual);
        }),
        ("it could not within 60 min: nobody decided on it meanwhile", |w| {
            w.node("n1").sick.clear();
            w.tick(secs(3_600));
        }),
    ];
    for (why, change) in cases {
        let mut world = requested(ClearedBy::Cont, &[cont()]);
        change(&mut world);
        let mut plan = world.plan();
        if written(&plan).is_empty() {
            assert!(plan.blocked.iter().any(|blocked| blocked.message.contains(why)), "{why}: {:?}", plan.blocked);
            let lag = world.settings.cache_lag;
            world.tick(lag);
            plan = world.plan();
        }
        assert_eq!(acts(&plan), [], "{why}");
        let [remediation] = written(&plan)[..] else { panic!("{why}: {:?}", plan.effects) };
        assert_eq!((remediation.phase, remediation.finished_at), (Phase::Cancelled, Some(world.now)), "{why}");
        assert!(remediation.message.starts_with("not started: "), "{}", remediation.message);
        says(&remediation.message, why);
        assert_eq!(remediation.stopped(), None, "nothing was stopped: the engine goes on by itself");
    }
}

#[test]
fn what_was_wanted_an_evening_ago_is_not_done_in_the_morning() {
    let mut world = requested(ClearedBy::Cont, &[cont()]);
    assert_eq!(acts(&world.report_and_pass_after(3_600)), [], "nothing stands in its way but the time");
    assert!(ended(&world, "by-hand").message.contains("it could not within 60 min"));
}

#[test]
fn no_later_and_harsher_step_begins_in_the_place_of_the_first() {
    let down = fault(FaultType::RuntimeUnreachable, "it");
    let mut world = World::sick(down, None, &[restart_runtime(false), asked(restart_runtime(true)), notify()]);
    let node = world.node("n1");
    node.sick[0].fault.duration_seconds = 1_200;
    node.send();
    (node.report.restart.runtime, node.report.restart.unsafe_for) = (TriState::False, secs(1_200));
    world.ask("by-hand", "n1", "p", manual(FaultType::RuntimeUnreachable, ActionType::RestartRuntime));
    let plan = world.plan();
    assert!(!plan.effects.iter().any(is_begun), "{plan:?}");
    assert!(plan.blocked.iter().any(|blocked| blocked.message.contains("a restart was not safe")), "{plan:?}");
}

#[test]
fn what_a_person_has_not_seen_is_not_agreed_to() {
    for generation in [Some(1), Some(0), None] {
        let mut world = left_alone(ClearedBy::Cont, &[asked(cont())]);
        world.ask("by-hand", "n1", "p", ManualRequest { policy_generation: generation, ..manual(KIND, RELEASE) });
        let is_agreed = generation == Some(1);
        assert_eq!(acts(&world.pass()).len(), usize::from(is_agreed), "{generation:?}");
        let expected = if is_agreed { Phase::Running } else { Phase::AwaitingApproval };
        assert_eq!((world.phase(), world.states().len()), (expected, 1), "{generation:?}");
    }
}

#[test]
fn one_fault_of_several_is_named_by_its_id() {
    let mut world = left_alone(ClearedBy::Cont, &[cont()]).ill(hung("other"), ClearedBy::Cont);
    world.ask("by-hand", "n1", "p", manual(KIND, RELEASE));
    let blocked = world.pass();
    assert_eq!(acts(&blocked), []);
    assert!(blocked.blocked.iter().any(|blocked| blocked.message.contains("none is named")), "{blocked:?}");
    world.manual_requests.clear();
    let id = hung("other").id;
    world.ask("by-hand", "n1", "p", ManualRequest { fault_id: Some(id.clone()), ..manual(KIND, RELEASE) });
    world.pass();
    let remediation = world.only_remediation();
    assert_eq!((remediation.faults.len(), &remediation.faults[0].id), (1, &id));
}

/// Told in openkruise/kruise #2474.
#[test]
fn it_waits_for_the_remediation_that_has_the_node_and_no_second_one_waits_with_it() {
    let mut world = World::sick(hung("log"), None, &[cont(), kill(true)]).passed(1);
    world.ask("by-hand-first", "n1", "p", manual(KIND, RELEASE));
    world.ask("by-hand-second", "n1", "p", manual(KIND, RELEASE));
    world.pass();
    let (_, running) = world.remediations.iter().find(|(name, _)| *name != "by-hand-second").unwrap();
    assert!(running.is_open());
    says(&world.manual_requests["by-hand-first"].message, &format!("remediation {} has node n1", running.name));
    says(&ended(&world, "by-hand-second").message, "by-hand-first for node n1 was written before");
    world.wait(120, 5);
    assert!(world.manual_requests.is_empty());
    let first = &world.remediations["by-hand-first"];
    assert!(first.steps[0].executed_at.is_some(), "{first:?}");
    assert!(world.open() <= 1);
}

#[test]
fn nothing_begins_before_its_slot_is_stored() {
    let mut world = requested(ClearedBy::Cont, &[cont()]);
    // The ledger cannot be written.
    world.disturbed_pass(&Chaos { failing: [0].into(), ..Chaos::default() });
    assert!(world.manual_requests.contains_key("by-hand") && world.did().is_empty());
    // It is, and the object cannot: its slot stands, nothing is done, and the next pass goes on with that very slot.
    world.disturbed_pass(&Chaos { failing: [1].into(), ..Chaos::default() });
    assert!(world.manual_requests.contains_key("by-hand") && world.did().is_empty());
    assert!(world.slots().contains_key("by-hand"));
    world.policies[0].limits.max_in_flight = Amount::Count(1);
    world.pass();
    assert_eq!(world.did(), [JOB_CONT]);
    assert_eq!(world.slots().len(), 1);
    // Taken back instead, its slot is given back, after the time that a cache may be behind.
    let mut world = requested(ClearedBy::Cont, &[cont()]);
    world.disturbed_pass(&Chaos { crash_after: Some(1), ..Chaos::default() });
    world.cancel("n1", &no(None)).unwrap();
    world.pass();
    assert_eq!(ended(&world, "by-hand").phase, Phase::Cancelled);
    world.pass();
    assert!(world.slots().is_empty());
}

#[test]
fn an_old_cache_begins_nothing_twice() {
    let mut world = requested(None, &[cont()]);
    let before = world.snapshot();
    world.pass();
    world.carry_out(&before, &Chaos::default());
    assert_eq!(world.did(), [JOB_CONT]);
    assert!(plan(&before, &world.settings).effects.iter().any(is_begun), "it would, had it the version");
}

#[test]
fn a_storm_holds_the_engine_and_not_a_person() {
    let names = names(12);
    let mut world = World::new(&[policy("p", &[rule("r", &[KIND], &[cont()])])], &names);
    world.inject_all(&names, &hung("log"), ClearedBy::Cont);
    assert!(reasons(&world.plan()).contains(&BlockReason::Storm));
    world.ask("by-hand", "n03", "p", manual(KIND, RELEASE));
    assert_eq!(acts(&world.pass()), [("n03".into(), JOB_CONT.into())]);
    // Too many unhealthy nodes hold a person, too.
    world.policies[0].limits.max_unhealthy = Amount::Percent(50);
    world.ask("by-hand-another", "n04", "p", manual(KIND, RELEASE));
    world.pass();
    assert!(world.manual_requests["by-hand-another"].message.contains("maxUnhealthy"), "{:?}", world.manual_requests);
}

#[test]
fn there_is_a_bound_to_what_waits() {
    let names: Vec<String> = (0..=MAX_WAITING).map(|number| format!("w{number:03}")).collect();
    let mut world = World::new(&[policy("p", &[rule("r", &[KIND], &[cont()])])], &names);
    for node in &names {
        world.ask(&format!("by-hand-{node}"), node, "p", manual(KIND, RELEASE));
    }
    world.pass();
    assert_eq!(world.manual_requests.len(), MAX_WAITING);
    says(&ended(&world, "by-hand-w100").message, "100 manual requests wait already");
}

#[test]
fn a_yes_to_another_operation_does_not_carry_the_first() {
    let mut world = requested(None, &[asked(cont())]).passed(1);
    let remediation = world.remediations.get_mut("by-hand").unwrap();
    let first = remediation.steps[0].operation_id.clone();
    remediation.approval = Some(Approval { approved_by: "bob".into(), operation_id: "by-hand-another".into() });
    assert_eq!((remediation.approved(&first), remediation.approved("by-hand-another")), (Some("ann"), Some("bob")));
    remediation.manual = None;
    assert_eq!(remediation.approved(&first), None);
}

#[test]
fn starts_that_never_began_are_few_and_take_no_place_from_what_was_done() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
    world.policies[0].history.limit = 25;
    world.run(secs(60));
    let done = world.only_remediation().name.clone();
    for number in 0..40 {
        world.ask(&format!("by-hand-{number}"), "n1", "gone", manual(KIND, RELEASE));
        world.pass_after(61);
    }
    world.pass();
    let refused = world.remediations.values().filter(|remediation| remediation.steps.is_empty()).count();
    assert_eq!((refused, world.remediations.contains_key(&done)), (20, true));
}

#[test]
fn a_no_to_what_has_not_begun_holds_for_the_engine_too() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
    world.policies[0].windows.push(today(WindowType::Deny));
    world.ask("by-hand", "n1", "p", manual(KIND, RELEASE));
    world.pass();
    world.cancel("n1", &no(Some("do not touch it"))).unwrap();
    world.policies[0].windows.clear();
    world.run(secs(600));
    assert_eq!(world.did(), Vec::<&str>::new());
    let message = &ended(&world, "by-hand").message;
    assert_eq!(message, "cancelled by a person: its manual request was cancelled by bob: do not touch it");
    assert_eq!(reasons(&world.plan()), [BlockReason::RecentlyFailed]);
}
