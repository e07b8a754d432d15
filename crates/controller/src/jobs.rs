//! The Job that executes one command on one node: pinned, with only the privileges that it needs, tried once.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    AppArmorProfile, Capabilities, Container, EnvVar, EnvVarSource, HostPathVolumeSource, ObjectFieldSelector, PodSpec,
    PodTemplateSpec, ResourceRequirements, SELinuxOptions, SeccompProfile, SecurityContext, Toleration, Volume,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ObjectMeta;

use super::calls::our_label;
use nrh_api::{NODE_LABEL, NODE_NAMESPACE, OPERATION_LABEL};
use nrh_core::command::ActionCommand;
use nrh_core::text::short_name;

/// Maximum run time of a Job, in seconds. The command itself may only be *started* within its time to live.
const ACTIVE_DEADLINE: i64 = 180;
/// Seconds after its end at which Kubernetes deletes a Job, if the controller has not done so.
const TTL_AFTER_FINISHED: i32 = 600;
/// Service account of the Jobs. It has no rights, and its token is not mounted.
const SERVICE_ACCOUNT: &str = "nrh-act";

/// A path of the node that the executor needs, and how.
struct Mount {
    name: &'static str,
    path: &'static str,
    read_only: bool,
}

/// The only paths of the node that the executor uses. Processes need no mount, because the host PID namespace gives /proc.
const MOUNTS: [Mount; 2] = [
    // The claims. They are created exclusively, so that an operation happens only once.
    Mount { name: "state", path: "/run/nrh", read_only: false },
    // containerd's socket, to check again and to remove exactly one container. Nodes with another runtime may not have the
    // folder. The executor reaches what those nodes need below the root of process 1.
    Mount { name: "runtime", path: "/run/containerd", read_only: true },
];

/// For signals to host processes, and for their executables, wait channels and open files. Root owns the files that are read on
/// the way, and the Job runs as root.
const CAPABILITIES: [&str; 2] = ["KILL", "SYS_PTRACE"];

/// The Job for a command.
pub fn job(command: &ActionCommand, image: &str) -> Result<Job, serde_json::Error> {
    let labels = labels(command);
    Ok(Job {
        metadata: ObjectMeta {
            name: Some(command.operation_id.clone()),
            namespace: Some(NODE_NAMESPACE.to_owned()),
            labels: Some(labels.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            parallelism: Some(1),
            completions: Some(1),
            backoff_limit: Some(0),
            active_deadline_seconds: Some(ACTIVE_DEADLINE),
            ttl_seconds_after_finished: Some(TTL_AFTER_FINISHED),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }),
                spec: Some(pod(command, image)?),
            },
            ..JobSpec::default()
        }),
        status: None,
    })
}

fn labels(command: &ActionCommand) -> BTreeMap<String, String> {
    BTreeMap::from([
        our_label(),
        ("app.kubernetes.io/name".to_owned(), "nrh-act".to_owned()),
        (OPERATION_LABEL.to_owned(), command.operation_id.clone()),
        (NODE_LABEL.to_owned(), short_name(&command.node, 63)),
    ])
}

fn pod(command: &ActionCommand, image: &str) -> Result<PodSpec, serde_json::Error> {
    Ok(PodSpec {
        // The Job bypasses the scheduler, which would wait for free capacity and for a node that is not cordoned.
        node_name: Some(command.node.clone()),
        host_pid: Some(true),
        host_network: Some(true),
        dns_policy: Some("Default".to_owned()),
        enable_service_links: Some(false),
        service_account_name: Some(SERVICE_ACCOUNT.to_owned()),
        automount_service_account_token: Some(false),
        restart_policy: Some("Never".to_owned()),
        priority_class_name: Some("system-node-critical".to_owned()),
        termination_grace_period_seconds: Some(5),
        tolerations: Some(vec![Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() }]),
        containers: vec![container(command, image)?],
        volumes: Some(MOUNTS.iter().map(volume).collect()),
        ..PodSpec::default()
    })
}

fn volume(mount: &Mount) -> Volume {
    let (path, kind) = (mount.path.to_owned(), "DirectoryOrCreate".to_owned());
    let host_path = Some(HostPathVolumeSource { path, type_: Some(kind) });
    Volume { name: mount.name.to_owned(), host_path, ..Volume::default() }
}

