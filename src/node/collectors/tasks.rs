//! The collector of single tasks: suspects at once, then at a fixed distance and in time for each look that counts, all others in turn, and everybody at once when a
//! check is asked for.
//!
//! Behind containerd one question a round reaches all shims (`Tasks/List`). A task that its answer lacks is a suspect; while it
//! stays out, all are asked one by one.
//!
//! containerd bounds its own wait for a shim; Docker and CRI-O wait for a locked container for ever, where they wait. A
//! question that stays without any answer may also mean that the daemon itself is stuck, with every shim well: it counts
//! against its task only once the daemon has answered another question after the deadline of this one. Where none is on
//! its way, a control question is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::pace::{Pace, Paces, back_off};
use super::runtime::{place, unconnected};
use super::slot::{Failure, Slot};
use super::{Shared, lock};
use crate::core::observation::{ListRound, Reading, RuntimeKind, TaskAnswer};
use crate::core::thresholds::task_interval;
use crate::node::runtime::{Asker, Place};

mod wanted;

use wanted::wanted;

/// Most questions out at any time that are not past their deadline.
const MAX_FRESH: usize = 4;
/// Most questions out at any time.
const MAX_OUT: usize = 16;
/// Wait between two control questions, and the end of each.
const CONTROL: Duration = Duration::from_secs(5);
/// Most tasks that are looked after; far above what a kubelet allows.
const MAX_TASKS: usize = 8192;
/// Least time between two questions to one suspect when somebody asks for a check now.
const SUSPECT_INTERVAL: Duration = Duration::from_secs(1);
/// Least time between two questions to other tasks when somebody asks for a check now: 250 tasks take 5 s.
const HURRIED_INTERVAL: Duration = Duration::from_millis(20);
/// How long the question for all tasks may stay out: containerd waits 2 s for each shim that gives no answer.
const LIST_BOUND: Duration = Duration::from_secs(20);
/// How long containerd waits for one shim, at least: so long it has been silent when that is told
/// (`io.containerd.timeout.task.state`).
const SHIM_WAIT: Duration = Duration::from_secs(2);
/// How much later than necessary a task is asked for an answer that counts. The tracker computes the time of an answer from its age, with
/// an error of milliseconds. It ignores an answer that seems too early, and the next one follows many seconds later.
const LATE: Duration = Duration::from_millis(500);
/// Wait before a question that failed (a broken connection) is asked again.
const RETRY: Duration = Duration::from_secs(30);
/// Longest sleep: bounds a mistake in reckoning the next one.
const LONGEST: Duration = Duration::from_mins(1);

/// One task and when it was asked for.
#[derive(Debug)]
struct Entry {
    sandbox: String,
    slot: Slot<TaskAnswer>,
    ended: Option<Instant>,
    given_up: u32,
    /// It did not answer last time: suspected by this collector itself.
    mute: bool,
    /// The last question failed and said nothing about the task.
    failed: bool,
    /// The last answer for all tasks lacked it.
    missing: bool,
    /// Silence seen by the question for all, not yet added to a look.
    silent: Duration,
    /// Of a task that gives no answer, the newest look that counts.
    counted: Option<Instant>,
}

impl Entry {
    fn new(sandbox: &str, deadline: Duration) -> Self {
        let slot = Slot::new(deadline);
        let sandbox = sandbox.to_owned();
        Self {
            sandbox,
            slot,
            ended: None,
            given_up: 0,
            mute: false,
            failed: false,
            missing: false,
            silent: Duration::ZERO,
            counted: None,
        }
    }

    /// Least time after the last question before the next one to a task that nobody suspects.
    fn own_wait(&self, pace: Pace) -> Duration {
        let wait = if self.failed { RETRY.min(pace.rest) } else { pace.rest };
        back_off(self.given_up).map_or(wait, |least| wait.max(least))
    }
}

