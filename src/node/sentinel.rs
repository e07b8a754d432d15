//! The file by which another tool of the node is asked to reboot it: in the `/run` of the node itself, whichever way the probe was
//! started.
//!
//! ```text
//! ROOT (/proc/1/root) ─► run: a folder in memory that only root can write ─► NAME: a plain file, or nothing
//! ```
//!
//! The one rule: what somebody else has left there is never touched. Ours is known by its content and by its time of change, which is
//! written in it: who writes over our file, or only touches it to ask for a reboot of his own, makes it his. It is put there whole, in
//! one step that fails where anything is in its place, so that a crash leaves ours or nothing.
//!
//! The folder has to be in memory: what a boot does not take away would have the machine rebooted over and over.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps};
use serde::{Deserialize, Serialize};

use crate::core::reboot::sentinel_name;
use crate::node::proc::bounded::read_file;

/// The folder, below the root of the node.
const FOLDER: &str = "run";
/// `tmpfs` and `ramfs` by the kernel's numbers.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];
/// Largest file that can be ours.
const MAX_FILE: usize = 1024;
/// Most names of the folder that are looked at, and most of them that may be ours.
const MAX_NAMES: usize = 4096;
const MAX_MARKS: usize = 16;
/// For people: some systems show this file to who logs in.
const TITLE: &str =
    "*** A reboot of this node was asked for by Node Runtime Health, which withdraws this by itself ***";

/// Why the file cannot be looked at, or made: one sentence.
#[derive(Debug, thiserror::Error)]
pub(in crate::node) enum SentinelError {
    /// Something is as it must not be, and nothing is touched for it.
    #[error("{0}")]
    Unfit(String),
    /// The kernel says no.
    #[error("cannot {what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// Why not.
        error: io::Error,
    },
}

fn failed(what: impl Into<String>) -> impl FnOnce(rustix::io::Errno) -> SentinelError {
    |error| SentinelError::Io { what: what.into(), error: error.into() }
}

/// What a file of ours says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in crate::node) struct Mark {
    /// The node, as its cluster calls it.
    pub node: String,
    /// The operation that made it.
    pub operation_id: String,
    /// The boot that is to end.
    pub boot_id: String,
    /// Seconds since boot after which it is not wanted any more.
    pub until: u64,
    /// When it was made, in seconds by the wall clock: the file's time of change as long as nobody else has touched it.
    pub made_at: i64,
}

impl Mark {
    fn text(&self) -> String {
        let said = serde_json::to_string(self).unwrap_or_default();
        format!("{TITLE}\n{said}\n")
    }

    /// Only what is ours to the last byte is ours.
    fn of(text: &[u8]) -> Option<Self> {
        let said = std::str::from_utf8(text).ok()?.strip_prefix(TITLE)?.trim();
        let mark: Self = serde_json::from_str(said).ok()?;
        (mark.text().as_bytes() == text).then_some(mark)
    }

    /// Why it is not wanted any more, if so: by itself, or by the order that stands. `None` for that = nobody knows what stands.
    fn is_over(&self, order: Option<&Standing>, boot: &str, uptime: Duration) -> Option<&'static str> {
        if self.boot_id != boot {
            return Some("the boot that it was to end has ended");
        }
        if uptime.as_secs() > self.until {
            return Some("its time is over");
        }
        match order? {
            Standing::Operation(operation) if *operation == self.operation_id => None,
            Standing::Operation(_) => Some("another command is issued"),
            Standing::Nothing => Some("its command was withdrawn"),
        }
    }
}

/// The order that stands in the node's object, as the API server has told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::node) enum Standing {
    /// None.
    Nothing,
    /// That of this operation.
    Operation(String),
}

/// What is in the place of the file.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::node) enum Found {
    /// Nothing.
    Nothing,
    /// Ours.
    Ours(Mark),
    /// A plain file of somebody else, in one phrase.
    Others(String),
}

/// What came of a mark.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::node) enum Placed {
    /// It is there.
    Made,
    /// Somebody else asks for the same by a file of his own.
    Others(String),
}

/// The folder of such files.
#[derive(Debug)]
pub(in crate::node) struct Folder {
    dir: OwnedFd,
}

