//! The conditions of reports: one copy of each text, shared by all nodes with that text.
//!
//! Nearly all nodes are healthy, and the conditions of healthy nodes have the same texts; only the times differ.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::conditions::Shared;
use nrh_api::ConditionType;
use nrh_core::snapshot::TriState;

/// A condition without its time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConditionText {
    /// Its type, as in the object.
    pub kind: String,
    /// Its status.
    pub status: TriState,
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
}

/// A condition of a report, and since when it has its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportCondition {
    /// Type, status, reason and message.
    pub text: Arc<ConditionText>,
    /// Since when the status has this value.
    pub since: Timestamp,
}

/// All conditions of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions(Box<[ReportCondition]>);

impl Conditions {
    /// Reads them from an object.
    pub fn of(conditions: &[Condition]) -> Self {
        let one = |condition: &Condition| ReportCondition {
            text: Arc::new(ConditionText {
                kind: condition.type_.clone(),
                status: TriState::of(&condition.status),
                reason: condition.reason.clone(),
                message: condition.message.clone(),
            }),
            since: condition.last_transition_time.0,
        };
        Self(conditions.iter().map(one).collect())
    }

    /// The condition of this type, if the report has it.
    pub fn get(&self, kind: ConditionType) -> Option<&ReportCondition> {
        self.named(kind.as_str())
    }

    /// The condition of this type, by its name in the object.
    pub fn named(&self, kind: &str) -> Option<&ReportCondition> {
        self.0.iter().find(|one| one.text.kind == kind)
    }

    /// The status of the condition of this type; Unknown where it is missing.
    pub fn status(&self, kind: ConditionType) -> TriState {
        self.get(kind).map_or(TriState::Unknown, |one| one.text.status)
    }

    /// Replaces the own copies with the shared ones.
    pub fn share(&mut self, shared: &mut Shared<ConditionText>) {
        for one in &mut self.0 {
            one.text = shared.keep(Arc::clone(&one.text));
        }
    }

    /// Releases the shared copies; one that no other report uses is forgotten.
    pub fn release(self, shared: &mut Shared<ConditionText>) {
        for one in self.0 {
            shared.release(one.text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_status_that_is_missing_or_no_word_of_kubernetes_is_unknown() {
        let conditions: Vec<Condition> = serde_json::from_value(json!([
            {"type": "RuntimeReady", "status": "True", "reason": "Clean", "message": "ill", "lastTransitionTime": "2025-01-01T00:00:00Z"},
            {"type": "Other", "status": "?", "reason": "r", "message": "m", "lastTransitionTime": "2025-01-01T00:00:00Z"}]))
        .unwrap();
        let all = Conditions::of(&conditions);
        assert_eq!(all.get(ConditionType::RuntimeReady).unwrap().text.message, "ill");
        assert_eq!(all.status(ConditionType::RuntimeReady), TriState::True);
        assert_eq!(all.status(ConditionType::RestartSafe), TriState::Unknown);
        assert_eq!(all.named("Other").unwrap().text.status, TriState::Unknown);
    }
}
