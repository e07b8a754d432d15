//! The probe's configuration file: thresholds, each of them validated before the first check of the probe.
//!
//! A threshold that the file does not name keeps its shipped value. An unknown key, or a value outside its range, is
//! refused by name, and the probe does not start: a roll-out of an invalid file stops at its first nodes.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::proc::bounded;
use crate::yaml;
use nrh_api::HumanDuration;
use nrh_core::faults;
use nrh_core::thresholds::{Bound, Thresholds, TimeRange};

/// Maximum size of the file, in bytes.
const MAX_BYTES: usize = 64 << 10;
/// Allowed number of checks. Fewer than three cannot distinguish a busy moment from a fault.
const CHECKS: RangeInclusive<u32> = 3..=20;
/// Allowed number of clear checks. A single one can fall between two failures.
const CLEAR_CHECKS: RangeInclusive<u32> = 2..=20;
/// Maximum factors by which a time may be shorter (divisor) and longer (multiplier) than shipped. A grace period that
/// Kubernetes needs to recover by itself must stay long enough, and an unlimited one would only hide faults.
const USUAL: TimeRange = (2, 20);
/// Maximum time from the first clear check to the one that clears: steps wait for it, some of them for a minute.
const CLEARS: Duration = Duration::from_secs(20);

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the probe's configuration {path}")]
    Unreadable {
        /// Path of the file.
        path: String,
        /// The error.
        #[source]
        source: io::Error,
    },
    /// The file is not YAML of the expected form, or has values outside their ranges.
    #[error("the probe's configuration {path} is refused: {what}")]
    Refused {
        /// Its path.
        path: String,
        /// The first error of the form, with its place; else one sentence for each value.
        what: String,
    },
}

/// Content of the file. `config/probe/probe.yaml` documents the meaning, unit and reason of each key.
#[derive(Default)]
struct ConfigFile {
    confirmations: BTreeMap<&'static str, ConfirmationFile>,
    bounds: BTreeMap<&'static str, HumanDuration>,
    clear_checks: Option<u32>,
    clear_interval: Option<HumanDuration>,
}

impl<'de> Deserialize<'de> for ConfigFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Keys)
    }
}

struct Keys;

impl<'de> Visitor<'de> for Keys {
    type Value = ConfigFile;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("thresholds by their keys")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ConfigFile, A::Error> {
        let mut given = ConfigFile::default();
        while let Some(key) = map.next_key::<String>()? {
            let is_new = if let Some(of) = faults::confirmations().find(|of| of.key == key) {
                given.confirmations.insert(of.key, map.next_value()?).is_none()
            } else if let Some(of) = configurable().find(|of| of.key == key) {
                given.bounds.insert(of.key, map.next_value()?).is_none()
            } else if key == "clearChecks" {
                given.clear_checks.replace(map.next_value()?).is_none()
            } else if key == "clearInterval" {
                given.clear_interval.replace(map.next_value()?).is_none()
            } else {
                return Err(de::Error::custom(format!("unknown key {key:?}")));
            };
            if !is_new {
                return Err(de::Error::custom(format!("{key} is set twice")));
            }
        }
        Ok(given)
    }
}

fn configurable() -> impl Iterator<Item = &'static Bound> {
    faults::bounds().filter(|bound| bound.range.is_some())
}

/// Confirmation settings of one kind of fault.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct ConfirmationFile {
    checks: Option<u32>,
    interval: Option<HumanDuration>,
    grace_period: Option<HumanDuration>,
}

/// Reads thresholds from a file; a threshold that the file does not name keeps its shipped value.
///
/// # Errors
/// The file cannot be read, is larger than 64 KiB, is not YAML of this form, or has values outside their ranges.
pub fn read(path: &Path) -> Result<Thresholds, ConfigError> {
    let shown = || path.display().to_string();
    let text = bounded_text(path).map_err(|source| ConfigError::Unreadable { path: shown(), source })?;
    parse(&text, &shown())
}

