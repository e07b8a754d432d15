//! Fault injection: each fault for real, with the instant of the system call and the way back.
//!
//! Every injector touches exactly what it names, tells what that was, and can be lifted without the product: the
//! demo's controls are the same injections, left alone and then lifted.

mod gate;
mod host;
mod kubelet;
mod runtime;
pub(crate) mod wrapper;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use rustix::process::Signal;

pub use gate::{GATE_LOCK, GATES, await_gate_holder, hang_cni_add, hang_cni_del};
pub use host::{
    expired_certificate, few_files, full_disk, full_run, has_freezer, has_unified, read_only_run, sleeping_shim,
    waiting_shim,
};
pub use kubelet::{block_kubelet_start, dead_mount, freeze_kubelet, kill_kubelet};
pub use runtime::{block_update, duplicate_sandbox, slow_lists, take_network, unresponsive_shim};
pub use wrapper::{freeze_init, hang_create, wrap_runtime};

use crate::layout::Layout;
use crate::node::{KubeletStart, Node};
use crate::process::{Identity, wait_until};
use crate::view::{self, Lists, bounded};
use crate::wait::{SOON, last_answer};

/// Which fault was injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A pod's shim is stopped
    FrozenShim,
    /// A stopped shim was left behind by a restart of containerd
    LeakedShim,
    /// A container runs without its sandbox
    LostSandbox,
    /// Every container of the node was killed
    StoppedContainers,
    /// The next network plugin that adds a pod, or takes one away, hangs with the lock
    HungNetworkPlugin,
    /// A workload fails while a file exists
    FailingWorkload,
    /// An update of a container behind a stopped shim holds up every list of containers
    BlockedUpdate,
    /// A pod has two sandboxes, and no kubelet runs that would end one
    DuplicateSandbox,
    /// A file system without room lies over containerd's data
    FullDisk,
    /// A file system without room holds the runtime's sockets
    FullRun,
    /// `/run` takes no writes
    ReadOnlyRun,
    /// containerd may open hardly any more files
    FewFiles,
    /// A pod's shim waits uninterruptibly
    WaitingShim,
    /// A pod's shim does not run, and its state says that it sleeps
    SleepingShim,
    /// The kubelet's kubeconfig holds a certificate that has expired
    ExpiredCertificate,
    /// The start of the kubelet waits for a stopped shim
    BlockedStart,
    /// The kubelet is stopped
    FrozenKubelet,
    /// The configuration of the network plugins is gone
    MissingNetwork,
    /// A mount that does not answer lies below the folder of a pod that is gone
    DeadMount,
    /// Update after update of a container behind a stopped shim holds up lists of containers, each for a while
    SlowLists,
    /// A stopped shim with nothing alive below it, beside a containerd that does not answer
    UnresponsiveShim,
    /// A script in place of the OCI runtime hangs while it makes a container
    HungCreate,
    /// A container that is made and not started is frozen
    FrozenInit,
}

/// What an injection hit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Victim {
    /// Uid of the pod
    pub pod_uid: Option<String>,
    /// Full id of the pod's sandbox at that time
    pub sandbox: Option<String>,
    /// Full ids of the containers
    pub containers: Vec<String>,
    /// The process as the bed's owner sees it
    pub process: Option<Identity>,
    /// The same process's pid inside the node
    pub node_pid: Option<i32>,
    /// The file, as the node sees it
    pub path: Option<PathBuf>,
}

/// An injected fault.
#[derive(Debug, Clone)]
pub struct Injection {
    /// Which
    pub fault: Fault,
    /// Where
    pub node: String,
    /// What it hit
    pub victim: Victim,
    /// Just before the system call that made the fault, so that measured times are never too short
    pub at: Timestamp,
    /// The same on the monotonic clock
    pub instant: Instant,
}

impl Injection {
    /// Takes the time; the system call comes next.
    pub(crate) fn now(fault: Fault, node: &Node, victim: Victim) -> Self {
        Self { fault, node: node.name.clone(), victim, at: Timestamp::now(), instant: Instant::now() }
    }

    /// Time since the fault was made.
    pub fn elapsed(&self) -> Duration {
        self.instant.elapsed()
    }

    /// Whether the process that was hit still runs.
    pub fn is_there(&self, node: &Node) -> bool {
        self.victim.process.is_some_and(|process| node.is_alive(process))
    }

    /// Whether the process that was hit still is that very one, and stopped.
    pub fn is_stopped(&self, node: &Node) -> bool {
        self.victim.process.is_some_and(|process| node.state(process) == Some('T'))
    }

