//! Pods of suspects, read on demand: what the kubelet reports about a DaemonSet pod that does not start.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use nrh_core::fault::PodRef;
use nrh_core::go_duration;
use nrh_core::matching::PodTraits;
use nrh_core::moment::since;
use nrh_core::snapshot::{FailedContainer, SuspectPod, WaitingContainer};
use nrh_core::text::bounded;

/// Largest number of waiting containers per pod, and of failed ones.
const MAX_WAITING: usize = 16;

/// The owner that controls a pod.
pub fn controller(pod: &Pod) -> Option<&OwnerReference> {
    pod.metadata.owner_references.as_deref()?.iter().find(|owner| owner.controller == Some(true))
}

/// The DaemonSet that a pod names as its controller. The creator of a pod writes that: its uid proves it.
pub fn daemon_set(pod: &Pod) -> Option<&OwnerReference> {
    controller(pod).filter(|owner| owner.kind == "DaemonSet" && owner.api_version.starts_with("apps/"))
}

/// What policies ask of a pod, at the time of the read.
pub fn traits(pod: &Pod, asked: &BTreeSet<String>) -> PodTraits {
    let none = BTreeMap::new();
    let labels = pod.metadata.labels.as_ref().unwrap_or(&none);
    PodTraits::of(labels, controller(pod).map(|owner| owner.kind.as_str()), asked)
}

/// The names by which faults know a pod: with its uid, and for the mirror of a static pod also with the uid on its node.
pub fn names(pod: &Pod) -> impl Iterator<Item = PodRef> {
    let named = pod_ref(pod);
    uids(pod).map(move |uid| PodRef { uid: uid.to_owned(), ..named.clone() })
}

/// The uid of a pod, and for the mirror of a static pod also its uid on the node.
pub fn uids(pod: &Pod) -> impl Iterator<Item = &str> {
    let hash = pod.metadata.annotations.as_ref().and_then(|all| all.get("kubernetes.io/config.hash"));
    pod.metadata.uid.as_deref().into_iter().chain(hash.map(String::as_str))
}

/// The reference to a pod.
pub fn pod_ref(pod: &Pod) -> PodRef {
    PodRef {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
    }
}

/// A pod as a suspect, read at `now`; `None` when it is bound to no node.
pub fn suspect(pod: &Pod, now: Timestamp) -> Option<SuspectPod> {
    let spec = pod.spec.as_ref()?;
    let node = spec.node_name.clone().filter(|name| !name.is_empty())?;
    let status = pod.status.as_ref();
    let conditions = status.and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    let all = [
        status.and_then(|s| s.init_container_statuses.as_deref()).unwrap_or_default(),
        status.and_then(|s| s.container_statuses.as_deref()).unwrap_or_default(),
    ];
    let age = pod.metadata.creation_timestamp.as_ref().map_or(Duration::ZERO, |time| since(now, time.0));
    Some(SuspectPod {
        pod: pod_ref(pod),
        node,
        daemon_set: daemon_set(pod).map(|owner| owner.name.clone()),
        host_network: spec.host_network == Some(true),
        ready: conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True"),
        age,
        // The age is by the clock of the API server, the other time by that of the node, which may be wrong.
        without_sandbox: without_sandbox(status, now).map(|lasted| lasted.min(age)),
        // The timestamp already includes the grace period.
        overdue: pod.metadata.deletion_timestamp.as_ref().map(|time| since(now, time.0)),
        waiting: all.into_iter().flatten().filter_map(|c| waiting(c, now)).take(MAX_WAITING).collect(),
        failed: all
            .into_iter()
            .flatten()
            .filter(|status| is_restarted(pod, &status.name))
            .filter_map(|status| failed(status, now))
            .take(MAX_WAITING)
            .collect(),
        read: Duration::ZERO,
    })
}

