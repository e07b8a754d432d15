//! A NodeCommand, as a decision reads it.

use nrh_core::snapshot::{CommandView, Snapshot};

use super::View;
use super::guard::UnreadableObject;
use super::report::owner;
use crate::NodeCommand;

/// The part that a decision reads.
pub fn view(command: &NodeCommand) -> CommandView {
    CommandView { node_uid: owner(&command.metadata), command: command.spec.command.clone(), unreadable: None }
}

impl View for NodeCommand {
    fn store(&self, name: &str, snapshot: &mut Snapshot) -> bool {
        put(name, view(self), snapshot)
    }

    fn store_unreadable(bad: &UnreadableObject, name: &str, snapshot: &mut Snapshot) -> bool {
        let node_uid = owner(&bad.metadata);
        put(name, CommandView { node_uid, command: None, unreadable: Some(bad.why.clone()) }, snapshot)
    }

    fn remove(name: &str, snapshot: &mut Snapshot) -> bool {
        snapshot.commands.remove(name).is_some()
    }
}

fn put(name: &str, view: CommandView, snapshot: &mut Snapshot) -> bool {
    let old = snapshot.commands.insert(name.to_owned(), view);
    old.as_ref() != snapshot.commands.get(name)
}
