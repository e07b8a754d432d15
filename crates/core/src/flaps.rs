//! The changes of all nodes, as the watcher sees them.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::fault::{Fault, FaultState, FaultType, MAX_FAULTS};
use super::flap::{Change, Flap, FlapRecord, FlapView, Moment, ReadySeen};
use super::kubelet::says_pleg_stalled;
use super::snapshot::{NodeView, ReportView};
use super::text::hash;
use super::tri_state::TriState;
pub(super) use stay::Stay;

mod stay;

/// Minimum time between two reports of the history of one node while nothing else about it changes.
pub const REPORTED_EVERY: Duration = Duration::from_mins(5);
/// Minimum number of changes that are reported. A reboot makes two or three, and is no history.
const REPORTED_FROM: u32 = 4;
/// Maximum number of faults of one node that are remembered after they are gone.
const MAX_GONE: usize = 8;
/// How long they are remembered.
const GONE_FOR: Duration = Duration::from_hours(2);
/// A fault that comes back this soon after another change has the same cause, and counts together with it.
const OF_ONE_CAUSE: Duration = Duration::from_mins(2);

#[derive(Clone, Debug, Default)]
struct OfNode {
    uid: String,
    /// `Ready` at first, and now. `None`: the Node has not reported it so far.
    ready: Option<(ReadySeen, ReadySeen)>,
    flap: Option<Flap>,
    /// Confirmed faults, by the hash of their ids.
    confirmed: Vec<(u64, FaultType)>,
    /// Confirmed faults that are gone, and since when.
    gone: Vec<(u64, Moment)>,
    /// How long confirmed faults were present. They may be absent for a moment.
    stays: Vec<(u64, Stay)>,
    /// The same for a kubelet that cannot check its pods. The Node reports this, not the probe.
    stalled: Option<Stay>,
    /// Since when the Node has reported that without a break, by its own time and by the watcher's.
    stalled_since: Option<(Option<Timestamp>, Moment)>,
    sequence: Option<u64>,
    is_restored: bool,
    reported: Option<(FlapRecord, Moment)>,
}

/// The changes of all nodes.
///
/// Moments are the time since the watcher started. They never go back.
#[derive(Clone, Debug, Default)]
pub struct Flaps(BTreeMap<String, OfNode>);

/// Seconds since the watcher started.
pub(super) fn moment(now: Duration) -> Moment {
    Moment::try_from(now.as_secs()).unwrap_or(Moment::MAX)
}

impl OfNode {
    fn note(&mut self, change: Change, now: Moment) {
        self.flap = Some(Flap::after(self.flap, change, now));
    }

    fn note_faults(&mut self, report: &ReportView, now: Moment) {
        let is_full = report.faults.len() >= MAX_FAULTS;
        let faults = || report.faults.iter().map(|seen| &seen.fault).filter(|fault| !fault.kind.is_cluster_fault());
        let is_there = |id: u64| faults().any(|fault| hash(&fault.id) == id);
        // A fault that the report does not name was still present where the probe could not check, or where the report was full.
        let is_gone = |(id, kind): &(u64, FaultType)| !is_full && !report.unchecked.contains(kind) && !is_there(*id);
        let went = self.confirmed.extract_if(.., |known| is_gone(known)).map(|(id, _)| (id, now));
        self.gone.extend(went);
        let keep = moment(GONE_FOR);
        self.gone.retain(|(_, since)| now.saturating_sub(*since) <= keep);
        let confirmed = |fault: &&Fault| fault.state == FaultState::Confirmed;
        for fault in faults().filter(confirmed) {
            let id = hash(&fault.id);
            if self.confirmed.iter().any(|(known, _)| *known == id) || self.confirmed.len() >= MAX_FAULTS {
                continue;
            }
            self.confirmed.push((id, fault.kind));
            if let Some(place) = self.gone.iter().position(|(gone, _)| *gone == id) {
                self.gone.remove(place);
                // The faults of one cause come and go together, and `Ready` with them.
                let with_another = moment(OF_ONE_CAUSE);
                if self.flap.is_none_or(|flap| flap.unchanged_for(now) >= with_another) {
                    self.note(Change::Fault, now);
                }
            }
        }
        let too_many = self.gone.len().saturating_sub(MAX_GONE);
        self.gone.drain(..too_many);
    }

