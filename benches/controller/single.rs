//! One fault after another: from its report to the act.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Node;
use kube::api::Api;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource, ResourceExt};
use nrh::api::{NodeCommand, NodeRuntimeHealth};
use nrh::core::fault::FaultState;
use serde::de::DeserializeOwned;

use crate::answers::Answers;
use crate::fleet::{Executor, Fleet};
use crate::stage::{Stage, all_closed, at};

/// An act that has not come by then does not come.
const LIMIT: Duration = Duration::from_mins(1);

/// Milliseconds.
struct Sample {
    /// From the moment at which the report was sent until a bare watch has it.
    watch: f64,
    /// From the answer to the report until the same client's watch has the act.
    act: f64,
}

/// Measures `samples` faults for each kind of act.
pub fn measure(stage: &mut Stage<'_>, samples: usize) -> Result<()> {
    for (executor, what) in [(Executor::Job, "a Job"), (Executor::Command, "a command"), (Executor::Cordon, "a cordon")]
    {
        let fleet = stage.fleet.clone();
        let names = fleet.take(samples);
        let found = stage.run(Answers::All, async |client| {
            let found = follow(&client, &fleet, &names, executor).await?;
            fleet.resolve(&names);
            fleet.report_all(&client, &names).await?;
            all_closed(&client).await?;
            Ok(found)
        })?;
        let mut watch: Vec<f64> = found.iter().map(|sample| sample.watch).collect();
        let mut act: Vec<f64> = found.iter().map(|sample| sample.act).collect();
        for (percent, target) in
            [(50, "<= 60 ms; best peer at 1,000: 644"), (99, "<= 250 ms; best peer at 1,000: 1063")]
        {
            let name = format!("report to {what} p{percent} : a bare watch");
            stage.note(&name, at(&mut act, percent), "ms", at(&mut watch, percent), target);
        }
    }
    Ok(())
}

/// What a watch brings.
enum Seen {
    /// All that was there before.
    Listed,
    /// What is waited for, about this object.
    Hit(String),
    /// Anything else.
    Other,
}

type Watch = BoxStream<'static, Result<Seen, watcher::Error>>;

/// A watch whose first list is over.
async fn watch<K>(api: Api<K>, is_hit: impl Fn(&K) -> bool + Send + 'static) -> Result<Watch>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let seen = move |event| match event {
        Event::InitDone => Seen::Listed,
        Event::Apply(object) | Event::InitApply(object) if is_hit(&object) => Seen::Hit(object.name_any()),
        _ => Seen::Other,
    };
    let mut watch = watcher(api, watcher::Config::default()).default_backoff().map_ok(seen).boxed();
    while !matches!(watch.try_next().await?, Some(Seen::Listed)) {}
    Ok(watch)
}

/// When something about an object of this name, or one whose name begins with it, is seen.
async fn until(watch: &mut Watch, name: &str) -> Result<Instant> {
    let wait = async {
        while let Some(seen) = watch.try_next().await? {
            if matches!(seen, Seen::Hit(of) if of.starts_with(name)) {
                return Ok(Instant::now());
            }
        }
        bail!("the watch ended")
    };
    tokio::time::timeout(LIMIT, wait).await.context("no act in time")?
}

async fn follow(client: &Client, fleet: &Fleet, names: &[String], executor: Executor) -> Result<Vec<Sample>> {
    let healths = Api::<NodeRuntimeHealth>::all(client.clone());
    let mut reports = watch(healths, is_confirmed).await?;
    let mut acts = match executor {
        Executor::Job => watch(Api::<Job>::namespaced(client.clone(), "nrh-node"), |_| true).await?,
        Executor::Command => {
            watch(Api::<NodeCommand>::all(client.clone()), |command| command.spec.command.is_some()).await?
        }
        Executor::Cordon => watch(Api::<Node>::all(client.clone()), is_cordoned).await?,
    };
    // Nothing is acted upon before a second heartbeat has dated the first.
    fleet.report_all(client, names).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut samples = Vec::new();
    for name in names {
        fleet.report(client, name).await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        fleet.sicken(std::slice::from_ref(name), executor, FaultState::Confirmed);
        let sent = Instant::now();
        let report = async {
            fleet.report(client, name).await?;
            Ok(Instant::now())
        };
        let all = tokio::try_join!(report, until(&mut reports, name), until(&mut acts, name));
        let (answered, seen, act) = all.with_context(|| format!("the fault of {name}"))?;
        let milliseconds = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64() * 1e3;
        samples.push(Sample { watch: milliseconds(sent, seen), act: milliseconds(answered, act) });
    }
    Ok(samples)
}

fn is_confirmed(health: &NodeRuntimeHealth) -> bool {
    let faults = health.status.as_ref().map(|status| status.faults.as_slice()).unwrap_or_default();
    faults.iter().any(|fault| fault.state == FaultState::Confirmed)
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true))
}
