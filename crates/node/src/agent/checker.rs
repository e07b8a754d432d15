//! The preflight: the executor trusts nothing that the command says. A check allows the action only on fresh, complete
//! evidence of its own; a missing answer is a refusal.

use std::collections::BTreeSet;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::AgentSettings;
use super::target::PinnedProcess;
use super::verdict::Refusal;
use crate::collect;
use crate::collect::kubelet::{Finder, Found, none_answers};
use crate::cri::endpoint::Api;
use crate::cri::tasks::Tasks;
use crate::cri::{Cri, CriError};
use crate::proc::role::Prover;
use crate::runtime::Client;
use nrh_core::action::Signal;
use nrh_core::command::{ANSWERED_WITHIN, OutcomeReason};
use nrh_core::fault::{FaultType, ProcessRef, Role, Target};
use nrh_core::faults::{kubelet, network_plugin_hung};
use nrh_core::observation::{ContainerSeen, ContainerState, SandboxSeen, TaskAnswer};
use nrh_core::thresholds::{LIST_DEADLINE, TASK_DEADLINE};

mod client;
mod docker;
mod leaked;
mod processes;
mod reboot;
mod restart;
mod unit;
mod unresponsive;

pub(super) use unit::Unit;

/// While the kubelet is working on a pod, removing the leftovers of the pod is the kubelet's task.
const KUBELET_AT_WORK: Duration = Duration::from_mins(2);
/// More containers than this without a sandbox, and more than half of all containers, mean an incomplete list.
const MAX_ODD: usize = 8;

/// Deadlines of the single waits.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// The whole preflight, from admission to claim. Where it waits for a list that may hang, the deadline of that list is added.
    pub check: Duration,
    /// One list or status call.
    pub call: Duration,
    /// One query about a task; containerd itself waits 2 s for the shim.
    pub task: Duration,
    /// One query to Docker about a container; Docker has no limit of its own.
    pub inspect: Duration,
    /// One reading of the process table.
    pub processes: Duration,
    /// Grace given to an orphan's process before it is killed.
    pub stop_grace: Duration,
    /// Removal of a container.
    pub remove: Duration,
    /// How long the executor waits for the effect of an action.
    pub verify: Duration,
    /// The restart of a unit: by default systemd allows 90 s for the stop and 90 s for the start. A job that has not
    /// ended by then continues. It is shorter after a long preflight: a command is answered within three minutes.
    pub restart: Duration,
}

/// Least time for systemd to accept a restart.
const LEAST_RESTART: Duration = Duration::from_secs(20);

impl Bounds {
    /// These bounds for what is done after a preflight of this length.
    pub(super) fn after(&self, check: Duration) -> Self {
        let rest = ANSWERED_WITHIN.saturating_sub(check).max(LEAST_RESTART);
        Self { restart: self.restart.min(rest), ..self.clone() }
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            check: Duration::from_mins(1),
            call: Duration::from_secs(15),
            task: TASK_DEADLINE,
            inspect: Duration::from_secs(5),
            processes: Duration::from_secs(5),
            stop_grace: Duration::from_secs(10),
            remove: Duration::from_secs(10),
            verify: Duration::from_secs(10),
            restart: Duration::from_secs(90),
        }
    }
}

/// Everything that a preflight uses.
#[derive(Clone, Debug)]
pub(super) struct Checker {
    pub(super) prover: Prover,
    pub(super) settings: AgentSettings,
}

impl Deref for Checker {
    type Target = AgentSettings;

    fn deref(&self) -> &AgentSettings {
        &self.settings
    }
}

impl Checker {
    pub(super) fn longest_check(&self, kind: FaultType) -> Duration {
        let list = if kind == FaultType::RuntimeListHung { self.list_deadline() } else { Duration::ZERO };
        self.bounds.check.saturating_add(list)
    }

    /// How long a list may take that is not hung.
    fn list_deadline(&self) -> Duration {
        self.thresholds.bound(&LIST_DEADLINE)
    }

