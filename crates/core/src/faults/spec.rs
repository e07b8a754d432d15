//! What is true of a kind of fault. The engine and the readers ask these properties and name no kind.

use std::time::Duration;

use crate::condition_type::ConditionType;
use crate::fault::{Daemon, Fault, FaultGroup, Role, Severity, Subject, SubjectKind, Target};
use crate::thresholds::{Bound, Confirm, Thresholds};

/// Where a fault shows, and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShowsIn {
    /// In what the probe reports. All others the controller finds.
    Report,
    /// In the heartbeats of the probe.
    Heartbeats,
    /// In the pod that it is about.
    Pod,
    /// In what the kubelet writes into its Node at its start.
    KubeletStart,
    /// In the condition `Ready` of the Node.
    Ready,
    /// In a condition of the Node that another tool writes.
    Condition,
    /// In how often the node's state has changed.
    History,
}

/// Whether a fault names a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodScope {
    /// Never.
    Never,
    /// Where the pod is known.
    Sometimes,
    /// There always is one: where none is named, nobody could tell which.
    Always,
}

/// What cannot be deleted while the fault is there: a deletion would hang as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Nothing.
    Nothing,
    /// The pod that it is about.
    OwnPod,
    /// That pod, and each that waits for the network.
    OwnPodAndWaiters,
}

/// One value for each daemon that can be restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByDaemon<T> {
    /// Of the kubelet.
    pub kubelet: T,
    /// Of the container runtime.
    pub runtime: T,
}

impl<T: Copy> ByDaemon<T> {
    /// The value of this daemon.
    pub const fn of(self, daemon: Daemon) -> T {
        match daemon {
            Daemon::Kubelet => self.kubelet,
            Daemon::Runtime => self.runtime,
        }
    }
}

/// That something helps, or the sentence that says why it does not.
pub type Helps<T = ()> = Result<T, &'static str>;

/// What can help against a fault, as properties. An action asks for the one that it needs.
#[derive(Clone, Copy, Debug)]
pub struct Remedy {
    /// The end of the one process that hangs.
    pub hung_process: Helps<Role>,
    /// The removal of what is left over.
    pub leftover: Helps,
    /// The deletion of a pod that comes again.
    pub new_pod: Helps,
    /// A restart of a daemon.
    pub restart: fn(&Subject) -> ByDaemon<Helps>,
    /// Fewer pods on the node.
    pub fewer_pods: Helps,
    /// A reboot, right before which the node itself can check whether the fault is still there.
    pub new_boot: Helps,
    /// Another machine, or a reboot by another tool.
    pub other_machine: Helps,
}

/// A new pod on the node does not make the fault worse.
pub(super) const NOT_WORSE: Helps = Err("new pods do not make it worse");
/// The fault is small beside a reboot.
pub(super) const TOO_SMALL: Helps = Err("it does not merit a reboot or another machine");

/// A restart of no daemon helps.
pub(super) const NO_RESTART: ByDaemon<Helps> = ByDaemon {
    kubelet: Err("a restart of the kubelet does not end it"),
    runtime: Err("a restart of the runtime does not end it"),
};

impl Remedy {
    /// Fewer pods, or another machine.
    pub(super) const USUAL: Self = Self {
        hung_process: Err("it names no hung process"),
        leftover: Err("it is not about an orphan"),
        new_pod: Err("it is not about a DaemonSet's pod"),
        restart: |_| NO_RESTART,
        fewer_pods: Ok(()),
        new_boot: Err("the node cannot check such a fault right before a reboot, so it is not rebooted for it"),
        other_machine: Ok(()),
    };
    /// None: the fault is small, and pods do not make it worse.
    pub(super) const NONE: Self = Self { fewer_pods: NOT_WORSE, other_machine: TOO_SMALL, ..Self::USUAL };
}

/// All that is said of a kind of fault in general.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a property of its own")]
pub struct FaultSpec {
    /// The group by which policies name it.
    pub group: Option<FaultGroup>,
    /// Its usual severity.
    pub severity: Severity,
    /// The most harm that it does. A node may report less, never more.
    pub worst_severity: Severity,
    /// What it is usually about.
    pub subject: SubjectKind,
    /// Where it shows.
    pub shows_in: ShowsIn,
    /// The probe's condition that it turns False.
    pub condition: Option<ConditionType>,
    /// Whether it comes and goes slowly, or stands for days: nothing is checked more often because of it.
    pub lasting: bool,
    /// What confirms it, as `probe.yaml` can change it.
    pub confirm: &'static [&'static Confirm],
    /// Its other thresholds.
    pub bounds: &'static [&'static Bound],
    /// Usual time from the first sign to `Confirmed`. Checks that come late or fail make it longer.
    pub time_to_confirm: fn(&Thresholds) -> Duration,
    /// Whether a restart does harm while it is there.
    pub restart_harms: fn(&Fault) -> ByDaemon<bool>,
    /// Whether the runtime as a whole does not answer: nobody can say then what else hangs in it.
    pub runtime_unresponsive: bool,
    /// The daemon that is down.
    pub down: Option<Daemon>,
    /// Whether what an action is to touch is named.
    pub names: fn(&Target) -> bool,
    /// Whether pods of the node cannot end.
    pub pods_cannot_end: bool,
    /// Whether it keeps pods from getting on, as the API shows it.
    pub holds_up_pods: bool,
    /// Which pods cannot be deleted.
    pub holds: Holds,
    /// What can help.
    pub remedy: Remedy,
}

impl FaultSpec {
    /// What is so of most faults, in a group and with a severity that is the usual and the worst.
    pub(super) const fn new(group: FaultGroup, severity: Severity, subject: SubjectKind) -> Self {
        Self {
            group: Some(group),
            severity,
            worst_severity: severity,
            subject,
            shows_in: ShowsIn::Report,
            down: None,
            names: |target| target.process.is_some(),
            condition: None,
            lasting: false,
            confirm: &[],
            bounds: &[],
            time_to_confirm: |_| Duration::ZERO,
            restart_harms: |_| ByDaemon { kubelet: false, runtime: false },
            runtime_unresponsive: false,
            pods_cannot_end: false,
            holds_up_pods: false,
            holds: Holds::Nothing,
            remedy: Remedy::USUAL,
        }
    }

    /// Whether it names a pod.
    pub const fn pod(&self) -> PodScope {
        match (self.group, self.subject) {
            // The pod of a leaked shim may be gone without a trace.
            (Some(FaultGroup::Pods), SubjectKind::Shim) => PodScope::Sometimes,
            (Some(FaultGroup::Pods), _) => PodScope::Always,
            _ => PodScope::Never,
        }
    }
}
