//! Conditions that other tools write on Nodes: asked for, told, acted upon, and gone.

use std::collections::BTreeSet;
use std::time::Duration;

use nrh_core::action::{Restart, ThawCgroup};
use nrh_core::external_condition::{ConditionMatcher, ExternalCondition};
use nrh_core::fault::FaultType;
use nrh_core::plan::{BlockReason, Health};
use nrh_core::policy::{Action, ActionType, Amount, ApprovalMode, Daemon, Mode, Requirement, Rule, Step};
use nrh_core::remediation::{Phase, Resolution};
use nrh_core::snapshot::TriState;
use nrh_testbed_matrix::{Seen, Way};

use crate::flaps::told_after;
use crate::samples::{
    asked, clean_up, cont, cordon, delete_pod, hung, mark_for_reboot, names, notify, policy, reboot, restart, rule,
    secs, step,
};
use crate::world::{ClearedBy, JOB_CONT, World, acts, reasons};

const DEADLOCK: &str = "KernelDeadlock";

fn asks(name: &str, reasons: &[&str], steps: &[Step]) -> Rule {
    let reasons = reasons.iter().map(|one| (*one).to_owned()).collect();
    Rule {
        conditions: vec![ConditionMatcher { kind: DEADLOCK.to_owned(), status: TriState::True, reasons }],
        ..rule(name, &[], steps)
    }
}

/// A rule that tells of it once it has stood for so long.
fn patient(min_duration: Duration) -> World {
    World::with_rules(&[Rule { min_duration, ..asks("r", &[], &[notify()]) }])
}

fn write(world: &mut World, node: &str, status: &str, reason: &str) {
    let condition = ExternalCondition::new(DEADLOCK, status, reason, "task docker blocked").unwrap();
    world.node(node).set_condition(DEADLOCK, Some(condition));
}

#[test]
fn it_is_a_fault_only_where_a_policy_that_selects_the_node_asks_for_it() {
    let mut world = World::with_rules(&[rule("r", &FaultType::ALL, &[notify()])]);
    write(&mut world, "n1", "True", "DockerHung");
    assert_eq!(world.cluster_faults(), [], "a rule for all kinds of fault asks for no condition");
    let mut other = policy("other", &[asks("r", &[], &[notify()])]);
    other.selector.0.push(Requirement::Exists("pool".into()));
    world.policies.push(other);
    assert_eq!(world.cluster_faults(), [], "it does not select the node");
    world.node("n1").view.labels.insert("pool".into(), "a".into());
    assert_eq!(world.cluster_faults(), [FaultType::NodeCondition]);
    let status_view = &world.plan().nodes["n1"];
    assert_eq!(status_view.health, Health::Unhealthy);
    assert_eq!(status_view.top_fault, "NodeCondition: condition KernelDeadlock=True");
    let fault = &status_view.cluster_faults[0];
    assert_eq!(fault.message, "condition KernelDeadlock of the Node is True (DockerHung): task docker blocked");
    let remedy = &status_view.assigned_rules[&fault.id];
    assert_eq!((remedy.policy.as_str(), remedy.rule.as_deref()), ("other", Some("r")));
    Seen::of("NodeCondition", "containerd", Way::MadeUp).record();
}

#[test]
fn the_node_is_cordoned_until_the_condition_is_gone() {
    let mut world = World::with_rules(&[asks("r", &["DockerHung"], &[cordon(), notify()])]);
    write(&mut world, "n1", "False", "NoDeadlock");
    world.run(secs(30));
    assert_eq!(world.did(), Vec::<&str>::new());
    write(&mut world, "n1", "True", "DockerHung");
    world.pass();
    assert!(world.node("n1").view.unschedulable);
    world.node("n1").set_condition(DEADLOCK, None);
    // A report from before the act is no cure yet.
    world.pass();
    assert_eq!(world.only_remediation().faults[0].state, Resolution::Open);
    world.tick(secs(5));
    assert_eq!(world.run_to(60, Phase::Succeeded).faults[0].state, Resolution::Resolved);
    assert_eq!(world.did(), ["cordon", "uncordon"]);
    assert_eq!(world.plan().nodes["n1"].health, Health::Healthy);
}

