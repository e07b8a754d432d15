//! The probe's configuration file: its thresholds, each of them checked before the probe begins to look.
//!
//! What is not named keeps its shipped value. A key that is not known, or a value outside its range, is refused with its
//! name, and the probe does not start: a roll-out of a wrong file stops at its first nodes.

use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::api::duration::HumanDuration;
use crate::core::thresholds::{Confirmation, Thresholds};
use crate::node::proc::bounded;
use crate::node::yaml;

/// Largest file that is read, in bytes.
const MAX_BYTES: usize = 64 << 10;
/// Looks that may be asked for. Fewer than three cannot tell a busy moment from a fault.
const CHECKS: RangeInclusive<u32> = 3..=20;
/// Clean looks that may be asked for. One may be a look between two failures.
const CLEAR_CHECKS: RangeInclusive<u32> = 2..=20;
/// How much shorter (as a divisor) and how much longer than shipped a time may be. A grace that Kubernetes needs to heal by
/// itself must stay one, and one without end would only hide faults.
const USUAL: (u64, u64) = (2, 20);
/// The executor in a Job knows the shipped ages only: what is younger it would refuse to touch. And what waits for less
/// than a minute waits for a disk.
const NOT_SHORTER: (u64, u64) = (1, 20);
/// Well before a look at the lists is stale, and before a list that is out is given up and asked for again.
const LIST: (u64, u64) = (2, 2);
/// A date has whole seconds, and an answer may take some; a lease of 40 s is misread long before five minutes.
const SKEW: (u64, u64) = (3, 10);
/// Longest time from the first clean look to the one that clears: steps wait for it, some of them for a minute.
const CLEARS: Duration = Duration::from_secs(20);

/// Why a configuration is not used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the probe's configuration {path}")]
    Unreadable {
        /// Its path.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is no YAML of the expected form; what and where is said.
    #[error("the probe's configuration {path} is refused: {what}")]
    Form {
        /// Its path.
        path: String,
        /// The first thing that is wrong.
        what: String,
    },
    /// Values that are out of their ranges, all of them.
    #[error("the probe's configuration {path} is refused: {}", .values.join("; "))]
    Values {
        /// Its path.
        path: String,
        /// One sentence per value.
        values: Vec<String>,
    },
}

/// What the file may say. Meaning, unit and reason of each key stand in `config/probe/probe.yaml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Said {
    hung_container: Option<ConfirmationFile>,
    leaked_shim: Option<ConfirmationFile>,
    leaked_shim_age: Option<HumanDuration>,
    orphan_kubelet_up: Option<ConfirmationFile>,
    orphan_kubelet_down: Option<ConfirmationFile>,
    network_plugin_hung: Option<ConfirmationFile>,
    network_plugin_age: Option<HumanDuration>,
    runtime_client_hung: Option<ConfirmationFile>,
    runtime_client_age: Option<HumanDuration>,
    runtime_client_still: Option<HumanDuration>,
    network_not_ready: Option<ConfirmationFile>,
    unresponsive_shim: Option<ConfirmationFile>,
    ghost_sandbox: Option<ConfirmationFile>,
    untracked_pod_process: Option<ConfirmationFile>,
    probe_degraded: Option<ConfirmationFile>,
    runtime_unreachable: Option<ConfirmationFile>,
    runtime_list_hung: Option<ConfirmationFile>,
    list_deadline: Option<HumanDuration>,
    lost_task: Option<ConfirmationFile>,
    duplicate_sandbox: Option<ConfirmationFile>,
    container_stuck: Option<ConfirmationFile>,
    kubelet_down: Option<ConfirmationFile>,
    kubelet_crash_loop: Option<ConfirmationFile>,
    sync_loop_stalled: Option<ConfirmationFile>,
    pleg_slow: Option<ConfirmationFile>,
    slow_relist: Option<HumanDuration>,
    pid_exhaustion: Option<ConfirmationFile>,
    fd_exhaustion: Option<ConfirmationFile>,
    dbus_unresponsive: Option<ConfirmationFile>,
    disk_full: Option<ConfirmationFile>,
    read_only_filesystem: Option<ConfirmationFile>,
    uninterruptible_process: Option<ConfirmationFile>,
    uninterruptible_age: Option<HumanDuration>,
    frozen_cgroup: Option<ConfirmationFile>,
    frozen_init_age: Option<HumanDuration>,
    exited_container_backlog: Option<ConfirmationFile>,
    client_certificate_expiring: Option<ConfirmationFile>,
    clock_unsynchronised: Option<ConfirmationFile>,
    clock_skew: Option<HumanDuration>,
    clear_checks: Option<u32>,
    clear_interval: Option<HumanDuration>,
}