    /// Records which faults are present, by a new report. A report that only the controller has changed is no new check.
    fn note_stays(&mut self, report: &ReportView, now: Moment) {
        let sequence = report.heartbeat.as_ref().map(|beat| beat.sequence);
        if self.sequence == sequence {
            return;
        }
        self.sequence = sequence;
        let faults = report.faults.iter().map(|seen| &seen.fault);
        let confirmed = faults.filter(|fault| fault.state == FaultState::Confirmed && !fault.kind.is_cluster_fault());
        let there: Vec<u64> = confirmed.map(|fault| hash(&fault.id)).collect();
        for (id, stay) in &mut self.stays {
            if there.contains(id) {
                *stay = stay.seen(now);
            } else {
                stay.missed();
            }
        }
        self.stays.retain(|(_, stay)| !stay.is_over(now));
        for id in there {
            if self.stays.len() < MAX_FAULTS && self.stays.iter().all(|(known, _)| *known != id) {
                self.stays.push((id, Stay::begun(now)));
            }
        }
    }

    fn note_stalled(&mut self, view: &NodeView, now: Moment) {
        let known = self.stalled_since.filter(|(ready_since, _)| *ready_since == view.ready_since);
        self.stalled_since = says_pleg_stalled(view).then(|| known.unwrap_or((view.ready_since, now)));
        if self.stalled_since.is_some() {
            self.stalled = Some(self.stalled.map_or_else(|| Stay::begun(now), |stay| stay.seen(now)));
        } else if let Some(stay) = &mut self.stalled {
            // The Node is watched, so the state lasted until now.
            *stay = if stay.lasted(now).is_some() { stay.seen(now) } else { *stay };
            stay.missed();
            self.stalled = self.stalled.filter(|stay| !stay.is_over(now));
        }
    }

    /// How long each fault was present, by the hash of its id.
    fn stayed(&self, node: &str, now: Moment) -> Vec<(u64, Duration)> {
        let stalled = self.stalled.map(|stay| (hash(&Fault::identity(FaultType::PlegStalled, node)), stay));
        let all = self.stays.iter().copied().chain(stalled);
        all.filter_map(|(id, stay)| Some((id, stay.lasted(now)?))).collect()
    }

    /// What is reported about the node now.
    fn tell(&mut self, node: &str, now: Moment, wall: Timestamp) -> Option<FlapView> {
        self.flap = self.flap.and_then(|flap| flap.settled(now));
        let Some(flap) = self.flap.filter(|flap| flap.changes() >= REPORTED_FROM) else {
            self.reported = None;
            return None;
        };
        let is_due =
            self.reported.as_ref().is_none_or(|reported| report_due(reported, &flap, now) == Some(Duration::ZERO));
        if is_due {
            let seen = self.ready.map_or((TriState::Unknown, None), |(_, seen)| seen);
            self.reported = Some((flap.record(now, wall, seen), now));
        }
        let (record, _) = self.reported.as_ref()?;
        let flapping = flap.is_flapping().then(|| flap.lasted(now));
        let stayed = if flapping.is_some() { self.stayed(node, now) } else { Vec::new() };
        let unchanged = Duration::from_secs(u64::try_from(flap.unchanged_for(now)).unwrap_or(0));
        Some(FlapView { record: record.clone(), flapping, unchanged, stayed })
    }
}

/// Time until a history must be reported again. `None`: the reported one is current.
fn report_due((record, at): &(FlapRecord, Moment), flap: &Flap, now: Moment) -> Option<Duration> {
    if record.flapping_since.is_some() != flap.is_flapping() {
        return Some(Duration::ZERO);
    }
    let age = Duration::from_secs(u64::try_from(now.saturating_sub(*at)).unwrap_or(0));
    (record.changes() != flap.changes()).then(|| REPORTED_EVERY.saturating_sub(age))
}

impl Flaps {
    fn of(&mut self, node: &str, uid: &str) -> &mut OfNode {
        let of = self.0.entry(node.to_owned()).or_default();
        if of.uid != uid {
            *of = OfNode { uid: uid.to_owned(), ..OfNode::default() };
        }
        of
    }

