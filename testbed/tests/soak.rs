//! The probe as shipped, on a real node whose pods come and go and on which faults come and go: nothing of it may pile up.
//!
//! Six minutes by default, two of them until no trouble is begun any more; `make soak` takes an hour. Writes `target/bench/soak.json`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::Result;
use nrh_testbed::faults::{self, Injection};
use nrh_testbed::wait::until;
use nrh_testbed::{Bed, BedOptions, Node, operator, view, work, workspace};
use rustix::process::Signal;
use serde::Serialize;
use serde_json::{Value, json};

/// For how long troubles are begun, in minutes.
const MINUTES: &str = "NRH_SOAK_MINUTES";
const SHORT: u64 = 2;
/// Time between two checks of the probe.
const EVERY: Duration = Duration::from_secs(5);
/// How often pods come, and go.
const CHURN: Duration = Duration::from_secs(20);
/// For how long the probe may give no answer on a machine that is busy.
const HELD_UP: Duration = Duration::from_mins(1);
/// What memory may grow by although nothing leaks: an allocator never gives everything back.
const SLACK_MIB: f64 = 1.0;
/// Threads, descriptors and tasks that may be there for a moment.
const SLACK: u64 = 2;

/// What the probe has at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Sample {
    second: u64,
    resident_mib: f64,
    anonymous_mib: f64,
    threads: u64,
    descriptors: u64,
    tasks: u64,
    calls_out: u64,
}

/// One kind of trouble.
struct Trouble {
    /// What the probe calls it.
    fault: &'static str,
    /// For how long it is left: until it is this, or confirmed.
    until: &'static str,
    make: fn(&Bed, &Node) -> Result<Injection>,
    /// Whether no pod may come or go meanwhile.
    still: bool,
}

impl Trouble {
    /// One during which pods may come and go.
    const fn of(fault: &'static str, until: &'static str, make: fn(&Bed, &Node) -> Result<Injection>) -> Self {
        Self { fault, until, make, still: false }
    }
}

/// In turn. The first few fit into the short version. (A plugin that adds a pod would not be left alone for long enough:
/// its pod goes soon.)
const TROUBLES: [Trouble; 6] = [
    Trouble::of("HungContainer", "Confirmed", |bed, node| faults::freeze_shim(node, &worker(bed, node))),
    Trouble::of("NetworkNotReady", "Suspected", |_, node| faults::take_network(node)),
    Trouble::of("RuntimeUpdateBlocked", "Confirmed", |bed, node| faults::block_update(node, &worker(bed, node))),
    Trouble::of("DuplicateSandbox", "Suspected", |bed, node| faults::duplicate_sandbox(node, &worker(bed, node))),
    Trouble::of("NetworkPluginHung", "Confirmed", |_, node| faults::hang_cni_del(node)),
    // With each pod that goes the runtime has fewer files open.
    Trouble { still: true, ..Trouble::of("FdExhaustion", "Suspected", |_, node| faults::few_files(node)) },
];

/// Pod of the workload that stays.
fn worker(bed: &Bed, node: &Node) -> String {
    let find = || {
        let pods = view::pods(bed, Some(&node.name)).unwrap();
        pods.into_iter().find(|pod| pod.owner.as_deref() == Some("stays") && pod.ready)
    };
    until("the workload runs", || find().is_some());
    find().unwrap().uid
}

fn workload(bed: &Bed, kind: &str, name: &str) {
    let spec = json!({"tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 1,
        "containers": [work::container("main", &["work"])]});
    bed.apply(&work::workload(kind, name, &spec)).unwrap();
}

/// What the probe says on the node itself. It may be held up for seconds where the machine is: it asks for little of a
/// processor.
fn told(node: &Node, nrh: &Path) -> Value {
    let began = Instant::now();
    loop {
        match node.run(nrh.to_str().unwrap(), &["status", "-o", "json"]) {
            Ok(text) => return serde_json::from_str(&text).unwrap(),
            Err(error) => assert!(began.elapsed() < HELD_UP, "{error:#}"),
        }
        sleep(Duration::from_secs(1));
    }
}

