//! systemd's login manager (`org.freedesktop.login1`): whether it can reboot the machine, which inhibitors exist, and the
//! reboot.
//!
//! ```text
//! CanReboot ─► yes ─► ListInhibitors ─► nobody blocks it ─► Reboot(interactive: false)
//! ```
//!
//! For root, the call itself ignores inhibitors that block a shutdown (`systemd-logind` checks them only for other users). So
//! the node executor asks for them right before it, on the same connection. The login manager itself waits for inhibitors that
//! only delay the shutdown, for as long as it is configured to (`InhibitDelayMaxSec`). The kubelet takes such a delay to end
//! its pods in good order.

use std::path::Path;
use std::time::Duration;

use super::message::Value;
use super::{BusError, CallError, Conversation, good};
use crate::deadline::within;
use nrh_core::text::bounded;

const LOGIN: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
/// Longest text of another program that is kept, in bytes.
const MAX_SAID: usize = 160;
/// Errors that come from the bus, and not from the login manager, after the bus delivered a call (D-Bus specification,
/// `NoReply`; `Timeout`, `TimedOut` and `Disconnected` of its implementations).
const OF_BUS: &str = "org.freedesktop.DBus.Error.";
const UNANSWERED: [&str; 4] = ["NoReply", "Timeout", "TimedOut", "Disconnected"];
/// Values of one inhibitor: what, who, why, how, user id, process id.
const VALUES: usize = 6;

/// Why the login manager was not asked to reboot the machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LoginError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(
        "systemd's login manager answers {0:?} when asked whether it can reboot the node (CanReboot), expected \"yes\": {1}"
    )]
    Cannot(String, &'static str),
    #[error(
        "a reboot is blocked by {0}; it is respected: end what blocks it (systemd-inhibit --list shows it), or reboot manually"
    )]
    Blocked(String),
    #[error("the login manager was asked to reboot, and did not answer: {0}")]
    NotSeen(String),
}

/// Whether the machine can be rebooted and no inhibitor blocks it; each call within `limit`. Returns a phrase on which
/// inhibitors delay it; empty where none does. It changes nothing.
///
/// # Errors
/// Any reason against the reboot, or why the login manager cannot be asked.
pub(crate) async fn may_reboot(socket: &Path, limit: Duration) -> Result<String, LoginError> {
    allowed(&mut open(socket, limit).await?, limit).await
}

/// Repeats these checks and requests the reboot; each call within `limit`. Returns a phrase on which inhibitors delay it.
///
/// # Errors
/// [`LoginError::NotSeen`] where the reboot was requested and no answer came; with any other error it was not requested, or it
/// was refused.
pub(crate) async fn reboot(socket: &Path, limit: Duration) -> Result<String, LoginError> {
    let mut bus = open(socket, limit).await?;
    let delays = allowed(&mut bus, limit).await?;
    let fields = [(1, PATH), (6, LOGIN), (2, MANAGER), (3, "Reboot")];
    let answer = match within(limit, bus.call_bool(&fields, false)).await {
        Err(_) => return Err(LoginError::NotSeen(CallError::Silent(limit).to_string())),
        Ok(Err(stop)) => return Err(LoginError::NotSeen(CallError::from(stop).to_string())),
        Ok(Ok(message)) => message,
    };
    // The bus reports that the login manager received the call and did not answer: the call may have worked.
    let is_unanswered = |error: &String| UNANSWERED.contains(&error.strip_prefix(OF_BUS).unwrap_or(error));
    if let Some(error) = answer.error.as_ref().filter(|error| is_unanswered(error)) {
        return Err(LoginError::NotSeen(format!("the bus says {}", bounded(error, MAX_SAID))));
    }
    good(answer, "asked for the reboot")?;
    Ok(delays)
}

async fn open(socket: &Path, limit: Duration) -> Result<Conversation, CallError> {
    within(limit, Conversation::connect(socket)).await.unwrap_or(Err(CallError::Silent(limit)))
}

async fn ask(bus: &mut Conversation, member: &'static str, limit: Duration) -> Result<Vec<Value>, CallError> {
    let message = within(limit, bus.ask_at(LOGIN, PATH, MANAGER, member, &[])).await;
    good(message.map_err(|_| CallError::Silent(limit))??, member)
}

async fn allowed(bus: &mut Conversation, limit: Duration) -> Result<String, LoginError> {
    let can = ask(bus, "CanReboot", limit).await?.into_iter().next().and_then(Value::text);
    let can = can.ok_or_else(|| odd("CanReboot: an answer without a text"))?;
    if can != "yes" {
        let what = match can.as_str() {
            "challenge" => {
                "it would ask a person for a password, so this process is not root there, or polkit is configured otherwise"
            }
            "na" => "the machine or its container has no reboot",
            _ => "polkit or the machine forbids it",
        };
        return Err(LoginError::Cannot(bounded(&can, 32), what));
    }
    let (mut blocks, mut delays) = (Vec::new(), Vec::new());
    let values = ask(bus, "ListInhibitors", limit).await?;
    // An answer that cannot be parsed does not mean that no inhibitor exists.
    let Some((Value::Number(count), locks)) = values.split_first() else {
        return Err(odd("ListInhibitors: an answer of another kind"));
    };
    if usize::try_from(*count).ok().and_then(|count| count.checked_mul(VALUES)) != Some(locks.len()) {
        return Err(odd("ListInhibitors: an incomplete answer"));
    }
    for lock in locks.chunks(VALUES) {
        let [Value::Text(what), Value::Text(who), Value::Text(why), Value::Text(how), _, Value::Number(pid)] = lock
        else {
            return Err(odd("ListInhibitors: an answer of another kind"));
        };
        if !what.split(':').any(|one| one == "shutdown") {
            continue;
        }
        let phrase = format!("{} (process {pid}: {})", bounded(who, 64), bounded(why, 64));
        if how == "delay" { delays.push(phrase) } else { blocks.push(phrase) }
    }
    if blocks.is_empty() {
        return Ok(bounded(&delays.join(", "), MAX_SAID));
    }
    Err(LoginError::Blocked(bounded(&blocks.join(", "), MAX_SAID)))
}

fn odd(what: &str) -> LoginError {
    CallError::from(BusError::Odd(what.to_owned())).into()
}
