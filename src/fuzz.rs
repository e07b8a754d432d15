//! What `fuzz/` and the replay of its corpus call: one function for each parser of what others write.
//!
//! ```text
//! fuzz/fuzz_targets/any.rs ──┐
//!                            ├─► run(NAME, bytes) ─► the parser as it ships, and what must hold for whatever it takes
//! fuzz/corpus/NAME/* ─► tests┘
//! ```
//!
//! A target gives whether the parser took the bytes. That nothing panics is the least: what it takes is held against the
//! bytes once more, has the bounds that the rest relies on, and is never another value when the end of the bytes is missing.
//! None of this is in the program: it is built for tests and with the feature `fuzzing` only.

mod cluster;
mod durations;
#[cfg(test)]
mod tests;

use crate::node::fuzz::{agent, bus, kubelet, proc, runtime};

/// A parser, and what must hold for it.
type Target = fn(&[u8]) -> bool;

/// All targets, by name.
const TARGETS: [(&str, Target); 36] = [
    ("bus_message", bus::message),
    ("certificate", kubelet::certificate),
    ("claim", agent::claim),
    ("command", agent::command),
    ("command_object", cluster::command_object),
    ("credential_plugin", agent::credential_plugin),
    ("cri_answers", runtime::cri_answers),
    ("cri_error", runtime::cri_error),
    ("docker_http", runtime::docker_http),
    ("docker_inspect", runtime::docker_inspect),
    ("docker_list", runtime::docker_list),
    ("durations", durations::durations),
    ("health_object", cluster::health_object),
    ("host_numbers", proc::host_numbers),
    ("http_date", agent::http_date),
    ("job_outcome", cluster::job_outcome),
    ("kernel_record", proc::kernel_record),
    ("kubeconfig", kubelet::kubeconfig),
    ("kubelet_config", kubelet::config),
    ("kubelet_flags", kubelet::flags),
    ("kubelet_metrics", kubelet::metrics),
    ("ledger", cluster::ledger),
    ("node_object", cluster::node_object),
    ("own_object", agent::own_object),
    ("pod_object", cluster::pod_object),
    ("policy_object", cluster::policy_object),
    ("probe_config", agent::probe_config),
    ("proc_cgroup", proc::cgroup),
    ("proc_cmdline", proc::cmdline),
    ("proc_environ", proc::environ),
    ("proc_locks", proc::locks),
    ("proc_stat", proc::stat),
    ("proc_status", proc::status),
    ("remediation_object", cluster::remediation_object),
    ("saved_state", agent::saved_state),
    ("socket_name", runtime::socket_name),
];

/// Hands these bytes to the target of this name; gives whether its parser took them.
///
/// # Panics
/// When something does not hold that must, or no target has that name.
pub fn run(name: &str, data: &[u8]) -> bool {
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    assert!(target.is_some(), "no target is called {name}");
    target.is_some_and(|(_, target)| target(data))
}
