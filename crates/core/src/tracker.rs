//! From single checks to a verdict that lasts: Suspected → Confirmed → Clearing → gone.
//!
//! This is a pure state machine. Its only clock is the node's time since boot, which the caller passes in: a jump of the wall
//! clock changes nothing. A check counts once, and only if it is far enough from the last check that counted. A check that failed
//! changes nothing at all. The whole state can be saved and restored, so that a restarted probe neither clears nor repeats a
//! confirmation.

mod lives;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::fault::{Fault, FaultState, FaultType, MAX_FAULTS, Severity, Subject, Target};
use super::finding::{Findings, Harm, Known, Sighting, Verdict};
use super::thresholds::{Confirmation, GRACE_UNDER_PRESSURE, Thresholds};
use lives::Lives;

/// Most entries kept at once, reported or not. The tracker counts what does not fit.
pub const MAX_TRACKED: usize = 256;
/// A suspicion whose checks are further apart than this starts anew: they are not "in a row".
const LONGEST_GAP: Duration = Duration::from_mins(15);
/// Largest difference between two moments of the same check. The moment is calculated back from the age, so it may seem to move.
const SAME_CHECK: Duration = Duration::from_millis(200);

/// What the probe remembers between checks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tracker {
    /// By the id of the fault.
    entries: BTreeMap<String, Entry>,
    /// When the last kubelet that completed its start began.
    kubelet_completed: Option<Duration>,
    /// The kubelets that were seen lately.
    #[serde(default)]
    kubelets: Lives,
    /// Whether the process table has proven to be the table of the node since boot.
    #[serde(default)]
    processes_known: bool,
    /// Whether the task of every running container has been asked once since boot.
    #[serde(default)]
    tasks_known: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Count {
    checks: u32,
    last: Option<Duration>,
}

impl Count {
    fn add(&mut self, checked: Duration, apart: Duration) {
        if self.last.is_none_or(|last| checked >= last.saturating_add(apart)) {
            self.checks = self.checks.saturating_add(1);
            self.last = Some(checked);
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    kind: FaultType,
    key: String,
    state: FaultState,
    /// Seen, but harmless at the moment: the probe remembers it and does not report it.
    hidden: bool,
    first_seen: Duration,
    first_seen_wall: Timestamp,
    /// The newest check of any kind that was used.
    last_check: Duration,
    /// For how long the node was suspended since. The clock of these times stands still then, and the check grows old.
    #[serde(default)]
    suspended: Duration,
    seen: Count,
    /// The same checks, counted at the interval that applies without a kubelet.
    seen_without_kubelet: Count,
    clean: Count,
    /// Whether a check counted that may have shown mere slowness: pressure that ends makes it no stronger.
    #[serde(default)]
    may_be_slow: bool,
    severity: Severity,
    subject: Subject,
    target: Target,
    message: String,
    impact: String,
    evidence: Vec<String>,
}

/// What is wrong with the node now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tracked {
    /// Most severe first.
    pub faults: Vec<Fault>,
    /// Number of faults that are not tracked, since there are more than `MAX_TRACKED`.
    pub left_out: u32,
    /// Kinds of fault that are seen and do harm only without a kubelet, while it is not known whether one works.
    pub undecided: BTreeSet<FaultType>,
}

impl Tracked {
    /// The faults that fit into a report, and the number of all others.
    pub fn reported(mut self) -> (Vec<Fault>, u32) {
        let extra = self.faults.len().saturating_sub(MAX_FAULTS);
        self.faults.truncate(MAX_FAULTS);
        (self.faults, self.left_out.saturating_add(u32::try_from(extra).unwrap_or(u32::MAX)))
    }
}

impl Tracker {
    /// The tracker as saved in this same boot, without what is impossible: checks from the future, and more entries than are kept.
    #[must_use]
    pub fn restored(mut self, now: Duration) -> Self {
        self.entries.retain(|_, entry| entry.is_of_the_past(now));
        while self.entries.len() > MAX_TRACKED {
            self.entries.pop_last();
        }
        self.kubelet_completed = self.kubelet_completed.filter(|completed| *completed <= now);
        self.kubelets = self.kubelets.restored(now);
        self
    }

