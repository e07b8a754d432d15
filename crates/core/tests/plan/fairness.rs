//! One node that lies, or whose probe errs, among nodes that are well but for one fault now and then: how long these wait.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use nrh_core::command::{Outcome, OutcomeReason, OutcomeState};
use nrh_core::fault::{Fault, FaultType, Severity};
use nrh_core::moment::since;
use nrh_core::plan::BlockReason;
use nrh_core::policy::Amount;

use crate::samples::{cont, fault, hung, kill, notify, plugin, policy, rule, secs};
use crate::world::{ClearedBy, World, acts, injected_fault, reasons};

/// Comes first by its name, too.
const LIAR: &str = "a-liar";
/// The liar says nothing for so long: a little less than an answer may take.
const SLOW: Duration = Duration::from_secs(175);
/// So often one of the other nodes falls ill.
const EVERY: Duration = Duration::from_mins(20);
const LASTS: Duration = Duration::from_hours(3);
const STEP: Duration = Duration::from_secs(5);

/// What a node does to keep the slot.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// It never answers.
    Silence,
    /// It refuses each command at the last moment.
    Refusal,
    /// It says at the last moment that it has failed.
    Failure,
    /// It says for as long as it may that it is at work.
    Work,
    /// It says at the last moment that it has resolved, and has another fault.
    Success,
}

struct Liar {
    lie: Lie,
    faults: u32,
}

impl Liar {
    fn fault(&mut self) -> Fault {
        self.faults += 1;
        Fault { severity: Severity::Critical, ..fault(FaultType::NetworkPluginHung, &self.faults.to_string()) }
    }

    fn tell(&mut self, world: &mut World) {
        let now = world.now;
        let mut resolved = Vec::new();
        for (command, job) in world.jobs.values_mut().filter(|(command, _)| command.node == LIAR) {
            job.started = true;
            let is_late = since(now, command.issued_at) >= SLOW;
            let (state, reason) = match self.lie {
                Lie::Refusal if is_late => (OutcomeState::Refused, OutcomeReason::TargetChanged),
                Lie::Failure if is_late => (OutcomeState::Failed, OutcomeReason::RequestFailed),
                Lie::Success if is_late => (OutcomeState::Done, OutcomeReason::Executed),
                Lie::Work => (OutcomeState::Running, OutcomeReason::Executed),
                Lie::Silence | Lie::Refusal | Lie::Failure | Lie::Success => continue,
            };
            if state == OutcomeState::Done {
                resolved.push(command.fault_id.clone());
            }
            job.finished = state != OutcomeState::Running;
            let operation_id = command.operation_id.clone();
            job.outcome = Some(Outcome { operation_id, state, reason, message: String::new(), at: now });
        }
        // What a remediation has ended with comes anew under another name.
        let over = world.remediations.values().filter(|remediation| !remediation.is_open());
        let over: Vec<String> =
            over.flat_map(|remediation| &remediation.faults).map(|fault| fault.id.clone()).collect();
        let node = world.nodes.get_mut(LIAR).unwrap();
        node.sick.retain(|sick| !resolved.contains(&sick.fault.id) && !over.contains(&sick.fault.id));
        while node.sick.len() < 16 {
            node.sick.push(injected_fault(self.fault(), None));
        }
        node.send();
    }
}

/// A policy as it is shipped: one node at a time, none while more than 30 % are unhealthy.
fn cluster(nodes: usize) -> World {
    let release = rule("release", &[FaultType::HungContainer], &[cont(), notify()]);
    let mut kill = kill(false);
    (kill.max_attempts, kill.cooldown, kill.timeout) = (3, secs(30), secs(120));
    let plugin = rule("plugin", &[FaultType::NetworkPluginHung], &[kill, notify()]);
    let mut policy = policy("p", &[release, plugin]);
    policy.limits.max_in_flight = Amount::Count(1);
    policy.limits.max_unhealthy = Amount::Percent(30);
    let names: Vec<String> = (1..nodes).map(|number| format!("n{number:02}")).chain([LIAR.to_owned()]).collect();
    World::new(&[policy], &names)
}