    /// Checks that the process of this role still hangs, and that the signal can release it. `None` stands for a reboot.
    pub(super) async fn process_still_hangs(
        &self,
        role: Role,
        target: &Target,
        held: &Arc<PinnedProcess>,
        signal: Option<Signal>,
    ) -> Result<(), Refusal> {
        match role {
            Role::NetworkPlugin => self.plugin_still_hung(target, held).await,
            Role::RuntimeClient => self.client_still_hung(target, held).await,
            Role::Shim if held.is_of_docker() => self.docker_container_still_hung(target, held, signal).await,
            Role::Shim if held.is_conmon() => self.conmon_still_stopped(held, signal).await,
            Role::Shim => self.container_still_hung(target, held, signal).await,
            Role::ContainerInit => Err(Refusal::cannot_check("a frozen process takes no signal")),
        }
    }

    /// Runs a read of `/proc` on a thread of its own. If it fails, the refusal begins with `cannot`.
    async fn read<T: Send + 'static>(
        &self,
        cannot: &str,
        read: impl FnOnce(&Prover) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Refusal> {
        let prover = self.prover.clone();
        let found = self.reader.run(self.bounds.processes, move || read(&prover)).await?;
        found.map_err(|error| Refusal::cannot_check(format!("{cannot}: {error}")))
    }

    pub(super) async fn hold(&self, process: &ProcessRef, target: &Target) -> Result<Arc<PinnedProcess>, Refusal> {
        let (prover, process, target) = (self.prover.clone(), process.clone(), target.clone());
        let held =
            self.reader.run(self.bounds.processes, move || PinnedProcess::open(&prover, &process, &target)).await??;
        Ok(Arc::new(held))
    }

    /// The last check before the claim: the held process is still the process that was proven.
    pub(super) async fn prove_again(
        &self,
        held: &Arc<PinnedProcess>,
        process: &ProcessRef,
        target: &Target,
    ) -> Result<(), Refusal> {
        let (prover, process, target, again) = (self.prover.clone(), process.clone(), target.clone(), Arc::clone(held));
        self.reader.run(self.bounds.processes, move || again.prove_again(&prover, &process, &target)).await?
    }

    /// Checks that the shim is stopped, or that one of its tasks does not answer while the runtime does.
    async fn container_still_hung(
        &self,
        target: &Target,
        held: &Arc<PinnedProcess>,
        signal: Option<Signal>,
    ) -> Result<(), Refusal> {
        let stopped = self.state(held).await? == Some('T');
        // Resuming a stopped process is safe in every case. A kill needs a runtime that answers: the runtime has to
        // clean up after the shim.
        if stopped && signal == Some(Signal::Cont) {
            return Ok(());
        }
        let cri = self.runtime().await?;
        cri.version(self.bounds.call).await.map_err(|error| asked("the runtime's version", &error))?;
        if stopped {
            return Ok(());
        }
        if signal == Some(Signal::Kill) {
            self.waits_for_no_client(held).await?;
            self.makes_no_container(held, &cri).await?;
        }
        let tasks = self.tasks().await?;
        for id in [&target.container_id, &target.sandbox_id].into_iter().flatten() {
            // The same rule as the probe's: an unknown state that is returned at once is an error, not silence.
            match collect::tasks::ask(&tasks, id, self.bounds.task).await {
                Ok(TaskAnswer::NoAnswer) => return Ok(()),
                // Our own deadline proves nothing about the shim while containerd's task service answers no query.
                Err(CriError::Deadline(_)) => {
                    return tasks.answers(self.bounds.call).await.map_err(|error| asked("containerd's tasks", &error));
                }
                Ok(_) => {}
                Err(error) => return Err(asked(&format!("task {id}"), &error)),
            }
        }
        Err(recovered(format!("shim {} is not stopped and its tasks answer", held.process.pid)))
    }

