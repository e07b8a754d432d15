//! In-flight slots: which remediation holds one, which may take one. The ledger is authoritative across crashes and leaders. The
//! virtual ledger lets a dry run decide as if it had acted.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::blocked::BlockReason;
use super::fault::FaultType;
use super::moment::since;
use super::plan::PlanSettings;
use super::policy::Mode;
use super::remediation::{Remediation, not_ahead};
use super::snapshot::{Ledger, Slot, Snapshot, UnreadableRemediation};

/// The types of fault that a remediation deals with, including resolved ones: they may come back while it runs.
pub type Kinds = BTreeSet<FaultType>;

/// The slots of one pass.
#[derive(Clone, Debug)]
pub struct Slots {
    stored: Option<Ledger>,
    taken: BTreeMap<String, Slot>,
    simulated: Vec<Slot>,
    /// The types of fault of the remediations that hold a slot, by the ledger and by the remediation. A remediation without an
    /// entry may be for any type.
    kinds: BTreeMap<String, Kinds>,
    /// Those of the remediations with a slot that [rest](Remediation::rests).
    resting: BTreeSet<String>,
    waiting: BTreeSet<String>,
    without_slot: Vec<String>,
    ceiling: u32,
    not_enforced: Option<String>,
}

impl Slots {
    /// Reconciles the stored ledger with the remediations. An open remediation that has acted always has its slot. The slot of a
    /// remediation that is over is released. The slot of a remediation that nobody can see is kept for a while, because the cache
    /// may lag. The slot of a remediation that exists and cannot be read is kept, because it is unknown whether it is over.
    ///
    /// An open remediation that has not acted and has no slot was created late, after its slot had been released. It is
    /// [without a slot](Self::without_slot). Without a ledger this is unknown, and the ledger is rebuilt with all of them.
    pub fn reconcile(snapshot: &Snapshot, settings: &PlanSettings) -> Self {
        let Snapshot { remediations, unreadable, .. } = snapshot;
        let (stored, now, lag) = (snapshot.ledger.as_ref(), snapshot.now, settings.cache_lag);
        let mut slots = BTreeMap::new();
        let (mut waiting, mut without_slot, mut kinds) = (BTreeSet::new(), Vec::new(), BTreeMap::new());
        let mut resting = BTreeSet::new();
        for (name, slot) in
            stored.iter().flat_map(|ledger| &ledger.slots).filter(|(name, _)| !remediations.contains_key(*name))
        {
            let is_unreadable = unreadable.contains_key(name);
            let slot = Slot { taken_at: not_ahead(slot.taken_at, now), ..slot.clone() };
            if is_unreadable || since(now, slot.taken_at) < lag {
                if !is_unreadable {
                    waiting.insert(name.clone());
                }
                kinds.extend(slot.kinds.clone().map(|of_slot| (name.clone(), of_slot)));
                slots.insert(name.clone(), slot);
            }
        }
        if stored.is_none() {
            slots.extend(
                unreadable.iter().filter_map(|(name, remediation)| Some((name.clone(), rebuilt(remediation, now)?))),
            );
        }
        for (name, remediation) in remediations {
            // This includes a remediation with only cleanup left, however long that is refused. If its slot were released, the
            // next node would be cordoned and could not be uncordoned either, up to `maxUnhealthy` nodes.
            if remediation.mode == Mode::Enforce && remediation.is_open() {
                let slot = stored.and_then(|ledger| ledger.slots.get(name));
                if stored.is_some() && slot.is_none() && remediation.phase.is_final() {
                    // Only cleanup is left, long after the remediation has ended.
                    continue;
                }
                if stored.is_some() && slot.is_none() && !remediation.was_begun() {
                    without_slot.push((remediation.started_at, name.clone()));
                    continue;
                }
                let taken_at = slot.map_or(remediation.started_at, |slot| slot.taken_at);
                let noted = slot.map_or_else(|| Some(remediation.kinds()), |slot| slot.kinds.clone());
                let both = noted.iter().flatten().copied().chain(remediation.kinds()).collect();
                kinds.insert(name.clone(), both);
                // Its node may still execute an earlier step.
                let until = remediation.last_given().and_then(|step| settings.latest_execution(step));
                if remediation.rests() && until.is_none_or(|until| until <= now) {
                    resting.insert(name.clone());
                }
                let (node, policy) = (remediation.node.clone(), remediation.policy.clone());
                slots.insert(name.clone(), Slot { node, policy, taken_at, kinds: noted });
            }
        }
        without_slot.sort_unstable();
        let without_slot = without_slot.into_iter().map(|(_, name)| name).collect();
        Self {
            stored: stored.cloned(),
            taken: slots,
            simulated: Vec::new(),
            kinds,
            resting,
            waiting,
            without_slot,
            ceiling: snapshot.ceiling,
            not_enforced: snapshot.admission_not_enforced.clone(),
        }
    }