    /// Records the state of the Node now. A different time with the same status is no change: some kubelets renew it with every
    /// heartbeat. A change between two statuses other than True is no change either: a reboot passes through False and Unknown.
    pub fn note_ready(&mut self, node: &str, view: &NodeView, now: Duration) {
        let of = self.of(node, &view.uid);
        // A new Node has no conditions yet.
        if view.ready == TriState::Unknown && view.ready_since.is_none() {
            return;
        }
        of.note_stalled(view, moment(now));
        let seen = (view.ready, view.ready_since);
        match of.ready {
            None => of.ready = Some((seen, seen)),
            Some((first, before)) => {
                of.ready = Some((first, seen));
                if (before.0 == TriState::True) != (seen.0 == TriState::True) {
                    of.note(Change::Ready, moment(now));
                }
            }
        }
    }

    /// Records the current report of the node's own probe.
    pub fn note_report(&mut self, node: &str, report: &ReportView, now: Duration) {
        let Some(uid) = report.node_uid.as_deref().filter(|_| report.heartbeat.is_some()) else { return };
        let known = self.0.get(node);
        // A late report about another Node of that name says nothing about this one.
        if known.is_some_and(|of| of.ready.is_some() && of.uid != uid) {
            return;
        }
        let calm = report.faults.is_empty() && known.is_none_or(|of| of.confirmed.is_empty() && of.stays.is_empty());
        if !calm {
            let of = self.of(node, uid);
            of.note_faults(report, moment(now));
            of.note_stays(report, moment(now));
        }
    }

    /// Forgets a node.
    pub fn forget(&mut self, node: &str) {
        self.0.remove(node);
    }

    /// Restores the stored history of each node, once. `written` yields the uid of the Node that it is about, and the record or
    /// why it cannot be read, which counts as nothing. Call it when everything in the API is known. Returns what is wrong with a
    /// record, by node.
    pub fn restore<'a>(
        &mut self,
        now: Duration,
        wall: Timestamp,
        written: impl Fn(&str) -> Option<(&'a str, Result<&'a FlapRecord, &'a str>)>,
    ) -> Vec<(String, String)> {
        let mut refused = Vec::new();
        for (node, of) in self.0.iter_mut().filter(|(_, of)| !of.is_restored) {
            let Some(ready) = of.ready else { continue };
            of.is_restored = true;
            let Some((_, record)) = written(node).filter(|(uid, _)| *uid == of.uid) else { continue };
            let restored = record.map_err(ToOwned::to_owned);
            match restored.and_then(|record| Flap::restored(record, of.flap, ready, moment(now), wall)) {
                Ok(flap) => of.flap = Some(flap),
                Err(why) => refused.push((node.clone(), why)),
            }
        }
        refused
    }

    /// What is reported about each node that has a history. `wall` is the wall clock at `now`.
    pub fn views(&mut self, now: Duration, wall: Timestamp) -> BTreeMap<String, FlapView> {
        let now = moment(now);
        let with_history = self.0.iter_mut().filter(|(_, of)| of.flap.is_some() || of.reported.is_some());
        with_history.filter_map(|(node, of)| Some((node.clone(), of.tell(node, now, wall)?))).collect()
    }

    /// For how long each kubelet has reported that it cannot check its pods, as the watcher has seen it.
    pub fn stalls(&self, now: Duration) -> BTreeMap<String, Duration> {
        let lasted = |since| Duration::from_secs(u64::try_from(moment(now).saturating_sub(since)).unwrap_or(0));
        self.0.iter().filter_map(|(node, of)| Some((node.clone(), lasted(of.stalled_since?.1)))).collect()
    }

    /// When the passing of time alone changes what is reported.
    pub fn next_change(&self, now: Duration) -> Option<Duration> {
        let now = moment(now);
        let of_node = |of: &OfNode| {
            let flap = of.flap.filter(|flap| flap.changes() >= REPORTED_FROM)?;
            let anew = of.reported.as_ref().and_then(|reported| report_due(reported, &flap, now));
            Some(flap.settles_in(now).min(anew.unwrap_or(Duration::MAX)).max(Duration::from_secs(1)))
        };
        self.0.values().filter_map(of_node).min()
    }
}

#[cfg(test)]
mod tests;
