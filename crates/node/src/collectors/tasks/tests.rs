//! Whose turn it is.

use super::*;
use crate::collectors::Paces;
use nrh_core::examples::process;
use nrh_core::fault::PodRef;
use nrh_core::observation::{ContainerSeen, SandboxSeen};
use nrh_core::thresholds::task_max_age;

fn round(count: usize) -> ListRound {
    let pod = || PodRef { namespace: "n".to_owned(), name: "p".to_owned(), uid: "u".to_owned() };
    let sandbox = |number: usize| SandboxSeen { id: format!("s{number:03}"), ready: true, pod: pod(), attempt: 0 };
    let container = |number: usize| ContainerSeen {
        id: format!("c{number:03}"),
        sandbox_id: format!("s{number:03}"),
        name: "app".to_owned(),
        pod: Some(pod()),
        state: ContainerState::Running,
        attempt: 0,
    };
    ListRound {
        sandboxes: (0..count).map(sandbox).collect(),
        containers: (0..count).map(container).collect(),
        ..ListRound::default()
    }
}

fn table(count: usize) -> Table {
    let mut table = Table::new(&Paces::default());
    table.serve(RuntimeKind::Containerd);
    assert!(table.update_targets(&round(count)));
    table
}

/// Answers every question at once with `answer`, for this long, and returns who was asked when.
fn play(table: &mut Table, from: Instant, length: Duration, answer: TaskAnswer) -> Vec<(Duration, String)> {
    let mut asked = Vec::new();
    let mut now = from;
    while now < from + length {
        let Some((due, id)) = table.next(now, None) else { break };
        now = now.max(due);
        if now >= from + length {
            break;
        }
        table.sent(&id, now);
        table.ended(&id, now, Ok(answer), now);
        asked.push((now.saturating_duration_since(from), id));
    }
    asked
}

