//! The workloads as processes.

#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nrh-testbed-workload"));
    command.args(arguments).stdout(Stdio::piped()).spawn().unwrap()
}

/// Waits for the first line, which comes after the handlers are set.
fn working(child: &mut Child) {
    use std::io::{BufRead, BufReader};
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("working"), "{line}");
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn work_ends_at_once_on_sigterm() {
    let mut child = start(&["work"]);
    working(&mut child);
    let before = Instant::now();
    signal(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(before.elapsed() < Duration::from_secs(2));
}

#[test]
fn a_stubborn_workload_needs_sigkill() {
    let mut child = start(&["work", "--ignore-term"]);
    working(&mut child);
    signal(&child, Signal::TERM);
    sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().code(), None);
}

#[test]
fn the_cause_of_a_failure_can_be_taken_away() {
    let cause = tempfile::NamedTempFile::new().unwrap();
    let path = cause.path().to_str().unwrap().to_owned();
    assert_eq!(start(&["fail-while", &path]).wait().unwrap().code(), Some(1));
    drop(cause);
    let mut child = start(&["fail-while", &path]);
    working(&mut child);
    signal(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn reach_says_whether_the_port_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let reach = |port: &str| {
        Command::new(env!("CARGO_BIN_EXE_nrh-testbed-workload"))
            .arg("reach")
            .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
            .env("KUBERNETES_SERVICE_PORT", port)
            .status()
            .unwrap()
    };
    assert!(reach(&port).success());
    // One that was given back could be somebody else's by now; this one is never given out.
    assert!(!reach("1").success());
}
