//! The order of events.
//!
//! Crash loops need minutes to reach their longest back-off and must not lose it to a restart of the kubelet, so they begin
//! once the last act that stops the kubelet is over, and go on beside the others.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Options;
use super::act::{Act, control, enforced};
use super::acts::{BackOff, HungContainer, LeakedShim, NetworkPlugin, Orphan};
use super::judge::{ActRecord, judge};
use super::report::{Report, StageKind};
use super::stage::Stage;
use super::tell::Teller;
use crate::matrix::{self, Seen, Way};
use crate::wait::until_asked_to_end;
use crate::{Bed, BedOptions, operator, unprivileged};

/// Runs the demo; returns whether everything held.
pub fn run(options: &Options) -> Result<bool> {
    let tell = Teller::new();
    tell.head(if options.fake {
        "Node Runtime Health: incidents on a node of stand-ins"
    } else {
        "Node Runtime Health: incidents on a real node"
    });
    if options.fake {
        introduce(tell);
        refuse_real(options)?;
    }
    let programs = operator::built()?;
    let what = match options.machines {
        _ if options.fake => "two nodes of stand-ins".to_owned(),
        Some(platform) => format!("two machines with {}", platform.name),
        None => "two real nodes".to_owned(),
    };
    tell.say(&format!("starting a control plane, {what} and simulated ones"));
    let (nodes, machines) = if options.machines.is_some() { (0, 2) } else { (2, 0) };
    let bed = Bed::up(BedOptions {
        name: "demo".into(),
        keep: options.keep,
        stand_ins: options.fake,
        nodes,
        machines,
        platform: options.machines.unwrap_or_default(),
        ..BedOptions::default()
    })?;
    if !options.keep {
        tidy_up_when_told(bed.name());
    }
    let (bed, ok) = play(bed, programs, options)?;
    if options.keep {
        tell.say(&format!(
            "the cluster stays up: {} --name {} kubectl get nrh; make demo-down ends it",
            std::env::current_exe()?.display(),
            bed.name()
        ));
    } else {
        bed.down()?;
    }
    Ok(ok)
}

/// Installs the operator on a bed of two nodes and plays the acts; gives the bed back, and whether everything held.
pub fn play(bed: Bed, programs: operator::Programs, options: &Options) -> Result<(Bed, bool)> {
    bed.add_kwok_nodes(options.kwok)?;
    let tell = Teller::new();
    let stage = Stage::set(bed, tell, programs, options.no_controls).context("install the operator")?;
    let mut plot = Plot { stage: &stage, options, records: Vec::new() };
    let told = plot.tell_all();
    if let Err(error) = &told {
        tell.say(&format!("the demo cannot go on: {error:#}"));
        stage.show_details();
    }
    let mut report = judge(&plot.records, stage.thresholds.clone(), !options.no_controls);
    if options.fake {
        report.stage = StageKind::FakeRuntime;
    }
    if let Err(error) = told {
        report.ok = false;
        report.objections.push(format!("{error:#}"));
    }
    close(&stage, &report, options)?;
    if !report.ok {
        let logs = stage.bed.save_logs()?;
        tell.say(&format!("logs: {}", logs.display()));
    }
    Ok((stage.bed, report.ok))
}

/// The kernel ends all processes with this one; a person's Ctrl-C also takes the files.
fn tidy_up_when_told(name: &str) {
    let name = name.to_owned();
    std::thread::spawn(move || {
        if until_asked_to_end().is_ok() {
            if let Err(error) = Bed::attach(&name).and_then(Bed::down) {
                eprintln!("testbed: {error:#}");
            }
            std::process::exit(130);
        }
    });
}

/// Acts that stand-ins cannot play: they call no network plugin, and their kubelet has no back-off.
const REAL_ONLY: [&str; 2] = ["hung-network-plugin", "back-off-pod"];

fn introduce(tell: Teller) {
    if !unprivileged::is_root() {
        tell.say("not root of this machine, and a real node needs that: control groups, devices, a container runtime");
        tell.say(
            "so this program runs as root of a user namespace of its own, and stand-ins play what cannot run in it",
        );
    }
    tell.say("real: etcd, API server, controllers, scheduler; the operator with its manifests, rights and admission;");
    tell.say("      every process, signal and removal, and the judge, who asks kernel, runtime and API server as ever");
    tell.say("stand-ins: containerd (CRI and Tasks/Get), its shims, the kubelet. No isolation, no images, no network");
    tell.say(&format!("not shown, since they need a real node: {}", REAL_ONLY.join(", ")));
}

fn refuse_real(options: &Options) -> Result<()> {
    match options.only.iter().find(|only| REAL_ONLY.contains(&only.as_str())) {
        Some(act) => bail!("act {act} needs a real node, and that needs root"),
        None => Ok(()),
    }
}

struct Plot<'a> {
    stage: &'a Stage,
    options: &'a Options,
    records: Vec<ActRecord>,
}

