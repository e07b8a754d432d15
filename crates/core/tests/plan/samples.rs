//! Faults, pods and policies to build worlds from.

use std::collections::BTreeSet;
use std::time::Duration;

use nrh_core::action::{
    CleanupOrphans, Cordon, DeletePod, Drain, HandOff, MarkForReboot, Notify, Reboot, ReleaseHungProcess, Restart,
    RestartKubelet, RestartRuntime, Signal, Taint,
};
use nrh_core::fault::{Daemon, Fault, FaultType, PodRef, ProcessRef, Role, Severity, Subject, SubjectKind, Target};
use nrh_core::hand_off::TemplateRef;
use nrh_core::matching::Matching;
use nrh_core::policy::{
    Action, Amount, ApprovalMode, History, Limits, Mode, Namespaces, OnFailure, Policy, Quarantine, Rule, Selector,
    Step,
};
use nrh_core::snapshot::{FailedContainer, SuspectPod, WaitingContainer};
use nrh_core::taint::TaintEffect;
use nrh_core::window::{Window, WindowType};
use nrh_simulate::workload::Workload;

pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn pod(name: &str) -> PodRef {
    PodRef { namespace: "kube-system".into(), name: name.into(), uid: format!("uid-{name}") }
}

/// A critical fault of this kind.
pub fn critical(kind: FaultType) -> Fault {
    Fault { severity: Severity::Critical, ..fault(kind, "it") }
}

/// A runtime that answers nothing: what merits a reboot.
pub fn silent() -> Fault {
    critical(FaultType::RuntimeUnreachable)
}

pub fn fault(kind: FaultType, key: &str) -> Fault {
    let subject_kind = match kind {
        FaultType::NetworkPluginHung => SubjectKind::NetworkPlugin,
        FaultType::LeakedShim | FaultType::UnresponsiveShim => SubjectKind::Shim,
        FaultType::KubeletDown | FaultType::KubeletCrashLoop => SubjectKind::Kubelet,
        kind if kind.spec().runtime_unresponsive => SubjectKind::Runtime,
        kind if kind.spec().lasting => SubjectKind::Host,
        _ => SubjectKind::Container,
    };
    let has_pod = matches!(kind, FaultType::HungContainer | FaultType::OrphanContainer);
    let role = match kind {
        FaultType::NetworkPluginHung => Role::NetworkPlugin,
        FaultType::RuntimeClientHung => Role::RuntimeClient,
        _ => Role::Shim,
    };
    let process = ProcessRef {
        role,
        pid: 4242,
        start_ticks: 1,
        state: "T".into(),
        wchan: None,
        command: "containerd-shim".into(),
    };
    Fault {
        severity: Severity::High.min(kind.spec().worst_severity),
        subject: Subject { name: Some(key.into()), pod: has_pod.then(|| pod(key)), ..Subject::of(subject_kind) },
        target: Target {
            process: (kind != FaultType::OrphanContainer).then_some(process),
            container_id: has_pod.then(|| "c".repeat(64)),
            pod: has_pod.then(|| pod(key)),
            ..Target::default()
        },
        message: format!("{kind} of {key}"),
        first_seen: "2026-01-01T00:00:00Z".parse().unwrap(),
        duration_seconds: 60,
        confirmations: 3,
        ..Fault::new(kind, key)
    }
}

pub fn hung(key: &str) -> Fault {
    fault(FaultType::HungContainer, key)
}

pub fn plugin() -> Fault {
    fault(FaultType::NetworkPluginHung, "ptp")
}

/// A DaemonSet pod at the longest back-off whose container ended long enough ago.
pub fn backing_off(node: &str, name: &str) -> SuspectPod {
    let container = WaitingContainer {
        name: "main".into(),
        reason: "CrashLoopBackOff".into(),
        back_off: Some(secs(300)),
        ended: Some(secs(90)),
        restarts: 12,
    };
    SuspectPod {
        pod: pod(name),
        node: node.into(),
        daemon_set: Some("agent".into()),
        host_network: false,
        ready: false,
        age: secs(3_000),
        without_sandbox: None,
        overdue: None,
        waiting: vec![container],
        failed: Vec::new(),
        read: secs(1),
    }
}

/// The same as long as the kubelet has not named its back-off.
pub fn failed(node: &str, name: &str) -> SuspectPod {
    let mut pod = backing_off(node, name);
    pod.waiting.clear();
    pod.failed = vec![FailedContainer {
        name: "main".into(),
        ended: secs(60),
        ran: Some(secs(2)),
        waited: Some(secs(161)),
        restarts: 6,
    }];
    pod
}

/// A DaemonSet pod whose containers are being created for too long.
pub fn creating(node: &str, name: &str) -> SuspectPod {
    let mut pod = backing_off(node, name);
    pod.age = secs(130);
    pod.without_sandbox = Some(secs(125));
    pod.waiting = vec![WaitingContainer {
        name: "main".into(),
        reason: "ContainerCreating".into(),
        back_off: None,
        ended: None,
        restarts: 0,
    }];
    pod
}

/// A DaemonSet pod that should have been gone long ago.
pub fn overdue(node: &str, name: &str) -> SuspectPod {
    let mut pod = backing_off(node, name);
    pod.waiting.clear();
    pod.overdue = Some(secs(130));
    pod
}

/// A restart of this daemon.
pub fn restart(daemon: Daemon, with: Restart) -> Step {
    step(match daemon {
        Daemon::Kubelet => Action::RestartKubelet(RestartKubelet(with)),
        Daemon::Runtime => Action::RestartRuntime(RestartRuntime(with)),
    })
}

