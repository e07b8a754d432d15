//! The decision: one rule after the other, and what holds whatever happens. `PROPTEST_CASES` sets how many
//! random worlds are tried of each kind; without it 10,000 are for the rules, and fewer for what takes longer to tell.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "plan/answers.rs"]
mod answers;
#[path = "plan/approvals.rs"]
mod approvals;
#[path = "plan/budgets.rs"]
mod budgets;
#[path = "plan/by_hand.rs"]
mod by_hand;
#[path = "plan/clocks.rs"]
mod clocks;
#[path = "plan/conditions.rs"]
mod conditions;
#[path = "plan/drains.rs"]
mod drains;
#[path = "plan/dry_runs.rs"]
mod dry_runs;
#[path = "plan/endings.rs"]
mod endings;
#[path = "plan/events.rs"]
mod events;
#[path = "plan/flaps.rs"]
mod flaps;
#[path = "plan/hand_offs.rs"]
mod hand_offs;
#[path = "plan/hard_drains.rs"]
mod hard_drains;
#[path = "plan/healing.rs"]
mod healing;
#[path = "plan/invariants.rs"]
mod invariants;
#[path = "plan/kept.rs"]
mod kept;
#[path = "plan/kubelet.rs"]
mod kubelet;
#[path = "plan/lanes.rs"]
mod lanes;
#[path = "plan/marks.rs"]
mod marks;
#[path = "plan/matching.rs"]
mod matching;
#[path = "plan/outlooks.rs"]
mod outlooks;
#[path = "plan/pods.rs"]
mod pods;
#[path = "plan/properties.rs"]
mod properties;
#[path = "plan/random_worlds.rs"]
mod random_worlds;
#[path = "plan/reboots.rs"]
mod reboots;
#[path = "plan/refusals.rs"]
mod refusals;
#[path = "plan/relapses.rs"]
mod relapses;
#[path = "plan/restarts.rs"]
mod restarts;
#[path = "plan/restless.rs"]
mod restless;
#[path = "plan/samples.rs"]
mod samples;
#[path = "plan/several.rs"]
mod several;
#[path = "plan/storms.rs"]
mod storms;
#[path = "plan/taints.rs"]
mod taints;
#[path = "plan/told.rs"]
mod told;
#[path = "plan/trials.rs"]
mod trials;
#[path = "plan/undo.rs"]
mod undo;
#[path = "plan/unreadable.rs"]
mod unreadable;
#[path = "plan/windows.rs"]
mod windows;
#[path = "plan/world.rs"]
mod world;
