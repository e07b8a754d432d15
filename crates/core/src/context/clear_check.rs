//! Whether a fault of a remediation is gone.

use std::time::Duration;

use jiff::Timestamp;

use super::{NodeContext, Probe, conditions};
use crate::fault::{FaultState, MAX_FAULTS};
use crate::faults::ShowsIn;
use crate::moment::since;
use crate::remediation::RemediationFault;
use crate::snapshot::{SuspectPod, TriState};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClearCheck {
    /// Gone, by a clean check.
    Clean,
    Present,
    /// Nobody could check since.
    Unknown,
}

/// How long the check waits for the successor of a deleted pod: the controller manager may have just lost its leader. A DaemonSet
/// that is gone, or that does not want the node any more, creates no successor.
const SUCCESSOR: Duration = Duration::from_secs(30);

/// Whether it is the stuck pod, or another pod of the same DaemonSet on the node.
fn is_of(pod: &SuspectPod, fault: &RemediationFault) -> bool {
    let Some(stuck) = &fault.subject.pod else { return false };
    let same_set = pod.pod.namespace == stuck.namespace && pod.daemon_set == fault.subject.name;
    pod.pod.uid == stuck.uid || same_set
}

impl NodeContext<'_> {
    /// Checks whether a fault of a remediation is gone, by a check later than `after`.
    pub fn clear_check(&self, fault: &RemediationFault, after: Option<Timestamp>) -> ClearCheck {
        let (now, fresh) = (self.cluster.snapshot.now, self.cluster.settings.evidence_max_age);
        if self.probe != Probe::Reporting {
            return ClearCheck::Unknown;
        }
        let is_later = |age: Duration| after.is_none_or(|after| age < since(now, after));
        if let Some(seen) = self.find(&fault.id) {
            // A pod that could not be read lately may be gone.
            let is_ambiguous = fault.kind.spec().shows_in == ShowsIn::Pod && seen.fault.state != FaultState::Confirmed;
            return if is_ambiguous { ClearCheck::Unknown } else { ClearCheck::Present };
        }
        let checked = match fault.kind.spec().shows_in {
            ShowsIn::Pod => {
                if self.pods.iter().any(|pod| is_of(pod, fault) && !pod.is_healthy()) {
                    return ClearCheck::Present;
                }
                // The deleted pod is gone. A successor that has not come yet does not clear the fault.
                let is_back = self.pods.iter().any(|pod| is_of(pod, fault));
                // Nor does it clear where no successor can come.
                let is_kept_away = self.view.is_some_and(|view| view.repels_daemon_sets().is_some());
                let is_awaited = !is_back && (is_kept_away || after.is_some_and(|after| since(now, after) < SUCCESSOR));
                !is_awaited && self.pods_read.is_some_and(|age| age <= fresh && is_later(age))
            }
            ShowsIn::Heartbeats => true,
            // Only the history that the controller keeps can show that the node does not flap any more.
            ShowsIn::History => self.stable == TriState::True && self.arrived().is_some_and(is_later),
            ShowsIn::KubeletStart => self.kubelet_works() && self.arrived().is_some_and(is_later),
            ShowsIn::Ready => {
                self.view.is_some_and(|view| view.ready == TriState::True) && self.arrived().is_some_and(is_later)
            }
            // The watch never goes back: the controller saw the current condition later than the one that it acted on. A later
            // report proves that the node was there to be written to.
            ShowsIn::Condition => conditions::is_other(self, fault) && self.arrived().is_some_and(is_later),
            // A full report may have left the fault out.
            ShowsIn::Report => {
                let is_full = self.report.is_none_or(|report| report.faults.len() >= MAX_FAULTS);
                // A probe that has just started without its memory, or that lost access to something, may have left it out too.
                let is_blind = self.report.is_none_or(|report| report.unchecked.contains(&fault.kind));
                !is_full && !is_blind && self.arrived().is_some_and(is_later)
            }
        };
        if checked { ClearCheck::Clean } else { ClearCheck::Unknown }
    }
}
