//! `ClockUnsynchronised`: the clock of the node and the clock of the API server differ too much.

use super::spec::{FaultSpec, Remedy};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, Severity, SubjectKind};
use crate::finding::{CLOCK_STALE, Check, Coverage, Detected, Findings, Sighting, Verdict, answer};
use crate::thresholds::{Bound, Confirm};

/// Three reports. A clock that a person sets by hand, or that is wrong when a machine wakes, is corrected within minutes.
const CONFIRM: Confirm = Confirm::new("clockUnsynchronised", 3, 60, 600);

/// Largest allowed difference between the clock of the node and the clock of the API server. Kubelets renew a lease of 40 s by
/// the clock. Tokens and certificates are valid from the second in which they are made.
const SKEW: Bound = Bound::new("clockSkew", 30).range(3, 10);

pub(super) const SPEC: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM],
    bounds: &[&SKEW],
    condition: Some(ConditionType::ClockSynchronised),
    lasting: true,
    remedy: Remedy::NONE,
    ..FaultSpec::new(FaultGroup::Node, Severity::Medium, SubjectKind::Host)
};

/// A node has one clock.
const KEY: &str = "clock";

/// Detects a clock that differs. "Too far" is certain, however long the answer took. "Near" holds even in the worst case. Between
/// the two, an existing fault stays and no new fault begins.
pub(super) fn detect(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    // Each report brings one reading of the clock, so at rest one arrives every five minutes.
    let (clock, checked) = answer(&seen.clock, seen.now, "the API server's clock", CLOCK_STALE)?;
    let (certain, how, side) = if clock.ahead >= clock.behind {
        (clock.ahead, "ahead of", "ahead")
    } else {
        (clock.behind, "behind", "behind")
    };
    if certain <= thresholds.bound(&SKEW) {
        if clock.most < thresholds.bound(&SKEW) / 2 {
            return Ok(Coverage::new(Verdict::Clean { checked }));
        }
        return Ok(Coverage::undecided(
            KEY,
            checked,
            "the API server's answer was slow, or its clock is a little apart",
        ));
    }
    findings.sight(Sighting {
        message: format!(
            "the node's clock is {how} the API server's by more than {} s",
            thresholds.bound(&SKEW).as_secs()
        ),
        impact: "certificates and tokens count as expired or as not valid yet, and times that the kubelet writes are read \
                 wrongly; where all nodes say so, it is the API server's clock",
        evidence: vec![format!("{side} by {} s at least, by the date of an answer of the API server", certain.as_secs())],
        ..Sighting::new(FaultType::ClockUnsynchronised, KEY, checked, thresholds.confirm(&CONFIRM))
    });
    Ok(Coverage::undecided(KEY, checked, "the clocks are apart"))
}
