//! What the kubelet's stand-in does about one pod: one pass from what is to what should be.

use std::fs;

use anyhow::{Context, Result};
use k8s_cri::v1 as cri;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;
use tonic::transport::Channel;

use super::pod_spec::{self, Addresses};
use super::pod_status::{self, Seen};

/// Seconds a call that stops something may take beyond its grace, as the kubelet has it.
const STOP: u64 = 120;
/// How long a token is good for; no bed lives longer.
const TOKEN_SECONDS: i64 = 24 * 3600;
/// The cluster's authority, on the node.
const CA: &str = "/etc/kubernetes/pki/ca.crt";

/// What a pass needs.
#[derive(Clone)]
pub(super) struct Pass {
    pub(super) client: Client,
    pub(super) runtime: RuntimeServiceClient<Channel>,
    pub(super) node_ip: std::net::Ipv4Addr,
}

/// What the runtime has of one pod, oldest first.
struct Of {
    sandboxes: Vec<cri::PodSandbox>,
    containers: Vec<cri::Container>,
}

impl Of {
    fn newest(&self, name: &str, sandbox: &str) -> Option<&cri::Container> {
        let named = |c: &&cri::Container| c.metadata.as_ref().is_some_and(|m| m.name == name);
        self.containers.iter().rfind(|c| named(c) && c.pod_sandbox_id == sandbox)
    }

    fn next_attempt(&self, name: &str) -> u32 {
        let attempts = self.containers.iter().filter_map(|c| c.metadata.as_ref());
        attempts.filter(|m| m.name == name).map(|m| m.attempt + 1).max().unwrap_or_default()
    }
}

