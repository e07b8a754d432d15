//! One step of a rule.

#![expect(clippy::doc_markdown, reason = "these sentences are what `kubectl explain` prints")]

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::{Drain, Taint};
use crate::HumanDuration;
use nrh_core::action::{HandOff, MarkForReboot, Reboot, Restart, Signal};
use nrh_core::policy::{ActionType, ApprovalMode, Mode, OnFailure};

/// One step of a rule.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("(self.action == 'ReleaseHungProcess') == has(self.releaseHungProcess)").message("releaseHungProcess is needed with action ReleaseHungProcess, and with no other"))]
#[x_kube(validation = Rule::new("!has(self.restart) || self.action in ['RestartKubelet', 'RestartRuntime']").message("restart goes with actions RestartKubelet and RestartRuntime"))]
#[x_kube(validation = Rule::new("!has(self.cordon) || self.action == 'Cordon'").message("cordon goes with action Cordon"))]
#[x_kube(validation = Rule::new("!has(self.taint) || self.action == 'Taint'").message("taint goes with action Taint"))]
#[x_kube(validation = Rule::new("!has(self.drain) || self.action == 'Drain'").message("drain goes with action Drain"))]
#[x_kube(validation = Rule::new("(self.action == 'HandOff') == has(self.handOff)").message("handOff is needed with action HandOff, and with no other"))]
#[x_kube(validation = Rule::new("self.action != 'HandOff' || self.maxAttempts == 1").message("maxAttempts: HandOff is tried once, since its remediator tries by itself"))]
#[x_kube(validation = Rule::new("!has(self.handOff) || !self.handOff.remediationTemplate.apiVersion.matches('^([^/]*[.])?(k8s|kubernetes|runtimehealth)[.]io/')").message("handOff.remediationTemplate.apiVersion: expected the group of a remediator, not one of Kubernetes or of this project"))]
#[x_kube(validation = Rule::new("!has(self.reboot) || self.action == 'Reboot'").message("reboot goes with action Reboot"))]
#[x_kube(validation = Rule::new("self.action != 'Reboot' || has(self.approval)").message("approval: Reboot ends every pod of the node, so it has no default: write approval: Manual or approval: Automatic"))]
#[x_kube(validation = Rule::new("self.action != 'Reboot' || self.maxAttempts == 1").message("maxAttempts: Reboot is tried once"))]
#[x_kube(validation = Rule::new("self.action != 'Reboot' || duration(self.timeout) >= duration('5m')").message("timeout: a machine needs time to boot, expected at least 5m with Reboot"))]
#[x_kube(validation = Rule::new("!has(self.markForReboot) || self.action == 'MarkForReboot'").message("markForReboot goes with action MarkForReboot"))]
#[x_kube(validation = Rule::new("self.action != 'MarkForReboot' || has(self.approval)").message("approval: MarkForReboot has another tool end every pod of the node, so it has no default: write approval: Manual or approval: Automatic"))]
#[x_kube(validation = Rule::new("self.action != 'MarkForReboot' || self.maxAttempts == 1").message("maxAttempts: MarkForReboot is tried once"))]
#[x_kube(validation = Rule::new("self.action != 'MarkForReboot' || duration(self.timeout) >= duration('15m')").message("timeout: the tool that reboots the node checks for the file now and then, expected at least 15m with MarkForReboot"))]
#[x_kube(validation = Rule::new("!has(self.notify) || self.action == 'Notify'").message("notify goes with action Notify"))]
#[x_kube(validation = Rule::new("!has(self.approvalTimeout) || (has(self.approval) && self.approval == 'Manual')").message("approvalTimeout needs approval: Manual"))]
#[x_kube(validation = Rule::new("!has(self.approval) || self.approval != 'Manual' || self.action != 'Notify'").message("approval: Notify needs no approval"))]
#[x_kube(validation = Rule::new("duration(self.verify.stableFor) < duration(self.timeout)").message("verify.stableFor must be shorter than timeout, or the step could never succeed"))]
pub struct PolicyStep {
    /// The action. Cordon marks the node unschedulable until the remediation ends, or for longer with
    /// `cordon.quarantineFor`. Taint sets a taint that is removed when the remediation ends. Drain evicts the pods of a
    /// node that an earlier Cordon has marked, within their PodDisruptionBudgets. DeletePod deletes the stuck DaemonSet
    /// pod. CleanupOrphans removes the confirmed orphan. ThawCgroup thaws the frozen container in creation.
    /// ReleaseHungProcess signals the one hung process. RestartKubelet and RestartRuntime restart a systemd unit. Reboot reboots the node that an earlier Cordon has
    /// marked and a Drain has emptied. MarkForReboot creates the file on the node by which another tool (kured) drains
    /// and reboots it. HandOff hands the node to a tool that reboots or replaces it. Notify notifies people and is the
    /// last step.
    pub action: ActionType,
    /// Parameters of ReleaseHungProcess.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_hung_process: Option<ReleaseHungProcess>,
    /// Parameters of RestartKubelet and RestartRuntime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// Parameters of Cordon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cordon: Option<Cordon>,
    /// Parameters of Taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taint: Option<Taint>,
    /// Parameters of Drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// Parameters of Reboot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot: Option<Reboot>,
    /// Parameters of MarkForReboot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark_for_reboot: Option<MarkForReboot>,
    /// Parameters of HandOff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hand_off: Option<HandOff>,
    /// Parameters of Notify.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<Notify>,
    /// How long a step may take until the fault is verified as resolved (for Drain: until the last pod has ended).
    /// After that the step fails. 1s to 24h; at least 5m for Reboot and 15m for MarkForReboot. Default 3m.
    #[serde(default = "default_timeout")]
    pub timeout: HumanDuration,
    /// How often the step may be tried for one fault. 1 to 5. Default 1. A request that the API server rejects changes
    /// nothing and costs no attempt; after three of them no further step but Notify follows.
    #[serde(default = "default_attempts")]
    #[schemars(range(min = 1, max = 5))]
    pub max_attempts: u32,
    /// Minimum time between the end of one attempt and the start of the next: a duration from 1s to 24h. Default 1m.
    /// After a request that the API server rejects at least 10s, also before the next step.
    #[serde(default = "default_cooldown")]
    pub cooldown: HumanDuration,
    /// When the step counts as successful.
    #[serde(default)]
    pub verify: Verify,
    /// What follows when the last attempt has failed: Continue (default) executes the next step; Stop executes no
    /// further step but Notify.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Automatic (default; Reboot and MarkForReboot have no default) needs no approval. Manual waits until a person has
    /// approved this attempt (`nrh approve`). The node's remediation keeps its slot meanwhile.
    // No default in the schema: a controller of before, to which the API server would show it, could read no policy any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalMode>,
    /// With approval Manual, how long to wait for the approval: a duration from 1s to 24h. Default 1h. After that only
    /// Notify follows, if the rule has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_timeout: Option<HumanDuration>,
    /// Enforce (default): it is done. DryRun: in its turn it is recorded in the remediation, and the next step follows at once, as if
    /// it were not there. For a step that is new; a whole policy has a mode of its own.
    #[serde(default = "default_step_mode")]
    pub mode: Mode,
}

