//! What is under way by a clock that was ahead of this one.

use crate::episode::{Episode, not_ahead};
use crate::snapshot::Snapshot;

/// The snapshot with no time ahead of its own in what is still to be done, where there is one. A finished record is left as it is:
/// as long as its times are ahead it counts as one of today, which only holds back.
pub(super) fn taken_as_now(snapshot: &Snapshot) -> Option<Snapshot> {
    let now = snapshot.now;
    let live = snapshot.episodes.values().filter(|episode| episode.is_live());
    let episodes: Vec<Episode> = live.filter_map(|episode| episode.with_times_until(now)).collect();
    let is_ahead = snapshot.wishes.values().any(|wish| not_ahead(wish.asked_at, now) != wish.asked_at);
    if episodes.is_empty() && !is_ahead {
        return None;
    }
    let mut next = snapshot.clone();
    next.episodes.extend(episodes.into_iter().map(|episode| (episode.name.clone(), episode)));
    for wish in next.wishes.values_mut() {
        wish.asked_at = not_ahead(wish.asked_at, now);
    }
    Some(next)
}
