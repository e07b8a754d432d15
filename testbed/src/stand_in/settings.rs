//! What a stand-in containerd knows of its node: in place of images, programs of the machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::programs::Programs;

/// Where the settings are, inside the node.
pub const PATH: &str = "/etc/containerd/stand-in.json";

/// The settings, read anew for each container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Beginning of the pods' addresses, such as `10.244.1.`
    pub addresses: String,
    /// The program of each sandbox
    pub pause: Image,
    /// What runs in place of each image, by reference
    pub images: BTreeMap<String, Image>,
}

/// What runs in place of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Its entry point: a program with leading arguments
    pub entrypoint: Vec<String>,
    /// Programs of the machine by their paths in the image, beside the one of the entry point
    pub files: BTreeMap<String, String>,
    /// Arguments when the pod names none
    pub args: Vec<String>,
    /// Environment of the image; what the pod says wins
    pub env: BTreeMap<String, String>,
}

impl Image {
    /// A program without anything else.
    pub fn program(path: &Path) -> Self {
        Self { entrypoint: vec![path.display().to_string()], ..Self::default() }
    }

    /// The operator's image.
    pub fn programs(programs: &Programs) -> Self {
        let files = programs.in_image().map(|(file, program)| (file.to_owned(), program.display().to_string()));
        Self { files: files.into(), ..Self::program(&programs.nrh) }
    }

    /// The command line for a pod's `command` and `args`. What a `command` names and is not known is the entry point's
    /// program.
    pub fn command_line(&self, command: &[String], args: &[String]) -> Vec<String> {
        let named = command.first().and_then(|file| self.files.get(file));
        let mut line = named.map_or_else(|| self.entrypoint.clone(), |program| vec![program.clone()]);
        if command.is_empty() && args.is_empty() {
            line.extend(self.args.iter().cloned());
        }
        line.extend(command.iter().skip(1).chain(args).cloned());
        line
    }
}

impl Settings {
    /// Reads them from a file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Writes them to a file, whole at any moment.
    pub fn write(&self, path: &Path) -> Result<()> {
        let new: PathBuf = path.with_extension("new");
        std::fs::write(&new, serde_json::to_string_pretty(self)?)?;
        std::fs::rename(&new, path).with_context(|| path.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_a_file_of_the_image() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let files = [("/nrh-probe".to_owned(), "/x/nrh-probe".to_owned())].into();
        let image = Image { entrypoint: words("/x/nrh"), files, args: words("--help"), ..Image::default() };
        assert_eq!(image.command_line(&[], &[]), words("/x/nrh --help"));
        assert_eq!(image.command_line(&[], &words("explain n1")), words("/x/nrh explain n1"));
        assert_eq!(image.command_line(&words("/nrh run-command"), &[]), words("/x/nrh run-command"));
        let probe = image.command_line(&words("/nrh-probe"), &words("--allow-actions"));
        assert_eq!(probe, words("/x/nrh-probe --allow-actions"));
    }
}
