//! One rule of the decision after the other.

use std::time::Duration;

use nrh::core::episode::{ActResult, HealState, Lane, Phase, StepState, acted};
use nrh::core::fault::{FaultState, FaultType, MAX_FAULTS, Severity};
use nrh::core::order::{Outcome, OutcomeReason, OutcomeState};
use nrh::core::plan::{Effect, Health, HoldReason, Operation, plan};
use nrh::core::policy::{Action, Amount, Mode};
use nrh::core::snapshot::{Slot, Snapshot, Tri};

use crate::world::{
    Chaos, Cure, World, acts, backing_off, cont, creating, fault, hung, kill, notify, overdue, plugin, pod, policy,
    reasons, rule, secs, step,
};

#[test]
fn a_confirmed_fault_is_acted_on_in_one_pass() {
    let world = World::sick(hung("log"), Cure::Cont, &[cont()]);
    let plan = world.plan();
    let kinds: Vec<&str> = plan
        .effects
        .iter()
        .map(|effect| match effect {
            Effect::StoreLedger(ledger) => {
                assert_eq!(ledger.slots.len(), 1);
                "ledger"
            }
            Effect::WriteEpisode(episode) => {
                assert_eq!((episode.phase, episode.steps.len()), (Phase::Running, 1));
                assert_eq!(episode.steps[0].state, StepState::Reserved);
                "write"
            }
            Effect::Act { node_uid, operation: Operation::RunJob(order), .. } => {
                assert_eq!((node_uid.as_str(), order.node.as_str()), ("uid-n1", "n1"));
                assert_eq!(order.epoch, 1);
                "act"
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["ledger", "write", "act"]);
    assert!(plan.held.is_empty(), "{:?}", plan.held);
}

#[test]
fn it_is_healed_verified_and_closed_and_its_slot_is_given_back() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[cont(), kill(false)]);
    world.run(secs(300));
    let episode = world.only_episode();
    assert_eq!(episode.phase, Phase::Succeeded, "{}", episode.message);
    assert_eq!(world.did(), ["job ReleaseCont"]);
    assert_eq!(world.ledger.as_ref().unwrap().slots.len(), 0);
    let outlook = &world.plan().nodes["n1"];
    assert_eq!(outlook.health, Health::Healthy);
    assert!(outlook.doing.starts_with("healed 2026-01-01T01:00:"), "{}", outlook.doing);
    assert!(outlook.doing.ends_with("by ReleaseHungProcess(Cont)"), "{}", outlook.doing);
}

