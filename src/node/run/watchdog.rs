//! Signs of life for systemd, in unit mode: a probe that is stopped or stuck keeps the node's lock, and no other could
//! take over. systemd ends it when they stay out, and starts it anew.
//!
//! No library and no port is needed: one datagram to the socket that systemd names.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Time between two signs: a third of `WatchdogSec` in the unit.
const BEAT: Duration = Duration::from_secs(20);

/// Sends signs of life for ever, where systemd wants them; ends at once where it does not.
///
/// It is a task of the one thread on which everything of the probe runs that is not expected to block: what holds up
/// that thread holds up the signs.
pub(super) async fn beat() {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let socket = match connect(&name) {
        Ok(socket) => socket,
        Err(error) => return tracing::warn!(%error, "cannot send signs of life to systemd"),
    };
    loop {
        if let Err(error) = socket.send(b"WATCHDOG=1") {
            tracing::debug!(%error, "a sign of life was not sent");
        }
        tokio::time::sleep(BEAT).await;
    }
}

/// A name that begins with `@` is of the abstract namespace.
fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(abstracted) => SocketAddr::from_abstract_name(abstracted)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_names_are_reached() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("nrh-test-{}", std::process::id());
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (receiver, name) in [(by_path, path.into_os_string()), (by_name, format!("@{name}").into())] {
            connect(&name).unwrap().send(b"WATCHDOG=1").unwrap();
            let mut buffer = [0; 32];
            let length = receiver.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"WATCHDOG=1", "{}", name.display());
        }
        assert!(connect(folder.path().join("none").as_os_str()).is_err());
    }
}
