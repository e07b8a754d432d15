//! How much of its limits a daemon uses, and what its threads wait for.

use std::io;
use std::path::PathBuf;

use rustix::fs::Dir;

use super::bounded::{invalid, whole_lines};
use super::handle::{Handle, MAX_STATUS};
use super::stat::{self, Stat};
use super::{is_dead, unless_gone};
use nrh_core::observation::{Usage, is_unresponsive_state};

/// Maximum number of threads that are checked. Daemons have some dozens.
const MAX_THREADS: usize = 512;
/// Maximum number of open files that are counted one by one, where the kernel does not report their number (before 6.2).
const MAX_COUNTED: u64 = 65_536;
/// Maximum number of open files whose paths are read: files that a daemon opens at its start have the lowest numbers.
const MAX_LINKS: usize = 256;
/// Share of a limit, in percent, below which an upper bound is good enough.
const FAR: u8 = 80;

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its id.
    pub id: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Scheduler state letter.
    pub state: char,
}

impl Handle {
    /// How often the kernel switched away from it, voluntarily and by force. While this number does not change, it has not run.
    pub fn switches(&self) -> io::Result<u64> {
        parse_switches(&self.text("status", MAX_STATUS)?).ok_or_else(|| missing("the number of switches"))
    }

    /// The same for one of its threads.
    pub fn thread_switches(&self, thread: i32) -> io::Result<u64> {
        parse_switches(&self.text(&format!("task/{thread}/status"), MAX_STATUS)?)
            .ok_or_else(|| missing("the number of switches"))
    }

    /// Kernel function in which one of its threads waits.
    pub fn thread_wchan(&self, thread: i32) -> io::Result<Option<String>> {
        self.wchan_in(&format!("task/{thread}/wchan"))
    }

    /// Its threads. An error where there are more than 512 and none of the first ones waits in the kernel: they prove nothing
    /// about the others.
    pub fn threads(&self) -> io::Result<Vec<Thread>> {
        let mut threads = Vec::new();
        for entry in Dir::read_from(self.folder("task")?)? {
            let Some(id) = entry?.file_name().to_str().ok().and_then(|name| name.parse::<i32>().ok()) else { continue };
            if threads.len() >= MAX_THREADS && threads.iter().any(|thread: &Thread| thread.state == 'D') {
                return Ok(threads);
            }
            if threads.len() >= MAX_THREADS {
                return Err(io::Error::other(format!("more than {MAX_THREADS} threads")));
            }
            let read = self.file(&format!("task/{id}/stat")).and_then(|mut file| stat::from_file(&mut file, id));
            if let Some(Stat { start_ticks, state, .. }) = unless_gone(read)? {
                threads.push(Thread { id, start_ticks, state });
            }
        }
        Ok(threads)
    }

    /// The living thread that is worst off: one that waits uninterruptibly, then one that is stopped. `None`: none lives.
    pub(super) fn worst_thread(&self) -> io::Result<Option<Thread>> {
        let living = self.threads()?.into_iter().filter(|thread| !is_dead(thread.state));
        Ok(living.min_by_key(|thread| (thread.state != 'D', !is_unresponsive_state(thread.state))))
    }

    /// Its open files and their limit. They are counted only where they may be near the limit.
    pub fn open_files(&self) -> io::Result<Usage> {
        let limit = parse_limit(&self.text("limits", MAX_STATUS)?, "Max open files");
        let limit = limit.ok_or_else(|| missing("the limit of open files"))?;
        // The allocated room for open files is never less than their number.
        let room = number_of(&self.text("status", MAX_STATUS)?, "FDSize:")
            .ok_or_else(|| missing("the room for open files"))?;
        let room = Usage { used: room, limit };
        if !room.is_at_least(FAR) {
            return Ok(room);
        }
        let folder = self.folder("fd")?;
        let open = u64::try_from(rustix::fs::fstat(&folder)?.st_size).unwrap_or_default();
        if open > 0 {
            return Ok(Usage { used: open, limit });
        }
        let mut used = 0_u64;
        for entry in Dir::read_from(folder)? {
            entry?;
            used = used.saturating_add(1);
            // Two entries are the folder and its parent.
            if used >= MAX_COUNTED.saturating_add(2) {
                return Err(io::Error::other(format!("more than {MAX_COUNTED} open files, which are not counted")));
            }
        }
        Ok(Usage { used: used.saturating_sub(2), limit })
    }

    /// The first of its open files whose path ends with this.
    pub fn open_file(&self, end: &str) -> io::Result<Option<PathBuf>> {
        for entry in Dir::read_from(self.folder("fd")?)?.take(MAX_LINKS) {
            let Ok(name) = entry?.file_name().to_str().map(ToOwned::to_owned) else { continue };
            if name.parse::<u32>().is_err() {
                continue;
            }
            if let Some(path) = unless_gone(self.link(&format!("fd/{name}")))?.filter(|path| path.ends_with(end)) {
                return Ok(Some(PathBuf::from(path)));
            }
        }
        Ok(None)
    }
}

fn missing(what: &str) -> io::Error {
    invalid(format!("the kernel does not report {what}"))
}

pub(crate) fn number_of(text: &str, name: &str) -> Option<u64> {
    whole_lines(text).find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

pub(crate) fn parse_switches(status: &str) -> Option<u64> {
    let of = |name| number_of(status, name);
    Some(of("voluntary_ctxt_switches:")?.saturating_add(of("nonvoluntary_ctxt_switches:")?))
}

/// The soft limit of this name.
pub(crate) fn parse_limit(limits: &str, name: &str) -> Option<u64> {
    let soft = whole_lines(limits).find_map(|line| line.strip_prefix(name))?.split_ascii_whitespace().next()?;
    if soft == "unlimited" { Some(u64::MAX) } else { soft.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_limits_are_read_by_name() {
        let status = "FDSize:\t256\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t5\n";
        assert_eq!((parse_switches(status), number_of(status, "FDSize:")), (Some(12), Some(256)));
        assert_eq!(parse_switches("voluntary_ctxt_switches:\t7\n"), None);
        assert_eq!(number_of("FDSize:\t2", "FDSize:"), None, "cut");
        let limits = "Limit   Soft Limit  Hard Limit  Units\nMax open files            1024                 524288               files     \n";
        assert_eq!(parse_limit(limits, "Max open files"), Some(1024));
        assert_eq!(parse_limit("Max open files   unlimited unlimited files\n", "Max open files"), Some(u64::MAX));
        assert_eq!(parse_limit("", "Max open files"), None);
    }
}
