//! A node that is short of processors, memory or disk, while everything on it is rolled out again and again: all is slow, nothing hangs.
//! Nothing may be confirmed, and nothing may be done, although every shipped policy acts.
//!
//! Three minutes on processors by default; `make noise NOISE=30 PRESSURE=cpu|memory|disk` takes longer.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nrh_testbed::wait::until;
use nrh_testbed::{Bed, BedOptions, operator, work};
use serde_json::json;

/// For how long the node is starved, in minutes, and of what.
const MINUTES: &str = "NRH_NOISE_MINUTES";
const PRESSURE: &str = "NRH_NOISE_PRESSURE";
const SHORT: u64 = 3;
/// Time between two reads of the report, and between two roll-outs of everything.
const EVERY: Duration = Duration::from_secs(2);
const ROLL_OUT: Duration = Duration::from_secs(20);
/// What is rolled out.
const SETS: [&str; 4] = ["deployment/many", "daemonset/first", "daemonset/second", "daemonset/third"];

/// Processes that starve the machine, ended with this.
struct Starved(Vec<Child>);

impl Starved {
    /// By a script of the shell each, which does not outlive this process.
    fn by(script: &str, count: usize) -> Self {
        let start = |_| Command::new("setpriv").args(["--pdeathsig", "TERM", "sh", "-c", script]).spawn().unwrap();
        Self((0..count).map(start).collect())
    }

