//! Policies, budgets, slots, dry runs and history.

use nrh_core::command::{OutcomeReason, OutcomeState};
use nrh_core::engine::plan;
use nrh_core::fault::{Fault, FaultType, Severity};
use nrh_core::matching::{Match, MatchContext};
use nrh_core::plan::{BlockReason, Effect, Plan, SelfHealing};
use nrh_core::policy::{Amount, FaultLimit, Mode, Namespaces, NodeLimit, TopologyLimit};
use nrh_core::remediation::{Phase, StepState};
use nrh_core::snapshot::TriState;

use crate::samples::{clean_up, cont, cordon, fault, hung, kill, names, notify, plugin, policy, rule};
use crate::world::{Chaos, ClearedBy, JOB_CONT, World, acts, blocked_for, reasons, secs, stored, written};

#[test]
fn one_policy_repairs_a_node_and_overlaps_are_told() {
    let rules = [rule("r", &FaultType::ALL, &[cont()])];
    let (mut high, low) = (policy("z-high", &rules), policy("a-low", &rules));
    high.priority = 10;
    let mut world = World::new(&[low, high], &["n1"]).ill(hung("log"), ClearedBy::Cont);
    let plan = world.plan();
    assert_eq!(acts(&plan).len(), 1);
    assert_eq!(plan.nodes["n1"].policy.as_deref(), Some("z-high"));
    assert_eq!(plan.policies["a-low"].overlaps, ["z-high"]);
    assert_eq!(plan.policies["z-high"].overlaps, ["a-low"]);
    world.policies[1].priority = 0;
    assert_eq!(world.plan().nodes["n1"].policy.as_deref(), Some("a-low"), "then the name");
}

#[test]
fn a_rule_may_be_for_the_pods_of_some_namespaces() {
    let about = |only: &[&str], except: &[&str]| {
        let mut rule = rule("r", &[FaultType::HungContainer, FaultType::DiskFull], &[notify()]);
        let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        rule.namespaces = Namespaces { only: all(only), except: all(except) };
        rule
    };
    // The pod of the first is in kube-system, the other is about none.
    let (of_pod, of_none) = (hung("log"), fault(FaultType::DiskFull, "d"));
    for (only, except, expected) in [
        (&[][..], &[][..], (true, true)),
        (&["kube-system"], &[], (true, false)),
        (&["kube-*"], &[], (true, false)),
        (&["kube"], &[], (false, false)),
        (&["shop", "kube-system"], &["kube-*"], (false, false)),
        (&[], &["kube-system"], (false, true)),
        (&[], &["shop-*"], (true, true)),
    ] {
        let rule = about(only, except);
        let is_for = |fault| rule.matches(fault, &MatchContext::default()) == Match::Yes;
        assert_eq!((is_for(&of_pod), is_for(&of_none)), expected, "{only:?} {except:?}");
    }
    let world = World::new(&[policy("p", &[about(&["shop"], &[])])], &["n1"]).ill(of_pod, ClearedBy::Cont);
    let plan = world.plan();
    assert_eq!(reasons(&plan), [BlockReason::NoRule]);
    assert!(plan.blocked[0].message.contains("of kube-system/log"), "{}", plan.blocked[0].message);
}

/// Whose crash loops nobody asked to have resolved must not keep others from being resolved.
#[test]
fn faults_of_namespaces_that_no_rule_is_for_are_not_counted_as_unhealthy() {
    let resolved = |namespace: &str| {
        let mut rule = rule("r", &[FaultType::HungContainer], &[cont()]);
        rule.namespaces = Namespaces { only: vec![namespace.to_owned()], except: Vec::new() };
        let mut policy = policy("p", &[rule, self::rule("plugin", &[FaultType::NetworkPluginHung], &[cont()])]);
        policy.limits.max_unhealthy = Amount::Count(1);
        let mut world = World::new(&[policy], &["n1", "n2", "n3"]).ill(plugin(), ClearedBy::Cont);
        world.inject_all(&["n2", "n3"], &hung("log"), ClearedBy::Cont);
        let plan = world.plan();
        let status_view = &plan.policies["p"];
        (status_view.unhealthy, status_view.blocked.as_ref().map(|(reason, _)| *reason))
    };
    assert_eq!(resolved("shop"), (1, None));
    assert_eq!(resolved("kube-system"), (3, Some(BlockReason::MaxUnhealthyExceeded)));
}

