use super::*;
use crate::examples::fault;
use crate::flap::{CUT_OFF, HALF_LIFE, QUIET};
use crate::kubelet::Complaint;
use crate::snapshot::{Heartbeat, ReportedFault};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn wall(seconds: u64) -> Timestamp {
    Timestamp::from_second(1_767_582_000 + i64::try_from(seconds).unwrap()).unwrap()
}

fn node(ready: TriState, since: u64) -> NodeView {
    NodeView { uid: "u".into(), ready, ready_since: Some(wall(since)), ..NodeView::default() }
}

/// `Ready` changes every so many seconds, so many times; the moment of the last one.
fn flap(flaps: &mut Flaps, from: u64, times: u64, every: u64) -> u64 {
    for n in 0..=times {
        let at = from + n * every;
        let ready = if n % 2 == 0 { TriState::True } else { TriState::False };
        flaps.note_ready("n", &node(ready, at), secs(at));
    }
    from + times * every
}

fn views(flaps: &mut Flaps, at: u64) -> BTreeMap<String, FlapView> {
    flaps.views(secs(at), wall(at))
}

fn report(faults: &[Fault]) -> ReportView {
    let beat = Heartbeat {
        arrived: secs(0),
        age_known: true,
        interval: secs(60),
        sequence: 1,
        actions_enabled: true,
        kubelet_works: TriState::True,
        boot_id: String::new(),
    };
    let faults = faults.iter().map(|fault| ReportedFault { fault: fault.clone(), checked: secs(0) }).collect();
    ReportView { node_uid: Some("u".into()), heartbeat: Some(beat), faults, ..ReportView::default() }
}

#[test]
fn a_node_that_flaps_is_told_with_its_count_and_stable_after_a_quiet_time() {
    let mut flaps = Flaps::default();
    let now = flap(&mut flaps, 0, 10, 60);
    let told = views(&mut flaps, now).remove("n").unwrap();
    assert_eq!((told.record.ready_transitions, told.record.rhythm()), (10, secs(60)));
    assert!(told.flapping.is_some() && told.record.penalty >= CUT_OFF);
    let settles = flaps.next_change(secs(now)).unwrap();
    assert!(settles > QUIET && settles < 3 * HALF_LIFE);
    let calm = now + settles.as_secs();
    assert_eq!(views(&mut flaps, calm)["n"].flapping, None);
    let over = calm + flaps.next_change(secs(calm)).unwrap().as_secs();
    assert!(views(&mut flaps, over).is_empty(), "nothing is left to tell");
    assert_eq!(flaps.next_change(secs(over)), None);
}

#[test]
fn only_another_status_is_a_change() {
    let mut flaps = Flaps::default();
    let new = NodeView { uid: "u".into(), ..NodeView::default() };
    flaps.note_ready("n", &new, secs(0));
    // A kubelet that renews the time with every heartbeat.
    for at in 0..500 {
        flaps.note_ready("n", &node(TriState::True, at), secs(at));
    }
    assert!(views(&mut flaps, 500).is_empty());
    flap(&mut flaps, 501, 8, 1);
    assert!(views(&mut flaps, 510)["n"].flapping.is_some());
    // Another Node of that name has no history.
    flaps.note_ready("n", &NodeView { uid: "other".into(), ..node(TriState::True, 511) }, secs(511));
    assert!(views(&mut flaps, 511).is_empty());
}

#[test]
fn a_thousand_changes_are_told_a_few_times() {
    let (mut flaps, mut before, mut tellings) = (Flaps::default(), None, 0_u64);
    for n in 0..=1_000_u64 {
        let ready = if n % 2 == 0 { TriState::True } else { TriState::False };
        flaps.note_ready("n", &node(ready, n * 5), secs(n * 5));
        let told = views(&mut flaps, n * 5).remove("n").map(|view| view.record);
        tellings += u64::from(told != before);
        before = told;
    }
    let most = 5_000 / REPORTED_EVERY.as_secs() + 2;
    assert!(tellings >= 2 && tellings <= most, "{tellings} of {most}");
    let behind = flaps.next_change(secs(5_000)).unwrap();
    assert!(behind <= REPORTED_EVERY, "what is not told yet is told in time");
}

