//! One process, bound to its lifetime: its `/proc` directory is opened once, and everything is read through it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::bounded::{self, Bytes, whole_lines};
use super::locks::{FileId, LockKind, parse_held};
use super::stat::{self, Stat};
use super::{rooted, unless_gone};
use nrh_core::text::bounded;

/// Maximum number of bytes of arguments that are read.
const MAX_ARGS: usize = 64 << 10;
/// Maximum number of bytes of `status` that are read. 65,536 groups fit. A process can give itself that many, and the lines of
/// interest come after them.
pub(super) const MAX_STATUS: usize = 1 << 20;
/// Maximum number of bytes of environment that are read.
const MAX_ENVIRON: usize = 256 << 10;
/// Longest value of a variable that is accepted; a longer one counts as missing.
const MAX_VALUE: usize = 4096;
/// Maximum number of open files of one process that are checked.
const MAX_DESCRIPTORS: usize = 1024;
/// Maximum number of open files of one process that are checked for sockets.
const MAX_FILES: usize = 1 << 20;
/// Maximum number of bytes of one `wchan` that are read.
const MAX_WCHAN: usize = 128;
/// Maximum number of bytes of one `fdinfo` that are read.
const MAX_FDINFO: usize = 16 << 10;

/// A process: reads fail with ESRCH once it has ended, and never show a later process with the same pid.
#[derive(Debug)]
pub struct Handle {
    pid: i32,
    dir: OwnedFd,
    /// The thread that is read, where the first one had ended before: that one has no memory, files or namespaces any more.
    thread: Option<i32>,
}

/// A file whose lock a process holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockedFile {
    /// Interface.
    pub kind: LockKind,
    /// The file, as [`super::Lock`] names it.
    pub file: FileId,
    /// Path of the file in the process's own mount namespace.
    pub path: String,
}

impl Handle {
    /// Binds to the process that has this pid now.
    pub fn open(root: &Path, pid: i32) -> io::Result<Self> {
        let dir = rustix::fs::open(root.join(pid.to_string()), rooted::FOLDER, Mode::empty())?;
        let mut handle = Self { pid, dir, thread: None };
        if handle.line().is_ok_and(|stat| stat.lacks_first_thread()) {
            handle.thread = handle.worst_thread().ok().flatten().map(|thread| thread.id);
        }
        Ok(handle)
    }

    /// Binds to the process with this pid that began at this time. If another one has the pid by now, the process has ended.
    pub fn of(root: &Path, pid: i32, start_ticks: u64) -> io::Result<Self> {
        let handle = Self::open(root, pid)?;
        if handle.stat()?.start_ticks == start_ticks {
            return Ok(handle);
        }
        Err(io::Error::new(io::ErrorKind::NotFound, format!("process {pid} has ended")))
    }

    /// Its process id.
    pub const fn pid(&self) -> i32 {
        self.pid
    }

    /// The thread that is read: the first one, unless that one has ended before the others.
    pub fn thread(&self) -> i32 {
        self.thread.unwrap_or(self.pid)
    }

    /// Its `stat` line, now. If its first thread has ended, the state is that of the worst other one.
    ///
    /// # Errors
    /// Also where the first thread has ended and too many others would have to be read.
    pub fn stat(&self) -> io::Result<Stat> {
        let stat = self.line()?;
        if !stat.lacks_first_thread() {
            return Ok(stat);
        }
        // What only a tracer still waits for has ended too.
        let worst = self.worst_thread()?;
        Ok(worst.map_or(Stat { threads: 1, ..stat.clone() }, |thread| Stat { state: thread.state, ..stat }))
    }

    fn line(&self) -> io::Result<Stat> {
        stat::from_file(&mut self.file("stat")?, self.pid)
    }

    /// Kernel function it waits in; `None` where it runs, or the kernel does not say.
    pub fn wchan(&self) -> io::Result<Option<String>> {
        self.wchan_in("wchan")
    }

    pub(super) fn wchan_in(&self, file: &str) -> io::Result<Option<String>> {
        let name = bounded(self.text(file, MAX_WCHAN)?.trim(), 64);
        Ok(Some(name).filter(|name| !name.is_empty() && name != "0"))
    }

    /// Its arguments; an error when they are longer than 64 KiB, or when it waits uninterruptibly.
    pub fn args(&self) -> io::Result<Vec<String>> {
        self.refuse_uninterruptible("arguments")?;
        let read = self.read("cmdline", MAX_ARGS)?;
        if read.truncated {
            return Err(io::Error::other(format!(
                "arguments of process {} are longer than {MAX_ARGS} bytes",
                self.pid
            )));
        }
        Ok(split(&read.bytes).map(|arg| String::from_utf8_lossy(arg).into_owned()).collect())
    }