/// A restart of the kubelet, only where it is safe.
pub fn restart_kubelet() -> Step {
    restart(Daemon::Kubelet, Restart::default())
}

/// A restart of the runtime, also where it is not safe if the check is skipped.
pub fn restart_runtime(skip_safety_check: bool) -> Step {
    restart(Daemon::Runtime, Restart { skip_safety_check, ..Restart::default() })
}

pub fn step(action: Action) -> Step {
    Step {
        action,
        timeout: secs(180),
        max_attempts: 1,
        cooldown: secs(60),
        stable_for: secs(5),
        on_failure: OnFailure::Continue,
        approval: ApprovalMode::Automatic,
        approval_timeout: Duration::from_hours(1),
        mode: Mode::Enforce,
    }
}

pub fn cordon() -> Step {
    step(Action::Cordon(Cordon::default()))
}

/// A cordon that is wanted for its own sake.
pub fn kept(quarantine_for: Duration, healthy_delay: Duration) -> Step {
    step(Action::Cordon(Cordon { quarantine: Some(Quarantine { quarantine_for, healthy_delay }) }))
}

pub fn taint() -> Step {
    step(Action::Taint(Taint { effect: TaintEffect::NoSchedule }))
}

/// A taint that pods need not tolerate.
pub fn soft_taint() -> Step {
    step(Action::Taint(Taint { effect: TaintEffect::PreferNoSchedule }))
}

pub fn clean_up() -> Step {
    step(Action::CleanupOrphans(CleanupOrphans))
}

pub fn delete_pod() -> Step {
    step(Action::DeletePod(DeletePod))
}

/// The same, which a person has to approve.
pub fn asked(step: Step) -> Step {
    Step { approval: ApprovalMode::Manual, ..step }
}

pub fn cont() -> Step {
    step(Action::ReleaseHungProcess(ReleaseHungProcess { signal: Signal::Cont, allow_running_pods: false }))
}

pub fn kill(allow_running_pods: bool) -> Step {
    step(Action::ReleaseHungProcess(ReleaseHungProcess { signal: Signal::Kill, allow_running_pods }))
}

/// Evictions for two minutes.
pub fn drain() -> Step {
    drain_with(Drain::default())
}

pub fn drain_with(with: Drain) -> Step {
    Step { timeout: secs(120), ..step(Action::Drain(with)) }
}

/// The same on a node that cannot end pods, too.
pub fn drain_all_the_same() -> Step {
    drain_with(Drain { ignore_runtime_hang: true, ..Drain::default() })
}

/// A pod that a controller makes again elsewhere, and that ends within ten seconds.
pub fn workload(name: &str) -> Workload {
    Workload::new(pod(name), secs(10))
}

/// To a remediator of this kind, for half an hour.
pub fn hand_off(kind: &str) -> Step {
    let remediation_template = TemplateRef {
        api_version: "remediator.example/v1".into(),
        kind: format!("{kind}Template"),
        name: "automatic".into(),
        namespace: "remediators".into(),
    };
    Step { timeout: secs(1800), ..step(Action::HandOff(HandOff { remediation_template })) }
}

/// Of a node that need not be drained, for ten minutes.
pub fn reboot() -> Step {
    Step { timeout: secs(600), ..step(Action::Reboot(Reboot { require_drain: false })) }
}

/// Only of a node that is drained.
pub fn reboot_drained() -> Step {
    Step { action: Action::Reboot(Reboot::default()), ..reboot() }
}

/// By the file that kured checks for, for an hour.
pub fn mark_for_reboot() -> Step {
    Step { timeout: secs(3600), ..step(Action::MarkForReboot(MarkForReboot::default())) }
}

pub fn notify() -> Step {
    step(Action::Notify(Notify { message: Some("see the runbook".into()) }))
}

pub fn rule(name: &str, faults: &[FaultType], steps: &[Step]) -> Rule {
    Rule {
        name: name.into(),
        faults: faults.iter().copied().collect(),
        conditions: Vec::new(),
        min_severity: Severity::Low,
        namespaces: Namespaces::default(),
        matching: Matching::default(),
        min_duration: Duration::ZERO,
        steps: steps.to_vec(),
    }
}

fn window(kind: WindowType, schedule: &str) -> Window {
    Window::new(kind, schedule, Duration::from_hours(24), "UTC", BTreeSet::new()).unwrap()
}

/// A window that is open on the first day of these worlds.
pub fn today(kind: WindowType) -> Window {
    window(kind, "0 0 1 1 *")
}

/// One that opens on the second day.
pub fn tomorrow(kind: WindowType) -> Window {
    window(kind, "0 0 2 1 *")
}

/// An enforcing policy for all nodes, without narrow budgets.
pub fn policy(name: &str, rules: &[Rule]) -> Policy {
    Policy {
        name: name.into(),
        uid: format!("uid-{name}"),
        generation: 1,
        selector: Selector::default(),
        priority: 0,
        mode: Mode::Enforce,
        suspend: false,
        pause_requests: Vec::new(),
        is_broken: false,
        windows: Vec::new(),
        rules: rules.to_vec(),
        limits: Limits { max_unhealthy: Amount::Percent(100), max_in_flight: Amount::Count(5), ..Limits::default() },
        history: History { limit: 50, ttl: secs(604_800) },
    }
}

/// So many names of nodes.
pub fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("n{number:02}")).collect()
}
