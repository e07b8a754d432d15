//! Whether an account meets the expectations.

use super::account::{Account, Line, What};
use super::text::word;
use super::timeline::{Expectation, Offset};
use nrh_core::text::matches_pattern;

/// What is wrong, one sentence for each expectation that is not met.
pub fn unmet(expected: &[Expectation], account: &Account) -> Vec<String> {
    let numbered = expected.iter().enumerate();
    numbered.filter_map(|(at, one)| Some(format!("expectation {}: {}", at + 1, unmet_one(one, account)?))).collect()
}

fn unmet_one(expected: &Expectation, account: &Account) -> Option<String> {
    let is_its = |name: &str| expected.node.as_deref().is_none_or(|pattern| matches_pattern(pattern, name));
    let on = expected.node.as_deref().map_or_else(String::new, |node| format!(" on {node}"));
    if let Some(most) = expected.open_at_most {
        let peak = account.open.iter().map(|open| open.iter().filter(|name| is_its(name)).count()).max().unwrap_or(0);
        return (peak > most).then(|| format!("expected at most {most} open remediations at a time{on}, found {peak}"));
    }
    let (after, by) = (expected.after.unwrap_or_default(), expected.by);
    let what = wanted(expected);
    // A policy is blocked as a fault is.
    let content = |line: &Line| if let What::PolicyBlocked(why) = line.what { What::Blocked(why) } else { line.what };
    let of_node: Vec<&Line> = account
        .lines
        .iter()
        .filter(|line| Some(content(line)) == what)
        // A line about a policy is about no node.
        .filter(|line| line.node.as_deref().map_or(expected.node.is_none(), is_its))
        .collect();
    let in_time = |line: &&&Line| line.at >= after && by.is_none_or(|by| line.at <= by);
    let found = of_node.iter().filter(in_time).count();
    let least = expected.at_least.unwrap_or(usize::from(expected.at_most.is_none()));
    let most = expected.at_most.unwrap_or(usize::MAX);
    // The part that was not played proves nothing.
    let over = by.unwrap_or(after).max(after) > account.ended;
    let over = over.then(|| format!("; the timeline was over at {}: write a later `until`", account.ended));
    if (least..=most).contains(&found) && (over.is_none() || most == usize::MAX) {
        return None;
    }
    let times = if found < least { format!("at least {least}") } else { format!("at most {most}") };
    let at: Vec<String> = of_node.iter().take(5).map(|line| line.at.to_string()).collect();
    let at = if at.is_empty() { String::new() } else { format!("; at any time: {}", at.join(", ")) };
    let over = over.unwrap_or_default();
    let what = what.map_or_else(String::new, word);
    Some(format!("expected {what}{on}{} {times} times, found {found}{at}{over}", span(after, by)))
}

/// The content of the lines that are expected.
fn wanted(expected: &Expectation) -> Option<What> {
    let step = expected.does.map(What::Does).or(expected.would.map(What::Would));
    let end = expected.blocked.map(What::Blocked).or(expected.ends.map(What::Ends));
    let mark = expected.uncordons.then_some(What::Uncordons).or(expected.untaints.then_some(What::Untaints));
    step.or(end).or(mark)
}

fn span(after: Offset, by: Option<Offset>) -> String {
    match (after == Offset::default(), by) {
        (true, None) => String::new(),
        (true, Some(by)) => format!(" by {by}"),
        (false, None) => format!(" after {after}"),
        (false, Some(by)) => format!(" between {after} and {by}"),
    }
}
