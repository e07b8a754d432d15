use super::*;

/// As kubelet 1.36 writes them, with what stands around them.
const TEXT: &str = "# HELP kubelet_pleg_discard_events [ALPHA] The number of discard events in PLEG.\n\
# TYPE kubelet_pleg_discard_events counter\n\
kubelet_pleg_discard_events 0\n\
# TYPE kubelet_pleg_last_seen_seconds gauge\n\
kubelet_pleg_last_seen_seconds 1.795312345e+09\n\
# TYPE kubelet_pleg_relist_duration_seconds histogram\n\
kubelet_pleg_relist_duration_seconds_bucket{le=\"0.005\"} 81\n\
kubelet_pleg_relist_duration_seconds_bucket{le=\"+Inf\"} 90\n\
kubelet_pleg_relist_duration_seconds_sum 0.4500000001\n\
kubelet_pleg_relist_duration_seconds_count 90\n\
kubelet_pleg_relist_interval_seconds_sum 91\n";

fn whole(text: &[u8]) -> Result<Option<Sample>, String> {
    Parser::default().push(text)
}

#[test]
fn the_three_numbers_are_found_whatever_the_pieces() {
    let expected = Sample { sum: 0.450_000_000_1, count: 90.0, last_seen: Some(1_795_312_345.0) };
    assert_eq!(whole(TEXT.as_bytes()), Ok(Some(expected)));
    for size in [1, 7, 64, 200] {
        let mut parser = Parser::default();
        let found = TEXT.as_bytes().chunks(size).find_map(|piece| parser.push(piece).unwrap());
        assert_eq!(found, Some(expected), "pieces of {size}");
    }
}

#[test]
fn a_number_that_is_cut_or_none_is_no_number() {
    let end = TEXT.find(" 90\nkubelet_pleg_relist_interval").unwrap();
    for cut in [end + 1, end + 2, end + 3] {
        assert_eq!(whole(&TEXT.as_bytes()[..cut]), Ok(None), "9 is not 90");
    }
    assert!(whole(&TEXT.as_bytes()[..end + 4]).unwrap().is_some());
    for value in ["NaN", "+Inf", "-1", "1e300", "", "90 1795312345", "0x5a"] {
        let text = TEXT.replace("_count 90\n", &format!("_count {value}\n"));
        assert_eq!(whole(text.as_bytes()), Ok(None), "{value}");
    }
    let without = TEXT.replace("last_seen", "other");
    assert_eq!(whole(without.as_bytes()).unwrap().unwrap().last_seen, None);
}

#[test]
fn lines_without_end_cost_nothing_and_metrics_without_end_are_given_up() {
    let mut parser = Parser::default();
    let line = vec![b'x'; 1 << 20];
    for _ in 0..3 {
        assert_eq!(parser.push(&line), Ok(None));
        assert!(parser.line.capacity() <= 2 * MAX_LINE, "{}", parser.line.capacity());
    }
    assert_eq!(parser.push(b"\n"), Ok(None));
    assert!(parser.push(TEXT.as_bytes()).unwrap().is_some(), "what follows is read");
    assert!(parser.push(&line).unwrap_err().contains("larger than"));
}

const KUBELET: (i32, u64) = (60, 6000);

/// Checks a kubelet whose counters are these after so many seconds.
fn checks(samples: &[(u64, f64, f64, f64)]) -> Vec<RelistsSeen> {
    let (mut memory, start) = (Memory::default(), Instant::now());
    let check = |(at, sum, count, moment): &(u64, f64, f64, f64)| {
        let sample = Sample { sum: *sum, count: *count, last_seen: Some(*moment) };
        let at = start + Duration::from_secs(*at);
        memory.note(KUBELET, sample, at, at)
    };
    samples.iter().map(check).collect()
}

fn seconds(seen: RelistsSeen) -> (Option<u64>, u64, u64) {
    (seen.mean.map(|mean| mean.as_secs()), seen.idle.as_secs(), seen.unmoved.unwrap().as_secs())
}

#[test]
fn a_mean_is_of_those_that_have_ended_since() {
    let seen = checks(&[
        (0, 100.0, 1000.0, 0.0),
        (60, 160.0, 1001.0, 60.0),
        (120, 160.0, 1001.0, 60.0),
        (180, 281.0, 1002.0, 180.0),
    ]);
    let seen: Vec<_> = seen.into_iter().map(seconds).collect();
    // The first check has none before it, and what went on for months says nothing of now.
    assert_eq!(seen, [(None, 0, 0), (Some(60), 0, 0), (None, 60, 60), (Some(121), 0, 0)]);
}

#[test]
fn checks_that_follow_closely_are_held_against_the_one_before_them_all() {
    let seen = checks(&[
        (0, 0.0, 10.0, 1.0),
        (1, 0.0, 10.0, 1.0),
        (2, 50.0, 11.0, 2.0),
        (3, 50.0, 11.0, 2.0),
        (40, 50.5, 50.0, 40.0),
    ]);
    let means: Vec<_> = seen.into_iter().map(|seen| seen.mean.map(|mean| mean.as_secs())).collect();
    assert_eq!(means, [None, None, Some(50), Some(50), Some(1)]);
}

#[test]
fn a_wall_clock_that_jumps_is_a_moment_that_has_moved() {
    let seen = checks(&[(0, 0.0, 10.0, 1e9), (60, 0.1, 70.0, 2e9), (120, 0.2, 130.0, 5e8)]);
    assert!(seen.iter().all(|seen| seen.unmoved == Some(Duration::ZERO) && seen.idle.is_zero()));
    let stands = checks(&[(0, 0.0, 10.0, 1e9), (60, 0.1, 70.0, 1e9)]);
    assert_eq!(seconds(stands[1]), (Some(0), 0, 60), "lists that fail at once end, and are no good ones");
}

#[test]
fn another_kubelet_and_counters_that_began_anew_have_no_before() {
    let (mut memory, at) = (Memory::default(), Instant::now());
    let later = at + Duration::from_mins(1);
    let after = |minutes: u64| later + Duration::from_mins(minutes);
    let sample = Sample { sum: 10.0, count: 100.0, last_seen: None };
    memory.note(KUBELET, sample, at, at);
    let first = RelistsSeen { begun: true, ..RelistsSeen::default() };
    assert_eq!(memory.note((61, 7000), sample, later, later), first, "another process");
    let fewer = Sample { count: 3.0, ..sample };
    assert_eq!(memory.note((61, 7000), fewer, after(1), after(1)), first);
    let none = Sample { sum: 0.0, count: 0.0, last_seen: None };
    assert_eq!(memory.note((61, 7000), none, after(2), after(2)), RelistsSeen::default());
}

#[test]
fn an_answer_that_takes_long_is_no_kubelet_that_stands_still() {
    let (mut memory, start) = (Memory::default(), Instant::now());
    let sample = Sample { sum: 10.0, count: 100.0, last_seen: Some(1e9) };
    let at = |second: u64| start + Duration::from_secs(second);
    memory.note(KUBELET, sample, at(0), at(9));
    let seen = memory.note(KUBELET, sample, at(10), at(300));
    assert_eq!((seen.idle, seen.unmoved), (Duration::from_secs(1), Some(Duration::from_secs(1))));
}