/// All tasks there are, and who is suspected.
#[derive(Debug)]
pub(super) struct Table {
    /// The rhythm of questions to containerd, and to Docker and CRI-O.
    paces: (Pace, Pace),
    /// Time between two looks at a silent task that both count.
    counted: Duration,
    /// Whom to ask, as far as known.
    kind: RuntimeKind,
    entries: BTreeMap<String, Entry>,
    suspects: BTreeSet<String>,
    /// Sandboxes whose shim is stopped.
    stopped: BTreeSet<String>,
    /// Ids of shims that may be left over: whether containerd knows their task tells.
    lonely: BTreeSet<String>,
    /// When a task that nobody suspects was asked for last.
    turn: Option<Instant>,
    /// When all tasks were asked for last, by one question; whether that is out, and whether the last one was answered.
    listed: Option<Instant>,
    list_is_out: bool,
    list_works: bool,
    /// When the newest question was sent that the task service has answered.
    alive: Option<Instant>,
    /// When the last control question was sent.
    control: Option<Instant>,
}

impl Table {
    pub(super) const fn new(paces: &Paces) -> Self {
        Self {
            paces: (paces.tasks, paces.inspect),
            counted: paces.counted,
            kind: RuntimeKind::Unknown,
            entries: BTreeMap::new(),
            suspects: BTreeSet::new(),
            stopped: BTreeSet::new(),
            lonely: BTreeSet::new(),
            turn: None,
            listed: None,
            list_is_out: false,
            list_works: false,
            alive: None,
            control: None,
        }
    }

    /// Whether the runtime answers questions about single tasks at all.
    const fn serves(&self) -> bool {
        matches!(self.kind, RuntimeKind::Containerd | RuntimeKind::Docker | RuntimeKind::CriO)
    }

    fn pace(&self) -> Pace {
        if self.kind.answers_itself() { self.paces.1 } else { self.paces.0 }
    }

    pub(super) fn looks(&self, now: Instant) -> BTreeMap<String, Reading<TaskAnswer>> {
        let asked = self.entries.iter().filter(|(_, entry)| entry.ended.is_some() || entry.slot.is_out());
        asked.map(|(id, entry)| (id.clone(), self.look(entry, now))).collect()
    }

    fn look(&self, entry: &Entry, now: Instant) -> Reading<TaskAnswer> {
        match entry.slot.look(now) {
            Reading::Hung { out } if !self.is_proven(entry, now) => {
                let out = out.as_secs();
                let who = match self.kind {
                    RuntimeKind::Docker => "Docker",
                    RuntimeKind::CriO => "CRI-O",
                    _ => "containerd",
                };
                let error = format!("out for {out} s, and {who} has answered no other question since it was due");
                Reading::Failed { error, age: Duration::ZERO }
            }
            look => look,
        }
    }

    /// Whether the daemon has answered a question that was sent after the deadline of this one. When an answer is read
    /// says nothing: it may have waited for this process.
    fn is_proven(&self, entry: &Entry, now: Instant) -> bool {
        entry.slot.due_since(now).is_some_and(|due| self.alive.is_some_and(|alive| alive >= due))
    }

    /// When a control question is due; `None` while nothing depends on its answer.
    fn control_due(&self, now: Instant) -> Option<Instant> {
        let unproven = self.entries.values().filter(|entry| !self.is_proven(entry, now));
        let due = unproven.filter_map(|entry| entry.slot.due_since(now)).min()?;
        Some(self.control.map_or(due, |sent| due.max(sent + CONTROL)))
    }

    /// Whether one more question may be sent.
    fn has_room(&self, now: Instant) -> bool {
        let out = || self.entries.values().filter(|entry| entry.slot.is_out());
        out().count() < MAX_OUT && out().filter(|entry| entry.slot.due_since(now).is_none()).count() < MAX_FRESH
    }

    pub(super) fn out(&self) -> usize {
        self.entries.values().filter(|entry| entry.slot.is_out()).count()
    }

    /// Whether this set differs from the one before.
    pub(super) fn suspect(&mut self, ids: BTreeSet<String>) -> bool {
        std::mem::replace(&mut self.suspects, ids) != self.suspects
    }

    /// What kind of runtime there is to ask. Whether that changed.
    pub(super) fn serve(&mut self, kind: RuntimeKind) -> bool {
        let changed = std::mem::replace(&mut self.kind, kind) != kind;
        if changed {
            // What another runtime said, or will say, is about other tasks.
            self.entries.clear();
            (self.alive, self.listed, self.list_works) = (None, None, false);
        }
        changed
    }

    /// The ids whose shim is stopped. Whether they differ from those before.
    pub(super) fn stopped(&mut self, ids: BTreeSet<String>) -> bool {
        std::mem::replace(&mut self.stopped, ids) != self.stopped
    }

