//! Flags of the commands that explain a node.

use std::path::PathBuf;

use clap::Args;
use nrh_api::local::STATE_DIR;
use nrh_caller::ClusterArgs;
use nrh_terminal::OutputArgs;

/// Flags of `nrh explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The node. With `--file` it may be left out when the file holds one node only.
    pub node: Option<String>,
    /// Read the objects from a file (`-`: standard input) instead of the cluster, as `kubectl get nodes,nrh,ncmd,rmp,rmc,nrem -o yaml` prints them.
    #[arg(long, short)]
    pub file: Option<PathBuf>,
    /// How to print.
    #[command(flatten)]
    pub print: OutputArgs,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Flags of `nrh status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Folder of the probe's state.
    #[arg(long, env = "NRH_STATE_DIR", default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// How to print.
    #[command(flatten)]
    pub print: OutputArgs,
}

/// Flags of `nrh evidence`.
#[derive(Debug, Args)]
pub struct EvidenceArgs {
    /// The node. Its bundles are fetched out of the probe's pod there, by the cluster of the current kubeconfig.
    #[arg(required_unless_present = "local", conflicts_with = "local")]
    pub node: Option<String>,
    /// Read the folder of this node; asks nobody.
    #[arg(long)]
    pub local: bool,
    /// Only bundles of this fault: its id, its type, or the name of one bundle.
    #[arg(long)]
    pub fault: Option<String>,
    /// How to print.
    #[command(flatten)]
    pub print: OutputArgs,
    /// Folder of the probe's state, with `--local`.
    #[arg(long, env = "NRH_STATE_DIR", default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}
