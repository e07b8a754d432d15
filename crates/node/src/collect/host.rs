//! The kernel's numeric limits, their use, and what the daemons' threads wait for. It reads `/proc` and control groups only,
//! and nothing on a disk.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::proc::bounded::invalid;
use crate::proc::{self, AwakeClock, Groups, Handle, Waits, groups, rooted};
use nrh_core::fault::{ProcessRef, Role};
use nrh_core::observation::{DaemonSeen, FrozenSeen, HostSeen, InitSeen, LimitSeen, Owner, ThreadWaiting, Usage};
use nrh_core::text::bounded;

mod pods;
mod untracked;

pub use pods::PodGroups;

/// Longest file of numbers that is read.
const MAX_NUMBERS: usize = 256;
/// Share of a limit, in percent, from which the collector verifies whose control group it is.
const NEAR: u8 = 80;
/// No usual creation of a container has its first process for as long.
const NOT_YOUNG: Duration = Duration::from_secs(30);
/// What is said where the group of all pods is not found.
const NO_PODS: &str = "the kubelet's control group of all pods is at no usual place";

/// A daemon to check, as another collector has found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    /// Which daemon.
    pub owner: Owner,
    /// Its process id.
    pub pid: i32,
    /// Its start in clock ticks since boot.
    pub start_ticks: u64,
}

/// The processes to check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// The kubelet and the runtime's daemons.
    pub daemons: Vec<Daemon>,
    /// First processes of containers in creation.
    pub inits: Vec<InitSeen>,
    /// Ids in the runtime's newest lists, of containers and sandboxes; `None` = no list is available.
    pub listed: Option<BTreeSet<String>>,
    /// Where the kubelet keeps the control groups of pods.
    pub pod_groups: PodGroups,
    /// Which daemon does not exist or is not known, and why.
    pub unseen: Option<String>,
}

/// The state of the host collector.
#[derive(Debug)]
pub struct Host {
    proc: PathBuf,
    clock: AwakeClock,
    waits: Waits,
}

impl Host {
    /// Reads this `/proc`.
    pub fn new(proc: &Path) -> Self {
        Self { proc: proc.to_path_buf(), clock: AwakeClock::new(proc), waits: Waits::default() }
    }

    /// One reading.
    ///
    /// # Errors
    /// When even the time since boot cannot be read. Every other error is in the field that it concerns.
    pub fn check(&mut self, who: &Who) -> io::Result<HostSeen> {
        self.clock.read(&self.proc)?;
        let mut seen = HostSeen {
            pids: vec![LimitSeen { owner: Owner::Node, usage: self.threads().map_err(|error| describe(&error)) }],
            files: vec![LimitSeen { owner: Owner::Node, usage: self.files().map_err(|error| describe(&error)) }],
            daemons: Vec::new(),
            frozen: Ok(Vec::new()),
            untracked: Ok(Vec::new()),
            untracked_left_out: 0,
            unseen: who.unseen.clone(),
        };
        // Control groups are found below the root of a process that sees all of them.
        let mut root = None;
        for daemon in &who.daemons {
            match Handle::of(&self.proc, daemon.pid, daemon.start_ticks) {
                Ok(handle) => {
                    let own = handle.root();
                    self.daemon(daemon, &handle, own.as_ref().ok(), &mut seen);
                    root = root.or(own.ok());
                }
                Err(error) => {
                    seen.unseen.get_or_insert(bounded(&format!("{} cannot be checked: {error}", daemon.owner), 200));
                }
            }
        }
        self.waits.over();
        if let Some(root) = &root {
            seen.pids.extend(of_pods(root, &who.pod_groups));
            seen.frozen = self.frozen(root, who);
            let age = |pid| {
                let stat = Handle::open(&self.proc, pid).and_then(|process| process.stat());
                stat.ok().map(|stat| self.clock.age(stat.start_ticks))
            };
            let search =
                |listed| untracked::find(root, &untracked::Search { pods: &who.pod_groups, listed, age: &age });
            match who.listed.as_ref().map(search) {
                Some(Ok(Some(found))) => {
                    (seen.untracked, seen.untracked_left_out) = (Ok(found.reported), found.left_out);
                }
                Some(Ok(None)) if who.pod_groups.none => {}
                Some(Ok(None)) => seen.untracked = Err(NO_PODS.to_owned()),
                Some(Err(error)) => seen.untracked = Err(describe(&error)),
                None => seen.untracked = Err("the runtime's lists are not known".to_owned()),
            }
        } else {
            let why = "no root of a kubelet or a runtime can be entered to find control groups";
            seen.unseen.get_or_insert(why.to_owned());
            seen.frozen = Err(why.to_owned());
            seen.untracked = Err(why.to_owned());
        }
        Ok(seen)
    }

