//! What several targets hold what they took against.

/// Beginnings of these bytes, shortest first and never the whole: all of a short text, else some from everywhere, and few
/// of a huge one.
pub fn beginnings(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let most = if data.len() > 64 << 10 { 3 } else { 64 };
    let step = data.len().div_ceil(most).max(1);
    (0..data.len()).step_by(step).filter_map(|end| data.get(..end))
}

/// Whether a text has passed through `bounded`.
pub fn is_bounded(text: &str, most: usize) -> bool {
    text.len() <= most && !text.contains(char::is_control)
}
