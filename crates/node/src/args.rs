//! Flags and environment of the probe and of the executor in a Job.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use nrh_api::local::STATE_DIR;

/// Flags of `nrh-probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// Name of this node.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// Run as a plain process or unit, with the kubelet's credentials.
    #[arg(long)]
    pub unit: bool,
    /// Kubeconfig; in unit mode the kubelet's, by default /etc/kubernetes/kubelet.conf.
    #[arg(long, env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Let the probe execute commands; without it, it only reports.
    #[arg(long, env = "NRH_ALLOW_ACTIONS")]
    pub allow_actions: bool,
    /// Runtime socket; by default the probe searches for it.
    #[arg(long, env = "NRH_RUNTIME_ENDPOINT")]
    pub runtime_endpoint: Option<PathBuf>,
    /// Docker's own socket, where Docker is the runtime; /run/docker.sock when absent.
    #[arg(long, env = "NRH_DOCKER_ENDPOINT")]
    pub docker_endpoint: Option<PathBuf>,
    /// Where `/metrics` and `/livez` are served; nothing is served when absent.
    #[arg(long, env = "NRH_LISTEN")]
    pub listen: Option<SocketAddr>,
    /// File with thresholds other than the shipped ones (see `config/probe/probe.yaml`).
    #[arg(long, env = "NRH_CONFIG")]
    pub config: Option<PathBuf>,
    /// Folder for the lock, the claims and the state.
    #[arg(long, env = "NRH_STATE_DIR", default_value = STATE_DIR)]
    pub state_dir: PathBuf,
}

/// Flags of `nrh run-command`.
#[derive(Debug, Args)]
pub struct RunCommandArgs {
    /// The command, as JSON.
    #[arg(long, env = "NRH_COMMAND")]
    pub command: String,
    /// Name of this node; a command for another one is refused.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// Where the result is written, as JSON.
    #[arg(long, default_value = "/dev/termination-log")]
    pub outcome: PathBuf,
}
