//! What a probe costs on a real node with 10, 100 and 250 pods: memory, CPU, system calls, calls to the runtime, requests to
//! the API server.
//!
//! The baseline is the kubelet beside it, in the same minutes; that of the calls to the runtime is what containerd is asked
//! without a probe. Writes `target/bench/probe.json`. Needs root on Linux and takes about 50 minutes.

#![expect(clippy::cast_precision_loss, reason = "bytes, ticks and requests are far below 2^52")]

mod meters;
mod pods;
mod record;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nrh_testbed::wait::ENDS;
use nrh_testbed::{Bed, BedOptions, Node, operator, packages, process};
use record::Line;

/// How long CPU is measured while pods are still few.
const WINDOW: Duration = Duration::from_mins(3);
/// How long system calls are counted.
const TRACE: Duration = Duration::from_mins(1);
/// A probe reports every 15 s for ten minutes after it has suspected something, as it may on a node that is being filled. How
/// long it is waited for at most, and from which interval on it is at rest.
const UNTIL_REST: Duration = Duration::from_mins(25);
const AT_REST: u32 = 250;
/// How long a probe is watched at rest: longer than its heartbeat, and than its round of all tasks.
const REST: Duration = Duration::from_mins(11);
/// How long the runtime is watched without a probe.
const WITHOUT: Duration = Duration::from_mins(5);
/// Pods of the operator on the node.
const OWN: usize = 3;
/// Lines a second of the pod that logs.
const LINES: &str = "5000";

fn main() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP probe: a real node needs root on Linux");
        return Ok(());
    }
    packages::ensure(packages::BENCH)?;
    let programs = operator::shipped()?;
    let bed = Bed::up(BedOptions { name: "bench-probe".into(), nodes: 1, ..BedOptions::default() })?;
    operator::install(&bed, &programs)?;
    let node = bed.nodes().first().context("a node")?;
    let mut lines = Vec::new();
    // Told after each part: what is measured already outlives a failure of the next one.
    let mut tell = |more: Vec<Line>| {
        lines.extend(more);
        record::write("probe", &lines)
    };
    for pods in [10_usize, 100] {
        fill(&bed, node, pods)?;
        let watched = Watched::begin(&bed, node)?;
        std::thread::sleep(WINDOW);
        tell(watched.of_processes(pods)?)?;
        tell(traced(node, pods)?.into())?;
    }
    let pods = 250;
    fill(&bed, node, pods)?;
    at_rest(&bed, node)?;
    let watched = Watched::begin(&bed, node)?;
    std::thread::sleep(REST);
    let resting = watched.of_processes(pods)?;
    let idle = resting.last().context("the CPU time")?.value;
    tell(resting)?;
    tell(watched.requests()?.into())?;
    let asked = watched.asked()?;
    tell(traced(node, pods)?.into())?;
    tell(vec![under_logs(&bed, node, idle)?])?;
    tell(against_nobody(&bed, node, &asked)?.into())?;
    bed.down()
}

/// Waits until the probe promises its next report for so late that it must see nothing.
fn at_rest(bed: &Bed, node: &Node) -> Result<()> {
    let end = Instant::now() + UNTIL_REST;
    loop {
        let path = "jsonpath={.status.probe.intervalSeconds}";
        let promised = bed.kubectl(&["get", "noderuntimehealth", &node.name, "-o", path])?;
        if promised.trim().parse::<u32>().is_ok_and(|seconds| seconds >= AT_REST) {
            return Ok(());
        }
        ensure!(
            Instant::now() <= end,
            "the probe still reports every {promised} s: `kubectl describe noderuntimehealth` says what it sees"
        );
        std::thread::sleep(Duration::from_secs(5));
    }
}

/// Makes the node have that many pods.
fn fill(bed: &Bed, node: &Node, total: usize) -> Result<()> {
    pods::fill(bed, node, total - OWN)?;
    // Starting a hundred pods is work for everybody; the cost at rest is asked for.
    std::thread::sleep(Duration::from_secs(45));
    Ok(())
}

/// What stood on all counters when a window began.
struct Watched<'a> {
    bed: &'a Bed,
    node: &'a Node,
    since: (jiff::Timestamp, Instant),
    pids: [i32; 2],
    cpu: [u64; 2],
    calls: BTreeMap<String, u64>,
}

impl<'a> Watched<'a> {
    fn begin(bed: &'a Bed, node: &'a Node) -> Result<Self> {
        let pids = [meters::pid(node, "nrh-probe")?, meters::pid(node, "kubelet")?];
        let calls = meters::runtime_calls(bed, node)?;
        let cpu = [meters::cpu(pids[0])?, meters::cpu(pids[1])?];
        Ok(Self { bed, node, since: (jiff::Timestamp::now(), Instant::now()), pids, cpu, calls })
    }

    fn minutes(&self) -> f64 {
        self.since.1.elapsed().as_secs_f64() / 60.0
    }

