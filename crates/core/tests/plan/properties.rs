//! What holds whatever happens: random worlds, random people, crashes, failing calls and old caches.

use std::collections::BTreeSet;
use std::time::Duration;

use nrh_core::engine::plan;
use nrh_core::fault::FaultType;
use nrh_core::matching::PodSeen;
use nrh_core::plan::{Effect, Operation};
use nrh_core::policy::Mode;
use nrh_core::remediation::StepState;
use nrh_core::snapshot::{Slot, Snapshot};
use nrh_core::taint::TaintMark;
use proptest::prelude::*;

use crate::events::{NODES, event, happen, with_losses};
use crate::invariants::play;
use crate::random_worlds::{any_worlds, round, some_steps, tried, worlds};
use crate::samples::{policy, rule};
use crate::told::Told;
use crate::world::secs;

fn shuffled(snapshot: &Snapshot) -> Snapshot {
    let mut other = snapshot.clone();
    other.policies.reverse();
    other.pods.reverse();
    for report in other.reports.values_mut() {
        report.faults.reverse();
    }
    other
}

proptest! {
    #![proptest_config(tried(10_000))]

    #[test]
    fn the_rules_hold_in_a_disturbed_world(
        mut world in worlds(),
        rounds in prop::collection::vec(round(with_losses(event())), 1..40),
    ) {
        Told::or_timeline(&mut world, |world, told| play(world, told, &rounds))?;
    }
}

proptest! {
    #![proptest_config(tried(2_500))]

    #[test]
    fn the_same_in_any_order_gives_the_same(
        mut world in any_worlds(),
        rounds in prop::collection::vec(round(event()), 1..12),
        other in some_steps(),
    ) {
        let mut second = policy("a-second", &[rule("r", &FaultType::ALL, &other)]);
        second.priority = 0;
        for (turn, round) in rounds.iter().enumerate() {
            happen(&mut world, &round.event, turn);
            world.tick(secs(round.wait));
            world.disturbed_pass(&round.chaos);
        }
        let mut snapshot = world.snapshot();
        snapshot.policies.push(second);
        let first = plan(&snapshot, &world.settings);
        prop_assert_eq!(&first, &plan(&snapshot, &world.settings));
        prop_assert_eq!(&first, &plan(&shuffled(&snapshot), &world.settings));
    }

    #[test]
    fn a_dry_run_beside_it_changes_nothing_that_is_done(
        mut world in worlds(),
        rounds in prop::collection::vec(round(event()), 1..25),
        steps in some_steps(),
        priority in -1..=1,
    ) {
        let mut tried = world.clone();
        let mut trial = policy("a-trial", &[rule("r", &FaultType::ALL, &steps)]);
        (trial.mode, trial.priority) = (Mode::DryRun, priority);
        tried.policies.push(trial);
        for (turn, round) in rounds.iter().enumerate() {
            for world in [&mut world, &mut tried] {
                happen(world, &round.event, turn);
                world.pass_after(round.wait);
            }
            prop_assert_eq!(&world.log, &tried.log);
            prop_assert_eq!(&world.ledger.as_ref().map(|l| l.slots.len()), &tried.ledger.as_ref().map(|l| l.slots.len()));
        }
    }

    #[test]
    fn a_decision_is_content_with_its_own_result(
        mut world in any_worlds(),
        rounds in prop::collection::vec(round(event()), 1..12),
    ) {
        for (turn, round) in rounds.iter().enumerate() {
            happen(&mut world, &round.event, turn);
            world.tick(secs(round.wait));
            // At one moment a node sees at most its undo, its cordon and taint and one further act, and then rest.
            let (mut operations, mut drains) = (BTreeSet::new(), BTreeSet::new());
            let mut effects = Vec::new();
            for _ in 0..16 {
                let plan = world.pass();
                for effect in &plan.effects {
                    if let Effect::Act { operation_id, node, operation, .. } = effect
                        && !matches!(operation, Operation::Cordon | Operation::Taint(_) | Operation::Notify(_))
                    {
                        drains.extend(matches!(operation, Operation::Drain(_)).then(|| operation_id.clone()));
                        let is_new = operations.insert((node.clone(), operation_id.clone()));
                        prop_assert!(is_new, "repeated although it was done: {operation_id}");
                    }
                }
                effects = plan.effects;
            }
            // What the API server refused touched nothing, nor did what somebody else is at already: another step may have its turn.
            let refused: BTreeSet<&String> = world.remediations.values().flat_map(|remediation| &remediation.steps)
                .filter(|step| step.is_refused_call() || step.state == StepState::Refused).map(|step| &step.operation_id).collect();
            // Nor is a drain, which contains as a cordon does, in the way of the step that resolves.
            operations.retain(|(_, id)| !refused.contains(id) && !drains.contains(id));
            let mut nodes = BTreeSet::new();
            prop_assert!(operations.iter().all(|(node, _)| nodes.insert(node)), "{operations:?}");
            prop_assert!(effects.is_empty(), "no rest: {effects:?}");
        }
    }

    #[test]
    fn nothing_read_makes_it_panic_or_forget_itself(
        mut world in any_worlds(),
        rounds in prop::collection::vec(round(event()), 1..12),
        noise in prop::collection::vec((any::<u8>(), any::<u64>(), ".{0,12}"), 0..24),
    ) {
        for (turn, round) in rounds.iter().enumerate() {
            happen(&mut world, &round.event, turn);
            world.tick(secs(round.wait));
            world.disturbed_pass(&round.chaos);
        }
        let mut snapshot = world.snapshot();
        for (what, number, text) in &noise {
            spoil(&mut snapshot, *what, *number, text);
        }
        let first = plan(&snapshot, &world.settings);
        prop_assert!(first.next.is_none_or(|next| next > Duration::ZERO));
        prop_assert_eq!(&first, &plan(&shuffled(&snapshot), &world.settings));
        for effect in &first.effects {
            if let Effect::WriteRemediation(remediation) = effect {
                prop_assert!(remediation.steps.iter().filter(|s| !s.state.is_final()).count() <= 1 || noise.len() > 1);
            }
        }
    }
}