/// How long the kubelet has known the pod without a sandbox and a network for it.
fn without_sandbox(status: Option<&PodStatus>, now: Timestamp) -> Option<Duration> {
    let status = status?;
    let taken_up = status.start_time.as_ref()?.0;
    let condition = status.conditions.as_deref()?.iter().find(|c| c.type_ == "PodReadyToStartContainers")?;
    let turned = condition.last_transition_time.as_ref().map_or(taken_up, |time| time.0);
    (condition.status == "False").then(|| since(now, taken_up.max(turned)))
}

fn waiting(container: &ContainerStatus, now: Timestamp) -> Option<WaitingContainer> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    Some(WaitingContainer {
        name: bounded(&container.name, 253),
        reason: bounded(waiting.reason.as_deref().unwrap_or_default(), 64),
        back_off: waiting.message.as_deref().and_then(back_off),
        ended: last.and_then(|last| last.finished_at.as_ref()).map(|time| since(now, time.0)),
        restarts: u32::try_from(container.restart_count).unwrap_or(0),
    })
}

/// Whether the kubelet starts that container again whenever it ends.
fn is_restarted(pod: &Pod, name: &str) -> bool {
    let Some(spec) = pod.spec.as_ref() else { return false };
    let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let own = containers.find(|container| container.name == name).map(|container| container.restart_policy.as_deref());
    // The container's own policy takes precedence over the pod's.
    own.is_some_and(|own| own.or(spec.restart_policy.as_deref()) == Some("Always"))
}

fn failed(container: &ContainerStatus, now: Timestamp) -> Option<FailedContainer> {
    let ended = container.state.as_ref()?.terminated.as_ref()?;
    let finished = ended.finished_at.as_ref()?.0;
    // An end in the future, or a successful end, is no failure.
    if ended.exit_code == 0 || finished > now {
        return None;
    }
    let started = ended.started_at.as_ref().map(|time| time.0).filter(|started| *started <= finished);
    let before = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let before = before.and_then(|before| before.finished_at.as_ref()).map(|time| time.0);
    Some(FailedContainer {
        name: bounded(&container.name, 253),
        ended: since(now, finished),
        ran: started.map(|started| since(finished, started)),
        waited: started.zip(before).map(|(started, before)| since(started, before)),
        restarts: u32::try_from(container.restart_count).unwrap_or(0),
    })
}

