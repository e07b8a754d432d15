//! How remediations end early, and how the node is put back.

use nrh_core::fault::FaultType;
use nrh_core::plan::BlockReason;
use nrh_core::policy::{Mode, Requirement, Selector, Step};
use nrh_core::remediation::{Marker, Phase, Remediation, StepRecord, StepState};
use nrh_core::snapshot::{NodeView, Slot};

use crate::samples::{asked, cont, cordon, hung, kill, taint};
use crate::world::{Change, ClearedBy, JOB_CONT, World, acts, reasons, removes, secs, written};

/// Told in NVIDIA/NVSentinel #1424 and kubereboot/kured #63.
#[test]
fn someone_elses_cordon_is_not_adopted() {
    let often = Step { max_attempts: 3, ..cordon() };
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[often, cont()]);
    world.node("n1").view.unschedulable = true;
    world.run(secs(300));
    assert_eq!((world.phase(), world.only_remediation().steps.len()), (Phase::Succeeded, 2));
    assert!(world.is_cordoned(), "it was cordoned before, it stays so");
    assert_eq!(world.step(0).message, "the node was already unschedulable; nothing changed");
}

#[test]
fn who_opens_the_node_or_takes_the_taint_off_ends_the_remediation() {
    type Edit = fn(&mut NodeView);
    let cases: [(Step, Edit, &str); 3] = [
        (cordon(), |view| view.unschedulable = false, "a person uncordoned node"),
        (taint(), |view| view.taints.clear(), "a person removed our taint from node n1"),
        (
            taint(),
            |view| (view.taints, view.tainted_by) = Default::default(),
            "a person removed our taint from node n1",
        ),
    ];
    for (marks, change, said) in cases {
        let mut world = World::sick(hung("log"), None, &[marks, cont(), kill(true)]).passed(2);
        change(&mut world.node("n1").view);
        let remediation = world.run_to(400, Phase::Cancelled);
        assert!(remediation.message.contains(said), "{}", remediation.message);
        let view = &world.nodes["n1"].view;
        assert_eq!((&view.cordoned_by, &view.tainted_by), (&None, &None), "our mark is taken off");
        assert!(world.slots().is_empty());
        assert_eq!(reasons(&world.plan()), [BlockReason::RecentlyFailed], "it does not begin anew at once");
    }
}

#[test]
fn a_stale_view_of_our_own_mark_is_no_persons_no() {
    for marks in [cordon(), taint()] {
        let world = World::sick(hung("log"), None, &[marks, cont()]).passed(1);
        let plan = world.plan_with(|snapshot| {
            let view = snapshot.nodes.get_mut("n1").unwrap();
            (view.unschedulable, view.cordoned_by) = (false, None);
            (view.taints, view.tainted_by) = Default::default();
        });
        assert_eq!(acts(&plan).len(), 1, "it goes on: {:?}", plan.effects);
    }
}

/// The leader ended right after it had created the object. The next one takes up what it knows, and claims nothing that it does not.
#[test]
fn what_was_created_and_never_written_takes_up_its_fault_or_ends_and_makes_room() {
    for is_checked in [true, false] {
        let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]).scheduled();
        for remediation in world.remediations.values_mut() {
            (remediation.faults, remediation.steps) = (Vec::new(), Vec::new());
            (remediation.phase, remediation.message) = (Phase::Pending, String::new());
        }
        world.heartbeat("n1").age_known = is_checked;
        world.pass();
        let first = world.only_remediation();
        if is_checked {
            assert_eq!((first.faults.len(), first.steps.len()), (1, 1), "{first:?}");
        } else {
            assert_eq!(first.phase, Phase::Cancelled);
            let why = "the controller was interrupted before it recorded a fault in it: nothing was done";
            assert_eq!(first.message, why);
        }
        world.heartbeat("n1").age_known = true;
        world.run(secs(60));
        assert_eq!(world.did(), [JOB_CONT], "checked {is_checked}");
        assert_eq!(world.remediations.values().last().unwrap().phase, Phase::Succeeded);
    }
}

