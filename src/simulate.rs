//! `nrh simulate`: what policies would do over a timeline.
//!
//! ```text
//! files ─► policies, timeline ─► nrh_simulate::play ─► account ─► table, JSON, exit code
//! objects of a cluster ─► nrh_simulate::record ─► timeline
//! ```
//! The decision is the very one that the controller makes; only the cluster around it is made up.

mod schema;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use jiff::Timestamp;
use kube::Resource;
use serde::Serialize;
use serde_json::Value;
use serde_path_to_error::Segment;

use crate::No;
use crate::api::policy::PolicyRule;
use crate::api::{RemediationPolicy, convert};
use crate::caller::objects_in;
use crate::cli::{ClusterArgs, SimulateArgs};
use crate::core::policy::Policy;
use crate::core::text::bounded;
use crate::explain::objects::Objects;
use crate::terminal::{complain, print, print_as};

use account::{Account, Line};
use timeline::{Timeline, twice};

pub use nrh_simulate::play::{enforced, play};
pub use nrh_simulate::{account, expect, record, remediator, text, timeline, workload, world};

/// Most values of a policy that are told at once which cannot be read.
const MAX_ERRORS: usize = 20;

/// Longest text about what was found instead, in bytes.
const MAX_FOUND: usize = 128;
/// How the reader names numbers of whatever size.
const NUMBERS: [&str; 3] = ["i32", "i64", "u32"];

/// Runs `nrh simulate`.
///
/// # Errors
/// [`No`] where an expectation of the timeline is not met. Any other error: a file cannot be read or used, or the cluster does not
/// answer.
pub async fn run(args: SimulateArgs) -> anyhow::Result<()> {
    ensure!(args.record || args.file.is_none(), "--file goes with --record: a timeline is named with --timeline");
    match &args.timeline {
        Some(timeline) => simulate(timeline, &args),
        None => print_record(args.file.as_deref(), &args.cluster).await,
    }
}

async fn print_record(file: Option<&Path>, cluster: &ClusterArgs) -> anyhow::Result<()> {
    let (objects, now) = Objects::load(file, None, cluster).await?;
    let (snapshot, unusable) = objects.snapshot(now);
    for sentence in unusable {
        complain(&format!("left out: {sentence}"));
    }
    print(&serde_saphyr::to_string(&record::record(&snapshot))?)
}

fn simulate(path: &Path, args: &SimulateArgs) -> anyhow::Result<()> {
    let (timeline, account) = of_files(path, &args.policies, args.assume_enforce)?;
    let unmet = expect::unmet(&timeline.expect, &account);
    let start = timeline.start;
    let end = text::moment(start, account.ended);
    let report = Report { start, end, unmet: &unmet, notes: &account.notes, lines: &account.lines };
    print_as(args.print.output, &report, |_| format!("{}\n{}", text::table(&account), text::summary(&account, start)))?;
    for note in &account.notes {
        complain(&format!("note: {note}"));
    }
    if timeline.expect.is_empty() {
        complain("note: the timeline expects nothing, so nothing was checked");
    }
    if unmet.is_empty() {
        return Ok(());
    }
    let (count, of) = (unmet.len(), timeline.expect.len());
    Err(No(format!("{count} of {of} expectations are not met:\n{}", unmet.join("\n"))).into())
}

/// What `-o json` and `-o yaml` print.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    start: Timestamp,
    end: Timestamp,
    unmet: &'a [String],
    notes: &'a [String],
    lines: &'a [Line],
}

