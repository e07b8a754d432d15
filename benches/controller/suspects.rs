//! All nodes suspect something at once: what that costs the API server, and whether a real fault amid them is resolved.

use std::time::{Duration, Instant};

use anyhow::Result;
use nrh::core::fault::FaultState;
use tokio::time::sleep;

use crate::answers::Answers;
use crate::fleet::Executor;
use crate::meters;
use crate::requests::{Log, phrase};
use crate::stage::{Stage, all_closed, count, until};
use crate::storm::watch_acts;

/// So many of them confirm what they suspect.
const CONFIRMED: usize = 20;
/// The bed's API server.
const SERVER: &str = "kube-apiserver";
/// Without a write for so long, everything has been said.
const QUIET: Duration = Duration::from_secs(5);

/// Measures it.
pub fn measure(stage: &mut Stage<'_>) -> Result<()> {
    let all = stage.fleet.take(stage.nodes);
    let sick: Vec<String> = all.iter().take(CONFIRMED).cloned().collect();
    let fleet = stage.fleet.clone();
    let (asked, reports, told, acts, server) = stage.run(Answers::All, async |client| {
        let spent = || meters::cpu_of(stage.bed, SERVER);
        // What the probes ask of the server anyway: a heartbeat of each.
        let before = spent()?;
        fleet.report_all(&client, &all).await?;
        let heartbeats = spent()? - before;
        let mut log = Log::from_now(stage.bed)?;
        let begun = Instant::now();
        fleet.sicken(&all, Executor::Command, FaultState::Suspected);
        fleet.report_all(&client, &all).await?;
        let reports = begun.elapsed();
        fleet.sicken(&sick, Executor::Command, FaultState::Confirmed);
        fleet.report_all(&client, &sick).await?;
        let mut asked = watch_acts(&mut log, CONFIRMED.min(sick.len())).await?;
        let (mut told, mut last) = (begun.elapsed(), Instant::now());
        until("an end of what is written about suspicions", Duration::from_secs(1), async || {
            let more = log.read()?;
            if more.kinds().keys().any(|kind| kind.contains("noderuntimehealths/status")) {
                (told, last) = (begun.elapsed(), Instant::now());
            }
            asked.extend(more);
            Ok(last.elapsed() > QUIET)
        })
        .await?;
        let acts = asked.acts().len();
        let server = [spent()? - before - heartbeats, heartbeats];
        all_closed(&client).await?;
        fleet.resolve(&all);
        fleet.report_all(&client, &all).await?;
        sleep(QUIET).await;
        Ok((asked, reports, told, acts, server))
    })?;
    let kinds = asked.kinds();
    println!("    for each node: {}", phrase(&kinds, stage.nodes));
    let (requests, reported) = (count(kinds.values().sum()), count(all.len()));
    stage.note("all suspect: the controller's requests : their reports", requests, "", reported, "");
    let (told, reports) = (told.as_secs_f64(), reports.as_secs_f64());
    stage.note("all suspect: until all is told : until all have reported", told, "s", reports, "");
    let [all_told, heartbeats] = server.map(|milliseconds| Duration::from_millis(milliseconds).as_secs_f64());
    let name = "all suspect: CPU of the API server until all is told : for a heartbeat of each";
    stage.note(name, all_told, "s", heartbeats, "");
    stage.note("all suspect: confirmed faults acted upon : confirmed", count(acts), "", count(sick.len()), "ratio 1");
    Ok(())
}