    /// The ids of shims that may be left over; they are asked for from the next round on.
    pub(super) fn lonely(&mut self, ids: BTreeSet<String>) {
        self.lonely = ids;
    }

    /// Takes over what the runtime lists. Whether anything changed.
    pub(super) fn aim(&mut self, round: &ListRound) -> bool {
        // Docker does not know who else's they may be.
        let lonely = if self.kind == RuntimeKind::Containerd { self.lonely.clone() } else { BTreeSet::new() };
        let mut wanted = if self.serves() { wanted(round, self.kind) } else { BTreeMap::new() };
        for id in &lonely {
            wanted.entry(id).or_insert(id);
        }
        let deadline = self.pace().deadline;
        let before = self.entries.len();
        // A question that is out stays known until it ends, or it could be sent twice.
        self.entries.retain(|id, entry| entry.slot.is_out() || wanted.contains_key(id.as_str()));
        let mut changed = self.entries.len() != before;
        for (id, sandbox) in wanted {
            if self.entries.len() >= MAX_TASKS || self.entries.contains_key(id) {
                continue;
            }
            changed = true;
            self.entries.insert(id.to_owned(), Entry::new(sandbox, deadline));
        }
        changed
    }

    fn is_suspect(&self, id: &str, entry: &Entry) -> bool {
        entry.mute
            || entry.missing
            || self.suspects.contains(id)
            || self.suspects.contains(&entry.sandbox)
            || self.stopped.contains(&entry.sandbox)
            || self.stopped.contains(id)
    }

    /// When a suspect may be asked for again. `asked` is when somebody last wanted a look at once.
    fn suspect_due(&self, entry: &Entry, now: Instant, asked: Option<Instant>) -> Instant {
        let Some(ended) = entry.ended.filter(|_| !entry.missing) else { return now };
        let wanted = asked.is_some_and(|asked| asked > ended);
        let urgent = self.pace().urgent;
        let wait = if wanted { SUSPECT_INTERVAL.min(urgent) } else { urgent };
        let due = ended + back_off(entry.given_up).map_or(wait, |least| wait.max(least));
        // So that its answer comes when it counts, and no question is out then that was asked too early for that. What gives no answer
        // at all is not hurried.
        let counts = entry.counted.filter(|_| !entry.failed);
        let counts = counts.map(|counted| (counted + self.counted + LATE).checked_sub(SHIM_WAIT).unwrap_or(now));
        let next = |counts: Instant| {
            let is_early = due + SHIM_WAIT + SUSPECT_INTERVAL <= counts;
            if is_early { due } else { counts.max(ended + SUSPECT_INTERVAL) }
        };
        counts.map_or(due, next)
    }

    /// The next question, and when it is due: the most overdue suspect, else the task whose turn it is.
    fn next(&self, now: Instant, asked: Option<Instant>) -> Option<(Instant, String)> {
        let free = || self.entries.iter().filter(|(_, entry)| !entry.slot.is_out());
        let suspect = free()
            .filter(|(id, entry)| self.is_suspect(id, entry))
            .map(|(id, entry)| (self.suspect_due(entry, now, asked), id.clone()))
            .min();
        let pace = self.pace();
        let count = u32::try_from(self.entries.len()).unwrap_or(u32::MAX).max(1);
        let interval = self.round().checked_div(count).unwrap_or_default();
        // Those that the question for all has shown to answer have had their turn.
        let own_wait = |entry: &Entry| {
            let least = if self.list_works { self.round() + LIST_BOUND } else { Duration::ZERO };
            entry.own_wait(pace).max(least)
        };
        let after = |interval| self.turn.map_or(now, |turn| turn + interval);
        let other = free()
            .filter(|(id, entry)| !self.is_suspect(id, entry))
            .min_by_key(|(_, entry)| entry.ended.map(|ended| ended + own_wait(entry)))
            .map(|(id, entry)| {
                let own = entry.ended.map(|ended| ended + own_wait(entry));
                let hurried = entry.given_up == 0 && asked.is_some_and(|asked| entry.ended < Some(asked));
                let due =
                    if hurried { after(HURRIED_INTERVAL) } else { own.into_iter().fold(after(interval), Instant::max) };
                (due, id.clone())
            });
        match (suspect, other) {
            (Some(suspect), Some(other)) if suspect.0 <= now || suspect.0 <= other.0 => Some(suspect),
            (Some(suspect), None) => Some(suspect),
            (_, other) => other,
        }
    }

