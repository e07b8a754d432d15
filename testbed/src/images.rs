//! Container images for the bed, made without a registry and without a Docker engine.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::node::Node;

/// The sandbox image: containerd's `sandbox_image`.
pub const PAUSE_IMAGE: &str = "localhost/nrh-testbed/pause:1";
/// The workload image; its entry point is the workload binary, `args` pick a personality.
pub const WORK_IMAGE: &str = "localhost/nrh-testbed/work:1";

/// Builds the static workload binary and returns its path.
pub fn workload_binary(workspace: &Path) -> Result<PathBuf> {
    bail!("not built yet: {}", workspace.display())
}

/// Writes the pause and the workload image below `dir`; returns their archives.
pub fn bed_images(binary: &Path, dir: &Path) -> Result<Vec<PathBuf>> {
    bail!("not built yet: {} {}", binary.display(), dir.display())
}

/// Imports a docker-archive into a node's containerd.
pub fn import(node: &Node, archive: &Path) -> Result<()> {
    bail!("not built yet: {} {}", node.name, archive.display())
}

/// Puts a locally built static `nrh` into the final stage of the shipped Dockerfile and saves it as docker-archive.
pub fn operator_image(workspace: &Path, binary: &Path, reference: &str, archive: &Path) -> Result<()> {
    bail!("not built yet: {} {} {reference} {}", workspace.display(), binary.display(), archive.display())
}