/// Everything that says no to a fault that is healed otherwise, and the reason it gives.
#[test]
fn every_doubt_holds() {
    type Doubt = (&'static str, HoldReason, fn(&mut Snapshot));
    let doubts: [Doubt; 22] = [
        ("no policy", HoldReason::NoPolicy, |s| s.policies.clear()),
        ("a policy suspended", HoldReason::Suspended, |s| s.policies[0].suspend = true),
        ("a policy paused", HoldReason::Paused, |s| s.policies[0].pause_requests.push("release".into())),
        ("no rule for the kind", HoldReason::NoRule, |s| {
            s.policies[0].rules[0].faults = [FaultType::LeakedShim].into();
        }),
        ("no rule for the severity", HoldReason::NoRule, |s| s.policies[0].rules[0].min_severity = Severity::Critical),
        ("a rule that waits", HoldReason::TooYoung, |s| s.policies[0].rules[0].hold_for = secs(600)),
        ("a node deleted", HoldReason::Vetoed, |s| s.nodes.get_mut("n1").unwrap().deleting = true),
        ("a veto", HoldReason::Vetoed, |s| s.nodes.get_mut("n1").unwrap().vetoes.push("excluded".into())),
        ("a suspended node", HoldReason::Vetoed, |s| s.reports.get_mut("n1").unwrap().suspended = Some("me".into())),
        ("an old look", HoldReason::StaleEvidence, |s| s.reports.get_mut("n1").unwrap().faults[0].looked = secs(46)),
        ("a missed heartbeat", HoldReason::ProbeSilent, |s| {
            s.reports.get_mut("n1").unwrap().heartbeat.as_mut().unwrap().arrived = Duration::from_millis(22_501);
        }),
        ("nobody may act", HoldReason::CannotAct, |s| {
            s.nodes.get_mut("n1").unwrap().ready = Tri::False;
            s.reports.get_mut("n1").unwrap().heartbeat.as_mut().unwrap().can_act = false;
        }),
        ("kubelet unknown, nobody may act", HoldReason::CannotAct, |s| {
            let heartbeat = s.reports.get_mut("n1").unwrap().heartbeat.as_mut().unwrap();
            (heartbeat.kubelet_works, heartbeat.can_act) = (Tri::Unknown, false);
        }),
        ("no process named", HoldReason::CannotAct, |s| {
            s.reports.get_mut("n1").unwrap().faults[0].fault.target.process = None;
        }),
        ("running pods", HoldReason::RunningPods, |s| s.policies[0].rules[0].steps = vec![kill(false)]),
        ("no ledger", HoldReason::NoLedger, |s| s.ledger = None),
        ("no node may be unhealthy", HoldReason::TooManyUnhealthy, |s| {
            s.policies[0].limits.max_unhealthy = Amount::Count(0);
        }),
        ("0 %", HoldReason::TooManyUnhealthy, |s| s.policies[0].limits.max_unhealthy = Amount::Percent(0)),
        ("none in flight", HoldReason::InFlightLimit, |s| s.policies[0].limits.max_in_flight = Amount::Count(0)),
        ("no slot in the cluster", HoldReason::ClusterCeiling, |s| s.ceiling = 0),
        ("nothing that applies", HoldReason::NoRule, |s| {
            s.policies[0].rules[0].steps = vec![step(Action::DeletePod), step(Action::CleanupOrphans)];
        }),
        ("nothing but a cordon", HoldReason::NoRule, |s| s.policies[0].rules[0].steps = vec![step(Action::Cordon)]),
    ];
    let world = World::sick(hung("log"), Cure::Cont, &[cont()]);
    for (name, reason, spoil) in doubts {
        let mut snapshot = world.snapshot();
        spoil(&mut snapshot);
        let plan = plan(&snapshot, &world.settings);
        assert!(plan.effects.is_empty(), "{name}: {:?}", plan.effects);
        assert_eq!(reasons(&plan), [reason], "{name}: {:?}", plan.held);
        let held = &plan.held[0];
        assert!(held.message.len() > 20 && held.fault_id.is_some(), "{name}: {held:?}");
        let outlook = &plan.nodes["n1"];
        assert!(outlook.doing.starts_with("held: "), "{name}: {}", outlook.doing);
        assert_eq!(outlook.look_requested, reason == HoldReason::StaleEvidence, "{name}");
    }
}

#[test]
fn a_report_on_another_node_or_none_is_no_evidence() {
    let world = World::sick(hung("log"), Cure::Cont, &[cont()]);
    for uid in [None, Some("uid-old".to_owned())] {
        let mut snapshot = world.snapshot();
        snapshot.reports.get_mut("n1").unwrap().node_uid = uid;
        let plan = plan(&snapshot, &world.settings);
        assert!(plan.effects.is_empty());
        assert_eq!(plan.nodes["n1"].health, Health::Unknown);
        assert_eq!(plan.policies["p"].unknown, 1);
    }
    let mut snapshot = world.snapshot();
    snapshot.nodes.clear();
    let plan = plan(&snapshot, &world.settings);
    assert!(plan.effects.is_empty());
    assert_eq!(plan.policies["p"].selected, 0);
}

#[test]
fn suspected_and_clearing_faults_are_not_acted_on() {
    for state in [FaultState::Suspected, FaultState::Clearing] {
        let mut sick = hung("log");
        sick.state = state;
        let plan = World::sick(sick, Cure::Cont, &[cont()]).plan();
        assert!(plan.effects.is_empty());
        assert_eq!(plan.nodes["n1"].health, Health::Degraded);
    }
}

#[test]
fn a_probe_has_no_say_in_what_only_the_controller_knows() {
    let mut forged = fault(FaultType::StuckDaemonSetPod, "victim");
    forged.target.pod = Some(pod("victim"));
    let plan = World::sick(forged, Cure::Delete, &[step(Action::DeletePod), notify()]).plan();
    assert!(plan.effects.is_empty(), "{:?}", plan.effects);
    assert!(plan.nodes["n1"].cluster_faults.is_empty());
}

#[test]
fn evidence_of_exactly_the_longest_age_still_counts() {
    let world = World::sick(hung("log"), Cure::Cont, &[cont()]);
    let mut snapshot = world.snapshot();
    let report = snapshot.reports.get_mut("n1").unwrap();
    report.faults[0].looked = secs(45);
    report.heartbeat.as_mut().unwrap().arrived = Duration::from_millis(22_500);
    assert_eq!(acts(&plan(&snapshot, &world.settings)).len(), 1);
}

#[test]
fn the_lane_follows_the_kubelet() {
    for (ready, kubelet, can_act, expected) in [
        (Tri::True, Tri::True, false, "job ReleaseCont"),
        (Tri::True, Tri::True, true, "job ReleaseCont"),
        (Tri::True, Tri::False, true, "order ReleaseCont"),
        (Tri::True, Tri::Unknown, true, "order ReleaseCont"),
        (Tri::Unknown, Tri::True, true, "order ReleaseCont"),
        (Tri::False, Tri::True, true, "order ReleaseCont"),
    ] {
        let mut world = World::sick(hung("log"), Cure::Cont, &[cont()]);
        let node = world.node("n1");
        node.view.ready = ready;
        let heartbeat = node.report.heartbeat.as_mut().unwrap();
        (heartbeat.kubelet_works, heartbeat.can_act) = (kubelet, can_act);
        assert_eq!(acts(&world.plan()), [("n1".to_owned(), expected.to_owned())], "{ready:?} {kubelet:?}");
    }
}

#[test]
fn killing_a_shim_needs_a_pod_that_goes_or_leave_to_end_it() {
    let order = |world: &World| {
        world.plan().effects.into_iter().find_map(|effect| match effect {
            Effect::Act { operation: Operation::RunJob(order), .. } => Some(order),
            _ => None,
        })
    };
    let mut world = World::sick(hung("log"), Cure::Kill, &[kill(false)]);
    assert!(order(&world).is_none());
    let mut other = pod("log");
    other.uid = "another".into();
    world.terminating.insert(other);
    assert!(order(&world).is_none(), "another pod of the same name");
    world.terminating.insert(pod("log"));
    assert!(order(&world).unwrap().allow_running_pods);

    let world = World::sick(hung("log"), Cure::Kill, &[kill(true)]);
    assert!(order(&world).unwrap().allow_running_pods);
    let world = World::sick(plugin(), Cure::Kill, &[kill(false)]);
    assert!(!order(&world).unwrap().allow_running_pods, "a plugin is no pod");
}

#[test]
fn the_ladder_is_climbed_when_a_step_does_not_heal() {
    let mut world = World::sick(plugin(), Cure::Kill, &[cont(), kill(false), notify()]);
    world.run(secs(900));
    assert_eq!(world.did(), ["job ReleaseCont", "job ReleaseKill"]);
    let episode = world.only_episode();
    assert_eq!(episode.phase, Phase::Succeeded);
    let states: Vec<_> = episode.steps.iter().map(|step| (step.rung, step.state)).collect();
    assert_eq!(states, [(0, StepState::Failed), (1, StepState::Succeeded)]);
}

#[test]
fn attempts_cool_down_and_the_end_of_the_ladder_calls_for_a_person() {
    let mut twice = cont();
    twice.attempts = 2;
    let mut world = World::sick(plugin(), Cure::Nothing, &[step(Action::Cordon), twice, notify()]);
    world.run(secs(1_200));
    assert_eq!(world.did(), ["cordon", "job ReleaseCont", "job ReleaseCont", "notify", "uncordon"]);
    let episode = world.only_episode();
    assert_eq!(episode.phase, Phase::Failed);
    assert_eq!(episode.faults[0].state, HealState::GivenUp);
    let (first, second) = (&episode.steps[1], &episode.steps[2]);
    let pause = second.reserved_at.duration_since(first.finished_at.unwrap());
    assert!(pause.as_secs() >= 60, "cool-down counts from the end of the attempt: {pause:?}");
    assert!(!world.nodes["n1"].view.unschedulable);

    let plan = world.plan();
    assert_eq!(reasons(&plan), [HoldReason::RecentlyFailed]);
    assert_eq!(plan.nodes["n1"].self_healing, Tri::False);
    world.tick(secs(3_600));
    assert_eq!(acts(&world.plan()).len(), 1, "after an hour it is tried again");
    let again = world.plan().effects.iter().any(|e| matches!(e, Effect::WriteEpisode(e) if e.name.ends_with("-2")));
    assert!(again, "under a new name");
}

#[test]
fn steps_that_cannot_apply_are_left_out() {
    let ladder = [step(Action::DeletePod), step(Action::CleanupOrphans), cont()];
    let plan = World::sick(hung("log"), Cure::Cont, &ladder).plan();
    assert_eq!(acts(&plan)[0].1, "job ReleaseCont");
    for kind in [FaultType::LeakedShim, FaultType::OrphanContainer] {
        let plan = World::sick(fault(kind, "x"), Cure::Cleanup, &[cont(), step(Action::CleanupOrphans)]).plan();
        assert_eq!(acts(&plan)[0].1, "job CleanupOrphans");
    }
}

#[test]
fn a_silent_probe_is_told_of_and_nothing_else_is_done() {
    let mut world =
        World::sick(hung("log"), Cure::Cont, &[step(Action::Cordon), cont(), step(Action::DeletePod), notify()]);
    world.node("n1").probe_runs = false;
    world.tick(secs(60));
    let plan = world.plan();
    assert_eq!(acts(&plan), [("n1".to_owned(), "notify".to_owned())]);
    assert_eq!(plan.nodes["n1"].probe_reporting, Tri::False);
    assert_eq!(plan.nodes["n1"].health, Health::Unknown);
    assert!(plan.nodes["n1"].worst.starts_with("ProbeSilent"), "{}", plan.nodes["n1"].worst);
    assert_eq!(plan.policies["p"].unhealthy, 1);
    assert!(reasons(&plan).contains(&HoldReason::ProbeSilent), "the hung container is held");
}

#[test]
fn more_urgent_faults_and_nodes_go_first_one_step_a_node() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[cont()]);
    let mut critical = plugin();
    critical.severity = Severity::Critical;
    world.infect("n1", critical, Cure::Cont);
    let plan = world.plan();
    assert_eq!(acts(&plan).len(), 1);
    assert_eq!(reasons(&plan), [HoldReason::OtherFaultFirst]);
    let Some(Effect::WriteEpisode(episode)) = plan.effects.get(1) else { panic!() };
    assert_eq!(episode.steps[0].fault_id, plugin().id);
    assert_eq!(episode.faults.len(), 2);

    world.run(secs(600));
    assert_eq!(world.only_episode().phase, Phase::Succeeded);
    assert_eq!(world.did(), ["job ReleaseCont", "job ReleaseCont"]);

    let mut world = World::new(&[policy("p", &[rule("r", &FaultType::ALL, &[cont()])])], &["a", "b", "c"]);
    world.policies[0].limits.max_in_flight = Amount::Count(1);
    let mut critical = hung("x");
    critical.severity = Severity::Critical;
    world.infect("a", hung("x"), Cure::Cont);
    world.infect("b", critical.clone(), Cure::Cont);
    world.infect("c", critical, Cure::Cont);
    let plan = world.plan();
    assert_eq!(acts(&plan)[0].0, "b");
    assert_eq!(reasons(&plan), [HoldReason::InFlightLimit; 2]);
    assert_eq!(plan.policies["p"].blocked.as_ref().unwrap().0, HoldReason::InFlightLimit);
}

