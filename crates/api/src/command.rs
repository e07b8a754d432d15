//! `NodeCommand`: one per node, of the same name; what the controller tells the node's probe to do.
//!
//! Facts go up in a `NodeRuntimeHealth`, commands come down in this object. Nodes have no right to write it, so roles alone keep a
//! node from giving commands, its own or another's.

#![expect(clippy::duplicated_attributes, reason = "each printed column names its type, and most are strings")]

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use nrh_core::command::ActionCommand;

/// The command for the probe of the node. Its answers are in the NodeRuntimeHealth of the same name.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "runtimehealth.io",
    version = "v1alpha1",
    kind = "NodeCommand",
    plural = "nodecommands",
    singular = "nodecommand",
    shortname = "ncmd",
    category = "runtimehealth",
    derive = "PartialEq",
    derive = "Default",
    doc = "The command of the controller to the probe of one node. One per node, of the same name, made when first needed. The controller alone writes it.",
    label("app.kubernetes.io/part-of", "nrh"),
    printcolumn(name = "Action", type_ = "string", json_path = ".spec.command.action"),
    printcolumn(name = "Issued", type_ = "date", json_path = ".spec.command.issuedAt"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Operation", type_ = "string", json_path = ".spec.command.operationId", priority = 1)
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeCommandSpec {
    /// The command for the probe to execute if no Job can run on the node. Absent = no command. The probe answers in
    /// `status.commandResult` of the NodeRuntimeHealth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<ActionCommand>,
    /// Requests a fresh check: a number that rises with each request. The probe reports as soon as it has checked.
    /// Absent = no request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check_sequence: Option<u64>,
    /// The last `spec.checkRequested` of the node's NodeRuntimeHealth that was passed on to the probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = CHECK_NAME))]
    pub check_requested: Option<String>,
}

/// What names a request for a fresh check. The probe repeats it in its report, so it has to arrive there as it was written.
pub(super) const CHECK_NAME: &str = "^[A-Za-z0-9][-A-Za-z0-9_.:]*$";

/// Whether this may name a request for a fresh check.
pub fn is_check_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    text.len() <= 63 && text.bytes().all(is_part) && text.starts_with(|first: char| first.is_ascii_alphanumeric())
}
