//! The functional core: every judgement of the project, as plain functions over plain values.
//!
//! Nothing in here names a Kubernetes client, an async runtime, a clock, the environment or a source of
//! randomness; time, identity and configuration are arguments. `tests/repository/architecture.rs` enforces it.
//!
//! ```text
//! node:     observations ─► diagnose ─► fault tracker (confirm, clear) ─► restart_safety ─► report
//! cluster:  Snapshot ─► engine (policy · budget · remediation) ─► Plan { effects, blocked, views, next check }
//! ```

pub mod action;
pub mod blocked;
pub mod budget;
pub mod command;
pub mod condition;
pub mod condition_history;
pub mod condition_type;
mod context;
pub mod diagnose;
pub mod drain;
pub mod engine;
#[cfg(any(test, feature = "testing"))]
pub mod examples;
pub mod external_condition;
pub mod fault;
pub mod faults;
pub mod finding;
pub mod flap;
pub mod flaps;
pub mod go_duration;
pub mod hand_off;
pub mod human_duration;
pub mod kubelet;
pub mod manual;
pub mod matching;
pub mod moment;
pub mod node_condition;
pub mod observation;
pub mod plan;
pub mod policy;
mod procedure;
pub mod reason;
pub mod reboot;
pub mod remediation;
pub mod restart_safety;
pub mod snapshot;
pub mod sorted_cursor;
pub mod stuck;
pub mod taint;
pub mod text;
pub mod thresholds;
pub mod tracker;
pub mod tri_state;
pub mod version;
pub mod window;
