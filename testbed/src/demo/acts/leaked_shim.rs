//! Act 2a: containerd is restarted while a shim is frozen. The pod is replaced, the old shim stays for ever, in no API.

use anyhow::{Result, bail};

use super::super::act::Act;
use super::super::stage::Stage;
use super::super::wait::wait;
use super::super::workloads::NAMESPACE;
use crate::faults::{self, Injection};
use crate::view::{self, Allowed};

const DAEMON_SET: &str = "node-metrics";

/// See the module.
#[derive(Debug, Default)]
pub(in super::super) struct LeakedShim;

/// Whether the kubelet's log says that it removed the container itself.
fn removed_by_kubelet(stage: &Stage, id: &str) -> bool {
    let line = format!("\"RemoveContainer\" containerID=\"{id}\"");
    stage.sick.run("grep", &["-qF", &line, "/var/log/kubelet.log"]).is_ok()
}

impl Act for LeakedShim {
    fn name(&self) -> &'static str {
        "leaked-shim"
    }

    fn fault(&self) -> &'static str {
        "LeakedShim"
    }

    fn story(&self) -> &'static str {
        "containerd was restarted while a shim was frozen: the pod is replaced, the old shim stays, and no API shows it"
    }

    fn prepare(&mut self, stage: &Stage) -> Result<()> {
        stage.running_pod(DAEMON_SET).map(drop)
    }

    fn inject(&mut self, stage: &Stage) -> Result<Injection> {
        let pod = stage.running_pod(DAEMON_SET)?;
        let injection = faults::leaked_shim(&stage.sick, &pod.uid)?;
        wait("the pod is replaced", || stage.daemon_set_runs(DAEMON_SET, None))?;
        Ok(injection)
    }

    fn sick(&self, stage: &Stage, injection: &Injection) -> Result<bool> {
        Ok(injection.is_there(&stage.sick))
    }

    fn resolved(&self, stage: &Stage, injection: &Injection) -> Result<bool> {
        if injection.is_there(&stage.sick) || !stage.daemon_set_runs(DAEMON_SET, None)? {
            return Ok(false);
        }
        // The kubelet keeps a dead instance for `logs --previous`, or removes it itself and logs that; taking it would be one act
        // too many.
        let lists = view::lists(&stage.sick.socket(), view::LIMIT)?;
        let pod = injection.victim.pod_uid.as_deref();
        let is_kept = lists.containers.iter().any(|container| pod == Some(&container.pod.uid) && !container.running());
        if !is_kept && !injection.victim.containers.iter().all(|id| removed_by_kubelet(stage, id)) {
            bail!(
                "pod {} has no exited container any more, and the kubelet logs no removal; expected {:?}, found {:?}",
                pod.unwrap_or_default(),
                injection.victim.containers,
                lists
                    .containers
                    .iter()
                    .filter(|container| container.pod.name.starts_with(DAEMON_SET))
                    .collect::<Vec<_>>(),
            );
        }
        Ok(true)
    }

    fn lift(&mut self, stage: &Stage, injection: &Injection) -> Result<()> {
        injection.lift(&stage.sick)?;
        wait("the leaked shim of the control ends", || Ok(!injection.is_there(&stage.sick)))
    }

    fn allowed(&self, stage: &Stage) -> Allowed {
        Allowed::default()
            .pods(NAMESPACE, DAEMON_SET)
            .pods("nrh-node", &stage.sick.name)
            .program(&stage.sick.name, "containerd")
    }
}
