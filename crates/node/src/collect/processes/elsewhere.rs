//! Leaves out containerds that the kubelet does not use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Proven;
use crate::proc::role::{CONTAINERD, Proof};
use crate::proc::{Handle, listener};
use nrh_core::observation::ProcessSeen;

/// An older containerd that does not listen is not asked again. It loads what was there before it listens.
const START: Duration = Duration::from_mins(10);

/// Where each containerd listens, by pid and start time; `None` if it does not.
#[derive(Debug, Default)]
pub(super) struct Listeners(BTreeMap<(i32, u64), Option<PathBuf>>);

impl Listeners {
    /// Removes the containerds that provably listen elsewhere than the kubelet's runtime, whose endpoint this is.
    pub(super) fn leave_out(
        &mut self,
        processes: &mut Vec<ProcessSeen>,
        proven: &BTreeMap<(i32, u64), Proven>,
        endpoint: Option<&Path>,
        root: &Path,
    ) {
        self.0.retain(|id, _| proven.contains_key(id));
        let shims: Vec<_> = proven.values().filter_map(|known| known.proof.kubelets_address()).collect();
        let Some(endpoint) = endpoint.filter(|_| !shims.is_empty()) else { return };
        processes.retain(|seen| {
            let id = (seen.pid, seen.start_ticks);
            let is_containerd = proven
                .get(&id)
                .is_some_and(|known| matches!(&known.proof, Proof::Runtime { name } if name == CONTAINERD));
            let is_elsewhere = |path: PathBuf| listener::is_elsewhere(&path, endpoint, &shims);
            !(is_containerd && self.path(root, seen, id).is_some_and(is_elsewhere))
        });
    }

    /// What cannot be read is tried again.
    fn path(&mut self, root: &Path, seen: &ProcessSeen, id: (i32, u64)) -> Option<PathBuf> {
        if let Some(known) = self.0.get(&id)
            && (known.is_some() || seen.age >= START)
        {
            return known.clone();
        }
        let handle = Handle::of(root, seen.pid, seen.start_ticks).ok()?;
        let found = listener::path(root, &handle).ok()?;
        if let Some(path) = &found {
            tracing::info!(pid = seen.pid, path = %path.display(), "a containerd listens");
        }
        self.0.insert(id, found.clone());
        found
    }
}