impl Plot<'_> {
    fn tell_all(&mut self) -> Result<()> {
        let stage = self.stage;
        stage.tell.head("the shipped policy is a dry run: what would be done is shown, nothing is touched");
        self.control(&mut HungContainer)?;
        self.control(&mut LeakedShim)?;
        self.control(&mut Orphan::default())?;
        stage.tell.head("the enforcing policies");
        stage.apply_policy("hung-container.yaml")?;
        if self.options.only != [HungContainer.name()] {
            stage.apply_policy("orphans.yaml")?;
        }
        self.enforced(&mut Orphan::default())?;
        // No act of the story: a test asks for it by name.
        if self.options.only.iter().any(|only| only == Orphan::probe_runs().name()) {
            self.enforced(&mut Orphan::probe_runs())?;
        }
        if self.wanted("back-off-pod") {
            BackOff::begin(stage, !self.options.no_controls)?;
        }
        self.enforced(&mut HungContainer)?;
        self.enforced(&mut LeakedShim)?;
        self.control(&mut BackOff::control())?;
        self.control(&mut NetworkPlugin::default())?;
        self.enforced(&mut BackOff::enforced("stuck-daemonset.yaml"))?;
        if !self.wanted("back-off-pod") {
            stage.apply_policy("stuck-daemonset.yaml")?;
        }
        self.enforced(&mut NetworkPlugin::enforced())
    }

    fn wanted(&self, name: &str) -> bool {
        if self.options.fake && REAL_ONLY.contains(&name) {
            return false;
        }
        self.options.only.is_empty() || self.options.only.iter().any(|only| only == name)
    }

    fn record(&mut self, act: &dyn Act) -> &mut ActRecord {
        let known = self.records.iter().position(|record| record.act == act.name());
        let at = known.unwrap_or_else(|| {
            let seconds = self.stage.thresholds.get(act.fault()).copied().unwrap_or_default();
            #[expect(clippy::cast_precision_loss, reason = "a threshold is far below 2^52 seconds")]
            let threshold = seconds as f64;
            self.records.push(ActRecord { act: act.name().into(), threshold, ..ActRecord::default() });
            self.records.len() - 1
        });
        &mut self.records[at]
    }

    fn control(&mut self, act: &mut dyn Act) -> Result<()> {
        if self.options.no_controls || !self.wanted(act.name()) {
            return Ok(());
        }
        let stage = self.stage;
        stage.tell.head(&format!("control: {}", act.name()));
        let record = self.record(act);
        control(act, stage, record).with_context(|| format!("control of {}", act.name()))
    }

    fn enforced(&mut self, act: &mut dyn Act) -> Result<()> {
        if !self.wanted(act.name()) {
            return Ok(());
        }
        let (stage, is_real) = (self.stage, !self.options.fake);
        stage.tell.head(&format!("act: {}", act.name()));
        let record = self.record(act);
        let done = enforced(act, stage, record).with_context(|| format!("act {}", act.name()));
        if is_real && let Some(run) = &record.run {
            let whole = |seconds: Option<f64>| {
                seconds.and_then(|seconds| matrix::seconds(Duration::try_from_secs_f64(seconds).ok()?))
            };
            Seen { confirmed: whole(run.detected), ..Seen::of(act.fault(), "containerd", Way::Real) }.record();
        }
        done
    }
}

fn close(stage: &Stage, report: &Report, options: &Options) -> Result<()> {
    let tell = stage.tell;
    tell.head("what was done, step by step");
    stage.print("kubectl get nrem -o wide", &["get", "nrem", "-o", "wide"]);
    tell.head("timeline, in seconds from the injection");
    let cell = |value: Option<f64>| value.map_or_else(|| "never".to_owned(), |seconds| format!("{seconds:.1}"));
    tell.show(&format!(
        "{:<22} {:>9} {:>9} {:>9}  {:<22} ok",
        "incident", "detected", "executed", "resolved", "control"
    ));
    for act in &report.acts {
        let control = if act.control.ok {
            format!("faulty for {:.0} s", act.control.watched_seconds)
        } else {
            "none or not ok".to_owned()
        };
        tell.show(&format!(
            "{:<22} {:>9} {:>9} {:>9}  {control:<22} {}",
            act.act,
            cell(act.seconds.detected),
            cell(act.seconds.executed),
            cell(act.seconds.healed),
            act.ok
        ));
    }
    tell.show(&format!("untouched: {:?}", report.untouched));
    tell.show(&format!("thresholds (s): {:?}", report.thresholds));
    for objection in &report.objections {
        tell.show(&format!("NOT OK  {objection}"));
    }
    if let Some(folder) = options.report.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(&options.report, serde_json::to_string_pretty(report)?)
        .with_context(|| options.report.display().to_string())?;
    tell.say(&format!("report: {}; all well: {}", options.report.display(), report.ok));
    Ok(())
}