#[test]
fn policies_for_different_faults_share_a_node_one_after_the_other() {
    let net = policy("net", &[rule("r", &[FaultType::NetworkPluginHung], &[cont()])]);
    let tasks = policy("tasks", &[rule("r", &[FaultType::HungContainer], &[cont()])]);
    let mut world = World::new(&[net, tasks], &["n1"]).ill(hung("log"), ClearedBy::Cont);
    world.inject("n1", plugin(), ClearedBy::Cont);
    let plan = world.plan();
    assert_eq!((acts(&plan).len(), reasons(&plan)), (1, vec![BlockReason::LowerUrgency]));
    assert_eq!(plan.nodes["n1"].policy.as_deref(), Some("net"));
    // Each fault has its own: the one that goes first has no rule for hung containers.
    let remedies = plan.nodes["n1"].assigned_rules.values().map(|r| (r.policy.as_str(), r.rule.as_deref()));
    assert_eq!(remedies.collect::<Vec<_>>(), [("tasks", Some("r")), ("net", Some("r"))]);
    for stop in [0, 1, 2] {
        let mut world = world.clone();
        match stop {
            0 => world.policies[0].pause_requests.push("release".into()),
            1 => world.policies[0].mode = Mode::DryRun,
            _ => world.policies[0].limits.max_in_flight = Amount::Count(0),
        }
        let plan = world.plan();
        assert_eq!(acts(&plan).len(), 1, "a policy that does nothing holds up nobody: {:?}", plan.blocked);
        assert_eq!(plan.nodes["n1"].policy.as_deref(), Some("tasks"));
    }
    world.run(secs(600));
    assert_eq!(world.remediations.len(), 2);
    assert!(world.remediations.values().all(|remediation| remediation.phase == Phase::Succeeded));
}

#[test]
fn a_fault_that_no_policy_has_a_rule_for_is_for_none_of_them() {
    let net = policy("net", &[rule("r", &[FaultType::NetworkPluginHung], &[cont()])]);
    let tasks = policy("tasks", &[rule("r", &[FaultType::HungContainer], &[cont()])]);
    let mut world = World::new(&[net, tasks], &["n1"]).ill(hung("log"), None).passed(1);
    world.inject("n1", fault(FaultType::LeakedShim, "x"), None);
    let plan = world.pass();
    assert_eq!(world.only_remediation().policy, "tasks");
    let [blocked] = &plan.blocked[..] else { panic!("{:?}", plan.blocked) };
    assert_eq!(blocked.reason, BlockReason::NoRule, "{}", blocked.message);
}

#[test]
fn what_is_only_told_does_not_keep_another_fault_from_being_resolved() {
    let tell = policy("tell", &[rule("r", &[FaultType::KubeletDown], &[notify()])]);
    let resolve = policy("heal", &[rule("r", &[FaultType::OrphanContainer], &[clean_up()])]);
    let mut world = World::new(&[tell, resolve], &["n1"]);
    let down = Fault { severity: Severity::Critical, ..fault(FaultType::KubeletDown, "kubelet") };
    world.inject("n1", down, None);
    world.inject("n1", fault(FaultType::OrphanContainer, "log"), ClearedBy::CleanupOrphans);
    let began = world.now;
    while world.acts.is_empty() {
        world.pass();
        world.tick(secs(1));
        assert!(world.now.duration_since(began).as_secs() < 10, "{:?}", world.did());
    }
    assert_eq!(world.did(), ["notify", "job CleanupOrphans"]);
}

