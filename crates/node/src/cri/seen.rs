//! From the runtime's messages to the core's types: bounded copies of the few fields that are used.

use k8s_cri::v1;

use nrh_core::fault::PodRef;
use nrh_core::observation::{ContainerSeen, ContainerState, NetworkSeen, RuntimeSeen, SandboxSeen, StatusSeen};
use nrh_core::text::bounded;

use super::labels::{LABEL_CONTAINER, MAX_ID, MAX_NAME, MAX_NAMESPACE, MAX_UID, pod_of};
use super::messages;

/// A condition that every runtime has to report (CRI: `RuntimeReady` and `NetworkReady`).
const NETWORK_READY: &str = "NetworkReady";

pub(crate) fn runtime(answer: &v1::VersionResponse) -> RuntimeSeen {
    RuntimeSeen { name: bounded(&answer.runtime_name, 64), version: bounded(&answer.runtime_version, 64) }
}

/// A runtime that reports no condition of its network gives no information about it.
pub(crate) fn status(answer: v1::StatusResponse) -> StatusSeen {
    let conditions = answer.status.unwrap_or_default().conditions;
    let network = conditions.into_iter().find(|condition| condition.r#type == NETWORK_READY);
    let network = network.map(|condition| NetworkSeen {
        ready: condition.status,
        reason: bounded(&condition.reason, 64),
        message: bounded(&condition.message, 256),
    });
    StatusSeen { network }
}

pub(crate) fn is_ready(state: i32) -> bool {
    state == v1::PodSandboxState::SandboxReady as i32
}

pub(crate) fn container_state(state: i32) -> ContainerState {
    match v1::ContainerState::try_from(state) {
        Ok(v1::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(v1::ContainerState::ContainerRunning) => ContainerState::Running,
        Ok(v1::ContainerState::ContainerExited) => ContainerState::Exited,
        Ok(v1::ContainerState::ContainerUnknown) | Err(_) => ContainerState::Unknown,
    }
}

/// A sandbox is never left out, however odd: a missing one would turn its containers into orphans.
pub(crate) fn sandbox(raw: messages::Sandbox) -> SandboxSeen {
    let metadata = raw.metadata.unwrap_or_default();
    SandboxSeen {
        id: bounded(&raw.id, MAX_ID),
        ready: is_ready(raw.state),
        pod: PodRef {
            namespace: bounded(&metadata.namespace, MAX_NAMESPACE),
            name: bounded(&metadata.name, MAX_NAME),
            uid: bounded(&metadata.uid, MAX_UID),
        },
        attempt: metadata.attempt,
    }
}

pub(crate) fn container(raw: messages::Container) -> ContainerSeen {
    let label = |key: &str| raw.labels.get(key).map(String::as_str);
    let metadata = raw.metadata.unwrap_or_default();
    ContainerSeen {
        id: bounded(&raw.id, MAX_ID),
        sandbox_id: bounded(&raw.pod_sandbox_id, MAX_ID),
        name: bounded(label(LABEL_CONTAINER).unwrap_or(&metadata.name), MAX_NAME),
        pod: pod_of(label),
        state: container_state(raw.state),
        attempt: metadata.attempt,
    }
}

#[cfg(test)]
mod tests {
    use super::super::labels::{LABEL_NAMESPACE, LABEL_POD, LABEL_UID};
    use super::*;

    fn labelled(labels: &[(&str, &str)]) -> messages::Container {
        messages::Container {
            id: "c".repeat(64),
            pod_sandbox_id: "s".repeat(64),
            state: 1,
            labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            metadata: Some(v1::ContainerMetadata { name: "from-metadata".to_owned(), attempt: 3 }),
            ..messages::Container::default()
        }
    }

    #[test]
    fn a_container_takes_its_pod_from_the_kubelets_labels() {
        let seen = container(labelled(&[
            (LABEL_UID, "u1"),
            (LABEL_POD, "web-0"),
            (LABEL_NAMESPACE, "shop"),
            (LABEL_CONTAINER, "app"),
        ]));
        let pod = PodRef { namespace: "shop".to_owned(), name: "web-0".to_owned(), uid: "u1".to_owned() };
        assert_eq!((seen.pod, seen.name.as_str(), seen.attempt), (Some(pod), "app", 3));
        assert_eq!(seen.state, ContainerState::Running);
    }

    #[test]
    fn a_container_without_a_pod_uid_is_not_the_kubelets() {
        assert_eq!(container(labelled(&[(LABEL_POD, "web-0")])).pod, None);
        assert_eq!(container(labelled(&[(LABEL_UID, "")])).pod, None);
        assert_eq!(container(labelled(&[])).name, "from-metadata");
    }

    #[test]
    fn hostile_fields_are_bounded_and_unknown_states_are_unknown() {
        let long = "x\n".repeat(5000);
        let mut raw = labelled(&[(LABEL_UID, long.as_str()), (LABEL_POD, long.as_str())]);
        raw.state = 99;
        let seen = container(raw);
        let pod = seen.pod.unwrap();
        assert!(pod.uid.len() <= MAX_UID && pod.name.len() <= MAX_NAME && !pod.name.contains('\n'));
        assert_eq!(seen.state, ContainerState::Unknown);
    }

    #[test]
    fn a_sandbox_without_metadata_stays_in_the_list() {
        let seen = sandbox(messages::Sandbox { id: "s".to_owned(), state: 7, ..messages::Sandbox::default() });
        assert_eq!((seen.id.as_str(), seen.ready), ("s", false));
    }
}
