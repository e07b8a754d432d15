//! A shell script in place of the OCI runtime, as vendors of devices put one there. Its `create` can be made to hang.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Fault, Injection, Victim, host};
use crate::node::Node;
use crate::view::{self, PodName, Process};
use crate::wait::{SOON, last_answer};

/// Where the script is.
pub(crate) const SCRIPT: &str = "/run/nrh-runc";
/// While it is there, each `create` that begins hangs.
pub(crate) const HANG: &str = "/run/nrh-hang-runc";
/// While it is there, each `create` that begins waits in a hook, when the first process of its container is there.
const HOLD: &str = "/run/nrh-hold-runc";
/// What a call that hangs waits for.
pub(crate) const NOBODY_WRITES: &str = "/run/nrh-nobody-writes";
/// How long the caller of a `create` that hangs waits for it. A kubelet gives up after four minutes, and containerd ends the script then.
const DEADLINE: Duration = Duration::from_mins(25);

/// The script, which calls the real runtime so. What hangs is the shell itself, without a child that would outlive it.
pub(crate) fn script(call: &str) -> String {
    let hook = format!(r#"{{"hooks":{{"createRuntime":[{{"path":"{SCRIPT}","args":["hook","hold"]}}]}},"#);
    format!(
        r#"#!/bin/sh
case " $* " in
*" create "*)
    [ -e {HANG} ] && : < {NOBODY_WRITES}
    [ -e {HOLD} ] && for word; do
        [ "$before" = --bundle ] && sed -i '1s|^{{|{hook}|' "$word/config.json"
        before=$word
    done ;;
" hold ")
    while [ -e {HOLD} ]; do sleep 1; done
    exit ;;
esac
{call} "$@"
"#
    )
}

/// Has containerd call the script in place of `runc` from now on; `runc` is a child of the script.
pub fn wrap_runtime(node: &Node) -> Result<()> {
    let real = node.script("command -v runc", &[]).context("no runc")?;
    node.write(SCRIPT, &script(real.trim()))?;
    node.run("chmod", &["0755", SCRIPT])?;
    node.run("mkfifo", &[NOBODY_WRITES])?;
    let config = "/etc/containerd/config.toml";
    let text = node.read(config)?;
    node.write(config, &format!("{text}{}", settings()))?;
    node.restart_containerd()
}

fn settings() -> String {
    let runc = r#"plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc"#;
    format!("\n[{runc}]\n  runtime_type = \"io.containerd.runc.v2\"\n[{runc}.options]\n  BinaryName = \"{SCRIPT}\"\n")
}

/// Asks a runtime that is [wrapped](wrap_runtime) for a sandbox: its `create` hangs.
pub fn hang_create(node: &Node) -> Result<Injection> {
    node.write(HANG, "")?;
    let injection = Injection::now(Fault::HungCreate, node, Victim::default());
    let socket = node.socket();
    let pod = PodName { namespace: "default".into(), name: "hung-create".into(), uid: "hung-create".into() };
    // It ends with the hang, or with the process that injects it: nobody asks how it went.
    thread::spawn(move || view::run_sandbox(&socket, &pod, 0, DEADLINE));
    let hung = await_process(node, |process| is_create(node, process)).context("no `create` hangs")?;
    // Those that begin from now on go through.
    node.remove(HANG)?;
    let process = Some(hung.identity());
    ensure!(hung.shim_of.is_some(), "the script is not below a shim");
    Ok(Injection {
        victim: Victim { sandbox: hung.shim_of, process, node_pid: Some(hung.pid), ..Victim::default() },
        ..injection
    })
}

/// Freezes the first process of the container that `make` has made by a runtime that is [wrapped](wrap_runtime), before it is started.
pub fn freeze_init(node: &Node, make: impl FnOnce()) -> Result<Injection> {
    node.write(HOLD, "")?;
    make();
    let is_init = |process: &Process| process.comm == "runc:[2:INIT]" && process.shim_of.is_some();
    let init = await_process(node, is_init).context("no container is made")?;
    let victim = Victim {
        process: Some(init.identity()),
        sandbox: init.shim_of,
        node_pid: Some(init.pid),
        path: Some(host::group_with_freezer(init.host_pid)?),
        ..Victim::default()
    };
    let injection = Injection::now(Fault::FrozenInit, node, victim);
    host::set_frozen(&injection.victim, true)?;
    node.remove(HOLD)?;
    Ok(injection)
}

fn await_process(node: &Node, is_it: impl Fn(&Process) -> bool) -> Option<Process> {
    last_answer(SOON, || node.processes().ok()?.into_iter().find(&is_it), Option::is_some)
}

fn is_create(node: &Node, process: &Process) -> bool {
    let name = Path::new(SCRIPT).file_name().and_then(|name| name.to_str());
    let line = || node.read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
    Some(process.comm.as_str()) == name && line().split('\0').any(|word| word == "create")
}

/// Lets a script that hangs go on.
pub(super) fn go_on(node: &Node) -> Result<()> {
    node.remove(HANG)?;
    // Opened for both, a pipe waits for nobody: who waits for a writer goes on.
    node.script(r#"[ ! -p "$1" ] || : 1<>"$1""#, &[NOBODY_WRITES]).map(drop)
}
