//! Wiring of the controller: which parts run side by side, and how they end.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::access::Access;
use super::apply::{Applier, Kills, RecentAnswers};
use super::cache::{Cache, suspects, watches};
use super::calls::{Calls, DEADLINE};
use super::clock::Clock;
use super::decide::Planner;
use super::handles::Handles;
use super::http::{self, Served};
use super::leader::{Election, Lost};
use super::metrics::Metrics;
use super::node_conditions::Mirror;
use super::status::StatusViews;
use super::status::writer::StatusWriter;
use super::{admission, calls, events, evictions, hand_offs, own_image};
use crate::args::ControllerArgs;
use nrh_core::node_condition::NodeConditions;
use nrh_core::plan::PlanSettings;
use nrh_server::serve;

/// A watch without any message for this long is dead. The API server sends a bookmark about once a minute, and ends each watch
/// within five minutes.
const SILENT_CONNECTION: Duration = Duration::from_secs(310);
/// How long the last pass may take when the process is asked to end. It is less than the pod's grace period.
const LAST_PASS: Duration = Duration::from_secs(15);

/// Runs the controller until it is asked to end.
pub async fn run(mut args: ControllerArgs) -> anyhow::Result<()> {
    let mut config = kube::Config::infer()
        .await
        .context("cannot configure a client for the API server: expected a kubeconfig or a pod's service account")?;
    config.connect_timeout = Some(calls::DEADLINE);
    config.read_timeout = Some(SILENT_CONNECTION);
    let calls = Calls::from_config(config).context("cannot make a client for the API server")?;
    let (health, metrics) = (listen(args.health_listen).await?, listen(args.listen).await?);
    if args.image.is_none() {
        args.image = Some(own_image::read(&calls, &args.identity).await?);
    }
    let end = CancellationToken::new();
    let audience = args.metrics_audience.clone().filter(|audience| !audience.is_empty());
    let access = args.metrics_auth.then(|| Access::new(calls.clone(), audience));
    let controller = Controller::new(calls, Clock::system(), &args);
    let close = CancellationToken::new();
    let (checks, scrapes) = (http::health(controller.served()), http::metrics(controller.served(), access));
    let mut servers = std::pin::pin!(async {
        tokio::join!(serve(health, checks, close.clone()), serve(metrics, scrapes, close.clone()))
    });
    let ended = tokio::select! {
        result = controller.run(end.clone()) => result.context("the controller stands down"),
        _ = &mut servers => anyhow::bail!("the HTTP servers ended"),
        () = wait_for_shutdown_signal(end.clone()) => {
            Err(anyhow::anyhow!("the last pass did not end within {} s", LAST_PASS.as_secs()))
        }
    };
    close.cancel();
    servers.await;
    ended
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}

/// Cancels `end` at SIGTERM or SIGINT, and returns when the other parts should have ended.
async fn wait_for_shutdown_signal(end: CancellationToken) {
    let (Ok(mut term), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        tracing::warn!("signals cannot be caught; the lease will run out by itself at the end");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("asked to end");
    end.cancel();
    tokio::time::sleep(LAST_PASS).await;
}

/// A name that no other process has. A restarted container must not renew its predecessor's lease.
fn unique(identity: &str) -> String {
    // The keys of a hasher are random per process. This needs no further crate.
    let suffix = RandomState::new().build_hasher().finish() & 0xffff_ffff;
    format!("{identity}_{suffix:08x}")
}

/// Why the controller ended without a request to do so.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// It no longer leads.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// A part that must run until the end has ended.
    #[error("{0} ended, expected to run as long as the process")]
    Part(&'static str),
}

/// All parts of the controller, apart from its HTTP servers.
#[derive(Debug)]
pub struct Controller {
    calls: Calls,
    clock: Clock,
    cache: Arc<Cache>,
    metrics: Arc<Metrics>,
    identity: String,
    image: String,
    ceiling: u32,
    node_conditions: NodeConditions,
    settings: PlanSettings,
}

impl Controller {
    /// Creates the controller. Nothing runs yet.
    pub fn new(calls: Calls, clock: Clock, args: &ControllerArgs) -> Self {
        Self {
            calls,
            clock,
            cache: Arc::new(Cache::default()),
            metrics: Arc::new(Metrics::default()),
            identity: unique(&args.identity),
            image: args.image.clone().unwrap_or_default(),
            ceiling: args.max_in_flight,
            node_conditions: args.node_conditions.clone(),
            settings: PlanSettings::default(),
        }
    }

    /// The same controller, with other times than the shipped ones.
    #[must_use]
    pub fn with(self, settings: PlanSettings) -> Self {
        Self { settings, ..self }
    }

    /// What its HTTP servers show.
    pub fn served(&self) -> Served {
        Served { cache: self.cache.clone(), metrics: self.metrics.clone() }
    }

    /// Runs until `end`, or until it can no longer lead. The end of any part ends all parts.
    pub async fn run(self, end: CancellationToken) -> Result<(), Ended> {
        let Self { calls, clock, cache, metrics, identity, image, ceiling, node_conditions, settings } = self;
        let (events, sender) = events::channel();
        let (status_view, seen) = watch::channel(Arc::new(StatusViews::default()));
        let elected = CancellationToken::new();
        let (election, leadership) = Election::new(calls.clone(), cache.clone(), clock.clone(), identity.clone());
        let applier = Applier {
            calls: calls.clone(),
            cache: cache.clone(),
            clock: clock.clone(),
            leadership: leadership.clone(),
            events: events.clone(),
            metrics,
            image,
            lately: RecentAnswers::default(),
            kills: Kills::default(),
            settings,
        };
        let handles = Handles { calls: calls.clone(), cache: cache.clone(), clock, leadership };
        let admission = admission::run(handles.clone(), events.clone());
        let decider = Planner::new(applier, ceiling, status_view);
        let mirror = Mirror::new(handles.clone(), node_conditions, seen.clone());
        let writer = StatusWriter::new(handles.clone(), events, seen);
        let mut election = std::pin::pin!(election.run(elected.clone()));
        let mut sender = std::pin::pin!(sender.run(calls.raw_acts(), identity));
        let part = |part| Err(Ended::Part(part));
        let ended = tokio::select! {
            lost = &mut election => lost.map_err(Ended::from),
            () = decider.run(end) => {
                // The planner has finished its pass, so the lease may be released now.
                elected.cancel();
                election.await.map_err(Ended::from)
            }
            () = mirror.run() => part("the mirror of conditions"),
            () = writer.run() => part("the writer of statuses"),
            () = watches::run(calls.watches(), cache) => part("a watch"),
            () = hand_offs::run(handles.clone()) => part("the reader of hand-offs"),
            () = hand_offs::rights::run(handles.clone()) => part("the asking for rights"),
            () = admission => part("the check of the admission policies"),
            () = evictions::run(handles.clone()) => part("the asking for the right to evict"),
            () = suspects::run(handles) => part("the reader of suspects' pods"),
            () = &mut sender => return Err(Ended::Part("the sender of events")),
        };
        // A `Notify` is recorded as done once its Event is in the queue. The queue ends with those who put Events into it.
        let _ = timeout(DEADLINE, sender).await;
        ended
    }
}
