//! Credential plugins: a kubeconfig can name a program that creates the credential, as the kubelets of many clouds do.
//!
//! A plugin is the only program that the probe runs, in unit mode only. The probe isolates it: the plugin runs in its
//! own process group, supervised by a separate thread, with a deadline and bounded output. While a plugin hangs, the
//! probe continues to check and judge; it starts no second plugin meanwhile. The protocol is Kubernetes'
//! `ExecCredential` (client.authentication.k8s.io).

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::ByteString;
use kube::config::{AuthInfo, ExecConfig};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::oneshot;

use crate::lock::lock;
use crate::parse_error::ParseError;
use nrh_core::text::bounded;

/// Maximum run time. The plugins of the clouds take well under a second; at most they wait for a service of the cloud.
const LIMIT: Duration = Duration::from_secs(20);
/// Additional time for the thread to report: a process in an uninterruptible wait survives even a kill.
const SLACK: Duration = Duration::from_secs(5);
/// Interval between two checks of whether the plugin has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long the output is still read after the end of the plugin: a process that it started can hold the pipe open, in
/// a process group of its own.
const DRAIN: Duration = Duration::from_secs(1);
/// Maximum number of bytes read from its answer, and from its error output.
const MOST: u64 = 64 << 10;
const COMPLAINT: u64 = 4 << 10;
/// The versions of the protocol; requests and answers are the same in both.
const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];

/// Whether the thread of an earlier run still exists.
static RUNS: AtomicBool = AtomicBool::new(false);

#[derive(Debug)]
pub(crate) struct Credential {
    /// Authentication to use instead of the plugin.
    pub auth: AuthInfo,
    /// Expiry by the wall clock, if there is one.
    pub expires: Option<Timestamp>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    #[serde(default)]
    api_version: String,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
    expiration_timestamp: Option<Timestamp>,
}

/// Runs the plugin and reads the credential that it creates.
///
/// # Errors
/// One sentence with the program's name: it cannot be run, does not end, ends with an error (with the start of its
/// error output), or returns something that is no credential.
pub(super) async fn credential(exec: &ExecConfig) -> Result<Credential, String> {
    run_within(exec, LIMIT).await
}

async fn run_within(exec: &ExecConfig, limit: Duration) -> Result<Credential, String> {
    let name = bounded(exec.command.as_deref().unwrap_or_default(), 200);
    let version = exec.api_version.clone().unwrap_or_default();
    if !VERSIONS.contains(&version.as_str()) {
        let version = bounded(&version, 100);
        return Err(format!(
            "credential plugin {name}: expected apiVersion {}, found {version:?}",
            VERSIONS.join(" or ")
        ));
    }
    let command = command(exec)?;
    if RUNS.swap(true, Ordering::AcqRel) {
        return Err(format!("credential plugin {name}: the run before hangs where not even a kill ends it"));
    }
    let (reply, answer) = oneshot::channel();
    let spawned = thread::Builder::new().name("nrh-credential".to_owned()).spawn(move || {
        let output = run(command, limit);
        RUNS.store(false, Ordering::Release);
        // The receiver is gone only when the probe ends.
        let _ = reply.send(output);
    });
    if let Err(error) = spawned {
        RUNS.store(false, Ordering::Release);
        return Err(format!("credential plugin {name}: no thread for it: {error}"));
    }
    let output = match tokio::time::timeout(limit + SLACK, answer).await {
        Ok(Ok(output)) => output,
        Ok(Err(_)) => Err("its thread has ended".to_owned()),
        Err(_) => Err(format!("did not end within {} s and cannot be killed", limit.as_secs())),
    };
    output.and_then(|output| read(&output, &version)).map_err(|error| format!("credential plugin {name}: {error}"))
}

