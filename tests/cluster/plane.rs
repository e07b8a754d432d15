//! A control plane without nodes, and our manifests on it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use nrh_testbed::wait::SOON;
use nrh_testbed::{Bed, BedOptions};

/// `None`, and loudly so, where no control plane can be.
pub fn up(name: &str) -> Option<Bed> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED {name}: a real API server needs root (network namespace)");
        return None;
    }
    // Nodes of tests have no kubelet. The controller manager must not taint them in the middle of a test.
    let node_monitor_grace = Some(Duration::from_hours(1));
    let options =
        BedOptions { name: name.into(), control_plane_only: true, node_monitor_grace, ..BedOptions::default() };
    Some(Bed::up(options).unwrap())
}

/// Installs the operator as a user would.
pub fn install(bed: &Bed) -> Result<()> {
    bed.kubectl(&["apply", "-k", &folder("config/default")])?;
    let ours = ["crd", "-l", "app.kubernetes.io/part-of=nrh"];
    bed.kubectl(&[&["wait", "--for=condition=Established", "--timeout=180s"], ours.as_slice()].concat())?;
    Ok(())
}

/// Tries again and again until it succeeds, which it should do in seconds; after ten minutes its last error is the answer.
pub async fn soon<T>(mut attempt: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let ends = Instant::now() + SOON;
    loop {
        match attempt().await {
            Err(_) if Instant::now() < ends => tokio::time::sleep(Duration::from_millis(200)).await,
            answer => return answer,
        }
    }
}

/// A folder of the project.
pub fn folder(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path).display().to_string()
}
