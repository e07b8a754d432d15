//! Nodes that stay cordoned after the last step: for how long, and what ends it sooner.

use std::time::Duration;

use nrh_core::fault::FaultType;
use nrh_core::plan::{BlockReason, Effect};
use nrh_core::policy::{Policy, Step};
use nrh_core::remediation::{Marker, Phase, Remediation};

use crate::samples::{cont, cordon, fault, hand_off, hung, kept, kill, notify, plugin, rule};
use crate::world::{Change, ClearedBy, JOB_CONT, World, reasons, secs};

const HOURS_4: Duration = Duration::from_hours(4);

fn keep(quarantine_for: Duration) -> Step {
    kept(quarantine_for, Duration::from_mins(5))
}

/// One node with a hung container that nothing resolves, until no step is left.
fn contained(steps: &[Step]) -> World {
    let mut world = World::sick(hung("log"), None, steps);
    world.until(secs(2_000), "quarantined", |world| world.remediations.values().any(Remediation::is_quarantined));
    world.tick(secs(5));
    world
}

/// All of this time, however quiet it is.
fn pass_time(world: &mut World, time: Duration) {
    world.live(time.as_secs() / 5, 5);
    world.pass();
}

#[test]
fn what_no_step_has_resolved_stays_cordoned_and_holds_no_slot() {
    let mut world = contained(&[keep(HOURS_4), cont(), notify()]);
    assert_eq!(world.did(), ["cordon", JOB_CONT, "notify"]);
    let plan = world.pass();
    assert!(world.is_cordoned());
    let remediation = world.only_remediation();
    assert!(remediation.message.contains("the node stays cordoned until"), "{}", remediation.message);
    assert!(remediation.cleanup.is_pending() && remediation.finished_at.is_some());
    assert!(world.slots().is_empty(), "the slot is for others: {:?}", world.ledger);
    assert_eq!(reasons(&plan), [BlockReason::RecentlyFailed]);
    let activity = &plan.nodes["n1"].activity;
    assert!(activity.starts_with("kept cordoned, remediation "), "{activity}");
    assert_eq!(world.plan().effects, [], "at rest nothing is written");
}

#[test]
fn cordon_alone_keeps_pods_away() {
    let world = contained(&[keep(HOURS_4)]);
    assert_eq!((world.did(), world.is_cordoned()), (vec!["cordon"], true));
}

#[test]
fn nobody_checking_is_no_cure_and_no_reason_to_keep_it_longer() {
    let mut world = contained(&[keep(Duration::from_mins(40)), notify()]);
    let first = world.only_remediation().name.clone();
    world.node("n1").sick.clear();
    world.node("n1").probe_runs = false;
    pass_time(&mut world, secs(1_800));
    assert!(world.is_cordoned(), "{:?}", world.remediations[&first]);
    pass_time(&mut world, secs(900));
    assert!(!world.is_cordoned());
    let remediation = &world.remediations[&first];
    assert_eq!(remediation.phase, Phase::Failed);
    assert!(remediation.message.contains("stays cordoned until"), "{}", remediation.message);
}

/// Told in kubernetes-sigs/cluster-api #9398.
#[test]
fn every_wait_has_an_end_and_the_next_try_takes_the_cordon_over() {
    let mut world = contained(&[keep(Duration::from_mins(90)), notify()]);
    let first = world.only_remediation().name.clone();
    pass_time(&mut world, secs(3_700));
    let second = world.remediations.values().find(|remediation| remediation.name != first).unwrap().clone();
    assert_eq!(second.phase, Phase::Quarantined, "tried again after an hour: {}", second.message);
    assert_eq!(world.remediations[&first].phase, Phase::Failed, "{}", world.remediations[&first].message);
    assert!(world.remediations[&first].message.contains("taken over"), "{}", world.remediations[&first].message);
    assert!(world.is_cordoned() && world.times("uncordon") == 0, "not for a moment can pods come: {:?}", world.log);
    assert_eq!(world.nodes["n1"].view.cordoned_by.as_deref(), Some(second.name.as_str()));
    // As long as something holds the next try, it ends by itself.
    world.policies[0].pause_requests.push("change freeze".into());
    pass_time(&mut world, secs(5_500));
    assert!(!world.is_cordoned(), "{:?}", world.remediations);
    assert!(world.remediations.values().all(|remediation| !remediation.is_live()));
}

/// The same node, with another fault for which another policy has these steps.
fn with_another(keep_first: Duration, steps: &[Step], by: impl Into<Option<ClearedBy>>) -> World {
    let mut world = contained(&[keep(keep_first), notify()]);
    let mut other: Policy = world.policies[0].clone();
    other.name = "other".into();
    other.rules[0].faults = [plugin().kind].into();
    other.rules[0].steps = steps.to_vec();
    world.policies[0].rules[0].faults = [hung("log").kind].into();
    world.policies.push(other);
    world.ill(plugin(), by)
}

