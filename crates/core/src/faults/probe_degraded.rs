//! `ProbeDegraded`: a collector of the probe cannot check the node, and so reports nothing else about it.

use std::time::Duration;

use super::spec::{FaultSpec, Remedy};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, Severity, SubjectKind};
use crate::finding::{Check, Coverage, Findings, PORT_STALE, STALE, Sighting, Verdict};
use crate::observation::Reading;
use crate::thresholds::Confirm;

/// A node that boots or is upgraded has its runtime and its kubelet within minutes.
const CONFIRM: Confirm = Confirm::new("probeDegraded", 3, 60, 600);

pub(super) const SPEC: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM],
    condition: Some(ConditionType::ProbeCoverageComplete),
    lasting: true,
    remedy: Remedy::NONE,
    ..FaultSpec::new(FaultGroup::Node, Severity::Low, SubjectKind::Probe)
};

/// The state of a collector, whatever it checks.
enum Sight {
    Checked(Duration),
    /// It has not checked yet, or not for long.
    Never,
    Unavailable(String),
}

/// The state of a collector that calls the runtime. Errors and silence are signs of the runtime's faults: the check is complete.
fn of_call<T>(reading: &Reading<T>, now: Duration, stale: Duration) -> Sight {
    match reading {
        Reading::Done { age, .. } | Reading::Failed { age, .. } if *age <= stale => {
            Sight::Checked(now.saturating_sub(*age))
        }
        Reading::Hung { .. } => Sight::Checked(now),
        Reading::Unavailable { reason } => Sight::Unavailable(reason.clone()),
        Reading::Never | Reading::Done { .. } | Reading::Failed { .. } => Sight::Never,
    }
}

/// The state of a collector that checks the node itself, on a thread of its own. Nothing else reports why such a check is silent.
fn of_thread<T>(reading: &Reading<T>, now: Duration, stale: Duration) -> Sight {
    match reading {
        Reading::Hung { .. } => Sight::Unavailable("the check does not return".to_owned()),
        Reading::Failed { error, age } if *age <= stale => Sight::Unavailable(error.clone()),
        reading => of_call(reading, now, stale),
    }
}

pub(super) fn detect(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Coverage {
    let now = seen.now;
    let collectors = [
        ("runtime", of_call(&seen.runtime, now, STALE)),
        ("lists", of_call(&seen.lists, now, STALE)),
        ("status", of_call(&seen.status, now, STALE)),
        ("processes", of_thread(&seen.processes, now, STALE)),
        ("kubelet", of_thread(&seen.kubelet, now, STALE)),
        ("host", of_thread(&seen.host, now, STALE)),
        ("disks", of_thread(&seen.disks, now, STALE)),
        ("port", of_thread(&seen.port, now, PORT_STALE)),
        ("bus", of_call(&seen.bus, now, STALE)),
    ];
    let mut coverage = Coverage::new(Verdict::Clean { checked: now });
    for (collector, sight) in collectors {
        let verdict = match sight {
            Sight::Checked(checked) => Verdict::Clean { checked },
            Sight::Never => {
                coverage.others = Verdict::undecided("not every collector has checked lately");
                Verdict::undecided("the collector has not checked lately")
            }
            Sight::Unavailable(why) => {
                findings.sight(Sighting {
                    message: format!("the probe's collector {collector} cannot check this node"),
                    impact: "what this collector would see on the node is not seen; conditions that need it are Unknown",
                    evidence: vec![why],
                    ..Sighting::new(FaultType::ProbeDegraded, collector, now, thresholds.confirm(&CONFIRM))
                });
                Verdict::failed(&format!("the collector {collector} cannot check"))
            }
        };
        coverage.note(collector, verdict);
    }
    coverage
}