/// Types and states of its faults.
fn faults_of(told: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let faults = told["status"]["faults"].as_array().into_iter().flatten();
    faults.map(|fault| (text(&fault["type"]), text(&fault["state"]))).collect()
}

fn calls_out(told: &Value) -> u64 {
    told["callsOut"].as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum()
}

fn sample(node: &Node, nrh: &Path, pid: i32, began: Instant) -> Sample {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .unwrap_or_else(|error| panic!("the probe has ended: {error}"));
    let number = |field: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    #[expect(clippy::cast_precision_loss, reason = "KiB of a small program")]
    let mib = |field: &str| number(field) as f64 / 1024.0;
    let told = told(node, nrh);
    Sample {
        second: began.elapsed().as_secs(),
        resident_mib: mib("VmRSS"),
        anonymous_mib: mib("RssAnon"),
        threads: number("Threads"),
        descriptors: fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count().try_into().unwrap(),
        tasks: told["tasks"].as_u64().unwrap(),
        calls_out: calls_out(&told),
    }
}

/// Injects, waits until it is named, lifts, and waits until it is gone.
fn trouble(bed: &Bed, node: &Node, nrh: &Path, trouble: &Trouble) {
    let now = || {
        let all = faults_of(&told(node, nrh));
        all.into_iter().find(|(kind, _)| kind == trouble.fault).map(|(_, state)| state)
    };
    let injection = (trouble.make)(bed, node).unwrap();
    let what = format!("{} is {}", trouble.fault, trouble.until);
    until(&what, || now().is_some_and(|state| state == trouble.until || state == "Confirmed"));
    injection.lift(node).unwrap();
    until(&format!("{} is gone", trouble.fault), || now().is_none());
}

/// A runtime that answers nobody for a while: every collector's call is out at once.
fn silent_runtime(node: &Node) {
    let containerd = node.daemon("containerd").unwrap();
    containerd.signal(Signal::STOP).unwrap();
    sleep(Duration::from_secs(25));
    containerd.signal(Signal::CONT).unwrap();
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// First and last quarter of the samples, in the middle of each.
fn quarters(samples: &[Sample], value: fn(&Sample) -> f64) -> (f64, f64) {
    let quarter = samples.len() / 4;
    let of = |part: &[Sample]| middle(part.iter().map(value).collect());
    (of(&samples[..quarter]), of(&samples[samples.len() - quarter..]))
}

#[test]
fn nothing_of_the_probe_piles_up() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP: a real node needs root on Linux");
        return;
    }
    let minutes = std::env::var(MINUTES).map_or(SHORT, |text| text.parse().expect("a number of minutes"));
    let programs = operator::shipped().unwrap();
    let bed = Bed::up(BedOptions { name: "soak".into(), nodes: 1, ..BedOptions::default() }).unwrap();
    operator::load_image(&bed, bed.nodes(), &programs).unwrap();
    operator::apply_folder(&bed, "config/default").unwrap();
    workload(&bed, "DaemonSet", "stays");
    workload(&bed, "Deployment", "churn");
    operator::wait(&bed).unwrap();
    let (node, nrh) = (&bed.nodes()[0], programs.nrh.as_path());
    until("nothing is told of a node that nobody has harmed", || faults_of(&told(node, nrh)).is_empty());
    let probe = || {
        let processes = view::processes(node.init_pid()).unwrap();
        let probe = processes.into_iter().find(|process| process.comm == "nrh-probe").expect("a probe");
        // Not its state, which changes from one moment to the next.
        (probe.host_pid, probe.started)
    };
    let (first, began) = (probe(), Instant::now());

    let (stop, still, end) = (AtomicBool::new(false), AtomicBool::new(false), began + Duration::from_mins(minutes));
    let mut made: BTreeMap<&str, u64> = BTreeMap::new();
    let mut samples = thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut samples = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                samples.push(sample(node, nrh, first.0, began));
                sleep(EVERY);
            }
            samples
        });
        scope.spawn(|| churn(&bed, &stop, &still));
        // However it ends, the others end too.
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for one in TROUBLES.iter().cycle() {
                silent_runtime(node);
                *made.entry("a silent runtime").or_default() += 1;
                still.store(one.still, Ordering::Relaxed);
                if one.still {
                    sleep(2 * CHURN);
                }
                trouble(&bed, node, nrh, one);
                still.store(false, Ordering::Relaxed);
                *made.entry(one.fault).or_default() += 1;
                if Instant::now() > end {
                    break;
                }
            }
        }));
        stop.store(true, Ordering::Relaxed);
        let samples = watch.join().unwrap();
        // Told also of a run that fails: it has taken its time.
        if samples.len() >= 4 {
            write(minutes, &made, &samples);
        }
        played.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        samples
    });
    bed.kubectl(&["delete", "deployment/churn", "--timeout=480s"]).unwrap();
    until("nothing is told any more", || faults_of(&told(node, nrh)).is_empty());
    until("no call is out", || calls_out(&told(node, nrh)) == 0);
    // What has served its purpose ends by itself some seconds later.
    sleep(Duration::from_secs(30));
    let quiet: Vec<Sample> = (0..6)
        .map(|_| {
            sleep(EVERY);
            sample(node, nrh, first.0, began)
        })
        .collect();
    samples.extend(&quiet);
    write(minutes, &made, &samples);

    assert_eq!(probe(), first, "the probe was restarted");
    assert_flat(&samples, &quiet);
    bed.down().unwrap();
}

