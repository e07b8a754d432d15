//! The workloads that the incidents happen to.

use crate::images::WORK_IMAGE;

/// Namespace of the demo's workloads.
pub const NAMESPACE: &str = "demo";
/// Folder on the node with the causes of failing workloads.
pub(super) const CAUSES: &str = "/run/demo";

/// Workloads that run on every real node.
pub(super) const EVERYWHERE: [&str; 5] = ["log-shipper", "node-metrics", "mesh-agent", "net-a", "net-b"];

/// DaemonSet pods on every real node; the crash loops on one only.
pub(super) fn workloads(sick: &str) -> String {
    let mut text = some_workloads(&EVERYWHERE);
    for name in ["crash-control", "crash-loop"] {
        let args = format!(r#"["fail-while", "{CAUSES}/{name}"]"#);
        // Left out until an act labels the node: a crash loop needs minutes to reach its longest back-off.
        text.push_str(&daemon_set(name, &args, &format!("kubernetes.io/hostname: {sick}, demo/crash: 'true'")));
    }
    text
}

/// These of the workloads that run on every real node.
pub fn some_workloads(names: &[&str]) -> String {
    let mut text = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}\n");
    for name in names {
        text.push_str(&daemon_set(name, r#"["work"]"#, "kubernetes.io/os: linux"));
    }
    text
}

fn daemon_set(name: &str, args: &str, selector: &str) -> String {
    format!(
        r"---
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: {name}, namespace: {NAMESPACE}}}
spec:
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 5
      nodeSelector: {{{selector}}}
      containers:
      - name: main
        image: {WORK_IMAGE}
        imagePullPolicy: Never
        args: {args}
        volumeMounts: [{{name: causes, mountPath: {CAUSES}}}]
      volumes:
      - name: causes
        hostPath: {{path: {CAUSES}, type: DirectoryOrCreate}}
"
    )
}
