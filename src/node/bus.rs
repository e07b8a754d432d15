//! The node's system bus: one question to systemd, whether it is there, the restart of one unit, or a reboot by its login manager.
//! A connection of its own for each, closed after it.
//!
//! ```text
//! connect ─► AUTH EXTERNAL uid ─► BEGIN, Hello ─► calls to org.freedesktop.systemd1 ─► an answer, an error, or silence
//! ```
//!
//! Written by hand, for a few calls with texts for arguments and the headers and texts of their answers ([`message`]): zbus, the
//! usual client, was measured to add 417 KiB to a program that is built as the probe is (6.2, feature `tokio`, on top of tokio
//! itself), and the code of a probe is most of what is resident of it.
//!
//! A bus has few connections for each user (256 for root), and what hangs must not use them up: there is at most one, and
//! it ends with the question.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::core::observation::{BusSeen, BusStep};
use crate::core::text::bounded;
use crate::node::collect::HostPaths;
use crate::node::patience::within;

#[cfg(test)]
pub(in crate::node) mod fake;
pub(in crate::node) mod login;
pub(in crate::node) mod message;
#[cfg(test)]
mod tests;
pub(in crate::node) mod units;

use message::{Message, call, call_saying};

/// Longest line that is read while the bus asks who is there.
const MAX_LINE: usize = 512;
/// Longest error that is kept, in bytes.
const MAX_ERROR: usize = 128;
/// The one place of the bus on every distribution that has one.
const SOCKET: &str = "/run/dbus/system_bus_socket";
/// What systemd makes where it runs the machine, and no image brings along: see `sd_booted(3)`.
const BOOTED: &str = "/run/systemd/system";

/// The node's system bus; `None` where systemd does not run the node, or has no bus. Touches the file system.
///
/// # Errors
/// A sentence: what could not be looked at.
pub(in crate::node) fn socket(paths: &HostPaths) -> Result<Option<PathBuf>, String> {
    let there = |path: &str| match paths.socket(Path::new(path)).metadata() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(bounded(&format!("{path}: {error}"), 200)),
    };
    let booted = there(BOOTED)?;
    if booted && there(SOCKET)? {
        return Ok(Some(paths.socket(Path::new(SOCKET))));
    }
    // What is not there for us is not there on the node, where that can be seen.
    if paths.root == Path::new("/") && paths.proc.join("1/root").metadata().is_err() {
        let reason = "whether the node has a system bus is not known: the root of process 1 cannot be looked at";
        return Err(reason.to_owned());
    }
    Ok(None)
}

/// Why nothing can be said of systemd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BusError {
    /// There is no such socket here.
    #[error("no system bus: {0}")]
    Missing(String),
    /// This process may not ask.
    #[error("not allowed to ask over the system bus: {0}")]
    Forbidden(String),
    /// What answers is no bus, or says what it should not.
    #[error("the system bus answered oddly: {0}")]
    Odd(String),
}

/// Why a conversation ended before its answer.
enum Stop {
    Io(io::Error),
    Because(BusError),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn odd<T>(what: &str) -> Result<T, Stop> {
    Err(Stop::Because(BusError::Odd(bounded(what, MAX_ERROR))))
}

/// Asks systemd over the bus at `socket`, within `limit`.
///
/// # Errors
/// Whatever says nothing of systemd: there is no bus, it does not let us ask, or it is none.
pub async fn ping(socket: &Path, limit: Duration) -> Result<BusSeen, BusError> {
    let mut step = BusStep::Connect;
    let talked = within(limit, talk(socket, &mut step)).await;
    let silent = |how: &str| Ok(BusSeen::Silent { step, how: how.to_owned() });
    let refused = |how: &str| Ok(BusSeen::Refused { step, how: how.to_owned() });
    let error = match talked {
        Err(_) => return silent(&format!("no answer within {} s", limit.as_secs())),
        Ok(Ok(seen)) => return Ok(seen),
        Ok(Err(Stop::Because(error))) => return Err(error),
        Ok(Err(Stop::Io(error))) => error,
    };
    let text = bounded(&format!("{}: {error}", socket.display()), MAX_ERROR);
    match (step, error.kind()) {
        (BusStep::Connect, io::ErrorKind::NotFound) => Err(BusError::Missing(text)),
        (BusStep::Connect, io::ErrorKind::PermissionDenied) => Err(BusError::Forbidden(text)),
        (BusStep::Connect, io::ErrorKind::ConnectionRefused) => refused("nobody takes connections"),
        (BusStep::Connect, io::ErrorKind::WouldBlock) => silent("too many wait to be taken already"),
        (BusStep::Connect, _) => Err(BusError::Odd(text)),
        _ => refused("the connection was closed"),
    }
}

async fn talk(socket: &Path, step: &mut BusStep) -> Result<BusSeen, Stop> {
    let mut bus = match Conversation::open(socket, step).await? {
        Ok(bus) => bus,
        Err(error) => return judge(BusStep::Hello, &error),
    };
    *step = BusStep::Ping;
    match bus.ask("/org/freedesktop/systemd1", "org.freedesktop.DBus.Peer", "Ping", &[]).await? {
        Message { error: None, .. } => Ok(BusSeen::Answered),
        Message { error: Some(error), .. } => judge(BusStep::Ping, &error),
    }
}

/// A connection that the bus has greeted.
struct Conversation {
    stream: UnixStream,
    unread: Vec<u8>,
    serial: u32,
}

const SYSTEMD: &str = "org.freedesktop.systemd1";
const BUS: &str = "org.freedesktop.DBus";

impl Conversation {
    /// Connects, says who we are, and is greeted; or the name of the error instead of a greeting.
    async fn open(socket: &Path, step: &mut BusStep) -> Result<Result<Self, String>, Stop> {
        let mut stream = UnixStream::connect(socket).await?;
        *step = BusStep::Login;
        let uid = rustix::process::geteuid().as_raw().to_string();
        // Its digits in hexadecimal: 30 for `0`, 31 for `1`.
        let hex: String = uid.chars().flat_map(|digit| ['3', digit]).collect();
        stream.write_all(format!("\0AUTH EXTERNAL {hex}\r\n").as_bytes()).await?;
        match line(&mut stream).await? {
            said if said.starts_with(b"OK") => {}
            said if said.starts_with(b"REJECTED") => {
                return Err(Stop::Because(BusError::Forbidden(format!("it does not take uid {uid}"))));
            }
            _ => return odd("no word on who we are"),
        }
        *step = BusStep::Hello;
        stream.write_all(b"BEGIN\r\n").await?;
        let mut bus = Self { stream, unread: Vec::new(), serial: 0 };
        let greeted = bus.ask_at(BUS, "/org/freedesktop/DBus", BUS, "Hello", &[]).await?;
        Ok(greeted.error.map_or(Ok(bus), Err))
    }