    /// The file it executes, without the suffix the kernel adds when that file was replaced since.
    pub fn exe(&self) -> io::Result<PathBuf> {
        let link = self.link("exe")?;
        Ok(link.strip_suffix(" (deleted)").map_or_else(|| PathBuf::from(&link), PathBuf::from))
    }

    /// The values of these variables from the environment at its start, in the requested order.
    ///
    /// Nothing else of the environment is kept: it holds secrets. Only the first 256 KiB are searched.
    pub fn environ<const N: usize>(&self, names: [&str; N]) -> io::Result<[Option<String>; N]> {
        self.refuse_uninterruptible("environment")?;
        let read = self.read("environ", MAX_ENVIRON)?;
        Ok(names.map(|name| variable(whole_entries(&read), name)))
    }

    /// The files that it has locked, found through its own open files. The result is exact also for an inherited lock that an
    /// ended process took. At most 1,024 open files are checked.
    pub fn locked_files(&self) -> io::Result<Vec<LockedFile>> {
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::read_from(self.folder("fdinfo")?)?.take(MAX_DESCRIPTORS.saturating_add(2)) {
            let entry = entry?;
            let Ok(number) = entry.file_name().to_str().unwrap_or_default().parse::<u32>() else { continue };
            found.extend(unless_gone(self.locks_of(number))?.unwrap_or_default());
        }
        found.sort_by(|a, b| (a.file, a.kind, &a.path).cmp(&(b.file, b.kind, &b.path)));
        found.dedup();
        Ok(found)
    }

    /// The sockets among its open files, by inode; `None` if it has no open file at all, as while it ends.
    ///
    /// # Errors
    /// Also where it has more than 1,048,576 open files.
    pub fn sockets(&self) -> io::Result<Option<BTreeSet<u64>>> {
        let mut found = None;
        let Some(folder) = unless_gone(self.folder("fd"))? else { return Ok(found) };
        for (checked, entry) in rustix::fs::Dir::read_from(folder)?.enumerate() {
            if checked > MAX_FILES {
                return Err(io::Error::other(format!("process {} has more than {MAX_FILES} open files", self.pid)));
            }
            let entry = entry?;
            let Ok(number) = entry.file_name().to_str().unwrap_or_default().parse::<u32>() else { continue };
            let sockets = found.get_or_insert_with(BTreeSet::new);
            sockets.extend(unless_gone(self.link(&format!("fd/{number}")))?.as_deref().and_then(socket));
        }
        Ok(found)
    }

    fn locks_of(&self, descriptor: u32) -> io::Result<Vec<LockedFile>> {
        let text = self.text(&format!("fdinfo/{descriptor}"), MAX_FDINFO)?;
        let mut found = Vec::new();
        for (kind, file) in held(&text) {
            let path = bounded(&self.link(&format!("fd/{descriptor}"))?, 512);
            found.push(LockedFile { kind, file, path });
        }
        Ok(found)
    }

    /// Arguments and environment are in the memory of the process. To read them takes its memory lock, and a process in state D
    /// may hold that lock for ever.
    fn refuse_uninterruptible(&self, what: &str) -> io::Result<()> {
        if self.stat()?.state == 'D' {
            let text = format!("{what} of process {} not read: it waits uninterruptibly", self.pid);
            return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
        }
        Ok(())
    }

    /// The root folder of the process, as it sees it.
    pub fn root(&self) -> io::Result<OwnedFd> {
        Ok(rustix::fs::openat(&self.dir, &*self.place("root"), rooted::FOLDER, Mode::empty())?)
    }

    /// Where a file of it is. `stat` and the folder of its threads are those of the whole process.
    fn place<'a>(&self, name: &'a str) -> Cow<'a, str> {
        match self.thread {
            Some(thread) if name != "stat" && !name.starts_with("task") => Cow::Owned(format!("task/{thread}/{name}")),
            _ => Cow::Borrowed(name),
        }
    }

    /// The folder of its open files, or of its threads.
    pub(super) fn folder(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.dir, &*self.place(name), flags, Mode::empty())?)
    }

    pub(super) fn file(&self, name: &str) -> io::Result<File> {
        let fd = rustix::fs::openat(&self.dir, &*self.place(name), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(File::from(fd))
    }

    pub(super) fn read(&self, name: &str, most: usize) -> io::Result<Bytes> {
        bounded::read_file(&mut self.file(name)?, most)
    }

    /// At most this much of a file, as text.
    pub(super) fn text(&self, name: &str, most: usize) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&self.read(name, most)?.bytes).into_owned())
    }

    pub(super) fn link(&self, name: &str) -> io::Result<String> {
        let target = rustix::fs::readlinkat(&self.dir, &*self.place(name), Vec::new())?;
        let target = std::ffi::OsString::from_vec(target.into_bytes());
        Ok(target.to_string_lossy().into_owned())
    }
}

