//! From what the runtime lists to the status of a pod.

use jiff::Timestamp;
use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};

use super::pod_spec::Addresses;

/// What the runtime says of the newest attempt of one container.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) status: cri::ContainerStatus,
    /// Its last words, when it has ended.
    pub(super) words: String,
}

impl Seen {
    fn running(&self) -> bool {
        self.status.state() == cri::ContainerState::ContainerRunning
    }

    /// Exit code, once it has ended.
    pub(super) fn exit(&self) -> Option<i32> {
        (self.status.state() == cri::ContainerState::ContainerExited).then_some(self.status.exit_code)
    }
}

/// Whether ended containers of the pod are started again.
pub(super) fn restarts(pod: &Pod, exit: i32) -> bool {
    match pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) {
        Some("Never") => false,
        Some("OnFailure") => exit != 0,
        _ => true,
    }
}

/// Whether it has ended for good.
pub(super) fn finished(pod: &Pod) -> bool {
    matches!(pod.status.as_ref().and_then(|status| status.phase.as_deref()), Some("Succeeded" | "Failed"))
}

/// The status as the kubelet would write it. Readiness is "it runs": the stand-in asks no container.
pub(super) fn status(pod: &Pod, seen: &[Seen], addresses: &Addresses) -> Value {
    let ended = |one: &Seen| one.exit().is_some_and(|exit| !restarts(pod, exit));
    let phase = if seen.is_empty() {
        "Pending"
    } else if !seen.iter().all(ended) {
        "Running"
    } else if seen.iter().all(|one| one.exit() == Some(0)) {
        "Succeeded"
    } else {
        "Failed"
    };
    let ready = !seen.is_empty() && seen.iter().all(Seen::running);
    let old = pod.status.clone().unwrap_or_default();
    let condition = |name: &str, value: bool| {
        let value = if value { "True" } else { "False" };
        let known = old.conditions.iter().flatten().find(|known| known.type_ == name && known.status == value);
        let since = known.and_then(|known| known.last_transition_time.clone()).map(|time| json!(time));
        json!({"type": name, "status": value, "lastTransitionTime": since.unwrap_or_else(|| json!(now()))})
    };
    let containers: Vec<Value> = seen.iter().map(|one| container(pod, one)).collect();
    json!({
        "phase": phase,
        "hostIP": addresses.node.to_string(),
        "hostIPs": [{"ip": addresses.node.to_string()}],
        "podIP": addresses.pod,
        "podIPs": [{"ip": addresses.pod}],
        "startTime": old.start_time.as_ref().map_or_else(|| json!(now()), |time| json!(time)),
        "conditions": [
            condition("PodScheduled", true),
            condition("Initialized", true),
            condition("PodReadyToStartContainers", true),
            condition("ContainersReady", ready),
            condition("Ready", ready),
        ],
        "containerStatuses": containers,
    })
}

fn container(pod: &Pod, one: &Seen) -> Value {
    let wanted = pod.spec.iter().flat_map(|spec| &spec.containers).find(|wanted| wanted.name == one.name);
    let image = wanted.and_then(|wanted: &Container| wanted.image.clone()).unwrap_or_default();
    let status = &one.status;
    let id = format!("containerd://{}", status.id);
    let state = match one.exit() {
        Some(code) => json!({"terminated": {
            "exitCode": code, "reason": if code == 0 { "Completed" } else { "Error" }, "message": one.words,
            "startedAt": time(status.created_at), "finishedAt": time(status.finished_at), "containerID": id,
        }}),
        None => json!({"running": {"startedAt": time(status.created_at)}}),
    };
    let attempt = status.metadata.as_ref().map(|metadata| metadata.attempt).unwrap_or_default();
    json!({"name": one.name, "image": image, "imageID": image, "containerID": id, "ready": one.running(),
        "started": one.running(), "restartCount": attempt, "state": state})
}

fn now() -> String {
    seconds(Timestamp::now())
}

fn time(nanoseconds: i64) -> String {
    seconds(Timestamp::from_nanosecond(nanoseconds.into()).unwrap_or_default())
}

/// Kubernetes' times have whole seconds.
fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn seen(state: cri::ContainerState, exit_code: i32) -> Seen {
        let status = cri::ContainerStatus { id: "c1".into(), state: state as i32, exit_code, ..Default::default() };
        Seen { name: "command".into(), status, words: "said".into() }
    }

    #[test]
    fn a_job_s_pod_ends_with_its_last_words_and_a_daemon_s_is_started_again() {
        let mut pod: Pod =
            serde_json::from_value(json!({"metadata": {}, "spec": {"restartPolicy": "Never", "containers": []}}))
                .unwrap();
        let addresses = Addresses { node: Ipv4Addr::LOCALHOST, pod: "1.2.3.4".into() };
        let ended = [seen(cri::ContainerState::ContainerExited, 0)];
        let told = status(&pod, &ended, &addresses);
        assert_eq!(told["phase"], "Succeeded");
        assert_eq!(told["containerStatuses"][0]["state"]["terminated"]["message"], "said");
        pod.spec.as_mut().unwrap().restart_policy = None;
        let told = status(&pod, &ended, &addresses);
        assert_eq!(
            (told["phase"].as_str(), told["conditions"][4]["status"].as_str()),
            (Some("Running"), Some("False"))
        );
        let told = status(&pod, &[seen(cri::ContainerState::ContainerRunning, 0)], &addresses);
        assert_eq!(told["conditions"][4]["status"], "True");
    }
}
