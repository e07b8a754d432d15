//! The operator's programs, as they were built.

use std::path::{Path, PathBuf};

/// The operator's programs.
#[derive(Debug, Clone)]
pub struct Programs {
    /// Controller, executor and what people ask
    pub nrh: PathBuf,
    /// The probe
    pub probe: PathBuf,
}

impl Programs {
    /// The same with paths of the image.
    pub(crate) fn in_image(&self) -> [(&'static str, &Path); 2] {
        [("/nrh", &self.nrh), ("/nrh-probe", &self.probe)]
    }
}
