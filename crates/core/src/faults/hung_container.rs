//! `HungContainer`: the runtime and its lists answer, but the task of a container does not.

use std::collections::BTreeMap;
use std::time::Duration;

use super::runtime_client_hung::awaited_by;
use super::spec::{ByDaemon, FaultSpec, Holds, Remedy};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, PodRef, Role, Severity, Subject, SubjectKind, Target};
use crate::finding::{
    Check, Coverage, Detected, Findings, HangConfirmation, STALE, Sighting, Verdict, answer, asks_single, bounded_pod,
    describe, lists, of_pod, process_ref, processes, short,
};
use crate::observation::{
    ContainerSeen, ContainerState, ListRound, Observations, ProcessSeen, Reading, RuntimeKind, TaskAnswer,
    is_unresponsive_state,
};
use crate::reason::ConditionReason;
use crate::text::bounded;
use crate::thresholds::Confirm;

/// A frozen shim never answers again by itself. Three checks 20 s apart rule out a busy moment. Under resource pressure the probe
/// takes longer if the shim is not stopped, see [`Thresholds::under_pressure`](crate::thresholds::Thresholds::under_pressure).
pub const CONFIRM: Confirm = Confirm::new("hungContainer", 3, 20, 40).may_be_slow();

pub(super) const SPEC: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM],
    condition: Some(ConditionType::ContainersResponsive),
    // At its start the kubelet asks every container and waits for each that does not answer. The runtime leaves the shim behind.
    // CRI-O answers for a container whose conmon is stopped, and asks no conmon at its start.
    restart_harms: |fault| ByDaemon { kubelet: !fault.target.is_conmon(), runtime: !fault.target.is_conmon() },
    holds: Holds::OwnPod,
    remedy: Remedy { hung_process: Ok(Role::Shim), new_boot: Ok(()), ..Remedy::USUAL },
    ..FaultSpec::new(FaultGroup::Pods, Severity::Medium, SubjectKind::Container)
};

/// Everything that one shim serves. With containerd one shim serves a whole pod, so one unresponsive shim is one fault, however
/// many containers it has. With Docker each container and each sandbox is a group of its own. With CRI-O each container is, and
/// its sandboxes answer to another question.
struct Group<'a> {
    /// The id that the shim serves.
    id: &'a str,
    sandbox_id: &'a str,
    pod: &'a PodRef,
    /// Whether the sandbox itself is ready, so that its own task must answer too.
    ready: bool,
    running: Vec<&'a ContainerSeen>,
}

pub(super) fn detect(check: &Check<'_>, findings: &mut Findings) -> Detected {
    let &Check { seen, known, .. } = check;
    let confirm = check.hangs(&CONFIRM);
    let (lists, listed) = lists(seen)?;
    asks_single(seen.kind)?;
    let groups = groups(lists, seen.kind);
    // A container or sandbox that is in no list, or has ended, does not hang any more.
    let mut coverage = Coverage::new(Verdict::Clean { checked: listed });
    for group in groups.values() {
        judge(group, seen, confirm, findings, &mut coverage);
    }
    if findings.unasked > 0 && (seen.tasks.is_empty() || !known.tasks) {
        coverage.others = Verdict::undecided("not every running container has been asked once since the probe began");
    }
    Ok(coverage)
}

fn groups(lists: &ListRound, kind: RuntimeKind) -> BTreeMap<&str, Group<'_>> {
    let mut groups: BTreeMap<&str, Group> = BTreeMap::new();
    for sandbox in lists.sandboxes.iter().filter(|sandbox| sandbox.ready && kind != RuntimeKind::CriO) {
        let id = sandbox.id.as_str();
        groups.insert(id, Group { id, sandbox_id: id, pod: &sandbox.pod, ready: true, running: Vec::new() });
    }
    let running = lists.containers.iter().filter(|container| container.state == ContainerState::Running);
    for (container, pod) in running.filter_map(|container| Some((container, container.pod.as_ref()?))) {
        let alone = kind.answers_itself();
        let id = if alone { container.id.as_str() } else { container.sandbox_id.as_str() };
        let new = || Group { id, sandbox_id: &container.sandbox_id, pod, ready: false, running: Vec::new() };
        groups.entry(id).or_insert_with(new).running.push(container);
    }
    groups
}

