//! What a fault is about, and what an act would touch: pods, containers, processes by what identifies them.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::tri_state::TriState;

/// A pod, by the three things that identify it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodRef {
    /// Namespace of the pod.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Name of the pod.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Uid of the pod: a pod of the same name with another uid is another pod.
    #[schemars(length(max = 64))]
    pub uid: String,
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What kind of object a fault is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum SubjectKind {
    /// A container of a pod.
    Container,
    /// A pod sandbox.
    Sandbox,
    /// A shim process that belongs to no living object.
    Shim,
    /// A CNI plugin process.
    NetworkPlugin,
    /// The container runtime of the node.
    Runtime,
    /// The kubelet of the node.
    Kubelet,
    /// A pod as the API shows it.
    Pod,
    /// The probe of the node.
    Probe,
    /// A file system, by the folders that lie in it.
    Filesystem,
    /// A process that plays a part in the runtime's or the kubelet's work.
    Process,
    /// The node itself.
    Host,
    /// A condition of the Node, by its type.
    Condition,
}

/// A daemon of the node that a step may have restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Daemon {
    /// The kubelet.
    Kubelet,
    /// The container runtime.
    Runtime,
}

impl Daemon {
    /// Its name in a sentence.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kubelet => "kubelet",
            Self::Runtime => "runtime",
        }
    }
}

/// How a condition of a Node stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConditionStatus {
    /// Its status: True, False or Unknown.
    pub status: TriState,
    /// Its reason, as whoever wrote it put it; may be empty.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub reason: String,
}

/// The object a fault is about. Identity lives here, never in a pid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    /// What kind of object it is, as a word from a closed set.
    pub kind: SubjectKind,
    /// Full id under the runtime (64 hex digits), where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub id: Option<String>,
    /// Name of the container in its pod, or of the plugin, unit or runtime; type of the condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 316))]
    pub name: Option<String>,
    /// The pod it belongs to, where it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// Id of the sandbox it belongs to (or belonged to: an orphan's is missing from the runtime).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub sandbox_id: Option<String>,
    /// Path of the file whose lock it holds, where it holds one that others wait for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub lock: Option<String>,
    /// Status of the condition whose type is `name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<ConditionStatus>,
}

impl Subject {
    /// A subject of this kind with nothing else known yet.
    pub const fn of(kind: SubjectKind) -> Self {
        Self { kind, id: None, name: None, pod: None, sandbox_id: None, lock: None, condition: None }
    }

    /// A subject of this kind that has a name.
    pub fn named(kind: SubjectKind, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..Self::of(kind) }
    }
}

impl fmt::Display for Subject {
    /// One short phrase for tables and events: `container log of kube-system/fluentd-x7k2p`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            SubjectKind::Container => "container",
            SubjectKind::Sandbox => "sandbox",
            SubjectKind::Shim => "shim",
            SubjectKind::NetworkPlugin => "network plugin",
            SubjectKind::Runtime => "runtime",
            SubjectKind::Kubelet => "kubelet",
            SubjectKind::Pod => "pod",
            SubjectKind::Probe => "probe",
            SubjectKind::Filesystem => "file system of",
            SubjectKind::Process => "process",
            SubjectKind::Host => "host",
            SubjectKind::Condition => "condition",
        };
        f.write_str(kind)?;
        match (&self.name, &self.id) {
            (Some(name), _) => write!(f, " {name}")?,
            (None, Some(id)) => write!(f, " {}", id.get(..12).unwrap_or(id))?,
            (None, None) => {}
        }
        if let Some(pod) = &self.pod {
            if self.kind == SubjectKind::Pod {
                write!(f, " {pod}")?;
            } else {
                write!(f, " of {pod}")?;
            }
        }
        if let Some(condition) = &self.condition {
            write!(f, "={}", condition.status.as_str())?;
        }
        if let Some(lock) = &self.lock {
            write!(f, " holding {lock}")?;
        }
        Ok(())
    }
}

/// The part a process plays, proven from its executable, arguments and parent, never from its name alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Role {
    /// `containerd-shim-runc-v2` or its kin; with CRI-O, `conmon`.
    Shim,
    /// `runc create` and its kin, a child of a shim or of the runtime.
    RuntimeClient,
    /// A plugin binary from the CNI directory, a child of the runtime.
    NetworkPlugin,
    /// `runc init` and its kin: the first process of a container in creation, which is not yet the container's own program.
    ContainerInit,
}

/// One process at one moment: a pid means nothing without the start time beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessRef {
    /// Role of the process: `Shim`, `RuntimeClient` (such as `runc create`), `NetworkPlugin` or `ContainerInit` (`runc init`).
    pub role: Role,
    /// Process id in the node's own PID namespace.
    #[schemars(range(min = 2, max = 4_194_304))]
    pub pid: i32,
    /// Start time in clock ticks since boot (field 22 of /proc/PID/stat).
    pub start_ticks: u64,
    /// Scheduler state letter (R, S, D, T, Z …) at the last check.
    #[schemars(length(max = 1))]
    pub state: String,
    /// Kernel function it waits in, if the kernel reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub wchan: Option<String>,
    /// Command name (at most 15 bytes, as the kernel keeps it).
    #[schemars(length(max = 64))]
    pub command: String,
}

/// What an act would touch: resolved again by the executor on the node, which has the last word.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// The one process that holds everything up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessRef>,
    /// Full id of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub container_id: Option<String>,
    /// Full id of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub sandbox_id: Option<String>,
    /// The pod, by namespace, name and uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// File whose lock the process holds. A process that has released it is left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub lock: Option<String>,
    /// Frozen control group of the process: its path below the root of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub control_group: Option<String>,
}

impl Target {
    /// Whether the process is CRI-O's conmon. CRI-O asks it nothing at its start.
    pub fn is_conmon(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.role == Role::Shim && process.command == "conmon")
    }

    /// Whether it is the same object still, by what does not change of itself. What one of them does not say is no difference: a
    /// list may have failed.
    pub fn is_same(&self, other: &Self) -> bool {
        fn agree<T: PartialEq + ?Sized>(one: Option<&T>, other: Option<&T>) -> bool {
            one.is_none() || other.is_none() || one == other
        }
        let life =
            |target: &Self| target.process.as_ref().map(|process| (process.role, process.pid, process.start_ticks));
        let pod = |target: &Self| target.pod.as_ref().map(|pod| pod.uid.clone());
        agree(life(self).as_ref(), life(other).as_ref())
            && agree(self.container_id.as_ref(), other.container_id.as_ref())
            && agree(self.sandbox_id.as_ref(), other.sandbox_id.as_ref())
            && agree(pod(self).as_ref(), pod(other).as_ref())
            && agree(self.lock.as_ref(), other.lock.as_ref())
            && agree(self.control_group.as_ref(), other.control_group.as_ref())
    }
}
