//! What one answer proves, and what it does not.

use std::sync::Mutex;

use tower::{ServiceExt, service_fn};

use super::*;

const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

fn instant() -> Timestamp {
    "1994-11-06T08:49:37Z".parse().unwrap()
}

/// The node's clock is ahead by this many milliseconds, and the answer, written so long after a second began, is under way
/// for these times.
fn seen(ahead: i64, into_second: u64, there: u64, back: u64) -> ClockSeen {
    let at = Instant::now();
    let ms = |ms: u64| SignedDuration::from_millis(i64::try_from(ms).unwrap());
    let written = instant() + ms(into_second) + SignedDuration::from_millis(ahead);
    let before = Moment { wall: written - ms(there), at };
    let after = Moment { wall: written + ms(back), at: at + Duration::from_millis(there + back) };
    compare(before, after, instant()).unwrap()
}

#[test]
fn whatever_the_network_does_nothing_is_proven_of_a_clock_that_is_right() {
    for (into_second, there, back) in [(0, 0, 0), (999, 0, 0), (0, 30_000, 0), (999, 0, 30_000), (500, 9000, 9000)] {
        let seen = seen(0, into_second, there, back);
        assert_eq!((seen.ahead, seen.behind), (Duration::ZERO, Duration::ZERO), "{into_second} {there} {back}");
        assert!(seen.most <= Duration::from_millis(1000 + there.max(back) + 999), "{seen:?}");
    }
}

#[test]
fn what_is_certain_is_never_more_than_what_is_true() {
    for ahead in [-3_600_000, -40_000, -1500, -1, 1, 1500, 40_000, 3_600_000] {
        for (into_second, there, back) in [(0, 1, 1), (999, 1, 1), (0, 8000, 10), (999, 10, 8000)] {
            let (seen, real) = (seen(ahead, into_second, there, back), Duration::from_millis(ahead.unsigned_abs()));
            let (this, other) = if ahead > 0 { (seen.ahead, seen.behind) } else { (seen.behind, seen.ahead) };
            assert!(this <= real && other.is_zero() && real <= seen.most, "{ahead}: {seen:?}");
            let wait = Duration::from_millis(there.max(back) + 1000);
            assert!(this + wait >= real && seen.most <= real + wait, "{ahead}: {seen:?}");
        }
    }
}

#[test]
fn a_clock_that_was_set_in_between_proves_nothing() {
    let at = Instant::now();
    let before = Moment { wall: instant(), at };
    for (step, proves) in [(0, true), (400, true), (600, false), (-600, false), (-86_400_000, false)] {
        let wall = instant() + SignedDuration::from_millis(200 + step);
        let after = Moment { wall, at: at + Duration::from_millis(200) };
        assert_eq!(compare(before, after, instant()).is_some(), proves, "{step} ms");
    }
    // A machine that slept: its monotonic clock did too.
    let after = Moment { wall: instant() + SignedDuration::from_hours(8), at: at + Duration::from_millis(200) };
    assert_eq!(compare(before, after, instant()), None);
}

#[test]
fn only_the_one_form_of_a_date_is_one() {
    assert_eq!(parse(DATE.as_bytes()), Some(instant()));
    assert_eq!(parse(b"Thu, 29 Feb 2024 23:59:60 GMT"), "2024-02-29T23:59:59Z".parse().ok());
    for refused in [
        "",
        "Sun, 06 Nov 1994 08:49:37 UTC",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "Sun, 30 Feb 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 24:49:37 GMT",
        "Sun, 06 Nov 1994 08:61:37 GMT",
        "Sun, +6 Nov 1994 08:49:37 GMT",
        "Sun, 06 nov 1994 08:49:37 GMT",
    ] {
        assert_eq!(parse(refused.as_bytes()), None, "{refused}");
    }
}

/// What is told of one answer with these headers.
async fn told(status: u16, headers: &[(&str, &str)]) -> Option<ClockSeen> {
    let mut answer = Response::builder().status(status);
    for (name, value) in headers {
        answer = answer.header(*name, *value);
    }
    let answer = Mutex::new(Some(answer.body(Body::empty()).unwrap()));
    let service = service_fn(move |_: Request<Body>| {
        let answer = answer.lock().unwrap().take().unwrap();
        async move { Ok::<_, std::convert::Infallible>(answer) }
    });
    let told = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&told);
    let tell: Tell = Arc::new(move |seen| *keep.lock().unwrap() = Some(seen));
    Dated { service, tell }.oneshot(Request::new(Body::empty())).await.unwrap();
    *told.lock().unwrap()
}

#[tokio::test]
async fn answers_are_checked_and_only_those_that_are_the_servers_own() {
    let seen = told(200, &[("Date", DATE)]).await.unwrap();
    assert!(seen.ahead > Duration::from_hours(24 * 365 * 30) && seen.behind.is_zero());
    let seen = told(201, &[("Date", "Fri, 31 Dec 9998 08:49:37 GMT")]).await.unwrap();
    assert!(seen.behind > Duration::from_hours(24) && seen.ahead.is_zero());
    for (status, headers) in [
        (200, &[][..]),
        (200, &[("Date", "yesterday")]),
        (200, &[("Date", DATE), ("Age", "20")]),
        (502, &[("Date", DATE)]),
        (403, &[("Date", DATE)]),
    ] {
        assert_eq!(told(status, headers).await, None, "{status} {headers:?}");
    }
}
