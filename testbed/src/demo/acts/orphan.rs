//! Act 2b: nothing runs on the node. A work container has lost its sandbox, every container is stopped, the probe's pod too,
//! and the kubelet, behind a stand-in for the start of kubelets up to 1.23, does not start while an orphan exists.

use anyhow::{Context, Result};

use super::super::act::Act;
use super::super::stage::Stage;
use super::super::workloads::NAMESPACE;
use super::super::writes::Write;
use crate::faults::{self, Injection};
use crate::view::{self, Allowed};
use crate::{KubeletStart, node};

const DAEMON_SET: &str = "mesh-agent";
/// Name of the probe in unit mode among the node's programs: on a user's node a systemd unit runs it, all the time.
const UNIT: &str = "nrh-probe-unit";

/// See the module.
#[derive(Debug, Default)]
pub(in super::super) struct Orphan {
    /// The milder case: only the kubelet is down, containers run on, the probe's pod among them.
    pods_run_on: bool,
}

impl Orphan {
    /// The case in which the probe's pod still runs and takes the command.
    pub(in super::super) const fn probe_runs() -> Self {
        Self { pods_run_on: true }
    }

    fn orphan_there(stage: &Stage, injection: &Injection) -> Result<bool> {
        let lists = view::lists(&stage.sick.socket(), view::LIMIT)?;
        Ok(lists.orphans().any(|container| injection.victim.containers.contains(&container.id)))
    }

    fn start_unit(stage: &Stage) -> Result<()> {
        if stage.sick.daemon(UNIT).is_some() {
            return Ok(());
        }
        stage.tell.say("nrh-probe runs on the node as a unit too, and waits: the probe's pod holds the lock");
        let mut argv = vec![stage.sick.bring(&stage.programs.probe)?.display().to_string()];
        argv.extend(["--unit", "--allow-actions", "--kubeconfig", node::KUBELET_KUBECONFIG].map(str::to_owned));
        argv.extend(["--node-name".to_owned(), stage.sick.name.clone()]);
        stage.sick.start(UNIT, &argv).map(drop).context("start the probe as a unit")
    }
}

impl Act for Orphan {
    fn name(&self) -> &'static str {
        if self.pods_run_on { "orphan-probe-runs" } else { "orphan-nothing-runs" }
    }

    fn fault(&self) -> &'static str {
        "OrphanContainer"
    }

    fn story(&self) -> &'static str {
        if self.pods_run_on {
            return "a work container has lost its sandbox and the kubelet does not start; the probe's pod still runs";
        }
        "a work container has lost its sandbox, every container is stopped, and the kubelet (behind a labelled stand-in for \
         kubelets up to 1.23) refuses to start while the orphan exists: no Job and no DaemonSet pod can run here"
    }

    fn prepare(&mut self, stage: &Stage) -> Result<()> {
        stage.running_pod(DAEMON_SET)?;
        if self.pods_run_on { Ok(()) } else { Self::start_unit(stage) }
    }

    fn inject(&mut self, stage: &Stage) -> Result<Injection> {
        let pod = stage.running_pod(DAEMON_SET)?;
        let injection = faults::lose_sandbox(&stage.sick, &pod.uid)?;
        if !self.pods_run_on {
            faults::stop_all_containers(&stage.sick)?;
        }
        stage.sick.start_kubelet(KubeletStart { start_check: true })?;
        Ok(injection)
    }

    fn sick(&self, stage: &Stage, injection: &Injection) -> Result<bool> {
        Self::orphan_there(stage, injection)
    }

    fn resolved(&self, stage: &Stage, injection: &Injection) -> Result<bool> {
        let ready = stage.node_field(r#"{.status.conditions[?(@.type=="Ready")].status}"#)? == "True";
        Ok(ready && !Self::orphan_there(stage, injection)? && stage.daemon_set_runs(DAEMON_SET, None)?)
    }

    fn allowed(&self, stage: &Stage) -> Allowed {
        let node = &stage.sick.name;
        let allowed = Allowed::default();
        let allowed = if self.pods_run_on { allowed } else { allowed.stopped_node(node) };
        allowed
            .pods(NAMESPACE, DAEMON_SET)
            .program(node, "containerd")
            .program(node, "kubelet")
            .program(node, "testbed")
            .program(node, "nrh-probe")
    }

    fn writes(&self, _: &Stage) -> Vec<Write> {
        Vec::new()
    }
}
