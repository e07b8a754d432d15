//! The judge: from what the bed recorded to a verdict. Pure, so that it can be shown to say no.

use std::collections::BTreeMap;

use super::report::{ActReport, Control, Report, Seconds, StageKind, Untouched};
use crate::view::Counts;

/// How much longer than its threshold a control must stay sick.
pub const CONTROL_MARGIN: f64 = 60.0;

/// What the bed recorded of one act.
#[derive(Debug, Clone, Default)]
pub struct ActRecord {
    /// Its name.
    pub act: String,
    /// The shipped threshold that applies to it, in seconds.
    pub threshold: f64,
    /// Seconds a control was watched, and when it was first seen not to be sick any more; `None` = no control.
    pub control: Option<ControlRecord>,
    /// Times of the enforced run; `None` = it was not run.
    pub run: Option<Seconds>,
    /// What changed outside the fault, one line each.
    pub changes: Vec<String>,
    /// Writes of the operator that are not on the act's list, one line each.
    pub writes: Vec<String>,
    /// How much was compared.
    pub compared: Counts,
    /// What else went wrong, one line each.
    pub errors: Vec<String>,
}

/// A control, as watched.
#[derive(Debug, Clone, Default)]
pub struct ControlRecord {
    /// Seconds it was watched.
    pub watched: f64,
    /// When it was first seen to be well, in seconds; `None` = it stayed sick.
    pub well_after: Option<f64>,
}

/// Judges all records. Nothing recorded is not ok: a demo that ran no act proves nothing.
pub fn judge(records: &[ActRecord], thresholds: BTreeMap<String, u64>, controls_wanted: bool) -> Report {
    let mut objections = Vec::new();
    let acts: Vec<ActReport> = records.iter().map(|record| act(record, controls_wanted, &mut objections)).collect();
    let untouched = untouched(records, &mut objections);
    if acts.is_empty() {
        objections.push("no act was run".to_owned());
    }
    let ok = objections.is_empty() && untouched.ok && acts.iter().all(|act| act.ok);
    Report { ok, stage: StageKind::default(), acts, untouched, thresholds, objections }
}

fn act(record: &ActRecord, controls_wanted: bool, objections: &mut Vec<String>) -> ActReport {
    let before = objections.len();
    let mut object = |why: String| objections.push(format!("{}: {why}", record.act));
    record.errors.iter().for_each(|error| object(error.clone()));
    let seconds = record.run.clone().unwrap_or_default();
    for (what, at) in [("detected", seconds.detected), ("executed", seconds.executed), ("resolved", seconds.healed)] {
        if at.is_none() {
            object(format!("was never {what}"));
        }
    }
    if let (Some(executed), Some(healed)) = (seconds.executed, seconds.healed)
        && healed < executed
    {
        object(format!("was well after {healed:.1} s, before anything was done about it at {executed:.1} s"));
    }
    let control = control(record, controls_wanted, &mut object);
    ActReport { act: record.act.clone(), ok: objections.len() == before, seconds, control }
}

fn control(record: &ActRecord, wanted: bool, object: &mut impl FnMut(String)) -> Control {
    let Some(control) = &record.control else {
        if wanted {
            object("has no control".to_owned());
        }
        return Control::default();
    };
    let needed = record.threshold + CONTROL_MARGIN;
    let mut ok = true;
    if let Some(well) = control.well_after {
        ok = false;
        object(format!(
            "its control recovered by itself after {well:.0} s, expected it to stay faulty for {needed:.0} s"
        ));
    } else if control.watched < needed {
        ok = false;
        object(format!("its control was watched for {:.0} s, expected {needed:.0} s", control.watched));
    }
    Control { ok, watched_seconds: (control.watched * 10.0).round() / 10.0 }
}

fn untouched(records: &[ActRecord], objections: &mut Vec<String>) -> Untouched {
    let before = objections.len();
    for record in records {
        for line in record.changes.iter().chain(&record.writes) {
            objections.push(format!("{}: touched what it should not: {line}", record.act));
        }
    }
    // The least of all comparisons: an act that compared nothing must not hide behind one that did.
    let least = |of: fn(&Counts) -> usize| records.iter().map(|record| of(&record.compared)).min().unwrap_or_default();
    let (pods, containers, processes) = (least(|c| c.pods), least(|c| c.containers), least(|c| c.processes));
    if pods == 0 || containers == 0 || processes == 0 {
        objections
            .push(format!("too little was compared: {pods} pods, {containers} containers, {processes} processes"));
    }
    Untouched { ok: objections.len() == before, pods, containers, processes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> ActRecord {
        ActRecord {
            act: "hung-container".into(),
            threshold: 60.0,
            control: Some(ControlRecord { watched: 121.0, well_after: None }),
            run: Some(Seconds { detected: Some(50.0), executed: Some(51.0), healed: Some(55.0) }),
            compared: Counts { pods: 10, containers: 8, processes: 30 },
            ..ActRecord::default()
        }
    }

    fn verdict(change: impl FnOnce(&mut ActRecord)) -> Report {
        let mut record = good();
        change(&mut record);
        judge(&[record], BTreeMap::new(), true)
    }

    #[test]
    fn a_good_run_is_ok() {
        let report = verdict(|_| {});
        assert!(report.ok, "{:?}", report.objections);
        assert!(report.acts[0].ok && report.acts[0].control.ok && report.untouched.ok);
    }

    type Flaw = (&'static str, fn(&mut ActRecord));

    #[test]
    fn each_flaw_is_objected_to() {
        let flaws: [Flaw; 11] = [
            ("not detected", |r| r.run.as_mut().unwrap().detected = None),
            ("not acted", |r| r.run.as_mut().unwrap().executed = None),
            ("not resolved", |r| r.run.as_mut().unwrap().healed = None),
            ("well before the act", |r| r.run.as_mut().unwrap().healed = Some(40.0)),
            ("not run", |r| r.run = None),
            ("control got well", |r| r.control.as_mut().unwrap().well_after = Some(90.0)),
            ("control too short", |r| r.control.as_mut().unwrap().watched = 119.0),
            ("no control", |r| r.control = None),
            ("something changed", |r| r.changes.push("container x".into())),
            ("foreign write", |r| r.writes.push("delete pod y".into())),
            ("nothing compared", |r| r.compared.containers = 0),
        ];
        for (name, flaw) in flaws {
            let report = verdict(flaw);
            assert!(!report.ok, "{name}");
            assert!(!report.objections.is_empty(), "{name}");
        }
        assert!(!judge(&[], BTreeMap::new(), true).ok, "no act at all");
    }
}