/// Six nodes in three zones, one of which has no name.
pub fn zones(most: Amount) -> World {
    let nodes = ["a1", "a2", "a3", "b1", "c1", "c2"];
    let mut world = World::under(&[cont()], &nodes);
    world.policies[0].limits.per_topology = vec![TopologyLimit { key: "zone".into(), max_in_flight: most }];
    for (name, node) in world.nodes.iter_mut().filter(|(name, _)| !name.starts_with('c')) {
        node.view.labels.insert("zone".into(), name[..1].into());
    }
    world
}

/// The same, all of them sick, and with no other limit.
fn in_zones(most: Amount) -> World {
    let mut world = zones(most);
    world.policies[0].limits.max_in_flight = Amount::Count(6);
    world.policies[0].limits.storm.min_nodes = Amount::Count(100);
    world.inject_all(&["a1", "a2", "a3", "b1", "c1", "c2"], &hung("log"), ClearedBy::Cont);
    world
}

fn begun(world: &World) -> Vec<String> {
    acts(&world.plan()).into_iter().map(|(node, _)| node).collect()
}

#[test]
fn each_zone_has_a_budget_of_its_own() {
    let mut world = in_zones(Amount::Count(1));
    assert_eq!(begun(&world), ["a1", "b1", "c1"]);
    let plan = world.pass();
    assert_eq!(blocked_for(&plan, BlockReason::TopologyLimit), ["a2", "a3", "c2"]);
    let blocked = plan.blocked;
    assert!(blocked.iter().any(|h| h.message.contains("has 1 of 1 remediations on nodes with zone=a")), "{blocked:#?}");
    assert!(blocked.iter().any(|h| h.message.contains("on nodes without label zone")), "{blocked:#?}");
    world.run(secs(600));
    assert!(world.nodes.values().all(|node| node.sick.is_empty()), "the others follow");

    assert_eq!(begun(&in_zones(Amount::Percent(67))), ["a1", "a2", "b1", "c1"], "two of three, one of one, one of two");
    assert!(begun(&in_zones(Amount::Percent(0))).is_empty());
}

/// Three nodes with an orphan, one with a hung container; of orphans `most` at a time.
fn with_orphans(most: u32) -> World {
    let mut policy = policy("p", &[rule("r", &FaultType::ALL, &[cont(), clean_up()])]);
    let faults = [FaultType::OrphanContainer, FaultType::LeakedShim].into();
    policy.limits.per_fault = vec![FaultLimit { faults, max_in_flight: Amount::Count(most) }];
    policy.limits.max_in_flight = Amount::Count(6);
    policy.limits.storm.min_nodes = Amount::Count(100);
    let mut world = World::new(&[policy], &["a1", "a2", "a3", "b1"]);
    world.inject_all(&["a1", "a2", "a3"], &fault(FaultType::OrphanContainer, "x"), ClearedBy::CleanupOrphans);
    world.inject("b1", hung("log"), ClearedBy::Cont);
    world
}

#[test]
fn some_kinds_of_fault_have_a_budget_of_their_own() {
    for (most, expected) in [(0, vec!["b1"]), (1, vec!["a1", "b1"]), (2, vec!["a1", "a2", "b1"])] {
        assert_eq!(begun(&with_orphans(most)), expected, "{most}");
    }
}

