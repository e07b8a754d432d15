//! How long it takes until a hung shim is named, by runtime, kind of hang and number of pods on the node; and how long a fresh answer of
//! `nrh restart-safe` takes there.
//!
//! Each hang begins at a random moment and is lifted once it is confirmed; several stand at a time. The baseline is the least
//! time that the confirmation itself takes. Writes `target/bench/detect.json`. Needs root on Linux; `NRH_BENCH_PODS=100,250`,
//! `NRH_BENCH_RUNTIMES=containerd,docker`, `NRH_BENCH_HANGS=stopped,state S` (by default all).

mod pods;
mod record;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use nrh::core::diagnose::diagnose;
use nrh::core::fault::{FaultState, FaultType};
use nrh::core::thresholds::Thresholds;
use nrh::core::tracker::Tracker;
use nrh::node::collect::HostPaths;
use nrh::node::collectors::{CollectorSettings, Collectors};
use nrh::node::cri::endpoint::Flags;
use nrh_testbed::docker::{Docker, Kind, SOCKET};
use nrh_testbed::faults::{self, Injection};
use nrh_testbed::process::Identity;
use nrh_testbed::wait::SOON;
use nrh_testbed::{Bed, BedOptions, Node, operator, packages};
use record::Line;
use rustix::process::Signal;
use serde_json::Value;

/// Hangs of each kind and number of pods.
const HANGS: usize = 12;
/// Hangs that stand at a time.
const AT_ONCE: usize = 4;
/// Hangs in state S that stand at a time. containerd's list of tasks waits 2 s for each of them, so several delay one another.
const ALONE: usize = 1;
/// Longest distance between the beginnings of two.
const APART: Duration = Duration::from_secs(20);
/// How often `nrh restart-safe` is asked.
const QUESTIONS: usize = 5;
/// Starting many pods is work for everybody, and puts the node under pressure for a minute.
const SETTLE: Duration = Duration::from_mins(2);

/// Takes a hang away.
type Lift = Box<dyn FnOnce() -> Result<()>>;

/// One hang under way.
struct Hang {
    victim: String,
    began: Instant,
    lift: Lift,
    suspected: Option<Duration>,
}

fn main() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP detect: a real node needs root on Linux");
        return Ok(());
    }
    packages::ensure(packages::BENCH)?;
    let list = |name: &str, usual: &str| {
        let text = std::env::var(name).unwrap_or_else(|_| usual.to_owned());
        text.split(',').map(str::to_owned).collect::<Vec<_>>()
    };
    let mut lines = Vec::new();
    for runtime in list("NRH_BENCH_RUNTIMES", "containerd,docker") {
        for pods in list("NRH_BENCH_PODS", "100,250") {
            let pods = pods.parse().context("NRH_BENCH_PODS: numbers with commas between them")?;
            match runtime.as_str() {
                "containerd" => containerd(pods, &mut lines)?,
                "docker" => docker(pods, &mut lines)?,
                other => bail!("NRH_BENCH_RUNTIMES: {other}: expected containerd or docker"),
            }
        }
    }
    Ok(())
}