fn volume_mount(mount: &Mount) -> VolumeMount {
    VolumeMount {
        name: mount.name.to_owned(),
        mount_path: mount.path.to_owned(),
        read_only: mount.read_only.then_some(true),
        // The Job must not keep mounted what the runtime unmounts.
        mount_propagation: mount.read_only.then(|| "HostToContainer".to_owned()),
        ..VolumeMount::default()
    }
}

fn container(command: &ActionCommand, image: &str) -> Result<Container, serde_json::Error> {
    let node_name = EnvVarSource {
        field_ref: Some(ObjectFieldSelector { api_version: None, field_path: "spec.nodeName".to_owned() }),
        ..EnvVarSource::default()
    };
    Ok(Container {
        name: "command".to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(vec!["/nrh".to_owned(), "run-command".to_owned()]),
        env: Some(vec![
            EnvVar { name: "NODE_NAME".to_owned(), value: None, value_from: Some(node_name) },
            EnvVar { name: "NRH_COMMAND".to_owned(), value: Some(serde_json::to_string(command)?), value_from: None },
        ]),
        volume_mounts: Some(MOUNTS.iter().map(volume_mount).collect()),
        resources: Some(resources()),
        security_context: Some(security()),
        termination_message_policy: Some("File".to_owned()),
        ..Container::default()
    })
}

/// Small and bounded, because the node that it runs on is faulty.
fn resources() -> ResourceRequirements {
    let of = |cpu: &str, memory: &str| {
        Some(BTreeMap::from([
            ("cpu".to_owned(), Quantity(cpu.to_owned())),
            ("memory".to_owned(), Quantity(memory.to_owned())),
        ]))
    };
    ResourceRequirements { requests: of("10m", "16Mi"), limits: of("500m", "64Mi"), claims: None }
}

/// Not privileged. The default profiles forbid signals to host processes, so the Job names other profiles.
fn security() -> SecurityContext {
    SecurityContext {
        privileged: Some(false),
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        run_as_user: Some(0),
        capabilities: Some(Capabilities {
            add: Some(CAPABILITIES.map(str::to_owned).to_vec()),
            drop: Some(vec!["ALL".to_owned()]),
        }),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        app_armor_profile: Some(AppArmorProfile { type_: "Unconfined".to_owned(), localhost_profile: None }),
        se_linux_options: Some(SELinuxOptions { type_: Some("spc_t".to_owned()), ..SELinuxOptions::default() }),
        ..SecurityContext::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(node: &str) -> ActionCommand {
        ActionCommand { node: node.into(), ..nrh_core::examples::command("w1-0123-1") }
    }

    #[test]
    fn the_job_is_pinned_tried_once_and_carries_the_command() {
        let command = command("w1");
        let job = job(&command, "nrh:1").unwrap();
        assert_eq!(job.metadata.name.as_deref(), Some("w1-0123-1"));
        let spec = job.spec.unwrap();
        assert_eq!((spec.backoff_limit, spec.completions), (Some(0), Some(1)));
        let pod = spec.template.spec.unwrap();
        assert_eq!(pod.node_name.as_deref(), Some("w1"));
        assert_eq!(pod.restart_policy.as_deref(), Some("Never"));
        assert_eq!(pod.automount_service_account_token, Some(false));
        let container = pod.containers.first().unwrap();
        let env = container.env.as_ref().unwrap().iter().find(|env| env.name == "NRH_COMMAND").unwrap();
        assert_eq!(serde_json::from_str::<ActionCommand>(env.value.as_deref().unwrap()).unwrap(), command);
        assert_eq!(container.security_context.as_ref().unwrap().privileged, Some(false));
    }

    #[test]
    fn a_node_name_longer_than_a_label_may_be_is_shortened_in_the_label_only() {
        let long = "n".repeat(200);
        let job = job(&command(&long), "nrh:1").unwrap();
        assert!(job.metadata.labels.unwrap().values().all(|value| value.len() <= 63));
        assert_eq!(job.spec.unwrap().template.spec.unwrap().node_name, Some(long));
    }
}
