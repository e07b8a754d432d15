use proptest::prelude::*;

use super::*;

fn wall() -> Timestamp {
    "2026-01-05T12:00:00Z".parse().unwrap()
}

fn later(seconds: i64) -> Timestamp {
    Timestamp::from_second(wall().as_second() + seconds).unwrap()
}

/// Changes of `Ready`, so many seconds apart, from 0 on; the history and the moment of the last one.
fn after(gaps: &[u32]) -> (Flap, Moment) {
    let mut now = 0;
    let mut flap = Flap::first(Change::Ready, now);
    for gap in gaps {
        now += Moment::from(*gap);
        flap = Flap::after(Some(flap), Change::Ready, now);
    }
    (flap, now)
}

const SEEN: ReadySeen = (TriState::True, None);

#[test]
fn the_decay_halves_in_a_half_life_and_is_what_the_power_of_two_is() {
    assert_eq!(decayed(8_000, 0), 8_000);
    assert_eq!(decayed(8_000, 1_800), 4_000);
    assert_eq!(decayed(8_000, 5_400), 1_000);
    assert_eq!(decayed(CEILING, u64::MAX), 0);
    for seconds in (0..9_000).step_by(37) {
        let exact = 12_000.0 * (-f64::from(seconds) / 1_800.0).exp2();
        let off = (f64::from(decayed(12_000, u64::try_from(seconds).unwrap())) - exact).abs();
        assert!(off <= 1.0 + exact * 0.001, "{seconds}: off by {off}");
    }
}

/// 8,929 changes in 28 days, as a node made them whose kubelet could not relist its pods.
#[test]
fn a_node_that_changed_thousands_of_times_is_one_history_with_its_count_and_rhythm() {
    let (flap, now) = after(&vec![271; 8_928]);
    assert!(flap.is_flapping());
    assert_eq!((flap.changes(), flap.lasted(now)), (8_929, Duration::from_secs(8_921 * 271)));
    let record = flap.record(now, wall(), SEEN);
    assert_eq!(record.rhythm(), Duration::from_secs(271));
    let told = FlapView { record, flapping: Some(flap.lasted(now)), unchanged: Duration::ZERO, stayed: Vec::new() };
    assert_eq!(told.describe(), "Ready changed 8929 times in 672h 4m 48s, about every 4m 31s, by 2026-01-05T12:00:00Z");
    let settles = flap.settles_in(now);
    assert!(settles >= QUIET && settles <= 3 * HALF_LIFE + Duration::from_secs(1), "{settles:?}");
    let then = now + i64::try_from(settles.as_secs()).unwrap();
    assert!(flap.settled(then - 1).unwrap().is_flapping() && !flap.settled(then).unwrap().is_flapping());
}

#[test]
fn two_reboots_in_a_row_are_no_flap_and_a_change_every_nine_minutes_is_none() {
    assert!(!after(&[60, 60, 120, 60]).0.is_flapping());
    assert!(!after(&[540; 1_000]).0.is_flapping());
    assert!(after(&[10; 5]).0.is_flapping());
}

#[test]
fn a_history_takes_a_few_words_and_never_runs_over() {
    assert!(size_of::<Flap>() <= 64, "{}", size_of::<Flap>());
    let full = Flap { ready: u32::MAX, faults: u32::MAX, ..after(&[]).0 };
    let more = full.with(Change::Ready, Moment::MAX).with(Change::Fault, Moment::MIN);
    assert_eq!(more.changes(), u32::MAX);
    assert!(more.penalty <= CEILING && more.last == Moment::MAX);
}

type Spoil = fn(&mut FlapRecord);

