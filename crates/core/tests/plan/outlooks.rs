//! What is told of a policy: what its limits come to, how its windows stand, which storms hold.

use std::time::Duration;

use nrh_core::fault::FaultType;
use nrh_core::plan::{MAX_SHOWN, Plan, PolicyStatusView, TopologyLimitView};
use nrh_core::policy::{Amount, FaultLimit, NodeLimit, TopologyLimit};
use nrh_core::window::{Window, WindowType};

use crate::budgets::{plan_of_next_leader, zones};
use crate::samples::{cont, hung, names, plugin, policy, rule, today};
use crate::storms::{age, inject};
use crate::world::{ClearedBy, World, secs};

fn of(plan: &Plan) -> &PolicyStatusView {
    &plan.policies["p"]
}

fn rooms(plan: &Plan) -> Vec<(Option<String>, u32, u32, u32)> {
    let told = |room: &TopologyLimitView| (room.value.clone(), room.nodes, room.in_flight, room.max_in_flight);
    of(plan).limits.topologies.iter().map(told).collect()
}

#[test]
fn what_limits_come_to_is_told_for_each_value_those_with_the_least_room_first() {
    let mut world = zones(Amount::Percent(67));
    world.policies[0].limits.per_fault =
        vec![FaultLimit { faults: [FaultType::HungContainer].into(), max_in_flight: Amount::Percent(50) }];
    let a = || Some("a".to_owned());
    let b = || Some("b".to_owned());
    let told = world.plan();
    assert_eq!(rooms(&told), [(None, 2, 0, 1), (b(), 1, 0, 1), (a(), 3, 0, 2)]);
    let faults = &of(&told).limits.faults;
    assert_eq!((faults.len(), faults[0].in_flight, faults[0].max_in_flight), (1, 0, 3), "half of six");
    world.inject("b1", hung("log"), None);
    world.inject("a1", hung("log"), None);
    let unseen = plan_of_next_leader(&mut world, &["b1"]);
    let told = world.plan();
    assert_eq!(rooms(&told), [(b(), 1, 1, 1), (None, 2, 0, 1), (a(), 3, 1, 2)]);
    assert_eq!(of(&told).limits.faults[0].in_flight, 2);
    // One whose node is gone, and which nobody sees yet, counts in each of them, as where it is decided.
    assert_eq!(rooms(&unseen), [(None, 2, 1, 1), (a(), 3, 2, 2)]);
}

#[test]
fn of_many_values_those_with_the_least_room_are_told_and_the_rest_is_counted() {
    let names = names(40);
    let mut policy = policy("p", &[rule("r", &FaultType::ALL, &[cont()])]);
    policy.limits.per_topology = vec![TopologyLimit { key: "host".into(), max_in_flight: Amount::Count(1) }];
    let mut world = World::new(&[policy], &names);
    for (name, node) in &mut world.nodes {
        node.view.labels.insert("host".into(), name.clone());
    }
    world.inject("n33", hung("log"), None);
    world.pass();
    let plan = world.plan();
    let limits = &of(&plan).limits;
    assert_eq!((limits.topologies.len(), limits.topologies_left_out), (MAX_SHOWN, 24));
    let values: Vec<&str> = limits.topologies.iter().filter_map(|room| room.value.as_deref()).take(3).collect();
    assert_eq!(values, ["n33", "n00", "n01"]);
}

#[test]
fn a_node_that_was_acted_on_as_often_as_it_may_be_is_told_until_it_may_be_again() {
    let mut few = policy("p", &[rule("r", &[FaultType::HungContainer], &[cont()])]);
    few.limits.per_node = NodeLimit { max_actions: 2, window: secs(3600) };
    let mut world = World::new(&[few], &["n1", "n2"]);
    let began = world.now;
    world.inject("n1", hung("a"), ClearedBy::Cont);
    world.run(secs(60));
    assert!(of(&world.plan()).limits.spent.is_empty(), "one of two");
    world.inject("n1", hung("b"), ClearedBy::Cont);
    world.run(secs(60));
    let plan = world.plan();
    let [spent] = of(&plan).limits.spent.as_slice() else { panic!("{:?}", of(&plan)) };
    assert_eq!((spent.node.as_str(), spent.actions), ("n1", 2));
    let until = spent.until;
    assert!(until.duration_since(began).unsigned_abs() >= secs(3600), "{until}");
    let rest = Duration::try_from(until.duration_since(world.now)).unwrap();
    world.tick(rest.saturating_sub(secs(1)));
    assert_eq!(of(&world.plan()).limits.spent[0].until, until, "the same as long as it lasts");
    world.tick(secs(1));
    assert!(of(&world.plan()).limits.spent.is_empty());
}

#[test]
fn windows_are_told_in_the_order_of_the_policy_and_change_with_them_alone() {
    let mut world = World::under(&[cont()], &["n1"]);
    assert!(of(&world.plan()).windows.is_empty());
    let nightly = Window::new(WindowType::Allow, "0 2 * * *", secs(3600), "UTC", [].into()).unwrap();
    world.policies[0].windows = vec![nightly, today(WindowType::Deny)];
    let told = |world: &World| -> Vec<(bool, String)> {
        let until = |at: Option<jiff::Timestamp>| at.map(|at| at.to_string()).unwrap_or_default();
        of(&world.plan()).windows.iter().map(|window| (window.is_open, until(window.until))).collect()
    };
    let before = [(false, "2026-01-01T02:00:00Z".to_owned()), (true, "2026-01-02T00:00:00Z".to_owned())];
    assert_eq!(told(&world), before);
    world.tick(secs(3599));
    assert_eq!(told(&world), before, "nothing to write before it opens");
    world.tick(secs(1));
    assert_eq!(told(&world)[0], (true, "2026-01-01T03:00:00Z".to_owned()));
}

#[test]
fn each_storm_is_told_with_its_evidence_also_where_something_else_is_in_the_way() {
    let rules = [rule("r", &[FaultType::HungContainer, FaultType::NetworkPluginHung], &[cont()])];
    let mut world = World::new(&[policy("p", &rules)], &names(40));
    inject(&mut world, 0..12, None, hung);
    inject(&mut world, 0..15, None, |_| plugin());
    world.policies[0].windows = vec![today(WindowType::Deny)];
    let plan = world.plan();
    let (_, why) = of(&plan).blocked.clone().unwrap();
    assert!(why.contains("Deny window"), "{why}");
    let told: Vec<_> =
        of(&plan).storms.iter().map(|storm| (storm.fault, storm.max_concurrent, storm.nodes, storm.new)).collect();
    assert_eq!(told, [(FaultType::NetworkPluginHung, 0, 15, 15), (FaultType::HungContainer, 0, 12, 12)]);
    let evidence = &of(&plan).storms[1].evidence;
    assert!(evidence.contains("12 of 40 nodes have a new HungContainer within 10 min"), "{evidence}");
    age(&mut world, secs(3600));
    let later: Vec<_> = of(&world.plan()).storms.iter().map(|storm| (storm.max_concurrent, storm.new)).collect();
    assert_eq!(later, [(1, 0), (1, 0)], "no more come: one at a time");
}
