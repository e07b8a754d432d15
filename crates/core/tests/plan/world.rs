//! The small world of `nrh_simulate`, and a controller in it that may crash between any two effects.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use nrh_core::command::{ActionCommand, Outcome, OutcomeReason, OutcomeState};
use nrh_core::engine::plan;
use nrh_core::fault::{Fault, FaultType};
use nrh_core::plan::{BlockReason, Effect, Operation, Plan};
use nrh_core::policy::Policy;
use nrh_core::remediation::{Marker, Phase, Remediation, StepRecord, StepState};
use nrh_core::snapshot::{Heartbeat, Ledger, Slot, Snapshot};
use nrh_simulate::world::{self, describe};

use crate::told;

/// How [`World::did`] and [`acts`] name the acts that most worlds see.
pub const JOB_CONT: &str = "job ReleaseHungProcess(SIGCONT)";
pub const JOB_KILL: &str = "job ReleaseHungProcess(SIGKILL)";
pub const COMMAND_CONT: &str = "command ReleaseHungProcess(SIGCONT)";

pub use crate::samples::secs;
pub use nrh_simulate::cleared_by::ClearedBy;
pub use nrh_simulate::world::{InjectedFault, WorldNode};

/// Something that is changed in a world.
pub type Change = fn(&mut World);

/// How one pass of the controller is disturbed.
#[derive(Clone, Debug, Default)]
pub struct Chaos {
    /// The controller dies after so many calls.
    pub crash_after: Option<usize>,
    /// Which calls fail (by number).
    pub failing: BTreeSet<usize>,
}

/// Shown as what it begins with: its policies, its nodes and the limit of them all.
#[derive(Clone)]
pub struct World {
    inner: world::World,
    /// Policies that somebody has removed, and may bring back.
    pub removed: Vec<Policy>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies: Vec<String> = self.policies.iter().map(told::policy).collect();
        let nodes: Vec<&String> = self.nodes.keys().collect();
        write!(f, "nodes {nodes:?}, maxInFlight of all {}; {}", self.ceiling, policies.join("; "))
    }
}

impl Deref for World {
    type Target = world::World;

    fn deref(&self) -> &world::World {
        &self.inner
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut world::World {
        &mut self.inner
    }
}

impl World {
    pub fn new(policies: &[Policy], nodes: &[impl AsRef<str>]) -> Self {
        let mut world = world::World::new("2026-01-01T01:00:00Z".parse().unwrap(), policies);
        world.nodes = nodes.iter().map(|name| (name.as_ref().to_owned(), WorldNode::new(name.as_ref()))).collect();
        Self { inner: world, removed: Vec::new() }
    }

    pub fn node(&mut self, name: &str) -> &mut WorldNode {
        self.nodes.get_mut(name).unwrap()
    }

    pub fn inject(&mut self, node: &str, fault: Fault, by: impl Into<Option<ClearedBy>>) {
        let node = self.node(node);
        node.sick.push(injected_fault(fault, by));
        node.send();
    }

    /// The same on each of these nodes.
    pub fn inject_all(&mut self, nodes: &[impl AsRef<str>], fault: &Fault, by: impl Into<Option<ClearedBy>>) {
        let by = by.into();
        for node in nodes {
            self.inject(node.as_ref(), fault.clone(), by);
        }
    }

    /// Its faults are gone, as if somebody had repaired it, and its probe reports that.
    pub fn recover(&mut self, node: &str) {
        self.node(node).sick.clear();
        self.node(node).send();
    }

    /// The last heartbeat of its probe, to be changed.
    pub fn heartbeat(&mut self, node: &str) -> &mut Heartbeat {
        self.node(node).report.heartbeat.as_mut().unwrap()
    }

    pub fn slots(&self) -> &BTreeMap<String, Slot> {
        &self.ledger.as_ref().unwrap().slots
    }

    pub fn plan(&self) -> Plan {
        self.plan_with(|_| {})
    }

    /// Decides on the present state with this change.
    pub fn plan_with(&self, change: impl FnOnce(&mut Snapshot)) -> Plan {
        let mut snapshot = self.snapshot();
        change(&mut snapshot);
        plan(&snapshot, &self.settings)
    }

    /// Decides and does it, undisturbed, after so many seconds.
    pub fn pass_after(&mut self, seconds: u64) -> Plan {
        self.tick(secs(seconds));
        self.pass()
    }

    /// The same, and the probe of n1 has just reported.
    pub fn report_and_pass_after(&mut self, seconds: u64) -> Plan {
        self.tick(secs(seconds));
        self.node("n1").send();
        self.pass()
    }

    /// So many passes at one moment.
    pub fn passes(&mut self, count: usize) {
        (0..count).for_each(|_| drop(self.pass()));
    }

    /// Decides and does it, with failing calls and a crash.
    pub fn disturbed_pass(&mut self, chaos: &Chaos) -> Plan {
        let snapshot = self.snapshot();
        self.carry_out(&snapshot, chaos)
    }

