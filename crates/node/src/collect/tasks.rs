//! One question about one task, and what its answer means.

use std::path::Path;
use std::time::Duration;

use containerd_client::types::v1::Status;

use crate::cri::CriError;
use crate::cri::tasks::Tasks;
use crate::deadline::timed;
use crate::docker::Docker;
use crate::proc::{self, Handle};
use nrh_core::observation::TaskAnswer;

/// Time from which on an unknown state means that containerd waited for the shim in vain. containerd's own limit is 2 s by
/// default. An unknown state that comes at once is an error of the shim, and a shim that reports an error is not unresponsive.
/// Only time in which this process could run counts: an answer that this process was late to read came at once.
const WAITED: Duration = Duration::from_secs(1);

/// How long the containerd behind Docker is asked. It waits 2 s for a shim. Where containerd itself is stuck, Docker's own
/// answer has to come before it counts as late, or every container would seem to hang.
const SHIM: Duration = Duration::from_secs(3);

/// Asks containerd once. `bound` is the deadline of the call.
///
/// # Errors
/// Any error that gives no information about this task: a broken connection, an error of containerd itself, no answer from
/// containerd within `bound`.
pub async fn ask(tasks: &Tasks, id: &str, bound: Duration) -> Result<TaskAnswer, CriError> {
    let (answer, took) = timed(WAITED, tasks.get(id, bound)).await;
    match answer {
        Ok(Status::Unknown) if took >= WAITED => Ok(TaskAnswer::NoAnswer),
        Ok(Status::Unknown) => {
            Err(CriError::Other("containerd at once called the state of the task unknown".to_owned()))
        }
        Ok(Status::Stopped) => Ok(TaskAnswer::Ended),
        Ok(_) => Ok(TaskAnswer::Answered),
        Err(CriError::DeadlineInside) => Ok(TaskAnswer::NoAnswer),
        Err(CriError::NotFound) => Ok(TaskAnswer::NotFound),
        Err(error) => Err(error),
    }
}

/// Asks Docker once. Docker has no limit of its own, so the caller measures its silence. Docker answers from memory. So this
/// function looks for the process in the process table at `proc`, and asks the containerd behind Docker as [`ask`] does. An
/// error of that containerd changes nothing.
///
/// # Errors
/// Any error that gives no information about this container: a broken connection, an error of Docker itself, no answer within
/// `bound`.
pub async fn inspect(
    docker: &Docker,
    tasks: Option<&Tasks>,
    proc: &Path,
    id: &str,
    bound: Duration,
) -> Result<TaskAnswer, CriError> {
    let inspected = docker.inspect(id, bound).await;
    // The report may hold a long text: it is dropped before the next wait.
    let answer = inspected.map(|status| status.answer(status.pid().is_some_and(|pid| is_gone(proc, pid))));
    match (answer, tasks) {
        (Ok(TaskAnswer::DaemonAnswered), Some(tasks)) => match ask(tasks, id, SHIM.min(bound)).await {
            Ok(answer @ (TaskAnswer::NoAnswer | TaskAnswer::Answered)) => Ok(answer),
            _ => Ok(TaskAnswer::DaemonAnswered),
        },
        (Err(CriError::NotFound), _) => Ok(TaskAnswer::NotFound),
        (answer, _) => answer,
    }
}

/// Whether this process certainly does not exist. One that has ended and is still in the table (Z) proves nothing: its other
/// threads may still work. The check reads only `stat`, which no process can block.
fn is_gone(root: &Path, pid: i32) -> bool {
    match Handle::open(root, pid).and_then(|handle| handle.stat()) {
        Ok(stat) => stat.state != 'Z' && proc::is_dead(stat.state),
        Err(error) => proc::is_gone(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::fake::{Fake, Say, task};
    use crate::docker::fake::{Fake as Dockerd, id};

    #[tokio::test]
    async fn a_containerd_behind_docker_that_is_stuck_takes_nothing_from_dockers_answer() {
        let (dockerd, fake) = (Dockerd::start(), Fake::start());
        let (sandbox, container) = (id('a'), id('c'));
        dockerd.lists(&[&sandbox], &[(&container, &sandbox)]);
        let (docker, tasks) = (Docker::at(&dockerd.socket()), Tasks::connect(&fake.socket()).await.unwrap());
        let proc = Path::new(proc::PROC);
        for (says, means) in [
            (Say::Never, TaskAnswer::DaemonAnswered),
            (Say::Error(tonic::Code::NotFound, "no task".to_owned()), TaskAnswer::DaemonAnswered),
            (Say::Error(tonic::Code::DeadlineExceeded, "state".to_owned()), TaskAnswer::NoAnswer),
            (task(2), TaskAnswer::Answered),
        ] {
            fake.say("Get", says);
            let question = inspect(&docker, Some(&tasks), proc, &container, Duration::from_hours(1));
            let answer = tokio::time::timeout(Duration::from_secs(30), question).await;
            assert_eq!(answer.unwrap(), Ok(means));
        }
    }

    #[tokio::test]
    async fn what_this_process_was_late_to_read_came_at_once() {
        let fake = Fake::start();
        fake.say("Get:c1", task(0));
        let tasks = Tasks::connect(&fake.socket()).await.unwrap();
        let bound = Duration::from_secs(20);
        let held_up = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            std::thread::sleep(WAITED + Duration::from_millis(500));
        };
        let (answer, ()) = tokio::join!(ask(&tasks, "c1", bound), held_up);
        assert!(matches!(answer, Err(CriError::Other(_))), "{answer:?}");
        fake.say("Get:c1", Say::Late(WAITED + Duration::from_millis(300), Box::new(task(0))));
        assert_eq!(ask(&tasks, "c1", bound).await, Ok(TaskAnswer::NoAnswer));
    }
}
