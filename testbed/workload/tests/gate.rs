//! The gate plugin on plain files: one call hangs with the lock, the others wait, SIGKILL of the one frees them.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A folder with the plugin under its own name, and a delegate that prints its configuration.
struct Bed {
    dir: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        symlink(env!("CARGO_BIN_EXE_nrh-testbed-workload"), dir.path().join("nrh-gate")).unwrap();
        // Copied by a process of its own: a file that this process has open for writing while another test forks could
        // not be executed for a moment (ETXTBSY).
        let written = dir.path().join("written");
        fs::write(&written, "#!/bin/sh\necho \"$CNI_COMMAND $$\"\ncat\n").unwrap();
        fs::set_permissions(&written, fs::Permissions::from_mode(0o755)).unwrap();
        let copied = Command::new("cp").arg(&written).arg(dir.path().join("echo-plugin")).status().unwrap();
        assert!(copied.success());
        fs::create_dir(dir.path().join("gates")).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn call(&self, command: &str) -> Child {
        let configuration = format!(
            r#"{{"cniVersion":"0.4.0","name":"bed","type":"nrh-gate","lock":"{}","gates":"{}","delegate":{{"type":"echo-plugin"}}}}"#,
            self.path("ipam.lock").display(),
            self.path("gates").display()
        );
        let mut child = Command::new(self.path("nrh-gate"))
            .env("CNI_COMMAND", command)
            .env("CNI_PATH", self.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(configuration.as_bytes()).unwrap();
        child
    }

    fn held(&self, gate: &str) -> Vec<PathBuf> {
        let prefix = format!("{gate}.held.");
        let entries = fs::read_dir(self.path("gates")).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(&prefix)).collect()
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_mins(2);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        sleep(Duration::from_millis(20));
    }
}

fn finish(child: Child) -> (Output, String) {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (output, text)
}

/// Lock states of the plugin's lock file as the kernel lists them: (holders, waiters).
fn locks(lock: &Path, of: &[u32]) -> (usize, usize) {
    use std::os::unix::fs::MetadataExt;
    let Ok(inode) = fs::metadata(lock).map(|data| data.ino()) else { return (0, 0) };
    let table = fs::read_to_string("/proc/locks").unwrap();
    let ours = table
        .lines()
        .filter(|line| line.contains(&format!(":{inode} ")) && of.iter().any(|pid| line.contains(&format!(" {pid} "))));
    let (waiters, holders): (Vec<_>, Vec<_>) = ours.partition(|line| line.contains("->"));
    (holders.len(), waiters.len())
}

#[test]
fn without_a_gate_the_call_is_the_delegates() {
    let bed = Bed::new();
    let child = bed.call("ADD");
    let pid = child.id();
    let (output, text) = finish(child);
    assert!(output.status.success());
    assert_eq!(text, format!("ADD {pid}\n{{\"cniVersion\":\"0.4.0\",\"name\":\"bed\",\"type\":\"echo-plugin\"}}"));
}

#[test]
fn one_hangs_with_the_lock_and_killing_it_frees_the_others() {
    let bed = Bed::new();
    fs::write(bed.path("gates/add"), "").unwrap();
    let mut holder = bed.call("ADD");
    until("the gate is taken", || bed.held("add").len() == 1);
    let mut waiters = [bed.call("ADD"), bed.call("ADD")];
    let pids = [holder.id(), waiters[0].id(), waiters[1].id()];
    until("one holder, two waiters", || locks(&bed.path("ipam.lock"), &pids) == (1, 2));
    assert!(bed.held("add")[0].to_string_lossy().ends_with(&format!(".{}", holder.id())));

    // A deletion goes past the lock.
    let (output, text) = finish(bed.call("DEL"));
    assert!(output.status.success() && text.starts_with("DEL "), "{text}");
    assert!(waiters.iter_mut().all(|waiter| waiter.try_wait().unwrap().is_none()));

    holder.kill().unwrap();
    assert!(!holder.wait().unwrap().success());
    for waiter in waiters {
        let (output, text) = finish(waiter);
        assert!(output.status.success() && text.starts_with("ADD "), "{text}");
    }
    // The gate was consumed: the next attempt goes through although the record of it is still there.
    assert!(finish(bed.call("ADD")).0.status.success());
}

#[test]
fn removing_the_record_lets_the_holder_go_on() {
    let bed = Bed::new();
    fs::write(bed.path("gates/del"), "").unwrap();
    let holder = bed.call("DEL");
    until("the gate is taken", || bed.held("del").len() == 1);
    fs::remove_file(&bed.held("del")[0]).unwrap();
    let (output, text) = finish(holder);
    assert!(output.status.success() && text.starts_with("DEL "), "{text}");
}

#[test]
fn errors_follow_the_protocol() {
    let bed = Bed::new();
    fs::remove_file(bed.path("echo-plugin")).unwrap();
    let (output, text) = finish(bed.call("ADD"));
    assert!(!output.status.success());
    assert!(text.contains(r#""code":100,"msg":"no plugin \"echo-plugin\" in CNI_PATH""#), "{text}");
    let (output, text) = finish(bed.call("VERSION"));
    assert!(output.status.success() && text.contains("supportedVersions"), "{text}");
}
