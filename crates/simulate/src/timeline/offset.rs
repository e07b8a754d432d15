//! Times of a timeline.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::LONGEST;
use nrh_core::human_duration;
use nrh_core::text::bounded;

/// Time since the beginning of the timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Offset(pub Duration);

impl TryFrom<String> for Offset {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let shown = bounded(&text, 32);
        human_duration::read(&text).filter(|time| *time <= LONGEST).map(Self).ok_or_else(|| {
            format!(
                "{shown:?} is not a time: expected hours, minutes and seconds up to 840h, such as 90s, 5m or 36h10m"
            )
        })
    }
}

impl From<Offset> for String {
    fn from(offset: Offset) -> Self {
        offset.to_string()
    }
}

impl std::fmt::Display for Offset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.0.as_secs();
        write!(f, "{}h{:02}m{:02}s", seconds / 3600, seconds / 60 % 60, seconds % 60)
    }
}
