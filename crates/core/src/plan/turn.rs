//! What one turn of an episode comes to, as it is put together.

use super::{Effect, Held, Hold, HoldReason, Wake};
use crate::episode::Episode;

/// What one turn of an episode came to.
#[derive(Debug)]
pub(super) struct Turn {
    /// The episode after it.
    pub episode: Episode,
    /// The act on the reserved step, or the undo.
    pub effect: Option<Effect>,
    /// What is held.
    pub held: Vec<Held>,
    /// Whether a fresh look is needed to go on.
    pub look: bool,
}

impl Turn {
    pub fn new(episode: Episode) -> Self {
        Self { episode, effect: None, held: Vec::new(), look: false }
    }

    /// A no that is about the node as a whole.
    pub fn hold_node(&mut self, hold: Hold, wake: &mut Wake) {
        let (node, policy) = (self.episode.node.clone(), self.episode.policy.clone());
        self.held.push(hold.about(node, None, Some(&policy), wake));
    }

    /// A no about one of its faults.
    pub fn hold(&mut self, fault_id: &str, hold: Hold, wake: &mut Wake) {
        self.look |= hold.reason == HoldReason::StaleEvidence;
        let (node, policy) = (self.episode.node.clone(), self.episode.policy.clone());
        self.held.push(hold.about(node, Some(fault_id), Some(&policy), wake));
    }
}