    /// Checks that the plugin process is as old as a hung one, and still holds the lock that others wait for, if the
    /// command names a lock.
    async fn plugin_still_hung(&self, target: &Target, held: &Arc<PinnedProcess>) -> Result<(), Refusal> {
        self.as_old_as(held, self.thresholds.bound(&network_plugin_hung::AGE)).await?;
        let (lock, plugin, pid) = (target.lock.clone(), Arc::clone(held), held.process.pid);
        let read = move |_: &Prover| lock.as_deref().map_or(Ok(true), |path| plugin.holds(path));
        if !self.read(&format!("cannot check plugin process {pid}"), read).await? {
            let lock = target.lock.as_deref().unwrap_or_default();
            return Err(recovered(format!("plugin process {pid} does not hold the lock of {lock} any more")));
        }
        Ok(())
    }

    /// Checks that the container is listed, that its sandbox is in neither list and unknown when queried directly, and
    /// that no kubelet will remove the container.
    pub(super) async fn container_still_orphaned(
        &self,
        target: &Target,
        container_id: &str,
    ) -> Result<(Cri, ContainerState), Refusal> {
        let cri = self.runtime().await?;
        self.not_docker(&cri).await?;
        let lists = self.lists(&Client::Cri(cri.clone())).await?;
        let Some(seen) = lists.containers.iter().find(|seen| seen.id == container_id) else {
            let message = format!("the runtime does not list container {container_id}");
            return Err(Refusal::new(OutcomeReason::TargetGone, message));
        };
        same_object(seen, target)?;
        if !lists.without_sandbox()?.contains(&seen) {
            return Err(recovered(format!("the runtime lists sandbox {}", seen.sandbox_id)));
        }
        self.kubelet_leaves_it(&cri, seen).await?;
        match cri.sandbox_ready(&seen.sandbox_id, self.bounds.call).await {
            Err(CriError::NotFound) => {}
            Ok(_) => return Err(recovered(format!("the runtime knows sandbox {} when asked for it", seen.sandbox_id))),
            Err(error) => return Err(asked(&format!("sandbox {}", seen.sandbox_id), &error)),
        }
        let state = seen.state;
        Ok((cri, state))
    }

    /// If a kubelet is running, checks that it neither keeps the container nor is working on its pod.
    async fn kubelet_leaves_it(&self, cri: &Cri, seen: &ContainerSeen) -> Result<(), Refusal> {
        if !self.kubelet_at_work().await? {
            return Ok(());
        }
        if seen.state == ContainerState::Exited {
            let message =
                format!("container {} has ended, and a living kubelet may keep it as its last dead instance", seen.id);
            return Err(Refusal::new(OutcomeReason::Protected, message));
        }
        let Some(pod) = &seen.pod else { return Ok(()) };
        let last =
            cri.last_created(&pod.uid, self.bounds.call).await.map_err(|error| asked("what was made last", &error))?;
        let Some(last) = last else { return Ok(()) };
        let ago = Timestamp::now().duration_since(last);
        if ago.as_secs() < i64::try_from(KUBELET_AT_WORK.as_secs()).unwrap_or(i64::MAX) {
            let message = format!(
                "the kubelet created an object of pod {pod} {}s ago and may still be working on it",
                ago.as_secs()
            );
            return Err(Refusal::new(OutcomeReason::KubeletBusy, message));
        }
        Ok(())
    }

    /// Whether a kubelet is running that is old enough to have completed its start.
    async fn kubelet_at_work(&self) -> Result<bool, Refusal> {
        let found = self.running_kubelet().await?;
        Ok(found.is_some_and(|kubelet| kubelet.age >= self.thresholds.bound(&kubelet::START_AGE)))
    }

    async fn running_kubelet(&self) -> Result<Option<Found>, Refusal> {
        let find = |prover: &Prover| Finder::new(prover.root()).find();
        let found = self.read("cannot find the kubelet", find).await?;
        if found.is_none() {
            none_answers(self.healthz).await.map_err(Refusal::cannot_check)?;
        }
        Ok(found)
    }

    pub(super) async fn as_old_as(&self, held: &Arc<PinnedProcess>, bound: Duration) -> Result<(), Refusal> {
        let age = self.age(held).await?;
        if age >= bound {
            return Ok(());
        }
        let (pid, age, bound) = (held.process.pid, age.as_secs(), bound.as_secs());
        Err(recovered(format!("process {pid} is {age}s old, hung ones are {bound}s and more")))
    }

