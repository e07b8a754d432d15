//! A realm: the namespaces of one init process, which end with it and take everything in them along.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::cgroup;
use crate::process::{self, Identity, wait_until};
use crate::wait::{ENDS, SOON};

/// Where programs of the machine are.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The namespaces of one init process.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Realm {
    /// The init process.
    pub init: Identity,
    /// Folders with the bed's programs, searched before the system's.
    pub path: Vec<PathBuf>,
}

/// What ends a realm: the pipe whose closing ends its init, and the process that waits for it.
#[derive(Debug)]
pub(crate) struct Tether {
    /// Closed by the kernel when the owner dies, however it dies.
    stdin: Option<ChildStdin>,
    child: Child,
}

impl Tether {
    /// Ends the realm and waits for it.
    pub(crate) fn cut(mut self) {
        drop(self.stdin.take());
        // Nothing to do about an error: the process is a child of ours and has ended either way.
        let _ = self.child.wait();
    }

    /// Leaves the realm running without an owner.
    pub(crate) fn forget(mut self) {
        std::mem::forget(self.stdin.take());
    }
}

/// Starts the outer realm of the bed with this name: network, mounts, host name and pids of its own.
pub(crate) fn launch(bed: &str, keep: bool, log: &Path, path: &[PathBuf]) -> Result<(Realm, Tether)> {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "tini", "--"]);
    // `cat` ends at the end of its input, and after what is left to do tini with it: the owner's death is the end of the bed,
    // without anybody watching.
    let till_the_end = format!("cat\n{}", cgroup::THAW);
    let forever = ["sleep", "infinity"];
    let till_the_end = ["sh", "-c", &till_the_end, "sh", bed];
    command.args(if keep { &forever[..] } else { &till_the_end });
    command.stdin(if keep { Stdio::null() } else { Stdio::piped() });
    let (realm, mut child) = start(command, log, path, INIT)?;
    let stdin = child.stdin.take();
    Ok((realm, Tether { stdin, child }))
}

impl Realm {
    /// Starts a realm inside this one; it shares the network and ends with this one.
    pub(crate) fn nest(&self, setup: &str, args: &[&str], log: &Path) -> Result<Self> {
        self.nest_as(INIT, &format!("{setup}\nexec {INNER}"), args, log)
    }

    /// The same with another init process: the script has to end in it.
    pub(crate) fn nest_as(&self, init: &str, script: &str, args: &[&str], log: &Path) -> Result<Self> {
        let mut command = self.command("sh");
        command.args(["-ec", script, "sh"]).args(args).stdin(Stdio::null());
        let (realm, mut child) = start(command, log, &self.path, init)?;
        // Somebody has to take its exit status, or the ended process stays in the owner's table.
        std::thread::spawn(move || child.wait());
        Ok(realm)
    }

    /// A command that runs inside all namespaces of the realm, with a clean environment.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.init.pid)).args(["--mount", "--uts", "--net", "--pid"]);
        // Not all there are: root of a user namespace may not enter what it has not made, not even its own.
        let cgroup = |pid| process::namespace(pid, "cgroup");
        if cgroup(self.init.pid) != i32::try_from(std::process::id()).ok().and_then(cgroup) {
            command.arg("--cgroup");
        }
        let path = format!("PATH={}", self.search_path());
        command.args(["--", "env", "-i", &path, "HOME=/root", "LANG=C.UTF-8"]).arg(program);
        command
    }

    /// A command that enters only the realm's network, with the caller's files and environment.
    pub fn network_command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.init.pid)).arg("--").arg(program);
        command.env("PATH", self.search_path());
        // The bed has no way out, so a proxy of the surroundings can only break things.
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
            command.env_remove(name);
        }
        command
    }

    /// Programs of the bed first, then the system's usual folders.
    pub(crate) fn search_path(&self) -> String {
        let own = self.path.iter().map(|p| p.display().to_string());
        let all: Vec<_> = own.chain([SYSTEM_PATH.to_owned()]).collect();
        all.join(":")
    }

    /// Runs a command to its end; its output is part of the error.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        output(self.command(program).args(args))
    }

    /// Runs a shell script with arguments to its end.
    pub fn script(&self, script: &str, args: &[&str]) -> Result<String> {
        output(self.command("sh").args(["-ec", script, "sh"]).args(args))
    }

    /// A path of the realm as seen from outside.
    pub fn root_path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        let inner = path.strip_prefix("/").unwrap_or(path);
        Path::new("/proc").join(self.init.pid.to_string()).join("root").join(inner)
    }

    /// Starts a program that goes on by itself, with its output appended to `log` (a path inside), and returns it.
    pub fn daemon(&self, log: &Path, argv: &[String]) -> Result<Identity> {
        // The reply tells the pid inside; the orphan belongs to the realm's init, which also takes its exit status.
        let script = r#"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then procs=/sys/fs/cgroup/init/cgroup.procs; else procs="/sys/fs/cgroup/*/cgroup.procs"; fi
for p in $procs; do echo 0 >"$p" 2>/dev/null || true; done
log=$1; shift
mkdir -p "$(dirname "$log")"
setsid "$@" </dev/null >>"$log" 2>&1 &
echo $!"#;
        let log = log.display().to_string();
        let argv: Vec<&str> = std::iter::once(log.as_str()).chain(argv.iter().map(String::as_str)).collect();
        let inner: i32 = self.script(script, &argv)?.trim().parse().context("pid of a started program")?;
        let name = argv.get(1).copied().unwrap_or_default();
        let host = process::namespace_to_host(self.init.pid, inner)
            .with_context(|| format!("{name} ended at once, see {log}"))?;
        Identity::of(host)
    }

    /// Ends the realm: the kernel kills every process in it.
    pub(crate) fn kill(&self) -> Result<()> {
        self.init.signal(Signal::KILL)?;
        ensure!(self.init.wait_gone(ENDS), "init {} does not end", self.init.pid);
        Ok(())
    }
}

