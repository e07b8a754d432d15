//! A stand-in for systemd's `Restart=always RestartSec=5` in front of a node's kubelet.

use anyhow::{Result, bail};

/// `testbed supervise [--start-check] [--log FILE] -- PROGRAM ARGS…`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Run the start check of kubelets ≤ 1.23 (a labelled stand-in) before each start
    #[arg(long)]
    pub start_check: bool,
    /// CRI socket the start check asks
    #[arg(long, default_value = "/run/containerd/containerd.sock")]
    pub socket: std::path::PathBuf,
    /// File that gets one line for each start and exit
    #[arg(long)]
    pub log: Option<std::path::PathBuf>,
    /// Seconds between an exit and the next start
    #[arg(long, default_value_t = 5)]
    pub restart_sec: u64,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

/// Runs the program until SIGTERM, starting it again after each exit.
pub fn run(args: &Args) -> Result<()> {
    bail!("not built yet: {args:?}")
}