/// What ends a remediation, how it ends then, and what its message says.
fn ends() -> [(&'static str, Change, Phase, &'static str); 12] {
    [
        ("deleted", World::delete_remediations, Phase::Cancelled, "the remediation was deleted"),
        ("policy gone", |w| w.policies.clear(), Phase::Cancelled, "policy p is gone"),
        ("policy suspended", |w| w.policies[0].suspend = true, Phase::Cancelled, "policy p is suspended"),
        ("all suspended", |w| w.suspended = Some("by ann".into()), Phase::Cancelled, ""),
        ("policy a dry run now", |w| w.policies[0].mode = Mode::DryRun, Phase::Cancelled, "policy p is a dry run now"),
        ("rule gone", |w| w.policies[0].rules[0].name = "other".into(), Phase::Cancelled, "has no rule r any more"),
        (
            "fault not named any more",
            |w| w.policies[0].rules[0].faults = [FaultType::DiskFull].into(),
            Phase::Cancelled,
            "match.faults does not name HungContainer",
        ),
        ("node suspended", |w| w.node("n1").report.suspended = Some("hands off".into()), Phase::Cancelled, ""),
        ("excluded", |w| w.node("n1").view.exclusions.push("drain in progress".into()), Phase::Cancelled, ""),
        (
            "node replaced",
            |w| w.node("n1").view.uid = "uid-new".into(),
            Phase::Cancelled,
            "was replaced by another one",
        ),
        (
            "taken over",
            |w| {
                let mut other = w.policies[0].clone();
                (other.name, other.priority, other.suspend) = ("higher".into(), 9, true);
                w.policies.push(other);
            },
            Phase::Cancelled,
            "",
        ),
        ("healed", |w| w.node("n1").sick.clear(), Phase::Succeeded, "a check no longer finds"),
    ]
}

/// A cordon on another machine is somebody else's. A taint with our value and our mark is ours there, too.
#[test]
fn however_a_remediation_ends_its_node_is_put_back() {
    for (marks, undone) in [(cordon(), "uncordon"), (taint(), "untaint")] {
        for (what, end, phase, message) in ends() {
            let mut world = World::sick(hung("log"), None, &[marks.clone(), cont()]).passed(1);
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
            assert_eq!(last.phase, phase, "{undone}, {what}: {}", last.message);
            assert!(last.message.contains(message), "{undone}, {what}: {}", last.message);
            assert!(!last.is_live() && last.finished_at.is_some(), "{undone}, {what}: {last:#?}");
            assert!(undone == "uncordon" || last.cleanup.has_removed(&Marker::Taint), "{what}: {last:#?}");
            assert!(!world.slots().contains_key(&name), "{undone}, {what}");
            let is_put_back = undone == "untaint" || what != "node replaced";
            assert_eq!(world.did().contains(&undone), is_put_back, "{what}: {:?}", world.log);
            let view = &world.nodes["n1"].view;
            assert!(view.taints.is_empty() && view.tainted_by.is_none(), "{what}: {view:?}");
        }
    }
}

/// Told in openshift/enhancements #834.
#[test]
fn somebody_elses_mark_is_left_alone() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cordon(), cont()]).passed(1);
    world.node("n1").view.cordoned_by = Some("another-remediation".into());
    let slot = Slot { node: "n1".into(), policy: "p".into(), taken_at: world.now, kinds: None };
    world.ledger.as_mut().unwrap().slots.insert("another-remediation".into(), slot);
    world.policies.clear();
    let plan = world.plan();
    assert!(!removes(&plan, |marker| *marker == Marker::Cordon), "{:?}", plan.effects);
    let written = written(&plan)[0];
    assert!(!written.is_open() && written.phase == Phase::Cancelled, "nothing of its own is left to put back");
}

/// A tool puts the annotations of the old Node on the new one, and a person cordons that.
#[test]
fn a_mark_that_comes_back_on_a_new_machine_goes_alone() {
    for is_over in [false, true] {
        let mut world = World::sick(hung("log"), None, &[cordon(), cont()]).passed(1);
        let name = world.only_remediation().name.clone();
        world.recover("n1");
        if is_over {
            world.run(secs(300));
            assert!(!world.remediations[&name].is_live() && world.nodes["n1"].view.cordoned_by.is_none());
        }
        let view = &mut world.node("n1").view;
        view.uid = "uid-new".into();
        (view.unschedulable, view.cordoned_by) = (true, Some(name.clone()));
        let before = is_over.then(|| world.only_remediation().clone());
        let uncordons = world.times("uncordon");
        world.live(3, 5);
        let view = &world.nodes["n1"].view;
        assert_eq!((view.unschedulable, view.cordoned_by.as_deref()), (true, None), "over: {is_over}");
        assert_eq!(world.times("uncordon"), uncordons, "over: {is_over}");
        let known = world.only_remediation();
        assert!(!known.is_live() && !known.cleanup.has_pending_cordon(), "{known:?}");
        assert!(before.is_none_or(|before| before == *known), "its record is about the machine before");
        assert_eq!(world.plan().effects, [], "over: {is_over}");
    }
}

