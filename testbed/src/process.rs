//! Processes as the kernel tells them: identity, namespaces, and the mapping of pids between a namespace and the host.

use std::{fs, time::Duration};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::wait::last_answer;

/// A process by pid and start time, so that a reused pid is never mistaken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    /// Pid as seen from the owner of the bed.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub started: u64,
}

impl Identity {
    /// The identity of a running process.
    pub fn of(pid: i32) -> Result<Self> {
        let stat = Stat::read(pid).with_context(|| format!("process {pid} is gone"))?;
        Ok(Self { pid, started: stat.started })
    }

    /// Whether that very process still runs; one that has ended and is not reaped yet does not.
    pub fn alive(&self) -> bool {
        // Read once: between two reads it may end and be reaped.
        Stat::read(self.pid).is_some_and(|stat| stat.started == self.started && !has_ended(stat.state))
    }

    /// Sends a signal to exactly this process; false when it is gone already.
    pub fn signal(&self, signal: Signal) -> Result<bool> {
        let Some(pid) = Pid::from_raw(self.pid) else { bail!("{} is no pid", self.pid) };
        // The descriptor is taken first and the identity checked after it: what passes the check is what gets the signal.
        let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(false) };
        if !self.alive() {
            return Ok(false);
        }
        match pidfd_send_signal(&fd, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error).with_context(|| format!("signal {signal:?} to {}", self.pid)),
        }
    }

    /// Waits until the process has ended; false when it still runs after `limit`.
    pub fn wait_gone(&self, limit: Duration) -> bool {
        wait_until(limit, || !self.alive())
    }
}

/// Asks again every 10 ms until the condition holds; false after `limit`.
pub fn wait_until(limit: Duration, condition: impl FnMut() -> bool) -> bool {
    last_answer(limit, condition, |holds| *holds)
}

/// One line of the kernel's table: `/proc/PID/stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) comm: String,
    pub(crate) state: char,
    pub(crate) ppid: i32,
    pub(crate) started: u64,
}

impl Stat {
    /// The name may hold spaces and brackets, so everything is counted from the *last* bracket.
    fn parse(text: &str) -> Option<Self> {
        let (open, close) = (text.find('(')?, text.rfind(')')?);
        let comm = text.get(open + 1..close)?.to_owned();
        let mut rest = text.get(close + 1..)?.split_ascii_whitespace();
        let state = rest.next()?.chars().next()?;
        let ppid = rest.next()?.parse().ok()?;
        // Field 22 of the line; state was field 3, the parent field 4.
        let started = rest.nth(17)?.parse().ok()?;
        Some(Self { comm, state, ppid, started })
    }

    pub(crate) fn read(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }
}

/// Whether a process in this state has ended, although it may not be reaped yet.
pub(crate) const fn has_ended(state: char) -> bool {
    matches!(state, 'Z' | 'X' | 'x')
}

/// State letter of a process (`R`, `S`, `D`, `T`, `Z`, …).
pub fn state(pid: i32) -> Option<char> {
    Some(Stat::read(pid)?.state)
}

/// Name of a process as in `/proc/PID/comm`.
pub fn comm(pid: i32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

/// Direct children of a process.
pub fn children(pid: i32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|p| p.parse().ok()).collect()
}

/// Identity of a namespace of a process (`pid`, `net`, `mnt`, …), such as `net:[4026531840]`.
pub fn namespace(pid: i32, kind: &str) -> Option<String> {
    Some(fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()?.to_string_lossy().into_owned())
}

/// All pids of the machine.
pub fn all() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

/// All processes that are in a given namespace.
pub fn members(kind: &str, namespace_id: &str) -> Vec<i32> {
    all().into_iter().filter(|&pid| namespace(pid, kind).as_deref() == Some(namespace_id)).collect()
}

/// Pids of one process from the outermost namespace that is visible here to its own innermost one.
pub(crate) fn ns_pids(pid: i32) -> Vec<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("NSpid:")).unwrap_or_default();
    line.split_ascii_whitespace().filter_map(|p| p.parse().ok()).collect()
}

/// The pid a process has in the pid namespace of `init`, however deep below it lives.
pub fn host_to_namespace(init: i32, pid: i32) -> Option<i32> {
    let depth = ns_pids(init).len().checked_sub(1)?;
    let pids = ns_pids(pid);
    // A process of this namespace or below shares the ancestor; the depth alone would also fit a stranger.
    let same = namespace(pid, "pid") == namespace(init, "pid") || below(init, pid);
    if same { pids.get(depth).copied() } else { None }
}

/// The host's pid of the process that has `pid` in the pid namespace of `init`.
pub fn namespace_to_host(init: i32, pid: i32) -> Option<i32> {
    let depth = ns_pids(init).len().checked_sub(1)?;
    let own = namespace(init, "pid")?;
    all().into_iter().find(|&host| {
        ns_pids(host).get(depth) == Some(&pid) && (namespace(host, "pid").as_ref() == Some(&own) || below(init, host))
    })
}

/// Whether `pid` lives in a pid namespace below that of `init`, by the chain of parents.
fn below(init: i32, pid: i32) -> bool {
    let mut current = pid;
    for _ in 0..64 {
        if current == init {
            return true;
        }
        let Some(parent) = parent(current) else { return false };
        if parent <= 1 {
            return false;
        }
        current = parent;
    }
    false
}

/// Parent of a process.
pub fn parent(pid: i32) -> Option<i32> {
    Some(Stat::read(pid)?.ppid)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_with_a_hostile_name_is_read() {
        let line = "4242 (a) S 1 (b c)) T 17 4242 4242 0 -1 4194560 226 0 0 0 3 4 0 0 20 0 11 0 987654 1234 5 6\n";
        let stat = Stat::parse(line).unwrap();
        assert_eq!(stat, Stat { comm: "a) S 1 (b c)".into(), state: 'T', ppid: 17, started: 987_654 });
        assert_eq!(Stat::parse("4242 (x"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn the_own_process_is_known_and_a_reused_pid_is_not() -> Result<()> {
        let me = i32::try_from(std::process::id())?;
        let identity = Identity::of(me)?;
        assert!(identity.alive());
        assert!(!Identity { started: identity.started + 1, ..identity }.alive());
        assert_eq!(host_to_namespace(me, me), namespace_to_host(me, me));
        Ok(())
    }
}