#[test]
fn a_new_fault_joins_the_open_episode() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[cont()]);
    world.pass();
    world.infect("n1", plugin(), Cure::Cont);
    let plan = world.pass();
    assert_eq!(reasons(&plan), [HoldReason::StepUnderWay]);
    assert_eq!(world.only_episode().faults.len(), 2);
    world.run(secs(600));
    assert_eq!(world.only_episode().phase, Phase::Succeeded);
}

#[test]
fn a_fault_that_goes_by_itself_needs_no_act() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[cont()]);
    world.disturbed_pass(&Chaos { crash_after: Some(2), ..Chaos::default() });
    assert_eq!(world.only_episode().steps[0].state, StepState::Reserved);
    world.node("n1").sick.clear();
    world.tick(secs(5));
    world.run(secs(60));
    assert!(world.log.is_empty());
    assert_eq!(world.only_episode().phase, Phase::Succeeded);
    assert_eq!(world.only_episode().steps[0].state, StepState::Cancelled);
}

#[test]
fn one_policy_heals_a_node_and_overlaps_are_told() {
    let rules = [rule("r", &FaultType::ALL, &[cont()])];
    let (mut high, low) = (policy("z-high", &rules), policy("a-low", &rules));
    high.priority = 10;
    let mut world = World::new(&[low, high], &["n1"]);
    world.infect("n1", hung("log"), Cure::Cont);
    let plan = world.plan();
    assert_eq!(acts(&plan).len(), 1);
    assert_eq!(plan.nodes["n1"].policy.as_deref(), Some("z-high"));
    assert_eq!(plan.policies["a-low"].overlaps, ["z-high"]);
    assert_eq!(plan.policies["z-high"].overlaps, ["a-low"]);
    world.policies[1].priority = 0;
    assert_eq!(world.plan().nodes["n1"].policy.as_deref(), Some("a-low"), "then the name");
}

#[test]
fn policies_for_different_faults_share_a_node_one_after_the_other() {
    let net = policy("net", &[rule("r", &[FaultType::NetworkPluginHung], &[cont()])]);
    let tasks = policy("tasks", &[rule("r", &[FaultType::HungContainer], &[cont()])]);
    let mut world = World::new(&[net, tasks], &["n1"]);
    world.infect("n1", hung("log"), Cure::Cont);
    let mut critical = plugin();
    critical.severity = Severity::Critical;
    world.infect("n1", critical, Cure::Cont);
    let plan = world.plan();
    assert_eq!((acts(&plan).len(), reasons(&plan)), (1, vec![HoldReason::OtherFaultFirst]));
    assert_eq!(plan.nodes["n1"].policy.as_deref(), Some("net"));
    for stop in [0, 1, 2] {
        let mut world = world.clone();
        match stop {
            0 => world.policies[0].pause_requests.push("release".into()),
            1 => world.policies[0].mode = Mode::DryRun,
            _ => world.policies[0].limits.max_in_flight = Amount::Count(0),
        }
        let plan = world.plan();
        assert_eq!(acts(&plan).len(), 1, "a policy that does nothing holds up nobody: {:?}", plan.held);
        assert_eq!(plan.nodes["n1"].policy.as_deref(), Some("tasks"));
    }
    world.run(secs(600));
    assert_eq!(world.episodes.len(), 2);
    assert!(world.episodes.values().all(|episode| episode.phase == Phase::Succeeded));
}

