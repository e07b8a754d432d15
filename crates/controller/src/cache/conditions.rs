//! Conditions of Nodes: one copy for all Nodes with equal conditions.
//!
//! A fleet has thousands of Nodes, and few distinct sets of conditions: apart from the few faulty Nodes they differ only in
//! times, which are not kept. So a Node costs one pointer, and the cache can keep all types: a policy that names a new one need
//! not wait for the next heartbeat of each Node.

use std::collections::BTreeSet;
use std::sync::Arc;

/// Values that many nodes share, such as all distinct sets of conditions of Nodes: one copy of each.
#[derive(Debug)]
pub struct Shared<T: ?Sized>(BTreeSet<Arc<T>>);

impl<T: ?Sized + Ord> Default for Shared<T> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<T: ?Sized + Ord> Shared<T> {
    /// The shared copy of this value.
    pub fn keep(&mut self, held: Arc<T>) -> Arc<T> {
        if let Some(known) = self.0.get(&held) {
            return Arc::clone(known);
        }
        self.0.insert(Arc::clone(&held));
        held
    }

    /// Releases the value of a node, and forgets it where no other node uses it.
    pub fn release(&mut self, held: Arc<T>) {
        let Some(known) = self.0.take(&held) else { return };
        drop(held);
        if Arc::strong_count(&known) > 1 {
            self.0.insert(known);
        }
    }

    /// Forgets all values without a user.
    pub fn forget_unused(&mut self) {
        self.0.retain(|held| Arc::strong_count(held) > 1);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
