//! File locks: which process holds which, and which processes wait behind it.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use super::clock::processor_time;

/// Maximum number of bytes read from `/proc/locks`; about 250,000 locks.
const MAX_BYTES: u64 = 16 << 20;
/// Maximum processor time for the read. With each read the kernel steps over all earlier locks, so the cost grows with the
/// square of their number.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Maximum number of locks kept of one reading.
const MAX_KEPT: usize = 1024;
/// Maximum number of waiters kept of one lock.
const MAX_WAITERS: usize = 1024;

/// A file as the lock table names it. The numbers are the file system's own and may differ from those that `stat` shows (they
/// differ on btrfs and overlays): compare them only with each other.
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
    /// Leases, delegations and any future kind.
    Other,
}

/// One lock of `/proc/locks`. The process that the kernel names there has taken it and may not hold it any more: see
/// [`LockKind::Flock`] and [`super::Handle::locked_files`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Interface.
    pub kind: LockKind,
    /// The file.
    pub file: FileId,
    /// Processes that wait behind it.
    pub waiters: Vec<i32>,
}

/// What was read from the lock table.
#[derive(Debug, Default)]
pub struct Locks {
    /// The requested locks, each with its waiters.
    pub locks: Vec<Lock>,
    /// Whether the table was longer than the part that was read: requested locks may be missing.
    pub is_cut: bool,
}

/// The requested locks, each with its waiters.
///
/// Any process of the node can take thousands of locks. So this keeps no other lock, and reads a table that is too long only in
/// part. The kernel leaves out locks that a process outside the PID namespace of `root` took, and the waiters behind them.
pub fn locks(root: &Path, is_asked: impl Fn(&Lock) -> bool) -> io::Result<Locks> {
    read(BufReader::new(File::open(root.join("locks"))?), MAX_BYTES, MAX_TIME, is_asked)
}

fn read(table: impl BufRead, most: u64, longest: Duration, is_asked: impl Fn(&Lock) -> bool) -> io::Result<Locks> {
    let (mut table, began) = (table.take(most), processor_time());
    let (mut found, mut last) = (Locks::default(), Grouped::default());
    let mut line = Vec::new();
    while table.read_until(b'\n', &mut line)? > 0 {
        // Only the last line can have no end. In a table that was cut, it may be half a line.
        let is_whole = line.ends_with(b"\n");
        if let Some(line) = parse_line(&String::from_utf8_lossy(&line)).filter(|_| is_whole) {
            found.keep(last.take(line), &is_asked);
        }
        line.clear();
        if table.limit() == 0 || processor_time().saturating_sub(began) > longest {
            found.is_cut = true;
            break;
        }
    }
    found.is_cut |= last.is_cut;
    found.keep(last.lock, &is_asked);
    Ok(found)
}

impl Locks {
    fn keep(&mut self, lock: Option<Lock>, is_asked: impl Fn(&Lock) -> bool) {
        let Some(lock) = lock.filter(|lock| is_asked(lock)) else { return };
        if self.locks.len() < MAX_KEPT {
            self.locks.push(lock);
        } else {
            self.is_cut = true;
        }
    }
}

/// The lock whose waiters are being read: their lines follow it and carry its number.
#[derive(Default)]
struct Grouped {
    number: Option<u64>,
    lock: Option<Lock>,
    is_cut: bool,
}

impl Grouped {
    /// Takes a line. Returns the previous lock once it is complete.
    fn take(&mut self, line: Line) -> Option<Lock> {
        if !line.waits {
            self.number = Some(line.number);
            let lock = Lock { kind: line.kind, file: line.file, waiters: Vec::new() };
            return self.lock.replace(lock);
        }
        if self.number == Some(line.number)
            && let (Some(lock), Some(pid)) = (self.lock.as_mut(), line.pid)
        {
            if lock.waiters.len() < MAX_WAITERS {
                lock.waiters.push(pid);
            } else {
                self.is_cut = true;
            }
        }
        None
    }
}

/// Whether this wait channel is that of a wait for a file lock.
pub fn waits_for_lock(wchan: &str) -> bool {
    // flock_lock_inode_wait and locks_lock_inode_wait (flock), posix_lock_inode_wait and fcntl_setlk,
    // do_lock_file_wait (fcntl).
    ["flock_lock", "locks_lock", "posix_lock", "fcntl_setlk", "do_lock_file"]
        .iter()
        .any(|known| wchan.starts_with(known))
}

