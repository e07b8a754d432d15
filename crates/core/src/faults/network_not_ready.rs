//! `NetworkNotReady`: the runtime reports that it has no network for pods.

use super::spec::FaultSpec;
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, Severity, SubjectKind};
use crate::finding::{Check, Coverage, Detected, Findings, STALE, Sighting, Verdict, answer};
use crate::text::bounded;
use crate::thresholds::Confirm;

/// A node that has just joined waits for the pod that installs its network plugin, and that pod waits for its image.
const CONFIRM: Confirm = Confirm::new("networkNotReady", 3, 45, 300);

pub(super) const SPEC: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM],
    condition: Some(ConditionType::NetworkReady),
    lasting: true,
    ..FaultSpec::new(FaultGroup::Runtime, Severity::High, SubjectKind::Runtime)
};

/// As far as the runtime knows, a node has one pod network.
const KEY: &str = "network";

pub(super) fn detect(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (status, checked) = answer(&seen.status, seen.now, "the runtime's status", STALE)?;
    let network = match &status.network {
        Some(network) if network.ready => return Ok(Coverage::new(Verdict::Clean { checked })),
        Some(network) => network,
        None => {
            return Err(Verdict::failed("this runtime does not say whether its network is ready"));
        }
    };
    let reason = match network.reason.as_str() {
        "" => "without a reason".to_owned(),
        reason => bounded(reason, 64),
    };
    findings.sight(Sighting {
        message: format!("the runtime says that its network is not ready ({reason})"),
        impact: "no pod that needs a network of its own is started on this node; a restart of runtime or kubelet \
                 changes nothing: check the pod that installs the network plugin",
        evidence: vec![format!("NetworkReady is false: {}", bounded(&network.message, 256))],
        ..Sighting::new(FaultType::NetworkNotReady, KEY, checked, thresholds.confirm(&CONFIRM))
    });
    Ok(Coverage::new(Verdict::failed("the network is not ready")))
}
