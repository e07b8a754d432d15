//! Since when each condition has been as policies ask for it, by the watcher's clock.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::external_condition::{
    Asking, ConditionMatcher, ConditionState, ExternalCondition, Lasted, MAX_NOTICED, ObservedCondition, askings,
    state_of, statuses_with,
};
use super::flap::{Change, Flap, Moment};
use super::flaps::{Stay, moment};
use super::moment::begun;
use super::policy::Policy;
use super::snapshot::NodeView;

/// What all policies together ask for.
pub fn matchers<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> impl Iterator<Item = &'a ConditionMatcher> {
    rules(policies).flatten()
}

/// What all policies ask for, rule by rule.
pub fn rules<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> impl Iterator<Item = &'a [ConditionMatcher]> {
    policies.into_iter().flat_map(|policy| &policy.rules).map(|rule| rule.conditions.as_slice())
}

/// Since when a condition has been as one rule asks for it.
#[derive(Clone, Copy, Debug)]
struct Clock {
    /// Without a gap. `None`: it is not so now.
    since: Option<Duration>,
    /// With short gaps.
    stay: Stay,
}

impl Clock {
    fn begun(now: Duration) -> Self {
        Self { since: Some(now), stay: Stay::begun(moment(now)) }
    }

    /// Records that the condition is as asked for. Returns whether it has come back.
    fn comes(&mut self, now: Duration) -> bool {
        let is_back = self.since.is_none();
        self.stay = if is_back { self.stay.seen(moment(now)) } else { self.stay.stood(moment(now)) };
        self.since.get_or_insert(now);
        is_back
    }

    /// Records that the condition is not as asked for. Returns whether that is new.
    fn goes(&mut self, now: Duration) -> bool {
        let was_there = self.since.take().is_some();
        if was_there {
            self.stay = self.stay.stood(moment(now));
            self.stay.missed();
        }
        was_there
    }

    fn lasted(&self, now: Duration) -> Option<Lasted> {
        let all_in_all = self.stay.stood(moment(now)).lasted(moment(now)).unwrap_or_default();
        self.since.map(|since| Lasted { unbroken: now.saturating_sub(since), all_in_all })
    }
}

/// What is remembered of the conditions of one type.
#[derive(Clone, Debug)]
struct Kept {
    /// The condition when it was first seen with this status and reason. While it is absent, its last state.
    condition: ExternalCondition,
    /// Since when it is present without a gap, for the rule that has seen it for longest, and the wall-clock time of that, once
    /// it was asked for.
    first_seen: Option<(Duration, Timestamp)>,
    /// By all that a rule asks for of this type.
    clocks: BTreeMap<Asking, Clock>,
    /// How often it has come back after a short gap.
    flap: Option<Flap>,
}

impl Kept {
    fn new(condition: &ExternalCondition) -> Self {
        Self { condition: condition.clone(), first_seen: None, clocks: BTreeMap::new(), flap: None }
    }

    fn is_there(&self) -> bool {
        self.clocks.values().any(|clock| clock.since.is_some())
    }

    /// Records the current state, and what is asked for of this type. Returns whether anything has changed that a decision reads.
    fn note(&mut self, current: Option<&ExternalCondition>, askings: &[Asking], now: Duration) -> bool {
        let was_there = self.is_there();
        let running = self.clocks.values().filter(|clock| clock.since.is_some()).count();
        self.clocks.retain(|asking, _| askings.contains(asking));
        let mut changed = self.clocks.values().filter(|clock| clock.since.is_some()).count() != running;
        let met = |asking: &Asking| current.is_some_and(|one| asking.iter().any(|matcher| matcher.is_met_by(one)));
        let mut is_back = false;
        for asking in askings {
            match (self.clocks.get_mut(asking), met(asking)) {
                (Some(clock), true) => is_back |= clock.comes(now),
                (Some(clock), false) => changed |= clock.goes(now),
                (None, true) => {
                    self.clocks.insert(asking.clone(), Clock::begun(now));
                    changed = true;
                }
                (None, false) => {}
            }
        }
        self.clocks.retain(|_, clock| clock.since.is_some() || !clock.stay.is_over(moment(now)));
        if is_back && !was_there {
            self.flap = Some(Flap::after(self.flap, Change::Fault, moment(now)));
        }
        if let Some(condition) = current.filter(|_| self.is_there()) {
            let is_same = (self.condition.status, &self.condition.reason) == (condition.status, &condition.reason);
            if !is_same || !was_there {
                changed = true;
                self.condition = condition.clone();
            }
        }
        changed || is_back
    }

