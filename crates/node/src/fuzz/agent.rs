//! Commands, what the node remembers of them, the probe's own files, and what the probe reads of its object.

use std::time::Duration;

use jiff::Timestamp;

use super::checks::is_bounded;
use crate::agent::admission::admit;
use crate::agent::claims::{Known, of_claim};
use crate::agent::job::read_command;
use crate::config;
use crate::report::client::{Feedback, OwnObject};
use crate::report::command::{Command, OwnCommand};
use crate::report::{clock, plugin};
use crate::state::Saved;
use nrh_api::HumanDuration;
use nrh_core::action::{Action, ReleaseHungProcess, RestartKubelet, RestartRuntime, Signal, is_service};
use nrh_core::command::ActionCommand;
use nrh_core::faults;
use nrh_core::finding::Findings;
use nrh_core::reboot::{MARK_STANDS, is_boot_id, sentinel_name};
use nrh_core::text::is_full_id;
use nrh_core::thresholds::Thresholds;
use nrh_core::{fault, tracker};

/// Time since boot at which a state file is read.
const NOW: Duration = Duration::from_hours(1);
const VERSION: &str = "client.authentication.k8s.io/v1";

/// The command of a Job's environment. Taken = it may be carried out, as far as its form goes.
pub fn command(data: &[u8]) -> bool {
    let read = read_command(&String::from_utf8_lossy(data));
    let Ok(command) = read else { return false };
    let written = serde_json::to_string(&command).unwrap_or_default();
    assert_eq!(read_command(&written).as_ref(), Ok(&command));
    assert!(admit(&command, &format!("not {}", command.node)).is_err(), "a command for another node");
    if admit(&command, &command.node).is_err() {
        return false;
    }
    let id = &command.operation_id;
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    assert!((1..=63).contains(&id.len()) && id.bytes().all(is_name), "{id:?} names a file");
    assert!((1..=3600).contains(&command.ttl_seconds));
    let target = &command.target;
    let names_process = || target.process.as_ref().is_some_and(|process| process.pid > 1);
    let has_container = || target.container_id.as_deref().is_some_and(is_full_id);
    if command.action.ends_boot() {
        assert!(command.boot_id.as_deref().is_some_and(is_boot_id));
    }
    match &command.action {
        Action::CleanupOrphans(_) => assert!(has_container() || names_process()),
        Action::ThawCgroup(_) => assert!(names_process() && target.control_group.is_some()),
        Action::ReleaseHungProcess(_) => {
            assert!(names_process());
            assert!(command.fault_type != fault::FaultType::RuntimeClientHung || has_container());
        }
        Action::RestartKubelet(RestartKubelet(params)) | Action::RestartRuntime(RestartRuntime(params)) => {
            assert!(params.unit.as_deref().is_none_or(is_service));
        }
        Action::Reboot(_) => {}
        Action::MarkForReboot(params) => {
            assert!(sentinel_name(&params.path).is_some_and(|name| !name.contains('/')), "{:?}", params.path);
            assert!(command.marker_expires_after_seconds.is_some_and(|seconds| (1..=MARK_STANDS).contains(&seconds)));
        }
        other => panic!("no node carries out {other:?}"),
    }
    true
}

/// What stands under an operation's id. Whatever it is, the operation is not free.
pub fn claim(data: &[u8]) -> bool {
    let command = ActionCommand {
        operation_id: "op-1".to_owned(),
        epoch: 1,
        node: "w1".to_owned(),
        action: Action::ReleaseHungProcess(ReleaseHungProcess { signal: Signal::Cont, allow_running_pods: false }),
        fault_id: "hungcontainer-1".to_owned(),
        fault_type: fault::FaultType::HungContainer,
        target: fault::Target::default(),
        boot_id: None,
        marker_expires_after_seconds: None,
        issued_at: Timestamp::UNIX_EPOCH,
        ttl_seconds: 60,
    };
    let known = of_claim(data, &command);
    assert_ne!(known, Known::Free, "a claim that is there was not seen");
    known != Known::Open
}