/// Told in aws/eks-node-monitoring-agent #39.
#[test]
fn a_rule_waits_by_the_controllers_own_clock_and_each_rule_for_its_own_reasons() {
    let mut patient = asks("r", &["DockerHung", "TaskHung"], &[notify()]);
    patient.min_duration = secs(600);
    // This one keeps the fault there whatever the reason, and is never the first to match.
    let mut world = World::with_rules(&[patient, asks("any", &["Other"], &[notify()])]);
    world.policies[0].rules[1].min_duration = secs(36_000);
    write(&mut world, "n1", "True", "Other");
    world.run(secs(3_000));
    world.live(3, 600);
    write(&mut world, "n1", "True", "DockerHung");
    let plan = world.pass();
    assert_eq!(reasons(&plan), [BlockReason::MinDurationNotReached]);
    assert!(plan.next.is_some_and(|next| next <= secs(600)));
    world.tick(secs(300));
    // Back and forth between reasons that the rule names: the clock goes on.
    for reason in ["TaskHung", "DockerHung", "TaskHung"] {
        write(&mut world, "n1", "True", reason);
        world.pass();
        world.tick(secs(90));
    }
    assert_eq!(world.did(), Vec::<&str>::new());
    world.pass_after(35);
    assert_eq!(world.did(), ["notify"]);
}

/// Asks for the condition in each of these statuses.
fn asks_any_of(statuses: &[TriState], steps: &[Step]) -> Rule {
    let one =
        |status: &TriState| ConditionMatcher { kind: DEADLOCK.to_owned(), status: *status, reasons: BTreeSet::new() };
    Rule { conditions: statuses.iter().map(one).collect(), ..rule("r", &[], steps) }
}

/// Told in medik8s/node-healthcheck-operator #274, aws/eks-node-monitoring-agent #39.
#[test]
fn statuses_that_a_rule_asks_for_together_are_one_fault_and_one_stay() {
    let mut patient = asks_any_of(&[TriState::False, TriState::Unknown], &[cordon(), notify()]);
    patient.min_duration = secs(600);
    patient.steps[1].timeout = secs(86_400);
    patient.steps[1].approval = ApprovalMode::Manual;
    let mut world = World::with_rules(&[patient]);
    let mut ids = BTreeSet::new();
    // As a node that goes away: its condition is Unknown, and False when it is heard again.
    for (status, reason) in [("Unknown", "Silent"), ("False", "NotReady"), ("Unknown", "Silent"), ("False", "Other")] {
        write(&mut world, "n1", status, reason);
        assert_eq!(reasons(&world.pass()), [BlockReason::MinDurationNotReached], "{status}");
        ids.extend(world.plan().nodes["n1"].cluster_faults.iter().map(|fault| fault.id.clone()));
        world.tick(secs(149));
    }
    assert_eq!(ids.len(), 1, "{ids:?}");
    world.pass_after(5);
    assert_eq!(world.did(), ["cordon"], "the times of all four count");
    // Nor is that a cure, as long as the rule asks for it.
    for status in ["Unknown", "False", "Unknown"] {
        write(&mut world, "n1", status, "r");
        world.run(secs(60));
        let states: Vec<_> = world.only_remediation().faults.iter().map(|fault| fault.state).collect();
        assert_eq!(states, [Resolution::Open], "{status}: {:?}", world.only_remediation());
    }
    write(&mut world, "n1", "True", "r");
    world.run(secs(60));
    assert_eq!((world.phase(), world.did().last()), (Phase::Succeeded, Some(&"uncordon")));
}

#[test]
fn statuses_that_rules_ask_for_apart_are_faults_of_their_own() {
    let apart = |status, name: &str| Rule { name: name.to_owned(), ..asks_any_of(&[status], &[notify()]) };
    let mut rules = [apart(TriState::False, "no"), apart(TriState::Unknown, "perhaps")];
    for rule in &mut rules {
        rule.min_duration = secs(60);
    }
    let mut world = World::with_rules(&rules);
    let mut ids = BTreeSet::new();
    for status in ["False", "Unknown", "False", "Unknown"] {
        write(&mut world, "n1", status, "r");
        ids.insert(world.plan().nodes["n1"].cluster_faults[0].id.clone());
        world.pass();
        world.tick(secs(50));
    }
    assert_eq!((ids.len(), world.did()), (2, vec![]));
}

