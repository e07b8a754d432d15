//! `DbusUnresponsive`: systemd does not answer on the system bus of the node.

use super::spec::{ByDaemon, FaultSpec};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, Severity, Subject, SubjectKind};
use crate::finding::{Check, Coverage, Detected, Findings, STALE, Sighting, Verdict, answer};
use crate::observation::{BusSeen, BusStep};
use crate::text::bounded;
use crate::thresholds::Confirm;

/// systemd is busy for a minute at boot, and while it processes hundreds of mounts at once.
const CONFIRM: Confirm = Confirm::new("dbusUnresponsive", 3, 45, 180).may_be_slow();

pub(super) const SPEC: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM],
    condition: Some(ConditionType::SystemdResponsive),
    lasting: true,
    restart_harms: |fault| {
        // The severity is High where systemd does not answer. After an error, root can still use another way.
        let silent = fault.severity >= Severity::High;
        ByDaemon { kubelet: silent, runtime: silent }
    },
    ..FaultSpec::new(FaultGroup::Node, Severity::High, SubjectKind::Host)
};

/// A node has one systemd.
const KEY: &str = "systemd";

pub(super) fn detect(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (bus, checked) = answer(&seen.bus, seen.now, "the system bus", STALE)?;
    let (step, how, hangs) = match bus {
        BusSeen::Answered | BusSeen::NoBus => return Ok(Coverage::new(Verdict::Clean { checked })),
        BusSeen::NotOnIt => {
            return Err(Verdict::failed("the system bus says that systemd is not on it"));
        }
        BusSeen::Silent { step, how } => (*step, how, true),
        BusSeen::Refused { step, how } => (*step, how, false),
    };
    let message = match step {
        _ if !hangs => "the system bus takes nobody: nobody reaches systemd over it",
        BusStep::Ping => "the system bus answers, but systemd does not answer over it",
        BusStep::Connect | BusStep::Login | BusStep::Hello => {
            "the system bus does not answer: nobody reaches systemd over it"
        }
    };
    findings.sight(Sighting {
        subject: Subject::named(SubjectKind::Process, KEY),
        severity: if hangs { Severity::High } else { Severity::Medium },
        message: message.to_owned(),
        // As root, runc and systemctl connect to systemd directly where the bus returns an error. They wait where it returns
        // nothing.
        impact: if hangs {
            "a kubelet or runtime that has systemd make its control groups (cgroupDriver: systemd) starts and ends no \
             container, and a restart of either would wait"
        } else {
            "what reaches systemd over the bus alone is refused; runc and systemctl, as root, have another way"
        },
        evidence: vec![format!("{step}: {}", bounded(how, 256))],
        ..Sighting::new(FaultType::DbusUnresponsive, KEY, checked, thresholds.confirm(&CONFIRM))
    });
    Ok(Coverage::undecided(KEY, checked, "it did not answer"))
}
