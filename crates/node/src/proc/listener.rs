//! Which containerd of a node the kubelet does not use. A node may run a second one, as Bottlerocket does for containers of the host.

use std::io;
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt};

use super::Handle;

/// File name of containerd's socket.
const NAME: &str = "containerd.sock";
/// Maximum number of bytes of `net/unix` that are read: some 40,000 sockets.
const MAX_TABLE: usize = 4 << 20;
/// `__SO_ACCEPTCON` of the kernel's `include/linux/net.h`: the socket listens.
const LISTENS: u32 = 1 << 16;

/// The socket at which the containerd with this folder in `/proc` listens, as it names the path. `None` if it does not listen yet, listens
/// at several sockets with this file name, or if the node has too many sockets.
///
/// # Errors
/// When its open files or the sockets of its network namespace cannot be read, or when another process accepts connections there.
pub fn path(root: &Path, containerd: &Handle) -> io::Result<Option<PathBuf>> {
    let table = containerd.read("net/unix", MAX_TABLE)?;
    let Some(sockets) = containerd.sockets()?.filter(|_| !table.truncated) else { return Ok(None) };
    let lines = table.bytes.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    let mut paths = lines.filter_map(listening).filter(|(inode, _)| sockets.contains(inode));
    let (Some((_, path)), None) = (paths.next(), paths.next()) else { return Ok(None) };
    // Any process can give a socket a name that looks like a line of this table.
    let answers =
        peer(&root.join(containerd.pid().to_string()).join("root").join(path.strip_prefix("/").unwrap_or(path)))?;
    if answers != containerd.pid() {
        let message = format!("process {answers} listens at {}, expected {}", path.display(), containerd.pid());
        return Err(io::Error::other(message));
    }
    Ok(Some(path.to_owned()))
}

/// The process that listens at a socket. It does not wait where too many connections wait already.
fn peer(path: &Path) -> io::Result<i32> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(sockopt::socket_peercred(&socket)?.pid.as_raw_nonzero().get())
}

/// Whether a containerd that listens at this path is provably not the kubelet's. `shims` are the addresses that the shims of the
/// kubelet's containers got from their containerd: without any, or with an empty one, nothing is proven.
/// `endpoint` is the kubelet's, as this process sees it.
pub fn is_elsewhere(path: &Path, endpoint: &Path, shims: &[&str]) -> bool {
    let path = of_run(path);
    let is_endpoint = path.strip_prefix("/").is_ok_and(|path| endpoint.ends_with(path));
    let may_serve = |address: &&str| address.is_empty() || of_run(Path::new(address)) == path;
    endpoint.ends_with(NAME) && !is_endpoint && !shims.is_empty() && !shims.iter().any(may_serve)
}

/// `/var/run` is a link to `/run`.
fn of_run(path: &Path) -> &Path {
    if path.starts_with("/var/run") {
        Path::new(path.to_str().and_then(|path| path.strip_prefix("/var")).unwrap_or_default())
    } else {
        path
    }
}

/// The inode and the path of a socket that listens at a path with containerd's file name, from a line
/// `address: references protocol flags type state inode path`, as the kernel's `net/unix/af_unix.c` writes it.
fn listening(line: &str) -> Option<(u64, &Path)> {
    let mut fields = line.split_ascii_whitespace();
    let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
    let inode = fields.nth(2)?.parse().ok()?;
    let path = Path::new(fields.next()?);
    let is_whole = path.is_absolute() && fields.next().is_none();
    (flags & LISTENS != 0 && path.ends_with(NAME) && is_whole).then_some((inode, path))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixListener;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::proc::PROC;
    use crate::proc::fake::{Proc, Running, listens};

    const USUAL: &str = "/run/containerd/containerd.sock";
    const HOST: &str = "/run/host-containerd/containerd.sock";

    /// Where a process listens that has inherited these sockets, while another containerd listens at its own.
    fn path_of(sockets: &[&Path]) -> io::Result<Option<PathBuf>> {
        let folder = tempfile::tempdir().unwrap();
        let _other = UnixListener::bind(folder.path().join(NAME)).unwrap();
        let mut command = Command::new("sleep");
        command.arg("60");
        for (number, socket) in sockets.iter().enumerate() {
            let listener = Stdio::from(OwnedFd::from(UnixListener::bind(socket).unwrap()));
            if number == 0 {
                command.stdin(listener)
            } else {
                command.stdout(listener)
            };
        }
        path(Path::new(PROC), &Running::start(&mut command).handle())
    }

    #[test]
    fn the_path_is_that_of_the_one_socket_with_this_name() {
        let folder = tempfile::tempdir().unwrap();
        let [own, other, debug] = [NAME, "other/containerd.sock", "debug.sock"].map(|name| folder.path().join(name));
        fs::create_dir(folder.path().join("other")).unwrap();
        assert_eq!(path_of(&[]).unwrap(), None);
        assert_eq!(path_of(&[&debug]).unwrap(), None);
        assert_eq!(path_of(&[&own, &other]).unwrap(), None);

        let proc = Proc::new();
        let me = i32::try_from(std::process::id()).unwrap();
        let process = proc.file(&me.to_string());
        let socket = folder.path().join("serves").join(NAME);
        let _listener = listens(&process, &socket);
        assert_eq!(path(proc.path(), &Handle::open(proc.path(), me).unwrap()).unwrap(), Some(socket));
    }

    /// As with a socket whose name looks like a line of the table.
    #[test]
    fn a_socket_at_which_another_process_listens_is_not_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let error = path_of(&[&folder.path().join(NAME)]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("process {} listens at", std::process::id())), "{error}");
    }

    #[test]
    fn a_containerd_is_elsewhere_if_endpoint_and_shims_name_another_socket() {
        let is = |path: &str, endpoint: &str, shims: &[&str]| is_elsewhere(Path::new(path), Path::new(endpoint), shims);
        let below_root = format!("/proc/1/root{USUAL}");
        for endpoint in [USUAL, &*below_root, "/srv/link/containerd.sock"] {
            assert!(is(HOST, endpoint, &[USUAL]), "{endpoint}");
        }
        let old = "/var/run/containerd/containerd.sock";
        for (path, endpoint, shims, why) in [
            (HOST, USUAL, &[][..], "the node has no container"),
            (HOST, USUAL, &[USUAL, HOST], "one shim is its own"),
            (HOST, USUAL, &[USUAL, ""], "one shim does not tell"),
            (HOST, HOST, &[USUAL], "the kubelet's endpoint is new, and no container is"),
            (USUAL, &*below_root, &[HOST], "the same below a root"),
            (old, USUAL, &[HOST], "the same by its old name"),
            (old, "/srv/link/containerd.sock", &[USUAL], "the shims have the new name of the same"),
            (USUAL, "/run/cri-dockerd.sock", &[HOST], "Docker is between it and the kubelet"),
        ] {
            assert!(!is(path, endpoint, shims), "{why}");
        }
    }

    #[test]
    fn only_a_whole_line_of_a_listener_counts() {
        let line = format!("0000000000000000: 00000002 00000000 00010000 0001 01 77 {USUAL}");
        assert_eq!(listening(&line), Some((77, Path::new(USUAL))));
        for other in [
            line.replace("00010000", "00000000"),
            line.replace("containerd.sock", "containerd.sock.ttrpc"),
            line.replace(" /run", " run"),
            line.replace(" /run", " @/run"),
            format!("{line} more"),
            line.replace(USUAL, ""),
            "Num       RefCount Protocol Flags    Type St Inode Path".to_owned(),
        ] {
            assert_eq!(listening(&other), None, "{other}");
        }
    }
}
