//! The five objects that people, controller and probe speak through, and their way into the core.

mod command;
pub mod condition;
mod config;
pub mod convert;
pub mod crds;
pub mod evidence;
mod flap;
pub mod health;
pub mod local;
pub mod plain;
pub mod policy;
mod remediation;
pub mod suspension;
pub mod view;
pub mod without_probe;

pub use command::{NodeCommand, NodeCommandSpec, is_check_name};
pub use condition::{ConditionReason, ConditionType};
pub use config::{CONFIG_NAME, RemediationConfig, RemediationConfigSpec, RemediationConfigStatus};
pub use flap::WrittenFlap;
pub use health::{NodeRuntimeHealth, NodeRuntimeHealthSpec, NodeRuntimeHealthStatus};
pub use nrh_core::human_duration::HumanDuration;
pub use policy::{FaultSelector, RemediationPolicy, RemediationPolicySpec, RemediationPolicyStatus};
pub use remediation::{ManualRequestSpec, NodeRemediation, NodeRemediationSpec, NodeRemediationStatus};
pub use suspension::{Suspend, Suspension};

/// Field manager of the probe, in both modes.
pub const PROBE_MANAGER: &str = "nrh-probe";
/// Field manager of the controller.
pub const CONTROLLER_MANAGER: &str = "nrh-controller";
/// Field manager of the controller where it asks a probe for a fresh check: its commands stand beside that in the same object.
pub const CHECKS_MANAGER: &str = "nrh-controller-checks";
/// Namespace of the controller, the ledger and the leader Lease (Pod Security: restricted).
pub const SYSTEM_NAMESPACE: &str = "nrh-system";
/// Namespace of the probe and the Jobs (Pod Security: privileged).
pub const NODE_NAMESPACE: &str = "nrh-node";
/// Annotation on a Node that we cordoned: the name of the remediation. Only a cordon with it is ours to remove.
pub const CORDON_ANNOTATION: &str = "runtimehealth.io/cordoned-by";
/// Annotation on a Node that carries our taint: the name of the remediation, a colon and the effect of the taint. Only that taint is
/// ours to take off.
pub const TAINT_ANNOTATION: &str = "runtimehealth.io/tainted-by";
/// Label on a Node that keeps the probe away when its value is `disabled`.
pub const PROBE_LABEL: &str = "runtimehealth.io/probe";
/// Label on Jobs, pods and remediations: the operation they belong to.
pub const OPERATION_LABEL: &str = "runtimehealth.io/operation";
/// Label on Jobs and remediations: the node (shortened by hash where it is longer than a label may be).
pub const NODE_LABEL: &str = "runtimehealth.io/node";
/// Label on remediations: the policy.
pub const POLICY_LABEL: &str = "runtimehealth.io/policy";
/// Annotation on a remediator's object that we made: the name of the remediation. The label of operations stands there too.
pub const REMEDIATION_ANNOTATION: &str = "runtimehealth.io/remediation";
/// Label of a `ClusterRole` whose rules become those of the controller, for hand-offs.
pub const HAND_OFF_LABEL: &str = "runtimehealth.io/aggregate-to-hand-off";
/// Annotation by which the medik8s contract tells a remediator that its time is over: when that was.
pub const TIMED_OUT_ANNOTATION: &str = "remediation.medik8s.io/nhc-timed-out";
/// Annotation by which the same contract names the node of an object, whatever the object is called.
pub const NODE_NAME_ANNOTATION: &str = "remediation.medik8s.io/node-name";
/// Finalizer of a remediation while it holds a slot or owes a cleanup.
pub const FINALIZER: &str = "runtimehealth.io/remediation";
/// Label by which medik8s users leave a node out of remediation.
pub const EXCLUDE_LABEL: &str = "remediation.medik8s.io/exclude-from-remediation";
/// Name of the ledger's ConfigMap.
pub const LEDGER_NAME: &str = "nrh-ledger";
/// Name of the controller's Deployment.
pub const DEPLOYMENT_NAME: &str = "nrh-controller";
/// Name of the leader's Lease.
pub const LEASE_NAME: &str = "nrh-controller";
