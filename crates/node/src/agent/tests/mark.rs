//! Marks for a reboot by another tool: left once, by the same check as a reboot, and never in the way of somebody else's.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use super::restart::Daemons;
use super::*;
use crate::bus::fake::{Login, unit};
use crate::sentinel::tests::Host;
use crate::sentinel::{self, Folder, Mark};
use nrh_core::action::MarkForReboot;

/// A node whose `/run` is in memory.
struct Marked {
    daemons: Daemons,
    host: tempfile::TempDir,
}

impl Marked {
    fn new() -> Self {
        let Host(host) = Host::new();
        Self { daemons: Daemons::of_runtime(unit("failed", "failed")), host }
    }

    fn file(&self) -> PathBuf {
        self.host.path().join("run/reboot-required")
    }

    /// Refused for this reason with this in its sentence, and no file is there.
    #[track_caller]
    fn left_alone(&self, outcome: &Outcome, reason: OutcomeReason, said: &str) {
        self.daemons.left_alone(outcome, reason, said);
        assert!(!self.file().exists());
    }

    async fn leaves_alone(&self, command: &ActionCommand, reason: OutcomeReason, said: &str) {
        self.left_alone(&self.execute(command).await, reason, said);
    }
}

impl Executes for Marked {
    fn settings(&self) -> AgentSettings {
        AgentSettings { host: self.host.path().to_owned(), ..self.daemons.settings() }
    }
}

fn mark_for(fault_type: FaultType) -> ActionCommand {
    ActionCommand {
        boot_id: Some("boot".to_owned()),
        marker_expires_after_seconds: Some(600),
        ..command(Action::MarkForReboot(MarkForReboot::default()), fault_type, Target::default())
    }
}

/// The same for a runtime that is silent.
fn mark() -> ActionCommand {
    mark_for(FaultType::RuntimeUnreachable)
}

#[tokio::test]
async fn a_node_is_marked_once_and_is_not_rebooted_by_us() {
    let node = Marked::new();
    let command = mark();
    let first = node.execute(&command).await;
    done(&first);
    let said = "/run/reboot-required was not there; it requests a reboot now, until this command is withdrawn";
    assert_eq!(first.message, said);
    let text = fs::read_to_string(node.file()).unwrap();
    assert!(text.contains(&format!("\"operationId\":\"{}\"", command.operation_id)), "{text}");
    assert!(text.contains("\"bootId\":\"boot\",\"until\":1600,"), "{text}");
    // It was taken away since: the same command, by whatever collector or leader, does not put it back.
    fs::remove_file(node.file()).unwrap();
    assert_eq!(node.execute(&ActionCommand { epoch: 9, ..command.clone() }).await, first);
    assert!(!node.file().exists());
    assert_eq!(node.daemons.systemd.acts(), [] as [String; 0]);
    // Nor does it after the boot, with which all that was kept in /run is lost.
    fs::remove_dir_all(node.daemons.node.stage.path("state")).unwrap();
    fs::write(node.daemons.proc("sys/kernel/random/boot_id"), "boot-2\n").unwrap();
    node.leaves_alone(&command, AlreadyRebooted, "the current boot is boot-2").await;
}

#[tokio::test]
async fn a_file_of_somebody_else_asks_for_the_same_and_stays_as_it_is() {
    let node = Marked::new();
    fs::write(node.file(), "*** System restart required ***\n").unwrap();
    let outcome = node.execute(&mark()).await;
    assert_eq!((outcome.state, outcome.reason), (OutcomeState::Done, AlreadyRequested));
    let said = "requests a reboot already and belongs to someone else (user ";
    assert!(outcome.message.contains(said), "{}", outcome.message);
    assert_eq!(fs::read_to_string(node.file()).unwrap(), "*** System restart required ***\n");
}

