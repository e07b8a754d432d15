//! What has begun comes to its end, and what is owed is put back, whatever holds what is new.

use nrh_core::plan::BlockReason;
use nrh_core::policy::Amount;
use nrh_core::remediation::{Phase, Remediation};

use crate::samples::{cont, cordon, hung};
use crate::storms::{age, fleet, inject};
use crate::world::{COMMAND_CONT, Change, ClearedBy, JOB_CONT, World, acts, secs};

/// Forty nodes under one policy without narrow budgets. The first is sick and cordoned; on it no Job starts, so there is much to
/// take away.
fn begun() -> World {
    let mut world = fleet(40);
    world.policies[0].rules[0].steps = vec![cordon(), cont()];
    world.node("n00").job_starts = false;
    inject(&mut world, 0..1, ClearedBy::Cont, hung);
    world.pass();
    assert!(world.nodes["n00"].view.unschedulable);
    world
}

#[test]
fn recovery_uncordon_and_cleanup_go_on_in_a_storm_without_a_budget_and_under_a_pause() {
    let cases: [(Change, BlockReason); 5] = [
        (|world| inject(world, 2..14, ClearedBy::Cont, hung), BlockReason::Storm),
        (|world| world.policies[0].limits.max_unhealthy = Amount::Count(0), BlockReason::MaxUnhealthyExceeded),
        (|world| world.policies[0].limits.max_in_flight = Amount::Count(0), BlockReason::MaxInFlightReached),
        (|world| world.ceiling = 0, BlockReason::ClusterLimit),
        (|world| world.policies[0].pause_requests.push("a release".into()), BlockReason::Paused),
    ];
    for (change, reason) in cases {
        let mut world = begun();
        change(&mut world);
        inject(&mut world, 1..2, ClearedBy::Cont, hung);
        let mut passes = 0;
        while world.nodes["n00"].view.unschedulable || world.remediations.values().any(Remediation::is_open) {
            passes += 1;
            assert!(passes < 100, "{reason:?}: {:#?}", world.remediations);
            let plan = world.pass();
            assert!(acts(&plan).iter().all(|(node, _)| node == "n00"), "{reason:?}: something new: {:?}", acts(&plan));
            let blocked = plan.blocked.iter().find(|blocked| blocked.node == "n01").map(|blocked| blocked.reason);
            assert_eq!(blocked, Some(reason), "{:?}", plan.blocked);
            age(&mut world, secs(5));
        }
        assert_eq!(world.phase(), Phase::Succeeded, "{reason:?}");
        assert_eq!(world.did(), ["cordon", JOB_CONT, COMMAND_CONT, "uncordon"], "{reason:?}");
        let node = &world.nodes["n00"];
        assert!(world.jobs.is_empty() && node.command.is_none() && node.view.cordoned_by.is_none(), "{reason:?}");
    }
}