    /// Memory now, and CPU time since; the CPU time is the last line.
    fn of_processes(&self, pods: usize) -> Result<Vec<Line>> {
        let [probe, kubelet] = self.pids;
        let cpu =
            |at: usize| Ok::<_, anyhow::Error>((meters::cpu(self.pids[at])? - self.cpu[at]) as f64 / self.minutes());
        let mut lines = Vec::new();
        for (name, field) in [("resident", "VmRSS"), ("anonymous", "RssAnon")] {
            let name = format!("probe, {pods} pods, {name}");
            lines.push(Line::new(name, meters::memory(probe, field)?, "MiB", meters::memory(kubelet, field)?));
        }
        // A millicore is 60 of them.
        lines.push(Line::new(format!("probe, {pods} pods, CPU"), cpu(0)?, "ms/min", cpu(1)?));
        Ok(lines)
    }

    /// Requests of the probe, and those of the kubelet about who asks it.
    fn requests(&self) -> Result<[Line; 2]> {
        let log = self.bed.audit()?;
        let minutes = self.minutes();
        let count = |user: &str, resources: &[&str]| {
            let since = log.iter().filter(|entry| entry.request_received_timestamp >= self.since.0);
            let of = since.filter(|entry| {
                let resource = entry.object_ref.as_ref().map_or("", |object| object.resource.as_str());
                entry.user.username == user && (resources.is_empty() || resources.contains(&resource))
            });
            of.count() as f64 / minutes
        };
        let kubelet = format!("system:node:{}", self.node.name);
        let own = count("system:serviceaccount:nrh-node:nrh-probe", &[]);
        let all = count(&kubelet, &[]);
        let reviews = count(&kubelet, &["tokenreviews", "subjectaccessreviews"]);
        Ok([
            Line::new("probe, API requests at rest", own, "1/min", all),
            Line::new("the kubelet's questions who asks it", reviews, "1/min", all),
        ])
    }

    /// What containerd was asked since, a minute: CRI, and tasks.
    fn asked(&self) -> Result<[f64; 2]> {
        let (now, minutes) = (meters::runtime_calls(self.bed, self.node)?, self.minutes());
        Ok(["RuntimeService", "Tasks"].map(|service| meters::more(&self.calls, &now, service) as f64 / minutes))
    }
}

/// System calls, and those of them that execute a program.
fn traced(node: &Node, pods: usize) -> Result<[Line; 2]> {
    let both = [meters::pid(node, "nrh-probe")?, meters::pid(node, "kubelet")?];
    let [probe, kubelet] = meters::system_calls(both, TRACE)?;
    let all = |counts: &BTreeMap<String, u64>| counts.values().sum::<u64>() as f64;
    let made = |counts: &BTreeMap<String, u64>| {
        ["execve", "execveat"].iter().filter_map(|name| counts.get(*name)).sum::<u64>() as f64
    };
    Ok([
        Line::new(format!("probe, {pods} pods, system calls"), all(&probe), "1/min", all(&kubelet)),
        Line::new(format!("probe, {pods} pods, programs executed"), made(&probe), "1/min", made(&kubelet)),
    ])
}

/// CPU while a pod writes thousands of lines a second; the baseline is the probe's own at rest.
fn under_logs(bed: &Bed, node: &Node, idle: f64) -> Result<Line> {
    pods::apply(bed, node, "logs", 1, &["chatter", LINES])?;
    bed.kubectl(&["rollout", "status", "deployment/logs", "--timeout=300s"])?;
    let watched = Watched::begin(bed, node)?;
    std::thread::sleep(WINDOW);
    let cpu = (meters::cpu(watched.pids[0])? - watched.cpu[0]) as f64 / watched.minutes();
    bed.kubectl(&["delete", "deployment/logs", "--timeout=120s"])?;
    Ok(Line::new(format!("probe, CPU while {LINES} lines a second are logged"), cpu, "ms/min", idle))
}

/// What containerd is asked with a probe, compared with what it is asked without.
fn against_nobody(bed: &Bed, node: &Node, asked: &[f64; 2]) -> Result<[Line; 2]> {
    let probe = meters::pid(node, "nrh-probe")?;
    bed.kubectl(&["label", "node", &node.name, "runtimehealth.io/probe=disabled"])?;
    let ends = process::wait_until(ENDS, || meters::memory(probe, "VmRSS").is_err());
    ensure!(ends, "the probe's pod is still there");
    std::thread::sleep(Duration::from_secs(30));
    let before = (meters::runtime_calls(bed, node)?, Instant::now());
    std::thread::sleep(WITHOUT);
    let (after, minutes) = (meters::runtime_calls(bed, node)?, before.1.elapsed().as_secs_f64() / 60.0);
    let without = |service: &str| meters::more(&before.0, &after, service) as f64 / minutes;
    Ok([
        Line::new("CRI calls with a probe", asked[0], "1/min", without("RuntimeService")),
        Line::new("calls for tasks with a probe", asked[1], "1/min", without("Tasks")),
    ])
}
