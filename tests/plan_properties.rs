//! The decision: one rule after the other, and what holds whatever happens. `PROPTEST_CASES` sets how many
//! random worlds are tried.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "plan/properties.rs"]
mod properties;
#[path = "plan/rules.rs"]
mod rules;
#[path = "plan/world.rs"]
mod world;