/// Plays the timeline of a file, with these policies or with those that it names itself.
///
/// # Errors
/// A file cannot be read or used; the message names it.
pub fn of_files(path: &Path, policies: &[PathBuf], assume_enforce: bool) -> anyhow::Result<(Timeline, Account)> {
    let cannot_use = || format!("cannot use timeline {}", path.display());
    let timeline = Timeline::parse(&read(path)?).with_context(cannot_use)?;
    let beside = path.parent().unwrap_or_else(|| Path::new(""));
    let own: Vec<PathBuf> = timeline.policies.iter().map(|file| beside.join(file)).collect();
    let files = if policies.is_empty() { &own } else { policies };
    ensure!(!files.is_empty(), "no policy: name files or folders with --policy, or in `policies` of the timeline");
    let mut found = Vec::new();
    for file in files {
        found.extend(self::policies(file)?);
    }
    if let Some(name) = twice(found.iter().map(|(_, policy)| policy.name.as_str())) {
        let its = found.iter().filter(|(_, policy)| policy.name == name);
        let files: Vec<String> = its.map(|(file, _)| file.display().to_string()).collect();
        bail!("there are two policies of the name {name}, in {}: leave one out, or rename it", files.join(" and in "));
    }
    let found = found.into_iter().map(|(_, policy)| policy).collect();
    let found = if assume_enforce { enforced(found) } else { found };
    for (number, event) in timeline.events.iter().enumerate() {
        let Some(change) = &event.policy else { continue };
        let is_there = found.iter().any(|policy| policy.name == change.name);
        ensure!(is_there, "event {} (at {}): there is no policy {}", number + 1, event.at, change.name);
    }
    let account = play(&timeline, &found);
    Ok((timeline, account))
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The policies of a file, or of all YAML files of a folder, each with its file. It skips objects of other kinds, and folders in it.
fn policies(path: &Path) -> anyhow::Result<Vec<(PathBuf, Policy)>> {
    let mut files = vec![path.to_path_buf()];
    if path.is_dir() {
        let entries = std::fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
        files = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
        let is_yaml = |file: &PathBuf| file.extension().is_some_and(|end| end == "yaml" || end == "yml");
        files.retain(|file| is_yaml(file) && !file.is_dir());
        files.sort();
    }
    let (mut found, mut others) = (Vec::new(), BTreeSet::new());
    for file in files {
        let text = read(&file)?;
        let cannot_use = || format!("cannot use {}", file.display());
        for object in objects_in(&text).with_context(cannot_use)? {
            match object["kind"].as_str() {
                Some("RemediationPolicy") => found.push((file.clone(), policy(object).with_context(cannot_use)?)),
                // What is not ours is left out; a kind that is nearly ours is a slip.
                Some(kind) if is_ours(&object) && !OTHERS.contains(&kind) => {
                    return Err(anyhow!("kind: expected RemediationPolicy, found {kind:?}")).with_context(cannot_use);
                }
                Some(kind) => drop(others.insert(kind.to_owned())),
                None if object.is_null() => {}
                None => drop(others.insert("an object without kind".to_owned())),
            }
        }
    }
    if found.is_empty() {
        let others: Vec<String> = others.into_iter().collect();
        let others = if others.is_empty() { "no object".to_owned() } else { bounded(&others.join(", "), MAX_FOUND) };
        bail!("there is no RemediationPolicy in {}: found {others}", path.display());
    }
    Ok(found)
}

/// Kinds of ours that are no policies.
const OTHERS: [&str; 4] = ["NodeRuntimeHealth", "NodeRemediation", "NodeCommand", "RemediationConfig"];

fn is_ours(object: &Value) -> bool {
    let group = object["apiVersion"].as_str().and_then(|version| version.split_once('/')).map(|(group, _)| group);
    group == Some(&*RemediationPolicy::group(&()))
}

/// What is wrong, and where in the object.
fn at_its_place(error: &serde_path_to_error::Error<serde_json::Error>, object: &Value) -> String {
    let (place, mut message) = (error.path().to_string(), error.inner().to_string());
    if let Some((before, _)) = message.rsplit_once("expected ").filter(|(_, kind)| NUMBERS.contains(kind)) {
        message = format!("{before}expected a whole number");
    }
    // A value that may be of several types is refused without being named.
    let is_unnamed = message.starts_with("expected ") && !message.contains(", found ");
    if let Some(found) = value_at(object, error.path()).filter(|_| is_unnamed) {
        message = format!("{message}, found {}", bounded(&found.to_string(), MAX_FOUND));
    }
    let hint = if message.starts_with("invalid type: boolean") {
        "; a word that YAML takes for true or false has to be in quotes"
    } else {
        ""
    };
    if place == "." { format!("{message}{hint}") } else { format!("{place}: {message}{hint}") }
}

/// Where the rules' names stand in a place their numbers, as in all other places: `rules[orphan].steps` is `spec.rules[0].steps`.
fn by_numbers(error: &str, rules: &[PolicyRule]) -> String {
    let numbered = rules.iter().enumerate().find_map(|(number, rule)| {
        let rest = error.strip_prefix(&format!("rules[{}]", rule.name))?;
        Some(format!("spec.rules[{number}]{rest}"))
    });
    numbered.unwrap_or_else(|| format!("spec.{error}"))
}

/// The policy in an object, and the values in it that cannot be read: each such value is removed, and the rest is read again.
fn read_policy(mut object: Value) -> (Option<RemediationPolicy>, Vec<String>) {
    let mut errors = Vec::new();
    loop {
        match serde_path_to_error::deserialize::<_, RemediationPolicy>(&object) {
            Ok(policy) => return (Some(policy), errors),
            // It may be missing since it was left out.
            Err(error) if !errors.is_empty() && error.inner().to_string().starts_with("missing field") => {
                return (None, errors);
            }
            Err(error) => {
                errors.push(at_its_place(&error, &object));
                if errors.len() >= MAX_ERRORS || !leave_out(&mut object, error.path()) {
                    return (None, errors);
                }
            }
        }
    }
}

/// The part of a policy about which further errors prove nothing once the value at `place` is removed: its rule, or else its field.
fn unreliable_after(place: &str) -> &str {
    let in_rule = place.starts_with("spec.rules[").then(|| place.find("].")).flatten();
    let field = || place.strip_suffix(']').and_then(|place| place.rsplit_once('[')).map_or(place, |(field, _)| field);
    in_rule.and_then(|end| place.get(..end + 2)).unwrap_or_else(field)
}

fn value_at<'v>(object: &'v Value, path: &serde_path_to_error::Path) -> Option<&'v Value> {
    path.iter().try_fold(object, |value, segment| match segment {
        Segment::Map { key } => value.get(key),
        Segment::Seq { index } => value.get(index),
        _ => None,
    })
}