impl Folder {
    /// The same folder to take away from, whoever may write it and wherever it is kept: what was put there while it was fit for that
    /// goes by its own content.
    pub(in crate::node) fn open_to_remove(root: &Path) -> Result<Self, SentinelError> {
        let shown = root.join(FOLDER);
        let shown = shown.display();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = rustix::fs::open(root, flags, Mode::empty()).map_err(failed(format!("open {}", root.display())))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&above, FOLDER, flags, Mode::empty())
            .map_err(failed(format!("open {shown} as a folder that is no link")))?;
        Ok(Self { dir })
    }

    /// The `/run` below this root, where it is one that may be used.
    pub(in crate::node) fn open(root: &Path) -> Result<Self, SentinelError> {
        let folder = Self::open_to_remove(root)?;
        let (dir, shown) = (&folder.dir, root.join(FOLDER));
        let shown = shown.display();
        let stat = rustix::fs::fstat(dir).map_err(failed(format!("read {shown}")))?;
        let mode = Mode::from_raw_mode(stat.st_mode);
        if stat.st_uid != rustix::process::geteuid().as_raw() || mode.intersects(Mode::WGRP | Mode::WOTH) {
            let (owner, bits) = (stat.st_uid, stat.st_mode & 0o7777);
            return Err(SentinelError::Unfit(format!(
                "{shown}: expected a folder that only its owner, this process, can write, found owner {owner} and mode {bits:o}"
            )));
        }
        let kind = rustix::fs::fstatfs(dir).map_err(failed(format!("read the file system of {shown}")))?;
        if !u64::try_from(kind.f_type).is_ok_and(|kind| IN_MEMORY.contains(&kind)) {
            return Err(SentinelError::Unfit(format!(
                "{shown} is not in memory (tmpfs): what a boot does not take away would have the node rebooted over and over"
            )));
        }
        Ok(folder)
    }

    /// What is in the place of this name.
    pub(in crate::node) fn look(&self, name: &str) -> Result<Found, SentinelError> {
        let stat = match rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(rustix::io::Errno::NOENT) => return Ok(Found::Nothing),
            Err(error) => return Err(failed(format!("read /run/{name}"))(error)),
        };
        // Nothing but a plain file is even opened.
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::RegularFile {
            let message = format!("/run/{name}: expected a plain file or nothing, found {kind:?}: nothing is touched");
            return Err(SentinelError::Unfit(message));
        }
        Ok(self.read(name, &stat)?.map_or_else(|| Found::Others(of_others(&stat)), Found::Ours))
    }

    /// Our mark, where the file is ours and still as we made it.
    fn read(&self, name: &str, seen: &Stat) -> Result<Option<Mark>, SentinelError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.dir, name, flags, Mode::empty()) {
            Ok(file) => file,
            // What this process may not read it has not made.
            Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => return Ok(None),
            Err(error) => return Err(failed(format!("open /run/{name}"))(error)),
        };
        let stat = rustix::fs::fstat(&file).map_err(failed(format!("read /run/{name}")))?;
        let is_same = (stat.st_dev, stat.st_ino) == (seen.st_dev, seen.st_ino);
        let is_own = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_nlink == 1;
        if !is_same || !is_own || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        let read = read_file(&mut File::from(file), MAX_FILE);
        let read = read.map_err(|error| SentinelError::Io { what: format!("read /run/{name}"), error })?;
        let mark = Mark::of(&read.bytes).filter(|_| !read.truncated);
        Ok(mark.filter(|mark| (stat.st_mtime, u64::from(stat.st_mtime_nsec != 0)) == (mark.made_at, 0)))
    }

    /// Puts a mark in the place of this name, where nothing is or an older one of ours.
    pub(in crate::node) fn place(&self, name: &str, mark: &Mark) -> Result<Placed, SentinelError> {
        // One try more, for one of ours that was in the way.
        for _ in 0..2 {
            if self.create(name, mark)? {
                return Ok(Placed::Made);
            }
            match self.look(name)? {
                Found::Nothing => {}
                Found::Others(whose) => return Ok(Placed::Others(whose)),
                Found::Ours(found) if found == *mark => return Ok(Placed::Made),
                Found::Ours(found) if found.node != mark.node => {
                    return Ok(Placed::Others(format!("node {}", found.node)));
                }
                Found::Ours(found) => drop(self.withdraw(name, &found)?),
            }
        }
        Err(SentinelError::Unfit(format!("/run/{name} comes and goes: somebody else is at it just now")))
    }

    /// Makes the file whole and under no name, then gives it the name, unless that is taken. Whether it was free.
    fn create(&self, name: &str, mark: &Mark) -> Result<bool, SentinelError> {
        let making = || format!("make /run/{name}");
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let fresh = rustix::fs::openat(&self.dir, ".", flags, Mode::from_raw_mode(0o644)).map_err(failed(making()))?;
        let mut file = File::from(fresh);
        let written = file.write_all(mark.text().as_bytes());
        written.map_err(|error| SentinelError::Io { what: making(), error })?;
        let time = Timespec { tv_sec: mark.made_at, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::futimens(&file, &times).map_err(failed(making()))?;
        // By its descriptor: to link it by no name at all takes a capability that the probe does not have.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        match rustix::fs::linkat(rustix::fs::CWD, path, &self.dir, name, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::EXIST) => Ok(false),
            Err(error) => Err(failed(making())(error)),
        }
    }

    /// Removes this mark of ours, where it is still as we made it. Whether it was.
    ///
    /// Between the last look and the removal somebody may put his own in its place, within microseconds; no call of the kernel removes
    /// a file by what it holds.
    fn withdraw(&self, name: &str, mark: &Mark) -> Result<bool, SentinelError> {
        if self.look(name)? != Found::Ours(mark.clone()) {
            return Ok(false);
        }
        rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()).map_err(failed(format!("remove /run/{name}")))?;
        Ok(true)
    }

    /// Marks that are ours, whoever has made them: another process of ours, or one that has died since.
    fn ours(&self) -> Result<Vec<(String, Mark)>, SentinelError> {
        let reading = || "read the names in /run".to_owned();
        let mut found = Vec::new();
        // Names of others, however many, hide none of ours.
        let fits = |name: &str| sentinel_name(&format!("/{FOLDER}/{name}")).is_some();
        let names = Dir::read_from(&self.dir).map_err(failed(reading()))?;
        let names =
            names.filter(|entry| entry.as_ref().map_or(true, |entry| entry.file_name().to_str().is_ok_and(fits)));
        for entry in names.take(MAX_NAMES) {
            let entry = entry.map_err(failed(reading()))?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            // What cannot be looked at, or is something else, is not ours.
            if let Ok(Found::Ours(mark)) = self.look(name) {
                found.push((name.to_owned(), mark));
            }
            if found.len() >= MAX_MARKS {
                break;
            }
        }
        Ok(found)
    }
}

