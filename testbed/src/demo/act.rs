//! What an act is, and how any act is run: as a control under the dry run, and enforced.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::judge::{ActRecord, CONTROL_MARGIN, ControlRecord};
use super::report::Seconds;
use super::stage::Stage;
use super::wait::{POLL_INTERVAL, wait};
use super::workloads::NAMESPACE;
use super::writes::{self, Write};
use crate::faults::Injection;
use crate::view::{Allowed, diff};

/// How long after its end an act is still checked, where the check at its end failed.
const LAST_CHECK: Duration = Duration::from_secs(30);

/// One incident.
pub(super) trait Act {
    /// Name in the report.
    fn name(&self) -> &'static str;
    /// Type of the fault as the operator names it.
    fn fault(&self) -> &'static str;
    /// What happens, for the reader.
    fn story(&self) -> &'static str;
    /// Makes sure that what will be hit runs.
    fn prepare(&mut self, stage: &Stage) -> Result<()>;
    /// Breaks it.
    fn inject(&mut self, stage: &Stage) -> Result<Injection>;
    /// Whether it is still sick, by the bed's own view.
    fn sick(&self, stage: &Stage, injection: &Injection) -> Result<bool>;
    /// Whether the target was touched, by the bed's own view.
    fn executed(&self, stage: &Stage, injection: &Injection) -> Result<bool> {
        Ok(!self.sick(stage, injection)?)
    }
    /// Whether all is well again, by the API and the runtime.
    fn resolved(&self, stage: &Stage, injection: &Injection) -> Result<bool>;
    /// Takes the fault away after a control, and waits until all is well.
    fn lift(&mut self, stage: &Stage, injection: &Injection) -> Result<()> {
        injection.lift(&stage.sick)?;
        wait("all is well once the fault is gone", || self.resolved(stage, injection))
    }
    /// What may differ afterwards.
    fn allowed(&self, stage: &Stage) -> Allowed;
    /// What the operator may write beside its own objects: the Job of a step, unless the act says otherwise.
    fn writes(&self, stage: &Stage) -> Vec<Write> {
        Write::jobs(&stage.sick.name).into()
    }
    /// Longest time from the injection to a cure; then the act has failed.
    fn limit(&self) -> Duration {
        Duration::from_mins(10)
    }
}

/// Watches an act under the dry run: it has to stay sick.
pub(super) fn control(act: &mut dyn Act, stage: &Stage, record: &mut ActRecord) -> Result<()> {
    act.prepare(stage).context("prepare the control")?;
    let since = jiff::Timestamp::now();
    let injection = act.inject(stage).context("inject the control")?;
    let wanted = Duration::from_secs_f64(record.threshold + CONTROL_MARGIN + 1.0);
    stage.tell.say(&format!("control: under the dry run it must stay faulty for {:.0} s", wanted.as_secs_f64()));
    let mut seen = ControlRecord::default();
    let mut shown = false;
    while injection.elapsed() < wanted {
        std::thread::sleep(POLL_INTERVAL * 2);
        if !act.sick(stage, &injection)? {
            seen.well_after = Some(injection.elapsed().as_secs_f64());
            break;
        }
        if !shown && stage.confirmed(act.fault()) {
            shown = true;
            stage.tell.say("the fault is named; the policy is a dry run, so this is what would be done:");
            std::thread::sleep(Duration::from_secs(2));
            stage.show_health();
            stage.show_remediations();
            stage.show_explanation();
        }
    }
    seen.watched = injection.elapsed().as_secs_f64();
    record.control = Some(seen.clone());
    if !shown {
        record.errors.push("the dry run did not name the fault of the control".into());
    }
    record.writes.extend(writes::foreign(&stage.bed.audit()?, since, &[]));
    match seen.well_after {
        None => stage.tell.say("still sick, as expected without help; the bed takes the fault away"),
        Some(after) => stage.tell.say(&format!("it recovered by itself after {after:.0} s")),
    }
    act.lift(stage, &injection).context("lift the control")
}

/// Runs an act with the enforcing policies: it has to get well.
pub(super) fn enforced(act: &mut dyn Act, stage: &Stage, record: &mut ActRecord) -> Result<()> {
    act.prepare(stage).context("prepare")?;
    stage.settle()?;
    stage.show_health();
    let (before, since) = (stage.snapshot()?, jiff::Timestamp::now());
    let injection = act.inject(stage).context("inject")?;
    stage.tell.say(act.story());
    let (run, error) = watch(act, stage, &injection);
    record.errors.extend(error.map(|error| format!("{error:#}")));
    // What did not get well is compared as it is.
    if run.healed.is_some() {
        stage.settle()?;
        stage.show_health();
    }
    record.run = Some(run);
    let after = stage.snapshot()?;
    // The crash loops of a later act have begun, and go on beside this one.
    let allowed = act.allowed(stage).crash_loops(NAMESPACE, "crash-");
    let (changes, counts) = diff(&before, &after, &allowed);
    record.changes.extend(changes.iter().map(|change| format!("{change:?}")));
    record.compared = counts;
    let allowed = [act.writes(stage), stage.writes_elsewhere()].concat();
    record.writes.extend(writes::foreign(&stage.bed.audit()?, since, &allowed));
    Ok(())
}

/// What was seen when, and why the last check failed.
fn watch(act: &dyn Act, stage: &Stage, injection: &Injection) -> (Seconds, Option<anyhow::Error>) {
    let mut seconds = Seconds::default();
    let end = Instant::now() + stage.limit.unwrap_or_else(|| act.limit());
    loop {
        let now = || Some((injection.elapsed().as_secs_f64() * 10.0).round() / 10.0);
        if seconds.detected.is_none() && stage.confirmed(act.fault()) {
            seconds.detected = now();
            stage.tell.say(&format!(
                "{:.1} s after the injection the fault is confirmed:",
                seconds.detected.unwrap_or_default()
            ));
            stage.show_health();
        }
        let checked = (|| -> Result<bool> {
            if seconds.executed.is_none() && act.executed(stage, injection)? {
                seconds.executed = now();
                stage.tell.say(&format!("{:.1} s: the target was touched", seconds.executed.unwrap_or_default()));
            }
            if !act.resolved(stage, injection)? {
                return Ok(false);
            }
            // What was acted on may be gone between two checks; the cure shows it.
            if seconds.executed.is_none() && act.executed(stage, injection)? {
                seconds.executed = now();
            }
            Ok(true)
        })();
        // The fault, too, may be gone between two checks. A remediation is opened for a confirmed one only, and stays.
        let is_last = checked.as_ref().is_ok_and(|is_resolved| *is_resolved || Instant::now() > end);
        if is_last && seconds.detected.is_none() {
            seconds.detected = stage.opened(act.fault(), injection.at);
        }
        match checked {
            Ok(true) => {
                seconds.healed = now();
                stage.tell.say(&format!(
                    "{:.1} s: well again, by the API and by the runtime",
                    seconds.healed.unwrap_or_default()
                ));
                return (seconds, None);
            }
            Ok(false) if is_last => {
                stage.tell.say("it does not get well in time");
                stage.show_details();
                return (seconds, None);
            }
            // One check that fails on a busy machine says nothing; what fails to the end, and on after it, does.
            Err(error) if Instant::now() > end + LAST_CHECK => {
                stage.show_details();
                return (seconds, Some(error));
            }
            Ok(false) | Err(_) => std::thread::sleep(stage.poll),
        }
    }
}
