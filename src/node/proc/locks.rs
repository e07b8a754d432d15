//! File locks: who holds which, and who waits behind it.

use std::io;
use std::path::Path;

use super::bounded::read_whole;

/// Most bytes of `/proc/locks` that are read; about 50,000 locks.
const MAX_LOCKS: usize = 4 << 20;

/// A file as the lock table names it. The numbers are the file system's own and need not equal those that
/// `stat` shows (they differ on btrfs and overlays): compare them only with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// Major number of the device.
    pub major: u32,
    /// Minor number of the device.
    pub minor: u32,
    /// Inode number.
    pub inode: u64,
}

/// Which interface a lock was taken through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockKind {
    /// `flock(2)`: belongs to the open file, so it outlives the process that took it when a child inherits it.
    Flock,
    /// `fcntl(2)`, owned by the process.
    Posix,
    /// `fcntl(2)`, owned by the open file.
    OpenFile,
    /// Leases, delegations and what may come.
    Other,
}

/// One lock of `/proc/locks`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Interface.
    pub kind: LockKind,
    /// Who took it; `None` where the kernel does not say (open-file locks, or one outside this namespace).
    /// Not proof of who holds it: see [`LockKind::Flock`] and [`super::Handle::locked_files`].
    pub holder: Option<i32>,
    /// The file.
    pub file: FileId,
    /// Processes that wait behind it.
    pub waiters: Vec<i32>,
}

/// All locks with those who wait for them.
///
/// The kernel leaves out locks whose taker is outside the PID namespace of `root`, and those behind them.
pub fn locks(root: &Path) -> io::Result<Vec<Lock>> {
    Ok(parse(&read_whole(&root.join("locks"), MAX_LOCKS)?))
}

/// Whether this wait channel is that of a wait for a file lock.
pub fn waits_for_lock(wchan: &str) -> bool {
    // flock_lock_inode_wait and locks_lock_inode_wait (flock), posix_lock_inode_wait and fcntl_setlk,
    // do_lock_file_wait (fcntl).
    ["flock_lock", "locks_lock", "posix_lock", "fcntl_setlk", "do_lock_file"]
        .iter()
        .any(|known| wchan.starts_with(known))
}

struct Line {
    number: u64,
    waits: bool,
    kind: LockKind,
    pid: Option<i32>,
    file: FileId,
}

/// Lines that cannot be read are left out: the format differs between kernels, and a missing lock only means
/// less evidence.
pub(in crate::node) fn parse(text: &str) -> Vec<Lock> {
    let mut locks: Vec<Lock> = Vec::new();
    let mut number = None;
    for line in text.lines().filter_map(parse_line) {
        if line.waits {
            // A waiter follows its lock and carries the same number.
            if number == Some(line.number)
                && let (Some(lock), Some(pid)) = (locks.last_mut(), line.pid)
            {
                lock.waiters.push(pid);
            }
        } else {
            number = Some(line.number);
            locks.push(Lock { kind: line.kind, holder: line.pid, file: line.file, waiters: Vec::new() });
        }
    }
    locks
}

/// The file named by one line, as it also stands in `fdinfo`, and how it is locked.
pub(in crate::node) fn parse_held(line: &str) -> Option<(LockKind, FileId)> {
    parse_line(line).filter(|line| !line.waits).map(|line| (line.kind, line.file))
}

fn parse_line(line: &str) -> Option<Line> {
    let mut words = line.split_ascii_whitespace().peekable();
    let number = words.next()?.strip_suffix(':')?.parse().ok()?;
    let waits = words.next_if_eq(&"->").is_some();
    let kind = match words.next()? {
        "FLOCK" => LockKind::Flock,
        "POSIX" => LockKind::Posix,
        "OFDLCK" => LockKind::OpenFile,
        _ => LockKind::Other,
    };
    // Then whether it binds (ADVISORY), and whether it is shared (READ, WRITE).
    let pid = words.nth(2)?.parse().ok().filter(|pid: &i32| *pid > 0);
    let mut file = words.next()?.split(':');
    let major = u32::from_str_radix(file.next()?, 16).ok()?;
    let minor = u32::from_str_radix(file.next()?, 16).ok()?;
    let inode = file.next()?.parse().ok()?;
    // The range follows; without it the line was cut, and so perhaps the number.
    words.next()?;
    Some(Line { number, waits, kind, pid, file: FileId { major, minor, inode } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_belong_to_the_lock_above_them() {
        let text = "1: POSIX  ADVISORY  WRITE 3548 00:1b:12345 0 EOF\n\
                    2: FLOCK  ADVISORY  WRITE 123 fe:00:5554898 0 EOF\n\
                    2: -> FLOCK  ADVISORY  WRITE 124 fe:00:5554898 0 EOF\n\
                    2:  -> FLOCK  ADVISORY  WRITE 125 fe:00:5554898 0 EOF\n\
                    3: OFDLCK ADVISORY  READ  -1 fe:00:5554851 0 EOF\n";
        let locks = parse(text);
        assert_eq!(locks.len(), 3);
        assert_eq!(locks[1].holder, Some(123));
        assert_eq!(locks[1].waiters, [124, 125]);
        assert_eq!(locks[1].file, FileId { major: 0xfe, minor: 0, inode: 5_554_898 });
        assert_eq!((locks[2].kind, locks[2].holder), (LockKind::OpenFile, None));
        assert!(locks[0].waiters.is_empty());
    }

    #[test]
    fn odd_lines_are_left_out_and_lend_no_waiters() {
        let text = "1: LEASE  ACTIVE    READ  9 08:01:1 0 EOF\nrubbish\n2: -> FLOCK ADVISORY WRITE 5 08:01:2 0 EOF\n3: FLOCK\n";
        let locks = parse(text);
        assert_eq!(locks.len(), 1);
        assert_eq!(locks[0].kind, LockKind::Other);
        assert!(locks[0].waiters.is_empty(), "a waiter of lock 2 was given to lock 1");
    }
}
