//! The decision: a total function from a snapshot to what the controller does, what is blocked and why, and when to decide again.
//! Equal input gives equal output, in any order.

mod advance;
mod approval;
mod attempt;
mod cause;
mod checks;
mod cleanup;
mod decide;
mod dry_run;
mod ending;
mod limits;
mod manual_requests;
mod next_step;
mod open;
mod preflight;
mod quarantine;
mod readiness;
mod retention;
mod rounds;
mod scope;
mod select;
mod slot;
mod stabilization;
mod stale;
mod steps;
mod storm;
mod update;
mod views;

pub use decide::plan;
pub use preflight::preflight;

use decide::{Ctx, PolicyContext};
