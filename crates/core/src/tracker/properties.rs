//! What holds for every history of checks, whatever they say and however they are timed.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::finding::Coverage;
use crate::reason::ConditionReason;

/// What one check says of the one object that these histories are about.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    Sick,
    FirstSign,
    Clean,
    Unknown,
}

fn history() -> impl Strategy<Value = Vec<(Says, u64, u64, i64)>> {
    let says = prop_oneof![
        4 => Just(Says::Sick),
        1 => Just(Says::FirstSign),
        2 => Just(Says::Clean),
        2 => Just(Says::Unknown),
    ];
    // What is seen, seconds since the check before (0 = the same again), for how long it has been so, and a jump of the wall clock.
    prop::collection::vec((says, 0_u64..45, 0_u64..3, -100_000_i64..100_000), 1..60)
}

fn findings(says: Says, checked: Duration, silent: u64) -> Findings {
    let kind = FaultType::HungContainer;
    let sighting = Sighting {
        certain: says == Says::Sick,
        message: "message".into(),
        since: checked.checked_sub(Duration::from_secs(silent)).unwrap(),
        ..Sighting::new(kind, "key", checked, crate::faults::hung_container::CONFIRM.shipped)
    };
    let unknown = Verdict::Unknown { reason: ConditionReason::CheckFailed, detail: "x".into() };
    let others = if says == Says::Clean { Verdict::Clean { checked } } else { unknown };
    Findings {
        sightings: if matches!(says, Says::Sick | Says::FirstSign) { vec![sighting] } else { Vec::new() },
        coverage: BTreeMap::from([(kind, Coverage::new(others))]),
        ..Findings::default()
    }
}

fn state(tracked: &Tracked) -> Option<FaultState> {
    tracked.faults.first().map(|fault| fault.state)
}

proptest! {
    #[test]
    fn no_history_breaks_the_rules(steps in history()) {
        let thresholds = Thresholds::default();
        let need = crate::faults::hung_container::CONFIRM.shipped;
        let (mut tracker, mut before) = (Tracker::default(), None);
        let mut now = Duration::from_secs(1000);
        // From when on each check in a row shows it, and the newest of them.
        let (mut row, mut newest) = (Vec::<Duration>::new(), None);
        for (says, apart, silent, wall) in steps {
            now += Duration::from_secs(apart);
            let wall = Timestamp::from_second(1_700_000_000 + wall).unwrap();
            let findings = findings(says, now, silent);
            let tracked = tracker.step(now, wall, &findings, &thresholds);
            let after = state(&tracked);

            // The same findings again change nothing.
            let saved = tracker.clone();
            prop_assert_eq!(tracker.step(now, wall, &findings, &thresholds), tracked);
            prop_assert_eq!(&tracker, &saved);

            // A check that could not be made, or that counts for nothing, confirms and clears nothing.
            if says == Says::Unknown {
                prop_assert_eq!(after, before);
            }
            if says == Says::FirstSign && before != Some(FaultState::Confirmed) {
                prop_assert_ne!(after, Some(FaultState::Confirmed));
            }
            match says {
                Says::Sick if newest.is_none_or(|newest| newest < now) => {
                    let since = if row.is_empty() { now.checked_sub(Duration::from_secs(silent)).unwrap() } else { now };
                    row.push(since);
                    newest = Some(now);
                }
                Says::Clean if after.is_none() => (row, newest) = (Vec::new(), None),
                _ => {}
            }
            // Confirmed only after enough checks in a row, far enough apart, past the grace.
            if after == Some(FaultState::Confirmed) && !matches!(before, Some(FaultState::Confirmed | FaultState::Clearing)) {
                let (mut counted, mut last) = (0, None);
                for check in &row {
                    if last.is_none_or(|last| *check >= last + need.interval) {
                        (counted, last) = (counted + 1, Some(*check));
                    }
                }
                prop_assert!(counted >= need.checks, "{counted} checks: {row:?}");
                prop_assert!(now.checked_sub(row[0]).unwrap() >= need.grace_period);
            }
            // A confirmed fault goes only by a clean check, and never by a single one.
            if before == Some(FaultState::Confirmed) {
                prop_assert!(after.is_some());
                prop_assert!(says == Says::Clean || after == Some(FaultState::Confirmed));
            }
            before = after;
        }
    }

    #[test]
    fn the_wall_clock_decides_nothing(steps in history()) {
        let thresholds = Thresholds::default();
        let (mut straight, mut jumping) = (Tracker::default(), Tracker::default());
        let mut now = Duration::from_secs(1000);
        for (says, apart, silent, wall) in steps {
            now += Duration::from_secs(apart);
            let findings = findings(says, now, silent);
            let a = straight.step(now, Timestamp::UNIX_EPOCH, &findings, &thresholds);
            let b = jumping.step(now, Timestamp::from_second(1_700_000_000 + wall).unwrap(), &findings, &thresholds);
            prop_assert_eq!(state(&a), state(&b));
        }
    }

    #[test]
    fn a_restart_of_the_probe_at_any_point_changes_nothing(steps in history(), at in 0_usize..60) {
        let thresholds = Thresholds::default();
        let (mut steady, mut restarted) = (Tracker::default(), Tracker::default());
        let mut now = Duration::from_secs(1000);
        for (i, (says, apart, silent, _)) in steps.into_iter().enumerate() {
            now += Duration::from_secs(apart);
            if i == at {
                let saved = serde_json::to_string(&restarted).unwrap();
                restarted = serde_json::from_str::<Tracker>(&saved).unwrap().restored(now);
            }
            let findings = findings(says, now, silent);
            let a = steady.step(now, Timestamp::UNIX_EPOCH, &findings, &thresholds);
            let b = restarted.step(now, Timestamp::UNIX_EPOCH, &findings, &thresholds);
            prop_assert_eq!(a, b);
        }
    }
}
