//! Pods on a node that a drain may evict: how long each takes to end, and what blocks its eviction.

use std::time::Duration;

use jiff::Timestamp;

use nrh_core::action::Drain;
use nrh_core::drain::{Answer, CannotEnd, NodePod, PodState, Round, cannot_end, hung};
use nrh_core::fault::{Fault, PodRef};
use nrh_core::moment::since;
use nrh_core::remediation::ActionResult;
use nrh_core::tri_state::TriState;

/// One pod.
#[derive(Clone, Debug)]
pub struct Workload {
    /// As the API server shows it.
    pub pod: NodePod,
    /// The disruption budget that blocks its eviction, if there is one.
    pub budget: Option<String>,
    /// How long it takes to end.
    pub takes: Duration,
    /// Since when it has been terminating.
    pub evicted_at: Option<Timestamp>,
}

impl Workload {
    /// A pod that a controller recreates elsewhere and that ends within this time.
    pub const fn new(pod: PodRef, takes: Duration) -> Self {
        Self { pod: NodePod::plain(pod), budget: None, takes, evicted_at: None }
    }

    /// Whether it has ended by now.
    pub(super) fn is_gone(&self, now: Timestamp) -> bool {
        self.evicted_at.is_some_and(|at| since(now, at) >= self.takes)
    }
}

/// One round of evictions for an operation of this age.
pub(super) fn drain<'f>(
    workloads: &mut [Workload],
    with: &Drain,
    faults: impl Iterator<Item = &'f Fault> + Clone,
    now: Timestamp,
    operation: &str,
    age: Duration,
) -> ActionResult {
    let pods: Vec<NodePod> = workloads.iter().map(|workload| workload.pod.clone()).collect();
    let is_endless = matches!(cannot_end(TriState::True, TriState::True, faults.clone()), Some(CannotEnd::Known(_)));
    let name = format!("{operation}/{}", age.as_secs());
    let mut round = Round::begin(with, &pods, &hung(faults), &name).endless(is_endless);
    while let Some(pod) = round.take() {
        let answer = match workloads.iter_mut().find(|workload| workload.pod.pod == pod.pod) {
            None => Answer::Gone,
            Some(Workload { budget: Some(budget), .. }) => {
                Answer::Refused(format!("PodDisruptionBudget {budget} allows no disruption"))
            }
            Some(workload) => {
                workload.evicted_at = Some(now);
                workload.pod.state = PodState::Terminating;
                Answer::Accepted
            }
        };
        round.answered(pod, answer);
    }
    let message = round.sentence();
    if round.is_quiet() { ActionResult::Quiet { message } } else { ActionResult::InProgress { message } }
}
