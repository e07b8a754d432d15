//! Everything that needs real nodes: the bed itself, each fault as it is injected, what the operator sees of it, and what it does.
//!
//! A bed takes a minute to come up and most tests wait for clocks, so tests share beds, each on nodes and names of its own:
//!
//! ```text
//! sick    faults, sight: the operator by the shipped manifests, in dry run; one well node for the controller
//! units   restarts, units: nodes under systemd; the operator with policies that restart
//! hostile hostile: the operator by the shipped manifests, in dry run; nodes whose pods and vendors do what they like
//! healed  healing: the bed's own promises, images, the demo's acts, one after the other
//! removed uninstall: the operator is removed in the midst of a remediation, and installed again
//! ```
//! Three beds stand at a time. All tests have to run at once (`--test-threads=32`), or a shared bed goes down and comes up again between
//! two of them.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod bed;
mod faults;
mod healing;
mod hostile;
mod images;
mod recorded;
mod restarts;
mod shared;
mod sick;
mod sight;
mod uninstall;
mod units;
