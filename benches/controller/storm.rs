//! Many faults at once: acts a second, requests for each, and how near the engine comes to a bare client.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nrh::core::fault::FaultState;
use nrh_testbed::wait::SOON;

use crate::answers::{self, Answers};
use crate::bare;
use crate::engine::{CEILING, Engine};
use crate::fleet::Executor;
use crate::requests::{Asked, Log, kind, phrase, seconds};
use crate::stage::{Stage, all_closed, at, count, suspend, within};

/// Requests that follow the last act: what is written about it, events.
const TAIL: Duration = Duration::from_secs(5);
/// What a report of a probe costs the server as much as.
const REPORT: &str = "apply noderuntimehealths/status";
/// How often what makes an act is asked for one after another.
const CHAINS: usize = 100;
/// How often the log is read.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Longest time that one act of many may take on average.
const EACH: Duration = Duration::from_millis(500);

/// What a storm came to.
struct Storm {
    /// Until the last act.
    asked: Asked,
    /// And what came after it.
    with_tail: usize,
    seconds: f64,
    acts: usize,
}

/// `faults` nodes are sick when the policy is let go: nothing is in the way but the engine and the API server. The
/// controller is another one afterwards: none runs while the bare client does.
pub fn at_once(stage: &mut Stage<'_>, engine: Engine, faults: usize, executor: Executor, port: u16) -> Result<Engine> {
    let what = if executor == Executor::Job { "Jobs" } else { "commands" };
    let names = stage.fleet.take(faults);
    let acts = names.len();
    // What is told to the nodes is not carried out yet; a check that has grown old is done again.
    let storm = stage.run(Answers::Checks, async |client| {
        let fleet = stage.fleet.clone();
        fleet.report_all(&client, &names).await?;
        suspend(&client, true).await?;
        fleet.sicken(&names, executor, FaultState::Confirmed);
        fleet.report_all(&client, &names).await?;
        // What is said about the faults that are held is no part of what is done about them.
        tokio::time::sleep(TAIL).await;
        let mut log = Log::from_now(stage.bed)?;
        suspend(&client, false).await?;
        let asked = watch_acts(&mut log, acts).await?;
        let done = asked.acts();
        let first = asked.between(0.0, f64::MAX).first().map(|entry| seconds(entry.request_received_timestamp));
        let (first, last) = first.zip(done.last().copied()).context("no act was seen")?;
        let ours = asked.between(first, last).into_iter().cloned().collect();
        let until_last = Asked { all: asked.all, reports: asked.reports, ours };
        tokio::time::sleep(TAIL).await;
        let mut all = asked;
        all.extend(log.read()?);
        Ok(Storm { asked: until_last, with_tail: all.kinds().values().sum(), seconds: last - first, acts: done.len() })
    })?;
    // The nodes do what they were told to, and all remediations end.
    stage.run(Answers::All, async |client| all_closed(&client).await)?;
    engine.stop()?;
    let requests: usize = storm.asked.kinds().values().sum();
    let kinds: Vec<String> = storm.asked.ours.iter().map(kind).collect();
    let fresh = stage.fleet.names();
    let act = if executor == Executor::Job { "create jobs" } else { "create nodecommands" };
    let (bare, mut chains) = stage.run(Answers::None, async |_| {
        let own = stage.program.client(stage.bed.client_config().await?)?;
        let bare = bare::rate(&own, stage.bed, &kinds, &fresh, bare::PARALLEL).await?;
        Ok((bare, bare::chains(&own, stage.bed, act, &fresh, CHAINS).await?))
    })?;
    println!("    until the last act, for each: {}", phrase(&storm.asked.kinds(), storm.acts));
    bare.print();
    let rate = count(requests) / storm.seconds;
    let of = format!("{faults} faults, {what}");
    let (acts, as_bare) = (count(storm.acts) / storm.seconds, bare.rate * count(storm.acts) / count(requests.max(1)));
    stage.note(&format!("{of}: acts a second : as bare requests"), acts, "1/s", as_bare, ">= 40; best peer 9.1");
    stage.note(&format!("{of}: requests a second : bare client"), rate, "1/s", bare.rate, "ratio >= 0.60");
    let (until_last, with_tail) = (count(requests) / count(storm.acts), count(storm.with_tail) / count(storm.acts));
    let name = format!("{of}: requests an act until the last act : with what follows");
    stage.note(&name, until_last, "", with_tail, "<= 6");
    // What `single` measures from a report to its act has this in it.
    let (half, most) = (at(&mut chains, 50), at(&mut chains, 99));
    stage.note(&format!("{what}: a bare act with what stands before it, p50 : p99"), half, "ms", most, "");
    stage.program.start(stage.bed, "controller-after-storm", port)
}

