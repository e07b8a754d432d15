//! The targets of the node's side: what the kernel, processes, runtimes and the kubelet write, and what comes from the API.

pub(crate) mod agent;
pub(crate) mod bus;
pub(crate) mod kubelet;
pub(crate) mod proc;
pub(crate) mod runtime;