    /// Makes all checks older: the node was suspended for so long.
    pub fn was_suspended(&mut self, slept: Duration) {
        self.entries.values_mut().for_each(|entry| entry.suspended = entry.suspended.saturating_add(slept));
    }

    /// What later checks must know.
    pub fn known(&self) -> Known {
        let kubelets = self.kubelets.lately();
        Known { host_processes: self.processes_known, tasks: self.tasks_known, kubelets }
    }

    /// Applies one set of findings. Applying the same findings again changes nothing.
    ///
    /// `now` is the node's time since boot. `wall` is shown to people and used for nothing else.
    pub fn step(&mut self, now: Duration, wall: Timestamp, findings: &Findings, thresholds: &Thresholds) -> Tracked {
        if let Some(completed) = findings.kubelet.completed
            && self.kubelet_completed.is_none_or(|known| completed > known.saturating_add(lives::SAME_START))
        {
            self.kubelet_completed = Some(completed);
        }
        self.kubelets.note(&findings.kubelet);
        let is_clean = |kind: FaultType| {
            matches!(findings.coverage.get(&kind).map(|coverage| &coverage.others), Some(Verdict::Clean { .. }))
        };
        self.tasks_known |= findings.unasked == 0 && is_clean(FaultType::HungContainer);
        self.processes_known |= findings.host_processes;
        let mut overflow = 0_u32;
        // The kubelet is first: whether an orphan does harm depends on it.
        let of_kubelet = |kind: FaultType| kind == FaultType::KubeletDown;
        for kubelet in [true, false] {
            let down = !kubelet && self.kubelet_down();
            let mut sighted = Vec::new();
            for sighting in findings.sightings.iter().filter(|sighting| of_kubelet(sighting.kind) == kubelet) {
                let id = Fault::identity(sighting.kind, &sighting.key);
                if sighted.contains(&id) {
                    continue;
                }
                let is_known = self.entries.contains_key(&id);
                let is_full = !is_known && self.entries.len() >= MAX_TRACKED;
                overflow = overflow.saturating_add(u32::from(is_full));
                if !is_full || self.forget_milder(sighting.severity) {
                    self.see(&id, wall, sighting, down, thresholds);
                }
                sighted.push(id);
            }
            self.entries.retain(|id, entry| {
                of_kubelet(entry.kind) != kubelet || sighted.contains(id) || keep_unseen(entry, findings, thresholds)
            });
        }
        let is_sighted = findings.sightings.iter().any(|sighting| of_kubelet(sighting.kind));
        // A kubelet that runs and cannot be asked counts as one that works.
        let is_unchecked = findings.kubelet.began.is_none() && !is_clean(FaultType::KubeletDown);
        let is_open = !self.kubelet_down() && (is_sighted || is_unchecked);
        self.report(now, overflow, is_open)
    }

    /// Ids of sandboxes and containers that the probe suspects: their tasks are worth another request.
    pub fn suspects(&self) -> impl Iterator<Item = &Subject> {
        self.entries.values().filter(|entry| !entry.hidden).map(|entry| &entry.subject)
    }

    /// Forgets a suspicion that is less severe than this; whether there was one.
    fn forget_milder(&mut self, severity: Severity) -> bool {
        let milder = self.entries.iter().filter(|(_, entry)| entry.state == FaultState::Suspected);
        let milder = milder.filter(|(_, entry)| entry.severity < severity).map(|(id, _)| id.clone()).next();
        milder.is_some_and(|id| self.entries.remove(&id).is_some())
    }

    fn kubelet_down(&self) -> bool {
        self.entries.values().any(|entry| entry.kind == FaultType::KubeletDown && entry.state == FaultState::Confirmed)
    }

