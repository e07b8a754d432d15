//! Taints of ours on a node: put there, taken off, and never anybody else's.

use nrh::core::episode::{Phase, StepState};
use nrh::core::plan::{Effect, HoldReason, plan};
use nrh::core::policy::{Action, ActionType, Keep, Mode, Step};
use nrh::core::taint::TaintEffect;

use crate::samples::{cont, hung, kill, notify, step};
use crate::world::{Cure, World, acts, reasons, secs};

fn taint() -> Step {
    step(Action::Taint(TaintEffect::NoSchedule))
}

#[test]
fn it_lasts_as_long_as_the_episode() {
    let mut world = World::sick(hung("log"), Cure::Kill, &[taint(), cont(), kill(true)]);
    world.pass();
    let node = &world.nodes["n1"].view;
    assert!(node.tainted && node.tainted_by.is_some() && !node.unschedulable);
    world.run(secs(900));
    let episode = world.only_episode();
    assert_eq!(episode.phase, Phase::Succeeded, "{}", episode.message);
    assert!(episode.undo.tainted && episode.undo.untainted_at.is_some());
    assert_eq!(world.did(), ["taint", "job ReleaseCont", "job ReleaseKill", "untaint"]);
    let node = &world.nodes["n1"].view;
    assert!(!node.tainted && node.tainted_by.is_none());
}

#[test]
fn somebody_elses_taint_with_our_key_is_not_adopted() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[taint(), cont()]);
    world.node("n1").view.tainted = true;
    world.run(secs(300));
    let episode = world.only_episode();
    assert_eq!(episode.phase, Phase::Succeeded, "{}", episode.message);
    assert!(world.nodes["n1"].view.tainted, "it was there before, it stays");
    assert_eq!(episode.steps[0].message, "somebody else's taint is there already, adopted nothing");
}

#[test]
fn a_person_who_takes_it_off_ends_the_episode() {
    for mark_goes in [false, true] {
        let mut world = World::sick(hung("log"), Cure::Nothing, &[taint(), cont(), kill(true)]);
        world.pass();
        world.pass();
        let view = &mut world.node("n1").view;
        view.tainted = false;
        if mark_goes {
            view.tainted_by = None;
        }
        world.run(secs(120));
        let episode = world.only_episode();
        assert_eq!(episode.phase, Phase::Cancelled, "{}", episode.message);
        assert!(episode.message.contains("our taint was taken off node n1 by hand"), "{}", episode.message);
        assert!(world.nodes["n1"].view.tainted_by.is_none(), "our mark is taken off");
        assert!(world.ledger.as_ref().unwrap().slots.is_empty());
        assert_eq!(reasons(&world.plan()), [HoldReason::RecentlyFailed], "it does not begin anew at once");
    }
}

#[test]
fn a_stale_view_of_our_own_taint_is_no_persons_no() {
    let mut world = World::sick(hung("log"), Cure::Nothing, &[taint(), cont()]);
    world.pass();
    let mut snapshot = world.snapshot();
    let view = snapshot.nodes.get_mut("n1").unwrap();
    (view.tainted, view.tainted_by) = (false, None);
    let plan = plan(&snapshot, &world.settings);
    assert_eq!(acts(&plan).len(), 1, "it goes on: {:?}", plan.effects);
}

/// What ends an episode, and whether the taint comes off.
#[test]
fn it_comes_off_however_the_episode_ends() {
    type End = (&'static str, fn(&mut World), bool);
    let ends: [End; 7] = [
        ("deleted", |w| w.episodes.values_mut().for_each(|e| e.deleting = true), true),
        ("policy gone", |w| w.policies.clear(), true),
        ("policy suspended", |w| w.policies[0].suspend = true, true),
        ("policy a dry run now", |w| w.policies[0].mode = Mode::DryRun, true),
        ("rule gone", |w| w.policies[0].rules[0].name = "other".into(), true),
        (
            "another effect now",
            |w| w.policies[0].rules[0].steps[0] = step(Action::Taint(TaintEffect::PreferNoSchedule)),
            true,
        ),
        ("node replaced", |w| w.node("n1").view.uid = "uid-new".into(), false),
    ];
    for (what, end, comes_off) in ends {
        let mut world = World::sick(hung("log"), Cure::Nothing, &[taint(), cont()]);
        world.pass();
        assert!(world.nodes["n1"].view.tainted, "{what}");
        end(&mut world);
        world.run(secs(600));
        assert!(world.episodes.values().all(|episode| !episode.is_live()), "{what}: {:#?}", world.episodes);
        assert_eq!(!world.nodes["n1"].view.tainted, comes_off, "{what}");
    }
}

/// Told in kubernetes-sigs/node-readiness-controller #382.
#[test]
fn what_a_lost_episode_has_left_is_taken_off() {
    let mut world = World::sick(hung("log"), Cure::Nothing, &[taint(), cont()]);
    world.pass();
    world.episodes.clear();
    world.policies.clear();
    world.ledger.as_mut().unwrap().slots.clear();
    let plan = world.pass();
    assert!(plan.effects.iter().any(|effect| matches!(effect, Effect::Untaint { .. })), "{:?}", plan.effects);
    assert!(!world.nodes["n1"].view.tainted);
    // Whose it is nobody can tell without a mark.
    world.node("n1").view.tainted = true;
    assert_eq!(world.pass().effects, []);
}

#[test]
fn it_goes_where_a_cordon_stays() {
    let kept = step(Action::Cordon(Some(Keep { keep_for: secs(7_200), healthy_delay: secs(60) })));
    let mut world = World::sick(hung("log"), Cure::Nothing, &[taint(), kept, cont(), notify()]);
    world.run(secs(900));
    let episode = world.only_episode();
    assert_eq!(episode.phase, Phase::Contained, "{}", episode.message);
    let view = &world.nodes["n1"].view;
    assert!(view.unschedulable && !view.tainted, "{view:?}");
    assert!(!episode.undo.owes_taint() && episode.undo.owes_cordon());
}

#[test]
fn it_is_done_once_and_what_cannot_be_done_stops_nothing() {
    let twice = Step { attempts: 3, ..taint() };
    let mut world = World::sick(hung("log"), Cure::Kill, &[twice, cont(), kill(true)]);
    world.run(secs(900));
    let taints = world.log.iter().filter(|(_, what)| what == "taint").count();
    assert_eq!(taints, 1);
    let mut world = World::sick(hung("log"), Cure::Nothing, &[taint(), notify()]);
    world.refuses = true;
    world.run(secs(3_000));
    let episode = world.only_episode();
    let (told, tried) = episode.steps.split_last().unwrap();
    assert!(!tried.is_empty() && tried.iter().all(|step| step.state == StepState::Failed), "{:#?}", episode.steps);
    assert_eq!((told.action, told.state), (ActionType::Notify, StepState::Succeeded));
    assert!(!episode.is_live() && !episode.undo.owes_taint(), "a call that failed may have reached the API server");
}
