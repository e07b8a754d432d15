//! What the controller costs while nothing happens: every probe sends a heartbeat in five minutes.

use std::pin::pin;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::Api;
use kube::runtime::watcher;
use kube::runtime::watcher::{Config, Event};
use nrh::api::NodeRuntimeHealth;
use nrh::core::flap::QUIET;
use nrh_testbed::Bed;

use crate::answers::Answers;
use crate::engine::Engine;
use crate::meters;
use crate::requests::{Asked, Log, phrase};
use crate::restart;
use crate::stage::{Stage, count};

/// What was seen in the window.
struct Rest {
    /// CPU time in milliseconds.
    controller: u64,
    /// The same of a bare client that watches the same nodes and reports.
    bare: u64,
    asked: Asked,
}

/// Nodes that have begun to report are told to be calm after so long, a few a second: until then there is no rest.
const CALM: Duration = QUIET.saturating_add(Duration::from_secs(30));

/// Measures for `window`, once all is said of nodes that have begun to report `reported` ago.
pub fn measure(stage: &mut Stage<'_>, engine: &Engine, reported: Instant, window: Duration) -> Result<()> {
    let mut log = Log::from_now(stage.bed)?;
    stage.run(Answers::None, async |_| {
        tokio::time::sleep(CALM.saturating_sub(reported.elapsed())).await;
        restart::quiet(&mut log).await
    })?;
    let rest = check(stage, engine, window)?;
    let minutes = window.as_secs_f64() / 60.0;
    let cpu = |milliseconds: u64| Duration::from_millis(milliseconds).as_secs_f64() / minutes;
    let per_minute = |requests: usize| count(requests) / minutes;
    let json = stage.run(Answers::None, async |client| size(&client).await)?;
    let (now, peak) = engine.memory()?;
    let (memory, time) = match stage.nodes {
        1_000 => ("<= 20 MiB; best peer 58", ""),
        5_000 => ("<= 60 MiB; best peer 187", "<= 0.5 s; best peer 1.0"),
        _ => ("", ""),
    };
    stage.note("resident memory : nodes and reports as JSON", now, "MiB", json, memory);
    stage.note("the same at its peak", peak, "MiB", json, "");
    stage.note("CPU a minute at rest : bare watches", cpu(rest.controller), "s", cpu(rest.bare), time);
    let (ours, all) = (per_minute(rest.asked.ours.len()), per_minute(rest.asked.all));
    stage.note("API requests a minute at rest : everybody's", ours, "", all, "");
    println!("    Lease and watches aside, in all: {}", phrase(&rest.asked.kinds(), 1));
    Ok(())
}

fn check(stage: &Stage<'_>, engine: &Engine, window: Duration) -> Result<Rest> {
    let mut log = Log::from_now(stage.bed)?;
    let (listed, is_listed) = mpsc::channel();
    std::thread::scope(|scope| {
        let bare = scope.spawn(|| bare_watch(stage.bed, listed, window));
        is_listed.recv().context("the bare client has not listed anything")?;
        let before = engine.cpu()?;
        log.read()?;
        stage.run(Answers::None, async |_| {
            tokio::time::sleep(window).await;
            Ok(())
        })?;
        let controller = engine.cpu()? - before;
        let asked = log.read()?;
        let bare = bare.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(Rest { controller, bare, asked })
    })
}

/// CPU time of a client that does nothing but watch nodes and reports; its first lists do not count.
fn bare_watch(bed: &Bed, listed: mpsc::Sender<()>, window: Duration) -> Result<u64> {
    bed.run(async move |client| {
        let mut nodes = pin!(watcher(Api::<Node>::all(client.clone()), Config::default()));
        let mut reports = pin!(watcher(Api::<NodeRuntimeHealth>::all(client), Config::default()));
        while !matches!(nodes.try_next().await?, Some(Event::InitDone)) {}
        while !matches!(reports.try_next().await?, Some(Event::InitDone)) {}
        let _ = listed.send(());
        let before = meters::cpu_of_thread()?;
        let watch = async {
            loop {
                tokio::select! {
                    event = nodes.try_next() => event.map(drop),
                    event = reports.try_next() => event.map(drop),
                }?;
            }
        };
        match tokio::time::timeout(window, watch).await {
            Ok(ended) => ended,
            Err(_) => Ok(meters::cpu_of_thread()? - before),
        }
    })
}

/// All nodes and reports as the API server lists them, in MiB.
async fn size(client: &Client) -> Result<f64> {
    let mut bytes = 0;
    for path in ["/api/v1/nodes", "/apis/runtimehealth.io/v1alpha1/noderuntimehealths"] {
        let list = http::Request::get(path);
        bytes += client.request_text(list.body(Vec::new())?).await?.len();
    }
    Ok(count(bytes) / f64::from(1 << 20))
}