    /// Why nothing at all may start, if so.
    pub fn not_enforced(&self) -> Option<&str> {
        self.not_enforced.as_deref()
    }

    /// Whether there is a ledger.
    pub const fn is_known(&self) -> bool {
        self.stored.is_some()
    }

    /// Whether the stored ledger holds a slot of that remediation.
    pub fn holds(&self, remediation: &str) -> bool {
        self.stored.as_ref().is_some_and(|ledger| ledger.slots.contains_key(remediation))
    }

    /// Open remediations that have not acted and have no slot, oldest first. Each gets a slot where there is room, and the slot
    /// must be stored before the remediation acts. Where there is no room, the remediation ends.
    pub fn without_slot(&self) -> Vec<String> {
        self.without_slot.clone()
    }

    /// A remediation of the node, other than `name`, that holds a slot although nobody can see it (yet).
    pub fn unseen_remediation(&self, node: &str, name: &str) -> Option<&str> {
        self.waiting
            .iter()
            .filter(|waiting| waiting.as_str() != name)
            .find(|waiting| self.taken.get(*waiting).is_some_and(|slot| slot.node == node))
            .map(String::as_str)
    }

    /// Time until the next slot without a visible remediation is released, for the next check.
    pub fn next_release(&self, now: Timestamp, lag: Duration) -> Option<Duration> {
        self.waiting
            .iter()
            .filter_map(|name| self.taken.get(name))
            .map(|slot| lag.saturating_sub(since(now, slot.taken_at)))
            .min()
    }

    /// Records that a simulated remediation would hold a slot now.
    pub fn simulate(&mut self, remediation: &Remediation) {
        let (node, policy) = (remediation.node.clone(), remediation.policy.clone());
        self.simulated.push(Slot { node, policy, taken_at: remediation.started_at, kinds: Some(remediation.kinds()) });
    }

    /// Remediations of this policy in flight; a dry run counts what it simulates.
    pub fn in_flight(&self, policy: &str, mode: Mode) -> u32 {
        u32::try_from(self.nodes_in_flight(policy, mode).count()).unwrap_or(u32::MAX)
    }

    /// Nodes on which remediations of this policy are in flight; a dry run counts what it simulates.
    pub fn nodes_in_flight<'s>(&'s self, policy: &'s str, mode: Mode) -> impl Iterator<Item = &'s str> {
        let simulated = self.simulated.iter().filter(move |_| mode == Mode::DryRun);
        self.taken.values().chain(simulated).filter(move |slot| slot.policy == policy).map(|slot| slot.node.as_str())
    }

    /// Remediations of this policy in flight that deal with a fault of one of these types, or may, on nodes other than `but`. A
    /// dry run counts what it simulates.
    pub fn in_flight_for(&self, policy: &str, mode: Mode, faults: &Kinds, but: Option<&str>) -> u32 {
        self.count(policy, mode, faults, but, |_| true)
    }

    /// The same without those that rest: a person who does not answer keeps no other node waiting.
    pub fn at_work_for(&self, policy: &str, mode: Mode, faults: &Kinds, but: Option<&str>) -> u32 {
        self.count(policy, mode, faults, but, |name| !self.resting.contains(name))
    }

