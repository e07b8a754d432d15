//! What has begun comes to its end, and what is owed is put back, whatever holds what is new.

use nrh_core::episode::{Episode, Phase};
use nrh_core::fault::FaultType;
use nrh_core::plan::HoldReason;
use nrh_core::policy::{Action, Amount};

use crate::samples::{cont, hung, policy, rule, step};
use crate::world::{Cure, World, acts, secs};

/// Forty nodes under one policy without narrow budgets. The first is sick and cordoned; on it no Job starts, so there is much to
/// take away.
fn begun() -> World {
    let mut policy = policy("p", &[rule("r", &[FaultType::HungContainer], &[step(Action::Cordon(None)), cont()])]);
    policy.limits.max_in_flight = Amount::Count(100);
    let names: Vec<String> = (0..40).map(|number| format!("n{number:02}")).collect();
    let mut world = World::new(&[policy], &names.iter().map(String::as_str).collect::<Vec<_>>());
    world.ceiling = 100;
    world.node("n00").job_starts = false;
    new_on(&mut world, "n00");
    world.pass();
    assert!(world.nodes["n00"].view.unschedulable);
    world
}

fn new_on(world: &mut World, node: &str) {
    let mut fault = hung("log");
    (fault.first_seen, fault.for_seconds) = (world.now, 60);
    world.infect(node, fault, Cure::Cont);
}

#[test]
fn recovery_uncordon_and_cleanup_go_on_in_a_storm_without_a_budget_and_under_a_pause() {
    type Change = fn(&mut World);
    let cases: [(Change, HoldReason); 5] = [
        (|world| (2..14).for_each(|number| new_on(world, &format!("n{number:02}"))), HoldReason::Storm),
        (|world| world.policies[0].limits.max_unhealthy = Amount::Count(0), HoldReason::TooManyUnhealthy),
        (|world| world.policies[0].limits.max_in_flight = Amount::Count(0), HoldReason::InFlightLimit),
        (|world| world.ceiling = 0, HoldReason::ClusterCeiling),
        (|world| world.policies[0].pause_requests.push("a release".into()), HoldReason::Paused),
    ];
    for (change, reason) in cases {
        let mut world = begun();
        change(&mut world);
        new_on(&mut world, "n01");
        let mut passes = 0;
        while world.nodes["n00"].view.unschedulable || world.episodes.values().any(Episode::is_open) {
            passes += 1;
            assert!(passes < 100, "{reason:?}: {:#?}", world.episodes);
            let plan = world.pass();
            assert!(acts(&plan).iter().all(|(node, _)| node == "n00"), "{reason:?}: something new: {:?}", acts(&plan));
            let held = plan.held.iter().find(|held| held.node == "n01").map(|held| held.reason);
            assert_eq!(held, Some(reason), "{:?}", plan.held);
            for node in world.nodes.values_mut() {
                node.sick.iter_mut().for_each(|sick| sick.fault.for_seconds += 5);
            }
            world.tick(secs(5));
        }
        assert_eq!(world.only_episode().phase, Phase::Succeeded, "{reason:?}");
        assert_eq!(world.did(), ["cordon", "job ReleaseCont", "order ReleaseCont", "uncordon"], "{reason:?}");
        let node = &world.nodes["n00"];
        assert!(world.jobs.is_empty() && node.order.is_none() && node.view.cordoned_by.is_none(), "{reason:?}");
    }
}
