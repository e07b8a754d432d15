//! Made-up processes below a made-up `/proc`, and real ones that end with their test.

use std::ffi::OsString;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};

use super::{Handle, PROC, table};

/// A made-up `/proc`, 1,000 s after boot.
pub(crate) struct Proc(tempfile::TempDir);

impl Proc {
    pub(crate) fn new() -> Self {
        let proc = Self(tempfile::tempdir().unwrap());
        proc.write("uptime", "1000.00 1.0\n");
        proc.write("locks", "");
        proc
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Writes a file, in a folder that may not be there yet.
    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.file(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn with(self, entry: &Entry<'_>) -> Self {
        entry.write(&self.file(&entry.pid.to_string()));
        self
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) state: char,
    pub(crate) command: &'a [u8],
    pub(crate) exe: &'a str,
    pub(crate) args: &'a str,
    /// Its pids in nested PID namespaces, as `NSpid` shows them behind its own.
    pub(crate) nested: &'a str,
    /// Seconds after boot.
    pub(crate) began: u64,
}

/// A process of the node's own that does nothing.
pub(crate) const IDLE: Entry<'static> =
    Entry { pid: 1, parent: 1, state: 'S', command: b"", exe: "", args: "", nested: "", began: 900 };

pub(crate) const SHIM: Entry<'static> = Entry {
    pid: 50,
    command: b"containerd-shim",
    exe: "/usr/bin/containerd-shim-runc-v2",
    args: "/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id abc -address /run/containerd/containerd.sock",
    ..IDLE
};

pub(crate) const CONTAINERD: Entry<'static> =
    Entry { pid: 40, command: b"containerd", exe: "/usr/bin/containerd", args: "/usr/bin/containerd", ..IDLE };

impl Entry<'_> {
    pub(crate) fn write(&self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        let nested = self.nested.split_whitespace().fold(self.pid.to_string(), |pids, pid| format!("{pids}\t{pid}"));
        for (file, text) in [
            ("status", format!("Name:\tx\nUid:\t0\t0\t0\t0\nNSpid:\t{nested}\n")),
            ("cgroup", "0::/system.slice/containerd.service\n".to_owned()),
            ("cmdline", self.args.replace(' ', "\0") + "\0"),
            ("environ", String::new()),
            ("wchan", "do_signal_stop".to_owned()),
        ] {
            fs::write(folder.join(file), text).unwrap();
        }
        let stat = stat(self.pid, self.command, self.state, self.parent, self.began * 100);
        fs::write(folder.join("stat"), stat).unwrap();
        let _ = fs::remove_file(folder.join("exe"));
        symlink(self.exe, folder.join("exe")).unwrap();
    }
}

/// The process with this folder listens at this socket, which has to be this process.
pub(crate) fn listens(process: &Path, socket: &Path) -> UnixListener {
    for folder in [&process.join("fd"), socket.parent().unwrap()] {
        fs::create_dir_all(folder).unwrap();
    }
    let listener = UnixListener::bind(socket).unwrap();
    let file = fs::read_link(format!("/proc/self/fd/{}", listener.as_raw_fd())).unwrap();
    let _ = fs::remove_dir(process.join("root"));
    for (target, link) in [(&*file, "fd/3"), (Path::new("/proc/self/net"), "net"), (Path::new("/"), "root")] {
        symlink(target, process.join(link)).unwrap();
    }
    listener
}

/// The `stat` line of a process; field 22 is its start.
pub(crate) fn stat(pid: i32, command: &[u8], state: char, parent: i32, start_ticks: u64) -> Vec<u8> {
    let rest = format!(") {state} {parent}{} {start_ticks}{}\n", " 0".repeat(17), " 0".repeat(30));
    [format!("{pid} (").as_bytes(), command, rest.as_bytes()].concat()
}

/// A real process, which ends with the test, and its children with it.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    pub(crate) fn handle(&self) -> Handle {
        Handle::open(Path::new(PROC), self.pid()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its pid is another process's once it was waited for.
        if self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            let table = table(Path::new(PROC)).unwrap_or_default();
            for child in table.iter().filter(|process| process.parent == self.pid()) {
                let _ = kill_process(Pid::from_raw(child.pid).unwrap(), Signal::KILL);
            }
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Memory of this process in bytes, by its name in `status`.
pub(crate) fn memory(name: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Runs the ignored test `measured` of a module as a process of its own, with this environment. Returns what it printed, and
/// the peak of its memory in bytes, which it printed as `peak: … KiB`.
pub(crate) fn peak_of(module: &str, environment: &[(&str, OsString)]) -> (String, usize) {
    let name = format!("{}::measured", module.split_once("::").unwrap().1);
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--ignored", "--nocapture", "--test-threads=1"])
        .envs(environment.iter().cloned())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    let (_, peak) = said.split_once("peak: ").unwrap();
    let peak: usize = peak.split_once(" KiB").unwrap().0.parse().unwrap();
    (said, peak << 10)
}

/// Copies a program by a process of its own: a file that this process has open for writing while another test forks could not be
/// executed for a moment (ETXTBSY).
pub(crate) fn copy(from: &str, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}
