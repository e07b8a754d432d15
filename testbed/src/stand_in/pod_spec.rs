//! From a pod to what the runtime is asked for: labels, environment, volumes.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, Pod, Volume};

use crate::network::SERVICE_IP;

/// Where the kubelet keeps what belongs to pods.
const PODS: &str = "/var/lib/kubelet/pods";
/// Logs of containers, in one flat folder that the bed saves.
const LOGS: &str = "/var/log";
/// Where a container leaves its last words, by default.
const LAST_WORDS: &str = "/dev/termination-log";

/// What a container's environment may refer to.
#[derive(Debug, Clone)]
pub(super) struct Addresses {
    pub(super) node: Ipv4Addr,
    pub(super) pod: String,
}

pub(super) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

pub(super) fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

pub(super) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

pub(super) fn host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or_default()
}

/// The sandbox of a pod.
pub(super) fn sandbox(pod: &Pod, attempt: u32) -> cri::PodSandboxConfig {
    let metadata = cri::PodSandboxMetadata {
        name: name(pod).to_owned(),
        uid: uid(pod).to_owned(),
        namespace: namespace(pod).to_owned(),
        attempt,
    };
    cri::PodSandboxConfig { metadata: Some(metadata), labels: labels(pod), ..Default::default() }
}

fn labels(pod: &Pod) -> HashMap<String, String> {
    let label = |key: &str, value: &str| (format!("io.kubernetes.pod.{key}"), value.to_owned());
    [label("name", name(pod)), label("namespace", namespace(pod)), label("uid", uid(pod))].into()
}

/// A container of a pod, with its volumes at hand.
pub(super) fn container(
    pod: &Pod,
    container: &Container,
    attempt: u32,
    addresses: &Addresses,
) -> Result<cri::ContainerConfig> {
    let mut labels = labels(pod);
    labels.insert("io.kubernetes.container.name".to_owned(), container.name.clone());
    let words = last_words(pod, &container.name, attempt);
    fs::create_dir_all(words.parent().context("a folder")?)?;
    fs::write(&words, "")?;
    let mut mounts = mounts(pod, container)?;
    let to = container.termination_message_path.clone().unwrap_or_else(|| LAST_WORDS.to_owned());
    mounts.push(mount(&words, &to));
    let envs = environment(pod, container, addresses).into_iter();
    Ok(cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: container.name.clone(), attempt }),
        image: Some(cri::ImageSpec { image: container.image.clone().unwrap_or_default(), ..Default::default() }),
        command: container.command.clone().unwrap_or_default(),
        args: container.args.clone().unwrap_or_default(),
        envs: envs.map(|(key, value)| cri::KeyValue { key, value }).collect(),
        mounts,
        labels,
        log_path: format!("{LOGS}/pod-{}-{}-{attempt}.log", name(pod), container.name),
        ..Default::default()
    })
}

/// The file with the last words of an attempt.
pub(super) fn last_words(pod: &Pod, container: &str, attempt: u32) -> PathBuf {
    Path::new(PODS).join(uid(pod)).join("containers").join(container).join(attempt.to_string())
}

/// The folder of a volume that is made for the pod.
pub(super) fn volume_folder(pod: &Pod, volume: &str) -> PathBuf {
    Path::new(PODS).join(uid(pod)).join("volumes").join(volume)
}

/// The folder of everything that is made for the pod.
pub(super) fn folder(pod: &Pod) -> PathBuf {
    Path::new(PODS).join(uid(pod))
}

/// Whether a volume carries the pod's token.
pub(super) fn has_token(volume: &Volume) -> bool {
    let sources = volume.projected.as_ref().and_then(|projected| projected.sources.as_ref());
    sources.is_some_and(|sources| sources.iter().any(|source| source.service_account_token.is_some()))
}

fn mounts(pod: &Pod, container: &Container) -> Result<Vec<cri::Mount>> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let volumes: BTreeMap<&str, &Volume> = volumes.map(|volume| (volume.name.as_str(), volume)).collect();
    let mut mounts = Vec::new();
    for wanted in container.volume_mounts.iter().flatten() {
        let volume = volumes.get(wanted.name.as_str()).with_context(|| format!("no volume {}", wanted.name))?;
        let from = match &volume.host_path {
            Some(host) => {
                if host.type_.as_deref() == Some("DirectoryOrCreate") {
                    fs::create_dir_all(&host.path).with_context(|| host.path.clone())?;
                }
                PathBuf::from(&host.path)
            }
            None => volume_folder(pod, &wanted.name),
        };
        mounts.push(mount(&from, &wanted.mount_path));
    }
    Ok(mounts)
}

fn mount(from: &Path, to: &str) -> cri::Mount {
    cri::Mount { host_path: from.display().to_string(), container_path: to.to_owned(), ..Default::default() }
}

fn environment(pod: &Pod, container: &Container, addresses: &Addresses) -> BTreeMap<String, String> {
    let mut env: BTreeMap<String, String> =
        [("KUBERNETES_SERVICE_HOST", SERVICE_IP.to_string()), ("KUBERNETES_SERVICE_PORT", "443".to_owned())]
            .map(|(key, value)| (key.to_owned(), value))
            .into();
    if !host_network(pod) {
        // All pods share one network here: the operator's ports have to be bound to the pod's own address.
        env.insert("NRH_LISTEN".to_owned(), format!("{}:8080", addresses.pod));
        env.insert("NRH_HEALTH_LISTEN".to_owned(), format!("{}:8081", addresses.pod));
    }
    for wanted in container.env.iter().flatten() {
        let path = wanted.value_from.as_ref().and_then(|from| from.field_ref.as_ref()).map(|f| f.field_path.as_str());
        let value = match path {
            None => wanted.value.clone(),
            Some("spec.nodeName") => pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            Some("metadata.name") => pod.metadata.name.clone(),
            Some("metadata.namespace") => pod.metadata.namespace.clone(),
            Some("metadata.uid") => pod.metadata.uid.clone(),
            Some("status.podIP") => Some(addresses.pod.clone()),
            Some("status.hostIP") => Some(addresses.node.to_string()),
            Some(_) => None,
        };
        env.insert(wanted.name.clone(), value.unwrap_or_default());
    }
    env
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_pod_reach_its_environment() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"nodeName": "fake-1", "hostNetwork": true, "containers": [{"name": "c", "image": "i", "env": [
                {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "PLAIN", "value": "x=y"}]}]}
        }))
        .unwrap();
        let addresses = Addresses { node: Ipv4Addr::LOCALHOST, pod: "10.244.1.2".into() };
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let env = environment(&pod, container, &addresses);
        assert_eq!(env["NODE_NAME"], "fake-1");
        assert_eq!(env["PLAIN"], "x=y");
        assert!(!env.contains_key("NRH_LISTEN"));
        assert_eq!(sandbox(&pod, 2).metadata.unwrap().uid, "u");
    }
}
