//! The marker file (sentinel) that asks another tool of the node to reboot it. It lies in the `/run` of the node
//! itself, both in pod mode and in unit mode.
//!
//! ```text
//! ROOT (/proc/1/root) ─► run: a folder in memory that only root can write ─► NAME: a plain file, or nothing
//! ```
//!
//! The one rule: the probe never touches a file of somebody else. It recognises its own file by the content and by the
//! modification time, which the content repeats. If somebody overwrites that file, or only touches it to request a
//! reboot, the file belongs to him. The probe creates the file complete, in one step that fails if the name is taken. A
//! crash therefore leaves the whole file or nothing.
//!
//! The folder has to be in memory: a file that survives a boot would make the other tool reboot the machine again and
//! again.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps};
use serde::{Deserialize, Serialize};

use crate::proc::bounded::read_file;
use crate::report::command::Command;
use nrh_core::reboot::sentinel_name;

/// The folder, relative to the root of the node.
const FOLDER: &str = "run";
/// Magic numbers of `tmpfs` and `ramfs` in the kernel.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];
/// Maximum size of a file that can be ours.
const MAX_FILE: usize = 1024;
/// Maximum number of names checked in the folder, and maximum number of markers of ours.
const MAX_NAMES: usize = 4096;
const MAX_MARKS: usize = 16;
/// Text for people: some systems show this file at login.
const TITLE: &str = "*** Node Runtime Health requests a reboot of this node and removes this file itself ***";

/// Why the file cannot be read or created, in one sentence.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SentinelError {
    /// The file or the folder is not as required. Nothing is changed.
    #[error("{0}")]
    Unfit(String),
    /// The kernel returns an error.
    #[error("cannot {what}: {error}")]
    Io { what: String, error: io::Error },
}

fn failed<E: Into<io::Error>>(what: String) -> impl FnOnce(E) -> SentinelError {
    |error| SentinelError::Io { what, error: error.into() }
}

/// Content of a marker file of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Mark {
    /// Name of the Node in its cluster.
    pub node: String,
    /// The operation that created the marker.
    pub operation_id: String,
    /// The boot that the reboot ends.
    pub boot_id: String,
    /// Seconds since boot after which the marker expires.
    pub until: u64,
    /// Creation time, in seconds by the wall clock. It equals the modification time of the file as long as nobody else
    /// has touched the file.
    pub made_at: i64,
}

impl Mark {
    fn text(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_default();
        format!("{TITLE}\n{json}\n")
    }

    /// Parses a marker. The file is ours only if every byte matches.
    fn of(text: &[u8]) -> Option<Self> {
        let json = std::str::from_utf8(text).ok()?.strip_prefix(TITLE)?.trim();
        let mark: Self = serde_json::from_str(json).ok()?;
        (mark.text().as_bytes() == text).then_some(mark)
    }

    /// Why the marker is obsolete, if it is: by its own content or by the command of its node. `command` is `None` if the
    /// marker is of another node.
    fn is_over(&self, command: Option<&Command>, boot: &str, uptime: Duration) -> Option<&'static str> {
        if self.boot_id != boot {
            return Some("the boot that it was to end has ended");
        }
        if uptime.as_secs() > self.until {
            return Some("its time is over");
        }
        match &command.filter(|command| command.is_known)?.command {
            Some(current) if current.operation_id == self.operation_id => None,
            Some(_) => Some("another command is issued"),
            None => Some("its command was withdrawn"),
        }
    }
}

/// What exists under the name of the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Ours(Mark),
    /// A regular file of somebody else, described in one phrase.
    Others(String),
}

/// Result of placing a marker.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    Made,
    /// Somebody else already requests a reboot by a file of his own.
    Others(String),
}

#[derive(Debug)]
pub(crate) struct Folder {
    dir: OwnedFd,
}

