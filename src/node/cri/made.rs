//! When the runtime last made something for a pod: the mark of a kubelet at work on it.

use std::time::Duration;

use jiff::Timestamp;
use k8s_cri::v1::{ListContainersRequest, ListPodSandboxRequest};

use super::labels::LABEL_UID;
use super::{Cri, CriError, ask};

impl Cri {
    /// When the newest sandbox or container of the pod with this uid was made; `None` when there is none.
    pub async fn last_created(&self, pod_uid: &str, deadline: Duration) -> Result<Option<Timestamp>, CriError> {
        let mut client = self.client.clone();
        let containers = ask(deadline, "", client.list_containers(ListContainersRequest { filter: None })).await?;
        let sandboxes = ask(deadline, "", client.list_pod_sandbox(ListPodSandboxRequest { filter: None })).await?;
        let of_containers = containers
            .containers
            .iter()
            .filter(|seen| seen.labels.get(LABEL_UID).is_some_and(|uid| uid == pod_uid))
            .map(|seen| seen.created_at);
        let of_sandboxes = sandboxes
            .items
            .iter()
            .filter(|seen| seen.metadata.as_ref().is_some_and(|metadata| metadata.uid == pod_uid))
            .map(|seen| seen.created_at);
        let newest = of_containers.chain(of_sandboxes).max();
        Ok(newest.and_then(|nanos| Timestamp::from_nanosecond(nanos.into()).ok()))
    }
}
