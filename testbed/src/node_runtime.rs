//! Starts and stops a node's runtime, and changes its version and the kubelet's.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};

use crate::node::{CONTAINERD_COMMAND, KubeletStart, Node};
use crate::node_config::{HOST_CONTAINERD, HOST_CONTAINERD_CONFIG};
use crate::realm::output_of;
use crate::wait::{SOON, last_answer};
use crate::{assets, systemd, view};

impl Node {
    /// Starts the runtime and waits until it has loaded what was there: before that its lists are errors.
    pub fn start_containerd(&self) -> Result<()> {
        match self.unit_of("containerd") {
            Some(unit) => self.unit_start(&unit)?,
            None => drop(self.start("containerd", &CONTAINERD_COMMAND.map(str::to_owned))?),
        }
        let lists = last_answer(SOON, || view::lists(&self.socket(), view::LIMIT), Result::is_ok);
        let what = || format!("the runtime of {} does not answer, see {}", self.name, self.log("containerd").display());
        lists.map(drop).with_context(what)
    }

    /// Stops containerd as systemd does (SIGTERM, then SIGKILL to it alone); shims and containers live on.
    pub fn stop_containerd(&self) -> Result<()> {
        self.stop("containerd")
    }

    /// Starts a second containerd, which the kubelet does not use.
    pub fn start_host_containerd(&self) -> Result<()> {
        let name = "host-containerd";
        self.write(HOST_CONTAINERD, HOST_CONTAINERD_CONFIG)?;
        let command = ["containerd", "--config", HOST_CONTAINERD].map(str::to_owned);
        self.unit_write(&format!("{name}.service"), &self.service(name, &command, systemd::CONTAINERD)?)?;
        self.unit_start(name)
    }

    /// Stops and starts containerd.
    pub fn restart_containerd(&self) -> Result<()> {
        self.stop_containerd()?;
        self.start_containerd()
    }

    /// Replaces containerd by this version of its Go module, and restarts it.
    pub fn change_containerd(&self, version: &str) -> Result<()> {
        for program in assets::containerd(version)? {
            self.install(&program, &self.layout.places().containerd_program(&program)?)?;
        }
        self.restart_containerd()
    }

    /// Replaces the kubelet by this program, and restarts it.
    pub fn change_kubelet(&self, program: &Path) -> Result<()> {
        self.install(program, self.layout.places().kubelet.0)?;
        self.stop_kubelet()?;
        self.start_kubelet(KubeletStart::default())
    }

    /// Writes a program by rename, as a package does: what runs goes on with the former one.
    fn install(&self, program: &Path, path: &str) -> Result<()> {
        let file = File::open(program).with_context(|| program.display().to_string())?;
        let script = r#"cat >"$1.new"; chmod 0755 "$1.new"; mv "$1.new" "$1""#;
        let mut write = self.command("sh");
        write.args(["-ec", script, "sh", path]);
        output_of(&mut write, file).with_context(|| format!("write {path} of {}", self.name)).map(drop)
    }
}