impl Folder {
    /// Opens the folder for removal only. It does not check who may write to the folder or which file system it is on:
    /// a marker placed while the folder was fit is recognised by its content.
    pub(crate) fn open_to_remove(root: &Path) -> Result<Self, SentinelError> {
        let shown = root.join(FOLDER);
        let shown = shown.display();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = rustix::fs::open(root, flags, Mode::empty()).map_err(failed(format!("open {}", root.display())))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&above, FOLDER, flags, Mode::empty())
            .map_err(failed(format!("open {shown} as a folder that is no link")))?;
        Ok(Self { dir })
    }

    /// Opens `/run` below this root, if the folder is fit for use.
    pub(crate) fn open(root: &Path) -> Result<Self, SentinelError> {
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
                "{shown} is not in memory (tmpfs): a file that survives a boot would reboot the node again and again"
            )));
        }
        Ok(folder)
    }

    pub(crate) fn check(&self, name: &str) -> Result<Found, SentinelError> {
        let stat = match rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(rustix::io::Errno::NOENT) => return Ok(Found::Nothing),
            Err(error) => return Err(failed(format!("read /run/{name}"))(error)),
        };
        // Only a regular file is opened.
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::RegularFile {
            let message = format!("/run/{name}: expected a plain file or nothing, found {kind:?}: nothing is touched");
            return Err(SentinelError::Unfit(message));
        }
        Ok(self.read(name, &stat)?.map_or_else(|| Found::Others(of_others(&stat)), Found::Ours))
    }

    /// Reads the marker, if the file is ours and unchanged.
    fn read(&self, name: &str, seen: &Stat) -> Result<Option<Mark>, SentinelError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.dir, name, flags, Mode::empty()) {
            Ok(file) => file,
            // A file that this process cannot read is not ours.
            Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => return Ok(None),
            Err(error) => return Err(failed(format!("open /run/{name}"))(error)),
        };
        let stat = rustix::fs::fstat(&file).map_err(failed(format!("read /run/{name}")))?;
        let is_same = (stat.st_dev, stat.st_ino) == (seen.st_dev, seen.st_ino);
        let is_own = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_nlink == 1;
        if !is_same || !is_own || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        let read = read_file(&mut File::from(file), MAX_FILE).map_err(failed(format!("read /run/{name}")))?;
        let mark = Mark::of(&read.bytes).filter(|_| !read.truncated);
        Ok(mark.filter(|mark| (stat.st_mtime, u64::from(stat.st_mtime_nsec != 0)) == (mark.made_at, 0)))
    }

    /// Places a marker under this name, if nothing exists there or only an older marker of ours.
    pub(crate) fn place(&self, name: &str, mark: &Mark) -> Result<Placed, SentinelError> {
        // The second try follows the removal of an older marker of ours.
        for _ in 0..2 {
            if self.create(name, mark)? {
                return Ok(Placed::Made);
            }
            match self.check(name)? {
                Found::Nothing => {}
                Found::Others(whose) => return Ok(Placed::Others(whose)),
                Found::Ours(found) if found == *mark => return Ok(Placed::Made),
                Found::Ours(found) if found.node != mark.node => {
                    return Ok(Placed::Others(format!("node {}", found.node)));
                }
                Found::Ours(found) => drop(self.withdraw(name, &found)?),
            }
        }
        Err(SentinelError::Unfit(format!("/run/{name} appears and disappears: another program is changing it")))
    }

    /// Writes the whole file without a name, then links it to the name unless that is taken. Returns whether the name
    /// was free.
    fn create(&self, name: &str, mark: &Mark) -> Result<bool, SentinelError> {
        let making = || format!("make /run/{name}");
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let fresh = rustix::fs::openat(&self.dir, ".", flags, Mode::from_raw_mode(0o644)).map_err(failed(making()))?;
        let mut file = File::from(fresh);
        file.write_all(mark.text().as_bytes()).map_err(failed(making()))?;
        let time = Timespec { tv_sec: mark.made_at, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::futimens(&file, &times).map_err(failed(making()))?;
        // Links by the descriptor's path: linking without a path needs a capability that the probe does not have.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        match rustix::fs::linkat(rustix::fs::CWD, path, &self.dir, name, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::EXIST) => Ok(false),
            Err(error) => Err(failed(making())(error)),
        }
    }

    /// Removes this marker of ours, if it is unchanged. Returns whether it was.
    ///
    /// Between the check and the removal (microseconds) somebody can replace the file with his own. The kernel has no
    /// call that removes a file by its content.
    fn withdraw(&self, name: &str, mark: &Mark) -> Result<bool, SentinelError> {
        if self.check(name)? != Found::Ours(mark.clone()) {
            return Ok(false);
        }
        rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()).map_err(failed(format!("remove /run/{name}")))?;
        Ok(true)
    }

    /// Lists all markers of ours, also those of another process of ours that is running or has died.
    fn ours(&self) -> Result<Vec<(String, Mark)>, SentinelError> {
        let reading = || "read the names in /run".to_owned();
        let mut found = Vec::new();
        // The filter comes first, so that many unrelated names do not hide a marker of ours.
        let fits = |name: &str| sentinel_name(&format!("/{FOLDER}/{name}")).is_some();
        let names = Dir::read_from(&self.dir).map_err(failed(reading()))?;
        let names =
            names.filter(|entry| entry.as_ref().map_or(true, |entry| entry.file_name().to_str().is_ok_and(fits)));
        for entry in names.take(MAX_NAMES) {
            let entry = entry.map_err(failed(reading()))?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            // A file that cannot be read, or that has other content, is not ours.
            if let Ok(Found::Ours(mark)) = self.check(name) {
                found.push((name.to_owned(), mark));
            }
            if found.len() >= MAX_MARKS {
                break;
            }
        }
        Ok(found)
    }
}

/// Removes obsolete markers. Returns the operation and the reason for each removed marker.
///
/// If one marker cannot be removed, the others are still removed. The first such error is returned.
pub(crate) fn remove_obsolete_markers(
    folder: &Folder,
    node: &str,
    command: &Command,
    boot: &str,
    uptime: Duration,
) -> Result<Vec<(String, &'static str)>, SentinelError> {
    let (mut removed, mut failure) = (Vec::new(), None);
    for (name, mark) in folder.ours()? {
        // The command of one node says nothing about the marker of another node on the same machine. Boot and expiry
        // do.
        let command = (mark.node == node).then_some(command);
        let Some(why) = mark.is_over(command, boot, uptime) else { continue };
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

/// Who owns the file, as far as its metadata shows.
fn of_others(stat: &Stat) -> String {
    let since = jiff::Timestamp::from_second(stat.st_mtime).map_or_else(|_| "?".to_owned(), |at| at.to_string());
    format!("user {}, last changed {since}", stat.st_uid)
}

#[cfg(test)]
pub(crate) mod tests;
