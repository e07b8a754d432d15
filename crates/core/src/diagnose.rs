//! From what the collectors saw to what may be wrong: one pure pass over one set of observations.
//!
//! It has no memory: how often and how long a thing must be seen is the tracker's to know.

#[cfg(test)]
mod tests;

use super::faults::detect;
use super::finding::{Check, Findings, Known, shows_host_processes};
use super::observation::Observations;
use super::thresholds::{Thresholds, task_max_age};

/// Judges one set of observations.
///
/// ```
/// # use std::time::Duration;
/// use nrh_core::{diagnose::diagnose, finding::Known, observation::Observations, thresholds::Thresholds};
/// let nothing = Observations { now: Duration::from_secs(100), ..Observations::default() };
/// // No collector has checked. So no fault is found, and none is ruled out.
/// let findings = diagnose(&nothing, Known::default(), &Thresholds::default());
/// assert!(findings.sightings.is_empty());
/// assert!(findings.coverage.values().all(|coverage| coverage.gap().is_some()));
/// ```
pub fn diagnose(seen: &Observations, known: Known, configured: &Thresholds) -> Findings {
    let host_processes = shows_host_processes(seen);
    let shortage = seen.pressure.shortage();
    let under_pressure = shortage.map(|_| configured.under_pressure());
    let check = Check {
        seen,
        known: Known { host_processes: known.host_processes || host_processes, ..known },
        thresholds: under_pressure.as_ref().unwrap_or(configured),
        configured,
    };
    let task_max_age = task_max_age(seen.tasks.len(), seen.kind);
    let mut findings = Findings { task_max_age, host_processes, shortage, ..Findings::default() };
    detect(&check, &mut findings);
    findings
}
