//! Taints of ours on a node: put there, taken off, and never anybody else's.

use nrh_core::action::Taint;
use nrh_core::engine::plan;
use nrh_core::fault::FaultType;
use nrh_core::plan::{BlockReason, Effect};
use nrh_core::policy::{Action, ActionType, Mode, Step};
use nrh_core::remediation::{Cleanup, Marker, Phase, Resolution, StepState};
use nrh_core::snapshot::NodeView;
use nrh_core::taint::{KeyedTaint, TaintEffect, TaintMark};

use crate::samples::{backing_off, cont, cordon, delete_pod, hung, kept, kill, notify, plugin, policy, rule, step};
use crate::world::{ClearedBy, World, acts, reasons, secs};

const HARD: TaintEffect = TaintEffect::NoSchedule;
const SOFT: TaintEffect = TaintEffect::PreferNoSchedule;

fn taint() -> Step {
    step(Action::Taint(Taint { effect: HARD }))
}

fn soft() -> Step {
    step(Action::Taint(Taint { effect: SOFT }))
}

fn view(world: &World) -> &NodeView {
    &world.nodes["n1"].view
}

/// A taint with our key that a person puts there, under another effect than ours.
fn somebodys() -> KeyedTaint {
    KeyedTaint { effect: "NoExecute".into(), value: "mine".into() }
}

#[test]
fn it_lasts_as_long_as_the_remediation() {
    let mut world = World::sick(hung("log"), ClearedBy::Kill, &[taint(), cont(), kill(true)]);
    world.pass();
    let mark = TaintMark::new(&world.only_remediation().name, HARD);
    let node = view(&world);
    assert!(node.carries(HARD) && node.tainted_by == Some(mark) && !node.unschedulable, "{node:?}");
    world.run(secs(900));
    let remediation = world.only_remediation();
    assert_eq!(remediation.phase, Phase::Succeeded, "{}", remediation.message);
    assert!(remediation.cleanup.has_removed(&Marker::Taint));
    assert_eq!(world.did(), ["taint", "job ReleaseHungProcess(SIGCONT)", "job ReleaseHungProcess(SIGKILL)", "untaint"]);
    assert!(view(&world).taints.is_empty() && view(&world).tainted_by.is_none());
}

/// The mark of a lost remediation of the same name is taken off while this one has scheduled its own.
#[test]
fn a_repeated_step_owes_its_cleanup_again() {
    for marks in [taint(), cordon()] {
        let mut world = World::sick(hung("log"), ClearedBy::Kill, &[marks, cont()]);
        world.pass();
        let now = world.now;
        let remediation = world.remediations.values_mut().next().unwrap();
        remediation.cleanup.0[0].removed_at = Some(now);
        (remediation.steps[0].state, remediation.steps[0].executed_at) = (StepState::Scheduled, None);
        remediation.steps.truncate(1);
        let plan = world.plan();
        let written = plan.effects.iter().find_map(|effect| match effect {
            Effect::WriteRemediation(written) => Some(&written.cleanup),
            _ => None,
        });
        assert!(written.is_some_and(Cleanup::is_pending), "{:?}", plan.effects);
        assert!(plan.effects.iter().any(|effect| matches!(effect, Effect::Act { .. })), "{:?}", plan.effects);
    }
}

#[test]
fn somebody_elses_taint_with_our_key_is_not_adopted() {
    for theirs in [KeyedTaint::plain(HARD), KeyedTaint::plain(SOFT), somebodys()] {
        let mut world = World::sick(hung("log"), ClearedBy::Cont, &[taint(), cont()]);
        world.node("n1").view.taints.insert(theirs.clone());
        world.run(secs(300));
        let remediation = world.only_remediation();
        assert_eq!(remediation.phase, Phase::Succeeded, "{}", remediation.message);
        assert_eq!(remediation.steps[0].message, "another owner's taint is already on the node; nothing changed");
        assert_eq!(view(&world).taints, [theirs].into(), "it was there before, it stays");
    }
}

