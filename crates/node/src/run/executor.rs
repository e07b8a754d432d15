//! The executor, as the probe runs it and checks at an interval whether it could execute an action.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::command_queue::Execute;
use crate::agent::{Agent, AgentSettings};
use crate::args::ProbeArgs;
use crate::collectors::Collectors;
use crate::cri::endpoint::{Endpoint, NamedBy};
use crate::deadline::within;
use crate::evidence::Gate;
use crate::report::command::Command;
use nrh_core::thresholds::Thresholds;

/// The socket where neither a collector nor a person names one.
const CONTAINERD: &str = "/run/containerd/containerd.sock";
/// Interval between two checks.
const INTERVAL: Duration = Duration::from_mins(10);
/// Longest time of one check.
pub const BOUND: Duration = Duration::from_secs(20);

/// The settings of every executor in this process: they share the limit on threads that the kernel blocks.
pub fn agent_settings(args: &ProbeArgs, thresholds: Thresholds) -> AgentSettings {
    let socket = args.runtime_endpoint.clone().unwrap_or_else(|| PathBuf::from(CONTAINERD));
    let endpoint = Endpoint::cri(socket, NamedBy::Nobody);
    AgentSettings {
        allow_actions: args.allow_actions,
        thresholds,
        ..AgentSettings::new(&args.node_name, &args.state_dir, endpoint)
    }
}

/// Returns the settings with the kubelet's version and the sockets that the collectors know, else the sockets that a person
/// configured, else the default ones.
fn with_known(settings: AgentSettings, collectors: &Collectors) -> AgentSettings {
    AgentSettings {
        endpoint: collectors.endpoint().unwrap_or(settings.endpoint),
        docker_socket: collectors.docker_socket().unwrap_or(settings.docker_socket),
        kubelet_version: collectors.kubelet_version(),
        ..settings
    }
}

/// Returns what executes a command: it waits for the evidence of the command's fault, and then acts, unless the controller has
/// withdrawn the command by then.
pub fn executor(
    settings: AgentSettings,
    collectors: Arc<Collectors>,
    gate: Gate,
    commands: watch::Receiver<Command>,
) -> Execute {
    Box::new(move |command| {
        let (settings, collectors, gate) = (settings.clone(), Arc::clone(&collectors), gate.clone());
        let commands = commands.clone();
        async move {
            gate.pass(&command.fault_id).await;
            let agent = Agent::new(with_known(settings, &collectors));
            agent.execute_while(&command, || commands.borrow().is_current(&command)).await
        }
        .boxed()
    })
}

/// The check of whether the executor could execute an action.
pub struct SelfCheck {
    agent: AgentSettings,
    running: Option<JoinHandle<Vec<String>>>,
    /// When the last check started, and with which sockets.
    last: Option<(Instant, (Endpoint, PathBuf))>,
}

impl SelfCheck {
    /// A check of the executor with these settings.
    pub fn new(agent: AgentSettings) -> Self {
        Self { agent, running: None, last: None }
    }

    /// Starts a check if one is due: at the start, after a change of a socket, and at a fixed interval.
    pub fn start_if_due(&mut self, collectors: &Collectors) {
        if !self.agent.allow_actions {
            return;
        }
        let settings = with_known(self.agent.clone(), collectors);
        let sockets = (settings.endpoint.clone(), settings.docker_socket.clone());
        if self.last.as_ref().is_some_and(|(at, checked)| at.elapsed() < INTERVAL && *checked == sockets) {
            return;
        }
        self.last = Some((Instant::now(), sockets));
        let agent = Agent::new(settings);
        if let Some(outdated) = self.running.take() {
            outdated.abort();
        }
        self.running = Some(tokio::spawn(async move {
            let missing = within(BOUND, agent.self_check()).await;
            let late = || vec![format!("the self-check did not end within {} s", BOUND.as_secs())];
            missing.unwrap_or_else(|_| late())
        }));
    }

    /// Whether no check is under way.
    pub const fn has_ended(&self) -> bool {
        self.running.is_none()
    }

    /// Waits for the end of a check. Returns what the executor lacks.
    pub async fn missing(&mut self) -> Vec<String> {
        let Some(running) = &mut self.running else { return std::future::pending().await };
        let missing = running.await.unwrap_or_else(|error| vec![format!("the self-check has ended: {error}")]);
        self.running = None;
        missing
    }
}