    fn count(
        &self,
        policy: &str,
        mode: Mode,
        faults: &Kinds,
        but: Option<&str>,
        is_counted: impl Fn(&str) -> bool,
    ) -> u32 {
        let is_other = |slot: &Slot| slot.policy == policy && Some(slot.node.as_str()) != but;
        let is_such = |kinds: Option<&Kinds>| kinds.is_none_or(|kinds| !kinds.is_disjoint(faults));
        let taken = self.taken.iter().filter(|(name, slot)| is_other(slot) && is_such(self.kinds.get(*name)));
        let taken = taken.filter(|(name, _)| is_counted(name));
        let counts = |slot: &&Slot| mode == Mode::DryRun && is_other(slot) && is_such(slot.kinds.as_ref());
        let simulated = self.simulated.iter().filter(counts);
        u32::try_from(taken.count() + simulated.count()).unwrap_or(u32::MAX)
    }

    /// Whether that remediation rests.
    pub fn rests(&self, remediation: &str) -> bool {
        self.resting.contains(remediation)
    }

    /// Counts a remediation that rests no more, for those that this pass looks at later.
    pub fn note_work(&mut self, remediation: &Remediation) {
        if !remediation.rests() {
            self.resting.remove(&remediation.name);
        }
    }

    /// Whether the stored slot of that remediation includes this type of fault. Then every leader counts it.
    pub fn is_noted(&self, remediation: &str, kind: FaultType) -> bool {
        let slot = self.stored.as_ref().and_then(|ledger| ledger.slots.get(remediation));
        slot.and_then(|slot| slot.kinds.as_ref()).is_some_and(|kinds| kinds.contains(&kind))
    }

    /// Adds this type of fault to the slot of that remediation.
    pub fn note(&mut self, remediation: &str, kind: FaultType) {
        let (Some(slot), Some(kinds)) = (self.taken.get_mut(remediation), self.kinds.get_mut(remediation)) else {
            return;
        };
        kinds.insert(kind);
        slot.kinds = Some(kinds.clone());
    }

    fn all(&self, mode: Mode) -> usize {
        self.taken.len() + if mode == Mode::DryRun { self.simulated.len() } else { 0 }
    }

    /// Why no further remediation of this policy may start, if so. `limit` is its `maxInFlight` as a number; `mode` says whether
    /// the remediation only simulates.
    pub fn refuse(&self, policy: &str, limit: u32, mode: Mode) -> Option<(BlockReason, String)> {
        if let Some(not_enforced) = &self.not_enforced {
            return Some((BlockReason::AdmissionNotEnforced, not_enforced.clone()));
        }
        if !self.is_known() {
            let message = "the ledger of in-flight slots is missing or unreadable: nothing new starts until it is \
                           rebuilt from the open remediations";
            return Some((BlockReason::LedgerUnavailable, message.to_owned()));
        }
        let used = self.in_flight(policy, mode);
        if used >= limit {
            let message = format!(
                "policy {policy} has {used} of {limit} remediations (maxInFlight): the next one waits until one ends"
            );
            return Some((BlockReason::MaxInFlightReached, message));
        }
        let (all, ceiling) = (self.all(mode), self.ceiling);
        if all >= usize::try_from(ceiling).unwrap_or(usize::MAX) {
            let message = format!(
                "{all} slot(s) are taken, the whole cluster has {ceiling}: the next starts when one is released"
            );
            return Some((BlockReason::ClusterLimit, message));
        }
        None
    }

    /// Takes a slot for a new remediation. Ask [`Self::refuse`] first. When a remediation could not be created after it had taken
    /// a slot, it takes the slot again: the time for which it may be unseen counts from [about now](Self::slot_taken_at).
    pub fn take(&mut self, remediation: &str, slot: Slot, mode: Mode) {
        match mode {
            Mode::Enforce => {
                self.waiting.remove(remediation);
                self.kinds.extend(slot.kinds.clone().map(|kinds| (remediation.to_owned(), kinds)));
                self.taken.insert(remediation.to_owned(), slot);
            }
            Mode::DryRun => self.simulated.push(slot),
        }
    }