    fn sent(&mut self, id: &str, now: Instant) {
        let suspected = self.entries.get(id).is_some_and(|entry| self.is_suspect(id, entry));
        if !suspected {
            self.turn = Some(now);
        }
        if let Some(entry) = self.entries.get_mut(id) {
            entry.slot.sent(now);
            entry.missing = false;
        }
    }

    /// The time in which all tasks are asked for.
    fn round(&self) -> Duration {
        let tasks = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        self.pace().rest.max(task_interval(self.kind).min(self.pace().rest).saturating_mul(tasks))
    }

    /// When all tasks are to be asked for by one question; never while that is out. `asked` is when somebody last wanted a check.
    fn list_due(&self, now: Instant, asked: Option<Instant>) -> Option<Instant> {
        if self.list_is_out
            || self.entries.is_empty()
            || !matches!(self.kind, RuntimeKind::Containerd | RuntimeKind::Docker)
        {
            return None;
        }
        let Some(listed) = self.listed else { return Some(now) };
        Some(if asked > Some(listed) { listed + SUSPECT_INTERVAL } else { listed + self.round() })
    }

    /// Takes in whose shims have answered the question that was sent then, now. Whether that is news.
    fn answered(&mut self, answered: &BTreeSet<String>, sent: Instant, now: Instant) -> bool {
        if !self.entries.keys().any(|id| answered.contains(id)) {
            // All are deaf, or it is another containerd: each is asked alone in its turn.
            return false;
        }
        self.alive = self.alive.max(Some(sent));
        // What Docker itself says of a container is asked for alone.
        let is_enough = self.kind == RuntimeKind::Containerd;
        self.list_works = is_enough;
        // An answer that came at once has waited for no shim.
        let silent = if now >= sent + SHIM_WAIT { SHIM_WAIT } else { Duration::ZERO };
        let mut news = false;
        let asked_before =
            self.entries.iter().filter(|(_, entry)| !entry.slot.is_out() && entry.ended.is_none_or(|at| at < sent));
        let ids: Vec<String> = asked_before.map(|(id, _)| id.clone()).collect();
        for id in ids {
            if answered.contains(&id) {
                if is_enough {
                    // Its shim may have answered any time since: the oldest counts.
                    news |= self.ended(&id, sent, Ok(TaskAnswer::Answered), sent);
                }
            } else if let Some(entry) = self.entries.get_mut(&id).filter(|entry| !entry.mute) {
                // One that is known to be silent is asked when its answer counts.
                (entry.missing, entry.silent) = (true, silent);
                news = true;
            }
        }
        news
    }

    /// Whether that is news. That a task goes on answering is none: it is asked for every other second on a full node.
    fn ended(&mut self, id: &str, sent: Instant, result: Result<TaskAnswer, Failure>, now: Instant) -> bool {
        if result.is_ok() {
            self.alive = self.alive.max(Some(sent));
        }
        let Some(entry) = self.entries.get_mut(id) else { return false };
        let still = entry.slot.due_since(now).is_none()
            && matches!(&result, Ok(TaskAnswer::Answered | TaskAnswer::DaemonAnswered))
            && entry.slot.value() == result.as_ref().ok();
        let given_up = matches!(result, Err(Failure::Exhausted(_)));
        entry.given_up = if given_up { entry.given_up.saturating_add(1) } else { 0 };
        entry.mute = match &result {
            Ok(answer) => *answer == TaskAnswer::NoAnswer,
            // An error says nothing new about the task.
            Err(_) => entry.mute || given_up,
        };
        entry.failed = result.is_err();
        entry.ended = Some(now);
        let mut took = now.saturating_duration_since(sent);
        if result == Ok(TaskAnswer::NoAnswer) {
            // Not all of that time was the shim's: this process, or containerd, may have been held up.
            took = took.min(SHIM_WAIT) + entry.silent;
            entry.counted = match entry.counted {
                Some(before) if now < before + self.counted => Some(before),
                Some(_) => Some(now),
                None => now.checked_sub(took),
            };
        } else if result.is_ok() {
            entry.counted = None;
        }
        entry.silent = Duration::ZERO;
        entry.slot.ended(result, now, took);
        !still
    }

