//! Durations as Go writes and reads them (`2m0s`, `1.5h`, `500ms`): in the kubelet's settings and in its messages.

use std::time::Duration;

/// The duration that `text` says; `None` when it says none, a negative one, or one longer than Go knows (292 years).
///
/// ```
/// # use std::time::Duration;
/// # use nrh_core::go_duration::parse;
/// assert_eq!(parse("2m0s"), Some(Duration::from_secs(120)));
/// assert_eq!(parse("2m0"), None);
/// ```
pub fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let is_number = |character: char| character.is_ascii_digit() || character == '.';
    let (mut rest, mut total) = (Some(text), Duration::ZERO);
    while let Some(part) = rest {
        // A number without a unit is no duration.
        let (number, tail) = part.split_at_checked(part.find(|character| !is_number(character))?)?;
        let (unit, next) = tail.split_at_checked(tail.find(is_number).unwrap_or(tail.len()))?;
        total = total.checked_add(amount(number, nanoseconds(unit)?)?)?;
        rest = Some(next).filter(|next| !next.is_empty());
    }
    Some(total).filter(|total| *total <= MAX)
}

/// The longest duration that Go can represent.
const MAX: Duration = Duration::from_nanos(i64::MAX.unsigned_abs());

fn nanoseconds(unit: &str) -> Option<u64> {
    Some(match unit {
        "h" => 3_600_000_000_000,
        "m" => 60_000_000_000,
        "s" => 1_000_000_000,
        "ms" => 1_000_000,
        "us" | "µs" | "μs" => 1_000,
        "ns" => 1,
        _ => return None,
    })
}

fn amount(number: &str, unit: u64) -> Option<Duration> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Digits after the ninth are less than a nanosecond of any unit but the hour.
    let fraction = fraction.get(..fraction.len().min(9))?;
    let digits = |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse::<u64>().ok() };
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let part = u128::from(digits(fraction)?).checked_mul(u128::from(unit))?.checked_div(scale)?;
    let nanos = digits(whole)?.checked_mul(unit)?.checked_add(u64::try_from(part).ok()?)?;
    Some(Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_go_takes_is_taken_and_nothing_else() {
        for (text, milliseconds) in [
            ("0", 0),
            ("0s", 0),
            ("2m0s", 120_000),
            ("15m", 900_000),
            ("1h30m", 5_400_000),
            ("1.5h", 5_400_000),
            (".5s", 500),
            ("1.s", 1_000),
            ("1m0.25s", 60_250),
            ("500ms", 500),
            ("1500µs", 1),
        ] {
            assert_eq!(parse(text).map(|found| found.as_millis()), Some(milliseconds), "{text}");
        }
        for text in
            ["", "5", "2m0", "-2m", "m", ".", ".s", "1..5s", "2 m", "2d", "99999999h", "1e3s", "٣s", "1.123456789.s"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
        assert!(parse("2562047h47m16.854775807s").is_some());
        assert_eq!(parse("2562047h47m16.854775808s"), None, "a nanosecond more than Go knows");
        assert_eq!(parse(&"2562047h".repeat(1000)), None);
    }
}