#[test]
fn a_mark_left_by_a_removed_remediation_is_taken_off() {
    let mut world = World::sick(hung("log"), None, &[cordon(), cont()]).passed(1);
    world.remediations.clear();
    world.recover("n1");
    assert_eq!(world.plan().effects, [], "its slot may mean that it is only unseen");
    world.pass_after(61);
    world.pass();
    assert!(!world.is_cordoned());
    world.node("n1").view.unschedulable = true;
    assert_eq!(world.plan().effects, [], "a cordon without our mark is not ours");
}

/// A remediation that is removed by force leaves its Job, and the next one on the node may have its name: it does not know that Job.
#[test]
fn the_job_of_a_removed_remediation_whose_name_another_has_is_not_left() {
    let mut world = World::sick(hung("log"), None, &[cont()]).without_jobs().passed(1);
    let lost = world.remediations.pop_first().unwrap();
    world.pass_after(1);
    world.pass();
    assert_eq!((world.only_remediation().name.as_str(), world.jobs.len()), (lost.0.as_str(), 2));
    world.nodes.clear();
    world.run_to(120, Phase::Cancelled);
    assert!(world.jobs.is_empty(), "{:?}", world.jobs);
}

#[test]
fn a_remediation_that_a_person_deleted_is_gone_and_its_no_still_counts_for_an_hour() {
    let mut world = World::sick(hung("log"), None, &[cordon(), cont()]).passed(2);
    let first = world.only_remediation().clone();
    assert!(world.is_cordoned());
    world.delete_remediations();
    world.run(secs(400));
    assert!(world.remediations.is_empty(), "{:?}", world.remediations.keys());
    assert!(!world.is_cordoned() && world.slots().is_empty());
    let mut waited = 0;
    while world.remediations.is_empty() {
        assert_eq!(reasons(&world.plan()), [BlockReason::RecentlyFailed]);
        world.pass_after(5);
        waited += 5;
    }
    assert!((3_500..3_700).contains(&waited), "{waited}");
    let again = world.only_remediation();
    assert_eq!(again.name, first.name, "the same occurrence");
    let is_old = |new: &StepRecord| first.steps.iter().any(|old| old.operation_id == new.operation_id);
    assert!(!again.steps.is_empty() && !again.steps.iter().any(is_old), "{first:?} {again:?}");
}

#[test]
fn a_crash_between_the_uncordon_and_its_record_is_no_persons_uncordon() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cordon(), cont()]);
    world.until(secs(600), "done", |world| !world.remediations.values().all(Remediation::has_work));
    world.tick(secs(5));
    let remediation = world.only_remediation().clone();
    if remediation.cleanup.is_pending() {
        let view = &mut world.node("n1").view;
        (view.unschedulable, view.cordoned_by) = (false, None);
    }
    world.tick(secs(120));
    world.run_to(60, Phase::Succeeded);
}

#[test]
fn a_remediation_that_has_nothing_left_to_do_ends_as_what_it_is_and_takes_nothing_new() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
    world.until(secs(250), "done", |world| !world.remediations.values().all(Remediation::has_work));
    world.tick(secs(5));
    // The same fault is back, and the node asks to be left alone, before its end was written down.
    let decided = world.plan_with(|snapshot| {
        for remediation in snapshot.remediations.values_mut() {
            (remediation.phase, remediation.finished_at) = (Phase::Running, None);
        }
        snapshot.reports = World::sick(hung("log"), ClearedBy::Cont, &[cont()]).snapshot().reports;
        snapshot.nodes.get_mut("n1").unwrap().exclusions.push("drain in progress".into());
    });
    assert_eq!(acts(&decided).len(), 0, "{:?}", decided.effects);
    let written = written(&decided)[0];
    assert_eq!((written.phase, written.is_live()), (Phase::Succeeded, false), "{}", written.message);
}