    /// Calls a method of systemd and waits for the answer.
    async fn ask(&mut self, path: &str, interface: &str, member: &str, arguments: &[&str]) -> Result<Message, Stop> {
        self.ask_at(SYSTEMD, path, interface, member, arguments).await
    }

    async fn ask_at(
        &mut self,
        destination: &str,
        path: &str,
        interface: &str,
        member: &str,
        arguments: &[&str],
    ) -> Result<Message, Stop> {
        let serial = self.send(&[(1, path), (6, destination), (2, interface), (3, member)], arguments).await?;
        self.answer(serial).await
    }

    /// Calls a method whose one argument is a yes or a no, and waits for the answer.
    async fn tell_at(&mut self, fields: &[(u8, &str)], yes: bool) -> Result<Message, Stop> {
        self.serial += 1;
        self.stream.write_all(&call_saying(self.serial, fields, yes)).await?;
        self.answer(self.serial).await
    }

    /// The answer to the call of this serial.
    async fn answer(&mut self, serial: u32) -> Result<Message, Stop> {
        // Whatever else the bus sends meanwhile is skipped.
        loop {
            let message = self.next().await?;
            if message.answers == Some(serial) {
                return Ok(message);
            }
        }
    }

    /// Sends a call with these fields of its header; its serial.
    async fn send(&mut self, fields: &[(u8, &str)], arguments: &[&str]) -> Result<u32, Stop> {
        self.serial += 1;
        self.stream.write_all(&call(self.serial, fields, arguments)).await?;
        Ok(self.serial)
    }

    /// The next message of any kind.
    async fn next(&mut self) -> Result<Message, Stop> {
        loop {
            match Message::take(&self.unread) {
                Err(what) => return odd(what),
                Ok(Some((message, bytes))) => {
                    self.unread.drain(..bytes);
                    return Ok(message);
                }
                Ok(None) if self.stream.read_buf(&mut self.unread).await? == 0 => {
                    return Err(Stop::Io(io::ErrorKind::UnexpectedEof.into()));
                }
                Ok(None) => {}
            }
        }
    }
}

/// What an error says. Some are the bus's own word on somebody who did not answer, or on what it has run out of.
fn judge(step: BusStep, error: &str) -> Result<BusSeen, Stop> {
    let short = error.strip_prefix("org.freedesktop.DBus.Error.").unwrap_or(error);
    match short {
        "ServiceUnknown" | "NameHasNoOwner" => Ok(BusSeen::NotOnIt),
        "UnknownMethod" | "UnknownObject" | "UnknownInterface" if step == BusStep::Ping => Ok(BusSeen::Answered),
        "NoReply" | "Timeout" | "TimedOut" => Ok(BusSeen::Silent { step, how: format!("the bus says {short}") }),
        "LimitsExceeded" | "NoMemory" | "Disconnected" => {
            Ok(BusSeen::Refused { step, how: format!("the bus says {short}") })
        }
        "AccessDenied" => Err(Stop::Because(BusError::Forbidden(short.to_owned()))),
        _ => odd(short),
    }
}

/// One line, without its end. What follows it is left in the socket: the bus says nothing before it is asked.
async fn line(stream: &mut UnixStream) -> Result<Vec<u8>, Stop> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        if line.len() >= MAX_LINE {
            return odd("a line without an end");
        }
        line.push(stream.read_u8().await?);
    }
    Ok(line)
}