/// What the tasks of one group answered.
#[derive(Default)]
struct Answers<'a> {
    max_age: Duration,
    /// Silent tasks, with the moment of the check; `None` = the call has not returned.
    silent: Vec<(&'a str, Option<Duration>)>,
    /// From when on the newest silent check shows the silence.
    silent_since: Option<Duration>,
    /// The oldest of the good answers.
    answered: Option<Duration>,
    /// The newest answer of the shim itself.
    newest: Option<Duration>,
    /// Docker has answered. That answer proves nothing about the shim.
    by_daemon: bool,
    unasked: usize,
    /// Why a task could not be asked.
    gap: Option<Verdict>,
}

impl<'a> Answers<'a> {
    fn of(group: &Group<'a>, seen: &Observations, max_age: Duration) -> Self {
        let mut answers = Self { max_age, ..Self::default() };
        for id in group.running.iter().map(|container| container.id.as_str()) {
            answers.take(id, seen.tasks.get(id), seen.now, true);
        }
        if group.ready {
            // The probe asks the task of the sandbox only if something points at it.
            answers.take(group.sandbox_id, seen.tasks.get(group.sandbox_id), seen.now, group.running.is_empty());
        }
        answers
    }

    fn take(&mut self, id: &'a str, reading: Option<&Reading<TaskAnswer>>, now: Duration, needed: bool) {
        let Some(reading) = reading else {
            self.unasked += usize::from(needed);
            return;
        };
        let mut silence = |since: Duration, checked| {
            self.silent.push((id, checked));
            self.silent_since = self.silent_since.max(Some(since));
        };
        match reading {
            // The daemon itself may have been stuck for a part of the time.
            Reading::Hung { .. } => silence(now, None),
            Reading::Done { value: TaskAnswer::NoAnswer, age, took } if *age <= self.max_age => {
                let checked = now.saturating_sub(*age);
                silence(checked.saturating_sub(*took), Some(checked));
            }
            reading => match answer(reading, now, "its task", self.max_age) {
                Ok((task_answer, checked)) => {
                    self.answered = Some(self.answered.map_or(checked, |known| known.min(checked)));
                    if matches!(task_answer, TaskAnswer::DaemonAnswered | TaskAnswer::ProcessGone) {
                        self.by_daemon = true;
                    } else {
                        self.newest = self.newest.max(Some(checked));
                    }
                }
                Err(Verdict::Unknown { reason: ConditionReason::NotYetChecked | ConditionReason::Stale, .. }) => {
                    self.unasked += usize::from(needed);
                }
                Err(verdict) if needed => self.gap = Some(verdict),
                Err(_) => {}
            },
        }
    }

    fn newest_silence(&self) -> Option<Duration> {
        self.silent.iter().filter_map(|(_, checked)| *checked).max()
    }
}

fn judge(
    group: &Group<'_>,
    seen: &Observations,
    confirm: HangConfirmation,
    findings: &mut Findings,
    coverage: &mut Coverage,
) {
    let key = key(group);
    let answers = Answers::of(group, seen, findings.task_max_age);
    let shim = shim_of(group, &answers, seen);
    // A shim that has answered after a check saw it stopped is not stopped any more.
    let stopped = shim.filter(|(process, checked)| process.state == 'T' && answers.newest < Some(*checked));
    findings.unasked += answers.unasked;
    if answers.silent.is_empty() && stopped.is_none() {
        let verdict = if let Some(gap) = answers.gap {
            gap
        } else if answers.unasked > 0 {
            let detail = format!(
                "{} of the running containers have not answered within {} s",
                answers.unasked,
                answers.max_age.as_secs()
            );
            Verdict::unknown(ConditionReason::Stale, &detail)
        } else {
            let clean = answers.answered.map_or_else(|| coverage.others.clone(), |checked| Verdict::Clean { checked });
            // CRI-O answers from its memory: only the conmon shows that it would hear of the container's end.
            match (seen.kind == RuntimeKind::CriO, shim, clean) {
                (true, None, _) => without_conmon(group, seen),
                (true, Some((conmon, _)), _) if is_unresponsive_state(conmon.state) => {
                    Verdict::undecided("its conmon may be waiting only for a moment")
                }
                (true, Some((_, at)), Verdict::Clean { checked }) => Verdict::Clean { checked: checked.min(at) },
                (_, _, clean) => clean,
            }
        };
        for container in group.running.iter().filter(|container| !seen.tasks.contains_key(&container.id)) {
            findings.ask(&container.id);
        }
        coverage.note(&key, verdict);
        return;
    }
    let resumed = shim.is_some_and(|(process, at)| process.state != 'T' && Some(at) > answers.newest_silence());
    if resumed || answers.silent.is_empty() {
        for container in &group.running {
            findings.ask(&container.id);
        }
        if group.running.is_empty() {
            findings.ask(group.sandbox_id);
        }
    }
    let checked = check_time(&answers, shim.map(|(_, checked)| checked), stopped.is_some(), seen.now);
    let shim = shim.map(|(process, _)| process);
    let mut sighting = sighting(group, &key, &answers, shim, checked, seen.kind, confirm);
    let waits = shim.filter(|shim| seen.kind != RuntimeKind::CriO && !is_stopped(shim.state));
    if let Some((verb, client)) = waits.zip(seen.processes.value()).and_then(|(shim, table)| awaited_by(shim, table)) {
        let waits = format!("; the shim waits for `{}`: {}", bounded(verb, 16), describe(client));
        (sighting.certain, sighting.message) = (false, sighting.message + &waits);
    }
    findings.sight(sighting);
}