    /// Threads of the node. Each uses a process id.
    fn threads(&self) -> io::Result<Usage> {
        let text = self.numbers("loadavg")?;
        let limit = |name| parse(&self.numbers(name)?);
        let limit = limit("sys/kernel/pid_max")?.min(limit("sys/kernel/threads-max")?);
        Ok(Usage { used: threads_of(&text).ok_or_else(|| odd(&text))?, limit })
    }

    fn files(&self) -> io::Result<Usage> {
        let text = self.numbers("sys/fs/file-nr")?;
        files_of(&text).ok_or_else(|| odd(&text))
    }

    fn numbers(&self, name: &str) -> io::Result<String> {
        proc::bounded::read_whole(&self.proc.join(name), MAX_NUMBERS)
    }

    fn daemon(&mut self, daemon: &Daemon, handle: &Handle, root: Option<&OwnedFd>, seen: &mut HostSeen) {
        let limit = |usage: io::Result<Option<Usage>>| {
            let usage = usage.map_err(|error| describe(&error)).transpose()?;
            Some(LimitSeen { owner: daemon.owner.clone(), usage })
        };
        seen.files.extend(limit(handle.open_files().map(Some)));
        // A process whose root cannot be opened shows nothing of its group. A process without a group is no gap.
        if let Some(root) = root {
            seen.pids.extend(limit(of_group(root, handle)));
        }
        seen.daemons.push(DaemonSeen {
            owner: daemon.owner.clone(),
            pid: daemon.pid,
            start_ticks: daemon.start_ticks,
            waiting: self.waiting(handle).map_err(|error| describe(&error)),
        });
    }

    /// The thread that has waited uninterruptibly for the longest time.
    fn waiting(&mut self, handle: &Handle) -> io::Result<Option<ThreadWaiting>> {
        let mut longest: Option<ThreadWaiting> = None;
        for thread in handle.threads()?.into_iter().filter(|thread| thread.state == 'D') {
            // The thread may have ended by now.
            let Ok(switches) = handle.thread_switches(thread.id) else { continue };
            let waited = self.waits.saw((thread.id, thread.start_ticks), switches, 0, self.clock.now());
            if longest.as_ref().is_none_or(|longest| waited > longest.waited) {
                let wchan = handle.thread_wchan(thread.id).ok().flatten();
                longest = Some(ThreadWaiting { thread: thread.id, waited, wchan });
            }
        }
        Ok(longest)
    }

    fn frozen(&self, root: &OwnedFd, who: &Who) -> Result<Vec<FrozenSeen>, String> {
        let mut found = Vec::new();
        for init in &who.inits {
            let read = Handle::of(&self.proc, init.pid, init.start_ticks)
                .and_then(|handle| Ok((handle.groups()?, handle.stat()?)));
            let frozen = match read {
                Err(error) if proc::is_gone(&error) => continue,
                read => {
                    read.and_then(|(groups, stat)| Ok((frozen_group(root, &who.pod_groups, &groups, init.pid)?, stat)))
                }
            };
            match frozen {
                Ok((None, _)) => {}
                Ok((Some(group), stat)) => found.push(FrozenSeen {
                    process: ProcessRef {
                        role: Role::ContainerInit,
                        pid: init.pid,
                        start_ticks: init.start_ticks,
                        state: stat.state.to_string(),
                        wchan: None,
                        command: bounded(&stat.command, 64),
                    },
                    age: init.age,
                    serves: init.serves.clone(),
                    group: bounded(&group.display().to_string(), 512),
                }),
                // A young one may have ended meanwhile, and its group with it.
                Err(error) if error.kind() == io::ErrorKind::NotFound && init.age < NOT_YOUNG => {}
                Err(error) => return Err(format!("the control group of process {}: {}", init.pid, describe(&error))),
            }
        }
        Ok(found)
    }
}

fn describe(error: &io::Error) -> String {
    bounded(&error.to_string(), 160)
}

fn odd(text: &str) -> io::Error {
    invalid(format!("{text:?} is not of the form expected"))
}

