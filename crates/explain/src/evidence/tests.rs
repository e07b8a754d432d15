//! What is printed of bundles, good and hostile.

use std::path::Path;

use serde_json::json;

use super::local::local;
use super::*;

fn args(state_dir: &Path, fault: Option<&str>, format: OutputFormat) -> EvidenceArgs {
    EvidenceArgs {
        node: None,
        local: true,
        fault: fault.map(ToOwned::to_owned),
        print: nrh_terminal::OutputArgs { output: format },
        state_dir: state_dir.to_path_buf(),
        cluster: nrh_caller::ClusterArgs::default(),
    }
}

fn bundle(name: &str, message: &str) -> Value {
    json!({
        "name": name, "node": "worker-1", "bootId": "b", "probeVersion": "0.1.0",
        "collectedAt": "2026-03-01T03:00:00Z",
        "fault": {"id": "runtimeupdateblocked-1", "type": "RuntimeUpdateBlocked", "severity": "High", "state": "Confirmed",
            "subject": {"kind": "Runtime"}, "message": message, "firstSeen": "2026-03-01T02:58:00Z"},
        "collectors": [{"name": "lists", "state": "Hung", "message": "a call has been out for 65 s"}],
        "callsOut": {"lists": 1},
        "processes": [{"part": "runtime", "pid": 700, "startTicks": 9, "command": "containerd", "state": "S",
            "threadStates": {"S": 20, "D": 1}, "stack": {"note": "cannot be read"},
            "threads": [{"id": 701, "state": "D", "wchan": "io_schedule", "stack": ["[<0>] io_schedule"]},
                {"id": 702, "state": "S", "wchan": "futex_wait"}]}],
        "journal": {"note": "`journalctl -u containerd`"},
    })
}

/// A state folder with these bundles, and what is printed of it.
fn printed(bundles: &[(&str, String)], fault: Option<&str>, format: OutputFormat) -> anyhow::Result<String> {
    let (text, ended) = run_local(bundles, fault, format);
    ended.map(|()| text)
}

fn run_local(bundles: &[(&str, String)], fault: Option<&str>, format: OutputFormat) -> (String, anyhow::Result<()>) {
    let state = tempfile::tempdir().unwrap();
    std::fs::create_dir(state.path().join("evidence")).unwrap();
    for (name, text) in bundles {
        std::fs::write(state.path().join(format!("evidence/{name}.json")), text).unwrap();
    }
    let mut text = String::new();
    let mut out = |piece: &str| {
        text.push_str(piece);
        Ok(())
    };
    let ended = local(&mut out, &args(state.path(), fault, format));
    (text, ended)
}

#[test]
fn a_bundle_is_told_for_people() {
    let text = printed(&[("a-1", bundle("a-1", "its list hangs").to_string())], None, OutputFormat::Table).unwrap();
    for part in [
        "bundle a-1: node worker-1, 2026-03-01T03:00:00Z\n",
        "fault RuntimeUpdateBlocked (Confirmed",
        "its list hangs",
        "collector lists      Hung",
        "calls in flight then: lists 1\n",
        "runtime process 700 (containerd), begun at tick 9: state S\n",
        "threads: 1 D, 20 S\n",
        "thread 701: state D, waits in io_schedule\n      [<0>] io_schedule\n",
        "kernel stack: cannot be read",
        "journal: `journalctl -u containerd`",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    assert!(!text.contains("thread 702"), "{text}");
}

#[test]
fn one_fault_can_be_asked_for_by_id_type_or_name() {
    let bundles = ["hungcontainer-1-2026", "hungcontainer-2-2026", "diskfull-1-2026"];
    let bundles = bundles.map(|name| (name, bundle(name, "m").to_string()));
    for (fault, count) in [
        ("hungcontainer-1", 1),
        ("HungContainer", 2),
        ("diskfull-1-2026", 1),
        ("hung", 0),
        ("hungcontainer-1-2026-x", 0),
    ] {
        let text = printed(&bundles, Some(fault), OutputFormat::Json).unwrap();
        let found: Vec<Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(found.len(), count, "{fault}");
    }
    let error = printed(&bundles, Some("other"), OutputFormat::Table).unwrap_err().to_string();
    assert!(error.contains("none of the 3 bundles"), "{error}");
}

#[test]
fn nothing_that_a_terminal_obeys_is_printed() {
    let hostile = bundle("a-1", "\u{1b}]0;x\u{7}\u{9b}31m\r\nforged");
    for format in [OutputFormat::Table, OutputFormat::Json] {
        let text = printed(&[("a-1", hostile.to_string())], None, format).unwrap();
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        assert!(
            !text.lines().any(|line| line.trim_start().starts_with("forged")) && !text.contains("\\u00"),
            "{text:?}"
        );
    }
}

#[test]
fn a_broken_bundle_is_an_error_and_does_not_hide_the_others() {
    let bundles = [("a-1", "{".to_owned()), ("b-1", bundle("b-1", "m").to_string()), ("c-1", "[7]".to_owned())];
    let (text, ended) = run_local(&bundles, None, OutputFormat::Json);
    assert_eq!(serde_json::from_str::<Vec<Value>>(&text).unwrap().len(), 2);
    assert_eq!(ended.unwrap_err().to_string(), "1 bundle(s) could not be read; the others are printed");
    let (text, ended) = run_local(&bundles, None, OutputFormat::Table);
    assert!(text.starts_with("bundle b-1") && ended.is_err(), "{text}");
}

#[test]
fn it_is_an_error_if_no_bundle_can_be_read() {
    let error = printed(&[("a-1", "{".to_owned())], None, OutputFormat::Json).unwrap_err();
    assert_eq!(error.to_string(), "none of the 1 bundle(s) can be read");
}

#[test]
fn an_empty_folder_is_said_to_be_one() {
    assert!(printed(&[], None, OutputFormat::Table).unwrap_err().to_string().contains("no bundle is in"));
    assert_eq!(printed(&[], None, OutputFormat::Json).unwrap(), "[]\n");
}