#[derive(Clone, Copy)]
struct Line {
    number: u64,
    waits: bool,
    kind: LockKind,
    /// `None` where the kernel does not say (open-file locks, or a process outside this namespace).
    pid: Option<i32>,
    file: FileId,
}

/// Lines that cannot be parsed are left out: the format differs between kernels, and a missing lock only means less evidence.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn parse(text: &str) -> Vec<Lock> {
    read(text.as_bytes(), u64::MAX, Duration::MAX, |_| true).map(|found| found.locks).unwrap_or_default()
}

/// The file named by one line, which has the same form in `fdinfo`, and how it is locked.
pub(crate) fn parse_held(line: &str) -> Option<(LockKind, FileId)> {
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
    // The next words are whether the lock is mandatory (ADVISORY), and whether it is shared (READ, WRITE).
    let pid = words.nth(2)?.parse().ok().filter(|pid: &i32| *pid > 0);
    let mut file = words.next()?.split(':');
    let major = u32::from_str_radix(file.next()?, 16).ok()?;
    let minor = u32::from_str_radix(file.next()?, 16).ok()?;
    let inode = file.next()?.parse().ok()?;
    // The range follows. If it is missing, the line was cut, and perhaps the number too.
    words.next()?;
    Some(Line { number, waits, kind, pid, file: FileId { major, minor, inode } })
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn waiters_belong_to_the_lock_above_them() {
        let text = "1: POSIX  ADVISORY  WRITE 3548 00:1b:12345 0 EOF\n\
                    2: FLOCK  ADVISORY  WRITE 123 fe:00:5554898 0 EOF\n\
                    2: -> FLOCK  ADVISORY  WRITE 124 fe:00:5554898 0 EOF\n\
                    2:  -> FLOCK  ADVISORY  WRITE 125 fe:00:5554898 0 EOF\n\
                    3: OFDLCK ADVISORY  READ  -1 fe:00:5554851 0 EOF\n\
                    3: -> OFDLCK ADVISORY  WRITE -1 fe:00:5554851 0 EOF\n";
        let locks = parse(text);
        assert_eq!(locks.len(), 3);
        assert_eq!(locks[1].waiters, [124, 125]);
        assert_eq!(locks[1].file, FileId { major: 0xfe, minor: 0, inode: 5_554_898 });
        assert_eq!(locks[2].kind, LockKind::OpenFile);
        assert!(locks[2].waiters.is_empty(), "the kernel does not say which process waits");
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

    /// 80,000 locks on single bytes of one file, which any pod can take.
    #[test]
    fn a_table_full_of_other_locks_hides_none_that_is_asked_for() {
        let mut text = String::new();
        for number in 1..=80_000 {
            writeln!(text, "{number}: POSIX  ADVISORY  WRITE 4711 08:01:77 {number} {number}").unwrap();
        }
        text += "80001: FLOCK  ADVISORY  WRITE 123 08:01:5 0 EOF\n80001: -> FLOCK  ADVISORY  WRITE 124 08:01:5 0 EOF\n";
        assert!(text.len() > 4 << 20);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("locks"), text).unwrap();
        let found = locks(folder.path(), |lock| lock.file.inode == 5).unwrap();
        assert!(!found.is_cut);
        assert_eq!(found.locks.iter().map(|lock| lock.waiters.as_slice()).collect::<Vec<_>>(), [[124]]);
        let all = locks(folder.path(), |_| true).unwrap();
        assert_eq!((all.locks.len(), all.is_cut), (MAX_KEPT, true));
    }

    #[test]
    fn a_table_that_is_too_long_is_read_in_part_and_its_last_line_is_whole() {
        let text = b"1: FLOCK  ADVISORY  WRITE 12 08:01:5 0 EOF\n2: FLOCK  ADVISORY  WRITE 13 08:01:6 0 EOF\n";
        for most in 0..text.len() {
            let found = read(&text[..], u64::try_from(most).unwrap(), Duration::MAX, |_| true).unwrap();
            let whole = usize::from(most >= text.len() / 2);
            assert_eq!((found.locks.len(), found.is_cut), (whole, most > 0), "cut at {most}");
        }
        assert!(read(&text[..], u64::MAX, Duration::ZERO, |_| true).unwrap().is_cut, "out of time");
    }
}