/// Counts as the collector does that runs whenever it wants to.
fn wait(table: &mut Table, till: Instant) -> Instant {
    while let Some(next) = table.next_count().filter(|next| *next <= till) {
        table.count(next);
    }
    till
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn one_by_one_each_task_has_its_turn_within_the_greatest_age_of_an_answer() {
    for (kind, count) in [(RuntimeKind::Containerd, 1), (RuntimeKind::Containerd, 250), (RuntimeKind::CriO, 250)] {
        let mut table = table(count);
        table.serve(kind);
        table.update_targets(&round(count));
        let asked = play(&mut table, Instant::now(), secs(600), TaskAnswer::Answered);
        let age = task_max_age(count, kind);
        let first: BTreeSet<&String> = asked.iter().take(count).map(|(_, id)| id).collect();
        assert_eq!(first.len(), count, "{kind:?}: somebody was asked twice before all were asked once");
        for id in first {
            let times: Vec<Duration> = asked.iter().filter(|(_, asked)| asked == id).map(|(at, _)| *at).collect();
            assert!(times.windows(2).all(|pair| pair[1] <= pair[0] + age), "{kind:?} {count}: {times:?}");
            assert!(times.windows(2).all(|pair| pair[1] >= pair[0] + secs(12)), "{kind:?} {count}: {times:?}");
            assert!(times[0] <= age && *times.last().unwrap() + age >= secs(600), "{kind:?} {count}: {times:?}");
        }
    }
}

/// Plays rounds of the question for all, whose answer lacks these, and gives who was asked alone and when.
fn rounds(table: &mut Table, from: Instant, length: Duration, lacks: &[&str]) -> Vec<(Duration, String)> {
    let (mut alone, mut now) = (Vec::new(), from);
    while now < from + length {
        let all = table.list_due(now, None).unwrap();
        let next = table.next(now, None).filter(|(due, _)| *due < all);
        now = now.max(next.as_ref().map_or(all, |(due, _)| *due));
        if let Some((_, id)) = next {
            table.sent(&id, now);
            table.ended(
                &id,
                now,
                Ok(if lacks.contains(&id.as_str()) { TaskAnswer::NoAnswer } else { TaskAnswer::Answered }),
                now,
            );
            alone.push((now - from, id));
        } else {
            table.listed = Some(now);
            let answered = table.entries.keys().filter(|id| !lacks.contains(&id.as_str())).cloned().collect();
            table.answered(&answered, now, now);
        }
    }
    alone
}

#[test]
fn behind_containerd_one_question_a_round_is_enough_for_all_that_answer() {
    let (mut table, start) = (table(250), Instant::now());
    let alone = rounds(&mut table, start, secs(600), &[]);
    assert_eq!(alone, [], "nobody is asked alone");
    assert!(table.entries.values().all(|entry| entry.ended.unwrap() >= start + secs(560)), "each has answered lately");
}

#[test]
fn what_the_answer_for_all_lacks_is_asked_alone_at_once_and_then_as_a_suspect() {
    let (mut table, start) = (table(250), Instant::now());
    rounds(&mut table, start, secs(60), &[]);
    let alone = rounds(&mut table, start + secs(60), secs(70), &["c123"]);
    assert!(alone.iter().all(|(_, id)| id == "c123"), "{alone:?}");
    assert!(alone[0].0 <= secs(38), "{alone:?}");
    assert!(alone.len() >= 4 && alone.windows(2).all(|pair| pair[1].0 <= pair[0].0 + secs(11)), "{alone:?}");
    let answered = table.entries.keys().cloned().collect();
    let now = start + secs(140);
    assert!(!table.answered(&answered, start, start), "an answer of before its own says nothing");
    assert!(table.answered(&answered, now, now), "it answers again");
}

#[test]
fn while_the_question_for_all_fails_each_is_asked_alone() {
    let (mut table, start) = (table(20), Instant::now());
    rounds(&mut table, start, secs(30), &[]);
    (table.listed, table.list_is_out) = (Some(start + secs(30)), true);
    assert_eq!(table.list_due(start + secs(300), Some(start + secs(200))), None);
    table.list_works = false;
    let asked = play(&mut table, start + secs(30), secs(60), TaskAnswer::Answered);
    let ids: BTreeSet<&String> = asked.iter().map(|(_, id)| id).collect();
    assert_eq!(ids.len(), 20, "{asked:?}");
}

#[test]
fn dockers_own_word_is_asked_for_alone_whatever_the_shims_answer() {
    let mut table = table(1);
    table.serve(RuntimeKind::Docker);
    table.update_targets(&round(1));
    let now = Instant::now();
    assert_eq!(table.list_due(now, None), Some(now));
    assert!(!table.answered(&table.entries.keys().cloned().collect(), now, now));
    assert!(table.readings(now).is_empty(), "Docker has said nothing yet");
    assert!(!table.answered(&["another".to_owned()].into(), now, now), "of another containerd");
    assert!(!table.is_suspect("c000", &table.entries["c000"]));
    assert!(table.answered(&["s000".to_owned()].into(), now, now));
    assert!(table.is_suspect("c000", &table.entries["c000"]));
    table.serve(RuntimeKind::CriO);
    table.update_targets(&round(1));
    assert_eq!(table.list_due(now, None), None);
}

#[test]
fn that_a_task_goes_on_answering_is_no_news_and_everything_else_is() {
    let mut table = table(1);
    let now = Instant::now();
    let mut says = |result: Result<TaskAnswer, Failure>, after: Duration| {
        table.sent("c000", now);
        wait(&mut table, now + after);
        table.ended("c000", now, result, now + after)
    };
    let soon = secs(1);
    assert!(says(Ok(TaskAnswer::Answered), soon));
    assert!(!says(Ok(TaskAnswer::Answered), soon));
    assert!(says(Ok(TaskAnswer::Answered), secs(60)), "it was told that it hung");
    assert!(says(Ok(TaskAnswer::NoAnswer), soon));
    assert!(says(Ok(TaskAnswer::NoAnswer), soon), "each look counts");
    assert!(says(Ok(TaskAnswer::Answered), soon));
    assert!(!says(Ok(TaskAnswer::Answered), soon));
    assert!(says(Err(Failure::Failed("no".to_owned())), soon));
    assert!(says(Ok(TaskAnswer::Answered), soon));
    assert!(says(Ok(TaskAnswer::NotFound), soon));
}

#[test]
fn a_suspect_is_asked_at_once_and_then_every_eight_seconds() {
    let (mut table, start) = (table(100), Instant::now());
    play(&mut table, start, secs(1), TaskAnswer::Answered);
    assert!(table.suspect(["c099".to_owned()].into()));
    assert!(!table.suspect(["c099".to_owned()].into()), "the same suspects are no news");
    let asked = play(&mut table, start + secs(1), secs(90), TaskAnswer::Answered);
    let of: Vec<u64> = asked.iter().filter(|(_, id)| id == "c099").map(|(at, _)| at.as_secs()).collect();
    assert_eq!(of, [0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88]);
    assert!(asked.len() > 500, "the others were forgotten: {}", asked.len());
}

#[test]
fn a_silent_task_is_asked_in_time_for_each_check_that_counts() {
    let (mut table, start) = (table(10), Instant::now());
    let answered = (1..10).map(|number| format!("c{number:03}")).collect();
    assert!(table.answered(&answered, start, start + SHIM_WAIT));
    let (mut now, mut ends) = (start, Vec::new());
    while now < start + secs(60) {
        let (due, id) = table.next(now, None).unwrap();
        now = now.max(due);
        table.sent(&id, now);
        if id != "c000" {
            table.ended(&id, now, Ok(TaskAnswer::Answered), now);
            continue;
        }
        let sent = now;
        now += SHIM_WAIT;
        wait(&mut table, now);
        table.ended(&id, sent, Ok(TaskAnswer::NoAnswer), now);
        ends.push(now.saturating_duration_since(start).as_secs());
    }
    // Silent for certain since 2 s before the first question: checks count at -2, 18.5, 39 and 59.5 s.
    assert_eq!(ends, [2, 12, 18, 28, 39, 49, 59]);
    let Some(Reading::Done { took, .. }) = table.readings(now).remove("c000") else { panic!() };
    assert_eq!(took, SHIM_WAIT);
}

#[test]
fn the_question_for_all_delays_no_check_that_counts() {
    for count in [2, 10, 50, 77, 100, 130, 170, 250] {
        let (mut table, start) = (table(count), Instant::now());
        let answered: BTreeSet<String> = (1..count).map(|number| format!("c{number:03}")).collect();
        let (mut now, mut list, mut question) = (start, None::<Instant>, None::<Instant>);
        // Silent for certain since the first question for all, which is when the first check counts.
        let mut counted = vec![start];
        while counted.len() < 3 {
            let list_due = table.list_due(now, None).filter(|_| list.is_none());
            let (due, id) = table.next(now, None).unwrap();
            let ends = [list, question].into_iter().flatten().map(|sent| sent + SHIM_WAIT);
            now = now.max(ends.chain(list_due).chain([due]).min().unwrap());
            if let Some(sent) = list.filter(|sent| *sent + SHIM_WAIT == now) {
                table.answered(&answered, sent, now);
                (list, table.list_is_out) = (None, false);
            } else if let Some(sent) = question.filter(|sent| *sent + SHIM_WAIT == now) {
                table.ended("c000", sent, Ok(TaskAnswer::NoAnswer), now);
                question = None;
                if counted.last().is_some_and(|last| now >= *last + table.counted) {
                    counted.push(now);
                }
            } else if list_due.is_some_and(|due| due <= now) {
                (list, table.listed, table.list_is_out) = (Some(now), Some(now), true);
            } else {
                table.sent(&id, now);
                if id == "c000" {
                    question = Some(now);
                } else {
                    table.ended(&id, now, Ok(TaskAnswer::Answered), now);
                }
            }
        }
        let third = counted[2].saturating_duration_since(start);
        assert!(third <= table.counted * 2 + secs(1), "{count} tasks: {third:?}");
    }
}

#[test]
fn a_silent_task_whose_question_fails_is_not_hurried() {
    for (failure, least) in [(Failure::Failed("no".to_owned()), 8), (Failure::Exhausted(secs(180)), 30)] {
        let (mut table, start) = (table(1), Instant::now());
        for (at, result) in [(0, Ok(TaskAnswer::NoAnswer)), (60, Err(failure))] {
            let now = start + secs(at);
            table.sent("c000", now);
            table.ended("c000", now, result, now);
        }
        assert_eq!(table.next(start + secs(60), None).unwrap().0, start + secs(60 + least));
    }
}

#[test]
fn a_stopped_shim_makes_its_containers_suspects() {
    let (mut table, start) = (table(50), Instant::now());
    play(&mut table, start, secs(10), TaskAnswer::Answered);
    table.stopped = ["s049".to_owned()].into();
    assert_eq!(table.next(start + secs(10), None).unwrap().1, "c049");
}

#[test]
fn a_process_table_says_once_that_other_shims_are_stopped() {
    let mut table = table(1);
    let seen = |state| {
        let shim = ProcessRole::Shim { id: "s000".to_owned(), living_children: 1 };
        ProcessTable { processes: vec![ProcessSeen { state, ..process(9, shim) }], ..ProcessTable::default() }
    };
    let changes = ['S', 'T', 'T', 'S'].map(|state| table.note(&seen(state)));
    assert_eq!(changes, [false, true, false, true]);
}

#[test]
fn a_task_that_did_not_answer_suspects_itself_until_it_does() {
    let (mut table, start) = (table(10), Instant::now());
    table.sent("c003", start);
    table.ended("c003", start, Ok(TaskAnswer::NoAnswer), start);
    let (due, id) = table.next(start + secs(8), None).unwrap();
    assert_eq!((due, id.as_str()), (start + secs(8), "c003"));
    table.sent("c003", due);
    table.ended("c003", due, Ok(TaskAnswer::Answered), due);
    assert_ne!(table.next(due + secs(8), None).unwrap().1, "c003");
}

#[test]
fn a_manual_to_check_now_brings_suspects_forward() {
    let (mut table, start) = (table(1), Instant::now());
    play(&mut table, start, secs(200), TaskAnswer::Answered);
    table.suspect(["c000".to_owned()].into());
    let later = start + secs(200);
    table.sent("c000", later);
    table.ended("c000", later, Ok(TaskAnswer::Answered), later);
    let (due, id) = table.next(later, Some(later + Duration::from_millis(1))).unwrap();
    assert_eq!((due, id.as_str()), (later + SUSPECT_INTERVAL, "c000"));
    let (due, _) = table.next(later, Some(start)).unwrap();
    assert_eq!(due, later + secs(8), "an old wish was served again");
}

#[test]
fn a_manual_to_check_now_has_every_task_asked_within_seconds_and_once() {
    let (mut table, start) = (table(250), Instant::now());
    play(&mut table, start, secs(120), TaskAnswer::Answered);
    let manual = start + secs(120);
    let (mut now, mut asked) = (manual, BTreeSet::new());
    while asked.len() < 250 {
        let (due, id) = table.next(now, Some(manual)).unwrap();
        now = now.max(due);
        table.sent(&id, now);
        table.ended(&id, now + Duration::from_millis(1), Ok(TaskAnswer::Answered), now + Duration::from_millis(1));
        assert!(asked.insert(id), "one was asked twice");
    }
    assert!(now <= manual + secs(10), "{:?}", now - manual);
    let (next, _) = table.next(now, Some(manual)).unwrap();
    assert!(next >= now + Duration::from_millis(130), "an old wish was served again");
}

#[test]
fn one_question_at_a_time_and_a_given_up_one_backs_off() {
    let (mut table, start) = (table(1), Instant::now());
    table.suspect(["c000".to_owned()].into());
    table.sent("c000", start);
    assert_eq!(table.next(start + secs(100), None), None, "a second question while one is out");
    table.update_targets(&ListRound::default());
    assert_eq!(table.out(), 1, "a question that is out was forgotten");
    table.update_targets(&round(1));
    let end = start + secs(180);
    table.ended("c000", start, Err(Failure::Exhausted(secs(180))), end);
    assert_eq!(table.next(end, Some(end + secs(1))).unwrap().0, end + secs(30));
    table.sent("c000", end + secs(30));
    table.ended("c000", end + secs(30), Err(Failure::Exhausted(secs(180))), end + secs(210));
    assert_eq!(table.next(end, None).unwrap().0, end + secs(210) + secs(120));
}

#[test]
fn silence_counts_against_a_task_only_while_others_are_answered() {
    let (mut table, start) = (table(3), Instant::now());
    table.sent("c000", start);
    // An answer before the deadline proves nothing about the time after it.
    table.sent("c001", start);
    table.ended("c001", start, Ok(TaskAnswer::Answered), start + secs(1));
    assert_eq!(table.control_due(start + secs(3)), None);
    let late = wait(&mut table, start + secs(4));
    assert!(matches!(table.readings(late)["c000"], Reading::Failed { .. }));
    assert_eq!(table.control_due(late), Some(late));
    table.control = Some(late);
    assert_eq!(table.control_due(late), Some(late + CONTROL));
    // An error is no answer, an unresponsive neighbour's is one: containerd itself said it.
    table.sent("c001", late);
    table.ended("c001", late, Err(Failure::Failed("cut".to_owned())), late);
    assert!(matches!(table.readings(late)["c000"], Reading::Failed { .. }));
    table.sent("c002", late);
    table.ended("c002", late, Ok(TaskAnswer::NoAnswer), late + secs(2));
    assert_eq!(table.readings(late + secs(2))["c000"], Reading::Hung { out: secs(6) });
    assert_eq!(table.control_due(late + secs(2)), None);
}

#[test]
fn a_collector_that_could_not_run_takes_no_silence_from_it() {
    let (mut table, start) = (table(2), Instant::now());
    table.sent("c000", start);
    table.sent("c001", start);
    let thawed = start + secs(60);
    let held_up = Duration::from_millis(59_600);
    assert_eq!(table.count(thawed), (held_up, false), "by how much, once and not for each question");
    // What was answered meanwhile is read now, one after the other.
    table.ended("c001", start, Ok(TaskAnswer::Answered), thawed);
    assert_eq!(table.readings(thawed)["c000"], Reading::Never);
    assert_eq!(table.control_due(thawed), None);
    let due = wait(&mut table, thawed + Duration::from_millis(3_600));
    assert!(matches!(table.readings(due)["c000"], Reading::Failed { .. }), "that answer came before this deadline");
    assert_eq!(table.control_due(due), Some(due));
}

#[test]
fn questions_past_their_deadline_leave_room_for_others_but_not_for_all() {
    let (mut table, start) = (table(40), Instant::now());
    let mut now = start;
    let mut sent = 0;
    for _ in 0..10 {
        while table.has_room(now) {
            let id = table.next(now + secs(3600), None).unwrap().1;
            table.sent(&id, now);
            sent += 1;
        }
        now = wait(&mut table, now + secs(4));
    }
    assert_eq!(sent, MAX_OUT);
}

#[test]
fn what_is_no_longer_listed_is_forgotten() {
    let (mut table, start) = (table(3), Instant::now());
    play(&mut table, start, secs(500), TaskAnswer::Answered);
    assert_eq!(table.readings(start).len(), 3);
    let mut fewer = round(2);
    fewer.containers[1].state = ContainerState::Exited;
    table.update_targets(&fewer);
    // c001 has ended: its ready sandbox is asked for instead, and has no check yet.
    let readings = table.readings(start);
    assert_eq!(readings.keys().collect::<Vec<_>>(), ["c000"]);
    assert!(table.entries.contains_key("s001"));
    table.serve(RuntimeKind::Other);
    assert!(table.readings(start).is_empty());
}

#[test]
fn a_left_over_shim_is_asked_for_although_nothing_lists_it() {
    let mut table = table(1);
    table.left_over = ["left".to_owned()].into();
    assert!(table.update_targets(&round(1)));
    let asked = play(&mut table, Instant::now(), secs(600), TaskAnswer::NotFound);
    assert!(asked.iter().any(|(_, id)| id == "left"), "{asked:?}");
    table.left_over = BTreeSet::new();
    assert!(table.update_targets(&round(1)));
    assert!(!table.readings(Instant::now()).contains_key("left"));
}

#[test]
fn with_crio_every_running_container_is_asked_for_alone() {
    let mut table = Table::new(&Paces::default());
    table.serve(RuntimeKind::CriO);
    table.left_over = ["left".to_owned()].into();
    table.update_targets(&round(3));
    let asked = play(&mut table, Instant::now(), secs(300), TaskAnswer::DaemonAnswered);
    let ids: Vec<&str> = asked.iter().map(|(_, id)| id.as_str()).collect();
    assert_eq!(ids[..3], ["c000", "c001", "c002"], "each in turn, and no sandbox");
    assert_eq!(ids.len(), 75);
    assert_eq!((table.pace().deadline, table.pace().bound), (secs(5), secs(3600)));
}

#[test]
fn with_docker_every_container_and_every_sandbox_is_asked_for_and_no_shim_that_nobody_lists() {
    let mut table = Table::new(&Paces::default());
    table.serve(RuntimeKind::Docker);
    table.left_over = ["left".to_owned()].into();
    let mut listed = round(3);
    listed.containers[1].state = ContainerState::Created;
    listed.containers[2].state = ContainerState::Exited;
    table.update_targets(&listed);
    let asked = play(&mut table, Instant::now(), secs(300), TaskAnswer::DaemonAnswered);
    let ids: BTreeSet<&str> = asked.iter().map(|(_, id)| id.as_str()).collect();
    assert_eq!(ids, ["c000", "c001", "s000", "s001", "s002"].into());
    assert_eq!(table.pace().deadline, secs(5));
    // A stopped shim of a sandbox says nothing of the containers in it.
    table.stopped = ["s000".to_owned()].into();
    assert!(!table.is_suspect("c000", &table.entries["c000"]));
    assert!(table.is_suspect("s000", &table.entries["s000"]));
}
