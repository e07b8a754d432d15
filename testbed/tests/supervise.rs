//! The supervisor as a process: it starts again what ends, and passes on the order to end.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use nrh_testbed::process::wait_until;
use nrh_testbed::wait::SOON;
use rustix::process::{Pid, Signal, kill_process};

fn supervise(log: &Path, options: &[&str], script: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_testbed"));
    command.arg("supervise").arg("--log").arg(log).args(options);
    command.args(["--", "sh", "-c", script]).spawn().unwrap()
}

fn until(log: &Path, what: &str) -> String {
    let text = || fs::read_to_string(log).unwrap_or_default();
    assert!(wait_until(SOON, || text().contains(what)), "no {what:?} in\n{}", text());
    text()
}

fn terminate(child: &mut Child) {
    kill_process(Pid::from_child(child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn what_ends_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut child = supervise(&log, &["--restart-sec", "0"], "exit 3");
    let text = until(&log, "attempt 3 ended");
    let ended = |line: &str| line.contains("attempt 1 ended after ") && line.ends_with(" s: exit status: 3");
    assert!(text.lines().any(ended), "{text}");
    let mut times = text.lines().map(|line| line.split(' ').next().unwrap().parse::<jiff::Timestamp>());
    assert!(times.all(|time| time.is_ok()), "{text}");
    terminate(&mut child);
}

#[test]
fn the_order_to_end_is_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let ready = dir.path().join("ready");
    let script = format!("trap 'exit 7' TERM; : >{}; while :; do sleep 0.05; done", ready.display());
    let mut child = supervise(&log, &[], &script);
    assert!(wait_until(SOON, || ready.exists()));
    terminate(&mut child);
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("exit status: 7") && text.ends_with("asked to end\n"), "{text}");
    assert_eq!(text.matches("started").count(), 1, "{text}");
}

#[test]
fn it_ends_at_once_between_two_starts() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut child = supervise(&log, &["--restart-sec", "600"], "true");
    until(&log, "attempt 1 ended");
    terminate(&mut child);
}

#[test]
fn without_a_runtime_the_start_check_refuses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let socket = dir.path().join("no.sock");
    let options = ["--start-check", "--socket", socket.to_str().unwrap()];
    let mut child = supervise(&log, &options, "exec sleep 60");
    until(&log, "attempt 1 started");
    terminate(&mut child);
}