/// What waves came to, for the comparison.
#[derive(Debug)]
pub struct Waves {
    /// The controller's requests by kind, in their order, with the reports of the probes among them.
    kinds: Vec<String>,
    /// These requests a second.
    rate: f64,
}

/// All nodes have a fault, and the ledger lets no more than its ceiling be resolved at a time.
pub fn waves(stage: &mut Stage<'_>) -> Result<Waves> {
    let names = stage.fleet.take(stage.nodes);
    let fleet = stage.fleet.clone();
    let (asked, seconds, acts, write, all) = stage.run(Answers::All, async |client| {
        suspend(&client, true).await?;
        fleet.report_all(&client, &names).await?;
        fleet.sicken(&names, Executor::Command, FaultState::Confirmed);
        let write = fleet.report_all(&client, &names).await?;
        let mut log = Log::from_now(stage.bed)?;
        suspend(&client, false).await?;
        let begun = Instant::now();
        let mut asked = watch_acts(&mut log, names.len()).await?;
        let done = asked.acts();
        let seconds = done.last().zip(done.first()).map_or(0.0, |(last, first)| last - first);
        all_closed(&client).await?;
        asked.extend(log.read()?);
        Ok((asked, seconds, done.len(), write, begun.elapsed()))
    })?;
    let kinds = asked.kinds();
    println!("    from start to end, for each: {}", phrase(&kinds, acts));
    let of = format!("{} faults in waves of {CEILING}", names.len());
    let reports = count(names.len()) / write.as_secs_f64();
    let (rate, each) = (count(acts) / seconds, count(kinds.values().sum()) / count(acts));
    stage.note(&format!("{of}: acts a second : bare reports"), rate, "1/s", reports, ">= 40; best peer 9.1");
    stage.note(&format!("{of}: requests a remediation : target"), each, "", 6.0, "<= 6");
    let kinds = mixed(&asked);
    Ok(Waves { rate: count(kinds.len()) / all.as_secs_f64(), kinds })
}

/// The controller's requests, and the probes' reports spread evenly among them: they are asked of the same server.
fn mixed(asked: &Asked) -> Vec<String> {
    let ours = asked.between(0.0, f64::MAX);
    let mut kinds = Vec::new();
    for (index, entry) in ours.iter().enumerate() {
        kinds.push(kind(entry));
        let due = (index + 1) * asked.reports / ours.len() - index * asked.reports / ours.len();
        kinds.extend(std::iter::repeat_n(REPORT.to_owned(), due));
    }
    kinds
}

/// What a bare client reaches with the same requests, while no controller runs.
pub fn compare(stage: &mut Stage<'_>, waves: &Waves) -> Result<()> {
    let fresh = stage.fleet.names();
    let bare = stage.run(Answers::None, async |_| {
        let own = stage.program.client(stage.bed.client_config().await?)?;
        bare::rate(&own, stage.bed, &waves.kinds, &fresh, bare::PARALLEL + answers::PARALLEL).await
    })?;
    bare.print();
    let name = "waves: requests a second from start to end, the probes' reports included : bare client";
    stage.note(name, waves.rate, "1/s", bare.rate, "ratio >= 0.60");
    Ok(())
}

/// Reads the log until so many acts are in it.
pub async fn watch_acts(log: &mut Log, acts: usize) -> Result<Asked> {
    let mut asked = Asked::default();
    let limit = SOON + EACH * u32::try_from(acts)?;
    let waited = within(limit, "an act for each fault", POLL_INTERVAL, async || {
        asked.extend(log.read()?);
        Ok(asked.acts().len() >= acts)
    })
    .await;
    waited.with_context(|| format!("{} of {acts} acts; asked meanwhile: {:?}", asked.acts().len(), asked.kinds()))?;
    Ok(asked)
}
