//! From a fault report to the first act, with 1,000 simulated nodes and a real API server.
//!
//! The baseline is a bare watch in the same run: the time until the report itself reaches another client. Writes
//! `target/bench/latency.json`. Needs root on Linux.

mod record;

use std::pin::pin;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::{Stream, TryStreamExt};
use k8s_openapi::api::batch::v1::Job;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use nrh::api::NodeRuntimeHealth;
use nrh_testbed::{Bed, BedOptions, operator};
use record::Line;
use serde_json::{Value, json};

const NODES: usize = 1_000;
const SAMPLES: usize = 60;
const LIMIT: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP latency: the test bed needs root on Linux");
        return Ok(());
    }
    let nrh = operator::shipped()?.nrh;
    let grace = Some(Duration::from_mins(15));
    let bed = Bed::up(BedOptions {
        name: "bench-latency".into(),
        control_plane_only: true,
        node_monitor_grace: grace,
        ..BedOptions::default()
    })?;
    operator::apply_folder(&bed, "config/default")?;
    bed.add_kwok_nodes(NODES)?;
    bed.wait_ready(NODES, Duration::from_mins(5))?;
    bed.kubectl(&["label", "nodes", "-l", "type=kwok", "runtimehealth.io/probe-"])?;
    bed.kubectl_input(&["apply", "-f", "-"], POLICY)?;
    let kubeconfig = controller_kubeconfig(&bed)?;
    let mut controller = bed
        .command(&nrh)
        .args(["controller", "--image", operator::IMAGE, "--max-in-flight", "1000"])
        .args(["--listen", "127.0.0.1:18080", "--health-listen", "127.0.0.1:18081"])
        .env("KUBECONFIG", &kubeconfig)
        .env("NRH_LOG", "warn")
        .stdin(Stdio::null())
        .spawn()
        .context("start the controller")?;
    let measured = bed.run(async |client| measure(client).await);
    controller.kill()?;
    controller.wait()?;
    let samples = measured?;
    let sorted = |value: fn(&Sample) -> f64| {
        let mut values: Vec<f64> = samples.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    // Per sample: where the API server was slow for a moment, it was so for both.
    let (watch, over) = (sorted(|sample| sample.watch), sorted(|sample| sample.act - sample.watch));
    let lines = [50, 99].map(|percent| {
        let name = format!("report to first act over the bare watch, p{percent}");
        Line::new(name, at(&over, percent), "ms", at(&watch, percent))
    });
    record::write("latency", &lines)?;
    bed.down()
}

/// Milliseconds from the moment at which the report was sent.
struct Sample {
    /// Until a bare watch has it.
    watch: f64,
    /// Until the same client's watch has the Job.
    act: f64,
}

/// The value below which `percent` of the sorted values lie.
fn at(sorted: &[f64], percent: usize) -> f64 {
    let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or_default()
}

const POLICY: &str = "
apiVersion: runtimehealth.io/v1alpha1
kind: RemediationPolicy
metadata: {name: bench}
spec:
  mode: Enforce
  priority: 500
  limits: {maxInFlight: 1000, maxUnhealthy: 100%}
  rules:
  - name: leaked
    match: {faults: [LeakedShim]}
    steps: [{action: CleanupOrphans}]
";

/// The controller's own rights, not the admin's.
fn controller_kubeconfig(bed: &Bed) -> Result<std::path::PathBuf> {
    let token = operator::controllers_token(bed, "bench", operator::IMAGE)?;
    let text = std::fs::read_to_string(bed.kubeconfig_path())?;
    let mut config: Value = serde_saphyr::from_str(&text)?;
    let users = config.pointer_mut("/users/0/user").context("a user in the admin's kubeconfig")?;
    *users = json!({"token": token});
    let path = bed.dir().join("controller.kubeconfig");
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}

async fn measure(client: Client) -> Result<Vec<Sample>> {
    let healths: Api<NodeRuntimeHealth> = Api::all(client.clone());
    let jobs: Api<Job> = Api::namespaced(client, "nrh-node");
    let end = Instant::now() + Duration::from_mins(3);
    while healths.list_metadata(&ListParams::default()).await?.items.len() < NODES {
        anyhow::ensure!(Instant::now() < end, "the controller has not made an object for each of {NODES} nodes");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let mut seen_health =
        pin!(watcher(healths.clone(), watcher::Config::default()).default_backoff().applied_objects());
    let mut seen_job = pin!(watcher(jobs, watcher::Config::default()).default_backoff().applied_objects());
    let names: Vec<String> = healths
        .list_metadata(&ListParams::default())
        .await?
        .items
        .iter()
        .take(SAMPLES)
        .map(ResourceExt::name_any)
        .collect();
    for (sequence, pause) in [(1, 100), (2, 2_000)] {
        for name in &names {
            report(&healths, name, sequence, false).await?;
        }
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    let mut samples = Vec::new();
    for name in &names {
        report(&healths, name, 3, false).await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let start = Instant::now();
        report(&healths, name, 4, true).await?;
        until(&mut seen_health, |health| {
            health.name_any() == *name && health.status.as_ref().is_some_and(|s| !s.faults.is_empty())
        })
        .await?;
        let watch = start.elapsed().as_secs_f64() * 1e3;
        until(&mut seen_job, |job| job.name_any().starts_with(name.as_str())).await?;
        samples.push(Sample { watch, act: start.elapsed().as_secs_f64() * 1e3 });
    }
    Ok(samples)
}

async fn until<K>(
    stream: &mut (impl Stream<Item = Result<K, watcher::Error>> + Unpin),
    fits: impl Fn(&K) -> bool,
) -> Result<()> {
    let wait = async {
        while let Some(object) = stream.try_next().await? {
            if fits(&object) {
                return Ok(());
            }
        }
        anyhow::bail!("the watch ended")
    };
    tokio::time::timeout(LIMIT, wait).await.context("not seen in time")?
}

/// What a probe would say of a kwok node.
async fn report(api: &Api<NodeRuntimeHealth>, node: &str, sequence: u64, sick: bool) -> Result<()> {
    let now = jiff::Timestamp::now();
    let fault = json!({
        "id": format!("leakedshim-{node}"), "type": "LeakedShim", "severity": "Medium", "state": "Confirmed",
        "subject": {"kind": "Shim", "id": "0".repeat(64)},
        "target": {"process": {"role": "Shim", "pid": 4711, "startTicks": 1, "state": "T", "command": "containerd-shim"}, "sandboxId": "0".repeat(64)},
        "message": "a shim is left over", "firstSeen": now, "durationSeconds": 90, "confirmations": 3, "checkAgeSeconds": 0,
    });
    let status = json!({
        "apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRuntimeHealth",
        "status": {
            "probe": {"version": "bench", "mode": "Pod", "bootId": "b", "sequence": sequence, "heartbeatAt": now, "intervalSeconds": 300, "actionsEnabled": true},
            "kubelet": {"started": true},
            "faults": if sick { vec![fault] } else { Vec::new() },
        },
    });
    api.patch_status(node, &PatchParams::apply("nrh-probe").force(), &Patch::Apply(&status)).await?;
    Ok(())
}