#[test]
fn another_taint_with_our_key_beside_ours_is_neither_taken_off_nor_taken_for_ours() {
    let mut world = World::sick(hung("log"), ClearedBy::Kill, &[taint(), cont(), kill(true)]);
    world.pass();
    world.node("n1").view.taints.insert(somebodys());
    world.run(secs(900));
    assert_eq!(world.only_remediation().phase, Phase::Succeeded, "{}", world.only_remediation().message);
    assert_eq!(view(&world).taints, [somebodys()].into(), "ours goes, theirs stays");

    // A person takes off ours alone, or makes it theirs by a value: that is a no all the same.
    for theirs in [somebodys(), KeyedTaint { value: "mine".into(), ..KeyedTaint::plain(HARD) }] {
        let mut world = World::sick(hung("log"), None, &[taint(), cont(), kill(true)]);
        world.pass();
        world.pass();
        world.node("n1").view.taints = [theirs.clone()].into();
        world.run(secs(400));
        let remediation = world.only_remediation();
        assert!(remediation.message.contains("a person removed our taint from node n1"), "{}", remediation.message);
        assert_eq!((&view(&world).taints, &view(&world).tainted_by), (&[theirs].into(), &None));
    }
}

#[test]
fn a_person_who_takes_it_off_ends_the_remediation() {
    for mark_goes in [false, true] {
        let mut world = World::sick(hung("log"), None, &[taint(), cont(), kill(true)]);
        world.pass();
        world.pass();
        let view = &mut world.node("n1").view;
        view.taints.clear();
        if mark_goes {
            view.tainted_by = None;
        }
        world.run(secs(400));
        let remediation = world.only_remediation();
        assert_eq!(remediation.phase, Phase::Cancelled, "{}", remediation.message);
        assert!(remediation.message.contains("a person removed our taint from node n1"), "{}", remediation.message);
        assert!(world.nodes["n1"].view.tainted_by.is_none(), "our mark is taken off");
        assert!(world.ledger.as_ref().unwrap().slots.is_empty());
        assert_eq!(reasons(&world.plan()), [BlockReason::RecentlyFailed], "it does not begin anew at once");
    }
}

#[test]
fn a_stale_view_of_our_own_taint_is_no_persons_no() {
    let mut world = World::sick(hung("log"), None, &[taint(), cont()]);
    world.pass();
    let mut snapshot = world.snapshot();
    let view = snapshot.nodes.get_mut("n1").unwrap();
    view.taints.clear();
    view.tainted_by = None;
    let plan = plan(&snapshot, &world.settings);
    assert_eq!(acts(&plan).len(), 1, "it goes on: {:?}", plan.effects);
}

/// What ends a remediation, and whether the taint comes off.
#[test]
fn it_comes_off_however_the_remediation_ends() {
    type End = (&'static str, fn(&mut World), Phase, &'static str);
    let ends: [End; 8] = [
        (
            "deleted",
            |w| w.remediations.values_mut().for_each(|e| e.deleting = true),
            Phase::Cancelled,
            "the remediation was deleted",
        ),
        ("policy gone", |w| w.policies.clear(), Phase::Cancelled, "policy p is gone"),
        ("policy suspended", |w| w.policies[0].suspend = true, Phase::Cancelled, "policy p is suspended"),
        ("policy a dry run now", |w| w.policies[0].mode = Mode::DryRun, Phase::Cancelled, "policy p is a dry run now"),
        ("rule gone", |w| w.policies[0].rules[0].name = "other".into(), Phase::Cancelled, "has no rule r any more"),
        ("another effect now", |w| w.policies[0].rules[0].steps[0] = soft(), Phase::Failed, "no step is left"),
        (
            "node replaced",
            |w| w.node("n1").view.uid = "uid-new".into(),
            Phase::Cancelled,
            "was replaced by another one",
        ),
        ("healed", |w| w.node("n1").sick.clear(), Phase::Succeeded, "a check no longer finds"),
    ];
    for (what, end, phase, message) in ends {
        let mut world = World::sick(hung("log"), None, &[taint(), cont()]);
        world.pass();
        assert!(view(&world).carries(HARD), "{what}");
        let name = world.only_remediation().name.clone();
        // The one that is deleted goes once its end has been noted.
        let mut last = world.only_remediation().clone();
        end(&mut world);
        for _ in 0..120 {
            world.pass();
            let Some(now) = world.remediations.get(&name) else { break };
            last = now.clone();
            world.tick(secs(5));
        }
        assert_eq!(last.phase, phase, "{what}: {}", last.message);
        assert!(last.message.contains(message), "{what}: {}", last.message);
        assert!(!last.is_live() && last.cleanup.has_removed(&Marker::Taint), "{what}: {last:#?}");
        assert!(view(&world).taints.is_empty() && view(&world).tainted_by.is_none(), "{what}: {:?}", view(&world));
    }
}

