//! The last decision before an action: it agrees with the pass, and each change since then stops the action.

use nrh_core::engine::{plan, preflight};
use nrh_core::fault::FaultState;
use nrh_core::matching::Requirement;
use nrh_core::plan::{Effect, Operation};
use nrh_core::policy::{ActionType, Mode};
use nrh_core::remediation::{Cancel, StepRecord, StepState};
use nrh_core::snapshot::Snapshot;
use nrh_core::window::WindowType;
use proptest::prelude::*;

use crate::events::{event, happen};
use crate::random_worlds::{any_worlds, round, tried};
use crate::samples::{cont, cordon, drain, hung, kill, today};
use crate::world::{Change, ClearedBy, World, says, secs};

type Act = (String, String, Operation);

/// The actions that are about to be executed, after the writes that go before them.
fn about_to_act(world: &mut World) -> Vec<Act> {
    let mut acts = Vec::new();
    for effect in &world.plan().effects {
        match effect {
            Effect::Act { remediation, operation_id, operation, .. } => {
                acts.push((remediation.clone(), operation_id.clone(), operation.clone()));
            }
            Effect::StoreLedger(_) | Effect::WriteRemediation(_) | Effect::BeginManualRequest(_) => {
                world.apply(effect, true);
            }
            _ => {}
        }
    }
    acts
}

proptest! {
    #![proptest_config(tried(2_500))]

    #[test]
    fn it_agrees_with_the_pass(
        mut world in any_worlds(),
        rounds in prop::collection::vec((round(event()), round(event())), 1..12),
    ) {
        for (turn, (before, meanwhile)) in rounds.iter().enumerate() {
            happen(&mut world, &before.event, turn);
            world.tick(secs(before.wait));
            let mut other = world.clone();
            let acts = about_to_act(&mut other);
            for (remediation, id, operation) in &acts {
                let found = preflight(&other.snapshot(), &other.settings, remediation, id).map(wordless);
                prop_assert_eq!(found, Ok(wordless(operation.clone())), "nothing has changed");
            }
            happen(&mut other, &meanwhile.event, turn);
            let snapshot = other.snapshot();
            let again = plan(&snapshot, &other.settings);
            for (remediation, id, _) in &acts {
                let planned = again.effects.iter().find_map(|effect| match effect {
                    Effect::Act { operation_id, operation, .. } if operation_id == id => Some(operation),
                    _ => None,
                });
                let found = preflight(&snapshot, &other.settings, remediation, id);
                if let Some(planned) = planned {
                    prop_assert_eq!(found.map(wordless), Ok(wordless(planned.clone())));
                } else if found.is_ok() {
                    let why = of_the_fleet(&snapshot, &again.effects, remediation, id);
                    prop_assert!(why, "{meanwhile:?}: {found:?}, and the pass plans {:?}", again.effects);
                }
            }
            world.disturbed_pass(&before.chaos);
        }
    }
}

/// The operation without its text: that of a notification names what has happened until now, its own attempt included.
fn wordless(operation: Operation) -> Operation {
    match operation {
        Operation::Notify(_) => Operation::Notify(String::new()),
        other => other,
    }
}

/// Whether the pass stops the action for a reason that is not of its node alone.
fn of_the_fleet(snapshot: &Snapshot, effects: &[Effect], remediation: &str, id: &str) -> bool {
    let is_paid = snapshot.ledger.as_ref().is_some_and(|ledger| ledger.slots.contains_key(remediation));
    let says = |text: &str| {
        effects.iter().any(|effect| match effect {
            Effect::WriteRemediation(written) if written.name == remediation => {
                written.message.contains(text) || written.attempt(id).is_some_and(|step| step.message.contains(text))
            }
            _ => false,
        })
    };
    !is_paid
        || snapshot.admission_not_enforced.is_some()
        || says("goes first")
        || says("gives way")
        || says("after the release")
}

/// A release that is about to be executed, with a change of the world on top.
fn after(steps: &[nrh_core::policy::Step], change: impl FnOnce(&mut World)) -> Result<Operation, String> {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, steps);
    let acts = about_to_act(&mut world);
    let [(remediation, id, _)] = &acts[..] else { panic!("one action: {acts:?}") };
    change(&mut world);
    preflight(&world.snapshot(), &world.settings, remediation, id)
}

