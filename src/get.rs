//! `nrh get`: every node in one line, the worst first, once or as a watch.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;

use anyhow::{Context, bail};
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::api::condition::{standing_of, status_of};
use crate::api::plain::plain;
use crate::api::view::guard::Guarded;
use crate::api::{ConditionType, NodeRuntimeHealth};
use crate::caller::{DEADLINE, client, code, error_text, is_unreachable, list};
use crate::cli::GetArgs;
use crate::core::fault::{Fault, FaultState, Severity};
use crate::core::plan::Health;
use crate::core::text::bounded;
use crate::suspend::everywhere;
use crate::terminal::{self, OutputFormat, columns, complain, print, print_as};

const TITLES: [&str; 7] = ["NODE", "HEALTH", "FAULT", "RESTART-SAFE", "REMEDIATION", "LAST-SEEN", "ACTIVITY"];
/// Column of the age, the only one that changes with every heartbeat.
const LAST_SEEN: usize = 5;
/// Longest reason for an unreadable object, in bytes.
const MAX_WHY: usize = 256;

/// Runs `nrh get`.
///
/// # Errors
/// The cluster does not answer, or it has no report of a named node.
pub async fn run(args: GetArgs) -> anyhow::Result<()> {
    let client = client(&args.cluster).await?;
    // The column does not show a suspension on nodes without work: that would take a write to each of them.
    match everywhere(client.clone()).await {
        Ok(None) => {}
        Ok(Some(suspended)) => complain(&suspended),
        Err(error) if is_unreachable(&error) => return Err(error.context("cannot list noderuntimehealths")),
        Err(error) => {
            complain(&format!("it is not known whether all remediation is suspended: {}", error_text(&error)));
        }
    }
    if args.watch {
        let events = watcher(Api::all(client), watcher::Config::default()).default_backoff();
        let mut printed = Printed::default();
        return tokio::select! {
            ended = watch(events, &args, &mut printed) => ended,
            () = terminal::unread() => Ok(()),
        };
    }
    let items = list::<NodeRuntimeHealth>(client).await.context("cannot list noderuntimehealths")?;
    let mut nodes: Vec<Node> = items.into_iter().map(Node::read).filter(|node| is_asked(&args, &node.name)).collect();
    all_exist(&args.nodes, &nodes)?;
    nodes.sort_by_cached_key(Node::rank);
    let now = Timestamp::now();
    let whole =
        json!({"apiVersion": "v1", "kind": "List", "items": nodes.iter().map(|node| &node.object).collect::<Vec<_>>()});
    print_as(args.print.output, &whole, |_| match nodes.as_slice() {
        [] => "no node has a NodeRuntimeHealth; `nrh check` says why\n".to_owned(),
        nodes => columns(TITLES, nodes.iter().map(|node| node.row(now))),
    })
}

fn is_asked(args: &GetArgs, name: &str) -> bool {
    args.nodes.is_empty() || args.nodes.iter().any(|asked| asked == name)
}

/// One node, as its object is in the API.
struct Node {
    name: String,
    object: Value,
    read: Result<NodeRuntimeHealth, String>,
}

impl Node {
    fn read(object: Value) -> Self {
        let object = plain(object, usize::MAX);
        Self::of(Guarded::read(&object), object)
    }

    fn of(guarded: Guarded<NodeRuntimeHealth>, object: Value) -> Self {
        let name = guarded.name_any();
        Self { name, object, read: guarded.0.map_err(|bad| bad.why) }
    }

    /// By health, then by the most severe fault, then by name.
    fn rank(&self) -> (Reverse<u8>, Reverse<Option<Severity>>, String) {
        let harm = match self.health() {
            Some(Health::Unhealthy) => 3,
            Some(Health::Unknown) | None => 2,
            Some(Health::Degraded) => 1,
            Some(Health::Healthy) => 0,
        };
        let status = self.read.as_ref().ok().and_then(|object| object.status.as_ref());
        let faults = status.into_iter().flat_map(|status| status.faults.iter().chain(&status.cluster_faults));
        let worst = faults.min_by(|a, b| Fault::by_urgency(a, b)).map(|fault| fault.severity);
        (Reverse(harm), Reverse(worst), self.name.clone())
    }