    /// Decides on what was so at some time, and does it now: what a leader with an old cache would do.
    pub fn carry_out(&mut self, snapshot: &Snapshot, chaos: &Chaos) -> Plan {
        let plan = plan(snapshot, &self.settings);
        let (mut calls, mut broken) = (0_usize, BTreeSet::new());
        let mut is_ledger_stored = true;
        for effect in &plan.effects {
            if chaos.crash_after.is_some_and(|limit| calls >= limit) {
                break;
            }
            let conflicts = match effect {
                Effect::StoreLedger(next) => snapshot.ledger != self.ledger || self.drops_what_is_there(snapshot, next),
                _ => false,
            };
            let fails = conflicts || chaos.failing.contains(&calls);
            calls += 1;
            let node = self.node_of(effect);
            if broken.contains(&node) {
                continue;
            }
            let opens = matches!(effect, Effect::WriteRemediation(e) if e.identity.is_none());
            let spends = opens || matches!(effect, Effect::Act { .. } | Effect::BeginManualRequest(_));
            if fails || (spends && !is_ledger_stored) {
                is_ledger_stored &= !matches!(effect, Effect::StoreLedger(_));
                broken.insert(node);
                continue;
            }
            let may_record = chaos.crash_after.is_none_or(|limit| calls < limit) && !chaos.failing.contains(&calls);
            if !self.apply(effect, may_record) {
                broken.insert(node);
            }
        }
        self.note_what_people_stopped(&plan);
        plan
    }

    /// Whether a slot would be given back whose remediation did not show, and is there: right before the ledger is stored the controller
    /// searches for such remediations, since the version of the ledger does not say that they were made.
    fn drops_what_is_there(&self, seen: &Snapshot, next: &Ledger) -> bool {
        let known = seen.ledger.iter().flat_map(|ledger| ledger.slots.keys());
        let mut unseen = known.filter(|name| !next.slots.contains_key(*name) && !seen.remediations.contains_key(*name));
        unseen.any(|name| self.remediations.contains_key(name))
    }

    /// Passes and time, until no remediation is open or the time is over.
    pub fn run(&mut self, most: Duration) -> Vec<Plan> {
        let (mut plans, mut spent) = (Vec::new(), Duration::ZERO);
        loop {
            let plan = self.pass();
            let is_quiet = plan.effects.is_empty() && !self.remediations.values().any(Remediation::is_open);
            plans.push(plan);
            if is_quiet || spent >= most {
                return plans;
            }
            self.tick(secs(5));
            spent += secs(5);
        }
    }

    /// The same for so many seconds; the only remediation is in this phase then.
    #[track_caller]
    pub fn run_to(&mut self, seconds: u64, phase: Phase) -> &Remediation {
        self.run(secs(seconds));
        self.only_in(phase)
    }

    /// So many passes, each before so many seconds.
    pub fn live(&mut self, passes: u64, seconds: u64) {
        for _ in 0..passes {
            self.pass();
            self.tick(secs(seconds));
        }
    }

    /// So many passes, each after so many seconds.
    pub fn wait(&mut self, passes: u64, seconds: u64) {
        for _ in 0..passes {
            self.tick(secs(seconds));
            self.pass();
        }
    }

    /// So many times so many seconds, in which nobody leads.
    pub fn without_controller(&mut self, times: u64, seconds: u64) {
        (0..times).for_each(|_| self.tick(secs(seconds)));
    }

    /// Passes, each before five seconds, until that is so; how many seconds it took.
    pub fn until(&mut self, limit: Duration, what: &str, is_so: impl Fn(&Self) -> bool) -> u64 {
        for passed in 0..limit.as_secs() / 5 {
            self.pass();
            if is_so(self) {
                return passed * 5;
            }
            self.tick(secs(5));
        }
        panic!("not {what} within {limit:?}: {:?}; {:#?}", self.did(), self.remediations);
    }

    /// Decides, and does everything but the act, whose call does not arrive.
    pub fn schedule(&mut self) -> Plan {
        let plan = self.plan();
        for effect in plan.effects.iter().filter(|effect| !matches!(effect, Effect::Act { .. })) {
            assert!(self.apply(effect, true));
        }
        plan
    }

    pub fn only_remediation(&self) -> &Remediation {
        assert_eq!(self.remediations.len(), 1, "{:?}", self.remediations.keys());
        self.remediations.values().next().unwrap()
    }

    /// What its node answers about an operation now.
    pub fn answer(&self, operation_id: &str, state: OutcomeState, reason: OutcomeReason, message: &str) -> Outcome {
        Outcome { operation_id: operation_id.into(), state, reason, message: message.into(), at: self.now }
    }