#[test]
fn unhealthy_counts_what_the_design_says() {
    let mut world = World::new(
        &[policy("p", &[rule("r", &[FaultType::HungContainer], &[cont()])])],
        &["a", "b", "c", "d", "e", "f"],
    );
    world.policies[0].limits.max_unhealthy = Amount::Percent(50);
    world.infect("a", hung("x"), Cure::Cont);
    world.node("b").view.ready = Tri::Unknown;
    world.infect("c", plugin(), Cure::Cont); // no rule for it: not counted
    world.node("d").report.heartbeat = None; // never reported: unknown
    world.node("e").report.heartbeat.as_mut().unwrap().arrived = secs(60); // silent
    world.node("f").view.deleting = true; // not in the denominator
    let outlook = &world.plan().policies["p"];
    assert_eq!((outlook.selected, outlook.unhealthy, outlook.unknown, outlook.max_unhealthy), (5, 3, 1, 2));
    assert_eq!(outlook.blocked.as_ref().unwrap().0, HoldReason::TooManyUnhealthy);
    assert!(acts(&world.plan()).is_empty());
}

#[test]
fn a_dry_run_decides_the_same_records_it_once_and_touches_nothing() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[step(Action::Cordon), cont()]);
    world.policies[0].mode = Mode::DryRun;
    let plan = world.pass();
    assert!(acts(&plan).is_empty());
    assert_eq!(reasons(&plan), [HoldReason::DryRun]);
    let episode = world.only_episode().clone();
    assert_eq!((episode.phase, episode.steps[0].state), (Phase::Simulated, StepState::Simulated));
    assert!(!episode.undo.cordoned && !episode.is_open());
    assert!(world.ledger.as_ref().unwrap().slots.is_empty());
    for _ in 0..50 {
        world.tick(secs(60));
        let plan = world.pass();
        assert!(plan.effects.is_empty(), "{:?}", plan.effects);
        assert_eq!(reasons(&plan), [HoldReason::DryRun]);
    }
    world.policies[0].mode = Mode::Enforce;
    assert_eq!(acts(&world.plan()).len(), 1, "a simulation stands in no one's way");
}

#[test]
fn a_dry_run_keeps_to_its_budgets() {
    let mut world = World::new(&[policy("p", &[rule("r", &FaultType::ALL, &[cont()])])], &["a", "b"]);
    world.policies[0].mode = Mode::DryRun;
    world.policies[0].limits.max_in_flight = Amount::Count(1);
    world.infect("a", hung("x"), Cure::Cont);
    world.infect("b", hung("x"), Cure::Cont);
    world.pass();
    assert_eq!(world.episodes.len(), 1);
    assert!(reasons(&world.plan()).contains(&HoldReason::InFlightLimit));
    world.tick(secs(181));
    world.pass();
    assert_eq!(world.episodes.len(), 2, "the virtual slot is given back when the step would be over");
}

#[test]
fn history_is_kept_within_limit_and_time() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[cont()]);
    world.policies[0].history.limit = 1;
    world.run(secs(300));
    let first = world.only_episode().name.clone();
    world.infect("n1", hung("other"), Cure::Cont);
    world.run(secs(300));
    assert_eq!(world.episodes.len(), 2, "the last hour is remembered whatever the limit");
    world.tick(secs(3_600));
    let deleted: Vec<_> = world.plan().effects;
    assert_eq!(deleted, [Effect::DeleteEpisode { name: first }]);
    world.policies.clear();
    world.pass();
    assert_eq!(world.episodes.len(), 2, "history of a policy that is gone has the default limits");
    world.tick(secs(604_800));
    world.pass();
    assert!(world.episodes.is_empty());
}

#[test]
fn a_stuck_pod_in_back_off_is_deleted_and_its_successor_verified() {
    let mut world = World::new(&[policy("p", &[rule("r", &FaultType::ALL, &[step(Action::DeletePod)])])], &["n1"]);
    world.node("n1").pods.push(backing_off("n1", "agent-1"));
    let plan = world.pass();
    assert_eq!(acts(&plan), [("n1".to_owned(), "delete agent-1".to_owned())]);
    assert_eq!(plan.nodes["n1"].pods_progressing, Tri::False);
    let mut successor = backing_off("n1", "agent-2");
    successor.waiting.clear();
    successor.age = secs(3);
    world.node("n1").pods.push(successor);
    world.tick(secs(10));
    world.pass();
    world.tick(secs(10));
    world.pass();
    assert_eq!(world.only_episode().phase, Phase::Verifying, "the successor is not Ready yet");
    world.node("n1").pods[0].ready = true;
    world.run(secs(60));
    assert_eq!(world.only_episode().phase, Phase::Succeeded);
}

#[test]
fn a_pod_that_nobody_looked_at_is_not_well() {
    let mut world = World::new(&[policy("p", &[rule("r", &FaultType::ALL, &[step(Action::DeletePod)])])], &["n1"]);
    world.node("n1").pods.push(backing_off("n1", "agent-1"));
    world.pass();
    world.tick(secs(30));
    let mut snapshot = world.snapshot();
    snapshot.pods_read.clear();
    let plan = plan(&snapshot, &world.settings);
    assert!(plan.effects.is_empty(), "{:?}", plan.effects);
}

#[test]
fn only_daemon_set_pods_that_are_stuck_count() {
    let cases = [
        ("back-off", true, backing_off("n1", "x")),
        ("creating", true, creating("n1", "x")),
        ("terminating", true, overdue("n1", "x")),
        ("no DaemonSet's", false, {
            let mut pod = backing_off("n1", "x");
            pod.daemon_set = None;
            pod
        }),
        ("short back-off", false, {
            let mut pod = backing_off("n1", "x");
            pod.waiting[0].back_off = Some(secs(160));
            pod
        }),
        ("ended just now", false, {
            let mut pod = backing_off("n1", "x");
            pod.waiting[0].ended = Some(secs(59));
            pod
        }),
        ("young", false, {
            let mut pod = creating("n1", "x");
            pod.age = secs(119);
            pod
        }),
        ("within grace", false, {
            let mut pod = overdue("n1", "x");
            pod.overdue = Some(secs(119));
            pod
        }),
    ];
    for (name, is_stuck, pod) in cases {
        let mut world = World::new(&[policy("p", &[])], &["n1"]);
        world.node("n1").pods.push(pod);
        let faults = &world.plan().nodes["n1"].cluster_faults;
        assert_eq!(faults.len(), usize::from(is_stuck), "{name}: {faults:?}");
    }
}

