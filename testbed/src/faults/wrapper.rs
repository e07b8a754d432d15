//! A shell script in place of the OCI runtime, as vendors of devices put one there. Its `create` can be made to hang.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Fault, Injection, RELOAD, SETTLE, Victim, create, host, remove};
use crate::node::Node;
use crate::packages;
use crate::process::{Identity, wait_until};
use crate::view::{self, PodName, Process};

/// Where the script is.
pub(crate) const SCRIPT: &str = "/run/nrh-runc";
/// While it is there, each `create` that begins hangs.
pub(crate) const HANG: &str = "/run/nrh-hang-runc";
/// While it is there, each `create` that begins waits in a hook, when the first process of its container is there.
const HOLD: &str = "/run/nrh-hold-runc";
/// What a call that hangs waits for.
pub(crate) const NOBODY_WRITES: &str = "/run/nrh-nobody-writes";
/// How long the caller of a `create` that hangs waits for it. A kubelet gives up after four minutes, and containerd ends the script then.
const PATIENCE: Duration = Duration::from_mins(15);

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
    let real = packages::find("runc").context("no runc")?;
    let path = node.root_path(SCRIPT);
    fs::write(&path, script(&real.display().to_string()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    node.run("mkfifo", &[NOBODY_WRITES])?;
    let config = node.root_path("/etc/containerd/config.toml");
    let text = fs::read_to_string(&config)?;
    fs::write(&config, format!("{text}{}", settings()))?;
    node.restart_containerd()
}

fn settings() -> String {
    let runc = r#"plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc"#;
    format!("\n[{runc}]\n  runtime_type = \"io.containerd.runc.v2\"\n[{runc}.options]\n  BinaryName = \"{SCRIPT}\"\n")
}

/// Asks a runtime that is [wrapped](wrap_runtime) for a sandbox: its `create` hangs.
pub fn hang_create(node: &Node) -> Result<Injection> {
    create(&node.root_path(HANG))?;
    let injection = Injection::now(Fault::HungCreate, node, Victim::default());
    let socket = view::socket(node);
    let pod = PodName { namespace: "default".into(), name: "hung-create".into(), uid: "hung-create".into() };
    // It ends with the hang, or with the process that injects it: nobody asks how it went.
    thread::spawn(move || view::run_sandbox(&socket, &pod, 0, PATIENCE));
    let mut hung = None;
    wait_until(SETTLE, || {
        hung = view::processes(node.init_pid()).ok().and_then(|all| all.into_iter().find(is_create));
        hung.is_some()
    });
    let hung = hung.context("no `create` hangs")?;
    // Those that begin from now on go through.
    remove(&node.root_path(HANG))?;
    let process = Some(Identity { pid: hung.host_pid, started: hung.started });
    ensure!(hung.sandbox.is_some(), "the script is not below a shim");
    Ok(Injection {
        victim: Victim { sandbox: hung.sandbox, process, node_pid: Some(hung.pid), ..Victim::default() },
        ..injection
    })
}

/// Freezes the first process of the container that `make` has made by a runtime that is [wrapped](wrap_runtime), before it is started.
pub fn freeze_init(node: &Node, make: impl FnOnce()) -> Result<Injection> {
    create(&node.root_path(HOLD))?;
    make();
    let mut init = None;
    wait_until(RELOAD, || {
        let is_init = |process: &Process| process.comm == "runc:[2:INIT]" && process.sandbox.is_some();
        init = view::processes(node.init_pid()).ok().and_then(|all| all.into_iter().find(is_init));
        init.is_some()
    });
    let init = init.context("no container is made")?;
    let victim = Victim {
        sandbox: init.sandbox,
        process: Some(Identity { pid: init.host_pid, started: init.started }),
        node_pid: Some(init.pid),
        path: Some(host::group_with_freezer(init.host_pid)?),
        ..Victim::default()
    };
    let injection = Injection::now(Fault::FrozenInit, node, victim);
    host::set_frozen(&injection.victim, true)?;
    remove(&node.root_path(HOLD))?;
    Ok(injection)
}

fn is_create(process: &Process) -> bool {
    let line = || fs::read(format!("/proc/{}/cmdline", process.host_pid)).unwrap_or_default();
    let name = Path::new(SCRIPT).file_name().and_then(|name| name.to_str());
    Some(process.comm.as_str()) == name && line().split(|byte| *byte == 0).any(|word| word == b"create")
}

/// Lets a script that hangs go on.
pub(super) fn go_on(node: &Node) -> Result<()> {
    remove(&node.root_path(HANG))?;
    // A pipe that nobody reads cannot be opened so: nothing hangs any more.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let _ = OpenOptions::new().write(true).custom_flags(flags).open(node.root_path(NOBODY_WRITES));
    Ok(())
}
