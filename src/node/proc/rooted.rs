//! Files as a process sees them: below its own root, its links included.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::bounded::read_file;

/// Opens a path below this root. Absolute links inside are resolved in that root, not in ours.
pub(in crate::node) fn open(root: impl AsFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let rest = path.strip_prefix("/").unwrap_or(path);
    match rustix::fs::openat2(&root, rest, flags, Mode::empty(), ResolveFlags::IN_ROOT) {
        // Kernels before 5.6, and filters that do not know the call: links are not followed rightly then, but plain
        // files are read.
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
            Ok(rustix::fs::openat(&root, rest, flags, Mode::empty())?)
        }
        opened => Ok(opened?),
    }
}

/// How a file is opened that is read. Not blocking: a pipe in its place must not hold this thread.
pub(in crate::node) const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// Reads a whole plain file below this root; a larger one is an error, not a cut text.
pub(in crate::node) fn read(root: impl AsFd, path: &Path, most: usize) -> io::Result<String> {
    text(open(root, path, READ)?, most)
}

/// Reads the whole of an open plain file.
pub(in crate::node) fn text(file: OwnedFd, most: usize) -> io::Result<String> {
    let mut file = File::from(file);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a plain file"));
    }
    let read = read_file(&mut file, most)?;
    if read.truncated {
        return Err(io::Error::other(format!("larger than {most} bytes")));
    }
    String::from_utf8(read.bytes).map_err(|_| io::Error::other("not text"))
}
