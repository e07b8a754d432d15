//! Objects, as a decision reads them.

pub mod command;
pub mod guard;
pub mod node;
pub mod pods;
pub mod report;