/// A tool that replaces machines saves the annotations of the old Node and puts them on the new one.
#[test]
fn a_mark_that_comes_back_on_a_new_machine_keeps_no_taint_from_it() {
    for is_known in [true, false] {
        let mut world = World::sick(hung("log"), None, &[taint(), cont()]);
        world.pass();
        let first = world.only_remediation().name.clone();
        let node = world.node("n1");
        (node.view.uid, node.report.node_uid) = ("uid-new".into(), Some("uid-new".into()));
        node.view.taints.clear();
        node.sick.clear();
        node.send();
        world.tick(secs(5));
        world.pass();
        world.pass();
        assert!(view(&world).tainted_by.is_none(), "swept: {:?}", view(&world));
        // Later than that, too; and then it stands in nobody's way.
        world.node("n1").view.tainted_by = Some(TaintMark::new(&first, HARD));
        if !is_known {
            world.remediations.clear();
        }
        world.inject("n1", hung("other"), ClearedBy::Cont);
        world.run(secs(120));
        let did: Vec<&str> = world.did().into_iter().filter(|what| *what != "untaint").collect();
        assert_eq!(did, ["taint", "taint", "job ReleaseHungProcess(SIGCONT)"], "known: {is_known}");
        assert!(view(&world).taints.is_empty() && view(&world).tainted_by.is_none());
    }
}

#[test]
fn another_name_over_the_mark_of_a_remediation_at_work_takes_nothing_off() {
    let mut world = World::sick(hung("log"), None, &[taint(), cont()]);
    world.pass();
    world.pass();
    world.node("n1").view.tainted_by = Some(TaintMark::new("x", HARD));
    world.live(12, 5);
    assert!(view(&world).carries(HARD), "{:?}", world.did());
    let remediation = world.only_remediation();
    assert!(!remediation.phase.is_final(), "{}", remediation.message);
    world.run(secs(900));
    let remediation = world.only_remediation();
    assert_eq!(remediation.phase, Phase::Failed, "{}", remediation.message);
    assert!(view(&world).taints.is_empty() && view(&world).tainted_by.is_none(), "nothing is stranded");
}

#[test]
fn a_mark_without_an_effect_takes_nobodys_taint_off() {
    let mut world = World::sick(hung("log"), None, &[cont()]);
    let node = &mut world.node("n1").view;
    node.taints.insert(KeyedTaint::plain(HARD));
    node.tainted_by = Some(TaintMark::read("somebody"));
    world.pass();
    assert_eq!(view(&world).taints, [KeyedTaint::plain(HARD)].into());
    assert_eq!(view(&world).tainted_by, None);
}