    fn see(&mut self, id: &str, wall: Timestamp, sighting: &Sighting, down: bool, thresholds: &Thresholds) {
        let mut new_check = !self.entries.contains_key(id);
        let entry = self.entries.entry(id.to_owned()).or_insert_with(|| Entry::new(wall, sighting));
        new_check |= entry.is_new(sighting.checked);
        if new_check
            && entry.state == FaultState::Suspected
            && sighting.checked > entry.last_check.saturating_add(LONGEST_GAP)
        {
            *entry = Entry::new(wall, sighting);
        }
        // A kubelet that has completed its start and still runs is no longer "none", whether it answers or not. It may continue
        // at any moment, and create or remove containers.
        let alone = down
            && !self.kubelets.works_or_hangs()
            && self.kubelet_completed.is_none_or(|completed| completed < entry.first_seen);
        // The probe may not see a kubelet that tries to start and dies on the orphan: such a kubelet may live for milliseconds.
        // So a fault that only waits for a kubelet counts as soon as the kubelet is confirmed to be down.
        let harms = sighting.harm == Harm::Always || alone;
        entry.update(sighting, alone);
        if !harms && entry.state != FaultState::Suspected {
            // The fault is present, but does no harm any more.
            if new_check && entry.clear(sighting.checked, thresholds) {
                entry.rest();
            }
            return;
        }
        entry.hidden = !harms;
        if new_check {
            entry.checked(sighting.checked);
            entry.clean = Count::default();
            if sighting.certain {
                entry.count(sighting, alone);
                if entry.state == FaultState::Clearing {
                    entry.state = FaultState::Confirmed;
                }
            }
        }
        if entry.state == FaultState::Suspected && sighting.certain && harms && entry.is_enough(sighting, alone) {
            entry.state = FaultState::Confirmed;
        }
    }

    fn report(&self, now: Duration, overflow: u32, is_kubelet_open: bool) -> Tracked {
        let mut faults: Vec<Fault> =
            self.entries.iter().filter(|(_, entry)| !entry.hidden).map(|(id, entry)| entry.fault(id, now)).collect();
        faults.sort_by(Fault::by_urgency);
        let hidden = self.entries.values().filter(|entry| is_kubelet_open && entry.hidden);
        Tracked { faults, left_out: overflow, undecided: hidden.map(|entry| entry.kind).collect() }
    }
}

/// Whether an entry that these findings do not show is kept.
fn keep_unseen(entry: &mut Entry, findings: &Findings, thresholds: &Thresholds) -> bool {
    let verdict = findings.coverage.get(&entry.kind).map(|coverage| coverage.of(&entry.key));
    match verdict {
        Some(Verdict::Clean { checked }) if entry.is_new(*checked) => match entry.state {
            FaultState::Suspected => false,
            FaultState::Confirmed | FaultState::Clearing => !entry.clear(*checked, thresholds),
        },
        _ => true,
    }
}

impl Entry {
    fn new(wall: Timestamp, sighting: &Sighting) -> Self {
        Self {
            kind: sighting.kind,
            key: sighting.key.clone(),
            state: FaultState::Suspected,
            hidden: sighting.harm == Harm::WithoutKubelet,
            first_seen: sighting.since,
            first_seen_wall: wall,
            last_check: sighting.checked,
            suspended: Duration::ZERO,
            seen: Count::default(),
            seen_without_kubelet: Count::default(),
            clean: Count::default(),
            may_be_slow: false,
            severity: sighting.severity,
            subject: sighting.subject.clone(),
            target: sighting.target.clone(),
            message: String::new(),
            impact: String::new(),
            evidence: Vec::new(),
        }
    }

    /// Whether every check in this entry was made before now. A check from the future would keep all others from counting.
    fn is_of_the_past(&self, now: Duration) -> bool {
        let counts = [&self.seen, &self.seen_without_kubelet, &self.clean];
        let counted = counts.into_iter().filter_map(|count| count.last).max().unwrap_or_default();
        self.first_seen.max(counted) <= self.last_check && self.last_check <= now
    }

