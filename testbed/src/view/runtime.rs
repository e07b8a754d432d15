//! What a node's containerd answers: lists by CRI, one task's state by its native interface.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use containerd_client::services::v1::GetRequest;
use containerd_client::services::v1::tasks_client::TasksClient;
use containerd_client::types::v1::Status as TaskStatus;
use k8s_cri::v1 as cri;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::bounded::block_on;

pub use crate::layout::SOCKET;

/// Label the kubelet puts on each container: its pod's uid.
const POD_UID: &str = "io.kubernetes.pod.uid";
const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";

/// A pod as the runtime knows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    /// Namespace
    pub namespace: String,
    /// Name
    pub name: String,
    /// Uid
    pub uid: String,
}

/// A sandbox as CRI lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Full id
    pub id: String,
    /// Its pod
    pub pod: PodName,
    /// Whether it is listed `SANDBOX_READY`
    pub ready: bool,
    /// Creation in nanoseconds since 1970
    pub created: i64,
}

/// A container as CRI lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Full id
    pub id: String,
    /// Id of its sandbox, listed or not
    pub sandbox: String,
    /// Its pod, by the labels the kubelet wrote
    pub pod: PodName,
    /// Name in the pod
    pub name: String,
    /// State without the prefix: `CREATED`, `RUNNING`, `EXITED`, `UNKNOWN`
    pub state: String,
}

impl Container {
    /// Whether CRI lists it as running.
    pub fn running(&self) -> bool {
        self.state == "RUNNING"
    }
}

/// Both CRI lists, sandboxes asked before containers as the kubelet does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lists {
    /// Sandboxes in any state
    pub sandboxes: Vec<Sandbox>,
    /// Containers in any state
    pub containers: Vec<Container>,
}

impl Lists {
    /// Containers whose sandbox is not listed.
    pub fn orphans(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|container| !self.sandboxes.iter().any(|s| s.id == container.sandbox))
    }

    /// The newest sandbox of a pod.
    pub fn sandbox_of(&self, pod_uid: &str) -> Option<&Sandbox> {
        self.sandboxes.iter().filter(|sandbox| sandbox.pod.uid == pod_uid).max_by_key(|s| (s.ready, s.created))
    }
}

/// Asks both lists.
pub fn lists(socket: &Path, limit: Duration) -> Result<Lists> {
    block_on("CRI lists", limit, async {
        Ok(Lists { sandboxes: sandboxes(socket).await?, containers: containers(socket).await? })
    })
}

/// `ListPodSandbox` without a filter.
pub(crate) async fn sandboxes(socket: &Path) -> Result<Vec<Sandbox>> {
    let mut client = RuntimeServiceClient::new(connect(socket).await?);
    let answer = client.list_pod_sandbox(cri::ListPodSandboxRequest { filter: None }).await;
    let items = answer.context("ListPodSandbox")?.into_inner().items;
    let mut found: Vec<Sandbox> = items.into_iter().map(sandbox).collect();
    found.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(found)
}

fn sandbox(item: cri::PodSandbox) -> Sandbox {
    let metadata = item.metadata.unwrap_or_default();
    Sandbox {
        id: item.id,
        pod: PodName { namespace: metadata.namespace, name: metadata.name, uid: metadata.uid },
        ready: item.state == cri::PodSandboxState::SandboxReady as i32,
        created: item.created_at,
    }
}

/// `ListContainers` without a filter.
pub(crate) async fn containers(socket: &Path) -> Result<Vec<Container>> {
    let mut client = RuntimeServiceClient::new(connect(socket).await?);
    let answer = client.list_containers(cri::ListContainersRequest { filter: None }).await;
    let items = answer.context("ListContainers")?.into_inner().containers;
    let mut found: Vec<Container> = items.into_iter().map(container).collect();
    found.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(found)
}

fn container(mut item: cri::Container) -> Container {
    let state = item.state().as_str_name().trim_start_matches("CONTAINER_").to_owned();
    let metadata = item.metadata.take().unwrap_or_default();
    let mut label = |name: &str| item.labels.remove(name).unwrap_or_default();
    Container {
        pod: PodName { namespace: label(POD_NAMESPACE), name: label(POD_NAME), uid: label(POD_UID) },
        id: item.id,
        sandbox: item.pod_sandbox_id,
        name: metadata.name,
        state,
    }
}

/// Tells by containerd's native `Tasks/Get`, or by CRI where the runtime has no such call, which of the named tasks run; each has the whole limit, all are asked at once.
///
/// The native answer comes from the task's own shim, so a frozen shim shows here and nowhere in the lists.
pub fn tasks_running(socket: &Path, ids: &[String], limit: Duration) -> Result<BTreeMap<String, Result<bool, String>>> {
    let one = |channel: Channel, id: String| async move {
        let mut client = TasksClient::new(channel.clone());
        let mut request = tonic::Request::new(GetRequest { container_id: id.clone(), exec_id: String::new() });
        request.metadata_mut().insert("containerd-namespace", tonic::metadata::MetadataValue::from_static("k8s.io"));
        let answer = match tokio::time::timeout(limit, client.get(request)).await {
            Err(_) => Err(format!("Tasks/Get did not answer within {limit:?}")),
            Ok(Err(status)) if status.code() == Code::Unimplemented => {
                match tokio::time::timeout(limit, runs(channel, &id)).await {
                    Err(_) => Err(format!("its status did not come within {limit:?}")),
                    Ok(answer) => answer.map_err(|status| status.message().to_owned()),
                }
            }
            Ok(Err(status)) => Err(format!("Tasks/Get: {}", status.message())),
            // containerd gives a silent shim two seconds and then says that it does not know.
            Ok(Ok(answer)) => match answer.into_inner().process.map(|process| process.status()) {
                None | Some(TaskStatus::Unknown) => Err("Tasks/Get: state unknown".to_owned()),
                Some(status) => Ok(status == TaskStatus::Running),
            },
        };
        (id, answer)
    };
    // The inner limits decide; the outer one only covers the connection.
    block_on("Tasks/Get", limit + Duration::from_secs(5), async {
        let channel = connect(socket).await?;
        let mut asked = tokio::task::JoinSet::new();
        for id in ids {
            asked.spawn(one(channel.clone(), id.clone()));
        }
        Ok(asked.join_all().await.into_iter().collect())
    })
}