    /// Since when a remediation that is to be created holds its slot. While it cannot be created, this time is renewed now and
    /// then: the slot of a remediation that nobody sees is kept for `lag`, and each renewal writes the ledger.
    pub fn slot_taken_at(&self, remediation: &str, now: Timestamp, lag: Duration) -> Timestamp {
        let blocked = self.slot(remediation).map(|slot| slot.taken_at);
        blocked.filter(|taken_at| since(now, *taken_at) < lag / 2).unwrap_or(now)
    }

    /// The slot that a remediation with this name holds already (its creation failed after it had taken the slot).
    pub fn slot(&self, remediation: &str) -> Option<&Slot> {
        self.taken.get(remediation)
    }

    /// The same slots without the one of the remediation with this name, if it holds one.
    pub fn without(&self, remediation: &str) -> Cow<'_, Self> {
        let mut others = Cow::Borrowed(self);
        if self.slot(remediation).is_some() {
            others.to_mut().taken.remove(remediation);
        }
        others
    }

    /// The ledger to store, if it differs from the stored one. A missing ledger is created only where `rebuild` says that all
    /// open remediations are known.
    pub fn to_store(&self, rebuild: bool) -> Option<Ledger> {
        let ledger = Ledger { slots: self.taken.clone() };
        match &self.stored {
            Some(stored) => (*stored != ledger).then_some(ledger),
            None => rebuild.then_some(ledger),
        }
    }
}

/// The slot of an open remediation that cannot be read, where the ledger is lost. Its type of fault is unknown, so it is for any.
fn rebuilt(remediation: &UnreadableRemediation, now: Timestamp) -> Option<Slot> {
    let node = remediation.node.clone().filter(|_| remediation.is_open)?;
    let policy = remediation.policy.clone().unwrap_or_default();
    Some(Slot { node, policy, taken_at: remediation.made_at.unwrap_or(now), kinds: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAG: Duration = Duration::from_mins(1);

    fn unreadable(is_open: bool) -> BTreeMap<String, UnreadableRemediation> {
        let (node, policy) = (Some("w1".to_owned()), Some("p".to_owned()));
        BTreeMap::from([("w1-a".to_owned(), UnreadableRemediation { node, policy, is_open, ..Default::default() })])
    }

    fn slots(ledger: Option<Ledger>, unreadable: BTreeMap<String, UnreadableRemediation>) -> Slots {
        let now = Timestamp::UNIX_EPOCH + Duration::from_hours(1);
        let snapshot = Snapshot { now, ledger, unreadable, ceiling: 1, ..Snapshot::default() };
        Slots::reconcile(&snapshot, &PlanSettings::default())
    }

    fn ledger() -> Ledger {
        let (node, policy) = ("w1".to_owned(), "p".to_owned());
        let slot = Slot { node, policy, taken_at: Timestamp::UNIX_EPOCH, kinds: None };
        Ledger { slots: BTreeMap::from([("w1-a".to_owned(), slot)]) }
    }

    #[test]
    fn the_slot_of_a_remediation_that_cannot_be_read_is_kept_for_as_long_as_that_is_there() {
        let kept = slots(Some(ledger()), unreadable(false));
        assert_eq!((kept.to_store(true), kept.in_flight("p", Mode::Enforce)), (None, 1));
        assert_eq!(kept.next_release(Timestamp::UNIX_EPOCH, LAG), None, "time does not end it");
        let refused = kept.refuse("p", 5, Mode::Enforce);
        assert_eq!(refused.map(|(reason, _)| reason), Some(BlockReason::ClusterLimit));
        let gone = slots(Some(ledger()), BTreeMap::new());
        assert_eq!(gone.to_store(true), Some(Ledger::default()));
    }

    #[test]
    fn a_lost_ledger_is_rebuilt_with_those_that_are_open_and_cannot_be_read() {
        let rebuilt = slots(None, unreadable(true)).to_store(true).unwrap();
        assert_eq!(rebuilt.slots.values().map(|slot| slot.node.as_str()).collect::<Vec<_>>(), ["w1"]);
        assert_eq!(slots(None, unreadable(false)).to_store(true), Some(Ledger::default()));
        let known = slots(Some(Ledger::default()), unreadable(true));
        assert_eq!(known.to_store(true), None, "none is taken for it from a ledger that is there");
    }
}