#[test]
fn a_fault_of_a_kind_that_is_at_its_limit_joins_no_remediation_but_the_other_faults_are_resolved() {
    let mut world = with_orphans(1);
    // Another of them on the node that has one is the same remediation's.
    world.inject("a1", fault(FaultType::LeakedShim, "y"), ClearedBy::CleanupOrphans);
    world.pass();
    world.inject("b1", fault(FaultType::OrphanContainer, "z"), ClearedBy::CleanupOrphans);
    assert!(blocked_for(&world.pass(), BlockReason::FaultLimit).contains(&"b1"));
    let kinds = |world: &World, node: &str| {
        let open = world.remediations.values().find(|remediation| remediation.node == node && remediation.is_open());
        open.map(|remediation| remediation.kinds().len())
    };
    assert_eq!((kinds(&world, "a1"), kinds(&world, "b1")), (Some(2), Some(1)));
    world.run(secs(900));
    assert!(world.nodes.values().all(|node| node.sick.is_empty()), "each has its turn: {:?}", world.did());
}

/// The next leader may not see that a fault has joined: it knows by the slot.
#[test]
fn a_fault_with_a_limit_of_its_own_joins_when_its_kind_is_noted_in_the_slot_and_not_before() {
    let mut world = with_orphans(1);
    for node in ["a1", "a2", "a3"] {
        world.recover(node);
    }
    world.pass();
    world.inject("b1", fault(FaultType::OrphanContainer, "z"), ClearedBy::CleanupOrphans);
    let kinds = |world: &World| world.only_remediation().kinds();
    let noted = |world: &World| world.slots().values().next().unwrap().kinds.clone().unwrap();
    let blocked = world.pass().blocked;
    assert!(blocked.iter().any(|h| h.message.contains("noted in the ledger before it is dealt with")), "{blocked:#?}");
    assert_eq!((kinds(&world).len(), noted(&world).len()), (1, 2));
    // Whoever leads now, and sees the remediation as it is: the one place is taken.
    let mut other = world.clone();
    other.inject("a1", fault(FaultType::OrphanContainer, "x"), ClearedBy::CleanupOrphans);
    assert!(blocked_for(&other.plan(), BlockReason::FaultLimit).contains(&"a1"));
    world.pass();
    assert_eq!(kinds(&world).len(), 2);
}

/// One pass, then the plan of a leader that sees of it only the ledger, and for which these nodes are gone.
pub fn plan_of_next_leader(world: &mut World, gone: &[&str]) -> Plan {
    let mut snapshot = world.snapshot();
    world.pass();
    snapshot.ledger.clone_from(&world.ledger);
    for node in gone {
        snapshot.nodes.remove(*node);
        snapshot.reports.remove(*node);
    }
    plan(&snapshot, &world.settings)
}

#[test]
fn a_remediation_that_nobody_can_see_may_be_for_any_kind() {
    let plan = plan_of_next_leader(&mut with_orphans(1), &["a1", "b1"]);
    assert_eq!(acts(&plan), [], "begun beside what nobody can see");
}

#[test]
fn a_remediation_whose_node_is_gone_counts_in_every_zone() {
    let plan = plan_of_next_leader(&mut in_zones(Amount::Count(1)), &["b1"]);
    assert_eq!(acts(&plan), [], "nor is one made again that holds a slot already");
    let of_zones = blocked_for(&plan, BlockReason::TopologyLimit);
    assert!(of_zones.contains(&"a1") && of_zones.contains(&"c1"), "{:?}", plan.blocked);
}

/// Told in openshift/machine-api-operator #902.
#[test]
fn unhealthy_counts_what_the_design_says() {
    let rules = [rule("r", &[FaultType::HungContainer], &[cont()])];
    let mut world = World::new(&[policy("p", &rules)], &["a", "b", "c", "d", "e", "f"]);
    world.policies[0].limits.max_unhealthy = Amount::Percent(50);
    world.inject("a", hung("x"), ClearedBy::Cont);
    world.node("b").view.ready = TriState::Unknown;
    world.inject("c", plugin(), ClearedBy::Cont); // no rule for it: not counted
    world.node("d").report.heartbeat = None; // never reported: unknown
    world.heartbeat("e").arrived = secs(60); // silent
    world.node("f").view.deleting = true; // not in the denominator
    let told = &world.plan().policies["p"];
    assert_eq!((told.selected, told.unhealthy, told.unknown, told.max_unhealthy), (5, 3, 1, 2));
    assert_eq!(told.blocked.as_ref().unwrap().0, BlockReason::MaxUnhealthyExceeded);
    assert!(acts(&world.plan()).is_empty());
}