#[tokio::test]
async fn a_place_that_is_not_as_it_must_be_is_left_alone() {
    let node = Marked::new();
    symlink("/etc/passwd", node.file()).unwrap();
    node.refuses_saying(&mark(), Protected, "found Symlink").await;
    fs::remove_file(node.file()).unwrap();
    fs::set_permissions(node.host.path().join("run"), fs::Permissions::from_mode(0o777)).unwrap();
    node.leaves_alone(&mark(), Protected, "only its owner").await;
    fs::remove_dir(node.host.path().join("run")).unwrap();
    node.leaves_alone(&mark(), CheckFailed, "as a folder that is no link").await;
}

#[tokio::test]
async fn what_names_no_boot_no_file_or_another_one_is_not_carried_out() {
    let node = Marked::new();
    let command = || mark();
    let at = |path: &str| Action::MarkForReboot(MarkForReboot { path: path.to_owned() });
    let for_seconds = |seconds: Option<u32>| ActionCommand { marker_expires_after_seconds: seconds, ..command() };
    for (wrong, said) in [
        (ActionCommand { boot_id: None, ..command() }, "must name the boot that is to end"),
        (ActionCommand { action: at("/run/nologin"), ..command() }, "not a file directly in /run"),
        (ActionCommand { action: at("/run/../etc/reboot"), ..command() }, "not a file directly in /run"),
        (ActionCommand { action: at("/var/run/reboot-required"), ..command() }, "not a file directly in /run"),
        (for_seconds(None), "markerExpiresAfterSeconds"),
        (for_seconds(Some(0)), "markerExpiresAfterSeconds"),
        (for_seconds(Some(86_401)), "markerExpiresAfterSeconds"),
    ] {
        node.leaves_alone(&wrong, CheckFailed, said).await;
    }
    let other = ActionCommand { boot_id: Some("other".to_owned()), ..command() };
    node.leaves_alone(&other, AlreadyRebooted, "the current boot is boot").await;
    let off = AgentSettings { allow_actions: false, ..node.settings() };
    node.left_alone(&off.execute(&command()).await, ActionsDisabled, "are disabled");
}

#[tokio::test]
async fn what_has_recovered_or_was_stopped_by_somebody_is_not_marked_for() {
    let node = Marked::new();
    for kind in FaultType::ALL {
        if (mark_for(kind).action.traits().addresses)(kind).is_err() {
            node.leaves_alone(&mark_for(kind), CheckFailed, "no preflight").await;
        }
    }
    node.daemons.node.runtime.unsay("Version");
    node.leaves_alone(&mark(), Recovered, "answers a version call").await;
    let stopped = Marked { daemons: Daemons::of_runtime(unit("inactive", "dead")), ..Marked::new() };
    stopped.leaves_alone(&mark(), Protected, "was stopped").await;
    // Who holds up a shutdown holds up who reboots, not who asks for it.
    let held = Marked::new();
    let locks = vec![["shutdown", "upgrade", "packages are written", "block"]];
    held.daemons.systemd.login(Login { can: "no", locks, ..Login::default() });
    done(&held.execute(&mark()).await);
}

#[tokio::test]
async fn what_who_has_died_right_after_the_claim_has_left_the_folder_tells() {
    let node = Marked::new();
    let command = mark();
    assert!(node.daemons.node.claims().claim(&command, None).unwrap());
    failed(&node.execute(&command).await, "did not create /run/reboot-required");
    assert!(!node.file().exists());
    // Of another operation, or of somebody else.
    fs::write(node.file(), "*** System restart required ***\n").unwrap();
    assert_eq!(node.execute(&command).await.state, OutcomeState::Failed);
    fs::remove_file(node.file()).unwrap();
    let mark = |operation: &str| Mark { operation_id: operation.to_owned(), until: 1600, ..sentinel::tests::mark() };
    let folder = Folder::open(node.host.path()).unwrap();
    folder.place("reboot-required", &mark("other")).unwrap();
    assert_eq!(node.execute(&command).await.state, OutcomeState::Failed);
    fs::remove_file(node.file()).unwrap();
    folder.place("reboot-required", &mark(&command.operation_id)).unwrap();
    done(&node.execute(&command).await);
}
