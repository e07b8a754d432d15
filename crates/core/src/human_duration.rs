//! Durations as people write them: `90s`, `5m`, `1h30m`.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

use super::text::bounded;

/// A duration from 1 s to 24 h, as a string of hours, minutes and seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(into = "String")]
pub struct HumanDuration(Duration);

/// A field of the standard library's type that people write as a [`HumanDuration`].
pub mod plain {
    use super::{Deserialize, Deserializer, Duration, HumanDuration, Serialize, Serializer};

    /// Writes it as people do.
    pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        HumanDuration::from_secs(duration.as_secs()).serialize(to)
    }

    /// Reads what people write.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        HumanDuration::deserialize(from).map(HumanDuration::get)
    }
}

/// A field of the standard library's type that objects hold as whole seconds.
pub mod seconds {
    use super::{Deserialize, Deserializer, Duration, Serializer};

    /// Writes the seconds.
    pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(duration.as_secs())
    }

    /// Reads the seconds.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_secs)
    }
}

/// Shortest duration a field takes.
pub const MIN: Duration = Duration::from_secs(1);
/// Longest duration a field takes.
pub const MAX: Duration = Duration::from_hours(24);

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(Text)
    }
}

/// Takes a text and nothing else: a bare number has no unit.
struct Text;

impl Visitor<'_> for Text {
    type Value = HumanDuration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration with its unit, such as 90s, 5m or 1h30m")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<HumanDuration, E> {
        text.parse().map_err(E::custom)
    }
}

/// Hours, minutes and seconds of any length, as [`written`] writes them; `None` for any other text.
pub fn read(text: &str) -> Option<Duration> {
    let (mut rest, mut total) = (text, 0_u64);
    for (unit, seconds) in [('h', 3600), ('m', 60), ('s', 1)] {
        let Some((number, tail)) = rest.split_once(unit) else { continue };
        let is_number = (1..=6).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit());
        total += number.parse::<u64>().ok().filter(|_| is_number)? * seconds;
        rest = tail;
    }
    (rest.is_empty() && !text.is_empty()).then(|| Duration::from_secs(total))
}

/// Any number of seconds as people write it: `0s`, `1m30s`, `36h10m`.
pub fn written(seconds: u64) -> String {
    let units = [("h", seconds / 3600), ("m", seconds / 60 % 60), ("s", seconds % 60)];
    let mut text = String::new();
    for (unit, amount) in units.into_iter().filter(|(_, amount)| *amount > 0) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{amount}{unit}");
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

impl HumanDuration {
    /// A duration of that many seconds, forced into 1 s to 24 h.
    pub fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds).clamp(MIN, MAX))
    }

    /// As the standard library's type.
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl FromStr for HumanDuration {
    /// A sentence.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fail = || {
            let text = bounded(text, 32);
            format!(
                "{text:?} is not a duration: expected hours, minutes and seconds from 1s to 24h, such as 90s, 5m or 1h30m"
            )
        };
        let value = read(text).ok_or_else(fail)?;
        if !(MIN..=MAX).contains(&value) {
            return Err(format!("expected a duration from 1s to 24h, found {text:?}"));
        }
        Ok(Self(value))
    }
}

impl From<HumanDuration> for String {
    fn from(duration: HumanDuration) -> Self {
        duration.to_string()
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&written(self.0.as_secs()))
    }
}

impl JsonSchema for HumanDuration {
    fn schema_name() -> Cow<'static, str> {
        "HumanDuration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 16,
            // No `pattern`: its failure would hide the sentence below.
            "x-kubernetes-validations": [{
                "rule": "self.size() > 1 && self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",
                "message": "must be a duration from 1s to 24h, such as 90s, 5m or 1h30m"
            }]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_what_people_write() {
        for (text, seconds, out) in
            [("90s", 90, "1m30s"), ("5m", 300, "5m"), ("1h30m", 5400, "1h30m"), ("24h", 86_400, "24h")]
        {
            let duration: HumanDuration = text.parse().unwrap();
            assert_eq!(duration.get().as_secs(), seconds);
            assert_eq!(duration.to_string(), out);
        }
        assert_eq!([0, 90_060].map(written), ["0s", "25h1m"]);
    }

    #[test]
    fn refuses_nonsense_with_a_sentence() {
        for text in ["", "0s", "25h", "5", "-1s", "1d", "5s5m", "1.5h", "999999999999h", "m", "1h1h"] {
            let error = text.parse::<HumanDuration>().unwrap_err();
            assert!(error.contains("1s to 24h"), "{text}: {error}");
            let is_one = ["0s", "25h"].contains(&text);
            assert_eq!(error.contains("is not a duration"), !is_one, "{text}: {error}");
        }
    }
}
