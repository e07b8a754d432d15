//! The decision: one rule after the other, and what holds whatever happens; and the ledger, in a model of its own.
//!
//! How deep it goes is said by two variables. Without them all is tried in full.
//! - `PROPTEST_CASES`: how many random worlds are tried of each kind. Without it 10,000 are for the rules, and fewer for what
//!   takes longer to tell. What takes longest is tried as much less often as it is below 10,000, and never more often.
//! - `NRH_MODEL=small`: of the models of the ledger only the two small ones are checked.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod answers;
mod approvals;
mod beginnings;
mod budgets;
mod cleanup;
mod clocks;
mod conditions;
mod drains;
mod dry_runs;
mod endings;
mod events;
mod executors;
mod fairness;
mod flaps;
mod golden;
mod hand_offs;
mod hard_drains;
mod healing;
mod invariants;
mod kept;
mod kubelet;
mod ledger_model;
mod manual;
mod marks;
mod matching;
mod outlooks;
mod pending;
mod pods;
mod preflight;
mod properties;
mod random_worlds;
mod reboots;
mod refusals;
mod relapses;
mod restarts;
mod restless;
mod samples;
mod several;
mod storms;
mod taints;
mod told;
mod trials;
mod unreadable;
mod windows;
mod world;
