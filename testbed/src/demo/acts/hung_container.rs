//! Act 1: a shim is frozen, then its pod is deleted. Kubernetes says Ready and `1/1 Terminating` for ever. CRI-O ends a pod whose conmon is
//! frozen, so that pod is not deleted.

use anyhow::{Context, Result};

use super::super::act::Act;
use super::super::stage::Stage;
use super::super::workloads::NAMESPACE;
use crate::faults::{self, Injection};
use crate::view::Allowed;

const DAEMON_SET: &str = "log-shipper";

/// See the module.
#[derive(Debug, Default)]
pub(in super::super) struct HungContainer;

const fn deletes(stage: &Stage) -> bool {
    !stage.sick.has_conmon()
}

impl Act for HungContainer {
    fn name(&self) -> &'static str {
        "hung-container"
    }

    fn fault(&self) -> &'static str {
        "HungContainer"
    }

    fn story(&self) -> &'static str {
        "the shim of a DaemonSet pod is frozen, then the pod is deleted: the node says Ready, the pod stays `1/1 Terminating`"
    }

    fn prepare(&mut self, stage: &Stage) -> Result<()> {
        stage.running_pod(DAEMON_SET).map(drop)
    }

    fn inject(&mut self, stage: &Stage) -> Result<Injection> {
        let pod = stage.running_pod(DAEMON_SET)?;
        let injection = faults::freeze_shim(&stage.sick, &pod.uid)?;
        if deletes(stage) {
            stage.delete_pod(&pod)?;
        }
        Ok(injection)
    }

    fn sick(&self, stage: &Stage, injection: &Injection) -> Result<bool> {
        let uid = injection.victim.pod_uid.as_deref().context("the victim is a pod")?;
        Ok(injection.is_stopped(&stage.sick)
            && stage.pod_by_uid(uid)?.is_some_and(|pod| pod.deleting == deletes(stage)))
    }

    fn executed(&self, stage: &Stage, injection: &Injection) -> Result<bool> {
        Ok(!injection.is_stopped(&stage.sick))
    }

    fn resolved(&self, stage: &Stage, injection: &Injection) -> Result<bool> {
        let uid = injection.victim.pod_uid.as_deref().context("the victim is a pod")?;
        let before = deletes(stage).then_some(uid);
        Ok(!injection.is_stopped(&stage.sick)
            && stage.pod_by_uid(uid)?.is_none() == deletes(stage)
            && stage.daemon_set_runs(DAEMON_SET, before)?)
    }

    fn allowed(&self, stage: &Stage) -> Allowed {
        Allowed::default().pods(NAMESPACE, DAEMON_SET).pods("nrh-node", &stage.sick.name)
    }
}
