//! What the probe of a node in the small cluster reports.

use std::time::Duration;

use super::{InjectedFault, WorldNode};
use nrh_core::fault::Fault;
use nrh_core::restart_safety::by_faults;
use nrh_core::snapshot::{ReportedFault, RestartView, TriState};

impl WorldNode {
    /// The probe reports the current state.
    pub fn send(&mut self) {
        if let Some(heartbeat) = &mut self.report.heartbeat {
            heartbeat.arrived = Duration::ZERO;
            heartbeat.sequence += 1;
        }
        let checked = self.checked;
        let report = |sick: &InjectedFault| ReportedFault { fault: sick.fault.clone(), checked };
        self.report.faults = self.sick.iter().map(report).collect();
        self.report.restart = self.restart();
    }

    /// What the probe would report about a restart, by the faults alone.
    fn restart(&self) -> RestartView {
        let faults = || self.sick.iter().map(|sick| &sick.fault);
        let forbids = |fault: &&Fault| by_faults([*fault]) != (TriState::True, TriState::True);
        let named: Vec<&str> = faults().filter(forbids).map(|fault| fault.kind.as_str()).collect();
        let (kubelet, runtime) = by_faults(faults());
        // The duration of the oldest fault: the probe does not distinguish which fault forbids the restart.
        let oldest = faults().map(|fault| fault.duration_seconds).max().filter(|_| !named.is_empty());
        RestartView {
            kubelet,
            runtime,
            message: format!("the node has {}", named.join(", ")),
            unsafe_for: Duration::from_secs(oldest.unwrap_or_default()),
        }
    }
}
