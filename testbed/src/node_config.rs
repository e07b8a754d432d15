//! Configuration files of a node's programs. Defaults stay wherever the machine allows it: they are what users run.

use std::{net::Ipv4Addr, path::Path};

use serde_json::{Value, json};

use crate::Platform;
use crate::images::PAUSE_IMAGE;
use crate::layout::Places;

/// Port of containerd's own metrics, on the node's address.
pub const CONTAINERD_METRICS: u16 = 1338;

/// containerd's configuration.
pub(crate) fn containerd(ip: Ipv4Addr, cni_bin: &Path) -> String {
    let cni_bin = cni_bin.display();
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"

[metrics]
  address = "{ip}:{CONTAINERD_METRICS}"

# The default would write to /opt.
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Small virtual machines refuse negative values and have no AppArmor profile to load.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_bin}"
    conf_dir = "/etc/cni/net.d"
"#
    )
}

/// containerd's configuration on a machine, with the runtime's defaults but for what each node has to set.
pub(crate) fn containerd_of_machine(ip: Ipv4Addr, platform: &Platform, cni_bin: &Path) -> String {
    let (cni_bin, oci, systemd) = (cni_bin.display(), platform.oci.path(), !platform.cgroup_v1);
    let selinux = platform.selinux;
    let Places { root, state, socket, .. } = platform.layout.places();
    let cri = r#"plugins."io.containerd.grpc.v1.cri""#;
    format!(
        r#"version = 2
root = "{root}"
state = "{state}"

[grpc]
  address = "{socket}"

[metrics]
  address = "{ip}:{CONTAINERD_METRICS}"

[{cri}]
  sandbox_image = "{PAUSE_IMAGE}"
  enable_selinux = {selinux}
  [{cri}.cni]
    bin_dir = "{cni_bin}"
  [{cri}.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [{cri}.containerd.runtimes.runc.options]
      BinaryName = "{oci}"
      SystemdCgroup = {systemd}

# By default containerd asks each shim once a second, which is half of what an emulated machine can compute. Older ones ignore this.
[plugins."io.containerd.cri.v1.runtime"]
  stats_collect_period = "30s"
"#
    )
}

/// Where the settings of the second containerd are.
pub(crate) const HOST_CONTAINERD: &str = "/var/lib/host-containerd/config.toml";

/// Settings of a second containerd, for containers of the host: it does not speak CRI, and serves a socket of its own.
pub(crate) const HOST_CONTAINERD_CONFIG: &str = r#"version = 2
root = "/var/lib/host-containerd"
state = "/run/host-containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.grpc.v1.cri"]

[grpc]
  address = "/run/host-containerd/containerd.sock"
"#;

/// A pod network behind the plugin that can be told to hang.
pub(crate) fn cni(subnet: &str) -> String {
    let network = json!({
        "cniVersion": "1.0.0",
        "name": "nrh",
        "plugins": [{
            "type": "nrh-gate",
            "lock": "/run/cni-gate/ipam.lock",
            "gates": "/run/cni-gate",
            "delegate": {
                "type": "ptp",
                "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}]},
            },
        }],
    });
    format!("{network:#}\n")
}

/// The kubelet's configuration in namespaces of this machine.
pub(crate) fn kubelet(ip: Ipv4Addr, healthz_port: u16) -> String {
    let mut config = kubelet_with("cgroupfs");
    let here = json!({
        "address": ip.to_string(),
        // 127.0.0.1 is shared by all nodes of a bed.
        "healthzPort": healthz_port,
        "cgroupsPerQOS": false,
        "enforceNodeAllocatable": [],
        "failCgroupV1": false,
        "failSwapOn": false,
        "localStorageCapacityIsolation": false,
        // All nodes see the one disk and the one memory of the machine.
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "maxPods": 260,
        // The default is a folder of /usr.
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    });
    if let (Some(config), Value::Object(here)) = (config.as_object_mut(), here) {
        config.extend(here);
    }
    format!("{config:#}\n")
}

/// The kubelet's configuration on a machine: what users have.
pub(crate) fn kubelet_of_machine(platform: &Platform) -> String {
    let mut config = kubelet_with(if platform.cgroup_v1 { "cgroupfs" } else { "systemd" });
    if platform.cgroup_v1 {
        config["failCgroupV1"] = false.into();
    }
    config["featureGates"] = platform.gates.iter().map(|gate| ((*gate).to_owned(), Value::Bool(true))).collect();
    config["containerRuntimeEndpoint"] = format!("unix://{}", platform.layout.places().socket).into();
    format!("{config:#}\n")
}

fn kubelet_with(cgroup_driver: &str) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": cgroup_driver,
    })
}