/// The kubelet's back-off in its own words: `back-off 5m0s restarting failed container=…`.
pub fn back_off(message: &str) -> Option<Duration> {
    let text = message.strip_prefix("back-off ")?.split(' ').next()?;
    go_duration::parse(text).filter(|back_off| !back_off.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn the_back_off_is_read_from_the_kubelets_sentence_or_not_at_all() {
        let text = "back-off 5m0s restarting failed container=app pod=app-x_default(uid)";
        assert_eq!(back_off(text), Some(Duration::from_mins(5)));
        assert_eq!(back_off("back-off 2m40s restarting failed container=a"), Some(Duration::from_secs(160)));
        assert_eq!(back_off("back-off 10s restarting"), Some(Duration::from_secs(10)));
        for other in
            ["", "back-off", "back-off soon", "back-off 5", "back-off 5m0", "waiting 5m0s", "back-off 99999999h x"]
        {
            assert_eq!(back_off(other), None, "{other}");
        }
    }

    #[test]
    fn a_pod_in_its_grace_period_is_not_overdue_yet() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "ds-x", "namespace": "d", "uid": "u", "creationTimestamp": "2025-01-01T00:00:00Z",
                "deletionTimestamp": "2025-01-01T01:00:00Z", "deletionGracePeriodSeconds": 30,
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "ds", "uid": "o", "controller": true}]},
            "spec": {"nodeName": "w1", "containers": []},
            "status": {"containerStatuses": [{"name": "app", "image": "", "imageID": "", "ready": false, "restartCount": 9,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container=app"}},
                "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2025-01-01T00:58:00Z"}}}]}}))
        .unwrap();
        let early = suspect(&pod, at("2025-01-01T00:59:50Z")).unwrap();
        assert_eq!(early.overdue, Some(Duration::ZERO));
        assert_eq!(early.daemon_set.as_deref(), Some("ds"));
        let late = suspect(&pod, at("2025-01-01T01:02:00Z")).unwrap();
        assert_eq!(late.overdue, Some(Duration::from_mins(2)));
        let waits = late.waiting.first().unwrap();
        assert_eq!(waits.back_off, Some(Duration::from_mins(5)));
        assert_eq!(waits.ended, Some(Duration::from_mins(4)));
        assert_eq!((late.ready, waits.restarts), (false, 9));
    }

    #[test]
    fn a_failed_container_that_is_started_again_is_told_with_its_times() {
        let pod = |restart: &str, code: i32, ended: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": "a"},
                "spec": {"nodeName": "w1", "restartPolicy": restart, "containers": [{"name": "app"}]},
                "status": {"containerStatuses": [{"name": "app", "image": "", "imageID": "", "ready": false, "restartCount": 6,
                    "state": {"terminated": {"exitCode": code, "startedAt": "2025-01-01T00:02:45Z", "finishedAt": ended}},
                    "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2025-01-01T00:00:00Z"}}}]}}))
            .unwrap()
        };
        let now = at("2025-01-01T00:04:00Z");
        let seen = |pod: &Pod| suspect(pod, now).unwrap().failed;
        let secs = Duration::from_secs;
        let expected = FailedContainer {
            name: "app".to_owned(),
            ended: secs(70),
            ran: Some(secs(5)),
            waited: Some(secs(165)),
            restarts: 6,
        };
        assert_eq!(seen(&pod("Always", 1, "2025-01-01T00:02:50Z")), std::slice::from_ref(&expected));
        assert_eq!(seen(&pod("OnFailure", 1, "2025-01-01T00:02:50Z")), []);
        assert_eq!(seen(&pod("Always", 0, "2025-01-01T00:02:50Z")), []);
        assert_eq!(seen(&pod("Always", 1, "2025-01-01T00:04:01Z")), [], "an end still to come");
        let mut own = pod("Always", 1, "2025-01-01T00:02:50Z");
        own.spec.as_mut().unwrap().containers[0].restart_policy = Some("Never".to_owned());
        assert_eq!(seen(&own), [], "the container's own word");
        let mut bare = pod("Always", 1, "2025-01-01T00:02:50Z");
        let status = &mut bare.status.as_mut().unwrap().container_statuses.as_mut().unwrap()[0];
        status.last_state = None;
        assert_eq!(seen(&bare), [FailedContainer { waited: None, ..expected }]);
    }

    #[test]
    fn only_a_pod_without_a_sandbox_waits_for_one() {
        let pod = |started: bool, status: &str| -> Pod {
            let start = started.then_some("2025-01-01T00:00:00Z");
            serde_json::from_value(json!({
                "metadata": {"name": "a", "creationTimestamp": "2024-12-31T00:00:00Z"},
                "spec": {"nodeName": "w1", "containers": []},
                "status": {"startTime": start, "conditions": [{"type": "PodReadyToStartContainers", "status": status,
                    "lastTransitionTime": "2025-01-01T00:01:00Z"}]}}))
            .unwrap()
        };
        let without = |pod: &Pod| suspect(pod, at("2025-01-01T00:03:00Z")).unwrap().without_sandbox;
        assert_eq!(without(&pod(true, "False")), Some(Duration::from_mins(2)));
        assert_eq!(without(&pod(true, "True")), None, "it pulls an image, or an init container works");
        assert_eq!(without(&pod(true, "Unknown")), None);
        assert_eq!(without(&pod(false, "False")), None, "the kubelet has not begun");
        let mut young = pod(true, "False");
        young.metadata.creation_timestamp = serde_json::from_value(json!("2025-01-01T00:02:50Z")).unwrap();
        assert_eq!(without(&young), Some(Duration::from_secs(10)), "the node's clock is behind");
        let mut silent = pod(true, "False");
        silent.status.as_mut().unwrap().conditions = None;
        assert_eq!(without(&silent), None);
    }

    #[test]
    fn a_pod_on_no_node_is_no_suspect() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": {"containers": []}})).unwrap();
        assert_eq!(suspect(&pod, at("2025-01-01T00:00:00Z")), None);
    }
}
