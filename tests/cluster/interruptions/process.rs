//! The controller as a process of its own, in the bed: it ends with the bed, however that ends.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use nrh_testbed::Bed;
use nrh_testbed::operator::IMAGE;
use nrh_testbed::process::Identity;
use nrh_testbed::wait::ENDS;
use rustix::process::Signal;
use serde_json::Value;

pub struct Process {
    identity: Identity,
    log: PathBuf,
}

impl Process {
    /// Starts one of that name, whose only way to the API server is this kubeconfig.
    pub fn start(bed: &Bed, name: &str, kubeconfig: &Value) -> Result<Self> {
        let path = bed.dir().join(format!("{name}.kubeconfig"));
        std::fs::write(&path, kubeconfig.to_string())?;
        let kubeconfig = format!("KUBECONFIG={}", path.display());
        let log = bed.dir().join(format!("logs/{name}.log"));
        let program = env!("CARGO_BIN_EXE_nrh");
        let mut argv = vec!["env", &kubeconfig, "NRH_LOG=info", program, "controller", "--identity", name];
        argv.extend(["--image", IMAGE, "--listen", "127.0.0.1:0", "--health-listen", "127.0.0.1:0"]);
        let argv: Vec<String> = argv.into_iter().map(ToOwned::to_owned).collect();
        Ok(Self { identity: bed.realm().daemon(&log, &argv)?, log })
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        ensure!(self.identity.signal(signal)?, "the controller has ended by itself: {}", self.log());
        Ok(())
    }

    /// Ends it as the kernel does, without a word.
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)?;
        ensure!(self.is_gone(), "the controller outlives SIGKILL by {} s", ENDS.as_secs());
        Ok(())
    }

    pub fn is_gone(&self) -> bool {
        self.identity.wait_gone(ENDS)
    }

    /// What it, and whoever had its name before, has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}
