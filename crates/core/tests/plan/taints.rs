//! Taints of ours on a node: put there, taken off, and never anybody else's.

use nrh_core::fault::FaultType;
use nrh_core::plan::{BlockReason, Effect};
use nrh_core::policy::{ActionType, Step};
use nrh_core::remediation::{Marker, Phase, Resolution, StepState};
use nrh_core::snapshot::NodeView;
use nrh_core::taint::{KeyedTaint, TaintEffect, TaintMark};

use crate::pods::stuck;
use crate::samples::{cont, cordon, delete_pod, hung, kept, kill, notify, plugin, rule, soft_taint, taint};
use crate::world::{ClearedBy, JOB_CONT, JOB_KILL, World, acts, reasons, removes, secs, written};

const HARD: TaintEffect = TaintEffect::NoSchedule;
const SOFT: TaintEffect = TaintEffect::PreferNoSchedule;

fn view(world: &World) -> &NodeView {
    &world.nodes["n1"].view
}

/// What is done lands, and its record does not.
fn pass_unrecorded(world: &mut World) {
    for effect in &world.plan().effects {
        world.apply(effect, !matches!(effect, Effect::Act { .. }));
    }
}

fn is_untainted(world: &World) -> bool {
    view(world).taints.is_empty() && view(world).tainted_by.is_none()
}

/// A taint with our key that a person puts there, under another effect than ours.
fn somebodys() -> KeyedTaint {
    KeyedTaint { effect: "NoExecute".into(), value: "mine".into() }
}

#[test]
fn it_lasts_as_long_as_the_remediation() {
    let mut world = World::sick(hung("log"), ClearedBy::Kill, &[taint(), cont(), kill(true)]).passed(1);
    let mark = TaintMark::new(&world.only_remediation().name, HARD);
    let node = view(&world);
    assert!(node.carries(HARD) && node.tainted_by == Some(mark) && !node.unschedulable, "{node:?}");
    assert!(world.run_to(900, Phase::Succeeded).cleanup.has_removed(&Marker::Taint));
    assert_eq!(world.did(), ["taint", JOB_CONT, JOB_KILL, "untaint"]);
    assert!(is_untainted(&world));
}

/// The mark of a lost remediation of the same name is taken off while this one has scheduled its own.
#[test]
fn a_repeated_step_owes_its_cleanup_again() {
    for marks in [taint(), cordon()] {
        let mut world = World::sick(hung("log"), ClearedBy::Kill, &[marks, cont()]).passed(1);
        let now = world.now;
        let remediation = world.remediations.values_mut().next().unwrap();
        remediation.cleanup.0[0].removed_at = Some(now);
        (remediation.steps[0].state, remediation.steps[0].executed_at) = (StepState::Scheduled, None);
        remediation.steps.truncate(1);
        let plan = world.plan();
        assert!(written(&plan).iter().any(|written| written.cleanup.is_pending()), "{:?}", plan.effects);
        assert!(plan.effects.iter().any(|effect| matches!(effect, Effect::Act { .. })), "{:?}", plan.effects);
    }
}

#[test]
fn somebody_elses_taint_with_our_key_is_not_adopted() {
    for theirs in [KeyedTaint::plain(HARD), KeyedTaint::plain(SOFT), somebodys()] {
        let mut world = World::sick(hung("log"), ClearedBy::Cont, &[taint(), cont()]);
        world.node("n1").view.taints.insert(theirs.clone());
        let remediation = world.run_to(300, Phase::Succeeded);
        assert_eq!(remediation.steps[0].message, "another owner's taint is already on the node; nothing changed");
        assert_eq!(view(&world).taints, [theirs].into(), "it was there before, it stays");
    }
}

#[test]
fn another_taint_with_our_key_beside_ours_is_neither_taken_off_nor_taken_for_ours() {
    let mut world = World::sick(hung("log"), ClearedBy::Kill, &[taint(), cont(), kill(true)]).passed(1);
    world.node("n1").view.taints.insert(somebodys());
    world.run_to(900, Phase::Succeeded);
    assert_eq!(view(&world).taints, [somebodys()].into(), "ours goes, theirs stays");

    // A person takes off ours alone, or makes it theirs by a value: that is a no all the same.
    for theirs in [somebodys(), KeyedTaint { value: "mine".into(), ..KeyedTaint::plain(HARD) }] {
        let mut world = World::sick(hung("log"), None, &[taint(), cont(), kill(true)]).passed(2);
        world.node("n1").view.taints = [theirs.clone()].into();
        world.run(secs(400));
        let remediation = world.only_remediation();
        assert!(remediation.message.contains("a person removed our taint from node n1"), "{}", remediation.message);
        assert_eq!((&view(&world).taints, &view(&world).tainted_by), (&[theirs].into(), &None));
    }
}