/// Pods come and go until `stop`, but not while `still`.
fn churn(bed: &Bed, stop: &AtomicBool, still: &AtomicBool) {
    for replicas in ["12", "0"].into_iter().cycle() {
        while still.load(Ordering::Relaxed) && !stop.load(Ordering::Relaxed) {
            sleep(Duration::from_secs(1));
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
        // It fails while the API server is busy: the next one comes.
        let _ = bed.kubectl(&["scale", "deployment/churn", "--replicas", replicas]);
        sleep(CHURN);
    }
}

/// Nothing that is counted has grown from the first samples to the quiet ones at the end.
fn assert_flat(samples: &[Sample], quiet: &[Sample]) {
    let least = |of: &[Sample], value: fn(&Sample) -> u64| of.iter().map(value).min().unwrap();
    for (what, value) in [
        ("threads", (|one: &Sample| one.threads) as fn(&Sample) -> u64),
        ("file descriptors", |one| one.descriptors),
        ("tasks", |one| one.tasks),
    ] {
        let (before, after) = (least(&samples[..12], value), least(quiet, value));
        assert!(after <= before + SLACK, "{before} {what} at the beginning, {after} at the end");
    }
    let (before, after) = quarters(samples, |one| one.anonymous_mib);
    assert!(
        after <= before * 1.25 + SLACK_MIB,
        "{before:.1} MiB anonymous in the first quarter, {after:.1} in the last"
    );
}

fn write(minutes: u64, made: &BTreeMap<&str, u64>, samples: &[Sample]) {
    let of = |value: fn(&Sample) -> f64| {
        let (first, last) = quarters(samples, value);
        let most = samples.iter().map(value).fold(0.0, f64::max);
        json!({"firstQuarter": first, "lastQuarter": last, "most": most})
    };
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    let document = json!({
        "minutes": minutes, "seconds": samples.last().map(|one| one.second), "looks": samples.len(), "faults": made,
        "residentMiB": of(|one| one.resident_mib), "anonymousMiB": of(|one| one.anonymous_mib),
        "threads": of(|one| one.threads as f64), "descriptors": of(|one| one.descriptors as f64),
        "tasks": of(|one| one.tasks as f64), "callsOut": of(|one| one.calls_out as f64),
    });
    println!("{document:#}");
    let folder = workspace().join("target/bench");
    fs::create_dir_all(&folder).unwrap();
    let whole = json!({"summary": document, "samples": samples});
    fs::write(folder.join("soak.json"), serde_json::to_string_pretty(&whole).unwrap()).unwrap();
}