/// Nonsense as a lying node, a careless person or a broken store might hand in.
fn spoil(snapshot: &mut Snapshot, what: u8, number: u64, text: &str) {
    let age = Duration::from_secs(number);
    let small = usize::try_from(number % 7).unwrap();
    match what % 20 {
        0 => snapshot.now = jiff::Timestamp::MIN,
        1 => snapshot.now = jiff::Timestamp::MAX,
        2 => snapshot.reports.values_mut().for_each(|r| r.faults.iter_mut().for_each(|f| f.checked = age)),
        3 => snapshot.reports.values_mut().filter_map(|r| r.heartbeat.as_mut()).for_each(|h| h.interval = age),
        4 => snapshot.reports.values_mut().filter_map(|r| r.heartbeat.as_mut()).for_each(|h| h.arrived = age),
        5 => snapshot.remediations.values_mut().for_each(|e| e.steps.truncate(small)),
        6 => snapshot.remediations.values_mut().for_each(|e| e.faults.truncate(small)),
        7 => snapshot.remediations.values_mut().for_each(|e| text.clone_into(&mut e.node)),
        8 => snapshot.remediations.values_mut().for_each(|e| e.faults.iter_mut().for_each(|f| f.step_index = u32::MAX)),
        9 => snapshot.policies.iter_mut().for_each(|p| p.rules.iter_mut().for_each(|r| r.steps.clear())),
        10 => {
            let slot =
                Slot { node: text.to_owned(), policy: "p".to_owned(), taken_at: jiff::Timestamp::MAX, kinds: None };
            snapshot.ledger.get_or_insert_default().slots.insert(text.to_owned(), slot);
        }
        11 => snapshot.nodes.values_mut().for_each(|n| n.cordoned_by = Some(text.to_owned())),
        18 => snapshot.nodes.values_mut().for_each(|n| n.tainted_by = Some(TaintMark::read(text))),
        12 => {
            for report in snapshot.reports.values_mut() {
                let many: Vec<_> = report.faults.iter().cycle().take(200).cloned().collect();
                report.faults = many;
            }
        }
        13 => snapshot.pods.iter_mut().for_each(|p| (p.age, p.without_sandbox, p.read) = (age, Some(age), age)),
        14 => drop(snapshot.nodes.remove(NODES[small % 4])),
        15 => snapshot.pods_seen.values_mut().for_each(|seen| *seen = PodSeen::Gone),
        16 => snapshot
            .manual_requests
            .values_mut()
            .for_each(|w| (w.manual.timeout, w.asked_at) = (age, jiff::Timestamp::MAX)),
        17 => snapshot.manual_requests.values_mut().for_each(|w| text.clone_into(&mut w.name)),
        _ => snapshot.policies.iter_mut().for_each(|p| {
            for step in p.rules.iter_mut().flat_map(|r| &mut r.steps) {
                (step.max_attempts, step.timeout, step.cooldown, step.stable_for) = (u32::MAX, age, age, age);
            }
        }),
    }
}