/// Takes the innermost field out that lies on a way into an object; whether there was one.
fn leave_out(object: &mut Value, path: &serde_path_to_error::Path) -> bool {
    let way: Vec<&Segment> = path.iter().collect();
    let Some(last) = way.iter().rposition(|segment| matches!(segment, Segment::Map { .. })) else { return false };
    let (Some(Segment::Map { key }), Some(way)) = (way.get(last), way.get(..last)) else { return false };
    let inner = way.iter().try_fold(object, |value, segment| match segment {
        Segment::Map { key } => value.get_mut(key),
        Segment::Seq { index } => value.get_mut(index),
        _ => None,
    });
    inner.and_then(Value::as_object_mut).is_some_and(|fields| fields.remove(key).is_some())
}

fn policy(mut object: Value) -> anyhow::Result<Policy> {
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("without a name").to_owned();
    let version = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    let ours = RemediationPolicy::api_version(&());
    ensure!(version == ours, "policy {name}: apiVersion: expected {ours}, found {version:?}");
    let wrong = schema::wrong(&mut object);
    let place = |error: &str| error.split_once(": ").map(|(place, _)| place.to_owned());
    // One place is told once, by who says more of it.
    let missing = |errors: &[String], known: &[String]| -> Vec<String> {
        let known: BTreeSet<String> = known.iter().filter_map(|error| place(error)).collect();
        errors.iter().filter(|error| place(error).is_none_or(|place| !known.contains(&place))).cloned().collect()
    };
    let (read, unread) = read_policy(object);
    let mut more = Vec::new();
    if let Some(object) = read {
        match convert::new_policy(&object) {
            Ok(policy) if wrong.is_empty() && unread.is_empty() => return Ok(policy),
            Ok(_) => {}
            Err(invalid) => more = invalid.0.iter().map(|error| by_numbers(error, &object.spec.rules)).collect(),
        }
    }
    let unread_places: Vec<String> = unread.iter().filter_map(|error| place(error)).collect();
    more.retain(|error| !unread_places.iter().any(|place| error.starts_with(unreliable_after(place))));
    let mut errors = missing(&wrong, &more);
    errors.extend(missing(&unread, &wrong));
    errors.extend(more);
    let apart = if errors.len() == 1 { " " } else { "\n  " };
    bail!("policy {name}:{apart}{}", errors.join("\n  "))
}