    /// Whether it is absent and nothing of it counts any more.
    fn is_over(&self, now: Moment) -> bool {
        self.clocks.is_empty() && self.flap.is_none_or(|flap| flap.settled(now).is_none())
    }

    fn matched_condition(&mut self, askings: &[Asking], now: Duration, wall: Timestamp) -> Option<ObservedCondition> {
        let since = self.clocks.values().filter_map(|clock| clock.since).min()?;
        let lasted = |(asking, clock): (&Asking, &Clock)| Some((asking.clone(), clock.lasted(now)?));
        let lasted = self.clocks.iter().filter_map(lasted).collect();
        self.flap = self.flap.and_then(|flap| flap.settled(moment(now)));
        // Computed once, so it is the same from pass to pass, whatever the wall clock does.
        let same = self.first_seen.filter(|(known, _)| *known == since);
        let (_, first_seen) = *self.first_seen.insert(same.unwrap_or((since, begun(wall, now.saturating_sub(since)))));
        Some(ObservedCondition {
            condition: self.condition.clone(),
            statuses: statuses_with(self.condition.status, askings),
            first_seen,
            lasted,
            flaps: self.flap.is_some_and(|flap| flap.is_flapping()),
        })
    }
}

#[derive(Clone, Debug)]
struct OfNode {
    uid: String,
    /// By type.
    conditions: BTreeMap<String, Kept>,
    /// What the rules of all policies that select the node ask for, by type.
    askings: BTreeMap<String, Vec<Asking>>,
}

/// The conditions that policies ask for, by node. A node without any has no entry.
///
/// Moments are the time since the watcher started. They never go back.
#[derive(Clone, Debug, Default)]
pub struct ConditionHistory(BTreeMap<String, OfNode>);

impl ConditionHistory {
    /// Records the current state of the Node. Returns whether anything has changed that a decision reads. Call it for every
    /// change of the Node and of the policies. Otherwise a condition that was gone for a moment counts as present all the time.
    pub fn note(&mut self, node: &str, view: &NodeView, policies: &[Policy], now: Duration) -> bool {
        let selecting = || policies.iter().filter(|policy| policy.selector.matches(&view.labels));
        let before = self.0.remove(node).filter(|known| known.uid == view.uid);
        let mut conditions = before.map(|known| known.conditions).unwrap_or_default();
        for matcher in matchers(selecting()) {
            let ConditionState::As(condition) = state_of(&view.conditions, &matcher.kind) else { continue };
            if !conditions.contains_key(&matcher.kind) && matcher.is_met_by(condition) {
                conditions.insert(matcher.kind.clone(), Kept::new(condition));
            }
        }
        let mut changed = false;
        let mut all = BTreeMap::new();
        for (kind, kept) in &mut conditions {
            let askings: Vec<Asking> = askings(rules(selecting()), kind);
            let current = match state_of(&view.conditions, kind) {
                ConditionState::As(condition) => Some(condition),
                ConditionState::Absent | ConditionState::Contradictory => None,
            };
            changed |= kept.note(current, &askings, now);
            all.insert(kind.clone(), askings);
        }
        conditions.retain(|_, kept| !kept.is_over(moment(now)));
        if !conditions.is_empty() {
            self.0.insert(node.to_owned(), OfNode { uid: view.uid.clone(), conditions, askings: all });
        }
        changed
    }

    /// Forgets a node.
    pub fn forget(&mut self, node: &str) {
        self.0.remove(node);
    }

    /// The conditions on each node, and how long they have lasted. `wall` is the wall clock at `now`.
    pub fn matched_conditions(&mut self, now: Duration, wall: Timestamp) -> BTreeMap<String, Vec<ObservedCondition>> {
        let of_node = |of: &mut OfNode| -> Vec<ObservedCondition> {
            let OfNode { conditions, askings, .. } = of;
            let none = Vec::new();
            let all = conditions.iter_mut();
            let matched =
                all.filter_map(|(kind, kept)| kept.matched_condition(askings.get(kind).unwrap_or(&none), now, wall));
            matched.take(MAX_NOTICED).collect()
        };
        let all = self.0.iter_mut().map(|(node, of)| (node.clone(), of_node(of)));
        all.filter(|(_, matched)| !matched.is_empty()).collect()
    }
}
