//! Wiring of the probe: the collectors check, the judge judges, the reporter writes, the executor executes commands.
//!
//! ```text
//! collectors ──► judge ──► newest draft ──► reporter ──► status of the own object
//!   ▲         └─► evidence of what is confirmed (a task of its own, and its threads)
//!   │                    └────────────────────────────────┐
//!   └── check asked for ◄── command ◄── listener ──► commands ──► executor (a task of its own)
//! ```
//! `/metrics` and `nrh status` on the node also show the newest draft.
//! Nothing here waits for the API server, and no collector waits for another.

mod command_queue;
mod executor;
mod judge;
mod listen;
mod marks;
mod moment;
mod requests;
mod status;
mod watchdog;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::FutureExt;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::agent::{AgentSettings, LastJudgement};
use crate::args::ProbeArgs;
use crate::collectors::{CollectorSettings, Collectors, Paces};
use crate::config;
use crate::cri::endpoint::Flags;
use crate::evidence::{Evidence, EvidenceSettings};
use crate::kmsg;
use crate::local;
use crate::proc;
use crate::report::client::{Connect, Credentials, DEADLINE, Feedback};
use crate::report::clock::Tell;
use crate::report::command::Command;
use crate::report::draft::Draft;
use crate::report::listener::{Listener, UNUSED};
use crate::report::{Delivery, Reporter};
use crate::state::{OneProbe, Saved, StateFile};
use nrh_api::ConditionType;
use nrh_api::condition::status_of;
use nrh_api::health::ProbeMode;
use nrh_core::observation::Observations;
use nrh_core::thresholds::Thresholds;

use command_queue::CommandQueue;
use executor::{SelfCheck, agent_settings, executor};
use judge::Evaluator;
use moment::Moment;
use requests::{Requests, checked_since};
use status::About;

