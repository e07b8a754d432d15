//! One interface to the container runtime for the collectors and the executor: CRI or Docker's own API.
//!
//! ```text
//! Client      version · lists · direct questions about a container or a sandbox     Cri | Docker
//! TaskClient  one question about one task, and one that waits for no task           containerd Tasks/Get | Docker inspect |
//!                                                                                   CRI-O ContainerStatus
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::collect;
use crate::cri::endpoint::{Api, Endpoint};
use crate::cri::tasks::Tasks;
use crate::cri::{Cri, CriError, Listed};
use crate::docker::Docker;
use nrh_core::observation::{ContainerSeen, RuntimeSeen, SandboxSeen, StatusSeen, TaskAnswer};

/// A connection for queries about the runtime as a whole. Clones share the connection, if it is persistent.
#[derive(Clone, Debug)]
pub enum Client {
    /// Through CRI.
    Cri(Cri),
    /// Docker's own API, where no CRI endpoint exists: kubelets up to 1.23 include the CRI part for Docker.
    Docker(Docker),
}

impl Client {
    /// Connects to the runtime at `endpoint`.
    ///
    /// # Errors
    /// As [`Cri::connect`]. For Docker each call opens its own connection.
    pub async fn connect(endpoint: &Endpoint) -> Result<Self, CriError> {
        Ok(match endpoint.api {
            Api::Cri => Self::Cri(Cri::connect(&endpoint.socket).await?),
            Api::Docker => Self::Docker(Docker::at(&endpoint.socket)),
        })
    }

    /// Returns the name and version of the runtime.
    pub async fn version(&self, deadline: Duration) -> Result<RuntimeSeen, CriError> {
        match self {
            Self::Cri(cri) => cri.version(deadline).await,
            Self::Docker(docker) => docker.version(deadline).await,
        }
    }

    /// Returns the readiness that the runtime reports. Docker reports nothing about the pod network.
    pub async fn status(&self, deadline: Duration) -> Result<StatusSeen, CriError> {
        match self {
            Self::Cri(cri) => cri.status(deadline).await,
            Self::Docker(_) => Ok(StatusSeen::default()),
        }
    }

    /// Lists all sandboxes, in every state.
    pub async fn sandboxes(&self, deadline: Duration) -> Result<Listed<SandboxSeen>, CriError> {
        match self {
            Self::Cri(cri) => cri.sandboxes(deadline).await,
            Self::Docker(docker) => Ok(Listed { items: docker.sandboxes(deadline).await?, bytes: 0 }),
        }
    }

    /// Lists the ids of all sandboxes.
    pub async fn sandbox_ids(&self, deadline: Duration) -> Result<Vec<String>, CriError> {
        match self {
            Self::Cri(cri) => cri.sandbox_ids(deadline).await,
            Self::Docker(docker) => docker.sandbox_ids(deadline).await,
        }
    }

    /// Lists all containers, in every state.
    pub async fn containers(&self, deadline: Duration) -> Result<Listed<ContainerSeen>, CriError> {
        match self {
            Self::Cri(cri) => cri.containers(deadline).await,
            Self::Docker(docker) => Ok(Listed { items: docker.containers(deadline).await?, bytes: 0 }),
        }
    }

    /// Queries one container by its id.
    ///
    /// # Errors
    /// [`CriError::NotFound`] when the runtime has no such container.
    pub async fn has_container(&self, id: &str, deadline: Duration) -> Result<(), CriError> {
        match self {
            Self::Cri(cri) => cri.container_status(id, deadline).await.map(drop),
            Self::Docker(docker) => docker.inspect(id, deadline).await.map(drop),
        }
    }

    /// Queries one sandbox by its id.
    ///
    /// # Errors
    /// [`CriError::NotFound`] when the runtime has no such sandbox.
    pub async fn has_sandbox(&self, id: &str, deadline: Duration) -> Result<(), CriError> {
        match self {
            Self::Cri(cri) => cri.sandbox_ready(id, deadline).await.map(drop),
            Self::Docker(docker) => docker.inspect(id, deadline).await.map(drop),
        }
    }
}

/// Which socket answers queries about single tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskEndpoint {
    /// The containerd socket, which also serves CRI.
    Containerd(PathBuf),
    /// The Docker socket.
    Docker(PathBuf),
    /// The CRI-O socket.
    CriO(PathBuf),
}

/// A connection for queries about single tasks. Clones share the connection, if it is persistent.
#[derive(Clone, Debug)]
pub enum TaskClient {
    /// containerd, which asks the shim and waits 2 s for its answer.
    Containerd(Tasks),
    /// Docker, which waits for whatever holds the container; the containerd behind Docker, which asks the shim; and the
    /// path of the process table.
    Docker(Docker, Option<Tasks>, PathBuf),
    /// CRI-O, which can wait for whatever holds the container.
    CriO(Cri),
}

impl TaskClient {
    /// Connects to `place`. `proc` is the path of the node's process table.
    ///
    /// # Errors
    /// As [`Tasks::connect`] and [`Cri::connect`]. Docker is connected to with each question.
    pub async fn connect(place: &TaskEndpoint, proc: &Path) -> Result<Self, CriError> {
        Ok(match place {
            TaskEndpoint::Containerd(socket) => Self::Containerd(Tasks::connect(socket).await?),
            TaskEndpoint::Docker(socket) => {
                Self::Docker(Docker::at(socket), Tasks::of_docker(socket).await, proc.to_path_buf())
            }
            TaskEndpoint::CriO(socket) => Self::CriO(Cri::connect(socket).await?),
        })
    }

    /// Queries one task. `bound` is the deadline of the call.
    ///
    /// # Errors
    /// Any error that says nothing about this task.
    pub async fn ask(&self, id: &str, bound: Duration) -> Result<TaskAnswer, CriError> {
        match self {
            Self::Containerd(tasks) => collect::tasks::ask(tasks, id, bound).await,
            Self::Docker(docker, tasks, proc) => collect::tasks::inspect(docker, tasks.as_ref(), proc, id, bound).await,
            // It has no limit of its own, so the caller measures its silence. It answers from memory.
            Self::CriO(cri) => match cri.container_status(id, bound).await {
                Ok(_) => Ok(TaskAnswer::DaemonAnswered),
                Err(CriError::NotFound) => Ok(TaskAnswer::NotFound),
                Err(error) => Err(error),
            },
        }
    }

    /// Lists the tasks whose shim answers, with one query for all of them; `None` where no such query exists.
    pub async fn answered(&self, bound: Duration) -> Result<Option<BTreeSet<String>>, CriError> {
        match self {
            Self::Containerd(tasks) | Self::Docker(_, Some(tasks), _) => tasks.answered(bound).await.map(Some),
            Self::Docker(..) | Self::CriO(_) => Ok(None),
        }
    }

    /// Checks whether queries about tasks are answered at all.
    pub async fn answers(&self, deadline: Duration) -> Result<(), CriError> {
        match self {
            Self::Containerd(tasks) => tasks.answers(deadline).await,
            Self::Docker(docker, ..) => docker.answers(deadline).await,
            Self::CriO(cri) => cri.answers(deadline).await,
        }
    }
}