/// Removes the marks that are not wanted any more. Each that was removed, with its operation and the reason.
///
/// One that cannot be removed keeps none of the others: the first such error is what comes back then.
pub(in crate::node) fn tend(
    folder: &Folder,
    node: &str,
    order: Option<&Standing>,
    boot: &str,
    uptime: Duration,
) -> Result<Vec<(String, &'static str)>, SentinelError> {
    let (mut removed, mut failure) = (Vec::new(), None);
    for (name, mark) in folder.ours()? {
        // The order of one node says nothing about the mark of another that shares the machine; boot and time do.
        let order = order.filter(|_| mark.node == node);
        let Some(why) = mark.is_over(order, boot, uptime) else { continue };
        match folder.withdraw(&name, &mark) {
            Ok(true) => {
                tracing::info!(operation = mark.operation_id, why, "the mark for a reboot was removed");
                removed.push((mark.operation_id, why));
            }
            Ok(false) => {}
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(removed), Err)
}

/// Whose it is, as far as the file tells.
fn of_others(stat: &Stat) -> String {
    let since = jiff::Timestamp::from_second(stat.st_mtime).map_or_else(|_| "?".to_owned(), |at| at.to_string());
    format!("user {}, last changed {since}", stat.st_uid)
}

#[cfg(test)]
mod tests;
