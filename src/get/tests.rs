//! How nodes are read, ranked and printed, and what a watch prints.

use clap::Parser;
use futures::stream;
use kube::core::Status;

use super::*;
use crate::cli::{Cli, Command};

fn node(name: &str, health: &str, severity: Option<&str>, activity: &str) -> Node {
    let fault = |severity| {
        json!({"id": "f", "type": "HungContainer", "severity": severity, "state": "Confirmed",
            "subject": {"kind": "Container"}, "message": "m", "firstSeen": "2026-01-01T00:00:00Z"})
    };
    let conditions = json!([{"type": "RestartSafe", "status": "False", "reason": "R", "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    Node::read(json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRuntimeHealth",
        "metadata": {"name": name}, "spec": {}, "status": {"conditions": conditions,
            "faults": severity.map(fault).into_iter().collect::<Vec<_>>(),
            "summary": {"health": health, "activity": activity}}}))
}

#[test]
fn a_node_that_was_named_and_has_no_report_is_an_error() {
    let nodes = [node("w1", "Healthy", None, "")];
    assert!(all_exist(&["w1".to_owned()], &nodes).is_ok() && all_exist(&[], &[]).is_ok());
    let error = all_exist(&["w1".to_owned(), "w9".to_owned()], &nodes).unwrap_err().to_string();
    assert!(error.starts_with("no NodeRuntimeHealth of w9;"), "{error}");
}

#[test]
fn the_worst_node_is_first_and_one_that_cannot_be_read_is_not_taken_for_healthy() {
    let broken = json!({"metadata": {"name": "w0"}, "spec": {"suspend": "perhaps"}});
    let mut nodes = [
        node("w1", "Healthy", None, ""),
        Node::read(broken),
        node("w2", "Unhealthy", Some("Medium"), "x"),
        node("w3", "Degraded", Some("Low"), ""),
        node("w4", "Unhealthy", Some("Critical"), ""),
    ];
    nodes.sort_by_cached_key(Node::rank);
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["w4", "w2", "w0", "w3", "w1"]);
    let table = columns(TITLES, nodes.iter().map(|node| node.row(Timestamp::UNIX_EPOCH)));
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines[0], "NODE   HEALTH      FAULT   RESTART-SAFE   REMEDIATION   LAST-SEEN   ACTIVITY");
    assert_eq!(lines[2], "w2     Unhealthy   -       False          -             never       x");
    assert!(lines[3].starts_with("w0     Unknown ") && lines[3].contains("cannot be read"), "{table}");
}

#[test]
fn a_suspicion_is_told_as_one() {
    let cell = |state: &str| {
        let mut object = node("w1", "Degraded", Some("Medium"), "").object;
        object["status"]["faults"][0]["state"] = json!(state);
        object["status"]["summary"]["topFaultType"] = json!("HungContainer");
        Node::read(object).row(Timestamp::UNIX_EPOCH)[2].clone()
    };
    assert_eq!(
        ["Suspected", "Confirmed", "Clearing"].map(cell),
        ["HungContainer (suspected)", "HungContainer", "HungContainer (clearing)"]
    );
}

#[test]
fn a_watch_prints_a_node_again_when_more_than_its_age_has_changed() {
    let mut printed = Printed::default();
    let now = Timestamp::UNIX_EPOCH;
    let first = printed.line("w1", node("w1", "Healthy", None, "").row(now)).unwrap();
    assert_eq!(first.lines().count(), 2, "{first}");
    let mut aged = node("w1", "Healthy", None, "").row(now);
    aged[LAST_SEEN] = "9m".to_owned();
    assert_eq!(printed.line("w1", aged), None);
    let line = printed.line("w1", node("w1", "Unhealthy", None, "acts").row(now)).unwrap();
    assert!(line.starts_with("w1     Unhealthy   -") && line.trim_end().ends_with("acts"), "{line}");
    assert_eq!(line.lines().count(), 1);
}

#[test]
fn an_age_is_told_in_the_largest_unit_that_says_enough() {
    let text = |seconds: i64| age(Timestamp::from_second(seconds).unwrap(), Timestamp::UNIX_EPOCH);
    assert_eq!(
        [119, 120, 7_199, 7_200, 172_799, 172_800, -5].map(text),
        ["119s", "2m", "119m", "2h", "47h", "2d", "0s"]
    );
}

/// The events of one list.
fn list(names: &[&str]) -> Vec<watcher::Result<Event<Guarded<NodeRuntimeHealth>>>> {
    let shown = |name: &&str| Event::InitApply(Guarded::read(&node(name, "Healthy", None, "").object));
    let all = [Event::Init].into_iter().chain(names.iter().map(shown)).chain([Event::InitDone]);
    all.map(Ok).collect()
}

/// Watches these lists; after each the API server has forgotten the version, and the watch begins with another one.
async fn watched_to_the_end(lists: &[&[&str]], named: &[&str], printed: &mut Printed) -> anyhow::Result<()> {
    let Command::Get(args) = Cli::try_parse_from([&["nrh", "get", "-w"], named].concat())?.command else { panic!() };
    let gone = Status { code: 410, ..Status::default() };
    let mut events = Vec::new();
    for names in lists {
        events.extend(list(names));
        events.push(Err(watcher::Error::WatchError(Box::new(gone.clone()))));
    }
    watch(stream::iter(events), &args, printed).await
}

#[tokio::test]
async fn after_an_interruption_a_watch_goes_on_without_the_nodes_whose_reports_are_gone() {
    let mut printed = Printed::default();
    watched_to_the_end(&[&["w1", "w2"], &["w1", "w3"]], &[], &mut printed).await.unwrap();
    assert_eq!(printed.rows.keys().collect::<Vec<_>>(), ["w1", "w3"]);
    // A node that was named may go, too; it has to be there when the watch begins.
    let mut printed = Printed::default();
    watched_to_the_end(&[&["w1", "w2"], &["w1"], &["w2"]], &["w1"], &mut printed).await.unwrap();
    assert!(printed.rows.is_empty());
    let error = watched_to_the_end(&[&["w2"]], &["w1"], &mut printed).await.unwrap_err().to_string();
    assert!(error.starts_with("no NodeRuntimeHealth of w1;"), "{error}");
}
