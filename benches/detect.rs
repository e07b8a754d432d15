//! How long it takes until a hung shim is named, by kind of hang and number of pods on the node.
//!
//! Each hang begins at a random moment and is lifted once it is confirmed; several stand at a time. The baseline is the least
//! time that the confirmation itself takes. Writes `target/bench/detect.json`. Needs root on Linux; `NRH_BENCH_PODS=100,250`.

mod record;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nrh::core::thresholds::Thresholds;
use nrh_testbed::faults::{self, Injection};
use nrh_testbed::{Bed, BedOptions, Node, images, operator, packages};
use record::Line;
use serde_json::Value;

/// Hangs of each kind and number of pods.
const HANGS: usize = 12;
/// Hangs that stand at a time.
const AT_ONCE: usize = 4;
/// Longest distance between the beginnings of two.
const APART: Duration = Duration::from_secs(20);
/// How long one is waited for.
const LIMIT: Duration = Duration::from_mins(10);

/// What it is called, whether it can be had on this machine, and how it is made.
type Kind = (&'static str, fn() -> bool, fn(&Node, &str) -> Result<Injection>);

const KINDS: [Kind; 3] = [
    ("stopped", || true, faults::freeze_shim),
    ("frozen, state D", faults::has_freezer, faults::waiting_shim),
    ("frozen, state S", faults::has_unified, faults::sleeping_shim),
];

fn main() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP detect: a real node needs root on Linux");
        return Ok(());
    }
    packages::ensure(packages::BENCH, true)?;
    let programs = operator::shipped()?;
    let bed = Bed::up(BedOptions { name: "bench-detect".into(), nodes: 1, ..BedOptions::default() })?;
    operator::load_image(&bed, &programs)?;
    operator::apply_folder(&bed, "config/default")?;
    operator::wait(&bed)?;
    let node = bed.nodes().first().context("a node")?;
    let numbers = std::env::var("NRH_BENCH_PODS").unwrap_or_else(|_| "100,250".to_owned());
    let mut lines = Vec::new();
    for pods in numbers.split(',') {
        let pods: usize = pods.parse().context("NRH_BENCH_PODS: numbers with commas between them")?;
        fill(&bed, node, pods)?;
        for kind in KINDS.into_iter().filter(|(.., can_be_had, _)| can_be_had()) {
            lines.extend(measured(&bed, node, pods, kind)?);
            record::write("detect", &lines)?;
        }
    }
    bed.down()
}

fn fill(bed: &Bed, node: &Node, pods: usize) -> Result<()> {
    let container =
        serde_json::json!({"name": "main", "image": images::WORK_IMAGE, "imagePullPolicy": "Never", "args": ["work"]});
    let deployment = serde_json::json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "fill"},
        "spec": {
            "replicas": pods, "selector": {"matchLabels": {"app": "fill"}}, "progressDeadlineSeconds": 1200,
            "template": {"metadata": {"labels": {"app": "fill"}}, "spec": {"nodeName": node.name, "containers": [container]}},
        },
    });
    bed.kubectl_input(&["apply", "-f", "-"], &deployment.to_string())?;
    bed.kubectl(&["rollout", "status", "deployment/fill", "--timeout=1200s"])?;
    // Starting them is work for everybody, and puts the node under pressure for a minute.
    std::thread::sleep(Duration::from_mins(2));
    Ok(())
}

/// One hang under way.
struct Hang {
    injection: Injection,
    suspected: Option<Duration>,
}

fn measured(bed: &Bed, node: &Node, pods: usize, (kind, _, inject): Kind) -> Result<Vec<Line>> {
    let list: Value = serde_json::from_str(&bed.kubectl(&["get", "pods", "-l", "app=fill", "-o", "json"])?)?;
    let items = list["items"].as_array().context("pods")?;
    let mut victims = items.iter().filter_map(|pod| pod["metadata"]["uid"].as_str()).map(str::to_owned);
    let (mut standing, mut suspected, mut confirmed) = (Vec::<Hang>::new(), Vec::new(), Vec::new());
    let mut begun = 0;
    let mut next = Instant::now();
    while confirmed.len() < HANGS {
        if begun < HANGS && standing.len() < AT_ONCE && Instant::now() >= next {
            let injection = inject(node, &victims.next().context("a pod for each hang")?)?;
            standing.push(Hang { injection, suspected: None });
            begun += 1;
            next = Instant::now() + APART.mul_f64(f64::from(fastrand(begun)) / 1000.0);
        }
        let report = bed.kubectl(&["get", "noderuntimehealth", &node.name, "-o", "json"])?;
        let report: Value = serde_json::from_str(&report)?;
        let faults = report["status"]["faults"].as_array().cloned().unwrap_or_default();
        let mut still = Vec::new();
        for mut hang in standing {
            let elapsed = hang.injection.elapsed();
            ensure!(elapsed < LIMIT, "{kind}, {pods} pods: not confirmed within {LIMIT:?}: {report:#}");
            let uid = hang.injection.victim.pod_uid.as_deref();
            let fault = faults
                .iter()
                .find(|fault| fault["type"] == "HungContainer" && fault["subject"]["pod"]["uid"].as_str() == uid);
            if fault.is_some() {
                hang.suspected = hang.suspected.or(Some(elapsed));
            }
            if fault.is_some_and(|fault| fault["state"] == "Confirmed") {
                suspected.push(hang.suspected.unwrap_or(elapsed));
                confirmed.push(elapsed);
                hang.injection.lift(node)?;
            } else {
                still.push(hang);
            }
        }
        standing = still;
        std::thread::sleep(Duration::from_millis(500));
    }
    let least = Thresholds::default().hung_container.grace_period;
    Ok([("suspected", suspected), ("confirmed", confirmed)]
        .into_iter()
        .flat_map(|(what, mut times)| {
            times.sort();
            let at = |share: usize| times.get((times.len() * share).div_ceil(100).saturating_sub(1)).copied();
            [50, 95, 100].map(|share| {
                let name = format!("{kind}, {pods} pods, {what}, p{share}");
                let time = at(share).unwrap_or_default();
                Line::new(name, time.as_secs_f64(), "s", least.as_secs_f64())
            })
        })
        .collect())
}

/// A number in 0..1000, another one for each step.
fn fastrand(step: usize) -> u32 {
    let step = u32::try_from(step).unwrap_or_default();
    step.wrapping_mul(2_654_435_761).rotate_left(13) % 1000
}
