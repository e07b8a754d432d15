//! Act 3b: a DaemonSet pod waits in `CrashLoopBackOff` at its longest back-off although its cause is gone.

use std::time::Duration;

use anyhow::{Context, Result};

use super::super::act::Act;
use super::super::stage::Stage;
use super::super::wait::{wait, wait_within};
use super::super::workloads::{CAUSES, NAMESPACE};
use super::super::writes::Write;
use crate::faults::{self, Fault, Injection, Victim};
use crate::view::{self, Allowed, Pod};

/// The longest back-off of a kubelet with default settings.
const BACK_OFF: f64 = 300.0;
/// Restarts before it: one at once, then after back-offs of 10, 20, 40, 80 and 160 s.
const RESTARTS: i32 = 6;
/// The back-off before it.
const BEFORE_LONGEST: Duration = Duration::from_secs(160);

/// Seconds after its end in which a kubelet reports it; on a machine, which may have no KVM.
const JUST_BEGUN: [f64; 2] = [12.0, 45.0];

/// See the module.
#[derive(Debug)]
pub(in super::super) struct BackOff {
    daemon_set: &'static str,
    /// The enforcing policy, applied once the cause is gone: before that, a new pod would only fail again.
    policy: Option<&'static str>,
}

impl BackOff {
    pub(in super::super) const fn control() -> Self {
        Self { daemon_set: "crash-control", policy: None }
    }

    pub(in super::super) const fn enforced(policy: &'static str) -> Self {
        Self { daemon_set: "crash-loop", policy: Some(policy) }
    }

    /// Lets the crash loops begin, that of the control only where there is one: they need 310 s to the longest back-off.
    pub(in super::super) fn begin(stage: &Stage, controls: bool) -> Result<()> {
        let (control, loops) = ("crash-control", "crash-loop");
        for name in [loops].into_iter().chain(controls.then_some(control)) {
            faults::set_cause(&stage.sick, &format!("{CAUSES}/{name}"))?;
        }
        stage.bed.kubectl(&["label", "node", &stage.sick.name, "demo/crash=true", "--overwrite"])?;
        // Else the next act would find their sandboxes among its own changes.
        wait("the pods of the crash loops are started", || {
            let [control, loops] = [control, loops].map(|name| stage.pod_of(name));
            let has_crashed = |pod: &Pod| pod.containers.iter().any(|container| container.restarts > 0);
            Ok(control?.is_some_and(|pod| pod.ready || has_crashed(&pod))
                && loops?.is_some_and(|pod| has_crashed(&pod)))
        })
    }

    /// Seconds since the container ended, if it waits at the longest back-off.
    ///
    /// The kubelet names the length of a back-off only when it tries the pod again, up to a minute and a half later. It
    /// doubles from 10 s with each end but the first, so the one after six restarts is the longest; that 2 min 40 s were named
    /// shows that the kubelet has counted from the beginning.
    fn waits(&self, stage: &Stage) -> Result<Option<(Pod, f64)>> {
        let Some(pod) = stage.pod_of(self.daemon_set)? else { return Ok(None) };
        let last = view::back_off(&stage.sick, &pod.uid)?;
        if last.is_none_or(|last| last < BEFORE_LONGEST) {
            return Ok(None);
        }
        if pod.containers.iter().all(|container| container.restarts < RESTARTS) {
            return Ok(None);
        }
        let ended = pod.containers.iter().filter_map(|container| container.finished).max();
        Ok(ended.map(|at| (pod, jiff::Timestamp::now().duration_since(at).as_secs_f64())))
    }
}

impl Act for BackOff {
    fn name(&self) -> &'static str {
        "back-off-pod"
    }

    fn fault(&self) -> &'static str {
        "StuckDaemonSetPod"
    }

    fn story(&self) -> &'static str {
        "a DaemonSet pod has just begun a back-off of 300 s, and right then the cause of its crashes is removed"
    }

    fn prepare(&mut self, stage: &Stage) -> Result<()> {
        stage.tell.say(&format!("waiting until {} has just begun a back-off of 5 minutes", self.daemon_set));
        wait_within("a back-off of 5 minutes begins", Duration::from_mins(12), || {
            Ok(self.waits(stage)?.is_some_and(|(_, ended)| ended < JUST_BEGUN[usize::from(stage.sick.is_machine())]))
        })
    }

    fn inject(&mut self, stage: &Stage) -> Result<Injection> {
        let (pod, _) = self.waits(stage)?.context("the pod does not wait any more")?;
        let path = format!("{CAUSES}/{}", self.daemon_set);
        let victim = Victim { pod_uid: Some(pod.uid), path: Some(path.into()), ..Victim::default() };
        let injection = Injection::now(Fault::FailingWorkload, &stage.sick, victim);
        injection.lift(&stage.sick)?;
        if let Some(policy) = self.policy {
            stage.apply_policy(policy)?;
        }
        Ok(injection)
    }

    fn sick(&self, stage: &Stage, injection: &Injection) -> Result<bool> {
        let uid = injection.victim.pod_uid.as_deref().context("the victim is a pod")?;
        Ok(stage.pod_by_uid(uid)?.is_some_and(|pod| !pod.deleting) && !stage.daemon_set_runs(self.daemon_set, None)?)
    }

    fn executed(&self, stage: &Stage, injection: &Injection) -> Result<bool> {
        let uid = injection.victim.pod_uid.as_deref().context("the victim is a pod")?;
        Ok(stage.pod_by_uid(uid)?.is_none_or(|pod| pod.deleting))
    }

    fn resolved(&self, stage: &Stage, injection: &Injection) -> Result<bool> {
        stage.daemon_set_runs(self.daemon_set, injection.victim.pod_uid.as_deref())
    }

    fn lift(&mut self, stage: &Stage, injection: &Injection) -> Result<()> {
        // The kubelet itself would start it at the end of the back-off, minutes from now: the policy of a later act would be
        // about this pod too.
        let uid = injection.victim.pod_uid.as_deref().context("the victim is a pod")?;
        if let Some(pod) = stage.pod_by_uid(uid)? {
            stage.delete_pod(&pod)?;
        }
        wait("the control's workload runs", || stage.daemon_set_runs(self.daemon_set, Some(uid)))
    }

    fn allowed(&self, stage: &Stage) -> Allowed {
        // Both loops: the control's goes on by itself meanwhile.
        Allowed::default().pods(NAMESPACE, "crash-").pods("nrh-node", &stage.sick.name)
    }

    fn writes(&self, stage: &Stage) -> Vec<Write> {
        vec![
            Write::new("delete", "pods", format!("{}-", self.daemon_set)),
            Write::new("patch", "nodes", &stage.sick.name),
        ]
    }

    fn limit(&self) -> Duration {
        // Well before the back-off would have ended by itself.
        Duration::from_secs_f64(BACK_OFF - 60.0)
    }
}
