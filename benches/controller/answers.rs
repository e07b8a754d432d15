//! The answers of the nodes: to commands, Jobs and requests for a check, as soon as they are seen.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use nrh::api::NodeCommand;
use nrh::core::command::{ActionCommand, Outcome};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::fleet::Fleet;
use crate::simulated_node;

/// Answers under way at a time.
pub const PARALLEL: usize = 16;
/// Label of a Job's pod.
const JOB_NAME: &str = "batch.kubernetes.io/job-name";

/// Something that a node has to do.
enum Task {
    /// Its command.
    Command(Box<ActionCommand>),
    /// Its Job, in this pod.
    Job { command: Box<ActionCommand>, pod: String },
    /// A check that is asked for.
    Check { node: String },
}

/// What nodes answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// Nothing.
    None,
    /// They check again when they are asked to.
    Checks,
    /// They do what they are told to, too.
    All,
}

/// Answers for as long as it is polled.
pub async fn answer(client: &Client, fleet: &Arc<Fleet>, answers: Answers) -> Result<Infallible> {
    if answers == Answers::None {
        return std::future::pending().await;
    }
    let commands: Api<NodeCommand> = Api::all(client.clone());
    let pods: Api<Pod> = Api::namespaced(client.clone(), "nrh-node");
    let mut commands = pin!(watcher(commands, Config::default()).default_backoff());
    let mut pods = pin!(watcher(pods, Config::default().labels(JOB_NAME)).default_backoff().applied_objects());
    let permits = Arc::new(Semaphore::new(PARALLEL));
    let mut checks = std::collections::BTreeMap::new();
    let mut running = JoinSet::new();
    loop {
        let tasks: Vec<Task> = tokio::select! {
            event = commands.try_next() => match event?.context("the watch of commands ended")? {
                // What was asked before is not known to be open.
                Event::InitApply(command) => {
                    checks.insert(command.name_any(), command.spec.check_sequence);
                    commanded(&command).into_iter().collect()
                }
                Event::Apply(command) => {
                    let asked = command.spec.check_sequence;
                    let before = checks.insert(command.name_any(), asked).flatten();
                    let is_asked = asked.is_some() && asked != before;
                    let asks = is_asked.then(|| Task::Check { node: command.name_any() });
                    asks.into_iter().chain(commanded(&command)).collect()
                }
                _ => Vec::new(),
            },
            pod = pods.try_next() => started(&pod?.context("the watch of Jobs' pods ended")?).into_iter().collect(),
            Some(done) = running.join_next(), if !running.is_empty() => {
                done??;
                Vec::new()
            }
        };
        let is_meant = |task: &Task| answers == Answers::All || matches!(task, Task::Check { .. });
        for task in tasks.into_iter().filter(is_meant) {
            let (client, fleet, permits) = (client.clone(), fleet.clone(), permits.clone());
            running.spawn(async move {
                let _permit = permits.acquire_owned().await?;
                carry_out(&client, &fleet, task).await
            });
        }
    }
}

fn commanded(command: &NodeCommand) -> Option<Task> {
    Some(Task::Command(Box::new(command.spec.command.clone()?)))
}

/// A pod that kwok has begun to run.
fn started(pod: &Pod) -> Option<Task> {
    let runs = pod.status.as_ref()?.phase.as_deref() == Some("Running");
    let command = Box::new(simulated_node::command(pod.spec.as_ref()?)?);
    (runs && pod.metadata.deletion_timestamp.is_none()).then(|| Task::Job { command, pod: pod.name_any() })
}

async fn carry_out(client: &Client, fleet: &Fleet, task: Task) -> Result<()> {
    let node = match task {
        Task::Check { node } => node,
        Task::Command(command) => {
            if fleet.carry_out(&command).is_none() {
                return Ok(());
            }
            command.node
        }
        Task::Job { command, pod } => {
            let Some(outcome) = fleet.carry_out(&command) else { return Ok(()) };
            end(client, &pod, &outcome).await?;
            command.node
        }
    };
    fleet.report(client, &node).await
}

/// The kubelet's last word on the pod of a Job.
async fn end(client: &Client, pod: &str, outcome: &Outcome) -> Result<()> {
    let status = json!({"status": simulated_node::ended(outcome)});
    let pods: Api<Pod> = Api::namespaced(client.clone(), "nrh-node");
    match pods.patch_status(pod, &PatchParams::default(), &Patch::Strategic(&status)).await {
        Ok(_) => Ok(()),
        // A Job that was given up takes its pod along.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => bail!("the end of pod {pod} cannot be written: {error}"),
    }
}