    async fn age(&self, held: &Arc<PinnedProcess>) -> Result<Duration, Refusal> {
        let (process, pid) = (Arc::clone(held), held.process.pid);
        self.read(&format!("cannot read the age of process {pid}"), move |prover| process.age(prover)).await
    }

    async fn state(&self, held: &Arc<PinnedProcess>) -> Result<Option<char>, Refusal> {
        let (process, pid) = (Arc::clone(held), held.process.pid);
        self.read(&format!("cannot read the state of process {pid}"), move |_| process.state()).await
    }

    async fn runtime(&self) -> Result<Cri, Refusal> {
        if self.endpoint.api == Api::Docker {
            return Err(docker::removes_nothing());
        }
        Cri::connect(&self.endpoint.socket).await.map_err(|error| asked("a connection", &error))
    }

    async fn tasks(&self) -> Result<Tasks, Refusal> {
        Tasks::connect(&self.endpoint.socket).await.map_err(|error| asked("containerd's tasks", &error))
    }

    async fn lists(&self, client: &Client) -> Result<Lists, Refusal> {
        let bound = self.bounds.call;
        let before = client.sandboxes(bound).await.map_err(|error| asked("the list of sandboxes", &error))?.items;
        let containers = client.containers(bound).await.map_err(|error| asked("the list of containers", &error))?.items;
        let after = client.sandboxes(bound).await.map_err(|error| asked("the list of sandboxes", &error))?.items;
        Ok(Lists { before, containers, after })
    }
}

/// Lists in the order sandboxes, containers, sandboxes: a pod that is created or removed meanwhile does not look like
/// an orphan.
struct Lists {
    before: Vec<SandboxSeen>,
    containers: Vec<ContainerSeen>,
    after: Vec<SandboxSeen>,
}

impl Lists {
    /// The containers whose sandbox is in neither list. Refuses where they are so many that the lists prove nothing.
    fn without_sandbox(&self) -> Result<Vec<&ContainerSeen>, Refusal> {
        let known: BTreeSet<&str> = self.before.iter().chain(&self.after).map(|seen| seen.id.as_str()).collect();
        let without: Vec<_> = self.containers.iter().filter(|seen| !known.contains(seen.sandbox_id.as_str())).collect();
        let (odd, all) = (without.len(), self.containers.len());
        if odd > MAX_ODD && odd.saturating_mul(2) > all {
            return Err(Refusal::cannot_check(format!(
                "{odd} of {all} containers have no listed sandbox: that is a list with a hole, not {odd} orphans"
            )));
        }
        Ok(without)
    }
}

/// Checks that the listed container matches everything that the command says about it.
fn same_object(seen: &ContainerSeen, target: &Target) -> Result<(), Refusal> {
    let changed = |found: String| Err(Refusal::new(OutcomeReason::TargetChanged, found));
    if seen.sandbox_id.is_empty() {
        return changed(format!("container {} names no sandbox", seen.id));
    }
    if target.sandbox_id.as_ref().is_some_and(|id| *id != seen.sandbox_id) {
        return changed(format!(
            "container {} belongs to sandbox {}, not the one in the command",
            seen.id, seen.sandbox_id
        ));
    }
    let Some(pod) = &seen.pod else {
        return changed(format!("container {} is not the kubelet's: it names no pod", seen.id));
    };
    if target.pod.as_ref().is_some_and(|commanded| commanded.uid != pod.uid) {
        return changed(format!(
            "container {} belongs to pod {pod} with uid {}, not the one in the command",
            seen.id, pod.uid
        ));
    }
    Ok(())
}

pub(super) fn recovered(message: String) -> Refusal {
    Refusal::new(OutcomeReason::Recovered, message)
}

pub(super) fn asked(what: &str, error: &CriError) -> Refusal {
    Refusal::cannot_check(format!("asked the runtime for {what}: {error}"))
}
