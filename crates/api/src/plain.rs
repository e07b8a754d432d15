//! Texts of others in a JSON value.

use serde_json::Value;

use nrh_core::text::bounded;

/// The same with every text, names of fields too, on one line, without what a terminal obeys, and cut at `max` bytes.
pub fn plain(value: Value, max: usize) -> Value {
    match value {
        Value::String(text) => Value::String(bounded(&text, max)),
        Value::Array(items) => Value::Array(items.into_iter().map(|item| plain(item, max)).collect()),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (bounded(&name, max), plain(value, max))).collect())
        }
        other => other,
    }
}
