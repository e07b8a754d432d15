//! Open work with times from a clock that was ahead of this one.

use crate::remediation::{Remediation, not_ahead};
use crate::snapshot::Snapshot;

/// The snapshot in which no open work has a time later than its own `now`; `None` where nothing changes, as while the clocks are
/// disputed: `now` may be the wrong time. A finished record is not changed: while its times are ahead, it counts as a record of
/// today, which can only block more actions.
pub(super) fn taken_as_now(snapshot: &Snapshot) -> Option<Snapshot> {
    if snapshot.clock_disputed.is_some() {
        return None;
    }
    let now = snapshot.now;
    let live = snapshot.remediations.values().filter(|remediation| remediation.is_live());
    let remediations: Vec<Remediation> = live.filter_map(|remediation| remediation.with_times_until(now)).collect();
    let is_ahead = snapshot.manual_requests.values().any(|manual| not_ahead(manual.asked_at, now) != manual.asked_at);
    if remediations.is_empty() && !is_ahead {
        return None;
    }
    let mut next = snapshot.clone();
    next.remediations.extend(remediations.into_iter().map(|remediation| (remediation.name.clone(), remediation)));
    for manual in next.manual_requests.values_mut() {
        manual.asked_at = not_ahead(manual.asked_at, now);
    }
    Some(next)
}
