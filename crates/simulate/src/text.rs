//! An account as people read it: a table, with one row for the same message about several nodes.

use std::collections::BTreeMap;
use std::fmt::Write;

use jiff::Timestamp;

use super::account::{Account, Line, What};
use super::timeline::Offset;

/// Maximum number of node names in one row.
const NAMES: usize = 3;

/// Lines of one moment that say the same about several nodes.
struct Row<'a> {
    first: &'a Line,
    nodes: Vec<&'a str>,
}

/// The table.
pub fn table(account: &Account) -> String {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for line in &account.lines {
        let node = line.node.as_deref();
        let alike = rows.iter_mut().rev().take_while(|row| row.first.at == line.at).find(|row| is_alike(row, line));
        match (alike, node) {
            (Some(row), Some(node)) => row.nodes.push(node),
            _ => rows.push(Row { first: line, nodes: node.into_iter().collect() }),
        }
    }
    let whats: Vec<String> = rows.iter().map(|row| word(row.first.what)).collect();
    let names: Vec<String> = rows.iter().map(nodes).collect();
    let width = |texts: &[String], least: usize| texts.iter().map(String::len).max().unwrap_or(0).max(least);
    let (of_whats, of_names) = (width(&whats, 4), width(&names, 4));
    let mut text = format!("{:<10} {:<of_names$} {:<of_whats$} WHY\n", "TIME", "NODE", "WHAT");
    for ((row, what), name) in rows.iter().zip(&whats).zip(&names) {
        let time = row.first.at.to_string();
        // Writing to a string does not fail.
        let _ = writeln!(text, "{time:<10} {name:<of_names$} {what:<of_whats$} {}", why(row));
    }
    text
}

/// The result, and when the timeline ended: one line each.
pub fn summary(account: &Account, start: Timestamp) -> String {
    let end = moment(start, account.ended);
    let count =
        |count: usize, one: &str, more: &str| if count == 1 { format!("1 {one}") } else { format!("{count} {more}") };
    let open = account.lines.iter().filter(|line| matches!(line.what, What::Open(_))).count();
    let open = (open > 0).then(|| count(open, "remediation is", "remediations are") + " open");
    let blocked = (account.blocked > 0).then(|| count(account.blocked, "fault is", "faults are") + " blocked");
    let left: Vec<String> = open.into_iter().chain(blocked).collect();
    let left = if left.is_empty() { String::new() } else { format!("; at the end {}", left.join(", ")) };
    format!("{}TIME counts from {start}, and ends at {} ({end}){left}.\n", in_all(account), account.ended)
}

/// The moment at this offset from the beginning.
pub fn moment(start: Timestamp, at: Offset) -> Timestamp {
    start.checked_add(at.0).unwrap_or(start)
}

/// What was done, in one line.
fn in_all(account: &Account) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for line in &account.lines {
        if matches!(line.what, What::Does(_) | What::Would(_) | What::Ends(_)) {
            *counts.entry(word(line.what)).or_default() += 1;
        }
    }
    if counts.is_empty() {
        return "In all: nothing is done.\n".to_owned();
    }
    let counted: Vec<String> = counts.into_iter().map(|(word, count)| format!("{count} x {word}")).collect();
    let most = account.open.iter().map(std::collections::BTreeSet::len).max().unwrap_or(0);
    let counted = counted.join(", ");
    match most {
        // A dry run holds no node.
        0 => format!("In all: {counted}.\n"),
        1 => format!("In all: {counted}; at most 1 node at a time.\n"),
        most => format!("In all: {counted}; at most {most} nodes at a time.\n"),
    }
}

/// Whether this line says about another node what the row says.
fn is_alike(row: &Row<'_>, line: &Line) -> bool {
    let first = row.first;
    (first.what, &first.policy) == (line.what, &line.policy)
        && line.node.is_some()
        && first.node.is_some()
        && general(first) == general(line)
}

/// The message, without the name of its node.
fn general(line: &Line) -> String {
    line.node.as_ref().map_or_else(|| line.message.clone(), |node| line.message.replace(node.as_str(), "NODE"))
}

fn nodes(row: &Row<'_>) -> String {
    let shown = row.nodes.iter().take(NAMES).copied().collect::<Vec<_>>().join(",");
    match row.nodes.len() {
        0 => "-".to_owned(),
        count if count > NAMES => format!("{shown},… ({count})"),
        _ => shown,
    }
}

fn why(row: &Row<'_>) -> String {
    let message = if row.nodes.len() > 1 { general(row.first) } else { row.first.message.clone() };
    match &row.first.policy {
        Some(policy) => format!("[{policy}] {message}"),
        None => message,
    }
}

/// The content of a line in a word or two.
pub(super) fn word(what: What) -> String {
    match what {
        What::Happens => "·".to_owned(),
        What::Does(action) => format!("does {}", action.as_str()),
        What::Would(action) => format!("would {}", action.as_str()),
        What::Step(state) => format!("step {state:?}"),
        What::Blocked(reason) | What::PolicyBlocked(reason) => format!("blocked {reason:?}"),
        What::PolicyUnblocked => "unblocked".to_owned(),
        What::Uncordons => "uncordons".to_owned(),
        What::Untaints => "untaints".to_owned(),
        What::Ends(phase) => format!("ends {}", phase.as_str()),
        What::Open(phase) => format!("open {}", phase.as_str()),
    }
}
