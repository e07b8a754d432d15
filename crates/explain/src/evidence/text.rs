//! One bundle as text.

use std::fmt::Write;

use crate::report::{by_probe, calls, collectors, seen};
use nrh_api::evidence::{Bundle, ProcessEvidence, Section};

/// The bundle as text for people. A write to a string cannot fail, so its results are ignored.
pub(super) fn text(bundle: &Bundle) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "bundle {}: node {}, {}", bundle.name, bundle.node, bundle.collected_at);
    seen(&mut out, &bundle.fault, &by_probe(&bundle.fault));
    if let Some(runtime) = &bundle.runtime {
        let _ = writeln!(out, "  runtime: {} at {}", runtime.version, runtime.endpoint);
    }
    collectors(&mut out, &bundle.collectors);
    calls(&mut out, "calls in flight then", &bundle.calls);
    for one in &bundle.processes {
        process(&mut out, one);
    }
    section(&mut out, "  ", "kernel log", &bundle.kernel_log);
    section(&mut out, "  ", "journal", &bundle.journal);
    section(&mut out, "  ", "goroutines", &bundle.goroutines);
    out
}

fn process(out: &mut String, one: &ProcessEvidence) {
    let waits = one.wchan.as_ref().map_or_else(String::new, |wchan| format!(", waits in {wchan}"));
    let state = if one.state.is_empty() { "?" } else { &one.state };
    let _ = writeln!(
        out,
        "  {} process {} ({}), begun at tick {}: state {state}{waits}",
        one.part, one.pid, one.command, one.start_ticks
    );
    if !one.note.is_empty() {
        let _ = writeln!(out, "    {}", one.note);
    }
    section(out, "    ", "kernel stack", &one.stack);
    let states: Vec<String> = one.thread_states.iter().map(|(state, count)| format!("{count} {state}")).collect();
    if !states.is_empty() {
        let _ = writeln!(out, "    threads: {}", states.join(", "));
    }
    // A sleeping thread without further data adds nothing to the count above.
    for thread in one.threads.iter().filter(|thread| thread.state != "S" || !thread.stack.is_empty()) {
        let waits = thread.wchan.as_ref().map_or_else(String::new, |wchan| format!(", waits in {wchan}"));
        let _ = writeln!(out, "    thread {}: state {}{waits}", thread.id, thread.state);
        for line in &thread.stack {
            let _ = writeln!(out, "      {line}");
        }
    }
    if let Some(caught) = &one.caught_signals {
        let _ = writeln!(out, "    signals with a handler: {caught}");
    }
    section(out, "    ", "limits", &one.limits);
    section(out, "    ", "control groups", &one.groups);
}

/// The lines of a section, or one line with the reason for their absence; nothing where there is neither.
fn section(out: &mut String, indent: &str, what: &str, section: &Section) {
    if !section.lines.is_empty() {
        let _ = writeln!(out, "{indent}{what}:");
    }
    for line in &section.lines {
        let _ = writeln!(out, "{indent}  {line}");
    }
    if !section.note.is_empty() {
        let _ = writeln!(out, "{indent}{what}: {}", section.note);
    }
}