const KUBELET_CONF: &str = "/etc/kubernetes/kubelet.conf";
/// Path of the pod's `ServiceAccount` token.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// Readings come in bursts. They are judged together, at most once in this interval at rest, and in the urgent interval
/// while a fault is suspected.
const SETTLE: Duration = Duration::from_secs(2);
const SETTLE_URGENT: Duration = Duration::from_millis(250);
/// Maximum interval between two judgements: ages grow even if nothing new is observed.
const TICK: Duration = Duration::from_secs(15);
const TICK_URGENT: Duration = Duration::from_secs(5);
/// Maximum time that the first report waits for a reading of every collector.
const FIRST_CHECKS: Duration = Duration::from_secs(10);
/// Runs the probe until it is asked to end.
///
/// Before its first check the probe takes the node's lock: a second probe on the same node waits and takes over when
/// the first one ends.
pub async fn run(args: ProbeArgs) -> anyhow::Result<()> {
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        .context("cannot listen for SIGTERM")?;
    tokio::select! {
        result = probe(args) => result,
        _ = terminated.recv() => {
            tracing::info!("asked to end");
            Ok(())
        }
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

async fn probe(args: ProbeArgs) -> anyhow::Result<()> {
    // The configuration is read before the lock is taken: an invalid file is reported even while another probe holds
    // the lock.
    let thresholds = args.config.as_deref().map(config::read).transpose()?.unwrap_or_default();
    tokio::spawn(watchdog::beat());
    let root = Path::new(proc::PROC);
    let boot_id = proc::boot_id(root).context("cannot read the boot id")?;
    let folder = || format!("cannot use the state folder {}", args.state_dir.display());
    let _lock = OneProbe::wait(&args.state_dir).await.with_context(folder)?;
    let file = StateFile::open(&args.state_dir, &boot_id).with_context(folder)?;
    let saved = file.load(proc::awake());
    let collectors = Arc::new(Collectors::start(CollectorSettings {
        sockets: named_sockets(&args),
        saved_endpoint: saved.endpoint.clone(),
        kubelet_version: saved.kubelet_version.clone(),
        token: token(&args),
        kernel_log: Some(kmsg::KMSG.into()),
        paces: Paces::of(&thresholds),
        ..CollectorSettings::default()
    }));

    let (drafts, newest) = watch::channel(None);
    let (feedback_sender, feedback) = watch::channel(Feedback::default());
    let (command_sender, command) = watch::channel(Command::default());
    let (delivery, delivered) = watch::channel(Delivery::default());
    let credentials = credentials(&args);
    let told_of = Arc::clone(&collectors);
    let tell: Tell = Arc::new(move |seen| told_of.clock_is(seen));
    let connect = |silence| -> Connect {
        let (credentials, tell) = (credentials.clone(), Arc::clone(&tell));
        Box::new(move || {
            let (credentials, tell) = (credentials.clone(), Arc::clone(&tell));
            async move { credentials.connect(&tell, silence).await }.boxed()
        })
    };
    let listener = Listener {
        connect: connect(UNUSED),
        name: args.node_name.clone(),
        command: command_sender,
        delivery: delivery.clone(),
    };
    tokio::spawn(listener.run());
    let reporter = Reporter {
        connect: connect(DEADLINE),
        name: args.node_name.clone(),
        drafts: newest.clone(),
        feedback: feedback_sender,
        delivery,
    };
    tokio::spawn(reporter.run());
    let (node, asked, drafted) = (args.node_name.clone(), Arc::clone(&collectors), newest.clone());
    let status = move || {
        let draft = drafted.borrow().clone();
        local::status(&node, draft.as_deref(), asked.call_counts(), &delivered.borrow(), Instant::now())
    };
    tokio::spawn(local::serve(args.state_dir.clone(), status));
    if let Some(address) = args.listen {
        tokio::spawn(listen::serve(address, Arc::clone(&collectors), newest));
    }
    let mode = if args.unit { ProbeMode::Unit } else { ProbeMode::Pod };
    tracing::info!(node = args.node_name, ?mode, allow_actions = args.allow_actions, "the probe runs");
    Probe::new(args, thresholds, mode, saved, file, collectors, (drafts, feedback, command)).run().await
}

/// Returns the path of the token of the probe's own account, if there is one. With a kubeconfig the probe has another
/// identity, which the kubelet would not know.
fn token(args: &ProbeArgs) -> Option<PathBuf> {
    matches!(credentials(args), Credentials::InCluster).then(|| PathBuf::from(TOKEN))
}

fn credentials(args: &ProbeArgs) -> Credentials {
    match (&args.kubeconfig, args.unit) {
        (Some(path), _) => Credentials::Kubeconfig(path.clone()),
        (None, true) => Credentials::Kubeconfig(PathBuf::from(KUBELET_CONF)),
        (None, false) => Credentials::InCluster,
    }
}

struct Probe {
    args: ProbeArgs,
    judge: Evaluator,
    collectors: Arc<Collectors>,
    evidence: Evidence,
    commands: CommandQueue,
    file: StateFile,
    about: About,
    drafts: watch::Sender<Option<Arc<Draft>>>,
    feedback: watch::Receiver<Feedback>,
    command: watch::Receiver<Command>,
    safety: watch::Sender<LastJudgement>,
    requests: Requests,
    urgent: bool,
    self_check: SelfCheck,
}

impl Probe {
    fn new(
        args: ProbeArgs,
        thresholds: Thresholds,
        mode: ProbeMode,
        saved: Saved,
        file: StateFile,
        collectors: Arc<Collectors>,
        (drafts, feedback, command): (
            watch::Sender<Option<Arc<Draft>>>,
            watch::Receiver<Feedback>,
            watch::Receiver<Command>,
        ),
    ) -> Self {
        let (safety, last_safety) = watch::channel(None);
        let agent = AgentSettings { restart_safety: Some(last_safety), ..agent_settings(&args, thresholds.clone()) };
        let evidence = Evidence::start(EvidenceSettings::new(&args.node_name, &saved.boot_id, &args.state_dir));
        tokio::spawn(marks::run(agent.clone(), command.clone()));
        let execute = executor(agent.clone(), Arc::clone(&collectors), evidence.gate(), command.clone());
        Self {
            args,
            evidence,
            about: About { mode, boot_id: saved.boot_id.clone(), ..About::default() },
            commands: CommandQueue::new(execute, saved.agent.clone()),
            judge: Evaluator::new(thresholds, saved),
            collectors,
            file,
            drafts,
            feedback,
            command,
            safety,
            requests: Requests::default(),
            urgent: false,
            self_check: SelfCheck::new(agent),
        }
    }

    async fn run(mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut last = Moment::now();
        loop {
            self.self_check.start_if_due(&self.collectors);
            let now = Moment::now();
            let Moment { awake, at, .. } = now;
            if let Some(slept) = now.slept_since(last) {
                tracing::info!(seconds = slept.as_secs(), "the node was suspended");
                self.collectors.was_suspended(slept);
                self.judge.tracker.was_suspended(slept);
            }
            last = now;
            let seen = self.collectors.observations(awake, at);
            if let Some(missing) = self.self_check.missing().now_or_never() {
                self.note_self_check(missing);
            }
            // The first report does not say that actions are disabled before that is known.
            let is_judged = began.elapsed() >= FIRST_CHECKS || checked_since(&seen, Duration::MAX);
            if is_judged && (self.self_check.has_ended() || began.elapsed() >= executor::BOUND) {
                self.judge(&seen, at);
            }
            let (judged, tick) = (Instant::now(), self.tick());
            self.wait(tick).await?;
            // Changes that follow closely are judged together.
            let settle = if self.urgent || self.requests.is_open() { SETTLE_URGENT } else { SETTLE };
            // After a stall the collectors run first.
            let waited = judged.elapsed();
            sleep(if waited > tick + settle { settle } else { settle.saturating_sub(waited) }).await;
        }
    }

    /// Returns after which time the probe judges again even if nothing has happened.
    fn tick(&self) -> Duration {
        match (self.requests.is_open(), self.urgent) {
            (true, _) => SETTLE_URGENT,
            (false, true) => TICK_URGENT,
            (false, false) => TICK,
        }
    }

    /// Waits for anything that changes the report.
    async fn wait(&mut self, tick: Duration) -> anyhow::Result<()> {
        tokio::select! {
            () = self.collectors.changed() => {}
            () = sleep(tick) => {}
            () = self.commands.ended() => {}
            () = self.evidence.ended() => {}
            missing = self.self_check.missing() => self.note_self_check(missing),
            changed = self.feedback.changed() => changed.context("the reporter has ended")?,
            changed = self.command.changed() => changed.context("the listener has ended")?,
        }
        let feedback = self.feedback.borrow_and_update().clone();
        if feedback.node_uid.is_some() {
            self.about.node_uid = feedback.node_uid;
        }
        if feedback.kubelet_version.is_some() {
            self.collectors.kubelet_is(feedback.kubelet_version);
        }
        let command = self.command.borrow_and_update().clone();
        if let Some(command) = &command.command {
            self.commands.start_if_idle(command);
        }
        self.receive(&command);
        Ok(())
    }

    fn note_self_check(&mut self, missing: Vec<String>) {
        self.about.actions_enabled = self.args.allow_actions && missing.is_empty();
        self.about.missing = missing;
    }

    fn receive(&mut self, command: &Command) {
        if self.requests.receive(command, Instant::now()) {
            self.collectors.refresh();
        }
    }

    fn judge(&mut self, seen: &Observations, at: Instant) {
        let (now, wall) = (Instant::now(), Timestamp::now());
        self.about.endpoint = self.collectors.endpoint().map(|endpoint| endpoint.socket.display().to_string());
        self.about.agent = self.commands.outcome().cloned();
        let mut judged = self.judge.judge(seen, &self.about, wall, now);
        self.requests.settle(seen, at, status_of(&judged.status.conditions, ConditionType::RestartSafe));
        if let Some(probe) = &mut judged.status.probe {
            probe.check_answered = self.requests.check_answered().cloned();
        }
        self.evidence.note(&mut judged.status, seen, &self.collectors.call_counts());
        self.safety.send_replace(Some((now, judged.safety)));
        self.urgent = judged.urgent;
        self.collectors.set_urgent(judged.urgent);
        self.collectors.suspects(judged.suspects);
        self.save();
        let mut draft = Draft::new(judged.status, now, self.judge.suspected, self.requests.answers);
        draft.confirmations.clone_from(&self.judge.confirmations);
        draft.bundles = self.evidence.counts();
        self.drafts.send_replace(Some(Arc::new(draft)));
        // A request that arrived while another one was in progress starts now.
        let command = self.command.borrow().clone();
        self.receive(&command);
    }

    fn save(&mut self) {
        let saved = Saved {
            boot_id: self.about.boot_id.clone(),
            tracker: self.judge.tracker.clone(),
            conditions: self.judge.conditions.clone(),
            agent: self.commands.outcome().cloned(),
            sockets: named_sockets(&self.args),
            endpoint: self.collectors.endpoint(),
            kubelet: self.judge.process,
            kubelet_version: self.collectors.kubelet_version(),
        };
        if let Err(error) = self.file.save(&saved) {
            tracing::warn!(%error, folder = %self.args.state_dir.display(), "cannot save the state");
        }
    }
}

fn named_sockets(args: &ProbeArgs) -> Flags {
    Flags { runtime: args.runtime_endpoint.clone(), docker: args.docker_endpoint.clone() }
}