/// The verdict on a container of CRI-O without a conmon among the processes. It may be the container of a VM, which has none.
fn without_conmon(group: &Group<'_>, seen: &Observations) -> Verdict {
    let table = match processes(seen) {
        Err(verdict) => return verdict,
        Ok((table, _)) => table,
    };
    let who = format!("{}{}", names(group, &group.running), of_pod(Some(group.pod)));
    let why = table.left_out.processes.as_deref().unwrap_or("CRI-O does not hear of its end without one");
    Verdict::failed(&format!("no conmon of {who} was seen: {why}"))
}

/// The moment of the check behind a sighting. A stopped process cannot answer, and a call that has not returned is still
/// unanswered. For both, host evidence that is read now counts as a check of now. A silent answer keeps its own age.
fn check_time(answers: &Answers<'_>, processes: Option<Duration>, stopped: bool, now: Duration) -> Duration {
    let out = answers.silent.iter().any(|(_, checked)| checked.is_none());
    let host = processes.filter(|_| stopped || out);
    answers.newest_silence().max(host).unwrap_or(now)
}

fn key(group: &Group<'_>) -> String {
    format!("{}/{}", group.pod.uid, group.id)
}

/// The shim behind a group, or the conmon. With containerd it usually serves a sandbox, with Docker and CRI-O one
/// container.
fn shim_of<'a>(
    group: &Group<'_>,
    answers: &Answers<'_>,
    seen: &'a Observations,
) -> Option<(&'a ProcessSeen, Duration)> {
    let (table, checked) = answer(&seen.processes, seen.now, "processes", STALE).ok()?;
    // If two shims serve one id, the stopped one blocks it, in whatever order they were read.
    let serves = |wanted: &str| {
        let shims = table.processes.iter().filter(|process| process.role.serves().is_some_and(|(id, _)| id == wanted));
        shims.min_by_key(|process| (process.state != 'T', process.pid, process.start_ticks))
    };
    // A shim may serve one container beside that of its sandbox.
    let of_silent = answers.silent.iter().map(|(id, _)| *id).find_map(serves);
    let of_running = || group.running.iter().map(|container| container.id.as_str()).find_map(serves);
    of_silent.or_else(|| serves(group.id)).or_else(of_running).map(|process| (process, checked))
}

/// Whether a debugger or a signal has stopped the process: it is not merely slow.
const fn is_stopped(state: char) -> bool {
    matches!(state, 'T' | 't')
}

