//! Checks whether a command may be started: it is for this node, well formed, from the newest leader, and in time.

use std::time::Duration;

use jiff::Timestamp;

use super::claims::Moment;
use super::execute::{self, Admitted};
use super::verdict::Refusal;
use nrh_core::command::{ActionCommand, CLOCK_SLACK, OutcomeReason};

/// Maximum length of a text in a command.
const MAX_TEXT: usize = 512;

/// Checks that the command is for this node and well formed. Its leader term and its time are checked later.
pub(crate) fn admit(command: &ActionCommand, node: &str) -> Result<Admitted, Refusal> {
    if command.node != node {
        let message = format!("the command is for node {:?}, this is {node:?}", command.node);
        return Err(Refusal::new(OutcomeReason::WrongNode, message));
    }
    if !is_operation_id(&command.operation_id) {
        return Err(Refusal::malformed("operationID is not a name of 1 to 63 lower-case letters, digits and hyphens"));
    }
    if !(1..=3600).contains(&command.ttl_seconds) {
        return Err(Refusal::malformed("ttlSeconds is not within 1 to 3600"));
    }
    let target = &command.target;
    let texts = [&target.container_id, &target.sandbox_id, &target.lock, &target.control_group];
    if command.fault_id.len() > MAX_TEXT || texts.iter().any(|text| text.as_ref().is_some_and(|t| t.len() > MAX_TEXT)) {
        return Err(Refusal::malformed("a text is longer than 512 bytes"));
    }
    execute::admit(command)
}

/// Within which time the command may be started.
pub(super) fn ttl(command: &ActionCommand) -> Duration {
    Duration::from_secs(command.ttl_seconds.into())
}

/// Checks that there is still time to start the command.
pub(super) fn in_time(
    command: &ActionCommand,
    within: Duration,
    first_read: &Moment,
    now: &Moment,
) -> Result<(), Refusal> {
    let age = Duration::try_from(Timestamp::now().duration_since(command.issued_at)).unwrap_or_default();
    if age > within.saturating_add(CLOCK_SLACK) {
        return Err(stale(&format!(
            "issued {}s ago by this node's clock, to be started within {}s (and an hour for clocks)",
            age.as_secs(),
            within.as_secs()
        )));
    }
    if first_read.boot != now.boot {
        return Err(stale("it was first read before the node was booted"));
    }
    let waited = now.uptime.saturating_sub(first_read.uptime);
    if waited > within {
        return Err(stale(&format!(
            "first read {}s ago, to be started within {}s",
            waited.as_secs(),
            within.as_secs()
        )));
    }
    Ok(())
}

fn is_operation_id(id: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&id.len()) && id.bytes().all(inner) && !id.starts_with('-') && !id.ends_with('-')
}

fn stale(what: &str) -> Refusal {
    Refusal::new(OutcomeReason::Expired, format!("the command is too old: {what}"))
}