/// All is resolved, the taint is taken off, and the write that records it fails; then the next fault shows.
#[test]
fn what_we_have_taken_off_ourselves_is_no_persons_no() {
    for (first, undone) in [(taint(), "untaint"), (cordon(), "uncordon")] {
        for early in [false, true] {
            let mut world = World::sick(hung("log"), ClearedBy::Cont, &[first.clone(), cont(), kill(true), notify()]);
            if early {
                // Resolved so soon that a cache might show the node as it was before.
                world.policies[0].rules[0].steps.iter_mut().for_each(|step| step.stable_for = secs(1));
            } else {
                world.policies[0].rules[0].steps.iter_mut().for_each(|step| step.stable_for = secs(90));
            }
            let is_cleanup = |effect: &Effect| matches!(effect, Effect::Remove { .. });
            let mut left = 200;
            while !world.did().contains(&undone) {
                let plan = world.plan();
                let mut broken = false;
                for effect in &plan.effects {
                    broken = broken || !world.apply(effect, !is_cleanup(effect));
                }
                world.tick(secs(5));
                left -= 1;
                assert!(left > 0, "{:#?}", world.remediations);
            }
            world.inject("n1", hung("next"), ClearedBy::Kill);
            let mut phases = Vec::new();
            for _ in 0..60 {
                world.pass();
                world.tick(secs(5));
                phases.extend(
                    world.remediations.values().map(|remediation| (remediation.phase, remediation.message.clone())),
                );
            }
            let is_stopped = |(phase, _): &&(Phase, String)| *phase == Phase::Cancelled;
            assert_eq!(phases.iter().find(is_stopped), None, "{undone}, early: {early}");
            let resolved = world.remediations.values().flat_map(|remediation| &remediation.faults);
            assert_eq!(
                resolved.filter(|fault| fault.state == Resolution::Resolved).count(),
                2,
                "{:#?}",
                world.remediations
            );
            let node = view(&world);
            assert!(node.taints.is_empty() && node.tainted_by.is_none() && !node.unschedulable, "{node:?}");
        }
    }
}

#[test]
fn a_stricter_taint_than_the_one_that_is_on_is_recorded_as_not_put_there() {
    let ours = rule("soft", &[FaultType::HungContainer], &[soft(), cont(), notify()]);
    let theirs = rule("hard", &[FaultType::NetworkPluginHung], &[taint(), kill(true), notify()]);
    for is_reversed in [false, true] {
        let rules = [(soft(), taint()), (taint(), soft())];
        let (first, second) = rules[usize::from(is_reversed)].clone();
        let mut rules = [ours.clone(), theirs.clone()];
        (rules[0].steps[0], rules[1].steps[0]) = (first, second);
        let mut world = World::new(&[policy("p", &rules)], &["n1"]);
        world.inject("n1", hung("log"), None);
        world.pass();
        world.inject("n1", plugin(), ClearedBy::Kill);
        world.run(secs(1_500));
        let remediation = world.only_remediation();
        let taints: Vec<_> = remediation.steps.iter().filter(|step| step.action == ActionType::Taint).collect();
        let states: Vec<StepState> = taints.iter().map(|step| step.state).collect();
        if is_reversed {
            assert_eq!(states, [StepState::Succeeded], "a softer one is none beside it");
            continue;
        }
        assert_eq!(states, [StepState::Succeeded, StepState::Refused], "{:#?}", remediation.steps);
        assert!(taints[1].message.contains("NoSchedule is not put in its place"), "{}", taints[1].message);
        assert!(
            world.did().contains(&"job ReleaseHungProcess(SIGKILL)"),
            "the step that heals follows: {:?}",
            world.did()
        );
    }
}

/// Another effect of its own, from a write that was never recorded: the policy was changed in between.
#[test]
fn a_taint_of_its_own_with_another_effect_is_not_taken_for_the_one_that_is_wanted() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[soft(), cont()]);
    let plan = world.plan();
    for effect in &plan.effects {
        world.apply(effect, !matches!(effect, Effect::Act { .. }));
    }
    assert!(view(&world).carries(SOFT));
    world.policies[0].rules[0].steps[0] = taint();
    world.run(secs(300));
    let remediation = world.only_remediation();
    let states: Vec<StepState> = remediation.steps.iter().map(|step| step.state).collect();
    assert_eq!(states, [StepState::Cancelled, StepState::Refused, StepState::Succeeded], "{:#?}", remediation.steps);
    assert_eq!(remediation.phase, Phase::Succeeded, "{}", remediation.message);
    assert!(view(&world).taints.is_empty() && view(&world).tainted_by.is_none(), "{:?}", view(&world));
}

