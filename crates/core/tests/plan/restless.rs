//! Worlds that never calm down: what is resolved comes back, what cannot be resolved stays, nodes flap, pods get stuck, until the end.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nrh_core::fault::FaultType;
use nrh_core::moment::since;
use nrh_core::plan::{Effect, Operation, Plan};
use nrh_core::policy::{Mode, Policy};
use nrh_core::remediation::{Remediation, StepRecord, StepState};
use nrh_core::snapshot::TriState;
use proptest::prelude::*;

use crate::events::NODES;
use crate::invariants::{check_plan, check_world};
use crate::random_worlds::{any_worlds, try_few};
use crate::samples::{backing_off, fault};
use crate::told::Told;
use crate::world::{Chaos, ClearedBy, World, secs};

/// For how long: longer than failures are remembered, so that everything has its turn more than once.
const LASTS: Duration = Duration::from_hours(3);
/// For how long a remediation that is resolved may be watched since its node flaps.
const WATCHED: Duration = Duration::from_hours(1);
/// For how long a node stays cordoned that may still go down for a reboot nobody waits for any more.
const MAY_GO_DOWN: Duration = Duration::from_mins(40);
/// What comes on top of every bound: answers that do not come, and the time between two passes.
const SLACK: Duration = Duration::from_mins(5);

/// What befalls a node again and again.
#[derive(Clone, Debug)]
struct Plague {
    kind: FaultType,
    cure: Option<ClearedBy>,
    /// The fault is back so long after it was resolved.
    back_after: Duration,
    /// So often it changes whether the node is Ready.
    flaps: Option<Duration>,
    /// So often a pod of it is stuck that was not.
    sticks: Option<Duration>,
}

fn plague() -> impl Strategy<Value = Plague> {
    let kind = prop::sample::select(vec![
        FaultType::HungContainer,
        FaultType::NetworkPluginHung,
        FaultType::OrphanContainer,
        FaultType::RuntimeListHung,
        FaultType::KubeletDown,
    ]);
    let cure = prop::sample::select(vec![
        Some(ClearedBy::Cont),
        Some(ClearedBy::Kill),
        Some(ClearedBy::CleanupOrphans),
        Some(ClearedBy::RestartKubelet),
        None,
    ]);
    let every = |times: &[u64]| prop::sample::select(times.iter().copied().map(secs).collect::<Vec<_>>());
    let flaps = prop::option::of(every(&[60, 240, 900]));
    let sticks = prop::option::of(every(&[300, 1_200]));
    (kind, cure, every(&[0, 60, 600]), flaps, sticks).prop_map(|(kind, cure, back_after, flaps, sticks)| Plague {
        kind,
        cure,
        back_after,
        flaps,
        sticks,
    })
}

/// What has been seen so far.
struct Seen {
    began: Timestamp,
    /// Since when each node has not had its fault any more.
    well: BTreeMap<&'static str, Timestamp>,
    /// When each act that disturbs its node was asked for first, by operation.
    acts: BTreeMap<String, Timestamp>,
    /// When the clock was set, by the clock as it is since then, and how far ahead.
    set: Option<(Timestamp, Duration)>,
}

/// The clock is set once, so long after the beginning.
#[derive(Clone, Copy, Debug)]
struct Set {
    after: Duration,
    by: SignedDuration,
}

fn set() -> impl Strategy<Value = Set> {
    let by = prop::sample::select(vec![-1_000_000_i64, -7_200, -300, -30, 30, 300, 7_200]);
    (60_u64..9_000, by).prop_map(|(after, by)| Set { after: secs(after), by: SignedDuration::from_secs(by) })
}

impl Seen {
    /// What has been seen is as long ago as before, whatever the clock says.
    fn set(&mut self, by: SignedDuration, now: Timestamp) {
        self.set = Some((now, by.try_into().unwrap_or_default()));
        self.began += by;
        self.well.values_mut().chain(self.acts.values_mut()).for_each(|at| *at += by);
    }

    fn strike(&mut self, world: &mut World, name: &'static str, plague: &Plague, told: &mut Told) {
        let now = world.now;
        let lasts = since(now, self.began);
        if !world.nodes.contains_key(name) {
            return;
        }
        let mut ill = fault(plague.kind, "x0");
        ill.first_seen = now;
        if world.node(name).sick.iter().any(|sick| sick.fault.id == ill.id) {
            self.well.remove(name);
        } else if since(now, *self.well.entry(name).or_insert(now)) >= plague.back_after {
            told.happens(Duration::ZERO, &format!("{name} has {}", plague.kind));
            world.inject(name, ill, plague.cure);
        }
        let number = |every: Duration| lasts.as_secs() / every.as_secs();
        let node = world.node(name);
        if let Some(every) = plague.flaps {
            node.view.ready = if number(every).is_multiple_of(2) { TriState::True } else { TriState::False };
        }
        if let Some(every) = plague.sticks
            && node.pods.is_empty()
        {
            node.pods = vec![backing_off(name, &format!("agent-{name}-{}", number(every)))];
        }
    }

