//! The processes of a node, read from the kernel's own table.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::process::{self, Identity, Stat};

/// A process of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Pid as the bed's owner sees it
    pub host_pid: i32,
    /// Pid inside the node, 0 when it is not visible there
    pub pid: i32,
    /// Parent as the bed's owner sees it
    pub host_ppid: i32,
    /// Start in clock ticks since boot; with the pid it names exactly one process
    pub started: u64,
    /// Program name
    pub comm: String,
    /// State letter (`R`, `S`, `D`, `T`, `Z` …)
    pub state: char,
    /// What its shim or conmon was started for, be it itself or above it: a sandbox; with Docker and CRI-O a container too
    pub shim_of: Option<String>,
}

impl Process {
    /// What names exactly this process.
    pub const fn identity(&self) -> Identity {
        Identity { pid: self.host_pid, started: self.started }
    }
}

/// The processes of two lists, without those that only pass by.
///
/// A node always has short-lived ones (a plugin call, a `runc`); what stands is what two lists have in common.
pub fn standing(list: impl Fn() -> Result<Vec<Process>>) -> Result<Vec<Process>> {
    let first: BTreeSet<(i32, u64)> = list()?.iter().map(|process| (process.host_pid, process.started)).collect();
    std::thread::sleep(Duration::from_secs(2));
    let mut second = list()?;
    second.retain(|process| first.contains(&(process.host_pid, process.started)));
    Ok(second)
}

/// All processes in the pid namespace of `init` and below, at this moment.
pub fn all(init: i32) -> Result<Vec<Process>> {
    // A process may end between the listing and the reading.
    let table: BTreeMap<i32, Stat> =
        process::all().into_iter().filter_map(|pid| Some((pid, Stat::read(pid)?))).collect();
    let namespace = |pid: i32| process::namespace(pid, "pid");
    let own = namespace(init).with_context(|| format!("process {init} is gone"))?;
    let depth = process::ns_pids(init).len().saturating_sub(1);

    // Containers have namespaces of their own below the node's: they belong to it by their ancestors. What was
    // started from outside has an ancestor outside, but is in the namespace itself.
    let inside: BTreeSet<i32> = table.keys().copied().filter(|pid| namespace(*pid).as_ref() == Some(&own)).collect();
    let ancestors = |pid: i32| std::iter::successors(Some(pid), |pid| table.get(pid).map(|stat| stat.ppid)).take(64);
    let members = table.iter().filter(|(pid, _)| ancestors(**pid).any(|ancestor| inside.contains(&ancestor)));
    Ok(members
        .map(|(pid, stat)| Process {
            host_pid: *pid,
            pid: process::ns_pids(*pid).get(depth).copied().unwrap_or_default(),
            host_ppid: stat.ppid,
            started: stat.started,
            comm: stat.comm.clone(),
            state: stat.state,
            shim_of: ancestors(*pid).filter(|ancestor| inside.contains(ancestor)).find_map(|pid| {
                let flag = id_flag(&table.get(&pid)?.comm)?;
                after(flag, &fs::read(format!("/proc/{pid}/cmdline")).ok()?)
            }),
        })
        .collect())
}

/// The shim or conmon of a sandbox or container among these: the process that was started for it, not one of its children.
pub fn shim(mut processes: Vec<Process>, id: &str) -> Option<Process> {
    processes.retain(|p| p.shim_of.as_deref() == Some(id) && id_flag(&p.comm).is_some() && p.state != 'Z');
    // A shim's own start helper has the same arguments for a moment; the oldest is the shim.
    processes.into_iter().min_by_key(|process| process.started)
}

/// The option before the id in the command line of a process that holds a container; `None` for any other process.
fn id_flag(comm: &str) -> Option<&'static str> {
    // The kernel cuts names at 15 characters.
    match comm {
        "conmon" => Some("-c"),
        comm => comm.starts_with("containerd-shim").then_some("-id"),
    }
}

/// The word after an option in a command line.
fn after(option: &str, cmdline: &[u8]) -> Option<String> {
    let mut words = cmdline.split(|byte| *byte == 0);
    words.find(|word| *word == option.as_bytes())?;
    words.next().map(|id| String::from_utf8_lossy(id).into_owned())
}

/// Who holds and who waits for the locks of one file, by pids of the bed's owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Locks {
    /// Processes that hold a lock
    pub holders: Vec<i32>,
    /// Processes that wait for one
    pub waiters: Vec<i32>,
}

/// Reads the kernel's list of locks for one file.
pub fn locks(path: &Path) -> Result<Locks> {
    let inode = fs::metadata(path).with_context(|| format!("look at {}", path.display()))?.ino();
    Ok(parse_locks(&fs::read_to_string("/proc/locks").context("read /proc/locks")?, inode))
}

fn parse_locks(table: &str, inode: u64) -> Locks {
    let mut found = Locks::default();
    for line in table.lines() {
        let mut words: Vec<&str> = line.split_ascii_whitespace().skip(1).collect();
        let waits = words.first() == Some(&"->");
        if waits {
            words.remove(0);
        }
        // FLOCK ADVISORY WRITE pid major:minor:inode start end
        let of_file = words.get(4).and_then(|file| file.rsplit(':').next()) == Some(inode.to_string().as_str());
        if let (true, Some(pid)) = (of_file, words.get(3).and_then(|pid| pid.parse().ok())) {
            if waits {
                found.waiters.push(pid);
            } else {
                found.holders.push(pid);
            }
        }
    }
    found
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_in_the_arguments_of_a_shim_and_of_conmon() {
        let cmdline = b"/usr/bin/containerd-shim-runc-v2\0-namespace\0k8s.io\0-id\0abc\0-address\0/run/c.sock\0";
        assert_eq!(id_flag("containerd-shim").and_then(|flag| after(flag, cmdline)), Some("abc".into()));
        let cmdline = b"/usr/bin/conmon\0-b\0/run/bundle\0-c\0def\0-u\0def\0";
        assert_eq!(id_flag("conmon").and_then(|flag| after(flag, cmdline)), Some("def".into()));
        assert_eq!(after("-id", b"containerd-shim\0-id"), None);
    }

    #[test]
    fn locks_tell_holders_from_waiters() {
        let table = "1: FLOCK  ADVISORY  WRITE 700 fe:00:4711 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 701 fe:00:4711 0 EOF\n\
            1: -> FLOCK  ADVISORY  WRITE 702 fe:00:4711 0 EOF\n2: POSIX  ADVISORY  READ 703 fe:00:47110 0 EOF\n";
        assert_eq!(parse_locks(table, 4711), Locks { holders: vec![700], waiters: vec![701, 702] });
    }

    #[test]
    fn the_own_process_is_among_the_standing_ones() {
        let me = i32::try_from(std::process::id()).unwrap();
        let own = standing(|| all(me)).unwrap();
        let found = own.iter().find(|process| process.host_pid == me).unwrap();
        assert_eq!(found.pid, *process::ns_pids(me).last().unwrap());
        assert_eq!(found.shim_of, None);
    }
}
