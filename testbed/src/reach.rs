//! How the bed reaches into a node: its commands, files and processes, in namespaces of this machine or on another one.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::machine::{self, Machine};
use crate::node::{Node, Place};
use crate::process::{self, Identity};
use crate::realm::{Realm, input, output, output_of};
use crate::view::{self, Process, bounded};
use crate::wait::last_answer;

/// For how long a machine that does not answer is asked again.
const AGAIN: Duration = Duration::from_secs(20);
/// How long a machine has for its logs.
const LOGS: Duration = Duration::from_secs(20);

impl Node {
    /// Whether it is a whole machine.
    pub const fn is_machine(&self) -> bool {
        matches!(self.place, Place::Machine(_))
    }

    /// Its namespaces.
    ///
    /// # Errors
    /// When it is a machine.
    pub(crate) fn realm(&self) -> Result<&Realm> {
        match &self.place {
            Place::Realm(realm) => Ok(realm),
            Place::Machine(_) => bail!("{} is a machine: what is wanted needs a node of this machine's", self.name),
        }
    }

    /// Takes the power away from a machine and gives it back.
    pub(crate) fn cut_power(&mut self) -> Result<()> {
        let logs = self.dir.join("var-log");
        match &mut self.place {
            Place::Machine(machine) => machine.cut_power(&logs).with_context(|| self.name.clone()),
            Place::Realm(_) => bail!("{} is no machine: it has no power of its own", self.name),
        }
    }

    /// Stops a machine, as a host does that stands still, or lets it go on. Its clock may go on meanwhile.
    ///
    /// # Errors
    /// When it is no machine, or has ended.
    pub fn set_paused(&self, paused: bool) -> Result<()> {
        self.machine()?.set_paused(paused)
    }

    /// Takes a machine off the network, or puts it back.
    ///
    /// # Errors
    /// When it is no machine, or its device cannot be changed.
    pub fn set_plugged(&self, plugged: bool) -> Result<()> {
        self.machine()?.set_plugged(self.number, self.ip, plugged)
    }

    fn machine(&self) -> Result<&Machine> {
        match &self.place {
            Place::Machine(machine) => Ok(machine),
            Place::Realm(_) => bail!("{} is no machine: what is wanted needs one", self.name),
        }
    }