    /// The probe of n1 says this of the last step that was given to it.
    pub fn probe_answers(&mut self, state: OutcomeState, reason: OutcomeReason, message: &str) {
        let last = self.remediations.values().find(|one| one.node == "n1").and_then(|one| one.steps.last()).unwrap();
        let answer = self.answer(&last.operation_id, state, reason, message);
        self.node("n1").report.agent = Some(answer);
    }

    /// All Jobs end with this.
    pub fn jobs_end(&mut self, state: OutcomeState, reason: OutcomeReason, message: &str) {
        let at = self.now;
        for (operation_id, (_, job)) in &mut self.jobs {
            (job.started, job.finished) = (true, true);
            let (operation_id, message) = (operation_id.clone(), message.to_owned());
            job.outcome = Some(Outcome { operation_id, state, reason, message, at });
        }
    }

    /// Whether n1 is unschedulable.
    pub fn is_cordoned(&self) -> bool {
        self.nodes["n1"].view.unschedulable
    }

    /// The kinds of the faults of n1 that the controller itself finds.
    pub fn cluster_faults(&self) -> Vec<FaultType> {
        self.plan().nodes["n1"].cluster_faults.iter().map(|fault| fault.kind).collect()
    }

    /// How often that was done.
    pub fn times(&self, what: &str) -> usize {
        self.did().iter().filter(|did| **did == what).count()
    }

    /// Somebody deletes all remediations.
    pub fn delete_remediations(&mut self) {
        self.remediations.values_mut().for_each(|remediation| remediation.deleting = true);
    }

    /// The states of the steps of the only remediation.
    pub fn states(&self) -> Vec<StepState> {
        self.only_remediation().steps.iter().map(|step| step.state).collect()
    }

    /// How many remediations are open.
    pub fn open(&self) -> usize {
        self.remediations.values().filter(|remediation| remediation.is_open()).count()
    }

    /// The only remediation, which is in this phase.
    #[track_caller]
    pub fn only_in(&self, phase: Phase) -> &Remediation {
        let remediation = self.only_remediation();
        assert_eq!(remediation.phase, phase, "{}", remediation.message);
        remediation
    }

    /// That of the only remediation.
    pub fn phase(&self) -> Phase {
        self.only_remediation().phase
    }

    /// A step of the only remediation.
    pub fn step(&self, place: usize) -> &StepRecord {
        &self.only_remediation().steps[place]
    }

    pub fn did(&self) -> Vec<&str> {
        self.log.iter().map(|(_, what)| what.as_str()).collect()
    }
}

/// A fault that one thing ends.
pub fn injected_fault(fault: Fault, by: impl Into<Option<ClearedBy>>) -> InjectedFault {
    InjectedFault { fault, cleared_by: by.into().into_iter().collect() }
}

/// Acts of a plan, as `(node, operation)`.
pub fn acts(plan: &Plan) -> Vec<(String, String)> {
    plan.effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Act { node, operation, .. } => Some((node.clone(), describe(operation))),
            _ => None,
        })
        .collect()
}

/// Remediations that a plan writes.
pub fn written(plan: &Plan) -> Vec<&Remediation> {
    plan.effects
        .iter()
        .filter_map(|effect| if let Effect::WriteRemediation(written) = effect { Some(&**written) } else { None })
        .collect()
}

/// The command that a plan gives to the probe of a node, or to a Job.
pub fn command(plan: &Plan) -> Option<&ActionCommand> {
    plan.effects.iter().find_map(|effect| match effect {
        Effect::Act { operation: Operation::GiveCommand(command) | Operation::RunJob(command), .. } => Some(command),
        _ => None,
    })
}

/// The text has this part.
#[track_caller]
pub fn says(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in: {text}");
}

/// Whether a plan takes such a marker off.
pub fn removes(plan: &Plan, is_such: impl Fn(&Marker) -> bool) -> bool {
    plan.effects.iter().any(|effect| matches!(effect, Effect::Remove { marker, .. } if is_such(marker)))
}

/// What a plan notifies people of.
pub fn notification(plan: &Plan) -> Option<&str> {
    plan.effects.iter().find_map(|effect| match effect {
        Effect::Act { operation: Operation::Notify(text), .. } => Some(text.as_str()),
        _ => None,
    })
}

/// The ledger that a plan stores.
pub fn stored(plan: &Plan) -> Option<&Ledger> {
    plan.effects.iter().find_map(|effect| if let Effect::StoreLedger(ledger) = effect { Some(ledger) } else { None })
}

/// The nodes on which a plan blocks something for this reason.
pub fn blocked_for(plan: &Plan, reason: BlockReason) -> Vec<&str> {
    plan.blocked.iter().filter(|one| one.reason == reason).map(|one| one.node.as_str()).collect()
}

/// Reasons of a plan, for the one fault or node it is about.
pub fn reasons(plan: &Plan) -> Vec<BlockReason> {
    plan.blocked.iter().map(|blocked| blocked.reason).collect()
}