fn command(exec: &ExecConfig) -> Result<Command, String> {
    let Some(program) = exec.command.as_deref().filter(|program| !program.is_empty()) else {
        return Err("the kubeconfig names a credential plugin without a command".to_owned());
    };
    let mut command = Command::new(program);
    command.args(exec.args.iter().flatten());
    let variable = |entry: &std::collections::HashMap<String, String>| {
        Some((entry.get("name")?.clone(), entry.get("value").cloned().unwrap_or_default()))
    };
    command.envs(exec.env.iter().flatten().filter_map(variable));
    let mut spec = json!({"interactive": false});
    if let (true, Some(cluster), Some(fields)) = (exec.provide_cluster_info, &exec.cluster, spec.as_object_mut()) {
        fields.insert("cluster".to_owned(), json!(cluster));
    }
    let info = json!({"apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec});
    command.env("KUBERNETES_EXEC_INFO", info.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    Ok(command)
}

/// Runs the plugin to its end, or kills it and everything that it started. Blocks.
fn run(mut command: Command, limit: Duration) -> Result<Vec<u8>, String> {
    let mut child = command.spawn().map_err(|error| format!("cannot be run: {error}"))?;
    let answer = child.stdout.take().map(|pipe| Pipe::read(pipe, MOST));
    let complaint = child.stderr.take().map(|pipe| Pipe::read(pipe, COMPLAINT));
    let in_time = wait(&child, Instant::now() + limit);
    // Runs also if the plugin has ended: processes that it started and left behind would otherwise be ours to
    // supervise.
    let status = end(&mut child).map_err(|error| format!("cannot be waited for: {error}"))?;
    if !in_time {
        return Err(format!("did not end within {} s, and was killed", limit.as_secs()));
    }
    let answer = answer.map(Pipe::take).unwrap_or_default();
    if !status.success() {
        let output = complaint.map(Pipe::take).unwrap_or_default();
        let output = bounded(String::from_utf8_lossy(&output).trim(), 150);
        return Err(format!("{status}: {output}"));
    }
    Ok(answer)
}

/// Waits for the end of the plugin until this time. It does not reap the process: until then nobody else gets its id,
/// nor that of its group.
fn wait(child: &Child, until: Instant) -> bool {
    let Some(pid) = pid(child) else { return false };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(pid), options) {
            Ok(Some(_)) => return true,
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
        if Instant::now() >= until {
            return false;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Kills the whole process group, and reaps the process.
fn end(child: &mut Child) -> std::io::Result<ExitStatus> {
    if let Some(group) = pid(child) {
        // As a rule the group is already empty.
        let _ = kill_process_group(group, Signal::KILL);
    }
    child.wait()
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// Output of a pipe, read by a thread: a full pipe would block the program.
struct Pipe {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<thread::JoinHandle<()>>,
}

impl Pipe {
    fn read(mut pipe: impl Read + Send + 'static, most: u64) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&bytes);
        let reader = thread::Builder::new().spawn(move || {
            let (mut left, mut buffer) = (most, [0_u8; 4096]);
            while let Ok(read @ 1..) = pipe.read(&mut buffer) {
                let kept = usize::try_from(left).unwrap_or(usize::MAX).min(read);
                let kept = buffer.get(..kept).unwrap_or_default();
                lock(&into).extend_from_slice(kept);
                left = left.saturating_sub(read as u64);
            }
        });
        Self { bytes, reader: reader.ok() }
    }

    /// Returns the output once its writer has ended, or after a short wait.
    fn take(self) -> Vec<u8> {
        let until = Instant::now() + DRAIN;
        while self.reader.as_ref().is_some_and(|reader| !reader.is_finished()) && Instant::now() < until {
            thread::sleep(POLL_INTERVAL);
        }
        std::mem::take(&mut lock(&self.bytes))
    }
}

/// Parses the credential from the output of a plugin.
pub(crate) fn read(output: &[u8], version: &str) -> Result<Credential, String> {
    let answer: Answer = serde_json::from_slice(output).map_err(|error| {
        format!("its answer of {} bytes is no ExecCredential: {}", output.len(), ParseError::from(&error))
    })?;
    if answer.api_version != version {
        let found = bounded(&answer.api_version, 100);
        return Err(format!("expected an answer of apiVersion {version}, found {found:?}"));
    }
    let status = answer.status.ok_or("its answer has no status")?;
    let base64 = |pem: String| {
        serde_json::to_value(ByteString(pem.into_bytes())).ok().and_then(|value| value.as_str().map(str::to_owned))
    };
    let auth = match (status.token, status.client_certificate_data, status.client_key_data) {
        (None, Some(certificate), Some(key)) => AuthInfo {
            client_certificate_data: base64(certificate),
            client_key_data: base64(key).map(Into::into),
            ..AuthInfo::default()
        },
        (Some(token), None, None) if !token.is_empty() => AuthInfo { token: Some(token.into()), ..AuthInfo::default() },
        _ => return Err("expected a token, or a client certificate with its key, in the answer's status".to_owned()),
    };
    Ok(Credential { auth, expires: status.expiration_timestamp })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    const V1: &str = "client.authentication.k8s.io/v1";

    /// Returns a plugin that runs this shell script. A separate process puts it in place: a file that this process has
    /// open for writing while another test forks cannot be executed for a moment (ETXTBSY).
    fn script(folder: &Path, text: &str) -> ExecConfig {
        let (written, path) = (folder.join("written"), folder.join("plugin"));
        std::fs::write(&written, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&written, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Command::new("cp").arg(&written).arg(&path).status().unwrap().success());
        let exec = json!({"apiVersion": V1, "command": path, "args": ["get-token"], "env": [{"name": "REGION", "value": "north"}]});
        serde_json::from_value(exec).unwrap()
    }

    // This process runs one plugin at a time as well, so this is a single test.
    #[tokio::test]
    async fn a_plugin_makes_a_credential_or_it_is_said_why_not() {
        let folder = tempfile::tempdir().unwrap();
        let run = async |text: &str| {
            // Only the plugin that never ends gets a short limit.
            let limit = if text == "sleep 600" { Duration::from_secs(2) } else { LIMIT };
            run_within(&script(folder.path(), text), limit).await
        };

        let answer = format!(
            r#"test "$1 $REGION" = "get-token north" || exit 1
            case "$KUBERNETES_EXEC_INFO" in *'"interactive":false'*) ;; *) exit 2;; esac
            echo '{{"apiVersion": "{V1}", "kind": "ExecCredential",
                "status": {{"token": "t", "expirationTimestamp": "2026-01-01T00:00:00Z"}}}}'"#
        );
        let made = run(&answer).await.unwrap();
        assert!(made.auth.token.is_some() && made.auth.exec.is_none());
        assert_eq!(made.expires, Some("2026-01-01T00:00:00Z".parse().unwrap()));

        let certificate = format!(
            r#"echo '{{"apiVersion": "{V1}", "status": {{"clientCertificateData": "PEM", "clientKeyData": "KEY"}}}}'"#
        );
        assert_eq!(run(&certificate).await.unwrap().auth.client_certificate_data.as_deref(), Some("UEVN"));

        for (text, expected) in [
            ("echo no role for this instance >&2; exit 3", "exit status: 3: no role for this instance"),
            ("sleep 600", "did not end within 2 s, and was killed"),
            // The processes that the plugin started end with it.
            ("sleep 600 & echo {", "is no ExecCredential"),
            ("head -c 10000000 /dev/zero", "its answer of 65536 bytes is no ExecCredential"),
            ("head -c 10000000 /dev/zero >&2; exit 1", "exit status: 1"),
            (r#"echo '{"apiVersion": "client.authentication.k8s.io/v1", "status": "secret"}'"#, "is no ExecCredential"),
            (r#"echo '{"apiVersion": "client.authentication.k8s.io/v1alpha1", "status": {"token": "t"}}'"#, "v1alpha1"),
            (r#"echo '{"apiVersion": "client.authentication.k8s.io/v1"}'"#, "has no status"),
            (
                r#"echo '{"apiVersion": "client.authentication.k8s.io/v1", "status": {"token": ""}}'"#,
                "expected a token",
            ),
        ] {
            let error = run(text).await.unwrap_err();
            assert!(error.contains(expected) && error.contains("plugin"), "{text}: {error}");
            assert!(error.len() < 600, "{} bytes", error.len());
            assert!(!error.contains("secret"), "{error}");
        }
        let missing = ExecConfig { command: Some("/no/such/plugin".into()), ..script(folder.path(), "") };
        assert!(run_within(&missing, LIMIT).await.unwrap_err().contains("cannot be run"));
        let old = ExecConfig { api_version: Some("client.authentication.k8s.io/v1alpha1".into()), ..missing };
        assert!(run_within(&old, LIMIT).await.unwrap_err().contains("expected apiVersion"));
    }
}