    fn of(what: &str) -> Self {
        let processors = std::thread::available_parallelism().unwrap().get();
        let folder = std::env::temp_dir();
        let folder = folder.display();
        match what {
            "cpu" => Self::by("while :; do :; done", 20 * processors),
            // In a group of its own with less memory than its file has: every read of it waits for the disk.
            "memory" => Self::by(
                &format!(
                    "group=/sys/fs/cgroup/memory/nrh-noise-$$; mkdir $group; trap 'echo $$ >/sys/fs/cgroup/memory/tasks; \
                     rmdir $group; rm -f {folder}/nrh-noise-$$; exit' TERM; echo 64M >$group/memory.limit_in_bytes; \
                     echo $$ >$group/tasks; dd if=/dev/zero of={folder}/nrh-noise-$$ bs=1M count=256 status=none; \
                     while :; do cat {folder}/nrh-noise-$$ >/dev/null; done"
                ),
                4 * processors,
            ),
            "disk" => Self::by(
                &format!(
                    "trap 'rm -f {folder}/nrh-noise-$$; exit' TERM; \
                     while :; do dd if=/dev/zero of={folder}/nrh-noise-$$ bs=64k count=4096 oflag=dsync status=none; done"
                ),
                4 * processors,
            ),
            other => panic!("{PRESSURE}={other}: expected cpu, memory or disk"),
        }
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        for child in &self.0 {
            // A script that is asked to end tidies up behind itself.
            let _ =
                rustix::process::kill_process(rustix::process::Pid::from_child(child), rustix::process::Signal::TERM);
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

fn workload(bed: &Bed, target: &str) {
    let (kind, name) = target.split_once('/').unwrap();
    let kind = if kind == "deployment" { "Deployment" } else { "DaemonSet" };
    let spec = json!({"tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 5,
        "containers": [work::container("main", &["work"])]});
    let mut object = work::workload(kind, name, &spec);
    object["metadata"]["namespace"] = json!("kube-system");
    if kind == "Deployment" {
        object["spec"]["replicas"] = json!(12);
    }
    bed.apply(&object).unwrap();
}

/// What was said in all reports.
#[derive(Debug, Default)]
struct Said {
    reports: u64,
    /// Suspected only, and how often.
    suspected: BTreeMap<String, u64>,
    confirmed: BTreeSet<String>,
    remediations: BTreeSet<String>,
    /// Reasons of the condition `HostHealthy`, and how often.
    host: BTreeMap<String, u64>,
    restart_safe: BTreeMap<String, u64>,
}

impl Said {
    fn hear(&mut self, bed: &Bed, node: &str) {
        // The server may be too busy for an answer.
        let Ok(report) = bed.get(&["noderuntimehealth", node]) else { return };
        self.reports += 1;
        let status = &report["status"];
        for fault in operator::faults(&report) {
            let text = format!("{} ({}): {}", fault["type"], fault["subject"], fault["message"]);
            if fault["state"] == "Suspected" {
                *self.suspected.entry(fault["type"].to_string()).or_default() += 1;
            } else {
                self.confirmed.insert(text);
            }
        }
        for condition in status["conditions"].as_array().into_iter().flatten() {
            let said = match condition["type"].as_str() {
                Some("HostHealthy") => &mut self.host,
                Some("RestartSafe") => &mut self.restart_safe,
                _ => continue,
            };
            *said.entry(format!("{} {}", condition["status"], condition["reason"])).or_default() += 1;
        }
        let made = bed.get(&["noderemediations"]).unwrap_or_default();
        for one in made["items"].as_array().into_iter().flatten() {
            self.remediations.insert(format!("{}: {}", one["metadata"]["name"], one["status"]["message"]));
        }
    }
}

#[test]
fn a_node_that_is_short_of_something_is_not_taken_for_a_hung_one() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP: a real node needs root on Linux");
        return;
    }
    let minutes = std::env::var(MINUTES).map_or(SHORT, |text| text.parse().expect("a number of minutes"));
    let of = std::env::var(PRESSURE).unwrap_or_else(|_| "cpu".to_owned());
    let programs = operator::shipped().unwrap();
    let bed = Bed::up(BedOptions { name: format!("noise-{of}"), nodes: 1, ..BedOptions::default() }).unwrap();
    operator::load_image(&bed, bed.nodes(), &programs).unwrap();
    for folder in ["config/default", "config/policies"] {
        operator::apply_folder(&bed, folder).unwrap();
    }
    for target in SETS {
        workload(&bed, target);
    }
    operator::wait(&bed).unwrap();
    let node = bed.nodes()[0].name.clone();
    let is_well = || {
        let report = bed.get(&["noderuntimehealth", &node]).unwrap_or_default();
        let restart_safe = report["status"]["conditions"].as_array().into_iter().flatten();
        let is_safe = restart_safe.into_iter().any(|one| one["type"] == "RestartSafe" && one["status"] == "True");
        let is_empty = |list: &str| report["status"][list].as_array().is_none_or(Vec::is_empty);
        is_safe && is_empty("faults") && is_empty("clusterFaults")
    };
    until("nothing is said of a node that nobody has harmed", is_well);

    let (mut said, starved, began) = (Said::default(), Starved::of(&of), Instant::now());
    let (mut rolled, mut rounds, mut load) = (None::<Instant>, 0, 0.0_f64);
    while began.elapsed() < Duration::from_mins(minutes) {
        if rolled.is_none_or(|at| at.elapsed() > ROLL_OUT) {
            // It fails while the API server is busy: the next one comes.
            let _ = bed.kubectl(&[&["--namespace", "kube-system", "rollout", "restart"], SETS.as_slice()].concat());
            rolled = Some(Instant::now());
            rounds += 1;
        }
        said.hear(&bed, &node);
        let now = fs::read_to_string("/proc/loadavg").unwrap();
        load = load.max(now.split(' ').next().unwrap().parse().unwrap());
        sleep(EVERY);
    }
    drop(starved);
    println!("{of}, {minutes} min, {rounds} roll-outs of everything, load up to {load}: {said:#?}");
    assert!(said.confirmed.is_empty() && said.remediations.is_empty(), "said of a node on which nothing hangs");
    assert!(said.reports > 0 && rounds > 1, "nothing was seen");
    assert!(said.host.keys().any(|reason| reason.contains("ResourcePressure")), "the shortage was not named");
    until("nothing is said any more", is_well);
    bed.down().unwrap();
}
