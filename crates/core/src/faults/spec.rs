//! The properties of a kind of fault. The engine and the readers ask for these properties and name no kind.

use std::time::Duration;

use crate::condition_type::ConditionType;
use crate::fault::{Daemon, Fault, FaultGroup, Role, Severity, Subject, SubjectKind, Target};
use crate::thresholds::{Bound, Confirm, Thresholds};

/// Where a fault appears and where its end appears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShowsIn {
    /// In the report of the probe. The controller finds all other faults.
    Report,
    /// In the heartbeats of the probe.
    Heartbeats,
    /// In the pod that the fault is about.
    Pod,
    /// In what the kubelet writes into its Node when it starts.
    KubeletStart,
    /// In the condition `Ready` of the Node.
    Ready,
    /// In a condition of the Node that another tool writes.
    Condition,
    /// In how often the state of the node has changed.
    History,
}

/// What cannot be deleted while the fault is present. A deletion would hang as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Nothing.
    Nothing,
    /// The pod that the fault is about.
    OwnPod,
    /// That pod, and each pod that waits for the network.
    OwnPodAndWaiters,
}

/// One value for each daemon that can be restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByDaemon<T> {
    /// The value of the kubelet.
    pub kubelet: T,
    /// The value of the container runtime.
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

/// That a remedy helps, or the sentence that says why it does not.
pub type Helps<T = ()> = Result<T, &'static str>;

/// What can help against a fault, as properties. An action asks for the property that it needs.
#[derive(Clone, Copy, Debug)]
pub struct Remedy {
    /// The end of the one process that hangs.
    pub hung_process: Helps<Role>,
    /// The removal of what is left over: an orphan container, or a shim.
    pub leftover: Helps,
    /// The thaw of the control group that it names.
    pub thaw: Helps,
    /// The deletion of a pod that is created again.
    pub new_pod: Helps,
    /// A restart of a daemon.
    pub restart: fn(&Subject) -> ByDaemon<Helps>,
    /// Fewer pods on the node.
    pub fewer_pods: Helps,
    /// A reboot. Right before it, the node itself can check whether the fault is still present.
    pub new_boot: Helps,
    /// Another machine, or a reboot by another tool.
    pub other_machine: Helps,
}

pub(super) const NOT_WORSE: Helps = Err("new pods do not make it worse");
pub(super) const TOO_SMALL: Helps = Err("it does not merit a reboot or another machine");

pub(super) const NO_RESTART: ByDaemon<Helps> = ByDaemon {
    kubelet: Err("a restart of the kubelet does not end it"),
    runtime: Err("a restart of the runtime does not end it"),
};

impl Remedy {
    /// Fewer pods or another machine helps.
    pub(super) const USUAL: Self = Self {
        hung_process: Err("it names no hung process"),
        leftover: Err("it is not about an orphan"),
        thaw: Err("it names no frozen control group"),
        new_pod: Err("it is not about a DaemonSet's pod"),
        restart: |_| NO_RESTART,
        fewer_pods: Ok(()),
        new_boot: Err("the node cannot check such a fault right before a reboot, so it is not rebooted for it"),
        other_machine: Ok(()),
    };
    /// Nothing helps: the fault is small, and pods do not make it worse.
    pub(super) const NONE: Self = Self { fewer_pods: NOT_WORSE, other_machine: TOO_SMALL, ..Self::USUAL };
}

/// The general properties of a kind of fault.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a property of its own")]
pub struct FaultSpec {
    /// The group by which policies name the fault.
    pub group: Option<FaultGroup>,
    /// The usual severity.
    pub severity: Severity,
    /// The worst severity. A node may report a lower one, never a higher one.
    pub worst_severity: Severity,
    /// The usual subject.
    pub subject: SubjectKind,
    /// Where the fault appears.
    pub shows_in: ShowsIn,
    /// The condition of the probe that the fault turns False.
    pub condition: Option<ConditionType>,
    /// Whether the fault comes and goes slowly or lasts for days. The probe checks nothing more often because of it.
    pub lasting: bool,
    /// What confirms the fault. `probe.yaml` can change it.
    pub confirm: &'static [&'static Confirm],
    /// The other thresholds.
    pub bounds: &'static [&'static Bound],
    /// Usual time from the first sign to `Confirmed`, where that is not what the first of `confirm` takes. Late or failed checks
    /// make it longer.
    pub time_to_confirm: Option<fn(&Thresholds) -> Duration>,
    /// Whether a restart does harm while the fault is present.
    pub restart_harms: fn(&Fault) -> ByDaemon<bool>,
    /// Whether the runtime as a whole does not answer. Nobody can then say what else hangs in it.
    pub runtime_unresponsive: bool,
    /// The daemon that is down.
    pub down: Option<Daemon>,
    /// Whether the target of an action is named.
    pub names: fn(&Target) -> bool,
    /// Whether pods of the node cannot end.
    pub pods_cannot_end: bool,
    /// Whether the fault keeps pods from making progress, as the API shows it.
    pub holds_up_pods: bool,
    /// Which pods cannot be deleted.
    pub holds: Holds,
    /// What can help.
    pub remedy: Remedy,
}

impl FaultSpec {
    /// The properties of most faults, with a group and a severity that is both the usual and the worst.
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
            time_to_confirm: None,
            restart_harms: |_| ByDaemon { kubelet: false, runtime: false },
            runtime_unresponsive: false,
            pods_cannot_end: false,
            holds_up_pods: false,
            holds: Holds::Nothing,
            remedy: Remedy::USUAL,
        }
    }
}
