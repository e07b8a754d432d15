//! A broken rule is told as an incident is: by the policies, and by a timeline of what happened and what was done about it, as
//! `nrh simulate` prints one.

use std::any::Any;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use nrh_core::plan::Plan;
use nrh_core::policy::{Amount, Mode, Policy};
use nrh_simulate::account::Account;
use nrh_simulate::text;
use proptest::test_runner::TestCaseError;

use crate::samples::{cont, hung};
use crate::world::{ClearedBy, World, says};

/// What has been told so far.
#[derive(Default)]
pub struct Told {
    policies: Vec<String>,
    account: Account,
    elapsed: Duration,
}

impl Told {
    /// Plays it, and where that ends in a panic, tells how it came to that.
    pub fn or_timeline(world: &mut World, play: impl FnOnce(&mut World, &mut Self)) -> Result<(), TestCaseError> {
        let mut told = Self { policies: world.policies.iter().map(policy).collect(), ..Self::default() };
        let ended = catch_unwind(AssertUnwindSafe(|| play(world, &mut told)));
        ended.map_err(|panic| TestCaseError::fail(told.story(panic.as_ref())))
    }

    /// Something happens, so long after what was told last.
    pub fn happens(&mut self, later: Duration, event: &str) {
        self.elapsed += later;
        self.account.happens(self.elapsed, None, event);
    }

    /// Nothing happens for so long.
    pub fn passes(&mut self, later: Duration) {
        self.elapsed += later;
    }

    /// What the controller has decided, and what came of it.
    pub fn decided(&mut self, world: &World, plan: &Plan) {
        self.account.note(self.elapsed, world, plan);
    }

    fn story(&self, panic: &(dyn Any + Send)) -> String {
        let broken =
            panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        format!("{}\n{}\n{}", broken.unwrap_or("?"), self.policies.join("\n"), text::table(&self.account))
    }
}

/// A policy in a line.
pub fn policy(policy: &Policy) -> String {
    let mut line = format!("policy {}:", policy.name);
    for rule in &policy.rules {
        for step in &rule.steps {
            let shadow = if step.mode == Mode::DryRun { ", a dry run" } else { "" };
            let asks = if step.needs_approval() { ", asks" } else { "" };
            let _ = write!(line, " {} x{}{shadow}{asks};", step.action.kind().as_str(), step.max_attempts);
        }
    }
    let limits = &policy.limits;
    let _ =
        write!(line, " maxInFlight {}, maxUnhealthy {}", amount(limits.max_in_flight), amount(limits.max_unhealthy));
    for zone in &limits.per_topology {
        let _ = write!(line, ", {} of a {}", amount(zone.max_in_flight), zone.key);
    }
    for few in &limits.per_fault {
        let _ = write!(line, ", {} of {:?}", amount(few.max_in_flight), few.faults);
    }
    let node = &limits.per_node;
    let _ = write!(line, ", {} acts a node within {}s", node.max_actions, node.window.as_secs());
    line
}

fn amount(amount: Amount) -> String {
    match amount {
        Amount::Count(count) => count.to_string(),
        Amount::Percent(percent) => format!("{percent}%"),
    }
}

#[test]
fn a_broken_rule_is_told_with_what_led_to_it() {
    let mut world = World::sick(hung("x"), ClearedBy::Cont, &[cont()]);
    let said = Told::or_timeline(&mut world, |world, told| {
        told.happens(Duration::from_secs(5), "the fault is there");
        let plan = world.pass();
        told.decided(world, &plan);
        assert!(plan.effects.is_empty(), "something is done");
    });
    let said = said.unwrap_err().to_string();
    for part in ["something is done", "policy p: ", "the fault is there", "does ReleaseHungProcess"] {
        says(&said, part);
    }
}