/// A slip of an editor ends nothing: what runs is seen through, what is open waits, and nothing starts.
#[test]
fn a_policy_that_has_become_unusable_ends_nothing_and_begins_nothing() {
    let mut world = World::sick(hung("log"), None, &[cordon(), cont(), kill(true)]);
    let mut lower = world.policies[0].clone();
    (lower.name, lower.priority) = ("lower".into(), -1);
    world.policies.push(lower);
    world.passes(2);
    world.policies[0].is_broken = true;
    for _ in 0..100 {
        let plan = world.pass();
        world.tick(secs(10));
        assert!(!removes(&plan, |marker| *marker == Marker::Cordon), "{:?}", plan.effects);
    }
    let remediation = world.only_remediation();
    assert!(remediation.is_open() && remediation.policy == "p", "{}", remediation.message);
    // The step under way came to its end, and none after it.
    assert_eq!(remediation.steps.len(), 2, "{:?}", remediation.steps);
    assert!(reasons(&world.plan()).contains(&BlockReason::Paused));
    // A second node: its fault is still this policy's, which begins nothing.
    world.nodes.insert("n2".into(), nrh_simulate::world::WorldNode::new("n2"));
    world.inject("n2", hung("log"), ClearedBy::Cont);
    assert_eq!(acts(&world.pass()), []);
    world.policies[0].is_broken = false;
    world.run(secs(600));
    let of = |node: &str| world.remediations.values().find(|one| one.node == node).map(|one| one.phase);
    assert_eq!((of("n1"), of("n2")), (Some(Phase::Failed), Some(Phase::Succeeded)));
}

/// A new leader that cannot use the policy does not know what it says, nor that somebody has stopped it: what it has begun is put back.
#[test]
fn a_policy_that_a_new_leader_cannot_use_is_as_good_as_gone() {
    let mut world = World::sick(hung("log"), None, &[cordon(), cont(), kill(true)]).passed(2);
    world.policies.clear();
    world.unusable_policies.insert("p".into());
    let ended = world.plan();
    let is_end = |written: &&Remediation| written.phase == Phase::Cancelled && written.message.contains("not valid");
    assert!(written(&ended).iter().any(is_end), "{:?}", ended.effects);
}

/// What waits for a person is asked for anew when the policy is mended, and what was approved meanwhile is not lost as a failure.
#[test]
fn what_has_not_begun_is_set_aside_while_the_policy_is_unusable() {
    let asks = Step { approval_timeout: secs(600), ..asked(cont()) };
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[asks, kill(true)]).passed(1);
    assert_eq!(world.phase(), Phase::AwaitingApproval);
    world.policies[0].is_broken = true;
    world.live(100, 10);
    let remediation = world.only_remediation();
    assert!(remediation.is_open() && remediation.current_step().is_none(), "{:?}", remediation.steps);
    world.policies[0].is_broken = false;
    world.passes(2);
    let step = world.only_remediation().current_step().unwrap().clone();
    assert_eq!((step.state, step.step_index), (StepState::AwaitingApproval, 0), "the same, with its whole time");
}

/// What joins an open remediation is new as well.
#[test]
fn nothing_joins_an_open_remediation_of_a_paused_policy() {
    let mut world = World::sick(hung("log"), None, &[cont(), kill(true)]).passed(1);
    world.policies[0].pause_requests.push("roll-out".into());
    world.inject("n1", hung("other"), ClearedBy::Cont);
    world.live(4, 5);
    assert_eq!(world.only_remediation().faults.len(), 1);
    assert!(reasons(&world.plan()).contains(&BlockReason::Paused));
    world.policies[0].pause_requests.clear();
    world.pass();
    assert_eq!(world.only_remediation().faults.len(), 2);
}

/// Found by a random world: such a fault was noted in the remediation and in its slot, as long as no other policy had the node.
#[test]
fn nothing_joins_a_remediation_whose_policy_does_not_select_the_node_any_more() {
    let mut world = World::sick(hung("log"), None, &[cont()]).passed(1);
    world.policies[0].selector = Selector(vec![Requirement::In("pool".into(), ["other".to_owned()].into())]);
    world.inject("n1", hung("db"), None);
    let before = world.ledger.clone();
    let plan = world.pass();
    assert_eq!((world.only_remediation().faults.len(), &world.ledger), (1, &before));
    let said: Vec<&str> = plan.blocked.iter().map(|blocked| blocked.message.as_str()).collect();
    assert!(said.iter().any(|said| said.contains("does not select node n1 any more")), "{said:?}");
    world.run(secs(300));
    assert_eq!(world.phase(), Phase::Cancelled, "what was under way is finished, and nothing follows");
    assert_eq!(world.did().len(), 1, "{:?}", world.did());
}