/// The probe as shipped, on a real node.
fn containerd(pods: usize, lines: &mut Vec<Line>) -> Result<()> {
    let programs = operator::shipped()?;
    let bed = Bed::up(BedOptions { name: "bench-detect".into(), nodes: 1, ..BedOptions::default() })?;
    operator::install(&bed, &programs)?;
    let node = bed.nodes().first().context("a node")?;
    pods::fill(&bed, node, pods)?;
    std::thread::sleep(SETTLE);
    let mut times = Vec::new();
    let restart_safe = || bed.command(&programs.nrh).args(["restart-safe", &node.name]).output();
    for _ in 0..QUESTIONS {
        let began = Instant::now();
        let asked = restart_safe()?;
        ensure!(asked.status.success(), "on a node that is well: {asked:?}");
        times.push(began.elapsed());
    }
    lines.extend(shares(&format!("containerd, {pods} pods, restart-safe"), times, Duration::from_secs(10)));

    let list = bed.get(&["pods", "-l", "app=fill"])?;
    let items = list["items"].as_array().context("pods")?;
    let mut victims = items.iter().filter_map(|pod| pod["metadata"]["uid"].as_str()).map(str::to_owned);
    let read = || {
        let report = bed.get(&["noderuntimehealth", &node.name])?;
        let faults = report["status"]["faults"].as_array().cloned().unwrap_or_default();
        let hung = faults.iter().filter(|fault| fault["type"] == "HungContainer");
        let of =
            |fault: &Value| Some((fault["subject"]["pod"]["uid"].as_str()?.to_owned(), fault["state"] == "Confirmed"));
        Ok(hung.filter_map(of).collect())
    };
    let injected = |inject: fn(&Node, &str) -> Result<Injection>, uid: &str| {
        let (injection, node) = (inject(node, uid)?, node.clone());
        Ok(Box::new(move || injection.lift(&node)) as Lift)
    };
    let mut measure = |kind: &str, at_once: usize, hang: &dyn Fn(&str) -> Result<Lift>| -> Result<()> {
        lines.extend(measured(&format!("containerd, {pods} pods, {kind}"), at_once, &mut victims, hang, read)?);
        Ok(())
    };
    measure("stopped", AT_ONCE, &|uid| injected(faults::freeze_shim, uid))?;
    if faults::has_freezer() {
        measure("frozen, state D", AT_ONCE, &|uid| injected(faults::waiting_shim, uid))?;
    }
    if faults::has_unified() {
        measure("frozen, state S", ALONE, &|uid| injected(faults::sleeping_shim, uid))?;
    }
    let trace = |uid: &str| {
        let stopped = faults::freeze_shim(node, uid)?;
        stopped.lift(node)?;
        traced(stopped.victim.process.context("the pod has no shim")?)
    };
    measure("traced", AT_ONCE, &trace)?;

    let hung = faults::freeze_shim(node, &victims.next().context("one more pod")?)?;
    let mut answer = restart_safe()?;
    let began = Instant::now();
    while answer.status.code() != Some(1) && began.elapsed() < SOON {
        ensure!(!answer.status.success(), "safe above a hung shim: {answer:?}");
        answer = restart_safe()?;
    }
    ensure!(answer.status.code() == Some(1), "above a hung shim: {answer:?}");
    hung.lift(node)?;
    record::write("detect", lines)?;
    bed.down()
}