    fn note(&mut self, plan: &Plan, now: Timestamp) {
        for effect in &plan.effects {
            let Effect::Act { operation_id, operation, .. } = effect else { continue };
            if !matches!(operation, Operation::Cordon | Operation::Taint(_) | Operation::Notify(_)) {
                self.acts.entry(operation_id.clone()).or_insert(now);
            }
        }
    }

    /// In no stretch of time is a node acted on more often than its policy lets it.
    fn check_acts(&self, world: &World) {
        for policy in &world.policies {
            let (most, within) = (policy.limits.per_node.max_actions as usize, policy.limits.per_node.window);
            for node in NODES {
                let own = |e: &&Remediation| e.mode == Mode::Enforce && e.policy == policy.name && e.node == node;
                let steps = world.remediations.values().filter(own).flat_map(|remediation| {
                    remediation.steps.iter().map(|step| ((&step.operation_id, &remediation.node_uid), step))
                });
                let touched = steps.filter(|(_, step)| {
                    let is_begun = step.started_at.is_some() || step.executed_at.is_some();
                    is_begun && step.state != StepState::Refused && !step.is_refused_call()
                });
                let mut at: BTreeMap<&String, Vec<Timestamp>> = BTreeMap::new();
                for ((operation, uid), _) in touched {
                    at.entry(uid).or_default().extend(self.acts.get(operation));
                }
                for times in at.values_mut() {
                    times.sort_unstable();
                    for pair in times.iter().zip(times.iter().skip(most)) {
                        let apart = since(*pair.1, *pair.0);
                        assert!(apart >= within, "{} acts on {node} by {} within {apart:?}", most + 1, policy.name);
                    }
                }
            }
        }
    }
}

/// The longest that anything in a remediation of this policy may take, or be waited for.
fn longest(world: &World, policy: &Policy) -> Duration {
    let steps = policy.rules.iter().flat_map(|rule| &rule.steps);
    let each = steps.map(|step| {
        let approval = if step.needs_approval() { step.approval_timeout } else { Duration::ZERO };
        step.timeout.max(world.settings.answer_within) + step.cooldown + step.stable_for + approval
    });
    each.max().unwrap_or_default() + SLACK
}

/// Whether it keeps its node cordoned after a reboot of which nobody knows what came.
fn may_go_down(remediation: &Remediation) -> bool {
    let is_reboot =
        |step: &StepRecord| step.action.ends_boot() && matches!(step.state, StepState::TimedOut | StepState::Cancelled);
    remediation.cleanup.has_pending_cordon()
        && remediation.current_step().is_none()
        && remediation.steps.iter().any(is_reboot)
}

/// Whatever is waited for has an end. What began before the clock was set ahead seems to last longer by that.
fn check_waits(world: &World, plan: &Plan, set: Option<(Timestamp, Duration)>) {
    for remediation in world.remediations.values().filter(|remediation| remediation.is_open()) {
        assert!(plan.next.is_some(), "open, and nobody looks again: {remediation:#?}");
        let Some(policy) = world.policies.iter().find(|policy| policy.name == remediation.policy) else { continue };
        let longest = if remediation.is_watched() { WATCHED + SLACK } else { longest(world, policy) };
        let longest = if may_go_down(remediation) { longest.max(MAY_GO_DOWN + SLACK) } else { longest };
        let step = remediation.current_step();
        let last = step.map_or_else(
            || remediation.last_activity(),
            |step| step.started_at.into_iter().chain(step.executed_at).fold(step.scheduled_at, Timestamp::max),
        );
        let ahead = set.filter(|(at, _)| last < *at).map_or(Duration::ZERO, |(_, ahead)| ahead);
        let waits = since(world.now, last).saturating_sub(ahead);
        assert!(waits <= longest, "waits for {waits:?}, at most {longest:?} expected: {remediation:#?}");
    }
}

#[test]
fn what_never_gets_well_is_not_acted_on_for_ever_and_waited_for_for_ever() {
    let plagues = prop::collection::vec(plague(), NODES.len());
    let pace = prop::sample::select(vec![20_u64, 45]);
    let input = (any_worlds(), plagues, pace, prop::option::of(set()));
    try_few(file!(), 100, &input, |(mut world, plagues, pace, set)| {
        Told::or_timeline(&mut world, |world, told| {
            let mut seen = Seen { began: world.now, well: BTreeMap::new(), acts: BTreeMap::new(), set: None };
            let mut due = set;
            while since(world.now, seen.began) < LASTS {
                if let Some(set) = due.take_if(|set| since(world.now, seen.began) >= set.after) {
                    told.happens(Duration::ZERO, &format!("the clock is set by {:#}", set.by));
                    world.now += set.by;
                    seen.set(set.by, world.now);
                }
                for (name, plague) in NODES.into_iter().zip(&plagues) {
                    seen.strike(world, name, plague, told);
                }
                world.tick(secs(pace));
                told.passes(secs(pace));
                let snapshot = world.snapshot();
                let plan = world.carry_out(&snapshot, &Chaos::default());
                told.decided(world, &plan);
                check_plan(&snapshot, &plan);
                check_world(world);
                seen.note(&plan, snapshot.now);
                check_waits(world, &plan, seen.set);
            }
            // By a clock that was set ahead, acts are longer ago than they are.
            if set.is_none_or(|set| set.by.is_negative()) {
                seen.check_acts(world);
            }
        })
    });
}