    /// Counts for how long each question has been out: how long this process was held up meanwhile, and whether one has
    /// passed its deadline since the last time.
    fn count(&mut self, now: Instant) -> (Duration, bool) {
        let (mut held_up, mut passed) = (Duration::ZERO, false);
        for slot in self.entries.values_mut().map(|entry| &mut entry.slot) {
            let was_within = slot.next_count().is_some();
            held_up = held_up.max(slot.count(now));
            passed |= was_within && slot.next_count().is_none();
        }
        (held_up, passed)
    }

    /// When to count next.
    fn next_count(&self) -> Option<Instant> {
        self.entries.values().filter_map(|entry| entry.slot.next_count()).min()
    }
}

/// What came of one question.
enum Answer {
    /// About this task, sent then.
    Task(String, Instant, Result<TaskAnswer, Failure>),
    /// To the control question: when it was sent, if it was answered.
    Control(Option<Instant>),
    /// To the question for all tasks: when it was sent, and whose shims have answered, where that is told.
    All(Instant, Result<Option<BTreeSet<String>>, Failure>),
}

/// Asks for ever.
pub(super) async fn run(shared: Arc<Shared>, proc: PathBuf) {
    let mut tempo = shared.tempo.subscribe();
    let mut asked = (tempo.borrow_and_update().asked, None);
    let mut connection: Option<(Place, Asker)> = None;
    let mut calls: JoinSet<Answer> = JoinSet::new();
    loop {
        let now = Instant::now();
        let (held_up, passed) = lock(&shared.tasks).count(now);
        shared.was_held_up("tasks", held_up);
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
            // On a connection of its own: a stuck one must not speak for the service.
            if let Ok(place) = place(&shared) {
                calls.spawn(ask_control(place, proc.clone(), now));
            }
            continue;
        }
        let all = lock(&shared.tasks).list_due(now, asked.1);
        if all.is_some_and(|due| due <= now) {
            {
                let mut table = lock(&shared.tasks);
                (table.listed, table.list_is_out) = (Some(now), true);
            }
            match connected(&shared, &proc, &mut connection).await {
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
            match connected(&shared, &proc, &mut connection).await {
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

async fn call(asker: Asker, id: String, sent: Instant, bound: Duration) -> Answer {
    let result = asker.ask(&id, bound).await.map_err(Failure::from);
    Answer::Task(id, sent, result)
}

async fn ask_all(asker: Asker, sent: Instant) -> Answer {
    Answer::All(sent, asker.answered(LIST_BOUND).await.map_err(Failure::from))
}

async fn ask_control(place: Place, proc: PathBuf, sent: Instant) -> Answer {
    // Connection and answer have an end each.
    let answers = async { Asker::connect(&place, &proc).await?.answers(CONTROL).await };
    Answer::Control(answers.await.is_ok().then_some(sent))
}

fn finish(shared: &Shared, answer: Answer, connection: &mut Option<(Place, Asker)>) {
    shared.was_held_up("tasks", lock(&shared.tasks).count(Instant::now()).0);
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
        Err(Failure::Exhausted(_)) => shared.gave_up("tasks"),
        // Whatever went wrong, the next question gets a fresh connection.
        Err(_) => *connection = None,
        Ok(_) => {}
    }
    if lock(&shared.tasks).ended(&id, sent, result, Instant::now()) {
        shared.changed.notify_one();
    }
}

/// A question for all tasks that fails says nothing of any: they are asked one by one.
fn finish_all(
    shared: &Shared,
    sent: Instant,
    answered: Result<Option<BTreeSet<String>>, Failure>,
    connection: &mut Option<(Place, Asker)>,
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
        Err(Failure::Exhausted(_)) => shared.gave_up("tasks"),
        Err(_) => *connection = None,
    }
}

async fn connected(shared: &Shared, proc: &Path, connection: &mut Option<(Place, Asker)>) -> Result<Asker, Failure> {
    let place = place(shared)?;
    if let Some((to, asker)) = connection
        && *to == place
    {
        return Ok(asker.clone());
    }
    let asker = Asker::connect(&place, proc).await.map_err(unconnected)?;
    *connection = Some((place, asker.clone()));
    Ok(asker)
}

#[cfg(test)]
mod tests;
