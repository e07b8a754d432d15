//! What has begun comes to its end, and what is owed is put back, whatever holds what is new.

use nrh_core::fault::FaultType;
use nrh_core::plan::BlockReason;
use nrh_core::policy::Amount;
use nrh_core::remediation::{Phase, Remediation};

use crate::samples::{cont, cordon, hung, names, policy, rule};
use crate::world::{COMMAND_CONT, ClearedBy, JOB_CONT, World, acts, secs};

/// Forty nodes under one policy without narrow budgets. The first is sick and cordoned; on it no Job starts, so there is much to
/// take away.
fn begun() -> World {
    let mut policy = policy("p", &[rule("r", &[FaultType::HungContainer], &[cordon(), cont()])]);
    policy.limits.max_in_flight = Amount::Count(100);
    let names = names(40);
    let mut world = World::new(&[policy], &names);
    world.ceiling = 100;
    world.node("n00").job_starts = false;
    new_on(&mut world, "n00");
    world.pass();
    assert!(world.nodes["n00"].view.unschedulable);
    world
}

fn new_on(world: &mut World, node: &str) {
    let mut fault = hung("log");
    (fault.first_seen, fault.duration_seconds) = (world.now, 60);
    world.inject(node, fault, ClearedBy::Cont);
}

#[test]
fn recovery_uncordon_and_cleanup_go_on_in_a_storm_without_a_budget_and_under_a_pause() {
    type Change = fn(&mut World);
    let cases: [(Change, BlockReason); 5] = [
        (|world| (2..14).for_each(|number| new_on(world, &format!("n{number:02}"))), BlockReason::Storm),
        (|world| world.policies[0].limits.max_unhealthy = Amount::Count(0), BlockReason::MaxUnhealthyExceeded),
        (|world| world.policies[0].limits.max_in_flight = Amount::Count(0), BlockReason::MaxInFlightReached),
        (|world| world.ceiling = 0, BlockReason::ClusterLimit),
        (|world| world.policies[0].pause_requests.push("a release".into()), BlockReason::Paused),
    ];
    for (change, reason) in cases {
        let mut world = begun();
        change(&mut world);
        new_on(&mut world, "n01");
        let mut passes = 0;
        while world.nodes["n00"].view.unschedulable || world.remediations.values().any(Remediation::is_open) {
            passes += 1;
            assert!(passes < 100, "{reason:?}: {:#?}", world.remediations);
            let plan = world.pass();
            assert!(acts(&plan).iter().all(|(node, _)| node == "n00"), "{reason:?}: something new: {:?}", acts(&plan));
            let blocked = plan.blocked.iter().find(|blocked| blocked.node == "n01").map(|blocked| blocked.reason);
            assert_eq!(blocked, Some(reason), "{:?}", plan.blocked);
            for node in world.nodes.values_mut() {
                node.sick.iter_mut().for_each(|sick| sick.fault.duration_seconds += 5);
            }
            world.tick(secs(5));
        }
        assert_eq!(world.phase(), Phase::Succeeded, "{reason:?}");
        assert_eq!(world.did(), ["cordon", JOB_CONT, COMMAND_CONT, "uncordon"], "{reason:?}");
        let node = &world.nodes["n00"];
        assert!(world.jobs.is_empty() && node.command.is_none() && node.view.cordoned_by.is_none(), "{reason:?}");
    }
}