#[test]
fn a_fault_that_comes_and_goes_counts_and_those_that_are_resolved_once_do_not() {
    let mut flaps = Flaps::default();
    let kind = FaultType::HungContainer;
    let one = |n: u64| Fault { id: format!("hungcontainer-{n}"), state: FaultState::Confirmed, ..fault(kind) };
    // Twenty of them, each of which comes and goes once.
    for n in 0..20 {
        flaps.note_report("n", &report(&[one(n)]), secs(n * 20));
        flaps.note_report("n", &report(&[]), secs(n * 20 + 10));
    }
    assert!(views(&mut flaps, 400).is_empty());
    // One of them, again and again: but a report that could not check, or is full, has not seen it go.
    for n in 0..20 {
        flaps.note_report("n", &report(&[one(99)]), secs(400 + n * 20));
        let unavailable = ReportView { unchecked: [kind].into(), ..report(&[]) };
        flaps.note_report("n", &unavailable, secs(410 + n * 20));
    }
    assert!(views(&mut flaps, 800).is_empty());
    for n in 0..9 {
        flaps.note_report("n", &report(&[one(99)]), secs(800 + n * 120));
        flaps.note_report("n", &report(&[]), secs(810 + n * 120));
    }
    let told = views(&mut flaps, 1_770).remove("n").unwrap();
    assert_eq!((told.record.recurrences, told.record.ready_transitions), (8, 0));
    assert!(told.flapping.is_some());
    let of = &flaps.0["n"];
    assert!(of.gone.len() <= MAX_GONE && of.confirmed.is_empty());
}

#[test]
fn the_next_controller_goes_on_where_the_one_before_has_ended() {
    let mut before = Flaps::default();
    let now = flap(&mut before, 0, 20, 60);
    let record = before.views(secs(now), wall(now)).remove("n").unwrap().record;
    let restart = |uid: &str, ready: NodeView, record: &FlapRecord| {
        let mut next = Flaps::default();
        next.note_ready("n", &ready, secs(1));
        let refused = next.restore(secs(2), wall(now + 60), |_| Some((uid, Ok(record))));
        let again = next.restore(secs(3), wall(now + 60), |_| Some((uid, Ok(record))));
        assert!(again.is_empty(), "it is read once");
        (next.views(secs(3), wall(now + 61)).remove("n"), refused)
    };
    let same = node(TriState::True, now);
    let (told, refused) = restart("u", same.clone(), &record);
    assert!(refused.is_empty() && told.as_ref().unwrap().flapping.is_some());
    assert_eq!(told.unwrap().record.ready_transitions, 20);
    let (told, _) = restart("u", node(TriState::False, now + 30), &record);
    assert_eq!(told.unwrap().record.ready_transitions, 21, "at least one while nobody looked");
    let (told, _) = restart("u", node(TriState::True, now + 30), &record);
    assert_eq!(told.unwrap().record.ready_transitions, 20, "a time that is renewed is none");
    assert_eq!(restart("another", same.clone(), &record), (None, vec![]), "it is about another Node");
    let bad = FlapRecord { penalty: u32::MAX, ..record };
    let (told, refused) = restart("u", same.clone(), &bad);
    assert!(told.is_none() && refused[0].1.contains("found 4294967295"), "{refused:?}");
    let mut next = Flaps::default();
    flap(&mut next, 0, 4, 10);
    let refused = next.restore(secs(50), wall(50), |_| Some(("u", Err("it is a word"))));
    assert_eq!(refused, [("n".to_owned(), "it is a word".to_owned())]);
    assert_eq!(next.views(secs(50), wall(50))["n"].record.ready_transitions, 4, "what it has seen itself counts on");
}

