//! Patches: merge, and server-side apply of a status.

use serde_json::{Map, Value, json};

/// A JSON merge patch.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Value::Object(fields) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Applies one manager's part of a status: what it left out since last time is removed, conditions are a
/// map by type, everything else is taken whole.
pub fn apply_status(status: &mut Value, before: &Value, now: &Value) {
    if !status.is_object() {
        *status = json!({});
    }
    let empty = Map::new();
    let (old, new) = (before.as_object().unwrap_or(&empty), now.as_object().unwrap_or(&empty));
    let Some(fields) = status.as_object_mut() else { return };
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        fields.remove(key);
    }
    for (key, value) in new {
        if key == "conditions" {
            let mut conditions = fields.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
            let types = |list: &Value| -> Vec<Value> {
                list.as_array().into_iter().flatten().map(|c| c["type"].clone()).collect()
            };
            let (gone, stays) = (types(old.get(key).unwrap_or(&Value::Null)), types(value));
            conditions.retain(|c| !gone.contains(&c["type"]) && !stays.contains(&c["type"]));
            conditions.extend(value.as_array().cloned().unwrap_or_default());
            fields.insert(key.clone(), Value::Array(conditions));
        } else {
            fields.insert(key.clone(), value.clone());
        }
    }
}

/// Notes in the managed fields which conditions a manager has applied; one that has applied nothing is not in them.
pub fn record_owner(fields: &mut Value, manager: &str, applied: &Value) {
    let mut entries = fields.as_array().cloned().unwrap_or_default();
    entries.retain(|entry| entry["manager"] != manager);
    if !applied.is_null() {
        let key = |condition: &Value| format!(r#"k:{{"type":{}}}"#, condition["type"]);
        let owned: Map<String, Value> =
            applied["conditions"].as_array().into_iter().flatten().map(|one| (key(one), json!({}))).collect();
        entries.push(json!({"manager": manager, "operation": "Apply", "subresource": "status",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {"f:conditions": owned}}}));
    }
    *fields = Value::Array(entries);
}
