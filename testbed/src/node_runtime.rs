//! Starts and stops a node's runtime.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::node::{CONTAINERD_COMMAND, Node};
use crate::process::wait_until;
use crate::view;

/// How long a runtime may take to load its containers: containerd needs 5 s for each one behind an unresponsive shim.
const RUNTIME_READY: Duration = Duration::from_mins(2);

impl Node {
    /// Starts the runtime and waits until it has loaded what was there: before that its lists are errors.
    pub fn start_containerd(&self) -> Result<()> {
        match self.unit_of("containerd") {
            Some(unit) => self.unit_start(&unit)?,
            None => drop(self.start("containerd", &CONTAINERD_COMMAND.map(str::to_owned))?),
        }
        let mut lists = view::lists(&self.socket(), view::LIMIT);
        wait_until(RUNTIME_READY, || {
            if lists.is_err() {
                lists = view::lists(&self.socket(), view::LIMIT);
            }
            lists.is_ok()
        });
        let what = || format!("the runtime of {} does not answer, see {}", self.name, self.log("containerd").display());
        lists.map(drop).with_context(what)
    }

    /// Stops containerd as systemd does (SIGTERM, then SIGKILL to it alone); shims and containers live on.
    pub fn stop_containerd(&self) -> Result<()> {
        self.stop("containerd")
    }

    /// Stops and starts containerd.
    pub fn restart_containerd(&self) -> Result<()> {
        self.stop_containerd()?;
        self.start_containerd()
    }
}