/// Each goes True, False while it shuts down, Unknown while it is away, False while its kubelet begins, True.
#[test]
fn reboots_in_a_row_are_no_flap_with_all_that_they_go_through() {
    let mut flaps = Flaps::default();
    let faults = [FaultType::RuntimeUnreachable, FaultType::KubeletDown, FaultType::RuntimeListHung];
    let faults =
        faults.map(|kind| Fault { id: Fault::identity(kind, "n"), state: FaultState::Confirmed, ..fault(kind) });
    for round in 0..2 {
        let readies = [TriState::True, TriState::False, TriState::Unknown, TriState::False, TriState::True];
        for (ready, at) in readies.into_iter().zip([0, 10, 50, 70, 90]) {
            flaps.note_ready("n", &node(ready, round * 100 + at), secs(round * 100 + at));
        }
        flaps.note_report("n", &report(&faults), secs(round * 100 + 75));
        flaps.note_report("n", &report(&[]), secs(round * 100 + 95));
    }
    assert_eq!(views(&mut flaps, 200).remove("n").and_then(|told| told.flapping), None);
    assert_eq!(flaps.0["n"].flap.unwrap().changes(), 4, "a reboot is two");
}

#[test]
fn faults_of_one_cause_count_once_each_time_that_they_come() {
    let mut flaps = Flaps::default();
    let all: Vec<Fault> = (0..8)
        .map(|n| Fault { id: format!("orphan-{n}"), state: FaultState::Confirmed, ..fault(FaultType::OrphanContainer) })
        .collect();
    for n in 0..3 {
        flaps.note_report("n", &report(&all), secs(n * 300));
        flaps.note_report("n", &report(&[]), secs(n * 300 + 200));
    }
    assert_eq!(flaps.0["n"].flap.unwrap().changes(), 2);
}

#[test]
fn a_late_word_on_a_node_that_is_gone_leaves_the_history_of_the_new_one_alone() {
    let mut flaps = Flaps::default();
    let now = flap(&mut flaps, 0, 10, 30);
    let old = ReportView { node_uid: Some("gone".into()), ..report(&[fault(FaultType::KubeletDown)]) };
    flaps.note_report("n", &old, secs(now + 1));
    assert!(views(&mut flaps, now + 2)["n"].flapping.is_some());
}

/// A kubelet that cannot relist its pods for 200 of every 260 s.
#[test]
fn on_a_node_that_flaps_a_fault_that_was_away_for_a_moment_goes_on() {
    let (mut flaps, mut now) = (Flaps::default(), 0);
    let stalled = Fault { id: Fault::identity(FaultType::PlegStalled, "n"), ..fault(FaultType::PlegStalled) };
    let seen = Fault { id: "hung".into(), state: FaultState::Confirmed, ..fault(FaultType::HungContainer) };
    let stayed = |flaps: &mut Flaps, now, fault: &Fault| {
        let fault = Fault { state: FaultState::Confirmed, ..fault.clone() };
        views(flaps, now).remove("n").map(|told| told.stayed(&fault).as_secs())
    };
    let mut sequence = 0;
    for turn in 0..6 {
        for (ready, faults, lasts) in [(TriState::False, vec![seen.clone()], 200), (TriState::True, vec![], 60)] {
            let complaint = (ready == TriState::False).then_some(Complaint::PlegStalled);
            flaps.note_ready("n", &NodeView { complaint, ..node(ready, now) }, secs(now));
            for at in (now..now + lasts).step_by(20) {
                sequence += 1;
                let mut report = report(&faults);
                report.heartbeat.as_mut().unwrap().sequence = sequence;
                flaps.note_report("n", &report, secs(at));
                // As our own writes bring it once more.
                flaps.note_report("n", &report, secs(at + 19));
            }
            now += lasts;
            if ready == TriState::False {
                let want = if turn < 4 { Some(0) } else { Some((turn + 1) * 200) };
                let got = stayed(&mut flaps, now, &stalled);
                assert_eq!(got.filter(|got| *got > 0), want.filter(|want| *want > 0), "turn {turn}");
            } else {
                assert_eq!(stayed(&mut flaps, now, &stalled).unwrap_or(0), 0, "it is away");
            }
            assert_eq!(
                stayed(&mut flaps, now, &seen).unwrap_or(0) > 600,
                ready == TriState::False && turn >= 4,
                "{turn}"
            );
        }
    }
    assert_eq!(views(&mut flaps, now)["n"].stayed, [], "neither is there");
}