#[test]
fn a_record_that_no_controller_wrote_is_refused_with_what_is_wrong() {
    let (flap, now) = after(&[60; 19]);
    let good = flap.record(now, wall(), SEEN);
    assert_eq!(good.check(wall()), Ok(()));
    let cases: [(&str, Spoil); 9] = [
        ("at least one change", |r| r.ready_transitions = 0),
        ("a penalty of at most 12000", |r| r.penalty = CEILING + 1),
        ("a penalty of at most 6000 for 6", |r| (r.ready_transitions, r.penalty) = (6, 6_001)),
        ("since before last", |r| r.tracked_since = later(1)),
        ("a last change before now", |r| r.last_change_at = later(86_401)),
        ("a last change before now", |r| r.last_change_at = Timestamp::MAX),
        ("within the last ten years", |r| r.tracked_since = Timestamp::MIN),
        ("within the last ten years", |r| (r.tracked_since, r.last_change_at) = (Timestamp::MIN, Timestamp::MIN)),
        ("expected 6 changes", |r| (r.ready_transitions, r.penalty) = (5, 1_000)),
    ];
    for (want, spoil) in cases {
        let mut bad = good.clone();
        spoil(&mut bad);
        let why = Flap::restored(&bad, None, (SEEN, SEEN), 0, wall()).unwrap_err();
        assert!(why.contains(want), "{want}: {why}");
    }
    // As much as it can say is a history like any other.
    let most = FlapRecord {
        ready_transitions: u32::MAX,
        recurrences: u32::MAX,
        penalty: CEILING,
        ready_since: Some(Timestamp::MAX),
        ..good.clone()
    };
    for now in [600, Moment::MIN, Moment::MAX] {
        let restored = Flap::restored(&most, Some(after(&[60; 9]).0), (SEEN, SEEN), now, wall()).unwrap();
        assert!(restored.changes() == u32::MAX && restored.settles_in(now) <= 16 * HALF_LIFE);
        assert!(now != 600 || restored.settles_in(now) <= 3 * HALF_LIFE + QUIET);
        let told = FlapView {
            record: restored.record(now, wall(), SEEN),
            flapping: Some(restored.lasted(now)),
            unchanged: Duration::ZERO,
            stayed: Vec::new(),
        };
        assert!(told.fault("n").is_some() && told.describe().contains("Ready changed 4294967295 times"));
    }
    let outside = FlapRecord { flapping_since: Some(later(1)), ..good };
    assert!(outside.check(wall()).unwrap_err().contains("between since and last"));
}

#[test]
fn no_clock_hides_a_flap_that_was_written_down() {
    let (flap, now) = after(&[60; 20]);
    let record = flap.record(now, wall(), SEEN);
    // Set back an hour, on by a year, and right.
    for shift in [-3_600, 31_536_000, 0] {
        let restored = Flap::restored(&record, None, (SEEN, SEEN), 5, later(shift)).unwrap();
        let watched = 5 + Moment::try_from(QUIET.as_secs()).unwrap();
        assert!(restored.settled(watched - 1).unwrap().is_flapping(), "{shift}: nobody has watched it be quiet");
        assert!(restored.last <= 5 && restored.changes() == 21, "{shift}");
        assert!(restored.settles_in(5) <= 3 * HALF_LIFE + QUIET, "{shift}: nor does it last for ever");
    }
}

/// A controller that begins anew: what it sees of `Ready` first and now, beside what was written.
#[test]
fn what_was_written_and_what_was_seen_are_not_counted_twice() {
    let stood = |second| (TriState::True, Some(later(second)));
    let (flap, now) = after(&[60; 3]);
    let record = flap.record(now, wall(), stood(0));
    let own = Flap::first(Change::Ready, 3).with(Change::Ready, 4);
    let count = |own, first, seen| Flap::restored(&record, own, (first, seen), 5, wall()).unwrap().changes();
    assert_eq!(count(None, stood(0), stood(0)), 4, "nothing since");
    assert_eq!(count(None, stood(9), stood(9)), 4, "another time alone is none: some kubelets renew it");
    let away = (TriState::Unknown, Some(later(9)));
    assert_eq!(count(None, away, away), 5, "at least one while nobody looked");
    assert_eq!(count(Some(own), stood(0), stood(9)), 6, "all of its own came after");
    assert_eq!(count(Some(own), stood(-9), stood(0)), 4, "the other controller has seen all of them");
    assert_eq!(count(Some(own), stood(-9), stood(9)), 4, "it may have seen all of them");
    assert_eq!(count(Some(own), stood(-9), away), 5, "some of them, and one more");
}