pub(crate) fn threads_of(loadavg: &str) -> Option<u64> {
    loadavg.split_ascii_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

pub(crate) fn files_of(file_nr: &str) -> Option<Usage> {
    let mut fields = file_nr.split_ascii_whitespace().map(str::parse);
    Some(Usage { used: fields.next()?.ok()?, limit: fields.nth(1)?.ok()? })
}

fn parse(text: &str) -> io::Result<u64> {
    text.trim().parse().map_err(|_| odd(text))
}

/// Processes and threads of one control group; `None` where it has no limit.
fn of_folder(group: impl AsFd) -> io::Result<Option<Usage>> {
    let (Some(limit), Some(used)) = (groups::file(&group, "pids.max")?, groups::file(&group, "pids.current")?) else {
        return Ok(None);
    };
    usage(&limit, &used)
}

/// The values of `pids.max` and `pids.current`; `None` where there is no limit.
pub(crate) fn usage(limit: &str, used: &str) -> io::Result<Option<Usage>> {
    if limit.trim() == "max" {
        return Ok(None);
    }
    Ok(Some(Usage { used: parse(used)?, limit: parse(limit)? }))
}

/// The use of the group of all pods. `None` where it has no limit, or the kubelet keeps no such group.
fn of_pods(root: &OwnedFd, pods: &PodGroups) -> Vec<LimitSeen> {
    let usages = match pods.open(root) {
        Ok(groups) if groups.is_empty() && !pods.none => vec![Err(NO_PODS.to_owned())],
        Ok(groups) => {
            groups.iter().filter_map(|group| of_folder(group).map_err(|error| describe(&error)).transpose()).collect()
        }
        Err(error) => vec![Err(describe(&error))],
    };
    usages.into_iter().map(|usage| LimitSeen { owner: Owner::Pods, usage }).collect()
}

/// The use of one daemon's group. Near the limit, the code verifies that the daemon is in the group before it reports it.
fn of_group(root: &OwnedFd, handle: &Handle) -> io::Result<Option<Usage>> {
    let own: Groups = handle.groups()?;
    for folder in own.folders("pids") {
        let Some(group) = rooted::folder(root, &folder)? else { continue };
        let Some(usage) = of_folder(&group)? else { continue };
        let is_near = usage.is_at_least(NEAR);
        return Ok((!is_near || groups::has(&group, handle.pid())?).then_some(usage));
    }
    Ok(None)
}

/// The first of its groups that is frozen. The wait channel does not show it: kernels freeze a process wherever it is.
///
/// # Errors
/// `NotFound` where none of its groups is found.
fn frozen_group(root: &OwnedFd, pods: &PodGroups, groups: &Groups, pid: i32) -> io::Result<Option<PathBuf>> {
    // Nothing freezes what is at the top of a hierarchy: that has no freezer.
    let tops = ["", "freezer", "unified"].map(|name| Path::new(groups::MOUNT).join(name));
    let mut is_found = false;
    for folder in groups.folders("freezer").chain(pods.below(groups)) {
        let Some(group) = rooted::folder(root, &folder)? else { continue };
        // A part of a path may be that of another group.
        if !groups::has(&group, pid)? {
            continue;
        }
        match freezer(&group)? {
            Some(true) => return Ok(Some(folder)),
            // Not every group has a freezer: those of another controller, or of an old kernel, say nothing.
            found => is_found |= found.is_some() || tops.contains(&folder),
        }
    }
    let shown = || bounded(groups.0.lines().last().unwrap_or_default(), 120);
    if is_found { Ok(None) } else { Err(io::Error::new(io::ErrorKind::NotFound, format!("{} is not found", shown()))) }
}

/// Whether a group is frozen, by itself or by one above it.
pub(crate) fn is_group_frozen(group: impl AsFd) -> io::Result<bool> {
    Ok(freezer(group)?.unwrap_or_default())
}

/// Whether a group is frozen; `None` where it has no freezer.
fn freezer(group: impl AsFd) -> io::Result<Option<bool>> {
    let old = groups::file(&group, "freezer.state")?;
    let new =
        groups::file(&group, "cgroup.events")?.filter(|events| events.lines().any(|line| line.starts_with("frozen ")));
    let is_told = old.is_some() || new.is_some();
    Ok(is_told.then(|| is_frozen(old.as_deref(), new.as_deref())))
}

/// Whether `freezer.state` of version 1, or `cgroup.events` of version 2, says frozen.
pub(crate) fn is_frozen(old: Option<&str>, new: Option<&str>) -> bool {
    old.is_some_and(|state| matches!(state.trim(), "FROZEN" | "FREEZING"))
        || new.is_some_and(|events| events.lines().any(|line| line == "frozen 1"))
}

#[cfg(test)]
mod tests;
