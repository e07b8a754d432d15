//! A dry run decides at first what the same policy decides in earnest: what it would begin, and what it holds, with the reasons.

use std::collections::BTreeMap;

use nrh_core::fault::Target;
use nrh_core::plan::{BlockReason, Effect, Plan};
use nrh_core::policy::{Action, Mode};
use nrh_core::remediation::{Remediation, StepRecord};
use proptest::prelude::*;

use crate::events::{Event, OnNode, event_of_several, falls_ill, happen};
use crate::random_worlds::{any_worlds, tried};
use crate::world::World;

/// A step as it is decided, whether or not it is done.
#[derive(Debug, PartialEq)]
struct Decided {
    fault: String,
    action: Action,
    step_index: u32,
    target: Target,
}

/// What is decided about one fault.
#[derive(Debug, PartialEq)]
enum First {
    /// A remediation begins with it, by these steps: the last one is taken, or would be; those before it are passed over.
    Begins(Vec<Decided>),
    /// It is held, for these reasons.
    Blocked(Vec<(BlockReason, Option<String>, String)>),
}

fn steps(remediation: &Remediation) -> Vec<Decided> {
    let decided = |step: &StepRecord| Decided {
        fault: step.fault_id.clone(),
        action: step.action.clone(),
        step_index: step.step_index,
        target: step.target.clone(),
    };
    remediation.steps.iter().map(decided).collect()
}

/// What a plan decides about each fault, by node and fault.
fn decisions(plan: &Plan) -> BTreeMap<(&str, &str), First> {
    let mut all = BTreeMap::new();
    for effect in &plan.effects {
        let Effect::WriteRemediation(remediation) = effect else { continue };
        for fault in &remediation.faults {
            all.insert((remediation.node.as_str(), fault.id.as_str()), First::Begins(steps(remediation)));
        }
    }
    for blocked in &plan.blocked {
        let Some(fault) = &blocked.fault_id else { continue };
        let reason = (blocked.reason, blocked.policy.clone(), blocked.message.clone());
        // What is said of the other faults of a remediation that begins is said of the steps in earnest.
        match all.entry((blocked.node.as_str(), fault.as_str())).or_insert_with(|| First::Blocked(Vec::new())) {
            First::Blocked(reasons) => reasons.push(reason),
            First::Begins(_) => {}
        }
    }
    all
}

/// What may happen before anything was done. Nobody starts by hand, which a dry run refuses, or changes the mode.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let others = event_of_several().prop_map(|event| match event {
        Event::DryRun(..) | Event::On(_, OnNode::ManualRequest(..)) => Event::Nothing,
        event => event,
    });
    prop::collection::vec(prop_oneof![falls_ill(), others], 1..8)
}

proptest! {
    #![proptest_config(tried(2_500))]

    #[test]
    fn a_dry_run_decides_at_first_what_is_decided_in_earnest(
        world in any_worlds(),
        rounds in prop::collection::vec((events(), prop::sample::select(vec![0_u64, 1, 5, 20, 120])), 1..8),
    ) {
        let (mut earnest, mut dry) = (world.clone(), world);
        dry.policies.iter_mut().for_each(|policy| policy.mode = Mode::DryRun);
        for (turn, (events, wait)) in rounds.iter().enumerate() {
            let decide = |world: &mut World| {
                for (place, event) in events.iter().enumerate() {
                    happen(world, event, turn * 8 + place);
                }
                world.pass_after(*wait)
            };
            let plans = [decide(&mut earnest), decide(&mut dry)];
            let [earnest, dry] = plans.each_ref().map(decisions);
            prop_assert_eq!(&earnest, &dry);
            // From here on one of them resolves.
            if earnest.values().any(|first| matches!(first, First::Begins(_))) {
                break;
            }
        }
    }
}
