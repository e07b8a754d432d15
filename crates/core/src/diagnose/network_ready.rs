//! `NetworkNotReady`: the runtime says that it has no network for pods.

use super::component::Component;
use super::{Findings, STALE, Verdict, answer};
use crate::fault::{FaultType, Severity, Subject, SubjectKind};
use crate::observation::Observations;
use crate::reason::ConditionReason;
use crate::text::bounded;
use crate::thresholds::Thresholds;

/// There is one network of pods on a node, as far as the runtime knows.
const KEY: &str = "network";

pub(super) fn not_ready(seen: &Observations, thresholds: &Thresholds, findings: &mut Findings) {
    let kind = FaultType::NetworkNotReady;
    let (status, looked) = match answer(&seen.status, seen.now, "the runtime's status", STALE) {
        Ok(found) => found,
        Err(verdict) => return findings.blind(kind, verdict),
    };
    let network = match &status.network {
        Some(network) if network.ready => return findings.blind(kind, Verdict::Clean { looked }),
        Some(network) => network,
        None => {
            let detail = "this runtime does not say whether its network is ready";
            return findings.blind(kind, Verdict::unknown(ConditionReason::CheckFailed, detail));
        }
    };
    let reason = match network.reason.as_str() {
        "" => "without a reason".to_owned(),
        reason => bounded(reason, 64),
    };
    findings.sightings.push(
        Component {
            kind,
            key: KEY,
            subject: Subject::named(SubjectKind::Runtime, KEY),
            severity: Severity::High,
            message: format!("the runtime says that its network is not ready ({reason})"),
            impact: "no pod that needs a network of its own is started on this node; a restart of runtime or kubelet \
                     changes nothing: check the pod that installs the network plugin",
            evidence: vec![format!("NetworkReady is false: {}", bounded(&network.message, 256))],
            looked,
            confirm: thresholds.network_not_ready,
        }
        .into(),
    );
    findings.blind(kind, Verdict::unknown(ConditionReason::CheckFailed, "the network is not ready"));
}