/// Whether a container or a sandbox runs, by CRI.
async fn runs(channel: Channel, id: &str) -> Result<bool, Status> {
    let mut client = RuntimeServiceClient::new(channel);
    let request = cri::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    if let Ok(answer) = client.container_status(request).await {
        let status = answer.into_inner().status.unwrap_or_default();
        return Ok(status.state() == cri::ContainerState::ContainerRunning);
    }
    let request = cri::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
    let status = client.pod_sandbox_status(request).await?.into_inner().status.unwrap_or_default();
    Ok(status.state() == cri::PodSandboxState::SandboxReady)
}

/// `RemoveContainer`: ends it if it runs, and removes it even if its sandbox is missing.
pub(crate) fn remove_container(socket: &Path, id: &str, limit: Duration) -> Result<()> {
    block_on("RemoveContainer", limit, async {
        let mut client = RuntimeServiceClient::new(connect(socket).await?);
        let request = cri::RemoveContainerRequest { container_id: id.to_owned() };
        client.remove_container(request).await.map(drop).with_context(|| format!("container {id}"))
    })
}

/// `UpdateContainerResources` of one container, to what it may have had before.
pub(crate) fn update_container(socket: &Path, id: &str, limit: Duration) -> Result<()> {
    block_on("UpdateContainerResources", limit, async {
        let mut client = RuntimeServiceClient::new(connect(socket).await?);
        let linux = cri::LinuxContainerResources { cpu_shares: 64, ..Default::default() };
        let request = cri::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(linux),
            ..Default::default()
        };
        client.update_container_resources(request).await.map(drop).with_context(|| format!("container {id}"))
    })
}

/// `RunPodSandbox` for a pod, as a kubelet would at its given attempt; returns the id.
pub(crate) fn run_sandbox(socket: &Path, pod: &PodName, attempt: u32, limit: Duration) -> Result<String> {
    block_on("RunPodSandbox", limit, async {
        let mut client = RuntimeServiceClient::new(connect(socket).await?);
        let config = Some(sandbox_config(pod, attempt));
        let request = cri::RunPodSandboxRequest { config, runtime_handler: String::new() };
        let made = client.run_pod_sandbox(request).await.with_context(|| format!("pod {}", pod.name))?;
        Ok(made.into_inner().pod_sandbox_id)
    })
}

fn sandbox_config(pod: &PodName, attempt: u32) -> cri::PodSandboxConfig {
    let PodName { namespace, name, uid } = pod.clone();
    cri::PodSandboxConfig {
        labels: labels(pod),
        hostname: name.clone(),
        log_directory: format!("/var/log/pods/{namespace}_{name}_{uid}"),
        metadata: Some(cri::PodSandboxMetadata { name, uid, namespace, attempt }),
        linux: Some(cri::LinuxPodSandboxConfig::default()),
        ..Default::default()
    }
}

fn labels(pod: &PodName) -> HashMap<String, String> {
    let labels = [(POD_NAME, &pod.name), (POD_NAMESPACE, &pod.namespace), (POD_UID, &pod.uid)];
    labels.into_iter().map(|(key, value)| (key.to_owned(), value.clone())).collect()
}

/// `StopPodSandbox` and `RemovePodSandbox`.
pub(crate) fn remove_sandbox(socket: &Path, id: &str, limit: Duration) -> Result<()> {
    block_on("RemovePodSandbox", limit, async {
        let mut client = RuntimeServiceClient::new(connect(socket).await?);
        let pod_sandbox_id = id.to_owned();
        client.stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() }).await?;
        client.remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id }).await?;
        Ok(())
    })
}

pub(crate) async fn connect(socket: &Path) -> Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).context("socket address")?;
    endpoint.connect().await.with_context(|| format!("connect to {}", socket.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> PodName {
        PodName { namespace: "ns".into(), name: "pod".into(), uid: uid.into() }
    }

    #[test]
    fn orphans_are_containers_without_a_listed_sandbox() {
        let container = |id: &str, sandbox: &str| Container {
            id: id.into(),
            sandbox: sandbox.into(),
            pod: pod("u"),
            name: "c".into(),
            state: "EXITED".into(),
        };
        let sandbox = |id: &str, ready, created| Sandbox { id: id.into(), pod: pod("u"), ready, created };
        let lists = Lists {
            sandboxes: vec![sandbox("s1", true, 1), sandbox("s2", false, 2)],
            containers: vec![container("c1", "s1"), container("c2", "s3")],
        };
        assert_eq!(lists.orphans().map(|orphan| orphan.id.as_str()).collect::<Vec<_>>(), ["c2"]);
        assert_eq!(lists.sandbox_of("u").map(|s| s.id.as_str()), Some("s1"));
    }
}
