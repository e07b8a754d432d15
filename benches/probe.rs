//! What a probe costs on a real node: resident memory, CPU, and requests to the API server at rest.
//!
//! The baseline of memory and CPU is the kubelet beside it, in the same minute; that of requests is the kubelet's own. Writes
//! `target/bench/probe.json`. Needs root on Linux and takes about 20 minutes, most of it until the probe is at rest.

#![expect(clippy::cast_precision_loss, reason = "bytes, ticks and requests are far below 2^52")]

mod record;

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nrh_testbed::{Bed, BedOptions, Node, images, operator, view};
use record::Line;

/// How long CPU is measured.
const WINDOW: Duration = Duration::from_mins(1);
/// A probe reports every 15 s for ten minutes after it has suspected something, as it does of a young kubelet.
const UNTIL_REST: Duration = Duration::from_mins(12);
/// How long requests are counted: longer than the heartbeat at rest.
const REST: Duration = Duration::from_mins(11);

fn main() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP probe: a real node needs root on Linux");
        return Ok(());
    }
    let programs = operator::build()?;
    let bed = Bed::up(BedOptions { name: "bench-probe".into(), nodes: 1, ..BedOptions::default() })?;
    operator::load_image(&bed, &programs)?;
    operator::apply_folder(&bed, "config/default")?;
    operator::wait(&bed)?;
    let node = bed.nodes().first().context("a node")?;
    let began = Instant::now();
    let mut lines = Vec::new();
    for pods in [10_usize, 100] {
        fill(&bed, node, pods)?;
        lines.extend(measure(node, pods)?);
    }
    std::thread::sleep(UNTIL_REST.saturating_sub(began.elapsed()));
    lines.push(requests(&bed)?);
    record::write("probe", &lines)?;
    bed.down()
}

fn fill(bed: &Bed, node: &Node, pods: usize) -> Result<()> {
    let deployment = format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: fill}}\nspec:\n  replicas: {pods}\n  selector: {{matchLabels: {{app: fill}}}}\n  \
         template:\n    metadata: {{labels: {{app: fill}}}}\n    spec:\n      nodeName: {}\n      containers: [{{name: main, image: {}, imagePullPolicy: Never, args: [work]}}]\n",
        node.name,
        images::WORK_IMAGE
    );
    bed.kubectl_input(&["apply", "-f", "-"], &deployment)?;
    bed.kubectl(&["rollout", "status", "deployment/fill", "--timeout=600s"])?;
    // Starting a hundred pods is work for everybody; the cost at rest is asked for.
    std::thread::sleep(Duration::from_secs(45));
    Ok(())
}

fn measure(node: &Node, pods: usize) -> Result<Vec<Line>> {
    let (probe, kubelet) = (pid(node, "nrh-probe")?, pid(node, "kubelet")?);
    let before = (ticks(probe)?, ticks(kubelet)?);
    std::thread::sleep(WINDOW);
    let cpu = |before: u64, after: u64| (after - before) as f64 * 10.0;
    let (probe_cpu, kubelet_cpu) = (cpu(before.0, ticks(probe)?), cpu(before.1, ticks(kubelet)?));
    Ok(vec![
        Line::new(
            format!("probe, {pods} pods, resident"),
            resident(probe, "VmRSS")?,
            "MiB",
            resident(kubelet, "VmRSS")?,
        ),
        Line::new(
            format!("probe, {pods} pods, anonymous"),
            resident(probe, "RssAnon")?,
            "MiB",
            resident(kubelet, "RssAnon")?,
        ),
        Line::new(format!("probe, {pods} pods, CPU"), probe_cpu, "ms/min", kubelet_cpu),
    ])
}

fn requests(bed: &Bed) -> Result<Line> {
    let since = jiff::Timestamp::now();
    std::thread::sleep(REST);
    let log = bed.audit()?;
    let count = |user: &str| {
        log.iter().filter(|entry| entry.user.username == user && entry.request_received_timestamp >= since).count()
            as f64
    };
    let minutes = REST.as_secs_f64() / 60.0;
    let (probe, kubelet) = (count("system:serviceaccount:nrh-node:nrh-probe"), count("system:node:real-1"));
    Ok(Line::new("probe, API requests at rest", probe / minutes, "1/min", kubelet / minutes))
}

/// The process of a program.
fn pid(node: &Node, comm: &str) -> Result<i32> {
    let found = view::processes(node.init_pid())?.into_iter().find(|process| process.comm == comm);
    Ok(found.with_context(|| format!("no {comm} on {}", node.name))?.host_pid)
}

/// CPU time in ticks of 10 ms.
fn ticks(pid: i32) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(')').context("a line of /proc/PID/stat")?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut next = || fields.next().and_then(|field| field.parse::<u64>().ok()).context("user and system time");
    Ok(next()? + next()?)
}

/// Memory in MiB.
fn resident(pid: i32, field: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .context("a line of /proc/PID/status")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok((kib / 102.4).round() / 10.0)
}
