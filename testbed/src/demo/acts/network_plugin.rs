//! Act 3a: a CNI plugin hangs while it holds a file lock, others wait behind it. Pods sit in `ContainerCreating`, no event.

use std::cell::Cell;

use anyhow::Result;

use super::super::act::Act;
use super::super::stage::Stage;
use super::super::workloads::NAMESPACE;
use super::super::writes::Write;
use crate::faults::{self, Injection};
use crate::view::Allowed;

const DAEMON_SETS: [&str; 2] = ["net-a", "net-b"];

/// See the module.
#[derive(Debug, Default)]
pub(in super::super) struct NetworkPlugin {
    old: Vec<String>,
    cordoned: Cell<bool>,
    /// Whether the node is expected to be cordoned meanwhile.
    enforced: bool,
}

impl NetworkPlugin {
    /// The act as the enforcing policy repairs it: the node is cordoned meanwhile.
    pub(in super::super) fn enforced() -> Self {
        Self { enforced: true, ..Self::default() }
    }
}

impl Act for NetworkPlugin {
    fn name(&self) -> &'static str {
        "hung-network-plugin"
    }

    fn fault(&self) -> &'static str {
        "NetworkPluginHung"
    }

    fn story(&self) -> &'static str {
        "a CNI plugin hangs with a lock in its hand, another waits behind it: two DaemonSet pods sit in ContainerCreating without an event"
    }

    fn prepare(&mut self, stage: &Stage) -> Result<()> {
        DAEMON_SETS.iter().try_for_each(|name| stage.running_pod(name).map(drop))
    }

    fn inject(&mut self, stage: &Stage) -> Result<Injection> {
        let pods = DAEMON_SETS.iter().map(|name| stage.running_pod(name)).collect::<Result<Vec<_>>>()?;
        self.old = pods.iter().map(|pod| pod.uid.clone()).collect();
        let gate = faults::hang_cni_add(&stage.sick)?;
        pods.iter().try_for_each(|pod| stage.delete_pod(pod))?;
        faults::await_gate_holder(&stage.sick, &gate)
    }

    fn sick(&self, stage: &Stage, injection: &Injection) -> Result<bool> {
        let waiting = DAEMON_SETS.iter().map(|name| stage.daemon_set_runs(name, None)).collect::<Result<Vec<_>>>()?;
        Ok(injection.is_there(&stage.sick) && !waiting.contains(&true))
    }

    fn executed(&self, stage: &Stage, injection: &Injection) -> Result<bool> {
        if stage.node_field("{.spec.unschedulable}")? == "true" {
            self.cordoned.set(true);
        }
        Ok(!injection.is_there(&stage.sick))
    }

    fn resolved(&self, stage: &Stage, injection: &Injection) -> Result<bool> {
        let cordoned = stage.node_field("{.spec.unschedulable}")? == "true";
        if cordoned {
            self.cordoned.set(true);
        }
        for (name, old) in DAEMON_SETS.iter().zip(&self.old) {
            if !stage.daemon_set_runs(name, Some(old))? {
                return Ok(false);
            }
        }
        Ok(!injection.is_there(&stage.sick) && !cordoned && (self.cordoned.get() || !self.enforced))
    }

    fn allowed(&self, stage: &Stage) -> Allowed {
        DAEMON_SETS
            .iter()
            .fold(Allowed::default(), |allowed, name| allowed.pods(NAMESPACE, name))
            .pods("nrh-node", &stage.sick.name)
    }

    fn writes(&self, stage: &Stage) -> Vec<Write> {
        let node = stage.sick.name.as_str();
        Write::jobs(node).into_iter().chain([Write::new("patch", "nodes", node)]).collect()
    }
}
