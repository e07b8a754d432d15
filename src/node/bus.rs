//! One question over the node's system bus: `Ping` to systemd. A connection of its own, closed after it.
//!
//! ```text
//! connect ─► AUTH EXTERNAL uid ─► BEGIN, Hello ─► Ping org.freedesktop.systemd1 ─► an answer, an error, or silence
//! ```
//!
//! Written by hand, for two calls without arguments and the headers of their answers ([`message`]): zbus, the usual client, was
//! measured to add 417 KiB to a program that is built as the probe is (6.2, feature `tokio`, on top of tokio itself), and the code
//! of a probe is most of what is resident of it.
//!
//! A bus has few connections for each user (256 for root), and what hangs must not use them up: there is at most one, and
//! it ends with the question.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::core::observation::{BusSeen, BusStep};
use crate::core::text::bounded;
use crate::node::patience::within;

pub(in crate::node) mod message;
#[cfg(test)]
mod tests;

use message::{Message, call};

/// Longest line that is read while the bus asks who is there.
const MAX_LINE: usize = 512;
/// Longest error that is kept, in bytes.
const MAX_ERROR: usize = 128;

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
    let bus = [(1, "/org/freedesktop/DBus"), (6, "org.freedesktop.DBus"), (2, "org.freedesktop.DBus"), (3, "Hello")];
    stream.write_all(&call(1, &bus)).await?;
    let mut unread = Vec::new();
    if let Some(error) = answer(&mut stream, &mut unread, 1).await? {
        return judge(BusStep::Hello, &error);
    }
    *step = BusStep::Ping;
    let systemd = [
        (1, "/org/freedesktop/systemd1"),
        (6, "org.freedesktop.systemd1"),
        (2, "org.freedesktop.DBus.Peer"),
        (3, "Ping"),
    ];
    stream.write_all(&call(2, &systemd)).await?;
    match answer(&mut stream, &mut unread, 2).await? {
        None => Ok(BusSeen::Answered),
        Some(error) => judge(BusStep::Ping, &error),
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

/// Reads until the answer to this call: nothing for a good one, else the name of the error. Anything else that the bus
/// sends meanwhile is skipped.
async fn answer(stream: &mut UnixStream, unread: &mut Vec<u8>, serial: u32) -> Result<Option<String>, Stop> {
    loop {
        match Message::take(unread) {
            Err(what) => return odd(what),
            Ok(Some((message, bytes))) => {
                unread.drain(..bytes);
                if message.answers == Some(serial) {
                    return Ok(message.error);
                }
            }
            Ok(None) if stream.read_buf(unread).await? == 0 => {
                return Err(Stop::Io(io::ErrorKind::UnexpectedEof.into()));
            }
            Ok(None) => {}
        }
    }
}
