//! Real processes that look like those of a node, and end with the test.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Pid, Signal, kill_process};

use crate::proc::fake::copy;
use crate::proc::{self, PROC};
use crate::waiting::wait_until;
use nrh_core::fault::{ProcessRef, Role};

/// Waits for input for ever and writes a line to `$1` for each SIGCONT; ends when the test does, since the
/// writing end of the pipe `$0` goes with it. No child is ever made: `read`, `trap` and `echo` are built in.
const WAIT: &str = r#"
    n=0; trap 'n=1; echo resumed >> "$1"' CONT
    exec 3< "$0"; echo ready >> "$1.ready"
    while :; do n=0; read -r line <&3 && continue; [ "$n" = 1 ] || break; done
"#;

/// A full id that no other test has.
pub(super) fn id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("{:032x}{:032x}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A folder with programs under names of our choice, and the pipe that keeps them waiting.
pub(super) struct Stage {
    pub(super) folder: tempfile::TempDir,
    _gate: File,
}

impl Stage {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let gate = folder.path().join("gate");
        assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
        let open = OpenOptions::new().read(true).write(true).open(&gate).unwrap();
        Self { folder, _gate: open }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A copy of the shell under another name.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        copy("/bin/sh", &path);
        path
    }

    /// Arguments for a program of ours: it waits, and carries these arguments besides.
    fn waiting(&self, log: &Path, args: &[&str]) -> Vec<String> {
        let mut all = vec!["-c".to_owned(), WAIT.to_owned()];
        all.extend([self.path("gate").display().to_string(), log.display().to_string()]);
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        all
    }

    /// A shim of `id`, as a child of init.
    pub(super) fn shim(&self, id: &str) -> Running {
        self.shim_of("k8s.io", id)
    }

    pub(super) fn shim_of(&self, namespace: &str, id: &str) -> Running {
        // A folder of its own for each, also for two of one id.
        let name = format!("{}/containerd-shim-runc-v2", self::id());
        self.orphan(&name, &["-namespace", namespace, "-id", id, "-address", "/run/containerd/containerd.sock"])
    }

    /// The conmon of a container of CRI-O, as a child of init. `name` is the container's.
    pub(super) fn conmon(&self, id: &str, name: &str) -> Running {
        self.orphan(&format!("{}/conmon", self::id()), &["--cid", id, "--exit-dir", "/run/crio/exits", "-n", name])
    }

    /// A process whose parent has ended.
    pub(super) fn orphan(&self, name: &str, args: &[&str]) -> Running {
        let (program, log) = (self.program(name), self.path(&format!("{name}.log")));
        let mut parent = Command::new("sh");
        parent.arg("-c").arg(r#""$@" & echo $!"#).arg("sh").arg(program).args(self.waiting(&log, args));
        // The output must not be inherited by the one that stays, or its end would be waited for.
        let out = self.path(&format!("{name}.pid"));
        let status = parent.stdin(Stdio::null()).stdout(File::create(&out).unwrap()).status().unwrap();
        assert!(status.success());
        let pid = std::fs::read_to_string(&out).unwrap().trim().parse().unwrap();
        Running::ready(pid, log, None)
    }

    pub(super) fn child(&self, name: &str, args: &[&str]) -> Running {
        self.child_by("env", &[], name, args)
    }

    /// A child of this test that another program starts.
    pub(super) fn child_by(&self, by: &str, flags: &[&str], name: &str, args: &[&str]) -> Running {
        let (program, log) = (self.program(name), self.path(&format!("{name}.log")));
        let mut command = Command::new(by);
        let child =
            command.args(flags).arg(program).args(self.waiting(&log, args)).stdin(Stdio::null()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        Running::ready(pid, log, Some(child))
    }

    /// `runc` at `verb` for this container, called by a shim of this namespace and id; and that shim.
    pub(super) fn client(
        &self,
        namespace: &str,
        sandbox_id: &str,
        verb: &str,
        container_id: &str,
    ) -> (Running, Running) {
        self.below_shim(namespace, sandbox_id, "runc", &[verb, "--bundle", "/b", container_id])
    }

    /// A process of this name and with these arguments, called by a shim of this namespace and id; and that shim.
    pub(super) fn below_shim(
        &self,
        namespace: &str,
        sandbox_id: &str,
        program: &str,
        args: &[&str],
    ) -> (Running, Running) {
        let flags = ["-namespace", namespace, "-id", sandbox_id];
        self.below("containerd-shim-runc-v2", flags, program, args)
    }

    /// A process of this name and with these arguments, called by one with these flags; and that one.
    pub(super) fn below(&self, parent: &str, flags: [&str; 4], program: &str, args: &[&str]) -> (Running, Running) {
        self.below_all(&[(parent, flags)], program, args)
    }

    /// A process of this name and with these arguments, called by the last of these, which the one before it has called; and the first
    /// of them.
    pub(super) fn below_all(&self, parents: &[(&str, [&str; 4])], program: &str, args: &[&str]) -> (Running, Running) {
        let name = self::id();
        let called = format!("{name}/{program}");
        let (log, out) = (self.path(&format!("{called}.log")), self.path(&format!("{called}.pid")));
        let mut line = vec![self.program(&called).display().to_string()];
        line.extend(self.waiting(&log, args));
        for (number, (parent, flags)) in parents.iter().enumerate().rev() {
            let is_last = number + 1 == parents.len();
            let out = if is_last { out.clone() } else { self.path(&format!("{name}/{number}.pid")) };
            let shell = self.program(&format!("{name}/{parent}")).display().to_string();
            let script = r#"out=$1; shift 5; "$@" & echo $! > "$out"; wait; read -r _ < "$gate""#;
            let mut above =
                vec![shell, "-c".to_owned(), script.to_owned(), "shim".to_owned(), out.display().to_string()];
            above.extend(flags.iter().map(|flag| (*flag).to_owned()));
            above.append(&mut line);
            line = above;
        }
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).env("gate", self.path("gate")).stdin(Stdio::null());
        let child = command.spawn().unwrap();
        let shim = Running::new(i32::try_from(child.id()).unwrap(), log.clone(), Some(child));
        (Running::ready(written_pid(&out), log, None), shim)
    }

    /// A plugin that a runtime stand-in has called with this environment and that holds the lock of `lock`.
    pub(super) fn plugin(&self, name: &str, environ: &[(&str, &str)], lock: &Path) -> (Running, Running) {
        let plugin = self.program(&format!("cni/{name}"));
        let (log, out) = (self.path(&format!("{name}.log")), self.path(&format!("{name}.pid")));
        let script = format!(r#"exec 8> "{}"; flock 8; {WAIT}"#, lock.display());
        let daemon = self.program(&format!("runtime-of-{name}/containerd"));
        let mut runtime = Command::new(daemon);
        // A daemon that starts the plugin and waits for it.
        runtime
            .arg("-c")
            .arg(r#"out=$1; shift; "$@" & echo $! > "$out"; wait"#)
            .arg("containerd")
            .arg(&out)
            .arg(&plugin);
        runtime.arg("-c").arg(&script).arg(self.path("gate")).arg(&log);
        runtime.env_remove("CNI_COMMAND").envs(environ.iter().copied()).stdin(Stdio::null());
        let child = runtime.spawn().unwrap();
        let runtime = Running::new(i32::try_from(child.id()).unwrap(), log.clone(), Some(child));
        (Running::ready(written_pid(&out), log, None), runtime)
    }
}

/// The pid that a stand-in writes of the process it has called.
fn written_pid(out: &Path) -> i32 {
    let read = || std::fs::read_to_string(out).ok().and_then(|text| text.trim().parse::<i32>().ok());
    wait_until("the pid of a child", || read().is_some());
    read().unwrap()
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) pid: i32,
    log: PathBuf,
    child: Option<Child>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_raw(self.pid).unwrap(), Signal::KILL);
        if let Some(child) = &mut self.child {
            let _ = child.wait();
        }
    }
}

