//! The process table of the node, read from `/proc` directly: every read is bounded, nothing is forked, and no file that takes
//! the memory lock of a process is read while that process waits uninterruptibly.
//!
//! ```text
//! table ─► RawProcess (stat only, cheap) ─► Handle (one process, bound to its life) ─► role::prove
//! locks ─► who waits behind which lock     └► args, exe, environ, descriptors, wchan
//! ```
//!
//! A table has room for every process of a usual node. Beyond that it keeps the node's own, so that a pod with many processes
//! hides none of them; see [`Table`].
//!
//! A pid alone proves nothing. All details are read through a [`Handle`], which stays bound to the one process it was opened
//! for. When that process ends, its reads fail and never show a later process with the same pid. Names (`comm`) select the
//! processes to examine more closely. They prove nothing but which part of k3s's executable a process is.

pub(crate) mod bounded;
pub(crate) mod clock;
pub(crate) mod daemon;
pub(crate) mod groups;
pub(crate) mod handle;
pub(crate) mod listener;
pub(crate) mod locks;
pub(crate) mod place;
pub mod role;
pub(crate) mod rooted;
pub(crate) mod stat;
pub(crate) mod table;
mod trace;
mod waits;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;

pub use clock::{AwakeClock, age, at_one_moment, awake, boot_id, processor_time, suspended, uptime};
pub use daemon::Thread;
pub use groups::Groups;
pub use handle::{Handle, LockedFile};
pub use locks::{Lock, Locks, locks, waits_for_lock};
pub use stat::Stat;
pub use table::{Table, table};
pub use waits::Waits;

/// Where the kernel shows processes. A parameter everywhere, for tests and for pods that mount it elsewhere.
pub const PROC: &str = "/proc";

/// One process as its `stat` line shows it, and the number of its living children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawProcess {
    /// Process id in the PID namespace of the `/proc` that was read.
    pub pid: i32,
    /// Parent's process id; 0 when it is outside of that namespace, or there is none.
    pub parent: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Processor time in clock ticks, of all its threads.
    pub cpu_ticks: u64,
    /// How many threads it has; 1 when only its entry is left.
    pub threads: u32,
    /// Scheduler state letter of its first thread.
    pub state: char,
    /// Command name, at most 15 bytes for a user process. The process itself chooses it, so it is a hint only.
    pub command: String,
    /// Children that have not ended.
    pub living_children: u32,
}

/// The process with this pid in a table (which is in ascending order of pids).
pub fn find(table: &[RawProcess], pid: i32) -> Option<&RawProcess> {
    table.binary_search_by_key(&pid, |process| process.pid).ok().and_then(|at| table.get(at))
}

/// The parents of a process, nearest first, at most `most` of them.
pub fn ancestors<'a>(
    table: &'a [RawProcess],
    process: &RawProcess,
    most: usize,
) -> impl Iterator<Item = &'a RawProcess> + use<'a> {
    std::iter::successors(find(table, process.parent), move |parent| find(table, parent.parent)).take(most)
}

/// Maximum number of processes below one whose progress is followed.
const MOST_BELOW: usize = 64;
/// Processor time in clock ticks that does not count as progress: a Go program that waits for ever wakes up every minute.
pub const NO_PROGRESS: u64 = 2;

/// A number that stays the same (within [`NO_PROGRESS`]) while neither this process nor one below it uses a processor, begins
/// or ends.
pub fn progress(table: &[RawProcess], process: &RawProcess) -> u64 {
    let mut family = vec![process];
    let mut at = 0;
    while let Some(parent) = family.get(at).map(|parent| parent.pid) {
        at += 1;
        let room = MOST_BELOW.saturating_sub(family.len());
        family.extend(table.iter().filter(|child| child.parent == parent).take(room));
    }
    let identity = |one: &RawProcess| {
        let mut hasher = DefaultHasher::new();
        (one.pid, one.start_ticks, one.is_dead()).hash(&mut hasher);
        // The lower half is left for the ticks.
        hasher.finish() >> 32 << 32
    };
    family.iter().fold(0_u64, |sum, one| sum.wrapping_add(identity(one)).wrapping_add(one.cpu_ticks))
}

/// Whether an error means that the process does not exist (any more).
pub fn is_gone(error: &io::Error) -> bool {
    // ESRCH: the directory was already open when the process ended.
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// What was read of a process; `None` where it does not exist (any more).
pub(crate) fn unless_gone<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error) if is_gone(&error) => Ok(None),
        read => read.map(Some),
    }
}

impl RawProcess {
    fn from_stat(pid: i32, stat: Stat) -> Self {
        let Stat { parent, start_ticks, cpu_ticks, threads, state, command } = stat;
        Self { pid, parent, start_ticks, cpu_ticks, threads, state, command, living_children: 0 }
    }

    /// Whether it has ended and only its entry is left. A process whose first thread has ended may still have other ones.
    pub const fn is_dead(&self) -> bool {
        is_dead(self.state) && self.threads <= 1
    }
}

/// Whether this state letter says that a process has ended.
pub const fn is_dead(state: char) -> bool {
    matches!(state, 'Z' | 'X' | 'x')
}

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;
