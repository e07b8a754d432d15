//! Conditions: a closed set of types and reasons, all positive (True = good).

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

pub use nrh_core::condition::{ConditionReason, ConditionType};
use nrh_core::snapshot::TriState;

/// A condition; its transition time is kept from `before` when the status did not change.
pub fn condition(
    before: &[Condition],
    kind: ConditionType,
    status: TriState,
    reason: ConditionReason,
    message: &str,
    now: Timestamp,
) -> Condition {
    let same = before.iter().find(|old| old.type_ == kind.as_str() && old.status == status.as_str());
    condition_since(kind, status, reason, message, same.map_or(now, |old| old.last_transition_time.0))
}

/// A condition that has had its status since then.
pub fn condition_since(
    kind: ConditionType,
    status: TriState,
    reason: ConditionReason,
    message: &str,
    since: Timestamp,
) -> Condition {
    Condition {
        type_: kind.as_str().to_owned(),
        status: status.as_str().to_owned(),
        reason: reason.as_str().to_owned(),
        message: nrh_core::text::bounded(message, 1024),
        last_transition_time: Time(since),
        observed_generation: None,
    }
}

/// The condition of this type; `None` where it is missing.
pub fn find(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == kind.as_str())
}

/// The status of one condition and its reason; `None` where it is missing.
pub fn standing_of(conditions: &[Condition], kind: ConditionType) -> Option<(TriState, &str)> {
    find(conditions, kind).map(|found| (TriState::of(&found.status), found.reason.as_str()))
}

/// The status of one condition, Unknown where it is missing.
pub fn status_of(conditions: &[Condition], kind: ConditionType) -> TriState {
    standing_of(conditions, kind).map_or(TriState::Unknown, |(status, _)| status)
}
