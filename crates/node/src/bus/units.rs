//! Units of systemd: the state of one, and its restart with a wait for the end.
//!
//! ```text
//! LoadUnit, Get … ─► how it stands
//! AddMatch JobRemoved, Subscribe ─► as it stood? ─► ResetFailedUnit ─► RestartUnit (fail) ─► its job's JobRemoved ─► done …
//! ```
//!
//! The mode is `fail`: a restart never replaces a job that contradicts it, such as the stop during a shutdown. If another
//! client has queued a start of the unit, the restart would join that job. So the node executor does not touch a unit that has
//! any job.

use std::path::Path;
use std::time::Duration;

use super::message::{Message, Value};
use super::{BUS, BusError, CallError, Conversation, SYSTEMD, Stop, good};
use crate::deadline::within;

const MANAGER: &str = "/org/freedesktop/systemd1";
const MANAGER_INTERFACE: &str = "org.freedesktop.systemd1.Manager";
const UNIT_INTERFACE: &str = "org.freedesktop.systemd1.Unit";
const SERVICE_INTERFACE: &str = "org.freedesktop.systemd1.Service";
/// The properties to read from a unit, in the order of [`UnitSeen`].
const PROPERTIES: [(&str, &str); 10] = [
    (UNIT_INTERFACE, "LoadState"),
    (UNIT_INTERFACE, "ActiveState"),
    (UNIT_INTERFACE, "SubState"),
    (UNIT_INTERFACE, "UnitFileState"),
    (SERVICE_INTERFACE, "KillMode"),
    (SERVICE_INTERFACE, "MainPID"),
    (UNIT_INTERFACE, "Job"),
    (UNIT_INTERFACE, "RequiredBy"),
    (UNIT_INTERFACE, "BoundBy"),
    (UNIT_INTERFACE, "ConsistsOf"),
];
/// Maximum number of job ends that may arrive before the answer that names our job.
const MAX_ENDED: usize = 256;

/// The state of a unit, in systemd's own words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnitSeen {
    /// `loaded`, `not-found`, `masked`, `error` …
    pub load: String,
    /// `active`, `activating`, `deactivating`, `inactive`, `failed` …
    pub active: String,
    /// `running`, `dead`, `auto-restart` …
    pub sub: String,
    /// `enabled`, `disabled`, `masked`, `static` …; empty for a unit without a file.
    pub file: String,
    /// Which processes a stop ends: `process` (the main one), `control-group` (all), `mixed` …
    pub kill: String,
    /// Its main process; 0 = none.
    pub main_pid: u32,
    /// The job that is queued or runs for it; 0 = none.
    pub job: u32,
    /// Units that systemd restarts with it, by their direct dependencies (`Requires=`, `BindsTo=`, `PartOf=`).
    pub restarted_with: Vec<String>,
}

impl UnitSeen {
    /// Whether systemd knows the unit and reports that it does not run.
    pub(crate) fn is_down(&self) -> bool {
        self.load == "loaded" && self.active != "active"
    }

    /// As `systemctl` shows it: `active (running)`.
    pub(crate) fn phrase(&self) -> String {
        format!("{} ({})", self.active, self.sub)
    }
}

/// Why a request about a unit did not complete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnitError {
    #[error(transparent)]
    Call(#[from] CallError),
    /// The unit's state has changed since it was read: no restart was requested.
    #[error("{unit} is {now} by now, it was {before} a moment ago")]
    Changed { unit: String, before: String, now: String },
    #[error("{unit} was asked to restart, and the result was not seen: {why}")]
    NotSeen { unit: String, why: String },
}

/// The state of the unit with this name, read within `limit`. A unit that systemd does not know is `not-found`.
pub(crate) async fn check(socket: &Path, unit: &str, limit: Duration) -> Result<UnitSeen, CallError> {
    let ask = async { state_of(&mut Conversation::connect(socket).await?, unit).await };
    within(limit, ask).await.unwrap_or(Err(CallError::Silent(limit)))
}

/// Restarts the unit, or starts it where it does not run, as long as its state is still `seen`. Waits within `limit` for the
/// end of the job and returns systemd's result (`done`, `failed`, `timeout`, `canceled`, `dependency` …). It first resets
/// systemd's record of the unit's failures and their number.
///
/// # Errors
/// [`UnitError::NotSeen`] where the restart was requested and its end was not seen; with any other error no restart was
/// requested.
pub(crate) async fn restart(socket: &Path, unit: &str, seen: &UnitSeen, limit: Duration) -> Result<String, UnitError> {
    let mut asked = false;
    let result = within(limit, restart_of(socket, unit, seen, &mut asked)).await;
    match result.unwrap_or(Err(CallError::Silent(limit).into())) {
        Err(UnitError::Call(error @ (CallError::Broken(_) | CallError::Silent(_) | CallError::Bus(_)))) if asked => {
            Err(UnitError::NotSeen { unit: unit.to_owned(), why: error.to_string() })
        }
        result => result,
    }
}