fn bounded_text(path: &Path) -> io::Result<String> {
    let read = bounded::read_file(&mut File::open(path)?, MAX_BYTES)?;
    if read.truncated {
        return Err(io::Error::other(format!("it is larger than {MAX_BYTES} bytes")));
    }
    String::from_utf8(read.bytes).map_err(io::Error::other)
}

pub(crate) fn parse(text: &str, path: &str) -> Result<Thresholds, ConfigError> {
    let refused = |what: String| ConfigError::Refused { path: path.to_owned(), what };
    // A file with only comments names no threshold.
    let file: Option<ConfigFile> =
        yaml::read_ours(text).map_err(|error| refused(nrh_core::text::bounded(&error.to_string(), 4096)))?;
    let (thresholds, values) = check(&file.unwrap_or_default());
    if values.is_empty() { Ok(thresholds) } else { Err(refused(values.join("; "))) }
}

/// Returns the shipped thresholds overridden by the file, and the refused values.
fn check(file: &ConfigFile) -> (Thresholds, Vec<String>) {
    let (mut to, mut refused) = (Thresholds::default(), Vec::new());
    for of in faults::confirmations() {
        let Some(given) = file.confirmations.get(of.key) else { continue };
        let (name, mut confirmation) = (|part: &str| format!("{}.{part}", of.key), of.shipped);
        number(&name("checks"), given.checks, &CHECKS, &mut confirmation.checks, &mut refused);
        time(&name("interval"), given.interval, USUAL, &mut confirmation.interval, &mut refused);
        time(&name("gracePeriod"), given.grace_period, USUAL, &mut confirmation.grace_period, &mut refused);
        to.set_confirm(of, confirmation);
    }
    for of in configurable() {
        let (Some(range), Some(given), mut bound) = (of.range, file.bounds.get(of.key), of.shipped) else { continue };
        time(of.key, Some(*given), range, &mut bound, &mut refused);
        to.set_bound(of, bound);
    }
    time("clearInterval", file.clear_interval, USUAL, &mut to.clear_interval, &mut refused);
    number("clearChecks", file.clear_checks, &CLEAR_CHECKS, &mut to.clear_checks, &mut refused);
    let clears = to.clear_interval.saturating_mul(to.clear_checks.saturating_sub(1));
    if clears > CLEARS {
        let (clears, most) = (clears.as_secs(), CLEARS.as_secs());
        refused.push(format!(
            "clearChecks and clearInterval make {clears}s from the first clear check to the last, expected {most}s at most"
        ));
    }
    (to, refused)
}

fn outside<T: fmt::Display>(key: &str, given: &T, from: &T, to: &T) -> String {
    format!("{key} is {given}, expected {from} to {to}")
}

fn number(key: &str, given: Option<u32>, range: &RangeInclusive<u32>, to: &mut u32, refused: &mut Vec<String>) {
    match given {
        Some(value) if !range.contains(&value) => refused.push(outside(key, &value, range.start(), range.end())),
        Some(value) => *to = value,
        None => {}
    }
}