/// The probe's collectors and its diagnosis, beside a real engine with as many pods.
fn docker(pods: usize, lines: &mut Vec<Line>) -> Result<()> {
    let docker = Docker::up()?;
    let mut containers = Vec::new();
    for pod in 0..pods {
        let pod = format!("web-{pod}");
        let sandbox = docker.run(Kind::Sandbox, "POD", &pod)?;
        containers.push(docker.run(Kind::Work(&sandbox), "app", &pod)?);
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let _inside = runtime.enter();
    let host = HostPaths { root: docker.root_path("/"), proc: docker.root_path("/proc"), ..HostPaths::default() };
    let sockets = Flags { runtime: None, docker: Some(docker.root_path(SOCKET)) };
    let collectors = Collectors::start(CollectorSettings { sockets, host, ..CollectorSettings::default() });
    let (mut tracker, began, thresholds) = (Tracker::default(), Instant::now(), Thresholds::default());
    let mut read = || {
        let seen = collectors.observations(Duration::from_secs(1000) + began.elapsed(), Instant::now().into());
        let findings = diagnose(&seen, tracker.known(), &thresholds);
        let faults = tracker.step(seen.now, Timestamp::UNIX_EPOCH, &findings, &thresholds).faults;
        let hung: Vec<_> = faults.into_iter().filter(|fault| fault.kind == FaultType::HungContainer).collect();
        let mut ask = findings.ask;
        ask.extend(hung.iter().filter_map(|fault| fault.target.container_id.clone()));
        collectors.suspects(ask);
        collectors.set_urgent(!hung.is_empty());
        let of =
            |fault: nrh::core::fault::Fault| Some((fault.target.container_id?, fault.state == FaultState::Confirmed));
        Ok(hung.into_iter().filter_map(of).collect())
    };
    let settled = Instant::now();
    while settled.elapsed() < SETTLE {
        let _: BTreeMap<String, bool> = read()?;
        std::thread::sleep(Duration::from_millis(500));
    }
    let mut victims = containers.into_iter();
    let stop = |id: &str| {
        let (shim, _) = docker.shim(id)?;
        ensure!(shim.signal(Signal::STOP)?, "the shim of {id} has ended");
        Ok(Box::new(move || shim.signal(Signal::CONT).map(drop)) as Lift)
    };
    let name = |kind: &str| format!("docker, {pods} pods, {kind}");
    lines.extend(measured(&name("stopped"), AT_ONCE, &mut victims, stop, &mut read)?);
    lines.extend(measured(&name("traced"), AT_ONCE, &mut victims, |id| traced(docker.shim(id)?.0), &mut read)?);
    Ok(record::write("detect", lines)?)
}

/// Has each thread of a process stand at its next system call, as a debugger does.
fn traced(process: Identity) -> Result<Lift> {
    let mut strace = Command::new("strace");
    strace.args(["--follow-forks", "--trace=all", "--inject=all:delay_enter=3600s", "--output=/dev/null"]);
    strace.args(["--attach", &process.pid.to_string()]).stdin(Stdio::null()).stderr(Stdio::null());
    let mut tracer = strace.spawn().context("start strace")?;
    Ok(Box::new(move || {
        tracer.kill()?;
        tracer.wait()?;
        Ok(())
    }))
}

/// Makes hangs one after another, at most `at_once` at a time. `read` says of which victims the probe says that they hang, and whether
/// that is confirmed.
fn measured(
    name: &str,
    at_once: usize,
    victims: &mut impl Iterator<Item = String>,
    hang: impl Fn(&str) -> Result<Lift>,
    mut read: impl FnMut() -> Result<BTreeMap<String, bool>>,
) -> Result<Vec<Line>> {
    if std::env::var("NRH_BENCH_HANGS").is_ok_and(|hangs| !hangs.split(',').any(|hang| name.ends_with(hang))) {
        return Ok(Vec::new());
    }
    let (mut standing, mut suspected, mut confirmed) = (Vec::<Hang>::new(), Vec::new(), Vec::new());
    let mut count = 0;
    let mut next = Instant::now();
    while confirmed.len() < HANGS {
        if count < HANGS && standing.len() < at_once && Instant::now() >= next {
            let victim = victims.next().context("a pod for each hang")?;
            let began = Instant::now();
            let lift = hang(&victim)?;
            standing.push(Hang { victim, began, lift, suspected: None });
            count += 1;
            next = Instant::now() + APART.mul_f64(f64::from(fastrand(count)) / 1000.0);
        }
        let said = read()?;
        let mut still = Vec::new();
        for mut hang in standing {
            let elapsed = hang.began.elapsed();
            ensure!(elapsed < SOON, "{name}: {} is not confirmed within {SOON:?}: {said:?}", hang.victim);
            let state = said.get(&hang.victim);
            if state.is_some() {
                hang.suspected = hang.suspected.or(Some(elapsed));
            }
            if state == Some(&true) {
                suspected.push(hang.suspected.unwrap_or(elapsed));
                confirmed.push(elapsed);
                (hang.lift)()?;
                // What the probe does after a confirmation would be the same for each that follows at once.
                next = next.max(Instant::now() + APART.mul_f64(f64::from(fastrand(confirmed.len())) / 1000.0));
            } else {
                still.push(hang);
            }
        }
        standing = still;
        std::thread::sleep(Duration::from_millis(500));
    }
    let least = nrh::core::faults::hung_container::CONFIRM.shipped.grace_period;
    let mut lines = shares(&format!("{name}, suspected"), suspected, least);
    lines.extend(shares(&format!("{name}, confirmed"), confirmed, least));
    Ok(lines)
}

/// The median, the 95th percentile and the greatest.
fn shares(name: &str, mut times: Vec<Duration>, baseline: Duration) -> Vec<Line> {
    times.sort();
    let at = |share: usize| times.get((times.len() * share).div_ceil(100).saturating_sub(1)).copied();
    let line = |share: usize| {
        let time = at(share).unwrap_or_default();
        Line::new(format!("{name}, p{share}"), time.as_secs_f64(), "s", baseline.as_secs_f64())
    };
    [50, 95, 100].map(line).into()
}

/// A number in 0..1000, another one for each step.
fn fastrand(step: usize) -> u32 {
    let step = u32::try_from(step).unwrap_or_default();
    step.wrapping_mul(2_654_435_761).rotate_left(13) % 1000
}