    /// A command on the node, with a clean environment.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        match &self.place {
            Place::Realm(realm) => realm.command(program),
            Place::Machine(machine) => machine.command(program),
        }
    }

    /// Runs a command on the node to its end and returns what it prints.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        output(self.command(program).args(args))
    }

    /// Runs a shell script with arguments on the node to its end.
    pub fn script(&self, script: &str, args: &[&str]) -> Result<String> {
        output(self.command("sh").args(["-ec", script, "sh"]).args(args))
    }

    /// The process that the node ends with, as seen from outside: its init, or the machine's qemu.
    pub fn init_pid(&self) -> i32 {
        match &self.place {
            Place::Realm(realm) => realm.init.pid,
            Place::Machine(machine) => machine.process.pid,
        }
    }

    /// A path of the node as seen from outside; there is nothing at that of a machine.
    pub fn root_path(&self, path: impl AsRef<Path>) -> PathBuf {
        match &self.place {
            Place::Realm(realm) => realm.root_path(path),
            Place::Machine(_) => {
                self.dir.join("on-the-machine").join(path.as_ref().strip_prefix("/").unwrap_or(path.as_ref()))
            }
        }
    }

    /// The socket of its runtime as the bed reaches it.
    pub fn socket(&self) -> PathBuf {
        match &self.place {
            Place::Realm(realm) => realm.root_path(view::SOCKET),
            Place::Machine(machine) => machine.runtime.clone(),
        }
    }

    /// The outside's pid of a process that the node knows by `pid`.
    pub fn pid_to_host(&self, pid: i32) -> Option<i32> {
        process::namespace_to_host(self.realm().ok()?.init.pid, pid)
    }

    /// The node's pid of a process that the outside knows by `pid`.
    pub fn host_to_node(&self, pid: i32) -> Option<i32> {
        process::host_to_namespace(self.realm().ok()?.init.pid, pid)
    }

    /// The text of a file.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<String> {
        output(self.command("cat").arg(path.as_ref()))
    }

    /// Writes a file, with the folders above it.
    pub fn write(&self, path: impl AsRef<Path>, text: &str) -> Result<()> {
        let mut write = self.command("sh");
        write.args(["-ec", r#"mkdir -p "$(dirname "$1")"; cat >"$1""#, "sh"]).arg(path.as_ref());
        output_of(&mut write, input(text)?).map(drop)
    }

    /// Removes a file, if it is there.
    pub fn remove(&self, path: impl AsRef<Path>) -> Result<()> {
        output(self.command("rm").arg("-f").arg(path.as_ref())).map(drop)
    }

    /// Brings a program of this machine's to the node; returns where it is there.
    pub fn bring(&self, program: &Path) -> Result<PathBuf> {
        if !self.is_machine() {
            return Ok(program.to_owned());
        }
        let place = Path::new("/usr/local/bin").join(program.file_name().context("a program has a name")?);
        let file = std::fs::File::open(program).with_context(|| program.display().to_string())?;
        let mut write = self.command("install");
        output_of(write.args(["-m", "0755", "/dev/stdin"]).arg(&place), file)?;
        Ok(place)
    }

    /// Copies what a machine has logged to the folder of its logs; without effect where it does not answer.
    pub(crate) fn fetch_logs(&self) {
        if !self.is_machine() {
            return;
        }
        let logs = [("journal", "journalctl -b --no-pager"), ("kubelet", "cat /var/log/kubelet.log")];
        for (name, script) in logs {
            let fetched = bounded::output(self.command("sh").args(["-c", script]), LOGS);
            let _ = fetched.and_then(|text| Ok(std::fs::write(self.log(name), text)?));
        }
    }

    /// Its processes at this moment. Pids and parents are those of this machine where its processes are this machine's.
    pub fn processes(&self) -> Result<Vec<Process>> {
        match &self.place {
            Place::Realm(realm) => view::processes(realm.init.pid),
            Place::Machine(machine) => {
                let ask = || output(machine.command(machine::TESTBED).args(["on-node", "processes"]));
                // The connection may just be made anew.
                let text = last_answer(AGAIN, ask, Result::is_ok)?;
                serde_json::from_str(&text).with_context(|| format!("processes of {}", self.name))
            }
        }
    }

    /// The identity of the process that the node knows by this pid.
    pub fn identity(&self, pid: i32) -> Result<Identity> {
        let found = self.processes()?.into_iter().find(|process| process.pid == pid);
        found.map(|process| process.identity()).with_context(|| format!("process {pid} of {} is gone", self.name))
    }

    /// The state letter of exactly this process; `None` when it has ended.
    pub fn state(&self, process: Identity) -> Option<char> {
        if !self.is_machine() {
            return process::state(process.pid).filter(|_| process.alive());
        }
        let found = self.processes().ok()?.into_iter().find(|found| found.identity() == process);
        found.map(|found| found.state).filter(|state| !process::has_ended(*state))
    }

    /// Whether exactly this process still runs. A machine that does not answer has not said that it ended.
    pub fn is_alive(&self, process: Identity) -> bool {
        if !self.is_machine() {
            return process.alive();
        }
        let is_it = |found: &Process| found.identity() == process && !process::has_ended(found.state);
        !self.processes().is_ok_and(|all| !all.iter().any(is_it))
    }

    /// Sends a signal to exactly this process; false when it is gone already.
    pub fn signal(&self, process: Identity, signal: Signal) -> Result<bool> {
        match &self.place {
            Place::Realm(_) => process.signal(signal),
            Place::Machine(machine) => {
                let numbers = [process.pid.to_string(), process.started.to_string(), signal.as_raw().to_string()];
                let text = output(machine.command(machine::TESTBED).args(["on-node", "signal"]).args(numbers))?;
                Ok(text.trim() == "true")
            }
        }
    }

    /// Waits until the process has ended; false when it still runs after `limit`.
    pub fn wait_gone(&self, process: Identity, limit: Duration) -> bool {
        process::wait_until(limit, || !self.is_alive(process))
    }
}