#[test]
fn it_comes_off_where_the_policy_asks_for_another_effect_by_now() {
    let mut world = World::sick(hung("log"), None, &[taint(), cont()]).passed(1);
    world.policies[0].rules[0].steps[0] = soft_taint();
    let remediation = world.run_to(600, Phase::Failed);
    assert!(remediation.message.contains("no step is left") && remediation.cleanup.has_removed(&Marker::Taint));
    assert!(is_untainted(&world));
}

/// A tool that replaces machines saves the annotations of the old Node and puts them on the new one.
#[test]
fn a_mark_that_comes_back_on_a_new_machine_keeps_no_taint_from_it() {
    for is_known in [true, false] {
        let mut world = World::sick(hung("log"), None, &[taint(), cont()]).passed(1);
        let first = world.only_remediation().name.clone();
        let node = world.node("n1");
        (node.view.uid, node.report.node_uid) = ("uid-new".into(), Some("uid-new".into()));
        node.view.taints.clear();
        node.sick.clear();
        node.send();
        world.pass_after(5);
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
        assert_eq!(did, ["taint", "taint", JOB_CONT], "known: {is_known}");
        assert!(is_untainted(&world));
    }
}

#[test]
fn another_name_over_the_mark_of_a_remediation_at_work_takes_nothing_off() {
    let mut world = World::sick(hung("log"), None, &[taint(), cont()]).passed(2);
    world.node("n1").view.tainted_by = Some(TaintMark::new("x", HARD));
    world.live(12, 5);
    assert!(view(&world).carries(HARD), "{:?}", world.did());
    let remediation = world.only_remediation();
    assert!(!remediation.phase.is_final(), "{}", remediation.message);
    world.run_to(900, Phase::Failed);
    assert!(is_untainted(&world), "nothing is stranded");
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
            // Resolved so soon that a cache might show the node as it was before, or later than that.
            let stable_for = secs(if early { 1 } else { 90 });
            world.policies[0].rules[0].steps.iter_mut().for_each(|step| step.stable_for = stable_for);
            for _ in 0..200 {
                if world.did().contains(&undone) {
                    break;
                }
                let effects = world.plan().effects;
                let _ = effects.iter().all(|effect| world.apply(effect, !matches!(effect, Effect::Remove { .. })));
                world.tick(secs(5));
            }
            assert!(world.did().contains(&undone), "{:#?}", world.remediations);
            world.inject("n1", hung("next"), ClearedBy::Kill);
            for _ in 0..60 {
                world.pass_after(5);
                let is_stopped = world.remediations.values().any(|one| one.phase == Phase::Cancelled);
                assert!(!is_stopped, "{undone}, early: {early}: {:#?}", world.remediations);
            }
            let resolved = world.remediations.values().flat_map(|remediation| &remediation.faults);
            assert_eq!(resolved.filter(|fault| fault.state == Resolution::Resolved).count(), 2);
            let node = view(&world);
            assert!(node.taints.is_empty() && node.tainted_by.is_none() && !node.unschedulable, "{node:?}");
        }
    }
}

#[test]
fn a_stricter_taint_than_the_one_that_is_on_is_recorded_as_not_put_there() {
    for (first, second, is_reversed) in [(soft_taint(), taint(), false), (taint(), soft_taint(), true)] {
        let rules = [
            rule("first", &[FaultType::HungContainer], &[first, cont(), notify()]),
            rule("second", &[FaultType::NetworkPluginHung], &[second, kill(true), notify()]),
        ];
        let mut world = World::with_rules(&rules).ill(hung("log"), None).passed(1).ill(plugin(), ClearedBy::Kill);
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
        assert!(world.did().contains(&JOB_KILL), "the step that heals follows: {:?}", world.did());
    }
}

/// Another effect of its own, from a write that was never recorded: the policy was changed in between.
#[test]
fn a_taint_of_its_own_with_another_effect_is_not_taken_for_the_one_that_is_wanted() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[soft_taint(), cont()]);
    pass_unrecorded(&mut world);
    assert!(view(&world).carries(SOFT));
    world.policies[0].rules[0].steps[0] = taint();
    world.run_to(300, Phase::Succeeded);
    let expected = [StepState::Cancelled, StepState::Refused, StepState::Succeeded];
    assert_eq!(world.states(), expected, "{:#?}", world.only_remediation().steps);
    assert!(is_untainted(&world));
}

/// The write landed, its record did not, and a person takes the taint off in between.
#[test]
fn what_a_person_took_off_before_it_was_recorded_is_not_put_back() {
    let mut world = World::sick(hung("log"), None, &[taint(), cont()]);
    pass_unrecorded(&mut world);
    world.node("n1").view.taints.clear();
    world.run(secs(60));
    let remediation = world.only_remediation();
    assert!(remediation.message.contains("a person removed our taint from node n1"), "{}", remediation.message);
    assert!(is_untainted(&world));
}

