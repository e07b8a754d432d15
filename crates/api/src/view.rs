//! Objects, as a decision reads them: one rule per kind, for the controller that watches them and for commands that read them
//! once.

use nrh_core::snapshot::Snapshot;

use guard::{BoundedStatus, UnreadableObject};

pub mod command;
pub mod guard;
pub mod node;
pub mod pods;
pub mod policy;
pub mod remediation;
pub mod report;

/// A kind that a snapshot is made from. What depends on time is not stored here. Each function returns whether anything has
/// changed that a decision reads, apart from that.
pub trait View: BoundedStatus {
    /// Stores an object.
    fn store(&self, name: &str, snapshot: &mut Snapshot) -> bool;
    /// Stores that an object exists and cannot be read. It does not count as gone: it blocks its node, or starts nothing.
    fn store_unreadable(bad: &UnreadableObject, name: &str, snapshot: &mut Snapshot) -> bool;
    /// Removes an object that is gone.
    fn remove(name: &str, snapshot: &mut Snapshot) -> bool;
    /// Why an object cannot be used although it can be read.
    fn errors(&self) -> Vec<String> {
        Vec::new()
    }
}