/// A replica that stood by has watched all the while: what the leader had no time to write is known to it.
#[test]
fn what_one_who_stood_by_has_seen_is_not_forgotten() {
    let (written, then) = after(&[60; 4]);
    let record = written.record(then, wall(), (TriState::True, Some(later(0))));
    assert!(!written.is_flapping());
    let (own, now) = after(&[60; 8]);
    let seen = (TriState::True, Some(later(240)));
    let restored =
        Flap::restored(&record, Some(own), ((TriState::True, Some(later(-999))), seen), now, later(240)).unwrap();
    assert!(restored.is_flapping());
    assert_eq!((restored.changes(), restored.penalty(now)), (9, own.penalty(now)), "none counts twice");
    assert_eq!(restored.record(now, later(240), seen).check(later(240)), Ok(()));
}

proptest! {
    #[test]
    fn fewer_than_six_changes_are_never_a_flap(gaps in prop::collection::vec(0_u32..4_000, 0..5)) {
        prop_assert!(!after(&gaps).0.is_flapping());
    }

    /// Five half-lives leave nothing of what was before that could make the cut-off with five changes more.
    #[test]
    fn nor_are_they_after_a_quiet_time(before in prop::collection::vec(0_u32..600, 0..40), gaps in prop::collection::vec(0_u32..1_000, 0..4)) {
        let all = [before, vec![9_000], gaps].concat();
        prop_assert!(!after(&all).0.is_flapping());
    }

    #[test]
    fn a_steady_rhythm_always_is(gap in 0_u32..=480, jitter in prop::collection::vec(0_u32..=480, 30)) {
        let gaps: Vec<u32> = jitter.iter().map(|at_most| gap.min(*at_most)).collect();
        prop_assert!(after(&gaps).0.is_flapping());
        prop_assert!(after(&[gap; 20]).0.is_flapping());
    }

    #[test]
    fn a_penalty_only_decays_and_what_has_settled_stays_so(gaps in prop::collection::vec(0_u32..900, 0..60), a in 0_i64..40_000, b in 0_i64..40_000) {
        let (flap, now) = after(&gaps);
        let (a, b) = (a.min(b), a.max(b));
        prop_assert!(flap.penalty(now + a) >= flap.penalty(now + b));
        prop_assert!(flap.penalty <= CEILING);
        let is_flapping = |at| flap.settled(now + at).is_some_and(|flap| flap.is_flapping());
        prop_assert!(is_flapping(a) || !is_flapping(b));
        prop_assert!(is_flapping(0) == flap.is_flapping());
    }

    #[test]
    fn a_clock_that_goes_back_is_taken_for_one_that_stands(gaps in prop::collection::vec(0_u32..900, 0..30), back in 0_i64..100_000) {
        let (flap, now) = after(&gaps);
        prop_assert_eq!(flap.with(Change::Ready, now - back), flap.with(Change::Ready, now));
        prop_assert_eq!(flap.penalty(now - back), flap.penalty(now));
    }

    #[test]
    fn what_is_written_down_and_read_back_is_the_same(gaps in prop::collection::vec(0_u32..900, 0..60), age in 0_i64..9_000) {
        let (flap, now) = after(&gaps);
        let record = flap.record(now, wall(), SEEN);
        prop_assert_eq!(record.check(wall()), Ok(()));
        let restored = Flap::restored(&record, None, (SEEN, SEEN), 7, later(age)).unwrap();
        prop_assert_eq!(restored.penalty(7), flap.penalty(now + age));
        prop_assert_eq!((restored.changes(), restored.is_flapping()), (flap.changes(), flap.is_flapping()));
        prop_assert_eq!(restored.record(7, later(age), SEEN), record);
    }
}
