//! What the API server was asked, by its own audit log: read on from where the last check ended.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::PathBuf;

use anyhow::Result;
use nrh::api::CHECKS_MANAGER;
use nrh_testbed::{AuditEntry, Bed};

use crate::engine::USER;

/// The log, from some moment on.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    offset: u64,
}

/// Requests since the last check.
#[derive(Debug, Default)]
pub struct Asked {
    /// By anybody.
    pub all: usize,
    /// Reports of probes, and whatever else others than the controller write into their objects.
    pub reports: usize,
    /// By the controller.
    pub ours: Vec<AuditEntry>,
}

impl Log {
    /// From now on.
    pub fn from_now(bed: &Bed) -> Result<Self> {
        let path = bed.dir().join("audit.log");
        let offset = std::fs::metadata(&path)?.len();
        Ok(Self { path, offset })
    }

    /// What has been answered since the last check; of a watch, what has begun.
    pub fn read(&mut self) -> Result<Asked> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut asked = Asked::default();
        let mut lines = BufReader::with_capacity(1 << 20, file);
        let mut line = String::new();
        loop {
            line.clear();
            let read = lines.read_line(&mut line)?;
            // The server may be in the midst of writing the last line: it is read the next time.
            if read == 0 || !line.ends_with('\n') {
                return Ok(asked);
            }
            self.offset += read as u64;
            let stage = if line.contains("\"verb\":\"watch\"") { "ResponseStarted" } else { "ResponseComplete" };
            if !line.contains(&format!("\"stage\":\"{stage}\"")) {
                continue;
            }
            asked.all += 1;
            if line.contains(USER) {
                let entry: AuditEntry = serde_json::from_str(&line)?;
                asked.ours.extend((entry.user.username == USER).then_some(entry));
            } else {
                let is_report = line.contains("\"verb\":\"patch\"") && line.contains("noderuntimehealths");
                asked.reports += usize::from(is_report);
            }
        }
    }
}

impl Asked {
    /// More of the same window.
    pub fn extend(&mut self, other: Self) {
        self.all += other.all;
        self.reports += other.reports;
        self.ours.extend(other.ours);
    }

    /// The controller's own by kind, the upkeep of its Lease and its watches aside.
    pub fn kinds(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        for entry in self.ours.iter().filter(|entry| !is_upkeep(entry)) {
            *kinds.entry(kind(entry)).or_default() += 1;
        }
        kinds
    }

    /// When each act was answered, in order, in seconds since the epoch. The first write about a node counts: when its command is
    /// taken back, the log shows the same kind of write.
    pub fn acts(&self) -> Vec<f64> {
        let mut first: BTreeMap<String, f64> = BTreeMap::new();
        for entry in self.ours.iter().filter(|entry| is_act(entry)) {
            let name = entry.object_ref.clone().unwrap_or_default().name;
            // A Job's name may be left to the body.
            let key = if entry.verb == "create" { entry.id.clone() } else { name };
            let at = seconds(entry.stage_timestamp);
            first.entry(key).and_modify(|earliest| *earliest = earliest.min(at)).or_insert(at);
        }
        let mut at: Vec<f64> = first.into_values().collect();
        at.sort_by(f64::total_cmp);
        at
    }

    /// Requests of the controller between two moments, upkeep aside.
    pub fn between(&self, from: f64, to: f64) -> Vec<&AuditEntry> {
        let within = |entry: &&AuditEntry| (from..=to).contains(&seconds(entry.request_received_timestamp));
        self.ours.iter().filter(|entry| !is_upkeep(entry)).filter(within).collect()
    }
}

/// Seconds since the epoch.
pub fn seconds(at: jiff::Timestamp) -> f64 {
    at.as_duration().as_secs_f64()
}

/// Verb and resource. An apply is told from other patches: it costs the server more.
pub fn kind(entry: &AuditEntry) -> String {
    let object = entry.object_ref.clone().unwrap_or_default();
    let is_apply = entry.verb == "patch" && entry.request_uri.contains("force=true");
    let verb = if is_apply { "apply" } else { entry.verb.as_str() };
    if object.subresource.is_empty() {
        format!("{verb} {}", object.resource)
    } else {
        format!("{verb} {}/{}", object.resource, object.subresource)
    }
}

/// A command to a node, or a Job: what is done for a fault, not what is written about it.
fn is_act(entry: &AuditEntry) -> bool {
    let is_check = entry.request_uri.contains(CHECKS_MANAGER);
    let did = matches!(kind(entry).as_str(), "create jobs" | "create nodecommands" | "patch nodecommands") && !is_check;
    did && (200..300).contains(&entry.code())
}

fn is_upkeep(entry: &AuditEntry) -> bool {
    entry.verb == "watch" || entry.object_ref.as_ref().is_some_and(|object| object.resource == "leases")
}

/// `3 get nodes, 2 create jobs`, the most frequent first.
pub fn phrase(kinds: &BTreeMap<String, usize>, per: usize) -> String {
    let mut sorted: Vec<_> = kinds.iter().collect();
    sorted.sort_by_key(|(kind, count)| (std::cmp::Reverse(**count), (*kind).clone()));
    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
    let each = |(kind, count): (&String, &usize)| format!("{:.2} {kind}", *count as f64 / per.max(1) as f64);
    sorted.into_iter().map(each).collect::<Vec<_>>().join(", ")
}
