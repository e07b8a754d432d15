//! Files as a process sees them: below its own root, with its links.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, readlinkat};
use rustix::io::Errno;

use super::bounded::{existing, read_file};

/// Flags to open a folder as the base of a path.
pub(crate) const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Maximum number of links on the way to a file, the kernel's own limit.
const MAX_LINKS: usize = 40;

/// Opens a path below this root. Its links, also absolute ones and those upwards, are resolved in that root, not in this
/// process's root. The kernel's own links, as in `/proc/1/root`, are not followed.
pub(crate) fn open(root: impl AsFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let inside = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);
    match rustix::fs::openat2(&root, path, flags, Mode::empty(), inside) {
        // Kernels before 5.6, and system call filters that do not know the call.
        Err(Errno::NOSYS | Errno::PERM) => walk(&root, path, flags),
        opened => Ok(opened?),
    }
}

/// Opens a folder below this root, as the base of a path; `None` where it does not exist.
pub(crate) fn folder(root: impl AsFd, path: &Path) -> io::Result<Option<OwnedFd>> {
    existing(open(root, path, FOLDER))
}

/// The same without that call: it opens each part separately, and continues with the parts of a link's target.
fn walk(root: impl AsFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let parts = |path: &Path| path.components().rev().map(|part| part.as_os_str().to_owned()).collect::<Vec<_>>();
    let (mut left, mut links, mut folders) = (parts(path), 0, Vec::<OwnedFd>::new());
    while let Some(part) = left.pop() {
        if part == "/" {
            folders.clear();
        } else if part == ".." {
            folders.pop();
        } else if part != "." {
            let here = folders.last().map_or(root.as_fd(), AsFd::as_fd);
            let found = openat(here, &part, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            if FileType::from_raw_mode(fstat(&found)?.st_mode) == FileType::Symlink {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP.into());
                }
                let target = readlinkat(&found, "", Vec::new())?;
                left.extend(parts(Path::new(OsStr::from_bytes(target.to_bytes()))));
            } else if left.is_empty() {
                return Ok(openat(here, &part, flags | OFlags::NOFOLLOW, Mode::empty())?);
            } else {
                folders.push(found);
            }
        }
    }
    Ok(openat(folders.last().map_or(root.as_fd(), AsFd::as_fd), ".", flags, Mode::empty())?)
}

/// The root of a process, and the path below it of what the process calls `path`: a relative one begins at its working folder.
/// `process` is its folder in `/proc`.
pub(crate) fn of_process(process: &Path, path: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let (top, here) = (process.join("root"), process.join("cwd"));
    let root = openat(CWD, &top, FOLDER, Mode::empty())?;
    if path.is_absolute() {
        return Ok((root, path.to_path_buf()));
    }
    let outside = || io::Error::other("its working folder is not below its root");
    let folder = here.read_link()?;
    let folder = Path::new("/").join(folder.strip_prefix(top.read_link()?).map_err(|_| outside())?);
    // By now, the path from the kernel may belong to another folder, or to a folder with a mount on top of it.
    let id = |folder: OwnedFd| fstat(folder).map(|stat| (stat.st_dev, stat.st_ino));
    if id(open(&root, &folder, FOLDER)?)? != id(openat(CWD, &here, FOLDER, Mode::empty())?)? {
        return Err(outside());
    }
    Ok((root, folder.join(path)))
}

/// Flags to open a file for reading. They do not block: a pipe in its place must not block this thread.
pub(crate) const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// Reads a whole plain file below this root; a larger one is an error, not a cut text.
pub(crate) fn read(root: impl AsFd, path: &Path, most: usize) -> io::Result<String> {
    text(open(root, path, READ)?, most)
}

/// Reads the whole of an open plain file.
pub(crate) fn text(file: OwnedFd, most: usize) -> io::Result<String> {
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    type Opens = fn(&File, &Path, OFlags) -> io::Result<OwnedFd>;

    #[test]
    fn no_link_leads_out_of_the_root_with_the_call_of_the_kernel_and_by_hand() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(folder.path().join("secret"), "outside").unwrap();
        fs::write(root.join("secret"), "inside").unwrap();
        for (link, target) in [
            ("absolute", "/secret"),
            ("a/b/up", "../../../../../secret"),
            ("a/folder", "/a/b"),
            ("a/chain", "folder/up"),
            ("magic", "/proc/self/root/etc/passwd"),
            ("loop", "loop"),
        ] {
            symlink(target, root.join(link)).unwrap();
        }
        let outside = folder.path().join("secret");
        symlink(&outside, root.join("out")).unwrap();
        let opened = File::open(&root).unwrap();
        let both: [Opens; 2] =
            [|root, path, flags| open(root, path, flags), |root, path, flags| walk(root, path, flags)];
        for opens in both {
            let read = |path: &str| text(opens(&opened, Path::new(path), READ)?, 100);
            for path in ["/absolute", "a/b/up", "/a/folder/up", "a/chain", "../../secret", "/a/../secret", "a/./b/up"] {
                assert_eq!(read(path).unwrap(), "inside", "{path}");
            }
            for path in ["out", "magic", "a/none", "secret/x"] {
                assert!(read(path).is_err(), "{path}");
            }
            assert_eq!(read("loop").unwrap_err().raw_os_error(), Some(Errno::LOOP.raw_os_error()));
            assert!(
                opens(&opened, Path::new("/"), FOLDER).is_ok() && opens(&opened, Path::new("a/folder"), FOLDER).is_ok()
            );
        }
    }
}
