//! What a bus sends.

use super::checks::{beginnings, is_bounded};
use crate::bus::message::{MAX_NAME, MAX_TEXT, Message, Value};

pub fn message(data: &[u8]) -> bool {
    let Ok(Some((message, bytes))) = Message::take(data) else { return false };
    assert!(bytes <= data.len(), "more than is there");
    assert!(message.error.as_ref().is_none_or(|name| is_bounded(name, MAX_NAME) && message.answers.is_some()));
    let fits = |value: &Value| !matches!(value, Value::Text(text) if !is_bounded(text, MAX_TEXT));
    assert!(message.values.len() <= 255 && message.values.iter().all(fits));
    for cut in beginnings(data) {
        let cut_off = Message::take(cut);
        let whole = cut.len() >= bytes;
        assert_eq!(cut_off, if whole { Ok(Some((message.clone(), bytes))) } else { Ok(None) }, "cut at {}", cut.len());
    }
    true
}
