//! Sends the questions that are due, and stores their answers.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::{CONTROL, LIST_BOUND};
use crate::collectors::runtime::{place, unconnected};
use crate::collectors::slot::Failure;
use crate::collectors::{Shared, lock};
use crate::runtime::{TaskClient, TaskEndpoint};
use nrh_core::observation::TaskAnswer;

/// Longest sleep: it limits the effect of an error in the computed next time.
const LONGEST: Duration = Duration::from_mins(1);

/// The result of one question.
enum Answer {
    /// For this task; when it was sent, and its result.
    Task(String, Instant, Result<TaskAnswer, Failure>),
    /// To the control question: when it was sent, if it was answered.
    Control(Option<Instant>),
    /// To the question for all tasks: when it was sent, and whose shims have answered, where the runtime reports that.
    All(Instant, Result<Option<BTreeSet<String>>, Failure>),
}

/// Asks questions for ever.
pub(in crate::collectors) async fn run(shared: Arc<Shared>) {
    let mut tempo = shared.tempo.subscribe();
    let mut asked = (tempo.borrow_and_update().asked, None);
    let mut connection: Option<(TaskEndpoint, TaskClient)> = None;
    let mut calls: JoinSet<Answer> = JoinSet::new();
    loop {
        let now = Instant::now();
        let (held_up, passed) = lock(&shared.tasks).count(now);
        shared.was_stalled("tasks", held_up);
        if passed {
            shared.changed.notify_one();
        }
        let wanted = tempo.borrow_and_update().asked;
        if wanted != asked.0 {
            asked = (wanted, Some(now));
        }
        let control = lock(&shared.tasks).control_due(now);
        if control.is_some_and(|due| due <= now) {
            lock(&shared.tasks).control = Some(now);
            // On its own connection: a stuck connection is no proof about the service.
            if let Ok(place) = place(&shared) {
                calls.spawn(ask_control(place, shared.proc.clone(), now));
            }
            continue;
        }
        let all = lock(&shared.tasks).list_due(now, asked.1);
        if all.is_some_and(|due| due <= now) {
            {
                let mut table = lock(&shared.tasks);
                (table.listed, table.list_is_out) = (Some(now), true);
            }
            match connected(&shared, &mut connection).await {
                Ok(service) => drop(calls.spawn(ask_all(service, now))),
                Err(failure) => finish(&shared, Answer::All(now, Err(failure)), &mut connection),
            }
            continue;
        }
        let next = {
            let table = lock(&shared.tasks);
            if table.has_room(now) { table.next(now, asked.1) } else { None }
        };
        if let Some((due, id)) = &next
            && *due <= now
        {
            let sent = Instant::now();
            lock(&shared.tasks).sent(id, sent);
            let bound = lock(&shared.tasks).pace().bound;
            match connected(&shared, &mut connection).await {
                Ok(service) => drop(calls.spawn(call(service, id.clone(), sent, bound))),
                Err(failure) => finish(&shared, Answer::Task(id.clone(), sent, Err(failure)), &mut connection),
            }
            continue;
        }
        let count = lock(&shared.tasks).next_count();
        let wake = [next.map(|(due, _)| due), count, control, all].into_iter().flatten().min();
        let wake = wake.map_or(now + LONGEST, |wake| wake.min(now + LONGEST));
        tokio::select! {
            Some(answer) = calls.join_next() => match answer {
                Ok(answer) => finish(&shared, answer, &mut connection),
                Err(error) => tracing::error!(%error, "a question about a task ended oddly"),
            },
            () = sleep_until(wake) => {}
            () = shared.tasks_changed.notified() => {}
            _ = tempo.changed() => {}
        }
    }
}

async fn call(asker: TaskClient, id: String, sent: Instant, bound: Duration) -> Answer {
    let result = asker.ask(&id, bound).await.map_err(Failure::from);
    Answer::Task(id, sent, result)
}

async fn ask_all(asker: TaskClient, sent: Instant) -> Answer {
    Answer::All(sent, asker.answered(LIST_BOUND).await.map_err(Failure::from))
}

async fn ask_control(place: TaskEndpoint, proc: PathBuf, sent: Instant) -> Answer {
    // Connecting and answering have one deadline each.
    let answers = async { TaskClient::connect(&place, &proc).await?.answers(CONTROL).await };
    Answer::Control(answers.await.is_ok().then_some(sent))
}

fn finish(shared: &Shared, answer: Answer, connection: &mut Option<(TaskEndpoint, TaskClient)>) {
    shared.was_stalled("tasks", lock(&shared.tasks).count(Instant::now()).0);
    let (id, sent, result) = match answer {
        Answer::Task(id, sent, result) => (id, sent, result),
        Answer::Control(answered) => {
            if answered.is_some() {
                let mut table = lock(&shared.tasks);
                table.alive = table.alive.max(answered);
                shared.changed.notify_one();
            }
            return;
        }
        Answer::All(sent, answered) => return finish_all(shared, sent, answered, connection),
    };
    match &result {
        Err(Failure::Exhausted(_)) => shared.call_abandoned("tasks"),
        // After any error, the next question gets a fresh connection.
        Err(_) => *connection = None,
        Ok(_) => {}
    }
    if lock(&shared.tasks).ended(&id, sent, result, Instant::now()) {
        shared.changed.notify_one();
    }
}

/// Handles the end of a question for all tasks. One that fails gives no information about any task: they are asked one by one.
fn finish_all(
    shared: &Shared,
    sent: Instant,
    answered: Result<Option<BTreeSet<String>>, Failure>,
    connection: &mut Option<(TaskEndpoint, TaskClient)>,
) {
    let mut table = lock(&shared.tasks);
    (table.list_is_out, table.list_works) = (false, false);
    match answered {
        Ok(Some(answered)) => {
            if table.answered(&answered, sent, Instant::now()) {
                shared.changed.notify_one();
            }
        }
        Ok(None) => {}
        Err(Failure::Exhausted(_)) => shared.call_abandoned("tasks"),
        Err(_) => *connection = None,
    }
}

async fn connected(
    shared: &Shared,
    connection: &mut Option<(TaskEndpoint, TaskClient)>,
) -> Result<TaskClient, Failure> {
    let place = place(shared)?;
    if let Some((to, asker)) = connection
        && *to == place
    {
        return Ok(asker.clone());
    }
    let asker = TaskClient::connect(&place, &shared.proc).await.map_err(unconnected)?;
    *connection = Some((place, asker.clone()));
    Ok(asker)
}
