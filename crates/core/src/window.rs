//! When a policy may act: windows that open by a schedule, in a time zone.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use croner::Cron;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, Zoned};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::action::ActionType;
use super::moment::{clock, since};
use super::text::bounded;

/// What an open window means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WindowType {
    /// Only while it, or another one of this type, is open.
    Allow,
    /// Not while it is open; this wins.
    Deny,
}

/// A recurring time window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    kind: WindowType,
    schedule: Cron,
    /// The schedule as a person wrote it.
    text: String,
    length: Duration,
    zone: TimeZone,
    /// The types of step it applies to. Empty: all but `Notify`.
    actions: BTreeSet<ActionType>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct WindowState {
    is_open: bool,
    /// When the state may change. `None`: never, as far as is known.
    till: Option<Timestamp>,
}

/// How a window stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WindowView {
    /// The window: its type, its schedule and its time zone.
    #[schemars(length(max = 256))]
    pub window: String,
    /// Whether it is open now.
    #[serde(rename = "active")]
    pub is_open: bool,
    /// When that changes. Windows that follow each other without a gap count as one. Absent = not within the time that
    /// is computed ahead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// How many overlapping times of a window are joined in its view. A window with more counts as always open.
const JOINED: usize = 32;

/// The fields of a schedule, with their allowed values.
const FIELDS: [&str; 5] =
    ["minute (0-59)", "hour (0-23)", "day of month (1-31)", "month (1-12 or JAN-DEC)", "day of week (0-7 or SUN-SAT)"];

/// What is wrong with a text that is no schedule: the invalid field, if one is.
fn no_schedule(text: &str, error: &str) -> String {
    let fields = text.split_ascii_whitespace().enumerate().zip(FIELDS);
    let wrong = fields.into_iter().find_map(|((number, field), name)| {
        let mut alone = ["*"; FIELDS.len()];
        *alone.get_mut(number)? = field;
        let hint = if field.contains('-') { "; a range goes from the lower to the higher" } else { "" };
        Cron::from_str(&alone.join(" ")).is_err().then(|| format!("{field:?} is no {name}{hint}"))
    });
    format!("schedule: {text:?} is not a schedule: {}", wrong.as_deref().unwrap_or(error))
}

/// Why a step may not start now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shut {
    /// A sentence, without ages.
    pub message: String,
    /// When to ask again. `None`: nothing known changes it.
    pub until: Option<Duration>,
}

impl Window {
    /// Parses a schedule of five fields (minute, hour, day of month, month, day of week) and the name of an IANA time zone. From
    /// each scheduled time on, the window is open for `length`.
    ///
    /// Where clocks go forward, a skipped time is the first one after the gap. Where clocks go back, a time that comes twice
    /// counts once. A window lasts for its length by the clock that does not jump.
    ///
    /// # Errors
    /// A sentence: what is no schedule, a schedule that never comes, or no time zone.
    pub fn new(
        kind: WindowType,
        text: &str,
        length: Duration,
        zone: &str,
        actions: BTreeSet<ActionType>,
    ) -> Result<Self, String> {
        if text.split_ascii_whitespace().count() != 5 {
            return Err(format!(
                "schedule: expected five fields (minute, hour, day of month, month, day of week), found {text:?}"
            ));
        }
        let schedule = Cron::from_str(text).map_err(|error| no_schedule(text, &error.to_string()))?;
        let zone = TimeZone::get(zone).map_err(|_| {
            format!("timeZone: expected the name of an IANA time zone such as Europe/Berlin, found {zone:?}")
        })?;
        let window = Self { kind, schedule, text: text.to_owned(), length, zone, actions };
        // Any moment will do: a time that comes at all comes within the searched years.
        match window.next(Timestamp::UNIX_EPOCH) {
            Some(_) => Ok(window),
            None => Err(format!("schedule: {text:?} never comes")),
        }
    }

    fn is_for(&self, action: ActionType) -> bool {
        if self.actions.is_empty() { action != ActionType::Notify } else { self.actions.contains(&action) }
    }

    fn zoned(&self, at: Timestamp) -> Zoned {
        at.to_zoned(self.zone.clone())
    }

