//! The collector that asks the kubelet at its own port. The kubelet's collector finds that kubelet. While the kubelet is down
//! or starts, this collector asks nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::host::others_have_checked;
use super::pace::{Checker, Pace, drive};
use super::slot::Failure;
use super::worker::Worker;
use super::{Shared, lock};
use crate::collect::kubelet::port::Port;
use crate::collect::kubelet::server::{KubeletEndpoint, door};
use nrh_core::observation::{PortSeen, RelistsSeen};

/// Time from the first calm check until checks become seldom. Two clean checks end a fault, and two requested checks right
/// after each other may count as one.
const CALM: Duration = Duration::from_secs(30);
/// Relists of the kubelet that take this long may soon count as slow; ordinary ones take well under a second.
const SLOW: Duration = Duration::from_secs(10);

pub(super) async fn port(shared: Arc<Shared>, token: Option<PathBuf>, pace: Pace) {
    let for_worker = Arc::clone(&shared);
    // Certificates are on the node's disks, and a read from those may hang.
    let worker = Worker::new("nrh-port", move || {
        let (shared, token) = (Arc::clone(&for_worker), token.clone());
        move || {
            let served = lock(&shared.served).clone();
            Ok(served.and_then(|served| door(&shared.proc, &served, token.as_deref())))
        }
    });
    let checker = PortChecker { worker, port: Port::default(), calm: Calm::default() };
    drive(&shared, "port", &shared.port, checker, pace).await;
}

struct PortChecker {
    worker: Worker<Result<KubeletEndpoint, String>>,
    port: Port,
    calm: Calm,
}

impl Checker for PortChecker {
    type Value = PortSeen;

    async fn check(&mut self, shared: &Shared) -> Result<PortSeen, Failure> {
        others_have_checked(shared).await;
        match self.worker.ask().await? {
            Ok(door) => {
                let seen = self.port.check(&door).await;
                self.calm.note(is_calm(&seen) || self.port.refused(), Instant::now());
                Ok(seen)
            }
            // No kubelet was asked. This is not `Unavailable`: a missing permission, or a port that is not served, does not change by
            // itself.
            Err(why) => {
                self.calm.note(false, Instant::now());
                Ok(PortSeen { sync_loop: Err(why.clone()), relists: Err(why) })
            }
        }
    }

    fn settled(&self) -> bool {
        self.calm.is_long()
    }
}

/// The time since which every check found nothing that needs an early next check.
#[derive(Debug, Default)]
struct Calm {
    first_and_last: Option<(Instant, Instant)>,
}

impl Calm {
    fn note(&mut self, calm: bool, at: Instant) {
        self.first_and_last = calm.then(|| (self.first_and_last.map_or(at, |(first, _)| first), at));
    }

    fn is_long(&self) -> bool {
        self.first_and_last.is_some_and(|(first, last)| last.saturating_duration_since(first) >= CALM)
    }
}

/// Whether the next check has time. A fault, or the sign of one, must be confirmed, and so must its end.
fn is_calm(seen: &PortSeen) -> bool {
    let quick = |relists: &RelistsSeen| {
        relists.mean.is_some_and(|mean| mean < SLOW)
            && relists.idle < SLOW
            && relists.unmoved.is_none_or(|unmoved| unmoved < SLOW)
    };
    seen.sync_loop != Ok(false) && seen.relists.as_ref().is_ok_and(quick)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calm_takes_two_checks_that_are_apart() {
        let (mut calm, began) = (Calm::default(), Instant::now());
        let mut note = |is_calm: bool, second: u64| {
            calm.note(is_calm, began + Duration::from_secs(second));
            calm.is_long()
        };
        assert!(!note(true, 0) && !note(true, 2), "two at once are one");
        assert!(note(true, 46) && note(true, 600));
        assert!(!note(false, 610) && !note(true, 650) && note(true, 700), "it begins anew");
    }

    #[test]
    fn only_a_kubelet_that_gets_on_is_left_alone_for_longer() {
        let quick = RelistsSeen { begun: true, mean: Some(Duration::from_millis(20)), ..RelistsSeen::default() };
        let seen = |sync_loop, relists| PortSeen { sync_loop, relists };
        assert!(is_calm(&seen(Ok(true), Ok(quick))));
        assert!(is_calm(&seen(Err("403".into()), Ok(quick))), "a right that is missing is missing in a minute too");
        let slow = |relists| seen(Ok(true), Ok(relists));
        for busy in [
            seen(Ok(false), Ok(quick)),
            seen(Ok(true), Err("no answer".into())),
            slow(RelistsSeen { mean: None, ..quick }),
            slow(RelistsSeen { mean: Some(SLOW), ..quick }),
            slow(RelistsSeen { idle: SLOW, ..quick }),
            slow(RelistsSeen { unmoved: Some(SLOW), ..quick }),
        ] {
            assert!(!is_calm(&busy), "{busy:?}");
        }
    }
}