    /// `None` where the object cannot be read.
    fn health(&self) -> Option<Health> {
        let object = self.read.as_ref().ok()?;
        let summary = object.status.as_ref().and_then(|status| status.summary.as_ref());
        Some(summary.map_or(Health::Unknown, |summary| summary.health))
    }

    fn row(&self, now: Timestamp) -> [String; 7] {
        let none = || "-".to_owned();
        let object = match &self.read {
            Ok(object) => object,
            Err(why) => {
                let why = bounded(&format!("the object cannot be read: {why}"), MAX_WHY);
                return [self.name.clone(), "Unknown".to_owned(), none(), "Unknown".to_owned(), none(), none(), why];
            }
        };
        let status = object.status.clone().unwrap_or_default();
        let summary = status.summary.unwrap_or_default();
        let fault = summary.top_fault_type.map_or_else(none, |kind| {
            let alike = status.faults.iter().chain(&status.cluster_faults).filter(|fault| fault.kind == kind);
            let sure: Vec<FaultState> = alike.map(|fault| fault.state).collect();
            if sure.is_empty() || sure.contains(&FaultState::Confirmed) {
                kind.as_str().to_owned()
            } else if sure.contains(&FaultState::Suspected) {
                format!("{kind} (suspected)")
            } else {
                format!("{kind} (clearing)")
            }
        });
        let safe = status_of(&status.conditions, ConditionType::RestartSafe);
        let remediation = standing_of(&status.conditions, ConditionType::SelfHealing);
        let seen = status.probe.and_then(|probe| probe.heartbeat_at);
        [
            self.name.clone(),
            format!("{:?}", summary.health),
            fault,
            safe.as_str().to_owned(),
            remediation.map_or_else(none, |(_, reason)| reason.to_owned()),
            seen.map_or_else(|| "never".to_owned(), |seen| age(now, seen)),
            summary.activity,
        ]
    }
}

/// The time since `then`, in the largest sufficient unit. A node's clock may be ahead.
fn age(now: Timestamp, then: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs().max(0);
    let units = [(172_800, 86_400, "d"), (7_200, 3_600, "h"), (120, 60, "m")];
    let found = units.into_iter().find(|(from, ..)| seconds >= *from);
    found.map_or_else(|| format!("{seconds}s"), |(_, length, unit)| format!("{}{unit}", seconds / length))
}

/// The last printed row of each node, and the widths of the columns.
#[derive(Default)]
struct Printed {
    rows: BTreeMap<String, [String; 7]>,
    widest: Option<[String; 7]>,
}

impl Printed {
    /// The line of a node, if anything but its age has changed since its last line; with the titles before the first line.
    fn line(&mut self, name: &str, row: [String; 7]) -> Option<String> {
        let is_same =
            |old: &[String; 7]| (0..row.len()).all(|column| column == LAST_SEEN || old[column] == row[column]);
        if self.rows.get(name).is_some_and(is_same) {
            return None;
        }
        let is_first = self.widest.is_none();
        let widest = self.widest.get_or_insert_with(|| TITLES.map(str::to_owned));
        // The last column has no width.
        for (wide, cell) in widest.iter_mut().zip(&row).take(row.len() - 1) {
            if cell.chars().count() > wide.chars().count() {
                wide.clone_from(cell);
            }
        }
        let table = columns(widest.each_ref().map(String::as_str), [TITLES.map(str::to_owned), row.clone()]);
        self.rows.insert(name.to_owned(), row);
        // The table begins with a line of the widest cells, which is not printed. The titles and the row follow.
        let skipped = if is_first { 1 } else { 2 };
        Some(table.split_inclusive('\n').skip(skipped).collect())
    }

    /// Removes a node that has no report any more.
    fn remove(&mut self, name: &str) {
        if self.rows.remove(name).is_some() {
            complain(&format!("the NodeRuntimeHealth of {name} is deleted"));
        }
    }

