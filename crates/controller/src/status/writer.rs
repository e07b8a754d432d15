//! Writes statuses: one NodeRuntimeHealth per Node with the controller's part of it, and the status of the policies and the
//! config.
//!
//! The writer runs beside the actions and never delays them. It keeps no queue: it finds a dropped or failed write as a
//! difference in the next round, and writes it then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tokio::sync::watch;
use tokio::time::Instant;

use super::node::{Difference, difference, node_part};
use super::policy::{config_status, news_of_policy, policy_status, same_policy_status};
use super::{StatusViews, is_without_probe};
use crate::cache::State;
use crate::cache::command::CommandRow;
use crate::cache::report::ControllerStatus;
use crate::commands::Ask;
use crate::events::Events;
use crate::handles::Handles;
use nrh_api::condition::find;
use nrh_api::{ConditionReason, ConditionType};
use nrh_core::plan::NodeStatusView;
use nrh_core::sorted_cursor::SortedCursor;

mod check_requests;
mod write;

use check_requests::{CheckRequests, Wanted};
use write::{CONFIG, Write};

/// Largest number of concurrent writes.
const AT_ONCE: usize = 8;
/// Largest number of writes in one round; the next round finds the rest.
const ROUND: usize = 256;
/// Shortest time between two rounds.
const PAUSE: Duration = Duration::from_millis(50);
/// The writer runs a round at least this often.
const REPAIR: Duration = Duration::from_secs(30);
/// The writer compares every node at least this often, also where neither its object nor its wanted status has changed.
const REPAIR_ALL: Duration = Duration::from_mins(5);
/// Shortest time between two writes about one node where only texts differ.
const WORDS_EVERY: Duration = Duration::from_secs(15);
/// More differing nodes than this in one round are a crowd. Status writes then take API server time from the remediation of these
/// nodes, and most of them are outdated a moment later.
const CROWD: usize = 32;
/// How long the crowd limits apply after the last round with a crowd.
const CROWD_LASTS: Duration = Duration::from_secs(10);
/// Shortest time between two writes about one node in a crowd; the first write is immediate.
const CROWD_EVERY: Duration = Duration::from_secs(5);
/// The same where only texts differ.
const CROWD_WORDS_EVERY: Duration = REPAIR;
/// Writes a second that report a node as watched for long enough: 10,000 of them take eight minutes.
const WATCHED_RATE: u128 = 20;
/// Largest number of such writes in one round.
const WATCHED_ROUND: u128 = 100;
/// Wait after a failed write, before the next try on the same object.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The writes of one round, and what is left to it.
#[derive(Debug)]
struct Round {
    now: Instant,
    writes: Vec<Write>,
    /// Writes that may still report a node as watched for long enough.
    watched: u128,
    /// Nodes that differ, and whose last write is too recent.
    put_off: usize,
    /// When a write that has failed may be tried again. It takes no room from other writes before that.
    not_before: BTreeMap<String, Instant>,
}

impl Round {
    fn add(&mut self, write: impl Into<Option<Write>>) {
        self.writes.extend(write.into().filter(|write| !self.not_before.contains_key(&write.key())));
    }
}

/// Writes statuses.
#[derive(Debug)]
pub struct StatusWriter {
    handles: Handles,
    events: Events,
    status_view: watch::Receiver<Arc<StatusViews>>,
    check_requests: CheckRequests,
    written: BTreeMap<String, Instant>,
    not_before: BTreeMap<String, Instant>,
    /// The status views of the last comparison, and when all nodes were last compared.
    compared: (Arc<StatusViews>, Option<Instant>),
    /// The first node for which the last round had no room.
    next_node: Option<String>,
    /// Until when the crowd limits apply.
    crowded_until: Option<Instant>,
    /// When the writer last had room to report nodes as watched for long enough.
    watched_at: Instant,
}

impl StatusWriter {
    /// A writer of these status views.
    pub fn new(handles: Handles, events: Events, status_view: watch::Receiver<Arc<StatusViews>>) -> Self {
        Self {
            handles,
            events,
            status_view,
            check_requests: CheckRequests::default(),
            written: BTreeMap::new(),
            not_before: BTreeMap::new(),
            compared: (Arc::default(), None),
            next_node: None,
            crowded_until: None,
            watched_at: Instant::now(),
        }
    }

