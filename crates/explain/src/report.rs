//! The lines about a probe's report, for a report from the node or from the cluster.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use nrh_api::evidence::CallCounts;
use nrh_api::health::CollectorStatus;
use nrh_core::fault::Fault;
use nrh_core::human_duration::written;

/// Shorter ages are shown in seconds.
const MINUTES_FROM: u64 = 120;

/// An age or a wait: `70 s`, `12m30s`, `2h` or `36h10m`. No seconds where there are hours.
pub(super) fn lasting(seconds: u64) -> String {
    match seconds {
        0..MINUTES_FROM => format!("{seconds} s"),
        MINUTES_FROM..3600 => written(seconds),
        3600.. => written(seconds / 60 * 60),
    }
}

/// A fault as its detector reported it: what, how certain, on what evidence; `since` is the line that says since when.
pub(super) fn seen(out: &mut String, fault: &Fault, since: &str) {
    let _ = writeln!(out, "  fault {} ({:?}, {}): {}", fault.kind, fault.state, fault.severity.as_str(), fault.subject);
    let _ = writeln!(out, "    {}", fault.message);
    if !fault.impact.is_empty() {
        let _ = writeln!(out, "    impact: {}", fault.impact);
    }
    let _ = writeln!(out, "    {since}");
    let is_in_message = |pid: i32| fault.message.contains(&format!("process {pid} ("));
    if let Some(process) = fault.target.process.as_ref().filter(|process| !is_in_message(process.pid)) {
        let wchan = process.wchan.as_deref().map_or_else(String::new, |wchan| format!(", waits in {wchan}"));
        let _ = writeln!(
            out,
            "    process: {:?} {} ({}), state {}{wchan}",
            process.role, process.pid, process.command, process.state
        );
    }
    for line in &fault.evidence {
        let _ = writeln!(out, "    evidence: {line}");
    }
    if let Some(bundle) = &fault.evidence_bundle {
        let _ = writeln!(out, "    kept on the node: bundle {bundle} (`nrh evidence`)");
    }
}

/// Since when the probe has seen a fault, and by how many checks.
pub(super) fn by_probe(fault: &Fault) -> String {
    let (present, age) = (lasting(fault.duration_seconds), lasting(fault.check_age_seconds));
    let checks = match fault.confirmations {
        0 => "confirmed by no check yet".to_owned(),
        count => format!("seen by {count} checks in a row, the last one {age} before the report"),
    };
    format!("present for {present}, {checks}")
}

/// When each of the probe's collectors last checked, and its own message.
pub(super) fn collectors<'a>(out: &mut String, collectors: impl IntoIterator<Item = &'a CollectorStatus>) {
    for collector in collectors {
        let age = collector.age_seconds.map_or_else(|| "never".to_owned(), |age| format!("{} ago", lasting(age)));
        let state = format!("{:?}", collector.state);
        let line = format!("  collector {:<10} {state:<12} checked {age:<9} {}", collector.name, collector.message);
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// The results of the probe's calls; `now` is the word for the calls that are still running.
pub(super) fn calls(out: &mut String, now: &str, calls: &CallCounts) {
    counts(out, now, &calls.out);
    counts(out, "calls abandoned since the probe started", &calls.abandoned);
    let whole: BTreeMap<String, u64> = calls
        .stalled_seconds
        .iter()
        .map(|(collector, seconds)| {
            (collector.clone(), Duration::try_from_secs_f64(*seconds).unwrap_or_default().as_secs())
        })
        .collect();
    counts(out, "seconds in which the probe itself was stalled while it waited", &whole);
}

fn counts<N: std::fmt::Display + Default + PartialEq>(out: &mut String, what: &str, counts: &BTreeMap<String, N>) {
    let shown: Vec<String> = counts
        .iter()
        .filter(|(_, count)| **count != N::default())
        .map(|(collector, count)| format!("{collector} {count}"))
        .collect();
    if !shown.is_empty() {
        let _ = writeln!(out, "  {what}: {}", shown.join(", "));
    }
}
