//! The targets of the node's side: what the kernel, processes, runtimes and the kubelet write, and what comes from the API.

pub mod agent;
pub mod bus;
pub mod checks;
pub mod kubelet;
pub mod proc;
pub mod runtime;