/// What the init process of a realm is called, as a rule.
const INIT: &str = "tini";

/// The inner unshare; tini reaps what daemons leave behind.
const INNER: &str = "unshare --cgroup --mount --uts --pid --fork --kill-child --mount-proc tini -- sleep infinity";

/// Starts a chain of wrappers that ends in an init process of this name and finds that process.
fn start(mut command: Command, log: &Path, path: &[PathBuf], name: &str) -> Result<(Realm, Child)> {
    use std::os::unix::process::CommandExt;
    let file = File::options().create(true).append(true).open(log).with_context(|| log.display().to_string())?;
    // A group of its own: Ctrl-C reaches the owner only, and the owner's end is what ends the bed.
    command.stdout(file.try_clone()?).stderr(file).process_group(0);
    let mut child = command.spawn().with_context(|| format!("start {}", command.get_program().display()))?;
    let first = i32::try_from(child.id())?;
    let mut init = None;
    wait_until(SOON, || {
        // From the top each time: on the way are helpers of the wrappers that come and go.
        init = last_descendant(first, name).filter(|&pid| process::comm(pid).as_deref() == Some(name));
        init.is_some() || !matches!(child.try_wait(), Ok(None))
    });
    let Some(pid) = init else {
        let _ = child.kill();
        let _ = child.wait();
        bail!("no init process: {}", fs::read_to_string(log).unwrap_or_default().trim());
    };
    Ok((Realm { init: Identity::of(pid)?, path: path.to_vec() }, child))
}

/// The end of the chain of first children; the init's own child is none of the chain.
fn last_descendant(pid: i32, init: &str) -> Option<i32> {
    let mut current = pid;
    while process::comm(current).as_deref() != Some(init) {
        current = *process::children(current).first()?;
    }
    Some(current)
}

/// Runs a command, returns what it prints, and makes its messages part of the error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    output_of(command, Stdio::null())
}

/// The same with this input.
pub(crate) fn output_of(command: &mut Command, input: impl Into<Stdio>) -> Result<String> {
    let result = command.stdin(input).output().with_context(|| format!("start {}", command.get_program().display()))?;
    if result.status.success() {
        return Ok(String::from_utf8_lossy(&result.stdout).into_owned());
    }
    let said = [&result.stderr[..], &result.stdout[..]].map(|b| String::from_utf8_lossy(b).trim().to_owned()).join(" ");
    bail!("{} ended with {}: {said}", describe(command), result.status)
}

/// A text as the input of a command.
pub(crate) fn input(text: &str) -> Result<File> {
    let mut file = tempfile::tempfile()?;
    std::io::Write::write_all(&mut file, text.as_bytes())?;
    std::io::Seek::rewind(&mut file)?;
    Ok(file)
}

fn describe(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let text = words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ");
    text.chars().take(400).collect()
}

/// Set for a program that is root of a user namespace of ours.
pub(crate) const MAPPED_ROOT: &str = "NRH_TESTBED_MAPPED_ROOT";

/// Whether this process is root of the machine, not merely of a namespace of ours.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root() && std::env::var_os(MAPPED_ROOT).is_none()
}