#[test]
fn it_goes_where_a_cordon_stays_and_so_does_a_late_write_of_it() {
    let kept = kept(secs(7_200), secs(60));
    let mut world = World::sick(hung("log"), None, &[taint(), kept, cont(), notify()]).ran(900);
    let remediation = world.only_in(Phase::Quarantined);
    assert!(!remediation.cleanup.has_pending(&Marker::Taint) && remediation.cleanup.has_pending_cordon());
    assert!(view(&world).unschedulable && is_untainted(&world));
    let mark = TaintMark::new(&remediation.name, HARD);
    let node = &mut world.node("n1").view;
    (node.taints, node.tainted_by) = ([KeyedTaint::plain(HARD)].into(), Some(mark));
    world.pass();
    assert_eq!((is_untainted(&world), world.phase()), (true, Phase::Quarantined));
}

/// Hardly any DaemonSet tolerates our key: the pod that is deleted has no successor, and its absence is no cure.
#[test]
fn no_daemon_set_pod_is_deleted_where_none_would_follow() {
    let delete = [delete_pod(), notify()];
    for theirs in [KeyedTaint::plain(HARD), somebodys()] {
        let mut world = stuck(&delete);
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
    let mut world = stuck(&delete);
    world.node("n1").view.taints.insert(KeyedTaint::plain(SOFT));
    assert_eq!(acts(&world.pass()).len(), 1);
}

#[test]
fn it_is_left_out_for_the_pod_of_a_daemon_set_unless_it_lets_a_successor_come() {
    for (first, expected) in [(taint(), "delete agent-1"), (soft_taint(), "taint")] {
        let mut world = stuck(&[first, delete_pod(), notify()]);
        assert_eq!(acts(&world.pass()), [("n1".to_owned(), expected.to_owned())]);
    }
}

/// Told in kubernetes-sigs/node-readiness-controller #382.
#[test]
fn what_a_lost_remediation_has_left_is_taken_off() {
    let mut world = World::sick(hung("log"), None, &[taint(), cont()]).passed(1);
    world.remediations.clear();
    world.policies.clear();
    world.ledger.as_mut().unwrap().slots.clear();
    let plan = world.pass();
    assert!(removes(&plan, |marker| *marker == Marker::Taint), "{:?}", plan.effects);
    assert!(view(&world).taints.is_empty());
    // Whose it is nobody can tell without a mark.
    world.node("n1").view.taints.insert(KeyedTaint::plain(HARD));
    assert_eq!(world.pass().effects, []);
}

/// It stays as long as the remediation that put it there, and no longer.
#[test]
fn a_marker_with_the_name_of_somebody_else_goes_after_its_remediation() {
    for marks in [taint(), cordon()] {
        let mut world = World::sick(hung("log"), None, &[marks, cont(), notify()]).passed(1);
        let view = &mut world.node("n1").view;
        view.cordoned_by.iter_mut().for_each(|owner| "lost".clone_into(owner));
        view.tainted_by.iter_mut().for_each(|mark| "lost".clone_into(&mut mark.remediation));
        let plan = world.pass();
        assert!(!removes(&plan, |_| true), "{:?}", plan.effects);
        world.run(secs(1_800));
        let node = self::view(&world);
        assert!(!world.only_remediation().is_live() && !node.unschedulable && node.taints.is_empty(), "{node:?}");
        assert!(node.cordoned_by.is_none() && node.tainted_by.is_none(), "{node:?}");
    }
}

#[test]
fn it_is_done_once_and_what_cannot_be_done_stops_nothing() {
    let twice = Step { max_attempts: 3, ..taint() };
    let world = World::sick(hung("log"), ClearedBy::Kill, &[twice, cont(), kill(true)]).ran(900);
    assert_eq!(world.times("taint"), 1);
    let mut world = World::sick(hung("log"), None, &[taint(), cont(), notify()]);
    world.refuses = true;
    world.run(secs(3_000));
    let remediation = world.only_remediation();
    let (told, tried) = remediation.steps.split_last().unwrap();
    let indices: Vec<_> = tried.iter().map(|step| step.step_index).collect();
    assert_eq!(indices, [0, 0, 0, 1, 1, 1], "a taint that is refused keeps nobody from healing");
    assert!(tried.iter().all(|step| step.state == StepState::Failed), "{:#?}", remediation.steps);
    assert_eq!((told.action.kind(), told.state), (ActionType::Notify, StepState::Succeeded));
    // A call that failed may have reached the API server.
    assert!(!remediation.is_live() && !remediation.cleanup.has_pending(&Marker::Taint), "{remediation:?}");
}