    const fn checked(&mut self, checked: Duration) {
        (self.last_check, self.suspended) = (checked, Duration::ZERO);
    }

    fn is_new(&self, checked: Duration) -> bool {
        checked > self.last_check.saturating_add(SAME_CHECK)
    }

    /// `alone`: no kubelet runs that could have created the object or could remove it. Checks from before do not count then.
    fn count(&mut self, sighting: &Sighting, alone: bool) {
        self.may_be_slow |= sighting.confirm.may_be_slow;
        // The fault has been present since then, so the first check counts as of that time.
        let is_first = self.seen.checks == 0;
        if is_first {
            self.first_seen = self.first_seen.min(sighting.since);
        }
        self.seen.add(if is_first { sighting.since } else { sighting.checked }, sighting.confirm.interval);
        match &sighting.without_kubelet {
            Some(other) if alone => self.seen_without_kubelet.add(sighting.checked, other.confirm.interval),
            _ => self.seen_without_kubelet = Count::default(),
        }
    }

    /// Takes over the content of the newest sighting. The identity stays; the target may change.
    fn update(&mut self, sighting: &Sighting, alone: bool) {
        let other = sighting.without_kubelet.as_ref().filter(|_| alone);
        self.severity = other.map_or(sighting.severity, |other| other.severity);
        debug_assert!(self.severity <= sighting.kind.spec().worst_severity, "{} is {:?}", sighting.kind, self.severity);
        other.map_or(sighting.impact, |other| other.impact).clone_into(&mut self.impact);
        self.subject = sighting.subject.clone();
        self.target = sighting.target.clone();
        self.message.clone_from(&sighting.message);
        self.evidence.clone_from(&sighting.evidence);
    }

    fn is_enough(&self, sighting: &Sighting, alone: bool) -> bool {
        let long = self.last_check.saturating_sub(self.first_seen);
        let least = if self.may_be_slow { GRACE_UNDER_PRESSURE } else { Duration::ZERO };
        let enough =
            |count: &Count, need: &Confirmation| count.checks >= need.checks && long >= need.grace_period.max(least);
        let other = sighting.without_kubelet.as_ref().filter(|_| alone);
        // What does harm only without a kubelet counts from the moment that there is none.
        sighting.harm == Harm::Always && enough(&self.seen, &sighting.confirm)
            || other.is_some_and(|other| enough(&self.seen_without_kubelet, &other.confirm))
    }

    /// A clean check of a confirmed fault. Returns true if it is the last one needed.
    fn clear(&mut self, checked: Duration, thresholds: &Thresholds) -> bool {
        self.checked(checked);
        self.state = FaultState::Clearing;
        self.clean.add(checked, thresholds.clear_interval);
        self.clean.checks >= thresholds.clear_checks
    }

    /// Makes the entry harmless from now on. The entry keeps the moment it was first seen, and counts anew.
    fn rest(&mut self) {
        self.state = FaultState::Suspected;
        self.hidden = true;
        (self.seen, self.seen_without_kubelet, self.clean) = (Count::default(), Count::default(), Count::default());
        self.may_be_slow = false;
    }

    fn fault(&self, id: &str, now: Duration) -> Fault {
        Fault {
            id: id.to_owned(),
            kind: self.kind,
            severity: self.severity,
            state: self.state,
            subject: self.subject.clone(),
            target: self.target.clone(),
            message: self.message.clone(),
            impact: self.impact.clone(),
            first_seen: self.first_seen_wall,
            duration_seconds: now.saturating_sub(self.first_seen).as_secs(),
            confirmations: self.seen.checks.max(self.seen_without_kubelet.checks),
            check_age_seconds: now.saturating_sub(self.last_check).saturating_add(self.suspended).as_secs(),
            evidence: self.evidence.clone(),
            evidence_bundle: None,
        }
    }
}
