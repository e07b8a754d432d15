//! Hand-offs in the record of a remediation: what was made for them, how one ends in vain, and what was taken back.

use jiff::Timestamp;

use super::{Remediation, StepState};

/// The remediation after its remediator was told that the time is over, or could not be told: the attempt is at its end.
#[must_use]
pub fn timed_out(remediation: &Remediation, operation_id: &str, message: &str, now: Timestamp) -> Remediation {
    let mut next = remediation.clone();
    let is_it = |id: &str| id == operation_id;
    if let Some(step) = next.current_step_mut().filter(|step| is_it(&step.operation_id)) {
        step.finish(StepState::TimedOut, message, now);
    }
    next.set_phase();
    next
}

/// The remediation after the object of this operation was deleted, or found to be gone or somebody else's.
#[must_use]
pub fn taken_back(remediation: &Remediation, operation_id: &str, now: Timestamp) -> Remediation {
    let mut next = remediation.clone();
    let of_operation = next.cleanup.handed_off.iter_mut().find(|handed| handed.operation_id == operation_id);
    if let Some(handed) = of_operation {
        handed.deleted_at.get_or_insert(now);
    }
    next.conclude(now);
    next
}