    /// Writes while this process leads. Returns when etcd was restored from a backup during the run, or when the sender of the
    /// status views is gone: the caller treats that as the end of the process.
    pub async fn run(mut self) {
        loop {
            let full = self.round().await;
            if self.is_another_history() {
                return;
            }
            if full {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let rest = self.rest();
            tokio::select! {
                changed = self.status_view.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    /// Whether the API server serves another history than the one in the cache, as a list or the answer to a write has shown.
    /// All writes depend on the cache, and the cache would take no answer to them as newer.
    fn is_another_history(&self) -> bool {
        let state = self.handles.cache.lock();
        let Some((kind, found)) = state.versions.went_back() else { return false };
        tracing::error!(
            kind,
            found,
            "versions of objects have gone back, as after a restore of etcd from a backup: nothing that is known can be trusted; this \
             process ends, and the next one reads all anew"
        );
        true
    }

    /// How long no comparison is needed while no plan arrives: a comparison of all nodes costs as much as a decision.
    fn rest(&self) -> Duration {
        let is_held_back = !self.not_before.is_empty() || !self.written.is_empty();
        if is_held_back { AFTER_FAILURE } else { REPAIR }
    }

    /// One round. Returns whether there is more to write.
    async fn round(&mut self) -> bool {
        let now = Instant::now();
        if self.handles.leadership.term(now).is_none() {
            // Another leader writes meanwhile, too.
            self.compared.1 = None;
            return false;
        }
        self.not_before.retain(|_, until| *until > now);
        self.written.retain(|_, at| now.saturating_duration_since(*at) < REPAIR);
        let status_view = self.status_view.borrow_and_update().clone();
        let writes = self.due(&status_view, now);
        let full = writes.len() >= ROUND;
        let (Handles { calls, cache, leadership, .. }, events) = (&self.handles, &self.events);
        let runs = writes.into_iter().map(|write| async move {
            // A term may end during a long round.
            let lead = leadership.term(Instant::now()).is_some();
            let result = if lead { write.carry_out(calls, cache, events).await } else { Ok(()) };
            (write.key(), result)
        });
        let results: Vec<_> = futures::stream::iter(runs).buffer_unordered(AT_ONCE).collect().await;
        for (key, result) in results {
            if let Err(error) = result {
                tracing::warn!(object = key, error = error.line(), "not written");
                self.not_before.insert(key, Instant::now() + AFTER_FAILURE);
            } else {
                self.written.insert(key, Instant::now());
            }
        }
        full
    }

    fn due(&mut self, status_view: &Arc<StatusViews>, now: Instant) -> Vec<Write> {
        let cache = self.handles.cache.clone();
        let mut state = cache.lock();
        if !state.is_synced() {
            return Vec::new();
        }
        let wall = self.handles.clock.now();
        let since = now.saturating_duration_since(self.watched_at).as_millis();
        let watched = (since.saturating_mul(WATCHED_RATE) / 1_000).min(WATCHED_ROUND);
        if watched > 0 {
            self.watched_at = now;
        }
        let not_before = std::mem::take(&mut self.not_before);
        let mut round = Round { now, writes: Vec::new(), watched, put_off: 0, not_before };
        round.add(self.config_write(&state, wall, now));
        for (name, row) in &state.policies {
            let status = policy_status(row, status_view.policies.get(name), wall);
            let is_new =
                || news_of_policy(&row.status, &status) || self.rested(&format!("policy {name}"), now, WORDS_EVERY);
            if !same_policy_status(&row.status, &status) && is_new() {
                round.add(Write::Policy { name: name.clone(), status: Box::new(status) });
            }
        }
        self.node_writes(&mut state, status_view, &mut round);
        if round.writes.len().saturating_add(round.put_off) > CROWD {
            self.crowded_until = Some(now + CROWD_LASTS);
        }
        self.not_before = round.not_before;
        round.writes
    }

    fn config_write(&self, state: &State, wall: Timestamp, now: Instant) -> Option<Write> {
        let row = state.config.as_ref()?;
        let status = config_status(row, &state.snapshot, wall);
        let [before, after] = [&row.status, &status].map(|status| find(&status.conditions, ConditionType::Ready));
        let is_suspended =
            |ready: Option<&Condition>| ready.is_some_and(|one| one.reason == ConditionReason::Suspended.as_str());
        let is_news = is_suspended(before) != is_suspended(after);
        let is_other = before != after || row.status.observed_generation != status.observed_generation;
        let is_count = row.status.active_remediations != status.active_remediations;
        let is_due = is_other || (is_count && self.rested(CONFIG, now, WORDS_EVERY));
        is_due.then(|| Write::Config { status: Box::new(status), is_news })
    }

    /// Adds the writes about nodes, as far as there is room.
    fn node_writes(&mut self, state: &mut State, status_view: &Arc<StatusViews>, round: &mut Round) {
        let State { snapshot, controller_statuses, commands, .. } = state;
        self.check_requests.retain(|node| controller_statuses.contains_key(node));
        let (before, last) = &mut self.compared;
        let is_all = last.is_none_or(|at| round.now.saturating_duration_since(at) >= REPAIR_ALL);
        let before = std::mem::replace(before, Arc::clone(status_view));
        if is_all {
            *last = Some(round.now);
        }
        // Each round goes on where the last one had no room left: texts of the first nodes keep no news of the others waiting.
        let first = self.next_node.take().unwrap_or_default();
        for part in [snapshot.nodes.range(first.clone()..), snapshot.nodes.range(..first)] {
            let (mut controller_statuses, mut commands) =
                (SortedCursor::new(&mut *controller_statuses), SortedCursor::new(&*commands));
            let (mut status_now, mut status_before) =
                (SortedCursor::new(&status_view.nodes), SortedCursor::new(&before.nodes));
            for (node, view) in part.filter(|(_, view)| !view.deleting) {
                let is_room = round.writes.len() < ROUND;
                if !is_room && self.next_node.is_none() {
                    self.next_node = Some(node.clone());
                }
                match controller_statuses.at(node) {
                    None if is_without_probe(view) || !is_room => {}
                    None => round.add(Write::Create { node: node.clone(), node_uid: view.uid.clone() }),
                    Some(current) if current.deleting => {}
                    Some(current) if current.owner.as_deref() != Some(view.uid.as_str()) => {
                        let remove = || Write::Remove { node: node.clone(), uid: current.uid.clone() };
                        round.add(is_room.then(remove));
                    }
                    Some(current) => {
                        let Some(status) = status_now.at(node) else { continue };
                        current.is_settled &= !is_all && status_before.at(node) == Some(status);
                        if !current.is_settled && is_room {
                            self.report_writes((node, &view.uid), status, current, commands.at(node), round);
                        }
                    }
                }
            }
        }
    }

    /// Adds the writes about a node whose report exists: the request for a check, and the controller's part.
    fn report_writes(
        &mut self,
        (node, node_uid): (&str, &str),
        status: &(Arc<NodeStatusView>, Vec<String>),
        current: &mut ControllerStatus,
        row: Option<&CommandRow>,
        round: &mut Round,
    ) {
        let check = self.check_requests.wanted(node, status.0.check_sequence, current.sequence, row, round.now);
        let passed_on = row.and_then(|row| row.check_requested.as_ref());
        let ask = Ask {
            number: if let Wanted::Now(number) = check { Some(number) } else { None },
            check: current.check_requested.clone().filter(|check| passed_on != Some(check)),
        };
        let is_asked = check == Wanted::Nothing && ask == Ask::default();
        if ask != Ask::default() {
            let (node, node_uid, row) = (node.to_owned(), node_uid.to_owned(), row.cloned());
            round.add(Write::Check { node, node_uid, row, ask });
        }
        current.is_settled = self.node_write(node, status, current, round) && is_asked;
    }

    /// Adds the write of the controller's part, unless it is put off. Returns whether nothing differs.
    fn node_write(
        &self,
        node: &str,
        (status_view, blocked): &(Arc<NodeStatusView>, Vec<String>),
        current: &ControllerStatus,
        round: &mut Round,
    ) -> bool {
        if current.unreadable {
            return true;
        }
        let part = node_part(status_view, blocked, current, self.handles.clock.now());
        let is_recent = |least| !self.rested(&format!("node {node}"), round.now, least);
        let is_crowded = self.crowded_until.is_some_and(|until| until > round.now);
        let is_put_off = match difference(current, &part) {
            Difference::None => return true,
            Difference::Matter => is_crowded && is_recent(CROWD_EVERY),
            Difference::Watched if round.watched == 0 => return false,
            Difference::Watched => {
                round.watched -= 1;
                false
            }
            Difference::Words => is_recent(if is_crowded { CROWD_WORDS_EVERY } else { WORDS_EVERY }),
        };
        if is_put_off {
            round.put_off += 1;
        } else {
            round.add(Write::Node { node: node.to_owned(), part: Box::new(part) });
        }
        false
    }

    /// Whether the last write with this key is at least `least` ago.
    fn rested(&self, key: &str, now: Instant, least: Duration) -> bool {
        self.written.get(key).is_none_or(|at| now.saturating_duration_since(*at) >= least)
    }
}
