//! The account of a timeline: what happened, what was done, what was blocked and why, line by line.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::timeline::Offset;
use super::world::{World, WorldNode};
use nrh_core::plan::{BlockReason, Blocked, Plan};
use nrh_core::policy::{ActionType, Mode};
use nrh_core::remediation::{Executor, Phase, Remediation, StepRecord, StepState};
use nrh_core::text::bounded;

/// The content of a line. In JSON, `what` is the word, and `detail` the action, the reason, the state or the phase that belongs
/// to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase", tag = "what", content = "detail")]
pub enum What {
    /// An event of the timeline.
    Happens,
    /// A step is executed.
    Does(ActionType),
    /// A step would be executed, but it or its policy is a dry run.
    Would(ActionType),
    /// A step has ended.
    Step(StepState),
    /// Something is blocked.
    Blocked(BlockReason),
    /// A policy starts nothing new.
    PolicyBlocked(BlockReason),
    /// A policy may start remediations again.
    PolicyUnblocked,
    /// Our cordon is removed.
    Uncordons,
    /// Our taint is removed.
    Untaints,
    /// A remediation has ended.
    Ends(Phase),
    /// The timeline has ended, and a remediation is still open.
    Open(Phase),
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// Time since the beginning of the timeline.
    pub at: Offset,
    /// The same in seconds.
    pub seconds: u64,
    /// The node, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The policy, where one applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The content.
    #[serde(flatten)]
    pub what: What,
    /// The sentence.
    pub message: String,
}

/// The state after the previous pass.
#[derive(Clone, Debug, Default)]
struct Known {
    steps: BTreeMap<String, StepState>,
    /// By name and start: a name is used again after its remediation was deleted.
    ended: BTreeSet<(String, Timestamp)>,
    cordoned: BTreeSet<String>,
    tainted: BTreeSet<String>,
    blocked: BTreeMap<(String, Option<String>), BlockReason>,
    policies: BTreeMap<String, BlockReason>,
}

/// All lines, in order of time.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// The lines.
    pub lines: Vec<Line>,
    /// What a reader should know of the input, one sentence each.
    pub notes: Vec<String>,
    /// The nodes with open remediations of enforcing policies at the same time, one entry for each change.
    pub open: Vec<BTreeSet<String>>,
    /// When the timeline ended, as time since its beginning.
    pub ended: Offset,
    /// How many faults were blocked at its end.
    pub blocked: usize,
    known: Known,
}

impl Account {
    /// Records an event of the timeline.
    pub fn happens(&mut self, at: Duration, node: Option<&str>, message: &str) {
        self.line(at, node, None, What::Happens, message);
    }

    fn line(&mut self, at: Duration, node: Option<&str>, policy: Option<&str>, what: What, message: &str) {
        self.lines.push(Line {
            at: Offset(at),
            seconds: at.as_secs(),
            node: node.map(ToOwned::to_owned),
            policy: policy.map(ToOwned::to_owned),
            what,
            message: message.to_owned(),
        });
    }

    /// Records what is new after a pass.
    pub fn note(&mut self, at: Duration, world: &World, plan: &Plan) {
        self.policies(at, plan);
        self.remediations(at, world);
        self.marks(at, world);
        self.blocked(at, plan);
        let open: BTreeSet<String> = world
            .remediations
            .values()
            .filter(|remediation| remediation.mode == Mode::Enforce && !remediation.phase.is_final())
            .map(|remediation| remediation.node.clone())
            .collect();
        if self.open.last() != Some(&open) {
            self.open.push(open);
        }
    }

    /// Records what is left when the timeline has ended.
    pub fn end(&mut self, at: Duration, world: &World, plan: &Plan) {
        for remediation in world.remediations.values().filter(|remediation| remediation.is_open()) {
            let Remediation { node, policy, phase, message, .. } = remediation;
            self.line(at, Some(node), Some(policy), What::Open(*phase), message);
        }
        self.ended = Offset(at);
        let is_told = |blocked: &&Blocked| blocked.fault_id.is_some() && blocked.reason != BlockReason::InProgress;
        self.blocked = plan.blocked.iter().filter(is_told).count();
    }

    fn policies(&mut self, at: Duration, plan: &Plan) {
        for (name, status_view) in &plan.policies {
            // The nodes that wait for a slot report that the slots are taken.
            let blocked = status_view.blocked.as_ref().filter(|(reason, _)| *reason != BlockReason::MaxInFlightReached);
            if let Some((reason, message)) = blocked {
                if self.known.policies.insert(name.clone(), *reason) != Some(*reason) {
                    self.line(at, None, Some(name), What::PolicyBlocked(*reason), message);
                }
            } else if self.known.policies.remove(name).is_some() {
                self.line(at, None, Some(name), What::PolicyUnblocked, "new remediations may start");
            }
        }
    }

