//! What a person may write into a remediation: that it is to end, and, where the person has opened it, what is to be done.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Remediation, RemediationFault};
use crate::fault::FaultType;
use crate::policy::{ActionType, Policy};

/// A person cancels a remediation: no further step, its changes to the node are cleaned up, and nothing starts on the
/// node for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cancel {
    /// Who cancels: your own name, as `kubectl auth whoami` prints it. The API server refuses any other.
    #[schemars(length(min = 1, max = 512))]
    pub cancelled_by: String,
    /// Why, in one sentence for people who read the remediation later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub reason: Option<String>,
}

impl Cancel {
    /// Who and why, as it follows on what was done to what: `by ann: the node is being looked at`.
    pub fn by_whom(&self) -> String {
        by_whom(&self.cancelled_by, self.reason.as_deref())
    }
}

/// What a person wants done: one kind of action on one fault of the node. What that touches is for the probe to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManualRequest {
    /// Who wants it.
    pub requested_by: String,
    /// Kind of the fault.
    pub fault: FaultType,
    /// Id of the fault, where the node has several of that kind.
    pub fault_id: Option<String>,
    /// What is to be done first.
    pub action: ActionType,
    /// Generation of the policy that the person has read: what that says is agreed to, and nothing else.
    pub policy_generation: Option<i64>,
    /// Why, in one sentence.
    pub reason: Option<String>,
    /// For how long it may wait until it can begin.
    pub timeout: Duration,
}

impl ManualRequest {
    /// Who and why, as with [`Cancel::by_whom`].
    pub fn by_whom(&self) -> String {
        by_whom(&self.requested_by, self.reason.as_deref())
    }
}

fn by_whom(by: &str, reason: Option<&str>) -> String {
    reason.map_or_else(|| format!("by {by}"), |reason| format!("by {by}: {reason}"))
}

impl Remediation {
    /// Who has agreed to the next attempt, since it is the very first of a remediation that a person has started by hand, and the policy
    /// is still the one that the person has seen.
    pub fn requested_by(&self, open_fault: &RemediationFault, action: ActionType, policy: &Policy) -> Option<&str> {
        let manual = self.manual.as_ref().filter(|manual| self.steps.is_empty() && manual.action == action)?;
        if manual.policy_generation != Some(policy.generation) {
            return None;
        }
        (manual.fault == open_fault.kind).then_some(manual.requested_by.as_str())
    }

    /// Who has agreed to this operation: by approving it, or by having started the remediation by hand for it.
    pub fn approved(&self, operation_id: &str) -> Option<&str> {
        let message =
            self.approval.as_ref().filter(|yes| yes.operation_id == operation_id).map(|yes| yes.approved_by.as_str());
        message.or_else(|| {
            let manual = self.manual.as_ref()?;
            let first = self.steps.first().filter(|step| step.operation_id == operation_id)?;
            let is_its =
                first.action == manual.action && first.approved_by.as_deref() == Some(manual.requested_by.as_str());
            is_its.then_some(manual.requested_by.as_str())
        })
    }
}