/// For how long each fault of the other nodes stood, in their order; what was not resolved by the end stands to the end.
fn waits(nodes: usize, lie: Option<Lie>) -> Vec<Duration> {
    let mut world = cluster(nodes);
    let mut liar = lie.map(|lie| Liar { lie, faults: 0 });
    world.node(LIAR).job_starts = false;
    let others: Vec<String> = world.nodes.keys().filter(|name| *name != LIAR).cloned().collect();
    let began = world.now;
    let mut ill: BTreeMap<String, Timestamp> = BTreeMap::new();
    let (mut waits, mut turns) = (Vec::new(), others.iter().cycle());
    let mut next = began + secs(600);
    while since(world.now, began) < LASTS {
        if world.now >= next
            && let Some(name) = turns.next()
            && !ill.contains_key(name)
        {
            next += EVERY;
            let key = format!("c{}", since(world.now, began).as_secs());
            let fault = Fault { first_seen: world.now, ..hung(&key) };
            world.inject(name, fault, ClearedBy::Cont);
            ill.insert(name.clone(), world.now);
        }
        world.pass();
        world.tick(STEP);
        if let Some(liar) = &mut liar {
            liar.tell(&mut world);
        }
        let now = world.now;
        ill.retain(|name, at| {
            let is_ill = !world.nodes[name].sick.is_empty();
            if !is_ill {
                waits.push(since(now, *at));
            }
            is_ill
        });
    }
    waits.extend(ill.values().map(|at| since(world.now, *at)));
    waits
}

/// Printed for the documentation; what they must come to is asserted below.
#[test]
fn a_node_that_lies_keeps_the_others_waiting_for_a_quarter_of_an_hour_at_most() {
    // A quarter of an hour, the attempt that is under way then, and a word to people about each of its faults.
    let most = Duration::from_mins(15) + SLOW + 16 * STEP + secs(30);
    for nodes in [3, 6, 100] {
        let alone = waits(nodes, None);
        assert!(alone.iter().all(|wait| *wait <= secs(60)), "{nodes} nodes, none of which lies: {alone:?}");
        for lie in [Lie::Silence, Lie::Refusal, Lie::Failure, Lie::Work, Lie::Success] {
            let waits = waits(nodes, Some(lie));
            let (longest, all) = (waits.iter().max().unwrap(), waits.iter().sum::<Duration>());
            let mean = all / u32::try_from(waits.len()).unwrap();
            println!(
                "{nodes} nodes, one of which lies ({lie:?}): {} faults of the others, healed after {} s on average, {} s at most",
                waits.len(),
                mean.as_secs(),
                longest.as_secs()
            );
            assert!(*longest <= most, "{nodes} nodes, {lie:?}: {waits:?}");
        }
    }
}

#[test]
fn a_node_that_had_its_turn_takes_none_from_one_that_had_none() {
    for (is_forgotten, first) in [(false, "n01"), (true, LIAR)] {
        let mut world = cluster(5);
        world.inject(LIAR, plugin(), ClearedBy::Kill);
        world.run(secs(600));
        if is_forgotten {
            // Then the more severe fault goes first.
            let memory = world.settings.failed_memory;
            world.tick(memory);
        }
        // It is ill again, and worse, when another one falls ill.
        world.inject(LIAR, fault(FaultType::NetworkPluginHung, "another"), ClearedBy::Kill);
        world.inject("n01", hung("log"), ClearedBy::Cont);
        let plan = world.pass();
        assert_eq!(acts(&plan)[0].0, first);
        assert_eq!(reasons(&plan), [BlockReason::MaxInFlightReached]);
    }
}

#[test]
fn a_node_cannot_say_more_of_a_fault_than_its_kind_can_do() {
    let mut world = cluster(5);
    // Critical by its word.
    world.inject(LIAR, Fault { severity: Severity::Critical, ..hung("log") }, ClearedBy::Cont);
    world.inject("n01", plugin(), ClearedBy::Kill);
    assert_eq!(acts(&world.pass())[0].0, "n01", "HungContainer is Medium, NetworkPluginHung High");
}

#[test]
fn what_only_a_nodes_own_probe_says_is_not_held_against_the_others() {
    let too_many = |world: &World| {
        let plan = world.plan();
        assert!(!reasons(&plan).is_empty() || !acts(&plan).is_empty());
        reasons(&plan).contains(&BlockReason::MaxUnhealthyExceeded)
    };
    // One of three may be unhealthy.
    let mut world = cluster(3);
    world.inject(LIAR, plugin(), ClearedBy::Kill);
    world.inject("n01", hung("log"), ClearedBy::Cont);
    assert!(!too_many(&world), "two, each by its own word: one of them counts");
    world.inject("n02", hung("log"), ClearedBy::Cont);
    assert!(too_many(&world), "all of them: that is no lie of one");
    // What the API shows counts as ever.
    let mut world = cluster(3);
    world.node(LIAR).view.ready = nrh_core::snapshot::TriState::False;
    world.inject("n01", hung("log"), ClearedBy::Cont);
    assert!(too_many(&world));
}