/// The write landed, its record did not, and a person takes the taint off in between.
#[test]
fn what_a_person_took_off_before_it_was_recorded_is_not_put_back() {
    let mut world = World::sick(hung("log"), None, &[taint(), cont()]);
    let plan = world.plan();
    for effect in &plan.effects {
        world.apply(effect, !matches!(effect, Effect::Act { .. }));
    }
    world.node("n1").view.taints.clear();
    world.run(secs(60));
    let remediation = world.only_remediation();
    assert!(remediation.message.contains("a person removed our taint from node n1"), "{}", remediation.message);
    assert!(view(&world).taints.is_empty() && view(&world).tainted_by.is_none(), "{:?}", view(&world));
}

#[test]
fn a_late_write_does_not_outlast_a_remediation_that_keeps_its_cordon() {
    let kept = kept(secs(7_200), secs(60));
    let mut world = World::sick(hung("log"), None, &[taint(), kept, cont(), notify()]);
    world.run(secs(900));
    let remediation = world.only_remediation();
    assert_eq!(remediation.phase, Phase::Quarantined, "{}", remediation.message);
    let name = remediation.name.clone();
    let node = &mut world.node("n1").view;
    node.taints.insert(KeyedTaint::plain(HARD));
    node.tainted_by = Some(TaintMark::new(&name, HARD));
    world.pass();
    assert!(view(&world).taints.is_empty() && view(&world).tainted_by.is_none(), "{:?}", view(&world));
    assert_eq!(world.only_remediation().phase, Phase::Quarantined);
}

/// Hardly any DaemonSet tolerates our key: the pod that is deleted has no successor, and its absence is no cure.
#[test]
fn no_daemon_set_pod_is_deleted_where_none_would_follow() {
    let delete = [delete_pod(), notify()];
    for theirs in [KeyedTaint::plain(HARD), somebodys()] {
        let mut world = World::new(&[policy("p", &[rule("r", &FaultType::ALL, &delete)])], &["n1"]);
        world.node("n1").pods.push(backing_off("n1", "agent-1"));
        world.node("n1").view.taints.insert(theirs.clone());
        let plan = world.pass();
        assert_eq!(acts(&plan), [], "{theirs}");
        assert_eq!(reasons(&plan), [BlockReason::ActionsDisabled]);
        assert!(plan.blocked[0].message.contains(&theirs.to_string()), "{}", plan.blocked[0].message);
        world.node("n1").view.taints.clear();
        assert_eq!(acts(&world.pass()), [("n1".to_owned(), "delete agent-1".to_owned())]);
        // One that comes after the act lets nobody take the absence for a cure.
        world.node("n1").view.taints.insert(theirs);
        world.run(secs(1_200));
        let remediation = world.only_remediation();
        assert_ne!(remediation.phase, Phase::Succeeded, "{}", remediation.message);
    }
    // Pods of DaemonSets come to a node that others only prefer not to use.
    let mut world = World::new(&[policy("p", &[rule("r", &FaultType::ALL, &delete)])], &["n1"]);
    world.node("n1").pods.push(backing_off("n1", "agent-1"));
    world.node("n1").view.taints.insert(KeyedTaint::plain(SOFT));
    assert_eq!(acts(&world.pass()).len(), 1);
}

#[test]
fn it_is_left_out_for_the_pod_of_a_daemon_set_unless_it_lets_a_successor_come() {
    for (first, expected) in [(taint(), "delete agent-1"), (soft(), "taint")] {
        let steps = [first, delete_pod(), notify()];
        let mut world = World::new(&[policy("p", &[rule("r", &FaultType::ALL, &steps)])], &["n1"]);
        world.node("n1").pods.push(backing_off("n1", "agent-1"));
        assert_eq!(acts(&world.pass()), [("n1".to_owned(), expected.to_owned())]);
    }
}

