//! Heartbeats for systemd, in unit mode: a probe that is stopped or stuck keeps the node's lock, and no other probe
//! could take over. systemd ends the probe if the heartbeats stop, and starts it again.
//!
//! It needs no library and no port: it sends one datagram to the socket that systemd names.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Interval between two heartbeats: a third of `WatchdogSec` in the unit.
const BEAT: Duration = Duration::from_secs(20);

/// Sends heartbeats for ever if systemd asks for them; otherwise returns at once.
///
/// It is a task on the single thread that runs everything of the probe that is not expected to block: whatever blocks
/// that thread also stops the heartbeats.
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

/// Connects to the socket. A name that starts with `@` is in the abstract namespace.
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
