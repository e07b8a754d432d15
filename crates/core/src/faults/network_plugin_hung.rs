//! `NetworkPluginHung`: the one CNI plugin process that the others wait for.

use std::time::Duration;

use super::spec::{ByDaemon, FaultSpec, Holds, Remedy};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, MAX_LINE, PodRef, Role, Severity, Subject, SubjectKind, Target};
use crate::finding::{
    Check, Coverage, Detected, Findings, HangConfirmation, Sighting, Verdict, absent_of, bounded_pod, describe, of_pod,
    pod_of, process_ref, processes, short,
};
use crate::observation::{Observations, PossibleRole, ProcessRole, ProcessSeen};
use crate::reason::ConditionReason;
use crate::text::bounded;
use crate::thresholds::{Bound, Confirm, Thresholds};

/// Three checks 10 s apart of a plugin that is already older than [`AGE`].
const CONFIRM: Confirm = Confirm::new("networkPluginHung", 3, 10, 20).may_be_slow();

/// Age from which a CNI plugin process counts as hung. Plugins take well under a second; the runtime gives up only after minutes.
pub const AGE: Bound = Bound::new("networkPluginAge", 60);

pub(super) const SPEC: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM],
    bounds: &[&AGE],
    condition: Some(ConditionType::NetworkPluginResponsive),
    time_to_confirm: Some(|of| of.bound(&AGE).saturating_add(of.confirm(&CONFIRM).usual_time())),
    // A restart interrupts the plugin half-way.
    restart_harms: |_| ByDaemon { kubelet: false, runtime: true },
    holds: Holds::OwnPodAndWaiters,
    remedy: Remedy { hung_process: Ok(Role::NetworkPlugin), new_boot: Ok(()), ..Remedy::USUAL },
    ..FaultSpec::new(FaultGroup::Pods, Severity::High, SubjectKind::NetworkPlugin)
};

/// A plugin process that is older than the bound.
#[derive(Clone, Copy)]
struct Old<'a> {
    process: &'a ProcessSeen,
    plugin: &'a str,
    sandbox_id: Option<&'a str>,
    pod_uid: Option<&'a str>,
    /// `namespace/name` of the pod, as the call says.
    pod_name: Option<&'a str>,
    holds: &'a [String],
    waits: bool,
    waiters: u32,
}

pub(super) fn detect(check: &Check<'_>, findings: &mut Findings) -> Detected {
    let &Check { seen, thresholds, .. } = check;
    let confirm = check.hangs(&CONFIRM);
    let (table, checked) = processes(seen)?;
    let mut old: Vec<Old> = table.processes.iter().filter_map(|p| old_plugin(p, thresholds.bound(&AGE))).collect();
    old.sort_by_key(|plugin| (plugin.process.start_ticks, plugin.process.pid));
    let mut coverage = Coverage::new(absent_of(PossibleRole::NetworkPlugin, thresholds.bound(&AGE), table, checked));
    // A plugin may have been known under another key before: of one that waits uninterruptibly, a probe that has just started cannot
    // read the pod, and a lock is not known any more once nobody waits for it.
    if let Some(plugin) = old.iter().find(|plugin| plugin.pod_uid.or(plugin.sandbox_id).is_none()) {
        let detail = format!("which pod {} was called for is not known", describe(plugin.process));
        coverage.others = Verdict::unknown(ConditionReason::FaultSuspected, &detail);
    }
    // The fault may name one plugin after another while the same processes hang. None of them is clean before it has ended.
    for plugin in &old {
        let detail = format!("{} is old too; another one is blamed", describe(plugin.process));
        for name in plugin.names() {
            coverage.note(&name, Verdict::unknown(ConditionReason::FaultSuspected, &detail));
        }
    }
    for culprit in culprits(&old) {
        findings.sight(sighting(&culprit, &old, seen, checked, thresholds, confirm));
    }
    Ok(coverage)
}

impl Old<'_> {
    /// The key of the fault: the pod that the plugin was called for, whose next sandbox meets the same fault, else the sandbox. A
    /// lock is known only while others wait for it, so it is the key only if nothing else is known.
    fn key(&self) -> String {
        let lock = || self.holds.first().map(|path| bounded(path, MAX_LINE));
        let of = self.pod_uid.or(self.sandbox_id).map(str::to_owned);
        of.or_else(lock).unwrap_or_else(|| bounded(self.plugin, 64))
    }

    /// The pod that the plugin was called for, if the runtime lists a sandbox of it. What the call says alone is only shown: no action
    /// may rest on it.
    fn pod(&self, seen: &Observations) -> Option<PodRef> {
        let is_named = |pod: &PodRef| {
            let name = format!("{}/{}", pod.namespace, pod.name);
            self.pod_uid == Some(&pod.uid) && self.pod_name == Some(&name)
        };
        let by_sandbox = self.sandbox_id.and_then(|id| pod_of(id, seen));
        let by_call = || {
            let mut pods = seen.lists.value()?.sandboxes.iter().map(|sandbox| &sandbox.pod);
            pods.find(|pod| is_named(pod)).map(bounded_pod)
        };
        by_sandbox.or_else(by_call)
    }

    /// Every key under which an earlier or later check may have known the plugin, with more or less visible.
    fn names(&self) -> impl Iterator<Item = String> + '_ {
        let ids = [self.pod_uid, self.sandbox_id].into_iter().flatten().map(str::to_owned);
        let locks = self.holds.iter().map(|path| bounded(path, MAX_LINE));
        ids.chain(locks).chain([bounded(self.plugin, 64)])
    }
}

