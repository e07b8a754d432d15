//! containerd's own question about one task: `containerd.services.tasks.v1.Tasks/Get`.
//!
//! containerd waits 2 s for the shim and then answers by itself, so nothing piles up in it. `Tasks/List` asks all shims, one
//! after the other, for the price of one call. Its answer proves only that a shim responds. A task that is missing in it is
//! asked for alone.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use containerd_client::services::v1::tasks_client::TasksClient;
use containerd_client::services::v1::{GetRequest, ListTasksRequest};
use containerd_client::types::v1::Status as TaskStatus;
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;

use super::{CriError, ask, channel};
use crate::proc::role::{DOCKER_NAMESPACE, KUBELET_NAMESPACE};

/// A task that does not exist: containers have ids of 64 hex digits.
const UNKNOWN_TASK_ID: &str = "nrh-asks-for-nobody";
/// Largest answer, about one task or about all. Each takes some 150 bytes.
const MAX_ANSWER: usize = 1 << 20;

/// One connection to containerd's task service. Clones share it.
#[derive(Clone, Debug)]
pub struct Tasks {
    client: TasksClient<Channel>,
    namespace: &'static str,
}

impl Tasks {
    /// Connects to containerd's socket, the same that serves CRI, to ask for tasks of the kubelet.
    pub async fn connect(socket: &Path) -> Result<Self, CriError> {
        Self::of(socket, KUBELET_NAMESPACE).await
    }

    /// Connects to the containerd that runs Docker's containers, where its socket is beside Docker's: the one that Docker
    /// brings, or that of the node. `None` where there is none, or it cannot be reached.
    pub async fn of_docker(docker: &Path) -> Option<Self> {
        let beside = |path: &str| docker.parent().map(|folder| folder.join(path)).filter(|socket| socket.exists());
        let socket = beside("docker/containerd/containerd.sock").or_else(|| beside("containerd/containerd.sock"))?;
        Self::of(&socket, DOCKER_NAMESPACE).await.ok()
    }

    async fn of(socket: &Path, namespace: &'static str) -> Result<Self, CriError> {
        let client = TasksClient::new(channel(socket).await?).max_decoding_message_size(MAX_ANSWER);
        Ok(Self { client, namespace })
    }

    /// Asks for the task of container or sandbox `id`. The status is unknown where the shim did not answer, or answered with an
    /// error.
    ///
    /// # Errors
    /// [`CriError::NotFound`] when there is no such task, [`CriError::DeadlineInside`] when containerd itself gave
    /// up on the shim, [`CriError::Deadline`] when containerd did not answer within `deadline`.
    pub async fn get(&self, id: &str, deadline: Duration) -> Result<TaskStatus, CriError> {
        let mut request = Request::new(GetRequest { container_id: id.to_owned(), exec_id: String::new() });
        request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(self.namespace));
        let answer = ask(deadline, id, self.client.clone().get(request)).await?;
        let status = answer.process.and_then(|process| TaskStatus::try_from(process.status).ok());
        Ok(status.unwrap_or(TaskStatus::Unknown))
    }

    /// The running tasks whose shim answered containerd. A missing task has ended, does not exist, or has a shim that did not
    /// answer. containerd asks the shims one after the other, and waits 2 s for each that gives no answer.
    ///
    /// # Errors
    /// [`CriError::Deadline`] when containerd did not answer within `deadline`, and any other error of containerd.
    pub async fn answered(&self, deadline: Duration) -> Result<BTreeSet<String>, CriError> {
        let mut request = Request::new(ListTasksRequest { filter: String::new() });
        request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(self.namespace));
        let answer = ask(deadline, "all tasks", self.client.clone().list(request)).await?;
        let is_alive = |status: i32| {
            !matches!(TaskStatus::try_from(status), Ok(TaskStatus::Unknown | TaskStatus::Stopped) | Err(_))
        };
        let answered = answer.tasks.into_iter().filter(|task| is_alive(task.status));
        Ok(answered.map(|task| if task.container_id.is_empty() { task.id } else { task.container_id }).collect())
    }

    /// Whether the task service responds at all. It asks for a task that does not exist, so the question reaches no shim.
    ///
    /// Silence about one task is evidence about that task only while this call succeeds. Otherwise containerd is stuck, and
    /// every shim may be well.
    pub async fn answers(&self, deadline: Duration) -> Result<(), CriError> {
        CriError::answered(self.get(UNKNOWN_TASK_ID, deadline).await)
    }
}