#[test]
fn a_dry_run_decides_the_same_records_it_once_and_touches_nothing() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cordon(), cont()]);
    world.policies[0].mode = Mode::DryRun;
    let plan = world.pass();
    assert!(acts(&plan).is_empty());
    assert_eq!(reasons(&plan), [BlockReason::DryRun]);
    let remediation = world.only_remediation().clone();
    assert_eq!((remediation.phase, remediation.steps[0].state), (Phase::Simulated, StepState::Simulated));
    assert!(remediation.cleanup.is_empty() && !remediation.is_open());
    assert!(world.slots().is_empty());
    for _ in 0..50 {
        let plan = world.pass_after(60);
        assert!(plan.effects.is_empty(), "{:?}", plan.effects);
        assert_eq!(reasons(&plan), [BlockReason::DryRun]);
    }
    world.policies[0].mode = Mode::Enforce;
    assert_eq!(acts(&world.plan()).len(), 1, "a simulation stands in no one's way");
}

#[test]
fn a_dry_run_keeps_to_its_budgets() {
    let mut world = World::under(&[cont()], &["a", "b"]);
    world.policies[0].mode = Mode::DryRun;
    world.policies[0].limits.max_in_flight = Amount::Count(1);
    world.inject_all(&["a", "b"], &hung("x"), ClearedBy::Cont);
    world.pass();
    assert_eq!(world.remediations.len(), 1);
    assert!(reasons(&world.plan()).contains(&BlockReason::MaxInFlightReached));
    world.pass_after(181);
    assert_eq!(world.remediations.len(), 2, "the virtual slot is given back when the step would be over");
}

#[test]
fn history_is_kept_within_limit_and_time() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
    world.policies[0].history.limit = 1;
    world.run(secs(300));
    let first = world.only_remediation().name.clone();
    world.inject("n1", hung("other"), ClearedBy::Cont);
    world.run(secs(300));
    assert_eq!(world.remediations.len(), 2, "the last hour is remembered whatever the limit");
    world.tick(secs(3_600));
    assert_eq!(world.plan().effects, [Effect::DeleteRemediation { name: first }]);
    world.policies.clear();
    world.pass();
    assert_eq!(world.remediations.len(), 2, "history of a policy that is gone has the default limits");
    world.pass_after(604_800);
    assert!(world.remediations.is_empty());
}

#[test]
fn after_a_limit_is_lowered_the_oldest_go_first() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]).ran(300);
    let record = world.only_remediation().clone();
    for number in 0..150 {
        let mut older = record.clone();
        older.name = format!("old-{number:03}");
        older.finished_at = record.finished_at.map(|at| at - secs(1_000 - number));
        world.remediations.insert(older.name.clone(), older);
    }
    let mut of_another = world.remediations["old-000"].clone();
    (of_another.name, of_another.node) = ("another".into(), "n2".into());
    world.remediations.insert("another".into(), of_another);
    world.tick(secs(7_200));
    world.policies[0].history.limit = 11;
    // The only record of the other node stays, as old as it is.
    let expected = (0..141).map(|number| Effect::DeleteRemediation { name: format!("old-{number:03}") });
    assert_eq!(world.plan().effects, expected.collect::<Vec<_>>());
}

