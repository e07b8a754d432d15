//! One question about one task, and what its answer means.

use std::time::{Duration, Instant};

use crate::core::observation::TaskAnswer;
use crate::node::cri::CriError;
use crate::node::cri::tasks::{TaskState, Tasks};

/// From which time on an unknown state means that containerd waited for the shim in vain. Its own limit is 2 s by
/// default; an unknown state that comes at once is an error of the shim, and a shim that errs is not deaf.
const WAITED: Duration = Duration::from_millis(500);

/// Asks once. `bound` is the end of the call.
///
/// # Errors
/// Whatever says nothing about this task: a broken connection, an error of containerd itself, no answer from
/// containerd within `bound`.
pub async fn ask(tasks: &Tasks, id: &str, bound: Duration) -> Result<TaskAnswer, CriError> {
    let sent = Instant::now();
    match tasks.get(id, bound).await {
        Ok(TaskState::Known) => Ok(TaskAnswer::Answered),
        Ok(TaskState::Ended) => Ok(TaskAnswer::Ended),
        Ok(TaskState::Unknown) if sent.elapsed() >= WAITED => Ok(TaskAnswer::NoAnswer),
        Ok(TaskState::Unknown) => {
            Err(CriError::Other("containerd at once called the state of the task unknown".to_owned()))
        }
        Err(CriError::DeadlineInside) => Ok(TaskAnswer::NoAnswer),
        Err(CriError::NotFound) => Ok(TaskAnswer::NotFound),
        Err(error) => Err(error),
    }
}
