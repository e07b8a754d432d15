use super::*;
use crate::core::flap::{CUT_OFF, HALF_LIFE, QUIET};
use crate::core::snapshot::{Heartbeat, ReportedFault};
use crate::core::tracker::tests::fault;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn wall(seconds: u64) -> Timestamp {
    Timestamp::from_second(1_767_582_000 + i64::try_from(seconds).unwrap()).unwrap()
}

fn node(ready: Tri, since: u64) -> NodeView {
    NodeView { uid: "u".into(), ready, ready_since: Some(wall(since)), ..NodeView::default() }
}

/// `Ready` changes every so many seconds, so many times; the moment of the last one.
fn flap(flaps: &mut Flaps, from: u64, times: u64, every: u64) -> u64 {
    for n in 0..=times {
        let at = from + n * every;
        let ready = if n % 2 == 0 { Tri::True } else { Tri::False };
        flaps.note_ready("n", &node(ready, at), secs(at));
    }
    from + times * every
}

fn report(faults: &[Fault]) -> ReportView {
    let beat = Heartbeat {
        arrived: secs(0),
        interval: secs(60),
        sequence: 1,
        can_act: true,
        kubelet_works: Tri::True,
        boot_id: String::new(),
    };
    let faults = faults.iter().map(|fault| ReportedFault { fault: fault.clone(), looked: secs(0) }).collect();
    ReportView { node_uid: Some("u".into()), heartbeat: Some(beat), faults, ..ReportView::default() }
}

#[test]
fn a_node_that_flaps_is_told_with_its_count_and_stable_after_a_quiet_time() {
    let mut flaps = Flaps::default();
    let now = flap(&mut flaps, 0, 10, 60);
    let told = flaps.told(secs(now), wall(now)).remove("n").unwrap();
    assert_eq!((told.record.ready_changes, told.record.rhythm()), (10, secs(60)));
    assert!(told.flapping.is_some() && told.record.penalty >= CUT_OFF);
    let settles = flaps.next_change(secs(now)).unwrap();
    assert!(settles > QUIET && settles < 3 * HALF_LIFE);
    let calm = now + settles.as_secs();
    assert_eq!(flaps.told(secs(calm), wall(calm))["n"].flapping, None);
    let over = calm + flaps.next_change(secs(calm)).unwrap().as_secs();
    assert!(flaps.told(secs(over), wall(over)).is_empty(), "nothing is left to tell");
    assert_eq!(flaps.next_change(secs(over)), None);
}

#[test]
fn only_another_status_is_a_change() {
    let mut flaps = Flaps::default();
    let new = NodeView { uid: "u".into(), ..NodeView::default() };
    flaps.note_ready("n", &new, secs(0));
    // A kubelet that renews the time with every heartbeat.
    for at in 0..500 {
        flaps.note_ready("n", &node(Tri::True, at), secs(at));
    }
    assert!(flaps.told(secs(500), wall(500)).is_empty());
    flap(&mut flaps, 501, 8, 1);
    assert!(flaps.told(secs(510), wall(510))["n"].flapping.is_some());
    // Another Node of that name has no history.
    flaps.note_ready("n", &NodeView { uid: "other".into(), ..node(Tri::True, 511) }, secs(511));
    assert!(flaps.told(secs(511), wall(511)).is_empty());
}

#[test]
fn a_thousand_changes_are_told_a_few_times() {
    let (mut flaps, mut before, mut tellings) = (Flaps::default(), None, 0_u64);
    for n in 0..=1_000_u64 {
        let ready = if n % 2 == 0 { Tri::True } else { Tri::False };
        flaps.note_ready("n", &node(ready, n * 5), secs(n * 5));
        let told = flaps.told(secs(n * 5), wall(n * 5)).remove("n").map(|view| view.record);
        tellings += u64::from(told != before);
        before = told;
    }
    let most = 5_000 / TOLD_EVERY.as_secs() + 2;
    assert!(tellings >= 2 && tellings <= most, "{tellings} of {most}");
    let behind = flaps.next_change(secs(5_000)).unwrap();
    assert!(behind <= TOLD_EVERY, "what is not told yet is told in time");
}

#[test]
fn a_fault_that_comes_and_goes_counts_and_those_that_are_healed_once_do_not() {
    let mut flaps = Flaps::default();
    let kind = FaultType::HungContainer;
    let one = |n: u64| Fault { id: format!("hungcontainer-{n}"), state: FaultState::Confirmed, ..fault(kind) };
    // Twenty of them, each of which comes and goes once.
    for n in 0..20 {
        flaps.note_report("n", &report(&[one(n)]), secs(n * 20));
        flaps.note_report("n", &report(&[]), secs(n * 20 + 10));
    }
    assert!(flaps.told(secs(400), wall(400)).is_empty());
    // One of them, again and again: but a report that could not look, or is full, has not seen it go.
    for n in 0..20 {
        flaps.note_report("n", &report(&[one(99)]), secs(400 + n * 20));
        let blind = ReportView { unlooked: [kind].into(), ..report(&[]) };
        flaps.note_report("n", &blind, secs(410 + n * 20));
    }
    assert!(flaps.told(secs(800), wall(800)).is_empty());
    for n in 0..8 {
        flaps.note_report("n", &report(&[one(99)]), secs(800 + n * 20));
        flaps.note_report("n", &report(&[]), secs(810 + n * 20));
    }
    let told = flaps.told(secs(960), wall(960)).remove("n").unwrap();
    assert_eq!((told.record.fault_returns, told.record.ready_changes), (7, 0));
    assert!(told.flapping.is_some());
    let of = &flaps.0["n"];
    assert!(of.gone.len() <= MAX_GONE && of.confirmed.is_empty());
}

#[test]
fn the_next_controller_goes_on_where_the_one_before_has_ended() {
    let mut before = Flaps::default();
    let now = flap(&mut before, 0, 20, 60);
    let record = before.told(secs(now), wall(now)).remove("n").unwrap().record;
    let restart = |uid: &str, ready: NodeView, record: &FlapRecord| {
        let mut next = Flaps::default();
        next.note_ready("n", &ready, secs(1));
        let refused = next.restore(secs(2), wall(now + 60), |_| Some((uid, record)));
        let again = next.restore(secs(3), wall(now + 60), |_| Some((uid, record)));
        assert!(again.is_empty(), "it is read once");
        (next.told(secs(3), wall(now + 61)).remove("n"), refused)
    };
    let same = node(Tri::True, now);
    let (told, refused) = restart("u", same.clone(), &record);
    assert!(refused.is_empty() && told.as_ref().unwrap().flapping.is_some());
    assert_eq!(told.unwrap().record.ready_changes, 20);
    let (told, _) = restart("u", node(Tri::True, now + 30), &record);
    assert_eq!(told.unwrap().record.ready_changes, 21, "at least one while nobody looked");
    assert_eq!(restart("another", same.clone(), &record), (None, vec![]), "it is about another Node");
    let bad = FlapRecord { penalty: u32::MAX, ..record };
    let (told, refused) = restart("u", same, &bad);
    assert!(told.is_none() && refused[0].1.contains("found 4294967295"), "{refused:?}");
}
