//! A controller that starts anew, and one that takes over from a leader that died.

use std::time::{Duration, Instant};

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams};
use nrh::api::NodeRuntimeHealth;
use nrh::controller::leader::LEASE_DURATION;
use nrh::core::fault::FaultState;
use tokio::time::sleep;

use crate::answers::Answers;
use crate::engine::Engine;
use crate::fleet::Executor;
use crate::requests::{Log, phrase};
use crate::stage::{Stage, all_closed, count, until};
use crate::storm::watch_acts;

/// For how long nothing may be written after a start.
const AFTER: Duration = Duration::from_mins(1);
/// Words alone are written more seldom than that.
const QUIET: Duration = Duration::from_secs(20);
/// Nodes with a fault that was reported while no controller ran.
const STANDING: usize = 10;
/// For how long they are silent.
const SILENT: Duration = Duration::from_secs(10);

/// Ends the controller and starts another one, first with nothing new, then with faults that stand.
pub fn restart(stage: &mut Stage<'_>, engine: Engine, port: u16) -> Result<Engine> {
    // What was written by others before has been set right by then.
    let mut log = Log::from_now(stage.bed)?;
    stage.run(Answers::All, async |_| quiet(&mut log).await)?;
    engine.stop()?;
    let bare = stage.run(Answers::None, async |client| {
        let begun = Instant::now();
        Api::<Node>::all(client.clone()).list(&ListParams::default()).await?;
        Api::<NodeRuntimeHealth>::all(client).list(&ListParams::default()).await?;
        Ok(begun.elapsed())
    })?;
    let mut log = Log::from_now(stage.bed)?;
    let engine = stage.program.start(stage.bed, "restarted", port)?;
    let nodes = stage.nodes;
    let (first, asked) = stage.run(Answers::None, async |_| {
        let first = engine.first_plan(nodes).await?;
        sleep(AFTER).await;
        Ok((first, log.read()?))
    })?;
    let of_plan = if nodes == 5_000 { "<= 5 s" } else { "" };
    stage.note("restart: first complete plan : bare lists", first.as_secs_f64(), "s", bare.as_secs_f64(), of_plan);
    let writes: Vec<_> = asked.kinds().into_iter().filter(|(kind, _)| !is_read(kind)).collect();
    println!("    in {} s: {}", AFTER.as_secs(), phrase(&asked.kinds(), 1));
    stage.note("restart: writes without a change : target", count(writes.iter().map(|(_, n)| n).sum()), "", 0.0, "0");

    engine.stop()?;
    let (names, fleet) = (stage.fleet.take(STANDING), stage.fleet.clone());
    stage.run(Answers::None, async |client| {
        fleet.sicken(&names, Executor::Command, FaultState::Confirmed);
        fleet.report_all(&client, &names).await.map(drop)
    })?;
    let mut log = Log::from_now(stage.bed)?;
    let engine = stage.program.start(stage.bed, "restarted-again", port)?;
    let early = stage.run(Answers::None, async |_| {
        engine.first_plan(nodes).await?;
        sleep(SILENT).await;
        Ok(log.read()?.acts().len())
    })?;
    let executed = stage.run(Answers::All, async |client| {
        let begun = Instant::now();
        fleet.report_all(&client, &names).await?;
        watch_acts(&mut log, names.len()).await?;
        let executed = begun.elapsed();
        all_closed(&client).await?;
        Ok(executed)
    })?;
    let acts = count(names.len());
    stage.note("restart: acts before a heartbeat : faults that stand", count(early), "", acts, "0");
    stage.note("restart: from their heartbeats to all acts : no baseline", executed.as_secs_f64(), "s", 0.0, "");
    Ok(engine)
}

/// Kills the leader beside one that waits, and reports a fault at once.
pub fn force(stage: &mut Stage<'_>, leader: Engine, port: u16) -> Result<Engine> {
    let second = stage.program.start(stage.bed, "second", port)?;
    let (names, fleet) = (stage.fleet.take(1), stage.fleet.clone());
    let took = stage.run(Answers::All, async |client| {
        // It has to have listed everything, and to have seen two heartbeats of that node.
        sleep(Duration::from_secs(15)).await;
        for _ in 0..2 {
            fleet.report_all(&client, &names).await?;
            sleep(Duration::from_secs(1)).await;
        }
        let mut log = Log::from_now(stage.bed)?;
        let killed = leader.kill()?;
        fleet.sicken(&names, Executor::Command, FaultState::Confirmed);
        fleet.report_all(&client, &names).await?;
        watch_acts(&mut log, 1).await?;
        let took = killed.elapsed();
        all_closed(&client).await?;
        Ok(took)
    })?;
    let lease = LEASE_DURATION.as_secs_f64();
    stage.note("leader killed: until the next one's act : the Lease", took.as_secs_f64(), "s", lease, "");
    Ok(second)
}

/// Waits until the controller has written nothing for a while.
pub async fn quiet(log: &mut Log) -> Result<()> {
    let mut last = Instant::now();
    until("an end of all writes", Duration::from_secs(1), async || {
        if log.read()?.kinds().keys().any(|kind| !is_read(kind)) {
            last = Instant::now();
        }
        Ok(last.elapsed() > QUIET)
    })
    .await
}

fn is_read(kind: &str) -> bool {
    ["get ", "list ", "watch "].iter().any(|verb| kind.starts_with(verb))
}
