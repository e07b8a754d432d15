//! Brings what depends on time up to date before a decision.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::State;
use super::arrival::ReportArrivals;
use super::suspects::are_pods_unread;
use nrh_api::WrittenFlap;
use nrh_api::view::report;
use nrh_core::flap::QUIET;
use nrh_core::hand_off::HandOffView;
use nrh_core::kubelet::unfinished;
use nrh_core::snapshot::Snapshot;
use nrh_core::sorted_cursor::SortedCursor;

impl State {
    /// Updates everything that depends on time to `now`.
    pub fn refresh(&mut self, now: Instant, wall: Timestamp) {
        self.snapshot.now = wall;
        self.snapshot.admission_not_enforced = self.admission.not_enforced(now);
        let unseen = ReportArrivals::default();
        let mut arrivals = SortedCursor::new(&self.arrivals);
        for (node, view) in &mut self.snapshot.reports {
            // By the controller's own clock: a node's may be wrong.
            let arrivals = arrivals.at(node).unwrap_or(&unseen);
            report::age(view, arrivals.age(now), arrivals.is_age_known());
        }
        self.refresh_starts(now);
        self.snapshot.matched_conditions = self.notices.matched_conditions(self.since_start(now), wall);
        self.refresh_flaps(now, wall);
        self.snapshot.jobs =
            self.jobs.iter().filter(|(_, row)| row.exists).map(|(id, row)| (id.clone(), row.view(id, now))).collect();
        let read = |(view, at): &(HandOffView, Instant)| HandOffView {
            read: now.saturating_duration_since(*at),
            ..view.clone()
        };
        self.snapshot.hand_offs = self.hand_offs.iter().map(|(id, seen)| (id.clone(), read(seen))).collect();
        self.snapshot.pods_read = self.pod_reads.nodes(now);
        self.snapshot.pods_unread = are_pods_unread(self, now);
        self.snapshot.terminating = self.pod_reads.terminating();
        self.snapshot.pods = self.pod_reads.pods(now);
        self.snapshot.pods_seen = self.known_pods.seen(now);
    }

    /// Updates how nodes have changed. The controller restores the history from the API once, after the first lists are complete.
    fn refresh_flaps(&mut self, now: Instant, wall: Timestamp) {
        let since_start = self.since_start(now);
        if self.is_synced() {
            let statuses = &self.controller_statuses;
            let written = |node: &str| {
                let status = statuses.get(node)?;
                status.owner.as_deref().zip(status.flap.as_ref().map(WrittenFlap::read))
            };
            for (node, why) in self.flaps.restore(since_start, wall, written) {
                tracing::warn!(
                    node,
                    why,
                    "status.flapping of its NodeRuntimeHealth is refused; its history begins anew"
                );
            }
        }
        self.snapshot.flaps = self.flaps.views(since_start, wall);
        self.snapshot.stalls = self.flaps.stalls(since_start);
        self.snapshot.watched_for = since_start;
    }

    /// Updates since when the controller sees each unfinished start of a kubelet. A new process is a new start.
    fn refresh_starts(&mut self, now: Instant) {
        let Snapshot { nodes, reports, .. } = &mut self.snapshot;
        let seen = std::mem::take(&mut self.unfinished);
        let mut nodes = SortedCursor::new(&*nodes);
        for (node, report) in reports {
            let kubelet = &mut report.kubelet;
            let lasts = nodes.at(node).is_some_and(|view| unfinished(view, kubelet).is_some());
            let began = kubelet.began.filter(|_| lasts);
            let since = began.map(|began| match seen.get(node) {
                Some((known, since)) if *known == began => (began, *since),
                _ => (began, now),
            });
            kubelet.unfinished = since.map(|(_, since)| now.saturating_duration_since(since));
            self.unfinished.extend(since.map(|since| (node.clone(), since)));
        }
    }

    /// When time alone next changes the result of [`State::refresh`], apart from ages.
    pub fn next_change(&self, now: Instant) -> Option<Duration> {
        let of_jobs = self.jobs.values().filter_map(|row| row.settles_in(now)).min();
        let since_start = self.since_start(now);
        // Until then the controller cannot know that a node does not flap.
        let watched = QUIET.checked_sub(since_start).filter(|left| !left.is_zero());
        let proof = self.admission.next_change(now);
        of_jobs.into_iter().chain(proof).chain(self.flaps.next_change(since_start)).chain(watched).min()
    }
}