impl Pass {
    /// Brings one pod nearer to what its object says.
    pub(super) async fn sync(mut self, pod: Pod) -> Result<()> {
        let of = self.of(pod_spec::uid(&pod)).await?;
        if pod.metadata.deletion_timestamp.is_some() {
            return self.end(&pod, &of).await;
        }
        if pod_status::finished(&pod) {
            return Ok(());
        }
        let sandbox = self.sandbox(&pod, &of).await?;
        let addresses = self.addresses(&pod, &sandbox).await?;
        let mut seen = Vec::new();
        for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
            let newest = of.newest(&container.name, &sandbox).map(|container| container.id.clone());
            let known = match newest {
                Some(id) => Some(self.check(&pod, &id).await?),
                None => None,
            };
            let wanted =
                known.as_ref().is_none_or(|one| one.exit().is_some_and(|exit| pod_status::restarts(&pod, exit)));
            if !wanted {
                seen.extend(known);
                continue;
            }
            self.volumes(&pod).await?;
            let attempt = of.next_attempt(&container.name);
            let config = pod_spec::container(&pod, container, attempt, &addresses)?;
            let request = cri::CreateContainerRequest {
                pod_sandbox_id: sandbox.clone(),
                config: Some(config),
                sandbox_config: None,
            };
            let id = self.runtime.create_container(request).await?.into_inner().container_id;
            self.runtime.start_container(cri::StartContainerRequest { container_id: id.clone() }).await?;
            seen.push(self.check(&pod, &id).await?);
        }
        self.tell(&pod, &seen, &addresses).await
    }

    async fn of(&mut self, uid: &str) -> Result<Of> {
        let sandboxes = self.runtime.list_pod_sandbox(cri::ListPodSandboxRequest { filter: None }).await?.into_inner();
        let containers = self.runtime.list_containers(cri::ListContainersRequest { filter: None }).await?.into_inner();
        let mut sandboxes = sandboxes.items;
        let mut containers = containers.containers;
        sandboxes.retain(|sandbox| sandbox.metadata.as_ref().is_some_and(|metadata| metadata.uid == uid));
        containers.retain(|container| container.labels.get("io.kubernetes.pod.uid").is_some_and(|own| own == uid));
        sandboxes.sort_by_key(|sandbox| sandbox.created_at);
        containers.sort_by_key(|container| container.created_at);
        Ok(Of { sandboxes, containers })
    }

    /// The ready sandbox, made anew where there is none.
    async fn sandbox(&mut self, pod: &Pod, of: &Of) -> Result<String> {
        let ready = of.sandboxes.iter().rfind(|sandbox| sandbox.state() == cri::PodSandboxState::SandboxReady);
        if let Some(ready) = ready {
            return Ok(ready.id.clone());
        }
        let attempts = of.sandboxes.iter().filter_map(|sandbox| sandbox.metadata.as_ref());
        let attempt = attempts.map(|metadata| metadata.attempt + 1).max().unwrap_or_default();
        let config = Some(pod_spec::sandbox(pod, attempt));
        let request = cri::RunPodSandboxRequest { config, runtime_handler: String::new() };
        Ok(self.runtime.run_pod_sandbox(request).await?.into_inner().pod_sandbox_id)
    }

    async fn addresses(&mut self, pod: &Pod, sandbox: &str) -> Result<Addresses> {
        if pod_spec::host_network(pod) {
            return Ok(Addresses { node: self.node_ip, pod: self.node_ip.to_string() });
        }
        let request = cri::PodSandboxStatusRequest { pod_sandbox_id: sandbox.to_owned(), verbose: false };
        let status = self.runtime.pod_sandbox_status(request).await?.into_inner().status.context("no status")?;
        Ok(Addresses { node: self.node_ip, pod: status.network.unwrap_or_default().ip })
    }

    async fn check(&mut self, pod: &Pod, id: &str) -> Result<Seen> {
        let request = cri::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let status = self.runtime.container_status(request).await?.into_inner().status.context("no status")?;
        let metadata = status.metadata.clone().unwrap_or_default();
        let words = pod_spec::last_words(pod, &metadata.name, metadata.attempt);
        let words = fs::read_to_string(words).unwrap_or_default();
        Ok(Seen { name: metadata.name, status, words })
    }

    /// Folders of the pod's own volumes; the one with the token holds what a client inside the cluster looks for.
    async fn volumes(&self, pod: &Pod) -> Result<()> {
        for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            if volume.host_path.is_some() {
                continue;
            }
            let folder = pod_spec::volume_folder(pod, &volume.name);
            fs::create_dir_all(&folder)?;
            if let Some(source) = &volume.config_map {
                let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), pod_spec::namespace(pod));
                for (file, text) in maps.get(&source.name).await?.data.unwrap_or_default() {
                    fs::write(folder.join(file), text)?;
                }
                continue;
            }
            if !pod_spec::has_token(volume) || folder.join("token").exists() {
                continue;
            }
            fs::write(folder.join("token"), self.token(pod).await?)?;
            fs::write(folder.join("namespace"), pod_spec::namespace(pod))?;
            fs::copy(CA, folder.join("ca.crt")).context(CA)?;
        }
        Ok(())
    }

    /// A token that is bound to the pod, asked for with the node's own rights.
    async fn token(&self, pod: &Pod) -> Result<String> {
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref()).unwrap_or("default");
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: Vec::new(),
                expiration_seconds: Some(TOKEN_SECONDS),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: pod.metadata.name.clone(),
                    uid: pod.metadata.uid.clone(),
                }),
            },
            ..Default::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), pod_spec::namespace(pod));
        let made = accounts.create_token_request(account, &PostParams::default(), &request).await?;
        Ok(made.status.context("the token request has no answer")?.token)
    }

    /// Writes the pod's status where it differs.
    async fn tell(&self, pod: &Pod, seen: &[Seen], addresses: &Addresses) -> Result<()> {
        let status = pod_status::status(pod, seen, addresses);
        let old = serde_json::to_value(pod.status.clone().unwrap_or_default())?;
        let same = status.as_object().into_iter().flatten().all(|(key, value)| old.get(key) == Some(value));
        if same {
            return Ok(());
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), pod_spec::namespace(pod));
        let patch = Patch::Merge(json!({"metadata": {"uid": pod_spec::uid(pod)}, "status": status}));
        pods.patch_status(pod_spec::name(pod), &PatchParams::default(), &patch).await.context("status")?;
        Ok(())
    }

    /// Stops what runs, removes what is left, then lets the object go. A shim that does not answer holds it all up.
    async fn end(&mut self, pod: &Pod, of: &Of) -> Result<()> {
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or_default();
        for container in &of.containers {
            let request = cri::StopContainerRequest { container_id: container.id.clone(), timeout: grace };
            let limit = std::time::Duration::from_secs(u64::try_from(grace).unwrap_or_default() + STOP);
            tokio::time::timeout(limit, self.runtime.stop_container(request)).await.context("StopContainer")??;
        }
        for sandbox in &of.sandboxes {
            let request = cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox.id.clone() };
            self.runtime.remove_pod_sandbox(request).await.context("RemovePodSandbox")?;
        }
        let _ = fs::remove_dir_all(pod_spec::folder(pod));
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), pod_spec::namespace(pod));
        let gone = DeleteParams {
            preconditions: Some(Preconditions { uid: pod.metadata.uid.clone(), resource_version: None }),
            ..DeleteParams::default().grace_period(0)
        };
        match pods.delete(pod_spec::name(pod), &gone).await {
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
            done => done.map(drop).context("delete the pod"),
        }
    }
}