    /// The first scheduled time after this one.
    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        self.schedule.find_next_occurrence(&self.zoned(after), false).ok().map(|next| next.timestamp())
    }

    /// The last scheduled time up to this one.
    fn last(&self, till: Timestamp) -> Option<Timestamp> {
        self.schedule.find_previous_occurrence(&self.zoned(till), true).ok().map(|last| last.timestamp())
    }

    /// The end of the time that started then.
    fn end(&self, began: Timestamp) -> Option<Timestamp> {
        began.checked_add(SignedDuration::try_from(self.length).ok()?).ok()
    }

    /// The state of the window, and when that changes. A window that opens again before or as it ends does not end there. So the
    /// view is the same from one change to the next.
    pub fn status_view(&self, now: Timestamp) -> WindowView {
        let WindowState { is_open, till } = self.state(now);
        let until = if is_open { till.and_then(|till| self.joined(till)) } else { till };
        WindowView { window: bounded(&self.to_string(), 256), is_open, until }
    }

    /// When the window closes, given the time at which it would close if it did not open again by then.
    fn joined(&self, mut till: Timestamp) -> Option<Timestamp> {
        for _ in 0..JOINED {
            match self.last(till).and_then(|began| self.end(began)) {
                Some(later) if later > till => till = later,
                _ => return Some(till),
            }
        }
        None
    }

    fn state(&self, now: Timestamp) -> WindowState {
        let Some(began) = self.last(now) else {
            // This moment cannot be computed. Where the state is unknown, nothing starts.
            return WindowState { is_open: self.kind == WindowType::Deny, till: None };
        };
        match self.end(began) {
            Some(end) if end > now => WindowState { is_open: true, till: Some(end) },
            _ => WindowState { is_open: false, till: self.next(now) },
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zone = self.zone.iana_name().unwrap_or("UTC");
        write!(f, "{:?} window `{}` ({zone})", self.kind, self.text)
    }
}

/// Why this type of step may not start now: a Deny window for it is open, or it has Allow windows and none of them is.
pub fn shut(windows: &[Window], action: ActionType, now: Timestamp) -> Option<Shut> {
    let mine = || windows.iter().filter(|window| window.is_for(action));
    let wait = |till: Option<Timestamp>| till.map(|till| since(till, now));
    let of =
        |kind: WindowType| mine().filter(move |window| window.kind == kind).map(|window| (window, window.state(now)));
    let name = action.as_str();
    if let Some((window, state)) = of(WindowType::Deny).find(|(_, state)| state.is_open) {
        let till = state.till.map_or_else(String::new, |till| format!(" until {}", clock(till)));
        let message = format!("{name} is not done while the {window} is open{till}");
        return Some(Shut { message, until: wait(state.till) });
    }
    let mut allows = of(WindowType::Allow).peekable();
    allows.peek()?;
    let mut next: Option<(Timestamp, &Window)> = None;
    for (window, state) in allows {
        if state.is_open {
            return None;
        }
        let sooner = state.till.filter(|till| next.is_none_or(|(known, _)| *till < known));
        next = sooner.map(|till| (till, window)).or(next);
    }
    let when = next.map_or_else(String::new, |(at, window)| format!(": the next one, {window}, opens {}", clock(at)));
    let message = format!("{name} is only done in an Allow window, and none is open{when}");
    Some(Shut { message, until: wait(next.map(|(at, _)| at)) })
}