fn of<'w>(world: &'w World, policy: &str) -> &'w Remediation {
    world.remediations.values().find(|remediation| remediation.policy == policy).unwrap()
}

#[test]
fn another_policys_faults_are_resolved_meanwhile_and_the_cordon_is_given_back() {
    let mut world = with_another(HOURS_4, &[cordon(), kill(false)], ClearedBy::Kill);
    let first = of(&world, "p").name.clone();
    world.pass();
    assert_eq!(world.nodes["n1"].view.cordoned_by.as_deref(), Some(of(&world, "other").name.as_str()));
    pass_time(&mut world, secs(120));
    let resolved = of(&world, "other");
    assert_eq!((resolved.phase, resolved.is_live()), (Phase::Succeeded, false), "{}", resolved.message);
    assert_eq!(world.nodes["n1"].view.cordoned_by.as_ref(), Some(&first), "{:?}", world.log);
    assert!(world.remediations[&first].is_quarantined() && world.is_cordoned() && world.times("uncordon") == 0);
    world.recover("n1");
    pass_time(&mut world, secs(400));
    assert!(!world.is_cordoned() && world.remediations.values().all(|remediation| !remediation.is_live()));
}

#[test]
fn what_ends_first_takes_no_cordon_from_what_still_wants_it() {
    let long = Step { timeout: secs(3_000), ..kill(false) };
    // While the other's steps are still under way, and when that keeps its node cordoned as well.
    for steps in [vec![cordon(), long], vec![keep(HOURS_4), notify()]] {
        let mut world = with_another(Duration::from_mins(20), &steps, None);
        pass_time(&mut world, secs(1_500));
        assert_eq!(of(&world, "p").phase, Phase::Failed, "its 20 minutes are over: {}", of(&world, "p").message);
        assert!(of(&world, "other").is_live() && world.is_cordoned(), "{:?}", world.log);
        assert_eq!(world.times("uncordon"), 0, "{:?}", world.log);
    }
}

#[test]
fn a_node_that_is_to_be_left_alone_is_not_opened_to_pods() {
    let cases: [(Duration, Change); 3] = [
        (Duration::from_mins(30), |world| world.node("n1").report.suspended = Some("under my hands".into())),
        (Duration::from_mins(30), |world| world.node("n1").view.exclusions.push("drain in progress".into())),
        // Its policy is gone as well.
        (HOURS_4, |world| {
            world.node("n1").report.suspended = Some("under my hands".into());
            world.policies.clear();
        }),
    ];
    for (quarantine_for, leave) in cases {
        let mut world = contained(&[keep(quarantine_for), notify()]);
        leave(&mut world);
        pass_time(&mut world, secs(3_000));
        assert!(world.is_cordoned(), "{:?}", world.log);
        let node = world.node("n1");
        node.report.suspended = None;
        node.view.exclusions.clear();
        pass_time(&mut world, secs(60));
        assert!(!world.is_cordoned(), "its time is over, or nobody wants it cordoned any more: {:?}", world.log);
    }
}

#[test]
fn what_a_remediator_has_opened_is_kept_no_longer_also_where_the_node_is_to_be_left_alone() {
    let mut world = contained(&[keep(HOURS_4), notify()]);
    // Another policy has handed the node off.
    let mut other = world.only_remediation().clone();
    (other.name, other.cleanup) = ("other-1".into(), nrh_core::remediation::Cleanup::default());
    (other.phase, other.policy) = (Phase::Succeeded, "other".into());
    let Step { action, .. } = hand_off("Fix");
    for step in &mut other.steps {
        (step.action, step.started_at, step.finished_at) = (action.clone(), Some(world.now), Some(world.now));
    }
    world.remediations.insert(other.name.clone(), other);
    let node = world.node("n1");
    (node.view.unschedulable, node.report.suspended) = (false, Some("under my hands".into()));
    pass_time(&mut world, secs(30));
    let remediation = of(&world, "p");
    assert_eq!((remediation.phase, remediation.is_live()), (Phase::Failed, false), "{}", remediation.message);
}

#[test]
fn a_policy_that_comes_and_goes_does_not_begin_its_steps_anew() {
    let mut world = contained(&[keep(HOURS_4), cont(), notify()]);
    world.policies[0].suspend = true;
    pass_time(&mut world, secs(60));
    world.policies[0].suspend = false;
    pass_time(&mut world, secs(600));
    assert_eq!(world.did(), ["cordon", JOB_CONT, "notify", "uncordon"]);
    assert_eq!(reasons(&world.plan()), [BlockReason::RecentlyFailed]);
}

#[test]
fn nodes_that_are_kept_are_unhealthy() {
    let mut world = contained(&[keep(HOURS_4), notify()]);
    world.recover("n1");
    let plan = world.pass();
    assert_eq!((plan.policies["p"].unhealthy, plan.policies["p"].in_flight), (1, 0));
}

