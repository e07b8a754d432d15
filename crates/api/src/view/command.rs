//! A NodeCommand, as a decision reads it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nrh_core::snapshot::CommandView;

use super::report::owner;
use crate::NodeCommand;

/// The part that a decision reads.
pub fn view(command: &NodeCommand) -> CommandView {
    CommandView { node_uid: owner(&command.metadata), order: command.spec.command.clone(), unreadable: None }
}

/// A command that cannot be read: its node is blocked.
pub fn unreadable(meta: &ObjectMeta, why: &str) -> CommandView {
    CommandView { node_uid: owner(meta), order: None, unreadable: Some(why.to_owned()) }
}
