//! Nodes on which the `DaemonSet` of `config/probe` runs no pod.

use crate::PROBE_LABEL;

/// Labels of virtual nodes: these have no runtime.
const VIRTUAL: [(&str, &[&str]); 2] =
    [("type", &["virtual-kubelet", "kwok"]), ("eks.amazonaws.com/compute-type", &["fargate"])];
/// Label of a Node with its operating system.
const OS_LABEL: &str = "kubernetes.io/os";

/// Why the node is to have no probe pod, by its labels; `None` where it is to have one. A probe that runs as a unit may check it all
/// the same.
pub fn reason<'a>(label: impl Fn(&str) -> Option<&'a str>) -> Option<String> {
    let is_left_out = |name: &str, value: &str| match name {
        PROBE_LABEL => value == "disabled",
        OS_LABEL => value != "linux",
        _ => VIRTUAL.iter().any(|(of, values)| *of == name && values.contains(&value)),
    };
    let names = [PROBE_LABEL, OS_LABEL].into_iter().chain(VIRTUAL.map(|(name, _)| name));
    let mut labels = names.filter_map(|name| Some((name, label(name)?)));
    labels.find(|(name, value)| is_left_out(name, value)).map(|(name, value)| format!("its label is {name}={value}"))
}
