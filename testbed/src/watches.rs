//! The machine's limit of inotify instances. A kubelet holds six and systemd more, and a user may have 128 in all: enough for
//! eighteen nodes. While beds stand the limit is higher; the last bed to go puts it back.

use std::fs;
use std::path::Path;

const LIMIT: &str = "/proc/sys/fs/inotify/max_user_instances";
const ENOUGH: u64 = 4096;
/// Keeps the machine's own limit, in the folder of all beds.
const KEPT: &str = ".inotify";

fn read(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Raises the limit where it is low. Without the right to do so a bed of few nodes works all the same.
pub(crate) fn raise(run: &Path) {
    let Some(own) = read(Path::new(LIMIT)).filter(|own| *own < ENOUGH) else { return };
    if fs::write(run.join(KEPT), own.to_string()).is_ok() {
        let _ = fs::write(LIMIT, ENOUGH.to_string());
    }
}

/// Puts the machine's own limit back. Only while no bed stands.
pub(crate) fn put_back(run: &Path) {
    let kept = run.join(KEPT);
    if let Some(own) = read(&kept) {
        let _ = fs::write(LIMIT, own.to_string());
        let _ = fs::remove_file(kept);
    }
}
