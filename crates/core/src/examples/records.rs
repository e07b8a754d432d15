//! Faults and commands.

use jiff::Timestamp;

use crate::action::{Action, ReleaseHungProcess, Signal};
use crate::command::ActionCommand;
use crate::fault::{Fault, FaultState, FaultType, ProcessRef, Role, Severity, Subject, SubjectKind, Target};

/// Resumes the hung process.
pub const CONT: Action = release(Signal::Cont, false);
/// Kills the hung process, whatever runs above it.
pub const KILL: Action = release(Signal::Kill, true);
/// Kills the hung process if nothing that runs would end with it.
pub const SAFE_KILL: Action = release(Signal::Kill, false);

const fn release(signal: Signal, allow_running_pods: bool) -> Action {
    Action::ReleaseHungProcess(ReleaseHungProcess { signal, allow_running_pods })
}

/// A fault of this kind, for tests that need any.
pub fn fault(kind: FaultType) -> Fault {
    Fault {
        severity: Severity::Medium,
        state: FaultState::Suspected,
        subject: Subject::of(SubjectKind::Container),
        message: "message".into(),
        ..Fault::new(kind, "key")
    }
}

/// Subject and target of a fault of the shim with this id.
pub fn shim(id: &str) -> (Subject, Target) {
    let process = ProcessRef {
        role: Role::Shim,
        pid: 4711,
        start_ticks: 1,
        state: "T".into(),
        wchan: None,
        command: "containerd-shim".into(),
    };
    let target = Target { process: Some(process), sandbox_id: Some(id.into()), ..Target::default() };
    (Subject { id: Some(id.into()), ..Subject::of(SubjectKind::Shim) }, target)
}

/// A command to resume a shim.
pub fn command(operation_id: &str) -> ActionCommand {
    ActionCommand {
        operation_id: operation_id.into(),
        epoch: 1,
        node: "n1".into(),
        action: CONT,
        fault_id: "f".into(),
        fault_type: FaultType::HungContainer,
        target: Target::default(),
        boot_id: None,
        marker_expires_after_seconds: None,
        issued_at: Timestamp::UNIX_EPOCH,
        ttl_seconds: 60,
    }
}