/// Told in NVIDIA/NVSentinel #1451.
#[test]
fn names_are_never_used_again() {
    let mut world = World::sick(plugin(), None, &[cont()]).ran(900);
    world.tick(secs(3_600));
    world.run(secs(900));
    let names: Vec<String> = world.remediations.keys().cloned().collect();
    assert_eq!(names.len(), 2);
    assert!(names[0].ends_with("-1") && names[1].ends_with("-2"), "{names:?}");
    world.tick(secs(3_600));
    world.remediations.remove(&names[0]);
    let plan = world.plan();
    let opened = &written(&plan)[0].name;
    assert!(opened.ends_with("-3"), "the node has claimed the operations of the first: {opened:?}");

    world.policies[0].suspend = true;
    world.policies[0].history.limit = 0;
    world.run(secs(60));
    // The newest one stays while its fault is there: its name must not come again.
    assert_eq!(world.remediations.len(), 1);
}

#[test]
fn a_node_whose_remediation_does_not_show_gets_no_second_one() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]).passed(1);
    world.remediations.clear();
    world.node("n1").sick.clear();
    world.inject("n1", hung("other"), ClearedBy::Cont);
    let plan = world.plan();
    assert_eq!((plan.effects.len(), reasons(&plan)), (0, vec![BlockReason::InProgress]), "{:?}", plan.blocked);
}

#[test]
fn a_lost_ledger_is_rebuilt_before_anything_new_starts() {
    let mut world = World::under(&[cont()], &["a", "b"]);
    world.inject("a", hung("x"), ClearedBy::Cont);
    world.pass();
    world.inject("b", hung("x"), ClearedBy::Cont);
    world.ledger = None;
    assert_eq!(acts(&world.plan()), []);
    world.settings.rebuild_ledger = true;
    let plan = world.pass();
    assert_eq!(acts(&plan), []);
    assert_eq!(world.slots().len(), 1, "the open remediation has its slot again");
    world.pass();
    assert_eq!(world.slots().len(), 2);
}

#[test]
fn nothing_is_begun_while_it_is_uncertain_whether_the_admission_policies_are_in_force_and_what_was_done_is_still_put_back()
 {
    let steps = [cordon(), cont()];
    let mut world = World::under(&steps, &["a", "b"]);
    world.inject("a", hung("x"), ClearedBy::Cont);
    world.pass();
    assert_eq!(world.did(), ["cordon"]);
    world.admission_not_enforced = Some("nrh-jobs is missing".to_owned());
    world.inject("b", hung("x"), ClearedBy::Cont);
    let plan = world.pass();
    assert_eq!(acts(&plan), []);
    assert_eq!(reasons(&plan), [BlockReason::AdmissionNotEnforced; 2], "{:?}", plan.blocked);
    let blocked = plan.policies["p"].blocked.as_ref().unwrap();
    assert_eq!((blocked.0, blocked.1.as_str()), (BlockReason::AdmissionNotEnforced, "nrh-jobs is missing"));
    world.run(secs(60));
    assert_eq!(world.did(), ["cordon"], "the open remediation waits");
    world.admission_not_enforced = None;
    world.run(secs(600));
    assert!(world.nodes.values().all(|node| node.sick.is_empty()), "{:?}", world.did());

    let mut world = World::under(&steps, &["a"]);
    world.inject("a", hung("x"), ClearedBy::Cont);
    world.pass();
    world.admission_not_enforced = Some("nrh-jobs is missing".to_owned());
    world.node("a").sick.clear();
    world.run(secs(300));
    assert_eq!(world.did(), ["cordon", "uncordon"]);
}