impl From<Stop> for UnitError {
    fn from(stop: Stop) -> Self {
        CallError::from(stop).into()
    }
}

async fn state_of(bus: &mut Conversation, unit: &str) -> Result<UnitSeen, CallError> {
    let loaded = bus.ask(MANAGER, MANAGER_INTERFACE, "LoadUnit", &[unit]).await?;
    let path = text(loaded, "asked for the unit")?;
    let mut values = Vec::new();
    for (interface, name) in PROPERTIES {
        let message = bus.ask(&path, "org.freedesktop.DBus.Properties", "Get", &[interface, name]).await?;
        values.push(good(message, "asked how the unit stands")?.into_iter().next());
    }
    let mut values = values.into_iter();
    let mut next = || values.next().flatten();
    let seen = (|| {
        Some(UnitSeen {
            load: next()?.text()?,
            active: next()?.text()?,
            sub: next()?.text()?,
            file: next()?.text()?,
            kill: next()?.text()?,
            main_pid: next()?.number()?,
            job: next()?.number()?,
            restarted_with: [next()?.list()?, next()?.list()?, next()?.list()?].concat(),
        })
    })();
    let odd = || CallError::Bus(BusError::Odd("asked how the unit stands: an answer of another kind".to_owned()));
    seen.ok_or_else(odd)
}

/// `asked` is set once the restart may have been requested.
async fn restart_of(socket: &Path, unit: &str, seen: &UnitSeen, asked: &mut bool) -> Result<String, UnitError> {
    let mut bus = Conversation::connect(socket).await?;
    // Subscribe before the job begins: its end may come at once.
    let rule = "type='signal',sender='org.freedesktop.systemd1',interface='org.freedesktop.systemd1.Manager',\
                member='JobRemoved'";
    let heard = bus.ask_at(BUS, "/org/freedesktop/DBus", BUS, "AddMatch", &[rule]).await?;
    good(heard, "asked for the ends of jobs")?;
    let subscribed = bus.ask(MANAGER, MANAGER_INTERFACE, "Subscribe", &[]).await?;
    good(subscribed, "asked for the ends of jobs")?;
    let now = state_of(&mut bus, unit).await?;
    if now != *seen {
        return Err(UnitError::Changed { unit: unit.to_owned(), before: seen.phrase(), now: now.phrase() });
    }
    if seen.active == "failed" {
        // systemd does not start a unit that has failed too often (start-limit-hit) until that record is reset.
        bus.ask(MANAGER, MANAGER_INTERFACE, "ResetFailedUnit", &[unit]).await?;
    }
    *asked = true;
    let fields = [(1, MANAGER), (6, SYSTEMD), (2, MANAGER_INTERFACE), (3, "RestartUnit")];
    let call = bus.send(&fields, &[unit, "fail"]).await?;
    // Any process may send signals: only those of the sender that answers the call count.
    let (mut job, mut ends) = (None, Vec::new());
    loop {
        let message = bus.next().await?;
        let sender = message.sender.clone();
        if message.answers == Some(call) {
            job = Some((sender, text(message, "asked for the restart")?));
        } else if let Some((ended, result)) = job_ended(&message) {
            ends.push(((sender, ended), result));
            if ends.len() > MAX_ENDED {
                ends.remove(0);
            }
        }
        if let Some((_, result)) = ends.iter().find(|(ended, _)| Some(ended) == job.as_ref()) {
            return Ok(result.clone());
        }
    }
}

/// The job and its result, where the message reports the end of one: `JobRemoved(id, job, unit, result)`.
fn job_ended(message: &Message) -> Option<(String, String)> {
    if message.signal.as_deref() != Some("JobRemoved") {
        return None;
    }
    match message.values.as_slice() {
        [Value::Number(_), Value::Text(job), Value::Text(_), Value::Text(result), ..] => {
            Some((job.clone(), result.clone()))
        }
        _ => None,
    }
}