#[test]
fn what_another_policy_asks_for_beside_it_is_no_cure_of_what_stands() {
    let steps = [cordon(), asked(notify())];
    let mut world = World::with_rules(&[asks("a", &["A"], &steps), asks("b", &["B"], &[notify()])]);
    write(&mut world, "n1", "True", "A");
    world.run(secs(60));
    let mut trial = policy("trial", &[asks_any_of(&[TriState::True, TriState::Unknown], &[notify()])]);
    (trial.mode, trial.priority) = (Mode::DryRun, -1);
    world.policies.push(trial);
    world.run(secs(60));
    let remediation = world.remediations.values().find(|remediation| remediation.mode == Mode::Enforce).unwrap();
    let mut states = remediation.faults.iter().map(|fault| fault.state);
    assert!(states.all(|state| state != Resolution::Resolved), "it still stands: {remediation:?}");
}

fn set(world: &mut World, is_there: bool) {
    write(world, "n1", if is_there { "True" } else { "False" }, "r");
}

#[test]
fn one_that_goes_and_comes_again_is_due_when_it_was_there_for_long_enough_and_for_most_of_the_time() {
    let alone = |there, away, turns| told_after(patient(secs(600)), [there, away], turns, set);
    assert_eq!(alone(180, 60, 5), None, "a few gaps begin it anew");
    assert!(alone(180, 60, 20).is_some_and(|turn| turn >= 5));
    assert_eq!(alone(100, 140, 30), None, "away for most of the time");
    assert_eq!(alone(150, 310, 30), None, "away for too long at once");
}

#[test]
fn on_a_node_that_flaps_the_gaps_of_a_condition_do_not_begin_it_anew() {
    let toggle = |world: &mut World, is_there: bool| {
        set(world, is_there);
        // Ready goes with it, and once more for itself: so the node flaps before the condition does.
        let view = &mut world.node("n1").view;
        view.ready = if view.ready == TriState::True { TriState::False } else { TriState::True };
    };
    let turn = told_after(patient(secs(600)), [180, 60], 20, toggle);
    assert!(turn.is_some_and(|turn| (2..5).contains(&turn)), "{turn:?}");
}