#[test]
fn the_cause_of_a_stuck_pod_is_named_and_released_first() {
    let ladder = [step(Action::DeletePod)];
    let mut own = hung("agent-1");
    own.state = FaultState::Suspected;
    let mut suspected_plugin = plugin();
    suspected_plugin.state = FaultState::Suspected;
    let cases = [
        ("own hung container", backing_off("n1", "agent-1"), Some(own.clone()), true),
        ("another pod's", backing_off("n1", "agent-1"), Some(hung("other")), false),
        ("plugin, but the pod has its network", backing_off("n1", "agent-1"), Some(plugin()), false),
        ("plugin, and the pod waits for it", creating("n1", "agent-1"), Some(suspected_plugin), true),
        ("the runtime", creating("n1", "agent-1"), Some(fault(FaultType::RuntimeListHung, "r")), true),
        ("nothing", creating("n1", "agent-1"), None, false),
    ];
    for (name, suspect, cause, is_first) in cases {
        let rules = [rule("r", &[FaultType::StuckDaemonSetPod], &ladder)];
        let mut world = World::new(&[policy("p", &rules)], &["n1"]);
        world.node("n1").pods.push(suspect);
        if let Some(cause) = cause {
            world.infect("n1", cause, Cure::Cont);
        }
        let plan = world.plan();
        assert_eq!(acts(&plan).is_empty(), is_first, "{name}");
        assert_eq!(reasons(&plan).contains(&HoldReason::ReleaseFirst), is_first, "{name}: {:?}", plan.held);
        let message = &plan.nodes["n1"].cluster_faults[0].message;
        assert_eq!(message.contains("cause on the node: "), is_first, "{name}: {message}");
    }
    let mut world =
        World::new(&[policy("p", &[rule("r", &FaultType::ALL, &[cont(), step(Action::DeletePod)])])], &["n1"]);
    world.node("n1").pods.push(overdue("n1", "agent-1"));
    world.infect("n1", hung("agent-1"), Cure::Cont);
    let plan = world.plan();
    assert_eq!(acts(&plan)[0].1, "job ReleaseCont", "the hung process is released, the pod is left");
}

#[test]
fn a_silent_probe_or_an_old_read_holds_a_stuck_pod() {
    let mut world =
        World::new(&[policy("p", &[rule("r", &[FaultType::StuckDaemonSetPod], &[step(Action::DeletePod)])])], &["n1"]);
    world.node("n1").pods.push(backing_off("n1", "agent-1"));
    let mut snapshot = world.snapshot();
    snapshot.pods[0].read = secs(46);
    let held = plan(&snapshot, &world.settings);
    assert_eq!((acts(&held).len(), reasons(&held)), (0, vec![HoldReason::StaleEvidence]));
    world.node("n1").report.heartbeat.as_mut().unwrap().arrived = secs(23);
    let held = world.plan();
    assert_eq!((acts(&held).len(), reasons(&held)), (0, vec![HoldReason::ProbeSilent]));
}

#[test]
fn after_a_release_kubernetes_is_given_time_to_bring_the_pod_up() {
    let rules = [
        rule("net", &[FaultType::NetworkPluginHung], &[kill(false)]),
        rule("pod", &[FaultType::StuckDaemonSetPod], &[step(Action::DeletePod)]),
    ];
    let mut world = World::new(&[policy("p", &rules)], &["n1"]);
    world.infect("n1", plugin(), Cure::Kill);
    world.node("n1").pods.push(creating("n1", "agent-1"));
    for _ in 0..6 {
        world.pass();
        world.tick(secs(5));
    }
    assert_eq!(world.did(), ["job ReleaseKill"]);
    world.node("n1").pods[0].ready = true;
    world.run(secs(60));
    assert_eq!(world.did(), ["job ReleaseKill"], "the pod came up by itself");
}

#[test]
fn a_daemon_set_that_loops_is_not_deleted_over_and_over() {
    let mut world = World::new(&[policy("p", &[rule("r", &FaultType::ALL, &[step(Action::DeletePod)])])], &["n1"]);
    for turn in 0..12 {
        let node = world.node("n1");
        node.pods = vec![backing_off("n1", &format!("agent-{turn}"))];
        world.run(secs(240));
    }
    assert_eq!(world.did(), ["delete agent-0"]);
    let plan = world.plan();
    assert!(reasons(&plan).contains(&HoldReason::RecentlyFailed), "{:?}", plan.held);
    assert_eq!(plan.nodes["n1"].self_healing, Tri::False);
}

#[test]
fn a_fault_that_comes_back_again_and_again_is_left_to_a_person() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[cont()]);
    for turn in 0..5 {
        world.run(secs(120));
        let mut again = hung("log");
        again.first_seen = world.now;
        if turn < 4 {
            world.infect("n1", again, Cure::Cont);
        }
    }
    assert_eq!(world.did().len(), 3);
    assert_eq!(world.plan().nodes["n1"].self_healing, Tri::False);
}

#[test]
fn a_job_that_does_not_start_makes_room_for_the_agent_with_the_same_operation() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[cont()]);
    world.node("n1").job_starts = false;
    world.run(secs(300));
    assert_eq!(world.did(), ["job ReleaseCont", "order ReleaseCont"]);
    let episode = world.only_episode();
    assert_eq!(episode.phase, Phase::Succeeded);
    assert_eq!((episode.steps.len(), episode.steps[0].lane), (1, Lane::Agent));
    assert!(world.jobs.is_empty(), "the Job is taken away");
    assert!(world.nodes["n1"].report.order.is_none(), "the order is taken back");
    assert_eq!(world.acts.values().copied().collect::<Vec<_>>(), [1]);
}

#[test]
fn an_order_that_was_never_answered_makes_room_for_the_next_one() {
    let mut world = World::sick(plugin(), Cure::Kill, &[cont(), kill(false)]);
    let node = world.node("n1");
    node.view.ready = Tri::False;
    node.probe_runs = false;
    world.pass();
    for _ in 0..19 {
        world.tick(secs(10));
        world.node("n1").send();
        world.pass();
    }
    assert_eq!(world.did(), ["order ReleaseCont", "order ReleaseKill"]);
    let order = world.nodes["n1"].report.order.clone().unwrap();
    assert!(order.operation_id.ends_with("-2"), "{order:?}");
    world.node("n1").probe_runs = true;
    world.run(secs(60));
    assert_eq!(world.only_episode().phase, Phase::Succeeded);
}

