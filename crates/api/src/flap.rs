//! The history of a node's changes as it stands in its object, readable or not.
//!
//! It is a memory aid and nothing else: one that cannot be read must not take with it what the probe reports in the same
//! object, or its node would be held for ever.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use nrh_core::fault::MAX_LINE;
use nrh_core::flap::FlapRecord;
use nrh_core::text::bounded;

/// What stands in `status.flapping`: the record, or why it cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenFlap(pub Result<FlapRecord, String>);

impl WrittenFlap {
    /// The record, or why it cannot be read.
    pub fn read(&self) -> Result<&FlapRecord, &str> {
        self.0.as_ref().map_err(String::as_str)
    }
}

impl<'de> Deserialize<'de> for WrittenFlap {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        let read = serde_json::from_value(value);
        Ok(Self(read.map_err(|error| bounded(&format!("expected a history of changes: {error}"), MAX_LINE))))
    }
}

/// What cannot be read is never written again.
impl Serialize for WrittenFlap {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.as_ref().ok().serialize(to)
    }
}

/// The form that the API server asks for.
impl JsonSchema for WrittenFlap {
    fn inline_schema() -> bool {
        FlapRecord::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        FlapRecord::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        FlapRecord::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::NodeRuntimeHealthStatus;

    #[test]
    fn what_cannot_be_read_says_why_and_takes_nothing_with_it() {
        let good = json!({"readyTransitions": 7, "recurrences": 0, "trackedSince": "2026-01-01T00:00:00Z", "lastChangeAt": "2026-01-01T01:00:00Z",
            "penalty": 5_000, "ready": "True"});
        let with = |field: &str, value: serde_json::Value| {
            let mut bad = good.clone();
            bad[field] = value;
            bad
        };
        for (flap, expected) in [
            (json!("often"), "invalid type: string"),
            (json!([1, 2]), "expected"),
            (json!(7), "invalid type: integer"),
            (json!({}), "missing field"),
            (with("readyTransitions", json!(-1)), "-1"),
            (with("recurrences", json!(4_294_967_296_u64)), "4294967296"),
            (with("penalty", json!(0.5)), "0.5"),
            (with("trackedSince", json!("yesterday")), "year"),
            (with("lastChangeAt", json!("99999-01-01T00:00:00Z")), ""),
            (with("flappingSince", json!(true)), "boolean"),
            (with("ready", json!("Perhaps")), "Perhaps"),
        ] {
            let status = json!({"kubeletVersion": "v1.36.1", "flapping": flap});
            let status: NodeRuntimeHealthStatus = serde_json::from_value(status).unwrap();
            let why = status.flapping.clone().unwrap().0.unwrap_err();
            assert!(why.contains(expected) && why.starts_with("expected a history of changes: "), "{flap}: {why}");
            assert_eq!(status.kubelet_version.as_deref(), Some("v1.36.1"), "{flap}");
            assert!(why.len() <= nrh_core::fault::MAX_LINE);
        }
        for (flap, is_there) in [(json!(null), false), (good.clone(), true)] {
            let status: NodeRuntimeHealthStatus = serde_json::from_value(json!({"flapping": flap})).unwrap();
            assert_eq!(status.flapping.as_ref().is_some_and(|flap| flap.read().is_ok()), is_there);
            assert_eq!(serde_json::to_value(status).unwrap()["flapping"], flap);
        }
    }
}