    /// Removes all nodes that a new list does not have: the watch did not see their deletion.
    fn keep(&mut self, listed: &BTreeSet<String>) {
        let gone: Vec<String> = self.rows.keys().filter(|name| !listed.contains(*name)).cloned().collect();
        for name in gone {
            self.remove(&name);
        }
    }
}

/// Checks that each node that was named has a report.
fn all_exist(names: &[String], nodes: &[Node]) -> anyhow::Result<()> {
    let lacks = names.iter().filter(|name| nodes.iter().all(|node| node.name != **name));
    let lacks: Vec<&str> = lacks.map(String::as_str).collect();
    if lacks.is_empty() {
        return Ok(());
    }
    bail!("no NodeRuntimeHealth of {}; `nrh check` says why a node has none", lacks.join(", "))
}

async fn watch(
    events: impl Stream<Item = watcher::Result<Event<Guarded<NodeRuntimeHealth>>>>,
    args: &GetArgs,
    printed: &mut Printed,
) -> anyhow::Result<()> {
    let mut events = pin!(events);
    // The first list is printed as a whole. A later one, after an interruption, only says what has changed meanwhile.
    let (mut first, mut listed) = (Some(Vec::new()), BTreeSet::new());
    loop {
        // Outside of a list the watch is silent while nothing changes.
        let event = match &first {
            Some(_) => timeout(DEADLINE, events.next()).await.context("no answer from the API server in time")?,
            None => events.next().await,
        };
        let Some(event) = event else { return Ok(()) };
        let changed = match event {
            Ok(Event::Apply(object)) => watched(object)?,
            Ok(Event::InitApply(object)) => {
                listed.insert(object.name_any());
                watched(object)?
            }
            Ok(Event::Delete(object)) => {
                printed.remove(&object.name_any());
                continue;
            }
            Ok(Event::Init) => {
                listed.clear();
                continue;
            }
            Ok(Event::InitDone) => {
                if let Some(mut all) = first.take() {
                    all_exist(&args.nodes, &all)?;
                    all.sort_by_cached_key(Node::rank);
                    for node in all {
                        show(args.print.output, &node, printed)?;
                    }
                }
                printed.keep(&listed);
                continue;
            }
            Err(error) => {
                let error = answer(error);
                // A retry gives no right.
                if first.is_some() || matches!(code(&error), Some(401 | 403)) {
                    return Err(error.context("cannot watch noderuntimehealths"));
                }
                complain(&format!("the watch is interrupted and starts again: {}", error_text(&error)));
                continue;
            }
        };
        if !is_asked(args, &changed.name) {
            continue;
        }
        match &mut first {
            Some(all) => all.push(changed),
            None => show(args.print.output, &changed, printed)?,
        }
    }
}

/// The answer of the API server to a watch, as to any other call.
fn answer(error: watcher::Error) -> anyhow::Error {
    use watcher::Error::{InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => error.into(),
        WatchError(status) => kube::Error::Api(status).into(),
        NoResourceVersion => error.into(),
    }
}

/// The object of an event, with its kind: the API server omits that in lists.
fn watched(guarded: Guarded<NodeRuntimeHealth>) -> anyhow::Result<Node> {
    let object = match &guarded.0 {
        Ok(object) => serde_json::to_value(object)?,
        Err(bad) => json!({"apiVersion": NodeRuntimeHealth::api_version(&()), "kind": NodeRuntimeHealth::kind(&()),
            "metadata": bad.metadata}),
    };
    Ok(Node::of(guarded, plain(object, usize::MAX)))
}

fn show(format: OutputFormat, node: &Node, printed: &mut Printed) -> anyhow::Result<()> {
    let Some(line) = printed.line(&node.name, node.row(Timestamp::now())) else { return Ok(()) };
    match format {
        OutputFormat::Table => print(&line),
        OutputFormat::Json => print(&format!("{}\n", terminal::json(&node.object)?)),
        OutputFormat::Yaml => print(&format!("---\n{}", terminal::yaml(&node.object)?)),
    }
}

#[cfg(test)]
mod tests;