/// What comes back from an act, and how the record stands after it.
#[test]
fn the_result_of_an_act_is_written_into_its_step_alone() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[step(Action::Cordon), cont()]);
    world.disturbed_pass(&Chaos { crash_after: Some(2), ..Chaos::default() });
    let (episode, now) = (world.only_episode().clone(), world.now);
    let id = episode.steps[0].operation_id.clone();
    let text = || "why".to_owned();
    let refused = ActResult::Refused { reason: OutcomeReason::WrongNode, message: text() };
    let cases = [
        (ActResult::Done { message: text() }, StepState::Succeeded, true),
        (ActResult::AlreadyCordoned, StepState::Succeeded, false),
        (refused, StepState::Refused, false),
        // The call may have reached the API server all the same.
        (ActResult::Failed { message: text() }, StepState::Failed, true),
    ];
    for (result, state, is_owed) in cases {
        let next = acted(&episode, &id, result.clone(), now);
        assert_eq!((next.steps[0].state, next.undo.is_owed()), (state, is_owed), "{result:?}");
        assert_eq!(next.steps[0].finished_at, Some(now), "{result:?}");
        assert_eq!(acted(&next, &id, ActResult::Started, now), next, "a late answer changes nothing");
        assert_eq!(acted(&episode, "another-1", result, now), episode, "nor does another operation's");
    }
    let next = acted(&episode, &id, ActResult::Started, now);
    assert_eq!((next.steps[0].state, next.phase), (StepState::Started, Phase::Running));
}

#[test]
fn no_answer_ends_the_attempt() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[cont()]);
    world.node("n1").job_starts = false;
    world.node("n1").report.heartbeat.as_mut().unwrap().can_act = false;
    world.run(secs(600));
    let episode = world.only_episode();
    assert_eq!((episode.phase, episode.steps[0].state), (Phase::Failed, StepState::TimedOut));
    assert!(world.jobs.is_empty());
}

#[test]
fn a_changed_target_costs_no_attempt_but_not_for_ever() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[cont()]);
    world.node("n1").job_starts = false;
    for _ in 0..400 {
        world.pass();
        let open: Vec<String> = world.jobs.keys().cloned().collect();
        for id in open {
            let (_, job) = world.jobs.get_mut(&id).unwrap();
            job.finished = true;
            job.outcome = Some(Outcome {
                operation_id: id.clone(),
                state: OutcomeState::Refused,
                reason: OutcomeReason::TargetChanged,
                message: "pid 4242 is another process now".into(),
                at: world.now,
            });
        }
        world.tick(secs(5));
    }
    let episode = world.episodes.values().next().unwrap();
    assert_eq!(episode.steps.len(), 5);
    assert!(episode.steps.iter().all(|step| step.state == StepState::Refused));
    assert_eq!(episode.phase, Phase::Failed);
}

#[test]
fn what_was_claimed_before_is_judged_by_its_effect() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[cont()]);
    world.pass();
    let id = world.only_episode().steps[0].operation_id.clone();
    world.node("n1").claimed.insert(id);
    world.tick(secs(5));
    world.pass();
    assert_eq!(world.only_episode().steps[0].state, StepState::Verifying);
}

#[test]
fn of_two_answers_the_one_that_acted_counts() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[cont()]);
    world.pass();
    let id = world.only_episode().steps[0].operation_id.clone();
    let answer =
        |state, reason| Outcome { operation_id: id.clone(), state, reason, message: String::new(), at: world.now };
    for (job, agent) in [
        (
            answer(OutcomeState::Refused, OutcomeReason::AlreadyClaimed),
            answer(OutcomeState::Done, OutcomeReason::Acted),
        ),
        (answer(OutcomeState::Refused, OutcomeReason::Recovered), answer(OutcomeState::Done, OutcomeReason::Acted)),
        (answer(OutcomeState::Done, OutcomeReason::Acted), answer(OutcomeState::Failed, OutcomeReason::CallFailed)),
    ] {
        let mut snapshot = world.snapshot();
        snapshot.jobs.get_mut(&id).unwrap().outcome = Some(job);
        snapshot.reports.get_mut("n1").unwrap().agent = Some(agent);
        let plan = plan(&snapshot, &world.settings);
        let Some(Effect::WriteEpisode(episode)) = plan.effects.first() else { panic!("{:?}", plan.effects) };
        assert_eq!((episode.phase, episode.steps[0].reason), (Phase::Verifying, Some(OutcomeReason::Acted)));
    }
}

#[test]
fn someone_elses_cordon_is_not_adopted() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[step(Action::Cordon), cont()]);
    world.node("n1").view.unschedulable = true;
    world.run(secs(300));
    assert_eq!(world.only_episode().phase, Phase::Succeeded);
    assert!(world.nodes["n1"].view.unschedulable, "it was cordoned before, it stays so");
    assert_eq!(world.only_episode().steps[0].message, "already unschedulable, adopted nothing");
}

#[test]
fn a_persons_uncordon_cancels() {
    let mut world = World::sick(hung("log"), Cure::Nothing, &[step(Action::Cordon), cont(), kill(true)]);
    world.pass();
    world.pass();
    assert!(world.nodes["n1"].view.unschedulable);
    world.node("n1").view.unschedulable = false;
    world.run(secs(60));
    let episode = world.only_episode();
    assert_eq!(episode.phase, Phase::Cancelled, "{}", episode.message);
    assert!(episode.message.contains("uncordoned by hand"), "{}", episode.message);
    assert!(world.nodes["n1"].view.cordoned_by.is_none(), "our mark is taken off");
    assert!(world.ledger.as_ref().unwrap().slots.is_empty());
    assert_eq!(reasons(&world.plan()), [HoldReason::RecentlyFailed], "it does not begin anew at once");
}

#[test]
fn a_stale_view_of_our_own_cordon_is_no_persons_uncordon() {
    let mut world = World::sick(hung("log"), Cure::Nothing, &[step(Action::Cordon), cont()]);
    world.pass();
    let mut snapshot = world.snapshot();
    let view = snapshot.nodes.get_mut("n1").unwrap();
    (view.unschedulable, view.cordoned_by) = (false, None);
    let plan = plan(&snapshot, &world.settings);
    assert_eq!(acts(&plan).len(), 1, "it goes on: {:?}", plan.effects);
}

