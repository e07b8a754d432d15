//! A client of a bed's API server: it must run on a thread that is inside the bed's network.

use std::{fs::File, os::fd::AsFd, path::Path};

use anyhow::{Context, Result};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Configuration of a client from a kubeconfig.
pub(crate) async fn config(kubeconfig: &Path) -> Result<Config> {
    let read = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    // The bed has no way out, so a proxy of the surroundings can only break things.
    config.proxy_url = None;
    Ok(config)
}

/// Runs a future with a client on a thread that has entered the network of a process.
pub(crate) fn on_network<T: Send>(
    pid: i32,
    kubeconfig: &Path,
    work: impl AsyncFnOnce(Client) -> Result<T> + Send,
) -> Result<T> {
    let namespace = File::open(format!("/proc/{pid}/ns/net")).context("the bed has ended")?;
    let entered = move || -> Result<T> {
        // Only this thread moves; it ends with the work, so nothing has to move back.
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { work(Client::try_from(config(kubeconfig).await?)?).await })
    };
    let result = std::thread::scope(|scope| scope.spawn(entered).join());
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
