//! The API server's clock, from the `Date` of its answers: what one answer proves about the node's clock.
//!
//! ```text
//! the node's clock   before ────── request ─ ─ ─ ─ ─ ─ answer ────── after
//! the server's                             Date is cut to a second
//! ```
//! The server wrote the answer in between, at its time of `Date` up to a second more. However slow the network was and
//! in whichever direction, the node's clock is ahead by at least `before − Date − 1 s`, and behind by at least
//! `Date − after`. `adjtimex(2)` cannot distinguish a node whose hypervisor keeps its clock well from a node whose clock nobody
//! keeps.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response, header};
use jiff::tz::Offset;
use jiff::{SignedDuration, Timestamp, civil};
use kube::client::Body;
use tower::Service;

use nrh_core::observation::ClockSeen;

/// The resolution of a `Date`.
const GRAIN: SignedDuration = SignedDuration::from_secs(1);
/// Maximum difference between the wall clock and the monotonic clock during a request. A larger difference is a step of
/// the clock, or a sleep of the machine.
const STEP: Duration = Duration::from_millis(500);

/// Receives what an answer proves.
pub type Tell = Arc<dyn Fn(ClockSeen) + Send + Sync>;

/// A moment on both clocks of the node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub wall: Timestamp,
    pub at: Instant,
}

impl Moment {
    fn now() -> Self {
        Self { wall: Timestamp::now(), at: Instant::now() }
    }
}

/// Returns what an answer with this date proves; `None` if the node's clock was set during the request.
pub(super) fn compare(before: Moment, after: Moment, date: Timestamp) -> Option<ClockSeen> {
    let by_wall = after.wall.duration_since(before.wall);
    let by_both = SignedDuration::try_from(after.at.saturating_duration_since(before.at)).ok()?;
    if (by_wall - by_both).unsigned_abs() > STEP {
        return None;
    }
    let least = |signed: SignedDuration| Duration::try_from(signed).unwrap_or_default();
    let (ahead, behind) = (before.wall.duration_since(date) - GRAIN, date.duration_since(after.wall));
    Some(ClockSeen {
        ahead: least(ahead),
        behind: least(behind),
        most: least(after.wall.duration_since(date)).max(least(date.duration_since(before.wall) + GRAIN)),
    })
}

/// Parses `Sun, 06 Nov 1994 08:49:37 GMT`, the only form that servers may send. The day of the week is not checked.
pub(crate) fn parse(text: &[u8]) -> Option<Timestamp> {
    const MONTHS: [&[u8]; 12] =
        [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    let text: &[u8; 29] = text.try_into().ok()?;
    let is = |from: usize, what: &[u8]| text.get(from..from + what.len()) == Some(what);
    let marks = [(3, &b", "[..]), (7, b" "), (11, b" "), (16, b" "), (19, b":"), (22, b":"), (25, b" GMT")];
    if !marks.into_iter().all(|(at, mark)| is(at, mark)) {
        return None;
    }
    let number = |from: usize, digits: usize| {
        let digits = text.get(from..from + digits)?;
        let ten = |sum: i16, digit: &u8| digit.is_ascii_digit().then(|| sum * 10 + i16::from(digit - b'0'));
        digits.iter().try_fold(0, ten)
    };
    let small = |from| i8::try_from(number(from, 2)?).ok();
    let month = MONTHS.iter().position(|month| is(8, month))?;
    let month = i8::try_from(month + 1).ok()?;
    // A leap second has the value 60: a difference of one second is within the resolution.
    let second = if is(23, b"60") { 59 } else { small(23)? };
    let time = civil::DateTime::new(number(12, 4)?, month, small(5)?, small(17)?, small(20)?, second, 0).ok()?;
    Offset::UTC.to_timestamp(time).ok()
}

/// Returns the date of an answer, if it is the server's own and not that of a cached answer.
fn date(headers: &HeaderMap) -> Option<Timestamp> {
    if headers.contains_key(header::AGE) {
        return None;
    }
    parse(headers.get(header::DATE)?.as_bytes())
}

/// A client that reads the dates of the answers that it gets anyway.
#[derive(Clone)]
pub(super) struct Dated<S> {
    pub service: S,
    pub tell: Tell,
}

impl<S, B> Service<Request<Body>> for Dated<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let before = Moment::now();
        let (call, tell) = (self.service.call(request), Arc::clone(&self.tell));
        async move {
            let answer = call.await?;
            let after = Moment::now();
            // An error can come from a proxy in between.
            if answer.status().is_success()
                && let Some(seen) = date(answer.headers()).and_then(|date| compare(before, after, date))
            {
                tell(seen);
            }
            Ok(answer)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