/// What ends an episode, and whether the node is put back.
#[test]
fn episodes_are_cancelled_and_put_back() {
    type End = (&'static str, fn(&mut World), bool);
    let ends: [End; 9] = [
        ("deleted", |w| w.episodes.values_mut().for_each(|e| e.deleting = true), true),
        ("policy gone", |w| w.policies.clear(), true),
        ("policy suspended", |w| w.policies[0].suspend = true, true),
        ("policy a dry run now", |w| w.policies[0].mode = Mode::DryRun, true),
        ("rule gone", |w| w.policies[0].rules[0].name = "other".into(), true),
        ("node suspended", |w| w.node("n1").report.suspended = Some("hands off".into()), true),
        ("vetoed", |w| w.node("n1").view.vetoes.push("drain in progress".into()), true),
        ("node replaced", |w| w.node("n1").view.uid = "uid-new".into(), false),
        (
            "taken over",
            |w| {
                let mut other = w.policies[0].clone();
                (other.name, other.priority, other.suspend) = ("higher".into(), 9, true);
                w.policies.push(other);
            },
            true,
        ),
    ];
    for (name, end, is_put_back) in ends {
        let mut world = World::sick(hung("log"), Cure::Nothing, &[step(Action::Cordon), cont()]);
        world.pass();
        end(&mut world);
        for _ in 0..5 {
            world.pass();
            world.tick(secs(5));
        }
        let episode = world.episodes.values().min_by_key(|e| e.opened_at).unwrap();
        assert_eq!(episode.phase, Phase::Cancelled, "{name}: {}", episode.message);
        assert!(!episode.is_open() && episode.finished_at.is_some(), "{name}");
        assert_eq!(world.did().contains(&"uncordon"), is_put_back, "{name}: {:?}", world.log);
        let open: Vec<_> = world.ledger.as_ref().unwrap().slots.keys().filter(|n| **n == episode.name).collect();
        assert!(open.is_empty(), "{name}");
    }
}

#[test]
fn a_node_that_is_gone_ends_its_episode() {
    let mut world = World::sick(hung("log"), Cure::Nothing, &[step(Action::Cordon), cont()]);
    world.pass();
    world.nodes.clear();
    world.pass();
    world.pass();
    assert_eq!(world.only_episode().phase, Phase::Cancelled);
    assert!(world.ledger.as_ref().unwrap().slots.is_empty());
}

#[test]
fn a_veto_lets_the_step_under_way_finish_but_starts_no_other() {
    let mut world = World::sick(plugin(), Cure::Nothing, &[cont(), kill(false)]);
    world.pass();
    world.tick(secs(5));
    world.pass();
    assert_eq!(world.only_episode().phase, Phase::Verifying);
    world.node("n1").view.vetoes.push("maintenance".into());
    world.pass();
    assert_eq!(world.only_episode().phase, Phase::Verifying);
    world.run(secs(600));
    assert_eq!(world.did(), ["job ReleaseCont"]);
    assert_eq!(world.only_episode().phase, Phase::Cancelled);
}

#[test]
fn only_a_report_after_the_act_shows_its_effect_and_only_for_long_enough() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[cont()]);
    world.pass();
    world.tick(secs(5));
    world.pass();
    let acted_at = world.only_episode().steps[0].acted_at.unwrap();
    world.now = world.now.checked_add(secs(10)).unwrap();
    let mut early = world.snapshot();
    early.reports.get_mut("n1").unwrap().heartbeat.as_mut().unwrap().arrived = secs(11);
    let waiting = plan(&early, &world.settings);
    assert!(waiting.effects.is_empty(), "a report from before the act is no cure: {:?}", waiting.effects);
    assert!(waiting.nodes["n1"].look_requested, "a new one is asked for");

    world.node("n1").send();
    world.pass();
    let step = world.only_episode().steps[0].clone();
    assert_eq!((step.state, step.clean_since), (StepState::Verifying, Some(world.now)));
    world.tick(secs(4));
    world.pass();
    assert_eq!(world.only_episode().phase, Phase::Verifying, "4 s of the 5 s it must stay away");
    world.infect("n1", hung("log"), Cure::Nothing);
    world.pass();
    assert_eq!(world.only_episode().steps[0].clean_since, None, "it came back");
    world.node("n1").sick.clear();
    world.tick(secs(1));
    world.pass();
    world.tick(secs(5));
    world.pass();
    assert_eq!(world.only_episode().phase, Phase::Succeeded);
    assert_eq!(world.only_episode().steps[0].acted_at, Some(acted_at));
}

#[test]
fn a_full_report_may_have_left_the_fault_out() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[cont()]);
    world.pass();
    world.tick(secs(5));
    world.pass();
    for i in 0..MAX_FAULTS {
        let mut other = fault(FaultType::KubeletDown, &format!("x{i}"));
        other.state = FaultState::Suspected;
        world.node("n1").sick.push(crate::world::Sickness { fault: other, cure: Cure::Nothing });
    }
    for _ in 0..3 {
        world.tick(secs(20));
        world.pass();
    }
    assert_eq!(world.only_episode().phase, Phase::Verifying);
    world.node("n1").sick.pop();
    world.tick(secs(5));
    world.run(secs(20));
    assert_eq!(world.only_episode().phase, Phase::Succeeded);
}

#[test]
fn somebody_elses_mark_is_left_alone() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[step(Action::Cordon), cont()]);
    world.pass();
    world.node("n1").view.cordoned_by = Some("another-episode".into());
    let mut snapshot = world.snapshot();
    snapshot
        .ledger
        .as_mut()
        .unwrap()
        .slots
        .insert("another-episode".into(), Slot { node: "n1".into(), policy: "p".into(), taken_at: world.now });
    snapshot.policies.clear();
    let plan = plan(&snapshot, &world.settings);
    assert!(!plan.effects.iter().any(|e| matches!(e, Effect::Uncordon { .. })), "{:?}", plan.effects);
    let written = plan.effects.iter().find_map(|e| if let Effect::WriteEpisode(e) = e { Some(e) } else { None });
    let written = written.unwrap();
    assert!(!written.is_open() && written.phase == Phase::Cancelled, "nothing of its own is left to put back");
}

#[test]
fn names_are_never_used_again() {
    let mut world = World::sick(plugin(), Cure::Nothing, &[cont()]);
    world.run(secs(900));
    world.tick(secs(3_600));
    world.run(secs(900));
    let names: Vec<String> = world.episodes.keys().cloned().collect();
    assert_eq!(names.len(), 2);
    assert!(names[0].ends_with("-1") && names[1].ends_with("-2"), "{names:?}");
    world.tick(secs(3_600));
    world.episodes.remove(&names[0]);
    let plan = world.plan();
    let opened =
        plan.effects.iter().find_map(|e| if let Effect::WriteEpisode(e) = e { Some(e.name.as_str()) } else { None });
    assert!(opened.unwrap().ends_with("-3"), "the node has claimed the operations of the first: {opened:?}");

    world.policies[0].suspend = true;
    world.policies[0].history.limit = 0;
    world.run(secs(60));
    assert_eq!(world.episodes.len(), 1, "the newest one stays while its fault is there: its name must not come again");
}

