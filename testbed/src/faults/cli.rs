//! Faults by hand: `testbed fault …`.

use std::io::Read;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{
    Injection, await_gate_holder, block_kubelet_start, freeze_kubelet, freeze_shim, hang_cni_add, hang_cni_del,
    leaked_shim, lose_sandbox, set_cause, stop_all_containers,
};
use crate::Bed;
use crate::view;

/// `testbed fault NODE FAULT …`: prints the injection as JSON; `lift` takes that JSON back.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the node
    node: String,
    #[command(subcommand)]
    fault: Sub,
}

#[derive(Debug, clap::Subcommand)]
enum Sub {
    /// Stop the shim of a pod
    FreezeShim {
        /// NAMESPACE/NAME
        pod: String,
    },
    /// Stop the shim of a pod and restart containerd
    LeakShim {
        /// NAMESPACE/NAME
        pod: String,
    },
    /// Stop the shim of a pod and restart the kubelet
    BlockStart {
        /// NAMESPACE/NAME
        pod: String,
    },
    /// Stop (SIGSTOP) the kubelet
    FreezeKubelet,
    /// Stop the kubelet, remove the sandbox under a running container, restart containerd
    LoseSandbox {
        /// NAMESPACE/NAME
        pod: String,
    },
    /// Kill every container; the kubelet has to be stopped
    StopContainers,
    /// Make the next network plugin that adds a pod hang with the lock
    HangAdd {
        /// Wait so many seconds for a plugin to do so
        #[arg(long)]
        wait: Option<u64>,
    },
    /// Make the next network plugin that takes a pod away hang with the lock
    HangDel {
        /// Wait so many seconds for a plugin to do so
        #[arg(long)]
        wait: Option<u64>,
    },
    /// Create the file that a `fail-while` workload fails on
    Cause {
        /// Path on the node
        path: String,
    },
    /// Take a fault away: reads from standard input what its injection printed
    Lift,
    /// Print the bed's own view of the node as JSON
    View,
}

/// Injects or lifts a fault, or shows the node.
pub fn run(bed: &Bed, args: &Args) -> Result<()> {
    let node = bed.node(&args.node)?;
    let uid = |name: &str| {
        let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
        let pod = view::pod(&|| bed.command("kubectl"), namespace, name)?;
        pod.map(|pod| pod.uid).with_context(|| format!("no pod {namespace}/{name}"))
    };
    let hang = |gate: Injection, wait: Option<u64>| match wait {
        Some(seconds) => await_gate_holder(node, &gate, Duration::from_secs(seconds)),
        None => Ok(gate),
    };
    let injection = match &args.fault {
        Sub::FreezeShim { pod } => freeze_shim(node, &uid(pod)?)?,
        Sub::LeakShim { pod } => leaked_shim(node, &uid(pod)?)?,
        Sub::BlockStart { pod } => block_kubelet_start(node, &uid(pod)?)?,
        Sub::FreezeKubelet => freeze_kubelet(node)?,
        Sub::LoseSandbox { pod } => lose_sandbox(node, &uid(pod)?)?,
        Sub::StopContainers => stop_all_containers(node)?,
        Sub::HangAdd { wait } => hang(hang_cni_add(node)?, *wait)?,
        Sub::HangDel { wait } => hang(hang_cni_del(node)?, *wait)?,
        Sub::Cause { path } => set_cause(node, path)?,
        Sub::Lift => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("read the injection")?;
            let injection: Injection = serde_json::from_str(&text).context("what the injection printed")?;
            return injection.lift(node);
        }
        Sub::View => {
            println!("{}", serde_json::to_string_pretty(&view::node_view(node)?)?);
            return Ok(());
        }
    };
    println!("{}", serde_json::to_string(&injection)?);
    Ok(())
}