const fn default_step_mode() -> Mode {
    Mode::Enforce
}

pub(crate) fn default_timeout() -> HumanDuration {
    HumanDuration::from_secs(180)
}

const fn default_attempts() -> u32 {
    1
}

fn default_cooldown() -> HumanDuration {
    HumanDuration::from_secs(60)
}

/// Parameters of ReleaseHungProcess.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReleaseHungProcess {
    /// SIGCONT resumes a stopped process. SIGKILL ends it; SIGKILL of a shim ends every container of its pod.
    pub signal: Signal,
    /// Allow to kill a shim whose pod is not being deleted. Default false.
    #[serde(default)]
    pub allow_running_pods: bool,
}

/// Parameters of Cordon.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cordon {
    /// How long the node stays cordoned, from the cordon on, if no step has resolved the fault: a duration from 1s to
    /// 24h. After an hour the steps are tried again, and a new cordon starts the time again. The node takes no slot
    /// meanwhile (`limits.maxUnhealthy` bounds how many there are), and its other faults are remediated.
    pub quarantine_for: HumanDuration,
    /// How long the fault must be absent, by clear checks, before such a node is uncordoned early: a duration from 1s
    /// to 24h. Default 5m. A node whose fault a step resolves is uncordoned at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy_delay: Option<HumanDuration>,
}

/// Parameters of Notify.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Notify {
    /// Text to add to the facts, such as the page of a runbook. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub message: Option<String>,
}

/// When a step counts as successful: by the probe's clear check, never by an exit code.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Verify {
    /// How long the fault must be absent, by clear checks: a duration from 1s to 24h, shorter than the timeout of the
    /// step. Default 5s.
    #[serde(default = "default_verify")]
    pub stable_for: HumanDuration,
}

fn default_verify() -> HumanDuration {
    HumanDuration::from_secs(5)
}

impl Default for Verify {
    fn default() -> Self {
        Self { stable_for: default_verify() }
    }
}