/// The inode of an open file that is a socket.
fn socket(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// The locks in an `fdinfo`.
pub(crate) fn held(fdinfo: &str) -> impl Iterator<Item = (LockKind, FileId)> {
    whole_lines(fdinfo).filter_map(|line| parse_held(line.strip_prefix("lock:")?))
}

/// What was read, without an entry that was cut.
pub(crate) fn whole_entries(read: &Bytes) -> &[u8] {
    let whole = |at| read.bytes.get(..at).unwrap_or_default();
    if read.truncated { whole(read.bytes.iter().rposition(|byte| *byte == 0).unwrap_or_default()) } else { &read.bytes }
}

pub(crate) fn split(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let parts = (!bytes.is_empty()).then(|| bytes.strip_suffix(&[0]).unwrap_or(bytes).split(|byte| *byte == 0));
    parts.into_iter().flatten()
}

/// The complete value of a variable, or none: half an id is another id.
pub(crate) fn variable(environ: &[u8], name: &str) -> Option<String> {
    let value = split(environ).find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    std::str::from_utf8(value).ok().filter(|value| value.len() <= MAX_VALUE).map(|value| bounded(value, MAX_VALUE))
}

/// Depth of its PID namespace below that of this `/proc`: 1 for processes of the node itself, more for those inside containers.
pub(crate) fn parse_depth(status: &str) -> Option<usize> {
    let pids = whole_lines(status).find_map(|line| line.strip_prefix("NSpid:"))?;
    Some(pids.split_ascii_whitespace().count()).filter(|depth| *depth > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_matched_whole() {
        let environ = b"XCNI_COMMAND=DEL\0CNI_COMMANDS=x\0CNI_COMMAND=ADD\0CNI_ARGS=a=b\0";
        assert_eq!(variable(environ, "CNI_COMMAND").as_deref(), Some("ADD"));
        assert_eq!(variable(environ, "CNI_ARGS").as_deref(), Some("a=b"));
        assert_eq!(variable(environ, "CNI"), None);
        assert_eq!(variable(b"", "CNI"), None);
    }

    #[test]
    fn a_variable_is_taken_whole_or_not_at_all() {
        // The longest names that Kubernetes allows.
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};MORE=x;K8S_POD_UID={}",
            "n".repeat(63),
            "p".repeat(253),
            "c".repeat(64),
            "u".repeat(36)
        );
        let environ = format!("A=1\0CNI_ARGS={args}\0");
        assert_eq!(variable(environ.as_bytes(), "CNI_ARGS"), Some(args));
        assert_eq!(variable(format!("CNI_ARGS={}", "x".repeat(MAX_VALUE + 1)).as_bytes(), "CNI_ARGS"), None);
        let cut = |truncated| Bytes { bytes: b"A=1\0CNI_CONTAINERID=abc".to_vec(), truncated };
        assert_eq!(variable(whole_entries(&cut(true)), "CNI_CONTAINERID"), None);
        assert_eq!(variable(whole_entries(&cut(false)), "CNI_CONTAINERID").as_deref(), Some("abc"));
    }

    #[test]
    fn a_lock_in_a_line_that_was_cut_is_none() {
        let whole = "pos:\t0\nlock:\t1: FLOCK  ADVISORY  WRITE 123 fe:00:5554898 0 EOF\n";
        assert_eq!(held(whole).count(), 1);
        for cut in 0..whole.len() {
            assert_eq!(held(&whole[..cut]).count(), 0, "cut at {cut}");
        }
    }

    #[test]
    fn depth_counts_namespaces() {
        assert_eq!(parse_depth("Pid:\t7\nNSpid:\t7\n"), Some(1));
        assert_eq!(parse_depth("NSpid:\t7\t1\n"), Some(2));
        assert_eq!(parse_depth("Pid:\t7\n"), None);
        // In a container, with a text that is cut because the list of groups before the line is as long as possible.
        assert_eq!(parse_depth("NSpid:\t7"), None);
    }
}
