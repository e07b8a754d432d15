//! Where the kubelet keeps the control groups of pods.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::proc::{Groups, groups, rooted};

/// What the kubelet's own settings say of the control groups of pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodGroups {
    /// Whether it keeps none (`cgroupsPerQOS: false`).
    pub none: bool,
    /// The group above that of all pods (`cgroupRoot`), as written; empty for the top.
    pub root: String,
}

impl PodGroups {
    /// Where the group of all pods may be, for the kubelet's two drivers and the two versions. systemd repeats the names of all
    /// groups above in that of a group, and has `_` for `-` in each of them.
    pub(super) fn places(&self) -> Vec<PathBuf> {
        let (mut group, mut slices, mut slice) = (PathBuf::new(), PathBuf::new(), String::new());
        for part in self.root.split('/').filter(|part| !part.is_empty()).chain(["kubepods"]) {
            let dash = if slice.is_empty() { "" } else { "-" };
            slice = format!("{slice}{dash}{}", part.replace('-', "_"));
            slices.push(format!("{slice}.slice"));
            group.push(part);
        }
        let below = |controller| [&slices, &group].map(|place| Path::new(groups::MOUNT).join(controller).join(place));
        ["", "pids"].into_iter().flat_map(below).collect()
    }

    /// The groups of all pods: none where the kubelet keeps none, and several where it has changed its driver.
    pub(crate) fn open(&self, root: impl AsFd) -> io::Result<Vec<OwnedFd>> {
        self.places().iter().filter_map(|path| rooted::folder(&root, path).transpose()).collect()
    }

    /// Where the group of a pod's process may be that the kernel shows relative to the probe's own group, as it does to a probe in a
    /// pod with version 2: below the group of all pods, or of one of their classes.
    pub(super) fn below(&self, groups: &Groups) -> Vec<PathBuf> {
        let Some(path) = groups.relative() else { return Vec::new() };
        self.places().iter().flat_map(|place| classes(place)).map(|class| class.join(&path)).collect()
    }
}

/// The group of all pods, and those of the classes in it.
fn classes(pods: &Path) -> [PathBuf; 3] {
    let slice = pods.file_name().and_then(|name| name.to_str()?.strip_suffix(".slice"));
    let class = |class: &str| pods.join(slice.map_or_else(|| class.to_owned(), |pods| format!("{pods}-{class}.slice")));
    [pods.to_owned(), class("burstable"), class("besteffort")]
}