    /// Takes the fault away; without effect if it is gone already.
    ///
    /// A stopped kubelet stays stopped, stopped containers stay stopped: starting them is the story's business.
    pub fn lift(&self, node: &Node) -> Result<()> {
        match self.fault {
            Fault::FrozenShim
            | Fault::BlockedUpdate
            | Fault::SlowLists
            | Fault::BlockedStart
            | Fault::FrozenKubelet => self.signal(node, Signal::CONT),
            Fault::DeadMount => kubelet::bring_mount_down(node, &self.victim),
            Fault::LeakedShim => self.signal(node, Signal::KILL),
            Fault::UnresponsiveShim => {
                self.signal(node, Signal::KILL)?;
                node.daemon("containerd").map_or(Ok(()), |process| node.signal(process, Signal::CONT).map(drop))
            }
            Fault::MissingNetwork => runtime::bring_network(node),
            Fault::LostSandbox => {
                let socket = node.socket();
                let orphans = orphans_of(&view::lists(&socket, view::LIMIT)?, self.victim.pod_uid.as_deref());
                orphans.iter().try_for_each(|id| view::remove_container(&socket, id, SOON))
            }
            Fault::StoppedContainers => Ok(()),
            Fault::DuplicateSandbox => {
                let socket = node.socket();
                self.victim.sandbox.iter().try_for_each(|id| view::remove_sandbox(&socket, id, SOON))?;
                if node.daemon("kubelet").is_none() { node.start_kubelet(KubeletStart::default()) } else { Ok(()) }
            }
            Fault::HungNetworkPlugin => gate::open(node),
            Fault::FullDisk | Fault::FullRun | Fault::ReadOnlyRun => {
                self.victim.path.iter().try_for_each(|path| host::uncover(node, path))
            }
            Fault::FewFiles => self.victim.process.map_or(Ok(()), |process| host::limit_files(process.pid, None)),
            Fault::WaitingShim => host::thaw(node, &self.victim),
            Fault::SleepingShim => host::thaw_sleeping(node, &self.victim),
            Fault::ExpiredCertificate => host::renew(node),
            Fault::HungCreate => wrapper::go_on(node),
            Fault::FrozenInit => host::set_frozen(&self.victim, false),
            Fault::FailingWorkload => self.victim.path.as_ref().map_or(Ok(()), |path| node.remove(path)),
        }
    }

    fn signal(&self, node: &Node, signal: Signal) -> Result<()> {
        self.victim.process.map_or(Ok(()), |process| node.signal(process, signal).map(drop))
    }
}

