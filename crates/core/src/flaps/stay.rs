//! How long a fault that comes and goes has been present: what `match.minDuration` asks for on a node that flaps.
//!
//! Only the time in which the fault was present counts. It starts again when the fault was absent for too long without a break,
//! or for as long as it had been present before. So at each moment the fault was present for most of the time that counts.

use std::time::Duration;

use crate::flap::Moment;

/// Longest time for which a fault may be absent and continue to count, and the most that one check counts for, in seconds. It is
/// the longest time between two reports of a healthy node.
pub(crate) const LONGEST_GAP: Moment = 300;
/// Maximum remembered lead of presence over absence. What was long ago does not make up for the present.
const MOST_LEAD: Moment = 900;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stay {
    /// When it was last seen.
    last: Moment,
    /// Whether a check since then has not found it.
    is_away: bool,
    /// Time for which it was present.
    there: Moment,
    /// By how much it was present longer than absent.
    lead: Moment,
}

impl Stay {
    /// The fault is present for the first time.
    pub(crate) fn begun(now: Moment) -> Self {
        Self { last: now, is_away: false, there: 0, lead: 0 }
    }

    /// The fault is present.
    pub(crate) fn seen(self, now: Moment) -> Self {
        let passed = now.saturating_sub(self.last).max(0);
        let is_over = if self.is_away {
            passed > LONGEST_GAP || passed >= self.lead
        } else {
            // Nobody has checked for this long.
            passed > 2 * LONGEST_GAP
        };
        if is_over {
            return Self::begun(now);
        }
        let (there, lead) = if self.is_away {
            (self.there, self.lead.saturating_sub(passed))
        } else {
            let counts = passed.min(LONGEST_GAP);
            (self.there.saturating_add(counts), self.lead.saturating_add(counts).min(MOST_LEAD))
        };
        Self { last: now, is_away: false, there, lead }
    }

    /// The fault was present until now without a gap. It is watched, so it stays until a report says otherwise.
    pub(crate) fn stood(self, now: Moment) -> Self {
        let passed = now.saturating_sub(self.last).max(0);
        let (there, lead) = (self.there.saturating_add(passed), self.lead.saturating_add(passed).min(MOST_LEAD));
        Self { last: now.max(self.last), is_away: false, there, lead }
    }

    /// A check has certainly not found the fault.
    pub(crate) fn missed(&mut self) {
        self.is_away = true;
    }

    /// Whether nothing of it counts any more, whatever comes.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        self.is_away && now.saturating_sub(self.last) > LONGEST_GAP
    }

    /// How long it was present. `None`: it is not present now.
    pub(crate) fn lasted(&self, now: Moment) -> Option<Duration> {
        let since = now.saturating_sub(self.last).clamp(0, LONGEST_GAP);
        let all = u64::try_from(self.there.saturating_add(since)).unwrap_or(0);
        (!self.is_away).then(|| Duration::from_secs(all))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Presence and absence in turn, this many seconds each, checked every ten. Returns the stay and the last moment of presence.
    fn after(turns: &[(Moment, Moment)]) -> (Stay, Moment) {
        let (mut now, mut stay) = (0, Stay::begun(0));
        for (there, away) in turns {
            stay = stay.seen(now);
            for _ in 0..there / 10 {
                now += 10;
                stay = stay.seen(now);
            }
            if *away > 0 {
                stay.missed();
                now += away;
            }
        }
        (stay, now)
    }

    fn seconds(turns: &[(Moment, Moment)]) -> Option<u64> {
        let (stay, now) = after(turns);
        stay.lasted(now).map(|lasted| lasted.as_secs())
    }

    #[test]
    fn short_gaps_do_not_count_and_do_not_begin_it_anew() {
        assert_eq!(seconds(&[(200, 60), (200, 60), (200, 0)]), Some(600));
        assert_eq!(seconds(&[(200, 60), (200, 60)]), None, "it is away");
        assert_eq!(seconds(&[(800, 301), (50, 0)]), Some(50), "too long at once");
        assert_eq!(seconds(&[(100, 100), (100, 0)]), Some(100), "away for as long as it was there");
        assert_eq!(seconds(&[(3_600, 290), (10, 290), (10, 290), (10, 290), (10, 0)]), Some(10), "mostly away of late");
    }

    #[test]
    fn what_is_watched_counts_however_seldom_anything_is_said_of_it() {
        let mut stay = Stay::begun(0).stood(10_000);
        assert_eq!(stay.lasted(10_000), Some(Duration::from_secs(10_000)));
        stay.missed();
        assert_eq!(stay.seen(10_200).stood(10_300).lasted(10_300), Some(Duration::from_secs(10_100)));
        assert_eq!(stay.seen(10_301).lasted(10_301), Some(Duration::ZERO), "away for too long");
    }

    #[test]
    fn what_nobody_checks_does_not_count() {
        let stay = Stay::begun(0).seen(10);
        assert_eq!(stay.lasted(10_000), Some(Duration::from_secs(310)));
        assert_eq!(stay.seen(600).lasted(600), Some(Duration::from_secs(310)));
        assert_eq!(stay.seen(611).lasted(611), Some(Duration::ZERO));
    }

    proptest! {
        /// What counts ends now, and makes up more than half of the time since it began.
        #[test]
        fn it_was_there_for_most_of_the_time_that_counts(turns in prop::collection::vec((0_i64..60, 1_i64..400), 1..20), last in 1_i64..60) {
            let mut turns: Vec<_> = turns.into_iter().map(|(there, away)| (there * 10, away)).collect();
            turns.push((last * 10, 0));
            let counted = Moment::try_from(seconds(&turns).unwrap()).unwrap();
            let (mut there, mut away) = (0, 0);
            for (turn_there, turn_away) in turns.iter().rev() {
                if there >= counted {
                    break;
                }
                away += turn_away;
                there += turn_there;
            }
            prop_assert_eq!(there, counted);
            prop_assert!(there > away, "{} there, {} away", there, away);
        }
    }
}
