//! A NodeCommand, as a decision reads it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nrh_core::snapshot::{CommandView, Snapshot};

use super::View;
use super::guard::UnreadableObject;
use super::report::owner;
use crate::NodeCommand;

/// The part that a decision reads.
pub fn view(command: &NodeCommand) -> CommandView {
    CommandView { node_uid: owner(&command.metadata), command: command.spec.command.clone(), unreadable: None }
}

/// A command that cannot be read: its node is blocked.
pub fn unreadable(meta: &ObjectMeta, why: &str) -> CommandView {
    CommandView { node_uid: owner(meta), command: None, unreadable: Some(why.to_owned()) }
}

impl View for NodeCommand {
    fn store(&self, name: &str, snapshot: &mut Snapshot) -> bool {
        put(name, view(self), snapshot)
    }

    fn store_unreadable(bad: &UnreadableObject, name: &str, snapshot: &mut Snapshot) -> bool {
        put(name, unreadable(&bad.metadata, &bad.why), snapshot)
    }

    fn remove(name: &str, snapshot: &mut Snapshot) -> bool {
        snapshot.commands.remove(name).is_some()
    }
}

fn put(name: &str, view: CommandView, snapshot: &mut Snapshot) -> bool {
    let old = snapshot.commands.insert(name.to_owned(), view);
    old.as_ref() != snapshot.commands.get(name)
}