/// The state file of an earlier probe.
pub fn saved_state(data: &[u8]) -> bool {
    let Ok(mut saved) = serde_json::from_slice::<Saved>(data) else { return false };
    let written = serde_json::to_vec(&saved).unwrap_or_default();
    let again = serde_json::from_slice::<Saved>(&written).and_then(|saved| serde_json::to_vec(&saved));
    assert_eq!(again.ok(), Some(written));
    saved.tracker = saved.tracker.restored(NOW);
    assert_eq!(saved.tracker.clone().restored(NOW), saved.tracker);
    assert!(saved.tracker.suspects().count() <= tracker::MAX_TRACKED);
    let tracked = saved.tracker.step(NOW, Timestamp::UNIX_EPOCH, &Findings::default(), &Thresholds::default());
    assert!(tracked.faults.len() <= tracker::MAX_TRACKED);
    assert!(tracked.faults.iter().all(|fault| fault.duration_seconds <= NOW.as_secs()), "longer than since boot");
    true
}

pub fn probe_config(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    match config::parse(text, "probe.yaml") {
        Ok(read) => {
            for of in faults::confirmations() {
                let (one, shipped) = (read.confirm(of), of.shipped);
                assert!((3..=20).contains(&one.checks), "{} looks", one.checks);
                assert!(
                    one.interval.saturating_mul(2) >= shipped.interval
                        && one.interval <= shipped.interval.saturating_mul(20)
                );
                assert!(one.grace_period <= shipped.grace_period.saturating_mul(20));
            }
            assert!((2..=20).contains(&read.clear_checks));
            assert!(read.clear_interval.saturating_mul(read.clear_checks.saturating_sub(1)) <= Duration::from_secs(20));
            for of in faults::bounds() {
                let bound = read.bound(of);
                assert!(bound.saturating_mul(2) >= of.shipped, "{}", of.key);
                assert!(HumanDuration::from_secs(bound.as_secs()).get() == bound, "{}", of.key);
            }
            true
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("probe.yaml") && text.len() <= 16 << 10, "{} bytes", text.len());
            false
        }
    }
}

/// What a credential plugin has written.
pub fn credential_plugin(data: &[u8]) -> bool {
    match plugin::read(data, VERSION) {
        Ok(made) => {
            let auth = made.auth;
            let certificate = auth.client_certificate_data.is_some() && auth.client_key_data.is_some();
            assert!(auth.token.is_some() != certificate && auth.exec.is_none(), "one credential, and no other plugin");
            true
        }
        Err(why) => {
            assert!(is_bounded(&why, 300), "{} bytes", why.len());
            false
        }
    }
}

/// The probe's own report, as far as it reads it.
pub fn own_object(data: &[u8]) -> bool {
    let Ok(object) = serde_json::from_slice::<OwnObject>(data) else { return false };
    let feedback = Feedback::from(object);
    assert!(feedback.kubelet_version.as_ref().is_none_or(|version| is_bounded(version, 64)));
    true
}

/// The command to the node, as far as the probe reads it.
pub fn own_command(data: &[u8]) -> Option<Command> {
    let command = Command::from(serde_json::from_slice::<OwnCommand>(data).ok()?);
    if let Some(command) = &command.command {
        let written = serde_json::to_string(command).unwrap_or_default();
        assert_eq!(serde_json::from_str(&written).ok().as_ref(), Some(command));
    }
    Some(command)
}

/// The `Date` of an answer.
pub fn http_date(data: &[u8]) -> bool {
    let Some(read) = clock::parse(data) else { return false };
    // What was understood is what stands there, but for the day of the week and a leap second.
    let again = read.strftime("%d %b %Y %H:%M:%S GMT").to_string();
    let same = data.get(5..) == Some(again.as_bytes());
    assert!(same || data.get(23..25) == Some(b"60"), "{again}");
    true
}
