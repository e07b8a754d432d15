//! What a person does in the world of a timeline: to start a step by hand, to cancel.

use super::World;
use nrh_core::episode::{Cancel, Wish};
use nrh_core::policy::Mode;
use nrh_core::wish::OpenWish;

impl World {
    /// A person writes a start by hand, for the machine that has the node's name now.
    pub fn ask(&mut self, name: &str, node: &str, policy: &str, wish: Wish) {
        self.version += 1;
        let open = OpenWish {
            name: name.to_owned(),
            identity: (format!("uid-{name}"), self.version.to_string()),
            node: node.to_owned(),
            node_uid: self.nodes.get(node).map(|node| node.view.uid.clone()).unwrap_or_default(),
            policy: policy.to_owned(),
            mode: Mode::Enforce,
            wish,
            cancel: None,
            deleting: false,
            asked_at: self.now,
            message: String::new(),
        };
        self.wishes.insert(name.to_owned(), open);
    }

    /// A person cancels what is under way on the node, or waits to begin: its name.
    pub fn cancel(&mut self, node: &str, cancel: &Cancel) -> Option<String> {
        self.version += 1;
        let version = self.version.to_string();
        let live = self.episodes.values_mut().find(|episode| episode.node == node && episode.is_live());
        if let Some(episode) = live {
            episode.cancel.get_or_insert_with(|| cancel.clone());
            episode.identity = episode.identity.take().map(|(uid, _)| (uid, version));
            return Some(episode.name.clone());
        }
        let wish = self.wishes.values_mut().find(|wish| wish.node == node)?;
        wish.cancel.get_or_insert_with(|| cancel.clone());
        wish.identity.1 = version;
        Some(wish.name.clone())
    }
}
