//! Which containerd of a node the kubelet does not use. A node may run a second one, as Bottlerocket does for containers of the host.

use std::io;
use std::path::{Path, PathBuf};

use super::Handle;
use super::bounded::whole_lines;

/// File name of the socket in all known settings.
const NAME: &str = "containerd.sock";
/// Maximum number of bytes of `net/unix` that are read: some 80,000 sockets.
const MAX_TABLE: usize = 8 << 20;
/// `__SO_ACCEPTCON` of the kernel's `include/linux/net.h`: the socket listens.
const LISTENS: u32 = 1 << 16;

/// Where a containerd listens, as it names the path itself. `None` if it does not listen yet, or listens at several sockets with this
/// file name.
///
/// # Errors
/// When its open files or the sockets of its network namespace cannot be read.
pub fn path(containerd: &Handle) -> io::Result<Option<PathBuf>> {
    let table = containerd.read("net/unix", MAX_TABLE)?;
    let Some(sockets) = containerd.sockets()?.filter(|_| !table.truncated) else { return Ok(None) };
    let table = String::from_utf8_lossy(&table.bytes);
    let mut paths = whole_lines(&table).filter_map(listening).filter(|(inode, _)| sockets.contains(inode));
    let first = paths.next();
    Ok(first.filter(|_| paths.next().is_none()).map(|(_, path)| path.to_owned()))
}

/// Whether a containerd that listens here is provably not the kubelet's. `shims` are the addresses that the shims of the kubelet's
/// containers got from their containerd: without any shim, nothing is proven. `endpoint` is the kubelet's, as this process sees it.
pub fn is_elsewhere(path: &Path, endpoint: &Path, shims: &[&str]) -> bool {
    let is_endpoint = path.strip_prefix("/").is_ok_and(|path| endpoint.ends_with(path));
    let serves_shims = shims.is_empty() || shims.iter().any(|address| Path::new(address) == path);
    endpoint.ends_with(NAME) && !is_endpoint && !serves_shims
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
    use crate::proc::fake::Running;

    const USUAL: &str = "/run/containerd/containerd.sock";
    const HOST: &str = "/run/host-containerd/containerd.sock";

    /// Where a real process listens that has these sockets.
    fn path_of(sockets: &[&Path]) -> Option<PathBuf> {
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
        path(&Running::start(&mut command).handle()).unwrap()
    }

    #[test]
    fn the_path_is_that_of_the_one_socket_with_this_name() {
        let folder = tempfile::tempdir().unwrap();
        let [own, other, debug] = ["", "other", ""].map(|name| folder.path().join(name));
        fs::create_dir(&other).unwrap();
        let [own, other, debug] = [own.join(NAME), other.join(NAME), debug.join("debug.sock")];
        assert_eq!(path_of(&[]), None);
        assert_eq!(path_of(&[&debug]), None);
        assert_eq!(path_of(&[&own, &other]), None);
        for socket in [&own, &debug] {
            fs::remove_file(socket).unwrap();
        }
        assert_eq!(path_of(&[&own, &debug]), Some(own));
    }

    #[test]
    fn a_containerd_is_elsewhere_if_endpoint_and_shims_name_another_socket() {
        let is = |path: &str, endpoint: &str, shims: &[&str]| is_elsewhere(Path::new(path), Path::new(endpoint), shims);
        let below_root = format!("/proc/1/root{USUAL}");
        for endpoint in [USUAL, &*below_root, "/var/run/link/containerd.sock"] {
            assert!(is(HOST, endpoint, &[USUAL]), "{endpoint}");
        }
        for (path, endpoint, shims, why) in [
            (HOST, USUAL, &[][..], "the node has no container"),
            (HOST, USUAL, &[USUAL, HOST], "one shim is its own"),
            (HOST, HOST, &[USUAL], "the kubelet's endpoint is new, and no container is"),
            (USUAL, &*below_root, &[HOST], "the same below a root"),
            ("/var/run/containerd/containerd.sock", USUAL, &["/var/run/containerd/containerd.sock"], "a link"),
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