#[test]
fn each_single_change_stops_the_action_and_says_which() {
    assert!(after(&[cont()], |_| {}).is_ok());
    let cases: [(Change, &'static str); 21] = [
        (|w| drop(w.nodes.remove("n1")), "node n1 is gone"),
        (|w| w.node("n1").view.uid = "other".into(), "was replaced"),
        (|w| w.node("n1").view.deleting = true, "being deleted"),
        (|w| w.node("n1").view.exclusions = vec!["label x".into()], "node n1 is excluded: label x"),
        (|w| w.node("n1").view.unreadable = Some("odd".into()), "cannot be read (odd)"),
        (|w| w.suspended = Some("by ann".into()), "suspended in the whole cluster"),
        (|w| w.node("n1").report.suspended = Some("by ann".into()), "remediation of node n1 is suspended"),
        (|w| w.policies.clear(), "policy p is gone"),
        (|w| w.policies[0].suspend = true, "policy p is suspended"),
        (|w| w.policies[0].mode = Mode::DryRun, "policy p is a dry run now"),
        (|w| w.policies[0].is_broken = true, "not valid since it was changed"),
        (|w| w.policies[0].selector.0.push(Requirement::Exists("pool".into())), "does not select node n1"),
        (|w| w.policies[0].rules[0].steps[0].mode = Mode::DryRun, "has another step in its place"),
        (|w| w.policies[0].rules[0].steps[0] = kill(true), "has another step in its place"),
        (|w| w.policies[0].rules[0].steps[0].approval = nrh_core::policy::ApprovalMode::Manual, "approval"),
        (|w| w.policies[0].windows = vec![today(WindowType::Deny)], "Deny window"),
        (|w| w.node("n1").report.node_uid = Some("other".into()), "is not observed now"),
        (|w| w.node("n1").report.faults[0].fault.state = FaultState::Clearing, "is not confirmed any more"),
        (|w| w.node("n1").report.faults[0].checked = secs(46), "its last check is older than 45s"),
        (|w| w.heartbeat("n1").arrived = secs(3_600), "has missed its promised heartbeat"),
        (
            |w| {
                let cancel = Cancel { cancelled_by: "ann".into(), reason: Some("no".into()) };
                w.remediations.values_mut().for_each(|remediation| remediation.cancel = Some(cancel.clone()));
            },
            "cancelled by ann: no",
        ),
    ];
    for (change, expected) in cases {
        let found = after(&[cont()], change).unwrap_err();
        assert!(found.contains(expected), "expected {expected:?}: {found}");
    }
}

#[test]
fn an_attempt_that_has_ended_or_was_never_made_does_not_start() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
    let (name, id, _) = about_to_act(&mut world).remove(0);
    let no = |world: &World, id: &str| preflight(&world.snapshot(), &world.settings, &name, id).unwrap_err();
    assert!(no(&world, "other").contains("has no attempt other to start"));
    world.run(secs(300));
    assert!(no(&world, &id).contains("is at an end (Succeeded)"));
    world.remediations.clear();
    assert!(no(&world, &id).contains("is gone"));
}

#[test]
fn a_policy_that_is_not_valid_starts_no_second_executor() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
    let (name, id, _) = about_to_act(&mut world).remove(0);
    let step = world.remediations.get_mut(&name).unwrap().current_step_mut().unwrap();
    step.started_at = Some(step.scheduled_at);
    assert!(preflight(&world.snapshot(), &world.settings, &name, &id).is_ok());
    world.policies[0].is_broken = true;
    says(&preflight(&world.snapshot(), &world.settings, &name, &id).unwrap_err(), "not valid since it was changed");
}

/// A drain has begun: a window that closes does not stop its next round, but a lost cordon does.
#[test]
fn a_drain_goes_on_in_a_closed_window_and_stops_without_its_cordon() {
    let mut world = World::sick(hung("log"), ClearedBy::Kill, &[cordon(), drain(), kill(true)]).with_pods(1);
    let is_begun = |step: &StepRecord| step.action == ActionType::Drain && step.state == StepState::Started;
    let drains = |world: &World| world.remediations.values().any(|one| one.current_step().is_some_and(is_begun));
    world.until(secs(100), "draining", drains);
    let retry = world.settings.retry;
    world.tick(retry);
    let acts = about_to_act(&mut world);
    let [(name, id, Operation::Drain(_))] = &acts[..] else { panic!("{acts:?}") };
    world.policies[0].windows = vec![today(WindowType::Deny)];
    assert!(preflight(&world.snapshot(), &world.settings, name, id).is_ok());
    world.node("n1").view.unschedulable = false;
    assert!(preflight(&world.snapshot(), &world.settings, name, id).is_err());
}