#[test]
fn a_remediation_that_comes_after_its_slot_was_given_back_waits_for_one_or_ends() {
    for has_room in [true, false] {
        let mut world = World::under(&[cont()], &["a", "b"]);
        world.policies[0].limits.max_in_flight = Amount::Count(1);
        world.inject("b", hung("x"), ClearedBy::Cont);
        let late =
            world.plan().effects.into_iter().find(|effect| matches!(effect, Effect::WriteRemediation(_))).unwrap();
        if !has_room {
            world.inject("a", hung("x"), ClearedBy::Cont);
            world.pass();
        }
        assert!(world.apply(&late, true));
        let plan = world.pass();
        let done: Vec<String> = acts(&plan).into_iter().map(|(node, _)| node).filter(|node| node == "b").collect();
        assert_eq!(done, [""; 0], "no action is executed before its slot is stored");
        assert_eq!(world.slots().len(), 1);
        let remediation = world.remediations.values().find(|remediation| remediation.node == "b").unwrap();
        if has_room {
            assert_eq!(reasons(&plan), [BlockReason::LedgerUnavailable]);
            assert_eq!(acts(&world.plan()).len(), 1);
        } else {
            assert_eq!(remediation.phase, Phase::Cancelled);
            assert!(remediation.message.contains("its slot was released"), "{}", remediation.message);
        }
        world.run(secs(600));
        assert!(world.nodes["b"].sick.is_empty(), "healed all the same: {:?}", world.did());
        let of_b = world.remediations.values().filter(|remediation| remediation.node == "b").count();
        assert_eq!(of_b, if has_room { 1 } else { 2 });
    }
}

#[test]
fn a_remediation_that_was_begun_gets_its_slot_whatever_the_limit() {
    let mut world = World::under(&[cont()], &["a"]);
    world.inject("a", hung("x"), ClearedBy::Cont);
    world.pass();
    world.policies[0].limits.max_in_flight = Amount::Count(0);
    world.ledger = Some(nrh_core::snapshot::Ledger::default());
    world.pass();
    assert_eq!(world.slots().len(), 1);
    world.run_to(600, Phase::Succeeded);
}

#[test]
fn slots_without_a_visible_remediation_wait_for_the_cache() {
    let mut world = World::under(&[cont()], &["a", "b"]);
    world.policies[0].limits.max_in_flight = Amount::Count(1);
    world.inject("a", hung("x"), ClearedBy::Cont);
    world.pass();
    world.remediations.clear();
    world.recover("a");
    world.inject("b", hung("x"), ClearedBy::Cont);
    let plan = world.plan();
    assert_eq!(plan.effects, [], "its slot is not spent again while its remediation is only unseen");
    assert!(plan.next.unwrap() <= secs(60));
    world.tick(secs(61));
    assert_eq!(acts(&world.plan()).len(), 1);
}

#[test]
fn a_decision_from_a_stale_cache_meets_its_own_remediation() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
    let mut late = world.snapshot();
    world.pass();
    let name = world.only_remediation().name.clone();
    late.ledger.clone_from(&world.ledger);
    // Its slot is held from before, and that is said anew only now and then.
    for (after, said) in [(7, None), (40, Some(1))] {
        late.now = world.now.checked_add(secs(after)).unwrap();
        let plan = plan(&late, &world.settings);
        let created: Vec<_> = written(&plan).iter().map(|written| &written.name).collect();
        assert_eq!(created, [&name], "the API server refuses the second one");
        let slots = stored(&plan).map(|ledger| ledger.slots.len());
        assert_eq!(slots, said, "and its slot is not spent twice, after {after} s");
    }
}

#[test]
fn one_node_is_acted_on_only_so_often() {
    let mut few = policy("p", &[rule("r", &[FaultType::HungContainer], &[cont(), kill(true), notify()])]);
    few.limits.per_node = NodeLimit { max_actions: 3, window: secs(7200) };
    let mut world = World::new(&[few], &["n1", "n2"]);
    for number in 0..5 {
        world.inject("n1", hung(&format!("c{number}")), ClearedBy::Cont);
        world.run(secs(120));
    }
    let executed = world.did().iter().filter(|did| did.starts_with("job")).count();
    assert_eq!(executed, 3, "and nothing harsher in its place: {:?}", world.did());
    let blocked = world.plan().blocked;
    let said = "got 3 actions within 120 min";
    assert!(
        blocked.iter().any(|one| one.reason == BlockReason::NodeLimit && one.message.contains(said)),
        "{blocked:?}"
    );
    // Another node is another matter, and after the time this one is free again, longer than anything else is remembered.
    world.inject("n2", hung("c"), ClearedBy::Cont);
    world.run(secs(60));
    assert!(world.nodes["n2"].sick.is_empty());
    world.wait(8000 / 60, 60);
    assert!(world.nodes["n1"].sick.is_empty(), "{:?}", world.plan().blocked);
}

