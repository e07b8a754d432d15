//! `ClientCertificateExpiring`: the client certificate of the kubelet expires soon, and nobody has renewed it.

use std::time::Duration;

use super::spec::{ByDaemon, FaultSpec, Remedy};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, Severity, SubjectKind};
use crate::finding::{Check, Coverage, Detected, Findings, STALE, Sighting, Verdict, answer};
use crate::observation::Credential;
use crate::thresholds::Confirm;

/// A kubelet that starts late, or on a machine that was suspended, renews its certificate at once.
const CONFIRM: Confirm = Confirm::new("clientCertificateExpiring", 3, 45, 1800);

pub(super) const SPEC: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM],
    worst_severity: Severity::High,
    condition: Some(ConditionType::ClientCertificateValid),
    lasting: true,
    // The severity is High once the kubelet cannot prove its identity.
    restart_harms: |fault| ByDaemon { kubelet: fault.severity >= Severity::High, runtime: false },
    remedy: Remedy::NONE,
    ..FaultSpec::new(FaultGroup::Kubelet, Severity::Medium, SubjectKind::Kubelet)
};

/// Share of its lifetime, in percent, below which a certificate is overdue. Kubelets renew theirs when 10 to 30 % are left.
const OVERDUE: u32 = 5;
/// Longest remaining time that counts as overdue. A certificate that nobody renews automatically is valid for years.
const MAX_LEFT: Duration = Duration::from_hours(14 * 24);
/// A node has one kubelet.
const KEY: &str = "kubelet";

/// Detects an overdue certificate. The wall clock counts here, for the probe as for the kubelet and the API server.
pub(super) fn detect(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (disks, checked) = answer(&seen.disks, seen.now, "the kubelet's certificate", STALE)?;
    let (place, lifetime, left) = match &disks.credential {
        Credential::Certificate { place, lifetime, left } => (place, *lifetime, *left),
        Credential::Other => return Ok(Coverage::new(Verdict::Clean { checked })),
        Credential::Unknown(why) => {
            return Err(Verdict::failed(why));
        }
    };
    if left > (lifetime.saturating_mul(OVERDUE) / 100).min(MAX_LEFT) {
        return Ok(Coverage::new(Verdict::Clean { checked }));
    }
    let is_over = left.is_zero();
    let (severity, message, impact) = if is_over {
        (
            Severity::High,
            format!("the kubelet's client certificate has expired ({place})"),
            "the API server takes nothing from this kubelet: the node turns NotReady, and its pods are given up, although \
             they run",
        )
    } else {
        (
            Severity::Medium,
            format!("the kubelet's client certificate expires soon and was not renewed ({place})"),
            "once it has expired, the API server rejects this kubelet; find the signing request that nobody approves",
        )
    };
    findings.sight(Sighting {
        severity,
        message,
        impact,
        evidence: vec![format!(
            "{} h of {} h are left, by the node's own clock",
            left.as_secs() / 3600,
            lifetime.as_secs() / 3600
        )],
        ..Sighting::new(FaultType::ClientCertificateExpiring, KEY, checked, thresholds.confirm(&CONFIRM))
    });
    Ok(Coverage::undecided(KEY, checked, "it is overdue"))
}