#[test]
fn a_node_whose_episode_does_not_show_gets_no_second_one() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[cont()]);
    world.pass();
    world.episodes.clear();
    world.node("n1").sick.clear();
    world.infect("n1", hung("other"), Cure::Cont);
    let plan = world.plan();
    assert_eq!((plan.effects.len(), reasons(&plan)), (0, vec![HoldReason::StepUnderWay]), "{:?}", plan.held);
}

#[test]
fn a_report_that_contradicts_itself_is_read_the_same_in_any_order() {
    for severity in [Severity::Low, Severity::High, Severity::Critical] {
        let mut world = World::sick(hung("log"), Cure::Cont, &[cont()]);
        let mut doubt = hung("log");
        (doubt.state, doubt.severity) = (FaultState::Suspected, severity);
        world.infect("n1", doubt, Cure::Cont);
        let first = world.plan();
        assert!(first.effects.is_empty(), "the doubt counts");
        world.node("n1").sick.reverse();
        world.node("n1").send();
        assert_eq!(world.plan(), first);
    }
}

#[test]
fn paused_policies_finish_what_runs() {
    let mut world = World::sick(plugin(), Cure::Kill, &[cont(), kill(false)]);
    world.pass();
    world.policies[0].pause_requests.push("release".into());
    world.policies[0].limits.max_unhealthy = Amount::Count(0);
    world.run(secs(600));
    assert_eq!(world.only_episode().phase, Phase::Succeeded);
}

#[test]
fn a_lost_ledger_is_rebuilt_before_anything_new_starts() {
    let mut world = World::new(&[policy("p", &[rule("r", &FaultType::ALL, &[cont()])])], &["a", "b"]);
    world.infect("a", hung("x"), Cure::Cont);
    world.pass();
    world.infect("b", hung("x"), Cure::Cont);
    world.ledger = None;
    assert_eq!(acts(&world.plan()), []);
    world.settings.rebuild_ledger = true;
    let plan = world.pass();
    assert_eq!(acts(&plan), []);
    assert_eq!(world.ledger.as_ref().unwrap().slots.len(), 1, "the open episode has its slot again");
    world.pass();
    assert_eq!(world.ledger.as_ref().unwrap().slots.len(), 2);
}

#[test]
fn slots_without_a_visible_episode_wait_for_the_cache() {
    let mut world = World::new(&[policy("p", &[rule("r", &FaultType::ALL, &[cont()])])], &["a", "b"]);
    world.policies[0].limits.max_in_flight = Amount::Count(1);
    world.infect("a", hung("x"), Cure::Cont);
    world.pass();
    let hidden = std::mem::take(&mut world.episodes);
    world.nodes.get_mut("a").unwrap().sick.clear();
    world.node("a").send();
    world.infect("b", hung("x"), Cure::Cont);
    let plan = world.plan();
    assert_eq!(plan.effects, [], "its slot is not spent again while its episode is only unseen");
    assert!(plan.next.unwrap() <= secs(60));
    world.tick(secs(61));
    assert_eq!(acts(&world.plan()).len(), 1);
    world.episodes = hidden;
}

#[test]
fn a_decision_from_a_stale_cache_meets_its_own_episode() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[cont()]);
    let stale = world.snapshot();
    world.pass();
    let name = world.only_episode().name.clone();
    let mut late = stale;
    late.now = late.now.checked_add(secs(7)).unwrap();
    late.ledger.clone_from(&world.ledger);
    let plan = plan(&late, &world.settings);
    let created: Vec<_> = plan
        .effects
        .iter()
        .filter_map(|e| if let Effect::WriteEpisode(e) = e { Some(&e.name) } else { None })
        .collect();
    assert_eq!(created, [&name], "the API server refuses the second one");
    let slots =
        plan.effects.iter().find_map(|e| if let Effect::StoreLedger(l) = e { Some(l.slots.len()) } else { None });
    assert_eq!(slots, Some(1), "and its slot is not spent twice");
}

#[test]
fn a_mark_left_by_a_removed_episode_is_taken_off() {
    let mut world = World::sick(hung("log"), Cure::Nothing, &[step(Action::Cordon), cont()]);
    world.pass();
    world.episodes.clear();
    world.node("n1").sick.clear();
    world.node("n1").send();
    assert_eq!(world.plan().effects, [], "its slot may mean that it is only unseen");
    world.tick(secs(61));
    world.pass();
    world.pass();
    assert!(!world.nodes["n1"].view.unschedulable);
    let mut snapshot = world.snapshot();
    snapshot.nodes.get_mut("n1").unwrap().unschedulable = true;
    assert_eq!(plan(&snapshot, &world.settings).effects, [], "a cordon without our mark is not ours");
}

#[test]
fn the_outlook_says_what_is_done() {
    let mut world = World::sick(hung("log"), Cure::Cont, &[cont(), kill(false)]);
    world.pass();
    world.tick(secs(5));
    let outlook = world.pass().nodes.remove("n1").unwrap();
    assert_eq!(outlook.health, Health::Healthy, "the probe sees it gone");
    assert!(outlook.doing.starts_with("step 1/2 ReleaseHungProcess(Cont) by Job, done "), "{}", outlook.doing);
    assert_eq!(outlook.episode.as_ref(), Some(&world.only_episode().name));
    let world = World::sick(hung("log"), Cure::Cont, &[cont()]);
    let outlook = world.plan().nodes.remove("n1").unwrap();
    assert_eq!(outlook.worst, "HungContainer: container log of kube-system/log");
    assert_eq!(outlook.health, Health::Unhealthy);
}

#[test]
fn texts_do_not_change_with_the_clock_alone() {
    let mut world = World::sick(hung("log"), Cure::Nothing, &[kill(false)]);
    world.node("n1").pods.push(creating("n1", "agent-1"));
    world.policies[0].mode = Mode::DryRun;
    world.pass();
    let before = world.plan();
    world.now = world.now.checked_add(secs(3)).unwrap();
    for pod in &mut world.node("n1").pods {
        pod.age += secs(3);
    }
    let after = world.plan();
    assert_eq!(before.nodes, after.nodes);
    assert_eq!(before.held, after.held);
}
