//! What the controller costs and how fast it is, beside a bare client of the same run: a real API server, simulated nodes,
//! and the controller's release binary with its own rights. The probes are played.
//!
//! `NRH_BENCH_NODES=1000,5000` are the numbers of nodes, one after another on the same cluster; 50 is enough to see whether
//! everything works. `NRH_BENCH_PARTS=rest,waves` measures these parts alone. `NRH_BENCH_SAMPLES` single faults (100), `NRH_BENCH_FAULTS` at once (500), `NRH_BENCH_REST` seconds at
//! rest (120). Writes `target/bench/controller.json`. Needs root on Linux.

mod answers;
mod bare;
mod engine;
mod fleet;
#[path = "../meters/mod.rs"]
mod meters;
#[path = "../record/mod.rs"]
mod record;
mod requests;
mod rest;
mod restart;
#[path = "../../tests/simulated_node/mod.rs"]
mod simulated_node;
mod single;
mod stage;
mod storm;
mod suspects;

use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams};
use nrh_testbed::{Bed, BedOptions, kwok, operator};

use crate::answers::Answers;
use crate::engine::{Engine, Program};
use crate::fleet::{Executor, Fleet};
use crate::stage::{POLICY, Stage, objects, until};

/// The controllers' ports: two run side by side for a while.
const PORTS: [u16; 2] = [18_080, 18_081];
/// What is measured, in this order.
const PARTS: [&str; 8] = ["rest", "single", "commands", "jobs", "restart", "take-over", "suspects", "waves"];
/// After so long without a change, what is said about new nodes has been said.
const SETTLE: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP controller: the test bed needs root on Linux");
        return Ok(());
    }
    let sizes = std::env::var("NRH_BENCH_NODES").unwrap_or_else(|_| "1000,5000".to_owned());
    let sizes: Vec<usize> = sizes
        .split(',')
        .map(|size| size.trim().parse().with_context(|| format!("NRH_BENCH_NODES: {size:?} is no number of nodes")))
        .collect::<Result<_>>()?;
    ensure!(sizes.is_sorted(), "NRH_BENCH_NODES: nodes are only added, so the numbers have to rise: {sizes:?}");
    let nrh = operator::shipped()?.nrh;
    let bed = Bed::up(BedOptions {
        name: "bench-controller".into(),
        control_plane_only: true,
        node_monitor_grace: Some(Duration::from_mins(15)),
        ..BedOptions::default()
    })?;
    operator::apply_folder(&bed, "config/default")?;
    // The shipped one would be a second leader: this benchmark starts its own.
    bed.kubectl(&["-n", "nrh-system", "scale", "deployment/nrh-controller", "--replicas=0"])?;
    bed.apply(POLICY)?;
    let program = Program::new(&bed, &nrh)?;
    let fleet = Arc::new(Fleet::default());
    let mut stage = Stage { bed: &bed, program, fleet, nodes: 0, lines: Vec::new() };
    let measured = sizes.iter().try_for_each(|&nodes| measure(&mut stage, nodes));
    // What was measured until then is worth something, too.
    record::write("controller", &stage.lines)?;
    measured?;
    bed.down()
}

/// Everything at one number of nodes.
fn measure(stage: &mut Stage<'_>, nodes: usize) -> Result<()> {
    let begun = Instant::now();
    let said = |what: &str| println!("-- {what} ({} s)", begun.elapsed().as_secs());
    grow(stage, nodes)?;
    said("nodes");
    let mut engine = stage.program.start(stage.bed, "first", PORTS[0])?;
    first_reports(stage)?;
    said("first reports");
    let reported = Instant::now();
    for part in parts()? {
        engine = measure_part(stage, engine, part, reported)?;
        said(part);
    }
    engine.stop()
}

/// Those that are asked for; all, where none is.
fn parts() -> Result<Vec<&'static str>> {
    let Ok(text) = std::env::var("NRH_BENCH_PARTS") else { return Ok(PARTS.to_vec()) };
    let named: Vec<&str> = text.split(',').map(str::trim).collect();
    let unknown = named.iter().find(|name| !PARTS.contains(name));
    ensure!(unknown.is_none(), "NRH_BENCH_PARTS: expected some of {PARTS:?}, found {unknown:?}");
    Ok(PARTS.into_iter().filter(|part| named.contains(part)).collect())
}

/// One of [`PARTS`]. The controller may be another one afterwards.
fn measure_part(stage: &mut Stage<'_>, mut engine: Engine, part: &str, reported: Instant) -> Result<Engine> {
    let free = PORTS.into_iter().find(|port| *port != engine.port).context("a free port")?;
    let faults = setting("NRH_BENCH_FAULTS", 500)?;
    match part {
        "rest" => rest::measure(stage, &engine, reported, Duration::from_secs(setting("NRH_BENCH_REST", 120)?))?,
        "single" => single::measure(stage, setting("NRH_BENCH_SAMPLES", 100)?)?,
        "commands" => engine = storm::at_once(stage, engine, faults, Executor::Command, free)?,
        "jobs" => engine = storm::at_once(stage, engine, faults, Executor::Job, free)?,
        "restart" => engine = restart::restart(stage, engine, free)?,
        "take-over" => engine = restart::force(stage, engine, free)?,
        "suspects" => suspects::measure(stage)?,
        "waves" => {
            let waves = storm::waves(stage)?;
            peak(stage, &engine)?;
            engine.stop()?;
            storm::compare(stage, &waves)?;
            engine = stage.program.start(stage.bed, "controller-after-waves", free)?;
        }
        unknown => bail!("no part is called {unknown}"),
    }
    Ok(engine)
}

/// Adds simulated nodes up to this number and waits until they are Ready.
fn grow(stage: &mut Stage<'_>, nodes: usize) -> Result<()> {
    stage.bed.add_kwok_nodes(nodes - stage.nodes)?;
    stage.nodes = nodes;
    stage.run(Answers::None, async |client| {
        let api: Api<Node> = Api::all(client);
        // Few checks: each lists all nodes.
        until("all nodes Ready", Duration::from_secs(3), async || {
            let all = api.list(&ListParams::default()).await?;
            let is_ready = |node: &&Node| {
                let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
                conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
            };
            Ok(all.items.iter().filter(is_ready).count() >= nodes)
        })
        .await
    })?;
    stage.bed.kubectl(&["label", "nodes", "-l", kwok::SIMULATED, "runtimehealth.io/probe-"])?;
    Ok(())
}

/// The controller makes the reports' objects, and every probe reports twice.
fn first_reports(stage: &Stage<'_>) -> Result<()> {
    let (fleet, nodes) = (stage.fleet.clone(), stage.nodes);
    stage.run(Answers::None, async |client| {
        let names = objects(&client, nodes).await?;
        fleet.join(names.clone());
        for _ in 0..2 {
            fleet.report_all(&client, &names).await?;
        }
        tokio::time::sleep(SETTLE).await;
        Ok(())
    })
}

/// What all of that has left in its memory.
fn peak(stage: &mut Stage<'_>, engine: &Engine) -> Result<()> {
    let (now, peak) = engine.memory()?;
    stage.note("resident memory after everything : at its peak", now, "MiB", peak, "");
    Ok(())
}

/// A number from the environment.
fn setting<T: FromStr>(name: &str, default: T) -> Result<T> {
    let Ok(text) = std::env::var(name) else { return Ok(default) };
    text.parse().ok().with_context(|| format!("{name}: {text:?} is no number"))
}
