//! The decision: a total function from a snapshot to what the controller does, what is blocked and why, and when to decide again.
//! Equal input gives equal output, in any order.

mod advance;
mod ahead;
mod approval;
mod attempt;
mod cause;
mod decide;
mod drain;
mod ending;
mod executors;
mod hand_off;
mod limits;
mod manual_requests;
mod mark;
mod open;
mod pending_reboot;
mod quarantine;
mod readiness;
mod reboot;
mod recurrence;
mod refused;
mod restart;
mod retention;
mod safeguards;
mod scope;
mod select;
mod slot;
mod stabilization;
mod stale;
mod steps;
mod storm;
mod taint;
mod update;
mod views;

pub use decide::plan;

use decide::Ctx;
