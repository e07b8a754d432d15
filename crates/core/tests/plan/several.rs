//! Several policies at once, whose nodes and faults overlap or not, that are changed, removed and brought back.

use std::collections::BTreeSet;

use nrh_core::fault::FaultType;
use nrh_core::policy::{Amount, Mode, Policy, Requirement, Selector, Step};
use nrh_core::snapshot::Slot;
use proptest::prelude::*;

use crate::events::{NODES, event_of_several, happen, with_losses};
use crate::invariants::play;
use crate::random_worlds::{round, several, some_steps, tried};
use crate::samples::{fault, policy, rule};
use crate::told::Told;
use crate::world::World;

/// What only one policy has a rule for, and every node has.
const ITS_OWN: FaultType = FaultType::DiskFull;

/// A policy with work on every node, of which it can do nothing.
fn disabled(how: u8, priority: i32, steps: &[Step]) -> Policy {
    let mut policy = Policy { priority, ..policy("a-bad", &[rule("r", &[ITS_OWN], steps)]) };
    match how {
        0 => policy.suspend = true,
        1 => policy.is_broken = true,
        2 => policy.pause_requests = vec!["release".to_owned()],
        3 => policy.mode = Mode::DryRun,
        4 => policy.limits.max_in_flight = Amount::Count(0),
        5 => policy.limits.max_unhealthy = Amount::Percent(0),
        6 => policy.rules.clear(),
        7 => policy.rules[0].steps.clear(),
        _ => policy.selector = Selector(vec![Requirement::In("pool".into(), BTreeSet::from(["none".to_owned()]))]),
    }
    policy
}

/// What is in flight, whatever the number of its remediation: what a dry run has recorded of the node counts there, too. None without a
/// ledger.
fn slots(world: &World) -> Option<Vec<&Slot>> {
    let mut slots: Vec<&Slot> = world.ledger.as_ref()?.slots.values().collect();
    slots.sort_by(|a, b| (&a.node, &a.policy, a.taken_at).cmp(&(&b.node, &b.policy, b.taken_at)));
    Some(slots)
}

proptest! {
    #![proptest_config(tried(3_000))]

    #[test]
    fn the_rules_hold_with_several_policies(
        mut world in several(),
        rounds in prop::collection::vec(round(with_losses(event_of_several())), 1..40),
    ) {
        Told::or_timeline(&mut world, |world, told| play(world, told, &rounds))?;
    }
}

proptest! {
    #![proptest_config(tried(1_000))]

    #[test]
    fn a_policy_that_can_do_nothing_keeps_no_other_from_its_work(
        mut world in several(),
        rounds in prop::collection::vec(round(event_of_several()), 1..25),
        how in 0_u8..9,
        priority in -2..=2,
        steps in some_steps(),
    ) {
        for policy in &mut world.policies {
            policy.rules.iter_mut().for_each(|rule| rule.faults.retain(|kind| *kind != ITS_OWN));
        }
        world.inject_all(&NODES, &fault(ITS_OWN, "disk"), None);
        let mut beside = world.clone();
        beside.policies.push(disabled(how, priority, &steps));
        for (turn, round) in rounds.iter().enumerate() {
            for world in [&mut world, &mut beside] {
                happen(world, &round.event, turn);
                world.pass_after(round.wait);
            }
            prop_assert_eq!(&world.log, &beside.log);
            prop_assert_eq!(slots(&world), slots(&beside));
        }
    }
}