/// Told in kubernetes-sigs/node-readiness-controller #357.
#[test]
fn without_a_probe_that_reports_and_may_act_the_node_is_not_touched() {
    type Case = (&'static str, fn(&mut World), &'static [&'static str], &'static [BlockReason]);
    let cases: [Case; 5] = [
        ("it may not act", |w| w.heartbeat("n1").actions_enabled = false, &["notify"], &[]),
        ("it is silent", |w| w.heartbeat("n1").arrived = secs(30), &[], &[BlockReason::ProbeNotReporting]),
        (
            "a report from before the controller started may be of any age",
            |w| w.heartbeat("n1").age_known = false,
            &[],
            &[BlockReason::StaleEvidence],
        ),
        (
            "it reports another machine",
            |w| w.node("n1").report.node_uid = Some("another".into()),
            &[],
            &[BlockReason::NodeReplaced],
        ),
        (
            "that nothing is heard of the kubelet takes back nothing that another tool has said",
            |w| w.node("n1").view.ready = TriState::Unknown,
            &["cordon"],
            &[],
        ),
    ];
    for (name, change, expected, held) in cases {
        let mut world = World::with_rules(&[asks("r", &[], &[cordon(), notify()])]);
        write(&mut world, "n1", "True", "r");
        change(&mut world);
        let plan = world.plan();
        let acts = acts(&plan);
        let did: Vec<&str> = acts.iter().map(|(_, what)| what.as_str()).collect();
        assert_eq!((&did[..], &reasons(&plan)[..]), (expected, held), "{name}");
    }
}

#[test]
fn two_conditions_of_one_type_are_neither_a_fault_nor_a_cure() {
    let mut world = World::with_rules(&[asks("r", &[], &[cordon(), notify()])]);
    let twice = |world: &mut World| {
        let one = |status| ExternalCondition::new(DEADLOCK, status, "r", "m").unwrap();
        world.node("n1").view.conditions = nrh_core::external_condition::sorted([one("True"), one("False")]);
    };
    twice(&mut world);
    assert_eq!((world.cluster_faults(), acts(&world.plan()).len()), (vec![], 0));
    write(&mut world, "n1", "True", "r");
    world.pass();
    twice(&mut world);
    world.pass_after(5);
    assert_eq!(world.only_remediation().faults[0].state, Resolution::Open);
    write(&mut world, "n1", "False", "r");
    world.run(secs(60));
    assert_eq!(world.only_remediation().faults[0].state, Resolution::Resolved);
}

#[test]
fn a_reason_outside_the_list_is_a_cure_and_one_that_only_another_rule_names_stops_this_one() {
    let mut world = World::with_rules(&[asks("r", &["DockerHung"], &[cordon(), notify()])]);
    write(&mut world, "n1", "True", "DockerHung");
    world.pass();
    write(&mut world, "n1", "True", "Other");
    world.run(secs(60));
    assert_eq!(world.only_remediation().faults[0].state, Resolution::Resolved, "{:?}", world.only_remediation());
    // A second rule keeps the fault there: the first one's next step is not taken for its reason.
    let rules = [asks("r", &["DockerHung"], &[cordon(), notify()]), asks("s", &["Other"], &[notify()])];
    let mut world = World::with_rules(&rules);
    write(&mut world, "n1", "True", "DockerHung");
    world.pass();
    assert_eq!(world.did(), ["cordon"]);
    write(&mut world, "n1", "True", "Other");
    world.pass_after(5);
    let plan = world.pass_after(5);
    assert_eq!((world.did(), reasons(&plan)), (vec!["cordon"], vec![BlockReason::NotConfirmed]));
}

#[test]
fn another_machine_of_the_same_name_begins_anew() {
    let mut world = patient(secs(60));
    write(&mut world, "n1", "True", "r");
    world.tick(secs(300));
    let node = world.node("n1");
    node.view.uid = "uid-2".into();
    node.report.node_uid = Some("uid-2".into());
    assert_eq!(reasons(&world.plan()), [BlockReason::MinDurationNotReached]);
}

/// Ten nodes, of which so many have the condition.
fn fleet(rules: &[Rule], sick: usize) -> World {
    let names = names(10);
    let mut world = World::new(&[policy("p", rules)], &names);
    for name in names.iter().take(sick) {
        write(&mut world, name, "True", "r");
    }
    world
}

#[test]
fn nodes_with_it_are_unhealthy_and_many_at_once_are_a_storm() {
    let rules = [asks("r", &[], &[cordon(), notify()])];
    let mut few = fleet(&rules, 4);
    few.policies[0].limits.max_unhealthy = Amount::Count(3);
    let plan = few.plan();
    assert_eq!(plan.policies["p"].unhealthy, 4);
    assert!(acts(&plan).is_empty() && reasons(&plan).iter().all(|why| *why == BlockReason::MaxUnhealthyExceeded));
    let many = fleet(&rules, 6);
    let plan = many.plan();
    assert!(acts(&plan).is_empty() && reasons(&plan).iter().all(|why| *why == BlockReason::Storm), "{plan:?}");
    // A rule that only tells keeps nobody from resolving something else, as with all that may stand for days.
    let told = fleet(&[asks("r", &[], &[notify()])], 6);
    assert_eq!(told.plan().policies["p"].unhealthy, 0);
}

/// What a policy is refused for (`ActionType::is_for_node_conditions`) would never be done.
#[test]
fn no_step_that_the_node_has_to_check_once_more_is_ever_taken() {
    let restart = |daemon| restart(daemon, Restart { skip_safety_check: true, ..Restart::default() });
    let steps = [
        cont(),
        delete_pod(),
        clean_up(),
        step(Action::ThawCgroup(ThawCgroup)),
        restart(Daemon::Kubelet),
        restart(Daemon::Runtime),
        reboot(),
        mark_for_reboot(),
    ];
    let kinds: BTreeSet<ActionType> = steps.iter().map(|step| step.action.kind()).collect();
    let expected = ActionType::ALL.into_iter().filter(|kind| !kind.traits().for_node_conditions);
    assert_eq!(kinds, expected.collect());
    for one in steps {
        let kind = one.action.kind();
        let mut world = World::with_rules(&[asks("r", &[], &[cordon(), one, notify()])]);
        write(&mut world, "n1", "True", "r");
        world.run(secs(7200));
        let did = world.did();
        assert!(!did.is_empty() && did.iter().all(|did| *did == "notify"), "{kind:?}: {did:?}");
    }
}

#[test]
fn what_hangs_on_the_node_is_resolved_beside_it() {
    let rules = [asks("r", &[], &[notify()]), rule("hung", &[FaultType::HungContainer], &[cont()])];
    let mut world = World::with_rules(&rules).ill(hung("log"), ClearedBy::Cont);
    write(&mut world, "n1", "True", "r");
    world.run(secs(120));
    assert!(world.did().contains(&JOB_CONT) && world.did().contains(&"notify"), "{:?}", world.did());
}
