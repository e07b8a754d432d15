//! The parts of a `NodeCommand`: the command for the decision, and the rest for the next write.

use kube::ResourceExt;
use tokio::time::Instant;

use super::State;
use super::fold::{Changed, Ingest};
use super::guard::Guardable;
use nrh_api::NodeCommand;
use nrh_api::view::View;
use nrh_api::view::guard::UnreadableObject;
use nrh_api::view::report::owner;

/// The part of a `NodeCommand` that its next write needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandRow {
    /// Uid of the object.
    pub uid: String,
    /// Uid of the Node that owns it.
    pub owner: Option<String>,
    /// The number of the last requested check.
    pub check_sequence: Option<u64>,
    /// The last request for a fresh check that the controller passed on.
    pub check_requested: Option<String>,
}

impl CommandRow {
    /// The row of this object.
    pub fn of(command: &NodeCommand) -> Self {
        Self {
            uid: command.uid().unwrap_or_default(),
            owner: owner(&command.metadata),
            check_sequence: command.spec.check_sequence,
            check_requested: command.spec.check_requested.clone(),
        }
    }
}

impl Ingest for NodeCommand {
    const KIND: &'static str = "NodeCommand";

    fn put(self, key: &str, state: &mut State, _now: Instant) -> Changed {
        state.commands.insert(key.to_owned(), CommandRow::of(&self));
        Changed::when(self.store(key, &mut state.snapshot))
    }

    fn forget(key: &str, state: &mut State) -> Changed {
        state.commands.remove(key);
        Changed::when(Self::remove(key, &mut state.snapshot))
    }
}

impl Guardable for NodeCommand {
    const CONSEQUENCE: &'static str = "nothing starts on the node until it can be read";

    fn unread(bad: &UnreadableObject, key: &str, state: &mut State, _now: Instant) -> Changed {
        let uid = bad.metadata.uid.clone().unwrap_or_default();
        let row = CommandRow { uid, owner: owner(&bad.metadata), ..CommandRow::default() };
        state.commands.insert(key.to_owned(), row);
        Changed::when(Self::store_unreadable(bad, key, &mut state.snapshot))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use nrh_api::view::guard::Guarded;
    use nrh_core::examples::command;

    fn object(version: u64, spec: &serde_json::Value) -> Guarded<NodeCommand> {
        Guarded::read(&json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeCommand",
            "metadata": {"name": "w1", "uid": "c", "resourceVersion": version.to_string(),
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "w1", "uid": "u"}]}, "spec": spec}))
    }

    #[test]
    fn a_command_is_news_for_the_decision_and_a_request_for_a_check_is_not() {
        let (mut state, now) = (State::default(), Instant::now());
        assert_eq!(object(1, &json!({"command": command("op-1")})).fold(&mut state, now), Changed::Matters);
        let view = &state.snapshot.commands["w1"];
        assert_eq!(view.command.as_ref().map(|command| command.operation_id.as_str()), Some("op-1"));
        assert_eq!(view.node_uid.as_deref(), Some("u"));
        let asked = json!({"command": command("op-1"), "checkSequence": 3, "checkRequested": "a"});
        assert_eq!(object(2, &asked).fold(&mut state, now), Changed::Nothing);
        let row = CommandRow {
            uid: "c".into(),
            owner: Some("u".into()),
            check_sequence: Some(3),
            check_requested: Some("a".into()),
        };
        assert_eq!(state.commands["w1"], row);
        assert_eq!(object(3, &json!({"checkSequence": 3})).fold(&mut state, now), Changed::Matters);
        assert_eq!(state.snapshot.commands["w1"].command, None);
        assert_eq!(object(3, &json!({})).fold_deletion(&mut state), Changed::Matters);
        assert!(state.snapshot.commands.is_empty() && state.commands.is_empty());
    }

    #[test]
    fn one_that_cannot_be_read_holds_its_node_until_it_can_be() {
        let (mut state, now) = (State::default(), Instant::now());
        let strange = json!({"command": {"action": "ReformatDisk"}});
        assert_eq!(object(1, &strange).fold(&mut state, now), Changed::Matters);
        let view = &state.snapshot.commands["w1"];
        assert!(view.unreadable.as_ref().is_some_and(|why| why.contains("ReformatDisk")), "{view:?}");
        assert_eq!(state.unread.count("NodeCommand"), 1);
        assert_eq!(object(2, &json!({})).fold(&mut state, now), Changed::Matters);
        assert_eq!((state.snapshot.commands["w1"].unreadable.as_ref(), state.unread.count("NodeCommand")), (None, 0));
    }
}