/// Told in kubernetes-sigs/node-readiness-controller #382.
#[test]
fn what_a_lost_remediation_has_left_is_taken_off() {
    let mut world = World::sick(hung("log"), None, &[taint(), cont()]);
    world.pass();
    world.remediations.clear();
    world.policies.clear();
    world.ledger.as_mut().unwrap().slots.clear();
    let plan = world.pass();
    assert!(
        plan.effects.iter().any(|effect| matches!(effect, Effect::Remove { marker: Marker::Taint, .. })),
        "{:?}",
        plan.effects
    );
    assert!(view(&world).taints.is_empty());
    // Whose it is nobody can tell without a mark.
    world.node("n1").view.taints.insert(KeyedTaint::plain(HARD));
    assert_eq!(world.pass().effects, []);
}

/// It stays as long as the remediation that put it there, and no longer.
#[test]
fn a_marker_with_the_name_of_somebody_else_goes_after_its_remediation() {
    for marks in [taint(), cordon()] {
        let mut world = World::sick(hung("log"), None, &[marks, cont(), notify()]);
        world.pass();
        let view = &mut world.node("n1").view;
        view.cordoned_by.iter_mut().for_each(|owner| "lost".clone_into(owner));
        view.tainted_by.iter_mut().for_each(|mark| "lost".clone_into(&mut mark.remediation));
        let plan = world.pass();
        assert!(plan.effects.iter().all(|effect| !matches!(effect, Effect::Remove { .. })), "{:?}", plan.effects);
        world.run(secs(1_800));
        let node = self::view(&world);
        assert!(!world.only_remediation().is_live() && !node.unschedulable && node.taints.is_empty(), "{node:?}");
        assert!(node.cordoned_by.is_none() && node.tainted_by.is_none(), "{node:?}");
    }
}

#[test]
fn it_goes_where_a_cordon_stays() {
    let kept = kept(secs(7_200), secs(60));
    let mut world = World::sick(hung("log"), None, &[taint(), kept, cont(), notify()]);
    world.run(secs(900));
    let remediation = world.only_remediation();
    assert_eq!(remediation.phase, Phase::Quarantined, "{}", remediation.message);
    let node = view(&world);
    assert!(node.unschedulable && node.taints.is_empty() && node.tainted_by.is_none(), "{node:?}");
    assert!(!remediation.cleanup.has_pending(&Marker::Taint) && remediation.cleanup.has_pending_cordon());
}

#[test]
fn it_is_done_once_and_what_cannot_be_done_stops_nothing() {
    let twice = Step { max_attempts: 3, ..taint() };
    let mut world = World::sick(hung("log"), ClearedBy::Kill, &[twice, cont(), kill(true)]);
    world.run(secs(900));
    let taints = world.log.iter().filter(|(_, what)| what == "taint").count();
    assert_eq!(taints, 1);
    let mut world = World::sick(hung("log"), None, &[taint(), cont(), notify()]);
    world.refuses = true;
    world.run(secs(3_000));
    let remediation = world.only_remediation();
    let (told, tried) = remediation.steps.split_last().unwrap();
    let indices: Vec<_> = tried.iter().map(|step| step.step_index).collect();
    assert_eq!(indices, [0, 0, 0, 1, 1, 1], "a taint that is refused keeps nobody from healing");
    assert!(tried.iter().all(|step| step.state == StepState::Failed), "{:#?}", remediation.steps);
    assert_eq!((told.action.kind(), told.state), (ActionType::Notify, StepState::Succeeded));
    assert!(
        !remediation.is_live() && !remediation.cleanup.has_pending(&Marker::Taint),
        "a call that failed may have reached the API server"
    );
}