/// Validates a time. `to` contains the shipped value, from which the range follows.
fn time(
    key: &str,
    given: Option<HumanDuration>,
    (shorter, longer): TimeRange,
    to: &mut Duration,
    refused: &mut Vec<String>,
) {
    let Some(given) = given else { return };
    let least = to.as_secs().div_ceil(shorter);
    let most = to.as_secs().saturating_mul(longer);
    if (least..=most).contains(&given.get().as_secs()) {
        *to = given.get();
    } else {
        refused.push(outside(key, &given, &HumanDuration::from_secs(least), &HumanDuration::from_secs(most)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nrh_core::faults::{hung_container, leaked_shim};
    use nrh_core::thresholds::Confirmation;
    use std::collections::BTreeSet;

    const SHIPPED: &str = include_str!("../../../config/probe/probe.yaml");

    fn refusal(text: &str) -> String {
        parse(text, "probe.yaml").unwrap_err().to_string()
    }

    #[test]
    fn the_shipped_file_names_every_key_with_its_shipped_value() {
        assert_eq!(parse(SHIPPED, "probe.yaml").unwrap(), Thresholds::default());
        let shipped: serde_json::Value = serde_saphyr::from_str(SHIPPED).unwrap();
        let named = shipped.as_object().unwrap();
        let confirmations = named.values().filter_map(serde_json::Value::as_object);
        assert!(confirmations.clone().all(|one| one.len() == 3), "looks, apart and grace, each");
        let keys: BTreeSet<&str> = faults::confirmations().map(|of| of.key).collect();
        let bounds: BTreeSet<&str> = configurable().map(|of| of.key).collect();
        let others = ["clearChecks", "clearInterval"];
        let all: BTreeSet<&str> = keys.iter().chain(&bounds).copied().chain(others).collect();
        assert_eq!(named.keys().map(String::as_str).collect::<BTreeSet<_>>(), all);
        assert_eq!(confirmations.count(), keys.len());
    }

    #[test]
    fn what_is_not_named_keeps_its_shipped_value() {
        for nothing in ["", "# nothing\n", "{}", "hungContainer: {}"] {
            assert_eq!(parse(nothing, "f").unwrap(), Thresholds::default(), "{nothing:?}");
        }
        let one = parse("hungContainer: {gracePeriod: 2m}\nleakedShimAge: 10m\nclearChecks: 3", "f").unwrap();
        let mut expected = parse("clearChecks: 3", "f").unwrap();
        assert_eq!(expected.clear_checks, 3);
        let hung = Confirmation { grace_period: Duration::from_mins(2), ..hung_container::CONFIRM.shipped };
        expected.set_confirm(&hung_container::CONFIRM, hung);
        expected.set_bound(&leaked_shim::AGE, Duration::from_mins(10));
        assert_eq!(one, expected);
    }

    #[test]
    fn a_key_that_is_not_known_is_refused_with_its_name() {
        assert!(refusal("hungContainers: {checks: 3}").contains("hungContainers"));
        assert!(refusal("hungContainer: {look: 3}").contains("look"));
        assert!(refusal("hungContainer: 40s").contains("probe.yaml is refused"));
        assert!(refusal("clearInterval: soon").contains("is not a duration"));
        assert!(refusal("clearChecks: 2\nclearChecks: 3").contains("clearChecks"), "twice");
    }

    #[test]
    fn every_absurd_value_is_refused_with_its_name_and_its_range() {
        let text = "hungContainer: {checks: 1, interval: 9s, gracePeriod: 24h}\nnetworkPluginAge: 59s\nlistDeadline: 3m\nclearChecks: 0\nclockSkew: 9s";
        let given = refusal(text);
        for expected in [
            "hungContainer.checks is 1, expected 3 to 20",
            "hungContainer.interval is 9s, expected 10s to 6m40s",
            "hungContainer.gracePeriod is 24h, expected 20s to 13m20s",
            "networkPluginAge is 59s, expected 1m to 20m",
            "listDeadline is 3m, expected 30s to 2m",
            "clearChecks is 0, expected 2 to 20",
            "clockSkew is 9s, expected 10s to 5m",
        ] {
            assert_eq!(given.matches(expected).count(), 1, "{given}");
        }
    }

    #[test]
    fn what_is_resolved_is_called_so_before_steps_give_up() {
        assert!(parse("clearChecks: 3\nclearInterval: 10s", "f").is_ok());
        let given = refusal("clearChecks: 3\nclearInterval: 11s");
        assert!(given.contains("22s from the first clear check to the last, expected 20s at most"), "{given}");
    }

    #[test]
    fn a_file_that_cannot_be_read_or_is_huge_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("probe.yaml");
        assert!(matches!(read(&path), Err(ConfigError::Unreadable { .. })));
        std::fs::write(&path, "#".repeat(70 << 10)).unwrap();
        assert!(matches!(read(&path), Err(ConfigError::Unreadable { .. })));
        std::fs::write(&path, SHIPPED).unwrap();
        assert_eq!(read(&path).unwrap(), Thresholds::default());
    }
}