/// The only text of a successful answer.
fn text(message: Message, what: &'static str) -> Result<String, CallError> {
    let text = good(message, what)?.into_iter().next().and_then(Value::text);
    text.ok_or_else(|| CallError::Bus(BusError::Odd(format!("{what}: an answer without a text"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::fake::{Restarts, Systemd, unit};

    const LIMIT: Duration = Duration::from_millis(500);
    const KUBELET: &str = "kubelet.service";

    fn systemd(folder: &tempfile::TempDir, restarts: Restarts) -> Systemd {
        Systemd::start(&folder.path().join("bus"), &[(KUBELET, unit("failed", "failed"))], restarts)
    }

    /// A kubelet that has failed is restarted so.
    async fn restarted(restarts: Restarts) -> (Systemd, Result<String, UnitError>) {
        let folder = tempfile::tempdir().unwrap();
        let systemd = systemd(&folder, restarts);
        let result = restart(&systemd.socket, KUBELET, &unit("failed", "failed"), LIMIT).await;
        (systemd, result)
    }

    #[tokio::test]
    async fn a_unit_is_seen_in_systemds_own_words() {
        let folder = tempfile::tempdir().unwrap();
        let systemd = systemd(&folder, Restarts::Never);
        let seen = check(&systemd.socket, KUBELET, LIMIT).await.unwrap();
        assert_eq!((seen.phrase().as_str(), seen.file.as_str()), ("failed (failed)", "enabled"));
        assert_eq!(check(&systemd.socket, "other.service", LIMIT).await.unwrap().load, "not-found");
        assert!(systemd.acts().is_empty());
    }

    /// Reported in kubernetes/node-problem-detector #861 and kubernetes/kops #16763.
    #[tokio::test]
    async fn a_restart_is_waited_for_until_its_own_job_ends() {
        for result in ["done", "failed", "timeout", "dependency"] {
            let (systemd, ended) = restarted(Restarts::End(result, unit("active", "running"))).await;
            assert_eq!(ended.as_deref(), Ok(result));
            assert_eq!(systemd.acts(), ["ResetFailedUnit kubelet.service", "RestartUnit kubelet.service fail"]);
        }
    }

    #[tokio::test]
    async fn what_was_asked_for_and_not_seen_to_end_is_told_from_what_was_never_asked_for() {
        for restarts in [Restarts::Never, Restarts::Cut] {
            let (_, message) = restarted(restarts.clone()).await;
            assert!(matches!(message, Err(UnitError::NotSeen { .. })), "{restarts:?}: {message:?}");
        }
        let (cut, message) = restarted(Restarts::CutAtReset).await;
        assert!(matches!(message, Err(UnitError::Call(CallError::Broken(_)))), "{message:?}");
        assert_eq!(cut.acts(), ["ResetFailedUnit kubelet.service"]);
        let refuses = Restarts::Refuse("org.freedesktop.systemd1.TransactionIsDestructive");
        let message = restarted(refuses).await.1.unwrap_err();
        assert!(matches!(message, UnitError::Call(CallError::Refused { .. })), "{message:?}");
        assert!(message.to_string().ends_with("TransactionIsDestructive: because of a test"), "{message}");
        let folder = tempfile::tempdir().unwrap();
        let none = folder.path().join("none");
        let message = restart(&none, KUBELET, &unit("failed", "failed"), LIMIT).await;
        assert!(matches!(message, Err(UnitError::Call(CallError::Broken(_)))), "{message:?}");
        let silent = folder.path().join("silent");
        let _listener = tokio::net::UnixListener::bind(&silent).unwrap();
        let message = restart(&silent, KUBELET, &unit("failed", "failed"), LIMIT).await;
        assert_eq!(message, Err(CallError::Silent(LIMIT).into()));
    }

    #[tokio::test]
    async fn what_does_not_stand_as_it_did_is_left_alone_and_what_runs_has_nothing_to_be_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let systemd = systemd(&folder, Restarts::End("done", unit("active", "running")));
        for seen in [
            unit("active", "running"),
            UnitSeen { main_pid: 7, ..unit("failed", "failed") },
            UnitSeen { job: 7, ..unit("failed", "failed") },
        ] {
            let message = restart(&systemd.socket, KUBELET, &seen, LIMIT).await;
            assert!(matches!(message, Err(UnitError::Changed { .. })), "{message:?}");
        }
        assert!(systemd.acts().is_empty());
        restart(&systemd.socket, KUBELET, &unit("failed", "failed"), LIMIT).await.unwrap();
        restart(&systemd.socket, KUBELET, &unit("active", "running"), LIMIT).await.unwrap();
        let again = "RestartUnit kubelet.service fail";
        assert_eq!(systemd.acts(), ["ResetFailedUnit kubelet.service", again, again]);
    }
}
