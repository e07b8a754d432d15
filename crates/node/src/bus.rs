//! The node's system bus: one question to systemd whether it responds, the restart of one unit, or a reboot through its login
//! manager. Each has its own connection, which is closed afterwards.
//!
//! ```text
//! connect ─► AUTH EXTERNAL uid ─► BEGIN, Hello ─► calls to org.freedesktop.systemd1 ─► an answer, an error, or silence
//! ```
//!
//! This client is hand-written. It needs a few calls with texts as arguments, and the headers and texts of their answers
//! ([`message`]). zbus, the usual client, was measured to add 417 KiB to a program that is built as the probe is (6.2, feature
//! `tokio`, on top of tokio itself), and most of the probe's resident memory is code.
//!
//! A bus has few connections for each user (256 for root), and calls that hang must not use them up. So there is at most one
//! connection, and it ends with the question.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::collect::HostPaths;
use crate::deadline::within;
use nrh_core::observation::{BusSeen, BusStep};
use nrh_core::text::bounded;

#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod login;
pub(crate) mod message;
#[cfg(test)]
mod tests;
pub(crate) mod units;

use message::{Message, Value, call, call_saying};

/// Longest line that is read during the bus's authentication.
const MAX_LINE: usize = 512;
/// Longest error that is kept, in bytes.
const MAX_ERROR: usize = 128;
/// Longest error text of a peer that is kept, in bytes.
const MAX_SAID: usize = 200;
/// The path of the bus on every distribution that has one.
const SOCKET: &str = "/run/dbus/system_bus_socket";
/// systemd creates this folder where it runs the machine, and no image contains it: see `sd_booted(3)`.
const BOOTED: &str = "/run/systemd/system";

/// The node's system bus; `None` where systemd does not run the node, or there is no bus. Reads the file system.
///
/// # Errors
/// A sentence that says what could not be read.
pub(crate) fn socket(paths: &HostPaths) -> Result<Option<PathBuf>, String> {
    let there = |path: &str| {
        let exists = paths.socket(Path::new(path)).try_exists();
        exists.map_err(|error| bounded(&format!("{path}: {error}"), 200))
    };
    let booted = there(BOOTED)?;
    if booted && there(SOCKET)? {
        return Ok(Some(paths.socket(Path::new(SOCKET))));
    }
    // A path that is missing for this process is missing on the node, if the node's root is visible.
    if paths.root == Path::new("/") && paths.proc.join("1/root").metadata().is_err() {
        let reason = "cannot determine whether the node has a system bus: cannot read the root of process 1";
        return Err(reason.to_owned());
    }
    Ok(None)
}

/// Why nothing is known about systemd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BusError {
    /// The socket does not exist.
    #[error("no system bus: {0}")]
    Missing(String),
    /// This process has no permission to ask.
    #[error("not allowed to ask over the system bus: {0}")]
    Forbidden(String),
    /// The server is no bus, or gives an unexpected answer.
    #[error("the system bus answered oddly: {0}")]
    Odd(String),
}

/// Why a call of systemd, or of its login manager, has no good answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// There is no bus, this process has no permission to ask it, or the server is no bus.
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error("the way to systemd over the system bus broke: {0}")]
    Broken(String),
    #[error("no answer of systemd over the system bus within {}s", .0.as_secs())]
    Silent(Duration),
    #[error("{what}: {message}")]
    Refused { what: &'static str, message: String },
}

impl From<Stop> for CallError {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Because(error) => error.into(),
            Stop::Io(error) => Self::Broken(bounded(&error.to_string(), MAX_SAID)),
        }
    }
}

/// Why a request ended before its answer.
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
/// Any reason that gives no information about systemd: there is no bus, this process has no permission to ask, or the server is
/// no bus.
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

/// A connection after the bus's greeting.
struct Conversation {
    stream: UnixStream,
    unread: Vec<u8>,
    serial: u32,
}

const SYSTEMD: &str = "org.freedesktop.systemd1";
const BUS: &str = "org.freedesktop.DBus";

impl Conversation {
    /// Connects, authenticates, and gets the greeting. Returns the name of the error where the bus sends an error instead.
    async fn open(socket: &Path, step: &mut BusStep) -> Result<Result<Self, String>, Stop> {
        let mut stream = UnixStream::connect(socket).await?;
        *step = BusStep::Login;
        let uid = rustix::process::geteuid().as_raw().to_string();
        // The digits of the user id in hexadecimal: 30 for `0`, 31 for `1`.
        let hex: String = uid.chars().flat_map(|digit| ['3', digit]).collect();
        stream.write_all(format!("\0AUTH EXTERNAL {hex}\r\n").as_bytes()).await?;
        match line(&mut stream).await? {
            line if line.starts_with(b"OK") => {}
            line if line.starts_with(b"REJECTED") => {
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

    /// As [`Conversation::open`], where the step that fails does not matter.
    async fn connect(socket: &Path) -> Result<Self, CallError> {
        let opened = Self::open(socket, &mut BusStep::Connect).await?;
        opened.map_err(|message| CallError::Refused { what: "the bus refused the connection", message })
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

    async fn call_bool(&mut self, fields: &[(u8, &str)], yes: bool) -> Result<Message, Stop> {
        self.serial += 1;
        self.stream.write_all(&call_saying(self.serial, fields, yes)).await?;
        self.answer(self.serial).await
    }

    async fn answer(&mut self, serial: u32) -> Result<Message, Stop> {
        // All other messages of the bus are skipped.
        loop {
            let message = self.next().await?;
            if message.answers == Some(serial) {
                return Ok(message);
            }
        }
    }

    /// Sends a call with these header fields. Returns its serial.
    async fn send(&mut self, fields: &[(u8, &str)], arguments: &[&str]) -> Result<u32, Stop> {
        self.serial += 1;
        self.stream.write_all(&call(self.serial, fields, arguments)).await?;
        Ok(self.serial)
    }

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

/// The values of an answer that is no error.
fn good(message: Message, what: &'static str) -> Result<Vec<Value>, CallError> {
    let Some(error) = message.error else { return Ok(message.values) };
    let sentence = match message.values.first() {
        Some(Value::Text(sentence)) => format!(": {}", bounded(sentence, MAX_SAID)),
        _ => String::new(),
    };
    Err(CallError::Refused { what, message: format!("{error}{sentence}") })
}

/// What an error means. Some errors come from the bus itself: a peer did not answer, or the bus has no resources left.
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

/// One line, without its end. Later bytes stay in the socket: the bus sends nothing before the next request.
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