/// Stops (SIGSTOP) a pod's shim: everything that asks this shim hangs, lists go on answering. Where each container has its own, as with
/// Docker, or its conmon, as with CRI-O, that of a running container is stopped.
pub fn freeze_shim(node: &Node, pod_uid: &str) -> Result<Injection> {
    let lists = view::lists(&node.socket(), view::LIMIT)?;
    let sandbox = lists.sandbox_of(pod_uid).with_context(|| format!("pod {pod_uid} has no sandbox"))?;
    let containers = running(&lists, |container| container.sandbox == sandbox.id);
    let processes = node.processes()?;
    let shim = containers.iter().chain([&sandbox.id]).find_map(|id| view::shim(processes.clone(), id));
    let shim = shim.with_context(|| format!("sandbox {} has no shim", sandbox.id))?;
    let process = shim.identity();
    let victim = Victim {
        pod_uid: Some(pod_uid.to_owned()),
        sandbox: Some(sandbox.id.clone()),
        containers,
        process: Some(process),
        node_pid: Some(shim.pid),
        path: None,
    };
    let injection = Injection::now(Fault::FrozenShim, node, victim);
    ensure!(node.signal(process, Signal::STOP)?, "the shim of sandbox {} ended", sandbox.id);
    ensure!(wait_until(SOON, || node.state(process) == Some('T')), "shim {} does not stop", process.pid);
    if let (Layout::Docker, Some(id)) = (node.layout, injection.victim.containers.first()) {
        // Docker answers for the container until something waits for it.
        node.script(r#"docker stop "$1" >/dev/null 2>&1 </dev/null &"#, &[id])?;
    }
    Ok(injection)
}

/// Freezes a pod's shim and restarts containerd, which replaces the pod and leaves the shim behind.
pub fn leaked_shim(node: &Node, pod_uid: &str) -> Result<Injection> {
    let frozen = freeze_shim(node, pod_uid)?;
    let injection = Injection::now(Fault::LeakedShim, node, frozen.victim);
    node.restart_containerd()?;
    ensure!(injection.is_there(node), "containerd ended the frozen shim of pod {pod_uid} itself: nothing leaked");
    Ok(injection)
}

/// Takes the sandbox from under a pod's running containers: stops the kubelet, removes the sandbox alone, restarts containerd.
pub fn lose_sandbox(node: &Node, pod_uid: &str) -> Result<Injection> {
    let socket = node.socket();
    // A running kubelet would build a new sandbox within seconds.
    node.stop_kubelet()?;
    let lists = view::lists(&socket, view::LIMIT)?;
    let sandbox = lists.sandbox_of(pod_uid).with_context(|| format!("pod {pod_uid} has no sandbox"))?;
    let victim = Victim {
        pod_uid: Some(pod_uid.to_owned()),
        sandbox: Some(sandbox.id.clone()),
        containers: running(&lists, |container| container.sandbox == sandbox.id),
        ..Victim::default()
    };
    ensure!(!victim.containers.is_empty(), "pod {pod_uid} has no running container that could be an orphan");
    let injection = Injection::now(Fault::LostSandbox, node, victim);
    ctr(node, &["tasks", "kill", "--signal", "SIGKILL", &sandbox.id])?;
    // containerd itself may be quicker with the ended task, and a task that is not gone yet cannot lose its container.
    let remove =
        || ctr(node, &["tasks", "rm", &sandbox.id]).and_then(|()| ctr(node, &["containers", "rm", &sandbox.id]));
    last_answer(SOON, remove, Result::is_ok)?;
    // containerd 2 keeps a second record of each sandbox, and would list it as not ready for ever. Version 1.6 has no such record.
    let _ = ctr(node, &["sandboxes", "rm", "--force", &sandbox.id]);
    node.restart_containerd()?;
    let orphans = orphans_of(&view::lists(&socket, view::LIMIT)?, Some(pod_uid));
    ensure!(!orphans.is_empty(), "pod {pod_uid} has no orphan after the loss of its sandbox");
    Ok(injection)
}

/// Kills every container and every sandbox of a node. The kubelet has to be stopped, or it starts them again.
pub fn stop_all_containers(node: &Node) -> Result<Injection> {
    ensure!(node.daemon("kubelet").is_none(), "the kubelet of {} runs and would start the containers again", node.name);
    let socket = node.socket();
    let lists = view::lists(&socket, view::LIMIT)?;
    let victim = Victim { containers: running(&lists, |_| true), ..Victim::default() };
    let injection = Injection::now(Fault::StoppedContainers, node, victim);
    let sandboxes = lists.sandboxes.iter().filter(|sandbox| sandbox.ready).map(|sandbox| &sandbox.id);
    for id in injection.victim.containers.iter().chain(sandboxes) {
        ctr(node, &["tasks", "kill", "--signal", "SIGKILL", id])?;
    }
    let quiet = wait_until(SOON, || {
        view::lists(&socket, view::LIMIT).is_ok_and(|lists| {
            !lists.containers.iter().any(view::Container::running) && !lists.sandboxes.iter().any(|s| s.ready)
        })
    });
    ensure!(quiet, "containers of {} still run", node.name);
    Ok(injection)
}

/// Gives a `fail-while PATH` workload its cause; the path is one of the node that the pod mounts.
pub fn set_cause(node: &Node, path: &str) -> Result<Injection> {
    let victim = Victim { path: Some(path.into()), ..Victim::default() };
    let injection = Injection::now(Fault::FailingWorkload, node, victim);
    node.write(path, "")?;
    Ok(injection)
}

fn running(lists: &Lists, wanted: impl Fn(&view::Container) -> bool) -> Vec<String> {
    lists.containers.iter().filter(|c| c.running() && wanted(c)).map(|c| c.id.clone()).collect()
}

fn orphans_of(lists: &Lists, pod_uid: Option<&str>) -> Vec<String> {
    lists.orphans().filter(|orphan| Some(orphan.pod.uid.as_str()) == pod_uid).map(|orphan| orphan.id.clone()).collect()
}

/// containerd's own client below CRI; what is gone already is no error.
fn ctr(node: &Node, arguments: &[&str]) -> Result<()> {
    let call = || bounded::output(node.command("ctr").args(["--namespace", "k8s.io"]).args(arguments), SOON);
    // One that has much to do resets connections that it has just accepted. And containerd 2.4.2 panics when an orphan's task ends,
    // since NRI has no sandbox for it: systemd starts containerd again.
    let is_reset = |done: &Result<String>| matches!(done, Err(error) if error.to_string().contains("connection error"));
    match last_answer(SOON, call, |done| !is_reset(done)) {
        Err(error) if error.to_string().contains("not found") => Ok(()),
        done => done.map(drop),
    }
}