#[test]
fn an_act_that_failed_on_the_node_counts_as_one() {
    let mut world = World::alone(hung("log"), ClearedBy::Kill, &[cont(), kill(true)]).without_jobs();
    world.policies[0].limits.per_node = NodeLimit { max_actions: 1, window: secs(3600) };
    world.pass();
    world.jobs_end(OutcomeState::Failed, OutcomeReason::RequestFailed, "signalled, and still in state D");
    world.pass();
    assert_eq!(world.did(), [JOB_CONT], "what failed may have touched something");
    assert!(world.step(1).message.contains("limits.perNode"), "{:?}", world.only_remediation().steps);
    assert_eq!(world.plan().nodes["n1"].self_healing, SelfHealing::ManualActionRequired, "a person has to see it");
}

#[test]
fn for_one_limit_a_node_waits_once_not_once_for_each_fault() {
    let mut world = World::alone(hung("c0"), ClearedBy::Cont, &[cont()]);
    world.policies[0].limits.per_node = NodeLimit { max_actions: 1, window: secs(3600) };
    for number in 1..6 {
        world.inject("n1", hung(&format!("c{number}")), ClearedBy::Cont);
    }
    let began = world.now;
    world.run(secs(3000));
    let remediation = world.only_remediation();
    assert_eq!((remediation.phase, world.did().len()), (Phase::Failed, 1), "{remediation:?}");
    let took = remediation.finished_at.unwrap().duration_since(began).as_secs();
    assert!(took < 300, "its slot was held for {took} s");
}

#[test]
fn of_many_nodes_so_many_are_begun_in_one_pass_and_the_others_right_after() {
    let names = names(100);
    let mut wide = policy("p", &[rule("r", &[FaultType::HungContainer], &[cont()])]);
    wide.limits.max_in_flight = Amount::Count(90);
    wide.limits.storm.min_nodes = Amount::Count(1_000);
    let mut world = World::new(&[wide], &names);
    world.ceiling = 1_000;
    world.inject_all(&names, &hung("log"), ClearedBy::Cont);
    let first = world.plan();
    assert_eq!(acts(&first).len(), 64);
    let count = |reason| first.blocked.iter().filter(|blocked| blocked.reason == reason).count();
    assert_eq!(count(BlockReason::Queued), 36, "{:?}", reasons(&first));
    assert!(first.blocked.iter().all(|blocked| blocked.node.as_str() >= "n64"), "in order: {:?}", first.blocked);
    world.pass();
    let second = world.plan();
    assert_eq!(acts(&second).len(), 26, "as many as the limit leaves");
    assert!(!second.blocked.iter().any(|blocked| blocked.reason == BlockReason::Queued), "a limit that holds is named");
}

#[test]
fn a_slot_of_before_is_used_where_it_has_room_by_the_fleet_as_it_is() {
    let mut world = World::under(&[cont()], &["n1", "n2", "n3", "n4"]);
    world.policies[0].limits.max_in_flight = Amount::Percent(50);
    world.inject_all(&["n1", "n2"], &hung("log"), ClearedBy::Cont);
    // Both slots are stored, and only one of the remediations is.
    world.disturbed_pass(&Chaos { failing: [1].into(), ..Chaos::default() });
    assert_eq!((world.remediations.len(), world.slots().len()), (1, 2));
    world.nodes.remove("n4");
    world.pass();
    assert_eq!(world.remediations.len(), 1, "half of three is one");
    world.run(secs(600));
    assert!(world.remediations.len() == 2 && world.remediations.values().all(|one| one.phase == Phase::Succeeded));
}