fn old_plugin(process: &ProcessSeen, bound: Duration) -> Option<Old<'_>> {
    match &process.role {
        ProcessRole::NetworkPlugin { plugin, sandbox_id, pod_uid, pod_name, holds, waits, waiters }
            if process.age >= bound =>
        {
            let (sandbox_id, pod_uid, pod_name) = (sandbox_id.as_deref(), pod_uid.as_deref(), pod_name.as_deref());
            Some(Old { process, plugin, sandbox_id, pod_uid, pod_name, holds, waits: *waits, waiters: *waiters })
        }
        _ => None,
    }
}

/// The plugins that block all others: those that hold a lock and wait for none; else the oldest that waits for none; else the
/// oldest of all. A plugin that waits for a child of its own is not the one to end. `old` is sorted, oldest first.
fn culprits<'a>(old: &[Old<'a>]) -> Vec<Old<'a>> {
    let holders: Vec<Old> = old.iter().filter(|plugin| !plugin.waits && !plugin.holds.is_empty()).copied().collect();
    if !holders.is_empty() {
        return holders;
    }
    let is_parent = |plugin: &Old| old.iter().any(|other| other.process.parent == plugin.process.pid);
    old.iter()
        .find(|plugin| !plugin.waits && !is_parent(plugin))
        .or_else(|| old.iter().find(|plugin| !plugin.holds.is_empty()))
        .or_else(|| old.first())
        .map(|plugin| vec![*plugin])
        .unwrap_or_default()
}

fn sighting(
    culprit: &Old<'_>,
    all: &[Old<'_>],
    seen: &Observations,
    checked: Duration,
    thresholds: &Thresholds,
    confirm: HangConfirmation,
) -> Sighting {
    let lock = culprit.holds.first().map(|path| bounded(path, MAX_LINE));
    let plugin = bounded(culprit.plugin, 64);
    let pod = culprit.pod(seen);
    let victim = culprit.waits && culprit.holds.is_empty();
    let blame = match &lock {
        Some(lock) => format!(" and holds the lock of {lock}, for which others wait"),
        None if victim => " and waits for a lock whose holder was not found".to_owned(),
        None => String::new(),
    };
    let by_call = || culprit.pod_name.map_or_else(String::new, |name| format!(" of {}", bounded(name, 317)));
    let message = format!(
        "network plugin {plugin}{} has been at work for more than {} s{blame}: {}",
        pod.as_ref().map_or_else(by_call, |pod| of_pod(Some(pod))),
        thresholds.bound(&AGE).as_secs(),
        describe(culprit.process)
    );
    let mut evidence = vec![format!("{} is {} s old", describe(culprit.process), culprit.process.age.as_secs())];
    evidence.extend(culprit.sandbox_id.map(|id| format!("called for sandbox {}", short(id))));
    evidence.extend(seen.processes.value().and_then(|table| table.left_out.locks.clone()));
    if culprit.waiters > 0 {
        evidence.push(format!("{} processes wait for a lock it holds", culprit.waiters));
    }
    for other in all.iter().filter(|other| other.process.pid != culprit.process.pid) {
        let how = if other.waits { "waits for a lock" } else { "is old too" };
        evidence.push(format!("{}: {how}, {} s old", describe(other.process), other.process.age.as_secs()));
    }
    // A plugin that only waits is no target: its end releases nobody.
    let process = (!victim).then(|| process_ref(culprit.process, Role::NetworkPlugin));
    let sandbox_id = culprit.sandbox_id.map(|id| bounded(id, 128));
    Sighting {
        subject: Subject {
            name: Some(plugin),
            pod: pod.clone(),
            sandbox_id: sandbox_id.clone(),
            lock: lock.clone(),
            ..Subject::of(SubjectKind::NetworkPlugin)
        },
        target: Target { process, sandbox_id, pod, lock, ..Target::default() },
        message,
        impact: "pods that need this network wait in ContainerCreating or Terminating, without an event for minutes",
        evidence,
        ..Sighting::new(FaultType::NetworkPluginHung, &culprit.key(), checked, confirm.of(culprit.process, thresholds))
    }
}