impl Running {
    fn new(pid: i32, log: PathBuf, child: Option<Child>) -> Self {
        Self { pid, log, child }
    }

    fn ready(pid: i32, log: PathBuf, child: Option<Child>) -> Self {
        let running = Self::new(pid, log, child);
        let ready = PathBuf::from(format!("{}.ready", running.log.display()));
        // A signal that comes before it sleeps in `read` runs the trap only when `read` returns.
        wait_until("a process to be ready", || ready.exists() && running.state() == Some('S'));
        running
    }

    pub(super) fn stop(&self) {
        kill_process(Pid::from_raw(self.pid).unwrap(), Signal::STOP).unwrap();
        wait_until("the stop", || self.state() == Some('T'));
    }

    /// The same, stopped from its beginning.
    pub(super) fn stopped(self) -> Self {
        self.stop();
        self
    }

    /// Its state letter; `None` once it has ended.
    pub(super) fn state(&self) -> Option<char> {
        let stat = proc::Handle::open(Path::new(PROC), self.pid).and_then(|handle| handle.stat()).ok()?;
        Some(stat.state).filter(|state| !proc::is_dead(*state))
    }

    /// How many times it was resumed, as it says itself.
    pub(super) fn resumed(&self) -> usize {
        std::fs::read_to_string(&self.log).unwrap_or_default().lines().count()
    }

    pub(super) fn as_target(&self, role: Role) -> ProcessRef {
        process_ref(role, self.pid)
    }
}

/// A process as a fault names it.
pub(super) fn process_ref(role: Role, pid: i32) -> ProcessRef {
    let stat = proc::Handle::open(Path::new(PROC), pid).and_then(|handle| handle.stat()).unwrap();
    let proc::Stat { start_ticks, state, command, .. } = stat;
    ProcessRef { role, pid, start_ticks, state: state.to_string(), wchan: None, command }
}