#[test]
fn a_fault_that_new_pods_do_not_make_worse_keeps_no_node() {
    let expiring = fault(FaultType::ClientCertificateExpiring, "kubelet");
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[keep(HOURS_4), cont(), notify()]).ill(expiring, None);
    pass_time(&mut world, secs(600));
    assert!(!world.is_cordoned(), "{:?}", world.only_remediation());
    assert_eq!(world.phase(), Phase::Failed);
}

/// What ends it at once, and whether the node is put back.
#[test]
fn it_ends_with_the_policy_the_node_or_a_persons_word() {
    let ends: [(&'static str, Change, bool, Phase); 7] = [
        ("deleted", World::delete_remediations, true, Phase::Cancelled),
        ("uncordoned", |w| w.node("n1").view.unschedulable = false, true, Phase::Cancelled),
        ("policy gone", |w| w.policies.clear(), true, Phase::Cancelled),
        ("policy suspended", |w| w.policies[0].suspend = true, true, Phase::Cancelled),
        ("quarantineFor gone", |w| w.policies[0].rules[0].steps[0] = cordon(), true, Phase::Failed),
        ("node replaced", |w| w.node("n1").view.uid = "uid-new".into(), false, Phase::Cancelled),
        ("node gone", |w| w.nodes.clear(), false, Phase::Cancelled),
    ];
    for (name, end, is_put_back, phase) in ends {
        let mut world = contained(&[keep(HOURS_4), notify()]);
        let first = world.only_remediation().name.clone();
        end(&mut world);
        world.live(4, 5);
        assert_eq!(world.did().contains(&"uncordon"), is_put_back, "{name}: {:?}", world.log);
        let Some(remediation) = world.remediations.get(&first) else {
            assert_eq!(name, "deleted");
            continue;
        };
        assert_eq!((remediation.phase, remediation.is_live()), (phase, false), "{name}: {}", remediation.message);
    }
}

#[test]
fn a_rule_that_goes_after_its_fault_was_resolved_opens_no_node() {
    let rules = [
        rule("log", &[FaultType::HungContainer], &[cont()]),
        rule("network", &[FaultType::NetworkPluginHung], &[keep(HOURS_4), notify()]),
    ];
    let mut world = World::with_rules(&rules).ill(hung("log"), ClearedBy::Cont).ill(plugin(), None);
    world.until(secs(2_000), "quarantined", |world| world.remediations.values().any(Remediation::is_quarantined));
    world.policies[0].rules[0].name = "logs".into();
    pass_time(&mut world, Duration::from_mins(10));
    assert!(world.is_cordoned(), "{:?}", world.only_remediation());
    world.policies[0].rules[1].name = "networks".into();
    pass_time(&mut world, Duration::from_mins(1));
    assert!(!world.is_cordoned(), "nothing says any more that it is to stay cordoned");
}

#[test]
fn a_person_who_uncordons_it_is_heard_for_an_hour() {
    let mut world = contained(&[keep(Duration::from_hours(9)), notify()]);
    world.policies[0].pause_requests.push("nothing new".into());
    pass_time(&mut world, secs(4_000));
    world.policies[0].pause_requests.clear();
    world.node("n1").view.unschedulable = false;
    pass_time(&mut world, secs(3_000));
    assert!(!world.is_cordoned(), "{:?}", world.remediations);
    pass_time(&mut world, secs(900));
    assert!(world.is_cordoned(), "after that it is tried anew");
}

#[test]
fn its_remediation_is_not_swept_away_before_its_time() {
    let mut world = contained(&[keep(Duration::from_hours(24)), notify()]);
    world.policies[0].pause_requests.push("nothing new".into());
    (world.policies[0].history.limit, world.policies[0].history.ttl) = (0, secs(60));
    world.recover("n1");
    world.pass();
    let decided = world.plan_with(|snapshot| snapshot.now += Duration::from_hours(8));
    let swept = decided.effects.iter().any(|effect| matches!(effect, Effect::DeleteRemediation { .. }));
    assert!(!swept && world.is_cordoned(), "{:?}", decided.effects);
}

#[test]
fn what_has_gone_by_itself_was_not_resolved_by_its_steps() {
    let mut world = contained(&[keep(HOURS_4), cont(), notify()]);
    // More often than a fault may come back that was resolved.
    for times in 1..=4 {
        world.recover("n1");
        pass_time(&mut world, Duration::from_mins(10));
        let is_gone = |one: &Remediation| one.phase == Phase::Succeeded && one.faults[0].resolved_after_exhaustion();
        assert!(world.remediations.values().all(is_gone), "{:?}", world.remediations);
        assert!(world.remediations.values().all(|one| one.cleanup.has_removed(&Marker::Cordon)), "{:?}", world.log);
        world.inject("n1", hung("log"), None);
        pass_time(&mut world, Duration::from_mins(5));
        assert_eq!(world.times(JOB_CONT), times + 1, "{:?}", world.did());
    }
}
