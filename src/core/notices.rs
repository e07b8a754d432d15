//! Since when each condition stands as policies ask for it, by the clock of who looks.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::foreign::{Asked, Foreign, MAX_NOTICED, Noticed, Standing, standing};
use super::policy::Policy;
use super::snapshot::NodeView;
use super::stuck::begun;
use super::tri::Tri;

/// What policies ask for, all of them together.
pub fn asked<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> impl Iterator<Item = &'a Asked> {
    policies.into_iter().flat_map(|policy| &policy.rules).flat_map(|rule| &rule.conditions)
}

/// What is remembered of one condition.
#[derive(Clone, Debug)]
struct Kept {
    /// As it stood when it was first seen with this reason.
    condition: Foreign,
    /// When it was first seen with this status, by the wall clock, once that was asked for.
    first_seen: Option<Timestamp>,
    /// Since when it stands as each asks for it.
    since: BTreeMap<Asked, Duration>,
}

impl Kept {
    fn first(&self) -> Duration {
        self.since.values().min().copied().unwrap_or_default()
    }
}

#[derive(Clone, Debug)]
struct OfNode {
    uid: String,
    conditions: BTreeMap<(String, Tri), Kept>,
}

/// The conditions that policies ask for, by node. A node without any has no place here.
///
/// Moments are given as the time since whoever looks began to: they never go back.
#[derive(Clone, Debug, Default)]
pub struct Notices(BTreeMap<String, OfNode>);

impl Notices {
    /// Takes over how the Node stands now; whether anything has changed that a decision reads. To be told of every change of
    /// the Node and of the policies, or a condition that was gone for a moment is taken for one that has stayed.
    pub fn note(&mut self, node: &str, view: &NodeView, policies: &[Policy], now: Duration) -> bool {
        let selecting = policies.iter().filter(|policy| policy.selector.matches(&view.labels));
        let mut met: BTreeMap<(String, Tri), (&Foreign, Vec<&Asked>)> = BTreeMap::new();
        for asked in asked(selecting) {
            let Standing::As(condition) = standing(&view.conditions, &asked.kind) else { continue };
            if asked.is_met_by(condition) {
                let key = (condition.kind.clone(), condition.status);
                met.entry(key).or_insert_with(|| (condition, Vec::new())).1.push(asked);
            }
        }
        let before = self.0.remove(node).filter(|known| known.uid == view.uid);
        let mut known = before.map(|known| known.conditions).unwrap_or_default();
        let mut changed = known.keys().any(|key| !met.contains_key(key));
        let mut conditions = BTreeMap::new();
        for (key, (condition, askers)) in met.into_iter().take(MAX_NOTICED) {
            let mut kept = known.remove(&key).unwrap_or_else(|| {
                changed = true;
                Kept { condition: condition.clone(), first_seen: None, since: BTreeMap::new() }
            });
            if kept.condition.reason != condition.reason {
                changed = true;
                kept.condition = condition.clone();
            }
            let since = |asked: &Asked| kept.since.get(asked).copied().unwrap_or(now);
            let since: BTreeMap<Asked, Duration> = askers.iter().map(|one| ((*one).clone(), since(one))).collect();
            changed |= since != kept.since;
            kept.since = since;
            conditions.insert(key, kept);
        }
        if !conditions.is_empty() {
            self.0.insert(node.to_owned(), OfNode { uid: view.uid.clone(), conditions });
        }
        changed
    }

    /// Forgets a node.
    pub fn forget(&mut self, node: &str) {
        self.0.remove(node);
    }

    /// What stands where, and for how long. `wall` is the wall clock at `now`.
    pub fn noticed(&mut self, now: Duration, wall: Timestamp) -> BTreeMap<String, Vec<Noticed>> {
        let told = |kept: &mut Kept| {
            let first = now.saturating_sub(kept.first());
            // Told once, so that it is the same from pass to pass, whatever the wall clock does.
            let first_seen = *kept.first_seen.get_or_insert_with(|| begun(wall, first));
            let lasted = kept.since.iter().map(|(asked, since)| (asked.clone(), now.saturating_sub(*since))).collect();
            Noticed { condition: kept.condition.clone(), first_seen, lasted }
        };
        self.0
            .iter_mut()
            .map(|(node, known)| (node.clone(), known.conditions.values_mut().map(told).collect()))
            .collect()
    }
}