fn sighting(
    group: &Group<'_>,
    key: &str,
    answers: &Answers<'_>,
    shim: Option<&ProcessSeen>,
    checked: Duration,
    kind: RuntimeKind,
    confirm: HangConfirmation,
) -> Sighting {
    let is_silent = !answers.silent.is_empty();
    // Nobody else watches the container of a stopped conmon, whatever CRI-O answers.
    let certain = is_silent || kind == RuntimeKind::CriO;
    let silent: Vec<&ContainerSeen> = group
        .running
        .iter()
        .filter(|container| answers.silent.iter().any(|(id, _)| *id == container.id))
        .copied()
        .collect();
    let shown = if silent.is_empty() { &group.running } else { &silent };
    let (who, pod, because) = (names(group, shown), of_pod(Some(group.pod)), because(shim, kind));
    let message = if is_silent {
        format!("{who}{pod} does not answer while the runtime does{because}")
    } else if kind == RuntimeKind::CriO {
        format!("the conmon of {who}{pod} is stopped, so CRI-O does not hear of its end{because}")
    } else if answers.by_daemon {
        format!("the shim of {who}{pod} is stopped; Docker still answers for it, as nothing waits for it yet{because}")
    } else {
        format!("the shim of {who}{pod} is stopped; its task is being asked{because}")
    };
    let impact = match kind {
        RuntimeKind::CriO if !is_silent => {
            "the container waits once a pipe is full of its output; when it ends, it stays listed as running and is not started again"
        }
        RuntimeKind::CriO => {
            "the container cannot be stopped or replaced, and a kubelet asks it too, at its start and after each event of its pod"
        }
        _ => {
            "the pod cannot be stopped or replaced, and a restart of the kubelet or the runtime waits for every container behind this shim"
        }
    };
    let subject = Subject {
        id: shown.first().map(|container| bounded(&container.id, 128)),
        name: shown.first().map(|container| bounded(&container.name, 253)),
        pod: Some(bounded_pod(group.pod)),
        sandbox_id: Some(bounded(group.sandbox_id, 128)),
        ..Subject::of(if shown.is_empty() { SubjectKind::Sandbox } else { SubjectKind::Container })
    };
    let confirm = if shim.is_some_and(|process| is_stopped(process.state)) { confirm.stuck } else { confirm.slow };
    let target = Target {
        // What a question to CRI-O waits for is not the conmon.
        process: shim
            .filter(|_| !is_silent || kind != RuntimeKind::CriO)
            .map(|process| process_ref(process, Role::Shim)),
        container_id: subject.id.clone(),
        sandbox_id: subject.sandbox_id.clone(),
        pod: subject.pod.clone(),
        ..Target::default()
    };
    Sighting {
        certain,
        subject,
        target,
        message,
        impact,
        evidence: calls_and_shim(group, answers, shim, kind),
        since: answers.silent_since.map_or(checked, |since| since.min(checked)),
        ..Sighting::new(FaultType::HungContainer, key, checked, confirm)
    }
}

/// The containers, or their sandbox where none of them runs.
fn names(group: &Group<'_>, shown: &[&ContainerSeen]) -> String {
    match shown {
        [] => format!("sandbox {}", short(group.sandbox_id)),
        [one] => format!("container {}", bounded(&one.name, 63)),
        many => {
            let listed: Vec<String> = many.iter().take(5).map(|container| bounded(&container.name, 63)).collect();
            let more = if many.len() > 5 { ", …" } else { "" };
            format!("containers {}{more}", listed.join(", "))
        }
    }
}

/// The process that blocks them, as far as it was seen.
fn because(shim: Option<&ProcessSeen>, kind: RuntimeKind) -> String {
    match (shim, kind) {
        (None, RuntimeKind::CriO) => String::new(),
        (Some(shim), RuntimeKind::CriO) if !is_unresponsive_state(shim.state) => String::new(),
        // A status of CRI-O does not wait for the conmon.
        (Some(shim), RuntimeKind::CriO) => format!("; its conmon is {}", describe(shim)),
        (None, _) => "; its shim was not found among the processes".to_owned(),
        // The lock in Docker may be held by its shim, by a mount or by Docker itself.
        (Some(shim), RuntimeKind::Docker) if shim.state != 'T' => format!("; its shim is {}", describe(shim)),
        (Some(shim), _) => format!("; blocked by {}", describe(shim)),
    }
}

/// The evidence: which calls were not answered, the state of the shim, and that the runtime itself answers.
fn calls_and_shim(
    group: &Group<'_>,
    answers: &Answers<'_>,
    shim: Option<&ProcessSeen>,
    kind: RuntimeKind,
) -> Vec<String> {
    let call = |(id, checked): &(&str, Option<Duration>)| {
        let question = match kind {
            // A call that Docker does not answer does not return. The containerd behind Docker gives up after 2 s.
            RuntimeKind::Docker if checked.is_none() => "inspect",
            RuntimeKind::CriO => "ContainerStatus",
            _ => "Tasks/Get",
        };
        let how = if checked.is_some() { "gave no answer" } else { "is out past its deadline" };
        format!("{question} of {} {how}", short(id))
    };
    let whose = if group.id == group.sandbox_id { "sandbox" } else { "container" };
    let what = if kind == RuntimeKind::CriO { "conmon" } else { "shim" };
    let has_ended =
        |process: &ProcessSeen| kind == RuntimeKind::CriO && process.role.serves().is_some_and(|(_, alive)| alive == 0);
    let ended = shim.filter(|process| has_ended(process)).map(|_| "the container's first process has ended".to_owned());
    let shim = shim.map(|process| format!("{what} of {whose} {}: {}", short(group.id), describe(process)));
    let calls = answers.silent.iter().map(call).take(4).chain(shim).chain(ended);
    calls.chain(["the runtime answers its list calls".to_owned()]).collect()
}
