//! A kubelet that does not complete its start, and a kubelet that cannot check its pods: what the Node object says about it,
//! joined with what the probe sees of its process.
//!
//! `Ready` alone proves little. Measured with kubelet 1.36 and a stopped shim: the start was blocked for 61 to 152 s, no pod was
//! synced in that time, and the node stayed `Ready=True` with a fresh lease, since a separate loop renews the lease. Only the
//! times of the conditions did not change: a kubelet writes them when it begins, and this one had not begun. At rest a kubelet
//! writes them only every five minutes, so old times alone prove nothing. Times that are older than the process of the kubelet
//! do. Kubelet 1.30 wrote `Ready=False`, and that its start is not complete.

pub use complaint::{Complaint, complaint};

use super::external_condition::ExternalCondition;
use super::fault::{Fault, FaultType, MAX_LINE, Subject, SubjectKind};
use super::faults::kubelet_start_blocked;
use super::snapshot::{KubeletView, NodeView};
use super::text::bounded;
use super::tri_state::TriState;

pub mod complaint;

/// Times of conditions are whole seconds, and the start of a process is calculated back from its age.
const SLACK: i64 = 3;

/// How a message introduces the fault on the node that explains the state of the kubelet.
const LIKELY: &str = "likely cause";

/// The conditions by which a kubelet says that its node is short of a resource.
const PRESSURE: [&str; 3] = ["MemoryPressure", "DiskPressure", "PIDPressure"];

/// The resource pressure that the kubelet reports, by its condition.
pub fn pressure(view: &NodeView) -> Option<&str> {
    let is_pressure = |one: &&ExternalCondition| one.status == TriState::True && PRESSURE.contains(&one.kind.as_str());
    view.conditions.iter().find(is_pressure).map(|one| one.kind.as_str())
}

/// How a start that is not complete appears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// The kubelet has not written the status of the node since it began.
    Silent,
    /// The kubelet itself says so.
    Says,
}

/// Whether the kubelet has not completed its start yet, for however short a time. Missing or contradicting evidence yields
/// `None`: a sandbox that was made since proves that the kubelet accepts pods, and a node that is not reported at all (Ready
/// Unknown) has lost more than the start of its kubelet.
pub fn unfinished(view: &NodeView, kubelet: &KubeletView) -> Option<Unfinished> {
    let (began, written) = (kubelet.began?.as_second(), view.status_at?.as_second());
    if kubelet.creates_pods {
        return None;
    }
    match view.ready {
        TriState::True => (written.saturating_add(SLACK) < began).then_some(Unfinished::Silent),
        TriState::False if view.complaint == Some(Complaint::StartIncomplete) => {
            (written.saturating_add(SLACK) >= began).then_some(Unfinished::Says)
        }
        TriState::False | TriState::Unknown => None,
    }
}

/// The fault of a kubelet whose start is blocked. `faults` are those that the probe reports, in whatever state.
pub fn start_blocked(node: &str, view: &NodeView, kubelet: &KubeletView, faults: &[&Fault]) -> Option<Fault> {
    let (began, how) = (kubelet.began?, unfinished(view, kubelet)?);
    if kubelet.age < kubelet_start_blocked::AGE || kubelet.unfinished? < kubelet_start_blocked::SEEN {
        return None;
    }
    let (shows, ready) = match how {
        Unfinished::Silent => (
            "has not written its node's status since: its start is blocked, although the node is Ready",
            "Ready is True all the same: the lease, which keeps it so, is renewed by another loop of the kubelet",
        ),
        Unfinished::Says => ("says that its start is not complete", "Ready is False: KubeletNotReady"),
    };
    let cause = Fault::likely_cause(faults, |fault| match fault.kind {
        FaultType::HungContainer => Some(0),
        FaultType::RuntimeListHung | FaultType::RuntimeUpdateBlocked => Some(1),
        FaultType::RuntimeUnreachable => Some(2),
        FaultType::LeakedShim => Some(3),
        _ => None,
    });
    let message = format!("the kubelet that began at {began} {shows}{}", Fault::because(cause, LIKELY));
    let mut evidence = vec![ready.to_owned()];
    evidence.extend(view.status_at.map(|at| format!("the node's status was last written at {at}")));
    evidence.extend(cause.map(|cause| cause.message.clone()));
    Some(Fault {
        impact:
            "no pod of this node is started, stopped or watched; another restart of the kubelet begins the wait anew"
                .to_owned(),
        // The time is by the node's own clock, and the same from pass to pass.
        first_seen: began,
        duration_seconds: kubelet.age.as_secs(),
        check_age_seconds: kubelet.checked.as_secs(),
        ..fault(FaultType::KubeletStartBlocked, node, &message, &evidence)
    })
}

/// Whether the node's kubelet says that it cannot check its pods. It says so after three minutes (ten with events).
pub fn says_pleg_stalled(view: &NodeView) -> bool {
    view.ready == TriState::False && view.complaint == Some(Complaint::PlegStalled)
}

/// The fault of a node's kubelet that cannot check its pods, if it [says so](says_pleg_stalled).
pub fn pleg_stalled(node: &str, view: &NodeView, kubelet: Option<&KubeletView>, faults: &[&Fault]) -> Option<Fault> {
    if !says_pleg_stalled(view) {
        return None;
    }
    let cause = Fault::likely_cause(faults, |fault| match fault.kind {
        kind if kind.spec().runtime_unresponsive => Some(0),
        FaultType::HungContainer => Some(1),
        FaultType::NetworkPluginHung => Some(2),
        _ => None,
    });
    let message = format!(
        "the kubelet has not been able to relist its pods for minutes (PLEG is not healthy): the runtime's lists hang, \
         or it waits for single objects one after another{}",
        Fault::because(cause, LIKELY)
    );
    let mut evidence = vec!["Ready is False: KubeletNotReady".to_owned()];
    if let Some(settings) = kubelet.and_then(|kubelet| kubelet.settings) {
        let limit = settings.request_timeout.as_secs();
        evidence.push(format!("it gives each call to its runtime {limit} s"));
        if settings.evented_pleg {
            evidence
                .push("it takes changes from the runtime's events, and waits ten minutes before it says so".to_owned());
        }
    }
    evidence.extend(cause.map(|cause| cause.message.clone()));
    Some(Fault {
        impact: "what becomes of the pods of this node is seen late or not at all; the node takes no new ones"
            .to_owned(),
        first_seen: view.ready_since.unwrap_or_default(),
        ..fault(FaultType::PlegStalled, node, &message, &evidence)
    })
}

fn fault(kind: FaultType, node: &str, message: &str, evidence: &[String]) -> Fault {
    Fault {
        subject: Subject::named(SubjectKind::Kubelet, "kubelet"),
        message: bounded(message, MAX_LINE),
        evidence: evidence.iter().map(|line| bounded(line, MAX_LINE)).collect(),
        ..Fault::new(kind, node)
    }
}

#[cfg(test)]
mod tests;