/// Why no step other than a notification may start now, if so.
pub fn all_shut(windows: &[Window], actions: &BTreeSet<ActionType>, now: Timestamp) -> Option<Shut> {
    let acting = actions.iter().filter(|action| **action != ActionType::Notify);
    let all: Vec<Shut> = acting.map(|action| shut(windows, *action, now)).collect::<Option<_>>()?;
    all.into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ActionType::{Cordon, DeletePod, Notify};
    use WindowType::{Allow, Deny};

    fn window(kind: WindowType, schedule: &str, hours: u64, zone: &str) -> Window {
        Window::new(kind, schedule, Duration::from_hours(hours), zone, BTreeSet::new()).unwrap()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn is_shut(windows: &[Window], now: &str) -> bool {
        shut(windows, DeletePod, at(now)).is_some()
    }

    #[test]
    fn without_a_window_everything_is_allowed_always() {
        assert_eq!(shut(&[], DeletePod, Timestamp::UNIX_EPOCH), None);
    }

    #[test]
    fn an_allow_window_shuts_out_all_other_time() {
        let nights = [window(Allow, "0 22 * * *", 8, "UTC")];
        for (now, expected) in [
            ("2026-06-01T21:59:59Z", true),
            ("2026-06-01T22:00:00Z", false),
            ("2026-06-02T05:59:59Z", false),
            ("2026-06-02T06:00:00Z", true),
        ] {
            assert_eq!(is_shut(&nights, now), expected, "{now}");
        }
        let held = shut(&nights, DeletePod, at("2026-06-01T21:00:00Z")).unwrap();
        assert_eq!(held.until, Some(Duration::from_hours(1)));
        assert_eq!(
            held.message,
            "DeletePod is only done in an Allow window, and none is open: the next one, Allow window `0 22 * * *` (UTC), \
             opens 2026-06-01T22:00:00Z"
        );
        assert_eq!(shut(&nights, Notify, at("2026-06-01T21:00:00Z")), None, "people are told at any time");
    }

    #[test]
    fn deny_wins_and_tells_its_end() {
        let windows = [window(Allow, "0 0 * * *", 24, "UTC"), window(Deny, "0 12 * * 5", 60, "UTC")];
        assert!(!is_shut(&windows, "2026-06-05T11:59:59Z"), "a Friday");
        let held = shut(&windows, Cordon, at("2026-06-07T12:00:00Z")).unwrap();
        assert_eq!(held.until, Some(Duration::from_hours(12)));
        assert!(held.message.ends_with("is open until 2026-06-08T00:00:00Z"), "{}", held.message);
        assert!(!is_shut(&windows, "2026-06-08T00:00:00Z"));
    }

    #[test]
    fn a_window_may_be_for_some_actions_only() {
        let only = |kind| Window { actions: BTreeSet::from([DeletePod]), ..window(kind, "0 0 * * *", 1, "UTC") };
        let noon = at("2026-06-01T12:00:00Z");
        assert!(shut(&[only(Allow)], DeletePod, noon).is_some() && shut(&[only(Allow)], Cordon, noon).is_none());
        let both = BTreeSet::from([DeletePod, Cordon, Notify]);
        assert_eq!(all_shut(&[only(Allow)], &both, noon), None, "a cordon may be made");
        assert!(all_shut(&[only(Allow)], &BTreeSet::from([DeletePod, Notify]), noon).is_some());
        assert_eq!(all_shut(&[only(Allow)], &BTreeSet::from([Notify]), noon), None);
        let view = Window { actions: BTreeSet::from([Notify]), ..window(Deny, "0 12 * * *", 1, "UTC") };
        assert!(shut(&[view], Notify, noon).is_some(), "where a person wants that");
    }

    #[test]
    fn windows_that_overlap_themselves_stay_open() {
        let always = [window(Allow, "0 * * * *", 2, "UTC")];
        for minute in 0..180 {
            let now = at("2026-06-01T00:00:00Z").checked_add(SignedDuration::from_mins(minute)).unwrap();
            assert_eq!(shut(&always, DeletePod, now), None, "{now}");
        }
    }

    #[test]
    fn clocks_that_are_set_lose_and_double_no_window() {
        // In Berlin 2:00 to 3:00 is skipped on 29 March 2026, and comes twice on 25 October.
        let nights = [window(Allow, "30 2 * * *", 1, "Europe/Berlin")];
        let open = |day: &str| {
            let began = at(&format!("{day}T00:00:00Z"));
            let minutes = (0..24 * 60).map(|minute| began.checked_add(SignedDuration::from_mins(minute)).unwrap());
            let open: Vec<Timestamp> = minutes.filter(|now| shut(&nights, DeletePod, *now).is_none()).collect();
            (open.len(), open.first().copied().unwrap().to_string())
        };
        assert_eq!(open("2026-03-28"), (60, "2026-03-28T01:30:00Z".to_owned()));
        assert_eq!(open("2026-03-29"), (60, "2026-03-29T01:00:00Z".to_owned()), "the first moment after the gap");
        assert_eq!(open("2026-10-25"), (60, "2026-10-25T00:30:00Z".to_owned()), "the first of the two");
        // A day of 23 or 25 hours: the window lasts for its length.
        let days = [window(Deny, "0 0 * * 0", 24, "Europe/Berlin")];
        assert!(is_shut(&days, "2026-10-25T21:59:59Z") && !is_shut(&days, "2026-10-25T22:00:00Z"));
    }

    #[test]
    fn what_is_no_window_is_refused_with_a_sentence() {
        let refused = |schedule: &str, zone: &str| {
            Window::new(Allow, schedule, Duration::from_hours(1), zone, BTreeSet::new()).unwrap_err()
        };
        assert!(refused("0 22 * *", "UTC").contains("five fields"));
        assert!(refused("* * 0 22 * *", "UTC").contains("five fields"));
        assert!(refused("61 22 * * *", "UTC").contains("is not a schedule"));
        // Which field it is.
        assert!(refused("61 22 * * *", "UTC").ends_with("\"61\" is no minute (0-59)"));
        assert!(refused("0 25 * * *", "UTC").ends_with("\"25\" is no hour (0-23)"));
        assert!(
            refused("0 22-6 * * *", "UTC").ends_with("is no hour (0-23); a range goes from the lower to the higher")
        );
        assert!(refused("0 0 31 2 *", "UTC").contains("never comes"));
        assert!(refused("0 22 * * *", "Mars/Olympus").contains("IANA"));
        assert!(refused("0 22 * * *", "").contains("IANA"));
    }

    #[test]
    fn what_is_told_of_a_window_is_the_same_from_one_change_to_the_next() {
        for (schedule, hours, zone, changes) in [
            ("0 22 * * *", 8, "UTC", &["2026-06-01T06:00:00Z", "2026-06-01T22:00:00Z", "2026-06-02T06:00:00Z"][..]),
            // The days of a week-end, and a day beside them, are one.
            ("0 0 * * 6,0,1", 24, "UTC", &["2026-06-02T00:00:00Z", "2026-06-06T00:00:00Z", "2026-06-09T00:00:00Z"]),
            // Each hour begins before the one before is over.
            (
                "0 20-22 * * *",
                2,
                "Europe/Berlin",
                &["2026-06-01T18:00:00Z", "2026-06-01T22:00:00Z", "2026-06-02T18:00:00Z"],
            ),
        ] {
            let window = window(Allow, schedule, hours, zone);
            let mut now = at("2026-06-01T01:00:00Z");
            let mut is_open = window.status_view(now).is_open;
            for change in changes {
                let change = at(change);
                while now < change {
                    let view = window.status_view(now);
                    assert_eq!((view.is_open, view.until), (is_open, Some(change)), "{schedule} at {now}");
                    now = now.checked_add(SignedDuration::from_mins(20)).unwrap();
                }
                assert_eq!(now, change);
                is_open = !is_open;
                assert_eq!(window.status_view(now).is_open, is_open, "{schedule} at {now}");
            }
        }
        for (schedule, hours) in [("* * * * *", 1), ("0 0 * * *", 24), ("0 * * * *", 1)] {
            let view = window(Deny, schedule, hours, "UTC").status_view(at("2026-06-01T01:00:00Z"));
            assert_eq!((view.is_open, view.until), (true, None), "{schedule} never ends");
        }
        assert_eq!(
            window(Deny, "0 22 * * *", 8, "Europe/Berlin").status_view(at("2026-06-01T01:00:00Z")).window,
            "Deny window `0 22 * * *` (Europe/Berlin)"
        );
    }

    #[test]
    fn no_moment_is_too_far() {
        for now in [Timestamp::MIN, Timestamp::MAX] {
            for kind in [Allow, Deny] {
                let window = window(kind, "0 22 * * *", 8, "Asia/Kathmandu");
                let _ = (window.status_view(now), shut(&[window], DeletePod, now));
            }
        }
    }
}
