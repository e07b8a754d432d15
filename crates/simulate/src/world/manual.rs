//! What a person does in the world of a timeline: manual requests, approvals and cancellations.

use super::World;
use nrh_core::manual::OpenManualRequest;
use nrh_core::policy::Mode;
use nrh_core::remediation::{Approval, Cancel, ManualRequest, Phase, Remediation, StepRecord};

impl World {
    /// A person makes a manual request for the machine that currently has the node's name.
    pub fn ask(&mut self, name: &str, node: &str, policy: &str, manual: ManualRequest) {
        self.version += 1;
        let open = OpenManualRequest {
            name: name.to_owned(),
            identity: (format!("uid-{name}"), self.version.to_string()),
            node: node.to_owned(),
            node_uid: self.nodes.get(node).map(|node| node.view.uid.clone()).unwrap_or_default(),
            policy: policy.to_owned(),
            mode: Mode::Enforce,
            manual,
            cancel: None,
            deleting: false,
            asked_at: self.now,
            message: String::new(),
        };
        self.manual_requests.insert(name.to_owned(), open);
    }

    /// A person approves the step of the node's remediation that waits for it. Returns the step.
    pub fn approve(&mut self, node: &str, by: &str) -> Option<StepRecord> {
        let awaits =
            |remediation: &&mut Remediation| remediation.node == node && remediation.phase == Phase::AwaitingApproval;
        let remediation = self.remediations.values_mut().find(awaits)?;
        let step = remediation.current_step()?.clone();
        remediation.approval = Some(Approval { approved_by: by.to_owned(), operation_id: step.operation_id.clone() });
        Some(step)
    }

    /// A person cancels the remediation or the waiting manual request of the node. Returns its name.
    pub fn cancel(&mut self, node: &str, cancel: &Cancel) -> Option<String> {
        self.version += 1;
        let version = self.version.to_string();
        let live = self.remediations.values_mut().find(|remediation| remediation.node == node && remediation.is_live());
        if let Some(remediation) = live {
            remediation.cancel.get_or_insert_with(|| cancel.clone());
            remediation.identity = remediation.identity.take().map(|(uid, _)| (uid, version));
            return Some(remediation.name.clone());
        }
        let manual = self.manual_requests.values_mut().find(|manual| manual.node == node)?;
        manual.cancel.get_or_insert_with(|| cancel.clone());
        manual.identity.1 = version;
        Some(manual.name.clone())
    }
}
