//! `nrh-gate`: a CNI plugin in front of a real one that can be made to hang while it holds a file lock.
//!
//! It is the shape of a real incident: an address manager serialises its calls with a lock on a file, one call never
//! comes back, every later one waits behind it. Without a gate file it takes the lock, lets it go and becomes the
//! plugin it delegates to. Its configuration, alone in a conflist:
//!
//! ```json
//! {"type": "nrh-gate", "lock": "/run/cni-gate/ipam.lock", "gates": "/run/cni-gate", "delegate": {"type": "ptp", …}}
//! ```
//!
//! A gate is a file `add` or `del` in `gates`. The first call that holds the lock takes it away by renaming it to
//! `add.held.PID`, so exactly one process hangs, and goes on when that file is removed.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{FlockOperation, MemfdFlags, flock, memfd_create};
use serde_json::{Map, Value, json};

/// Answers one CNI call; returns only when there is nothing to delegate to.
pub(crate) fn main() -> ExitCode {
    match call() {
        Ok(answer) => {
            println!("{answer}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            // CNI errors go to stdout; 100 and above belong to the plugin.
            println!("{}", json!({"cniVersion": "0.4.0", "code": 100, "msg": reason}));
            ExitCode::FAILURE
        }
    }
}

fn call() -> Result<String, String> {
    let command = std::env::var("CNI_COMMAND").map_err(|_| "CNI_COMMAND is not set")?;
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|e| format!("read the configuration: {e}"))?;
    if command == "VERSION" {
        return Ok(r#"{"cniVersion":"1.0.0","supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0"]}"#.into());
    }
    let configuration = Configuration::parse(&text)?;
    match command.as_str() {
        "ADD" => pass_gate(&configuration, "add")?,
        // Without a gate of its own DEL must not wait behind a hung ADD: a deleted pod is how people try to repair it.
        "DEL" if configuration.gates.join("del").exists() => pass_gate(&configuration, "del")?,
        _ => {}
    }
    Err(delegate(&configuration))
}

/// What the plugin needs of its configuration.
#[derive(Debug)]
struct Configuration {
    lock: PathBuf,
    gates: PathBuf,
    delegate_type: String,
    delegate: String,
}

impl Configuration {
    fn parse(text: &str) -> Result<Self, String> {
        let own: Map<String, Value> = serde_json::from_str(text).map_err(|e| format!("not a JSON object: {e}"))?;
        let member = |name: &str| own.get(name).ok_or_else(|| format!("no {name:?}"));
        let path =
            |name: &str| member(name)?.as_str().map(PathBuf::from).ok_or_else(|| format!("{name:?} is not a path"));
        let mut delegate = member("delegate")?.as_object().ok_or("the delegate is not an object")?.clone();
        let delegate_type = delegate.get("type").and_then(Value::as_str).ok_or("the delegate has no type")?.to_owned();
        // The runtime adds these to the outermost plugin only.
        for key in ["cniVersion", "name", "prevResult", "runtimeConfig", "args"] {
            if let Some(value) = own.get(key) {
                delegate.entry(key).or_insert_with(|| value.clone());
            }
        }
        Ok(Self {
            lock: path("lock")?,
            gates: path("gates")?,
            delegate_type,
            delegate: Value::Object(delegate).to_string(),
        })
    }
}

/// Takes the lock, hangs with it if a gate is there, and lets it go.
fn pass_gate(configuration: &Configuration, gate: &str) -> Result<(), String> {
    let path = &configuration.lock;
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|e| format!("create {}: {e}", folder.display()))?;
    }
    let lock: File = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(|e| format!("open {}: {e}", path.display()))?;
    loop {
        match flock(&lock, FlockOperation::LockExclusive) {
            Ok(()) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(format!("lock {}: {e}", path.display())),
        }
    }
    // Removed with the lock held and by rename: of all the callers exactly one takes the gate.
    let held = configuration.gates.join(format!("{gate}.held.{}", std::process::id()));
    if fs::rename(configuration.gates.join(gate), &held).is_ok() {
        hang_while(&held);
    }
    Ok(())
}

/// Nothing here forks, so nobody can inherit the lock: it goes with this process.
fn hang_while(held: &Path) {
    while held.exists() {
        sleep(Duration::from_millis(200));
    }
}

/// Becomes the real plugin: same process id, so whoever ends this call ends the plugin itself.
fn delegate(configuration: &Configuration) -> String {
    let Some(program) = find(&configuration.delegate_type) else {
        return format!("no plugin {:?} in CNI_PATH", configuration.delegate_type);
    };
    match in_memory(&configuration.delegate) {
        Ok(stdin) => {
            let error = Command::new(&program).stdin(stdin).exec();
            format!("run {}: {error}", program.display())
        }
        Err(error) => format!("hand over the configuration: {error}"),
    }
}

fn find(plugin: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    std::env::split_paths(&std::env::var_os("CNI_PATH")?)
        .map(|folder| folder.join(plugin))
        .find(|candidate| candidate.is_file() && Some(candidate) != own.as_ref())
}

/// A file that needs no place and no reader, unlike a pipe.
fn in_memory(text: &str) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("cni-configuration", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delegate_inherits_what_the_runtime_adds() {
        let text = r#"{"cniVersion":"0.4.0","name":"bed","type":"nrh-gate","lock":"/run/g/l","gates":"/run/g",
            "prevResult":{"ips":[]},"delegate":{"type":"ptp","name":"own","ipam":{"type":"host-local"}}}"#;
        let configuration = Configuration::parse(text).unwrap();
        assert_eq!(configuration.delegate_type, "ptp");
        let delegate: Value = serde_json::from_str(&configuration.delegate).unwrap();
        assert_eq!(
            delegate,
            json!({"cniVersion": "0.4.0", "prevResult": {"ips": []}, "type": "ptp", "name": "own",
                "ipam": {"type": "host-local"}})
        );
    }

    #[test]
    fn a_configuration_without_a_delegate_is_refused() {
        for (text, said) in [
            (r#"{"lock": "/l", "gates": "/g"}"#, "no \"delegate\""),
            (r#"{"lock": 1, "delegate": {"type": "ptp"}}"#, "\"lock\" is not a path"),
            ("[]", "not a JSON object"),
        ] {
            let error = Configuration::parse(text).unwrap_err();
            assert!(error.starts_with(said), "{text}: {error}");
        }
    }
}