/// What confirms one kind of fault.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct ConfirmationFile {
    checks: Option<u32>,
    interval: Option<HumanDuration>,
    grace_period: Option<HumanDuration>,
}

/// Reads thresholds from a file; what it does not name keeps its shipped value.
///
/// # Errors
/// The file cannot be read, is larger than 64 KiB, is no YAML of this form, or has values out of their ranges.
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

pub(in crate::node) fn parse(text: &str, path: &str) -> Result<Thresholds, ConfigError> {
    // A file of comments only is a file that names nothing.
    let file: Option<Said> = yaml::read_ours(text).map_err(|error| {
        let what = crate::core::text::bounded(&error.to_string(), 4096);
        ConfigError::Form { path: path.to_owned(), what }
    })?;
    let (thresholds, values) = check(&file.unwrap_or_default());
    if values.is_empty() { Ok(thresholds) } else { Err(ConfigError::Values { path: path.to_owned(), values }) }
}

/// The shipped thresholds with what the file says in place of them, and what of it is refused.
fn check(file: &Said) -> (Thresholds, Vec<String>) {
    let (mut to, mut refused) = (Thresholds::default(), Vec::new());
    let mut confirmation = |key: &str, said: &Option<ConfirmationFile>, to: &mut Confirmation| {
        let Some(said) = said else { return };
        let name = |part: &str| format!("{key}.{part}");
        number(&name("checks"), said.checks, &CHECKS, &mut to.checks, &mut refused);
        time(&name("interval"), said.interval, USUAL, &mut to.interval, &mut refused);
        time(&name("gracePeriod"), said.grace_period, USUAL, &mut to.grace_period, &mut refused);
    };
    confirmation("hungContainer", &file.hung_container, &mut to.hung_container);
    confirmation("leakedShim", &file.leaked_shim, &mut to.leaked_shim);
    confirmation("orphanKubeletUp", &file.orphan_kubelet_up, &mut to.orphan_kubelet_up);
    confirmation("orphanKubeletDown", &file.orphan_kubelet_down, &mut to.orphan_kubelet_down);
    confirmation("networkPluginHung", &file.network_plugin_hung, &mut to.network_plugin_hung);
    confirmation("runtimeClientHung", &file.runtime_client_hung, &mut to.runtime_client_hung);
    confirmation("networkNotReady", &file.network_not_ready, &mut to.network_not_ready);
    confirmation("unresponsiveShim", &file.unresponsive_shim, &mut to.unresponsive_shim);
    confirmation("ghostSandbox", &file.ghost_sandbox, &mut to.ghost_sandbox);
    confirmation("untrackedPodProcess", &file.untracked_pod_process, &mut to.untracked_pod_process);
    confirmation("probeDegraded", &file.probe_degraded, &mut to.probe_degraded);
    confirmation("runtimeUnreachable", &file.runtime_unreachable, &mut to.runtime_unreachable);
    confirmation("runtimeListHung", &file.runtime_list_hung, &mut to.runtime_list_hung);
    confirmation("lostTask", &file.lost_task, &mut to.lost_task);
    confirmation("duplicateSandbox", &file.duplicate_sandbox, &mut to.duplicate_sandbox);
    confirmation("containerStuck", &file.container_stuck, &mut to.container_stuck);
    confirmation("kubeletDown", &file.kubelet_down, &mut to.kubelet_down);
    confirmation("kubeletCrashLoop", &file.kubelet_crash_loop, &mut to.kubelet_crash_loop);
    confirmation("syncLoopStalled", &file.sync_loop_stalled, &mut to.sync_loop_stalled);
    confirmation("plegSlow", &file.pleg_slow, &mut to.pleg_slow);
    confirmation("pidExhaustion", &file.pid_exhaustion, &mut to.pid_exhaustion);
    confirmation("fdExhaustion", &file.fd_exhaustion, &mut to.fd_exhaustion);
    confirmation("dbusUnresponsive", &file.dbus_unresponsive, &mut to.dbus_unresponsive);
    confirmation("diskFull", &file.disk_full, &mut to.disk_full);
    confirmation("readOnlyFilesystem", &file.read_only_filesystem, &mut to.read_only_filesystem);
    confirmation("uninterruptibleProcess", &file.uninterruptible_process, &mut to.uninterruptible_process);
    confirmation("frozenCgroup", &file.frozen_cgroup, &mut to.frozen_cgroup);
    confirmation("exitedContainerBacklog", &file.exited_container_backlog, &mut to.exited_container_backlog);
    confirmation("clientCertificateExpiring", &file.client_certificate_expiring, &mut to.client_certificate_expiring);
    confirmation("clockUnsynchronised", &file.clock_unsynchronised, &mut to.clock_unsynchronised);
    time("leakedShimAge", file.leaked_shim_age, NOT_SHORTER, &mut to.leaked_shim_age, &mut refused);
    time("networkPluginAge", file.network_plugin_age, NOT_SHORTER, &mut to.network_plugin_age, &mut refused);
    time("runtimeClientStill", file.runtime_client_still, NOT_SHORTER, &mut to.runtime_client_still, &mut refused);
    time("runtimeClientAge", file.runtime_client_age, NOT_SHORTER, &mut to.runtime_client_age, &mut refused);
    time("uninterruptibleAge", file.uninterruptible_age, NOT_SHORTER, &mut to.uninterruptible_age, &mut refused);
    time("frozenInitAge", file.frozen_init_age, NOT_SHORTER, &mut to.frozen_init_age, &mut refused);
    time("slowRelist", file.slow_relist, NOT_SHORTER, &mut to.slow_relist, &mut refused);
    time("listDeadline", file.list_deadline, LIST, &mut to.list_deadline, &mut refused);
    time("clockSkew", file.clock_skew, SKEW, &mut to.clock_skew, &mut refused);
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

fn outside(
    key: &str,
    said: &dyn std::fmt::Display,
    from: &dyn std::fmt::Display,
    to: &dyn std::fmt::Display,
) -> String {
    format!("{key} is {said}, expected {from} to {to}")
}

fn number(key: &str, said: Option<u32>, range: &RangeInclusive<u32>, to: &mut u32, refused: &mut Vec<String>) {
    match said {
        Some(value) if !range.contains(&value) => refused.push(outside(key, &value, range.start(), range.end())),
        Some(value) => *to = value,
        None => {}
    }
}

/// `to` holds the shipped value, from which the range follows.
fn time(
    key: &str,
    said: Option<HumanDuration>,
    (shorter, longer): (u64, u64),
    to: &mut Duration,
    refused: &mut Vec<String>,
) {
    let Some(said) = said else { return };
    let least = to.as_secs().div_ceil(shorter);
    let most = to.as_secs().saturating_mul(longer);
    if (least..=most).contains(&said.get().as_secs()) {
        *to = said.get();
    } else {
        refused.push(outside(key, &said, &HumanDuration::from_secs(least), &HumanDuration::from_secs(most)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIPPED: &str = include_str!("../../config/probe/probe.yaml");

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
        assert_eq!((named.len(), confirmations.count()), (41, 30), "a key of `Said` is not in the file");
    }

    #[test]
    fn what_is_not_named_keeps_its_shipped_value() {
        for nothing in ["", "# nothing\n", "{}", "hungContainer: {}"] {
            assert_eq!(parse(nothing, "f").unwrap(), Thresholds::default(), "{nothing:?}");
        }
        let one = parse("hungContainer: {gracePeriod: 2m}\nleakedShimAge: 10m\nclearChecks: 3", "f").unwrap();
        let shipped = Thresholds::default();
        let hung_container = Confirmation { grace_period: Duration::from_mins(2), ..shipped.hung_container };
        let leaked_shim_age = Duration::from_mins(10);
        assert_eq!(one, Thresholds { hung_container, leaked_shim_age, clear_checks: 3, ..shipped });
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
        let said = refusal(text);
        for expected in [
            "hungContainer.checks is 1, expected 3 to 20",
            "hungContainer.interval is 9s, expected 10s to 6m40s",
            "hungContainer.gracePeriod is 24h, expected 20s to 13m20s",
            "networkPluginAge is 59s, expected 1m to 20m",
            "listDeadline is 3m, expected 30s to 2m",
            "clearChecks is 0, expected 2 to 20",
            "clockSkew is 9s, expected 10s to 5m",
        ] {
            assert!(said.contains(expected), "{said}");
        }
    }

    #[test]
    fn what_is_healed_is_called_so_before_steps_give_up() {
        assert!(parse("clearChecks: 3\nclearInterval: 10s", "f").is_ok());
        let said = refusal("clearChecks: 3\nclearInterval: 11s");
        assert!(said.contains("22s from the first clear check to the last, expected 20s at most"), "{said}");
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