    fn remediations(&mut self, at: Duration, world: &World) {
        let mut fresh: Vec<(&str, &str, What, String)> = Vec::new();
        let (mut steps, mut ended) = (Vec::new(), Vec::new());
        for remediation in world.remediations.values() {
            let Remediation { node, policy, phase, message, .. } = remediation;
            for step in &remediation.steps {
                let before = self.known.steps.get(&step.operation_id);
                if is_taken(before.copied(), step.state) {
                    let taken = if step.state == StepState::Simulated { What::Would } else { What::Does };
                    let fault = remediation.fault(&step.fault_id);
                    let about = fault.map_or_else(String::new, |fault| format!(" for {fault}"));
                    // An execution by a Job needs no reason.
                    let why = if step.executor == Executor::Probe { &step.executor_reason } else { "" };
                    let why = why.split_once(": ").map_or_else(String::new, |(_, why)| format!(": {why}"));
                    let sentence = format!("{}, by {:?}{about}{why}", step.phrase(), step.executor);
                    fresh.push((node, policy, taken(step.action.kind()), sentence));
                }
                if before != Some(&step.state) {
                    steps.push((step.operation_id.clone(), step.state));
                    if tells(step) {
                        fresh.push((node, policy, What::Step(step.state), sentence(step)));
                    }
                }
            }
            let this = (remediation.name.clone(), remediation.started_at);
            if remediation.finished_at.is_some() && !self.known.ended.contains(&this) {
                ended.push(this);
                fresh.push((node, policy, What::Ends(*phase), message.clone()));
            }
        }
        for (node, policy, what, message) in fresh {
            self.line(at, Some(node), Some(policy), what, &message);
        }
        self.known.steps.extend(steps);
        self.known.ended.extend(ended);
    }

    fn marks(&mut self, at: Duration, world: &World) {
        let cordoned = marked(world, |node| node.view.cordoned_by.is_some());
        let tainted = marked(world, |node| node.view.tainted_by.is_some());
        let known = (&self.known.cordoned, &self.known.tainted);
        let gone = [
            (lost(known.0, &cordoned, world), What::Uncordons, "our cordon is taken back"),
            (lost(known.1, &tainted, world), What::Untaints, "our taint is taken off"),
        ];
        for (nodes, what, message) in gone {
            for node in nodes {
                self.line(at, Some(&node), None, what, message);
            }
        }
        (self.known.cordoned, self.known.tainted) = (cordoned, tainted);
    }

    fn blocked(&mut self, at: Duration, plan: &Plan) {
        let mut now = BTreeMap::new();
        for Blocked { node, fault_id, reason, policy, message } in &plan.blocked {
            let key = (node.clone(), fault_id.clone());
            // The step itself reports that it is in progress.
            if *reason != BlockReason::InProgress && self.known.blocked.get(&key) != Some(reason) {
                self.line(at, Some(node), policy.as_deref(), What::Blocked(*reason), message);
            }
            now.insert(key, *reason);
        }
        self.known.blocked = now;
    }
}

/// The nodes for which this holds, such as those with our cordon.
fn marked(world: &World, is_marked: impl Fn(&WorldNode) -> bool) -> BTreeSet<String> {
    world.nodes.iter().filter(|(_, node)| is_marked(node)).map(|(name, _)| name.clone()).collect()
}

/// Of the existing nodes, those for which it does not hold any more.
fn lost(known: &BTreeSet<String>, now: &BTreeSet<String>, world: &World) -> Vec<String> {
    known.difference(now).filter(|node| world.nodes.contains_key(*node)).cloned().collect()
}

/// Whether the step was executed since the previous pass. A step that was skipped because it was blocked for too long was never
/// executed. Neither was a step that waits for a person, or has waited in vain.
const fn is_taken(before: Option<StepState>, now: StepState) -> bool {
    match before {
        None => !matches!(now, StepState::Refused | StepState::AwaitingApproval),
        Some(StepState::AwaitingApproval) => {
            !matches!(now, StepState::AwaitingApproval | StepState::Cancelled | StepState::TimedOut)
        }
        Some(_) => false,
    }
}

/// Whether the end of this attempt gets a line of its own.
const fn tells(step: &StepRecord) -> bool {
    step.state.is_final() && !matches!(step.state, StepState::Simulated)
}

fn sentence(step: &StepRecord) -> String {
    bounded(&format!("{}: {}", step.phrase(), step.message), nrh_core::fault::MAX_LINE)
}
