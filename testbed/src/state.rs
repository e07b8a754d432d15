//! Folders of beds: who owns which, and what a bed must remember to be found again.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

pub(crate) use crate::paths::target;
pub use crate::paths::workspace;
use crate::{cgroup, node::Node, process, realm::Realm, watches};

const STATE: &str = "state.json";
/// How long the kernel may take to end the processes of a bed whose owner was killed.
const ENDING: Duration = Duration::from_secs(15);

/// What is known of a bed from outside its owner.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) realm: Realm,
    /// Identity of its network, by which its processes are found.
    pub(crate) network: String,
    pub(crate) keep: bool,
    pub(crate) nodes: Vec<Node>,
    pub(crate) kubeconfig: PathBuf,
}

/// Folder of all beds: `NRH_TESTBED_DIR`, or `testbed` in cargo's target folder.
pub(crate) fn root() -> PathBuf {
    std::env::var_os("NRH_TESTBED_DIR").map_or_else(|| target().join("testbed"), PathBuf::from)
}

/// Folder of one bed.
pub(crate) fn folder(name: &str) -> PathBuf {
    root().join("run").join(name)
}

/// Folder that keeps the logs of a bed that failed.
pub(crate) fn logs(name: &str) -> PathBuf {
    root().join("logs").join(name)
}

impl State {
    pub(crate) fn load(name: &str) -> Result<Self> {
        let path = folder(name).join(STATE);
        let text = fs::read_to_string(&path).with_context(|| format!("no bed {name:?}: {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }

    pub(crate) fn save(&self, name: &str) -> Result<()> {
        let path = folder(name).join(STATE);
        let new = path.with_extension("new");
        fs::write(&new, serde_json::to_string_pretty(self)?)?;
        fs::rename(&new, &path).with_context(|| path.display().to_string())
    }
}

/// Takes a name for a new bed. The returned lock is the owner's mark; the kernel lets it go when the owner ends.
pub(crate) fn claim(name: &str) -> Result<File> {
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    ensure!(!name.is_empty() && name.chars().all(valid), "{name:?} is no name for a bed: a-z, 0-9 and - only");
    let (run, _all) = all_beds()?;
    sweep(&run);
    let dir = folder(name);
    ensure!(!dir.exists(), "bed {name:?} is up already, see {}", dir.display());
    fs::create_dir_all(dir.join("logs"))?;
    let mark = File::create(dir.join("owner"))?;
    mark.lock()?;
    watches::raise(&run);
    Ok(mark)
}

/// The folder of all beds, held: one at a time makes or removes a bed's folder, or a sweep could take one between its making and its
/// mark.
fn all_beds() -> Result<(PathBuf, File)> {
    let run = root().join("run");
    fs::create_dir_all(&run).with_context(|| run.display().to_string())?;
    let all = File::create(run.join(".lock"))?;
    all.lock()?;
    Ok((run, all))
}

/// Removes the folder of a bed that has ended, and after the last one what beds have changed on the machine.
pub(crate) fn release(name: &str) -> Result<()> {
    let (run, _all) = all_beds()?;
    remove_folder(&folder(name))?;
    put_back(&run);
    Ok(())
}

/// Removes what beds have left behind whose owners were killed. Waits for those that are just ending.
pub fn tidy() -> Result<()> {
    let once = || -> Result<()> {
        let (run, _all) = all_beds()?;
        sweep(&run);
        put_back(&run);
        Ok(())
    };
    process::wait_until(ENDING, || once().is_err() || names().is_empty());
    once()
}

fn put_back(run: &Path) {
    if names().is_empty() {
        watches::put_back(run);
    }
}

/// Removes what owners left behind that were killed: their processes are gone, their folders are not.
fn sweep(run: &Path) {
    for entry in fs::read_dir(run).into_iter().flatten().flatten() {
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        if !entry.path().is_dir() {
            continue;
        }
        let owned = File::open(entry.path().join("owner")).is_ok_and(|f| f.try_lock().is_err());
        let alive = State::load(&name).is_ok_and(|s| s.realm.init.alive());
        if !owned && !alive {
            // What cannot be removed now will be tried again by the next bed.
            let _ = cgroup::remove(&name);
            let _ = remove_folder(&entry.path());
        }
    }
}

/// Removes a bed's folder, even with immutable files in it: one of the faults makes some.
fn remove_folder(dir: &Path) -> Result<()> {
    if fs::remove_dir_all(dir).is_ok() || !dir.exists() {
        return Ok(());
    }
    let _ = std::process::Command::new("chattr").args(["-R", "-f", "-i"]).arg(dir).status();
    fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))
}

/// Names of all beds that have a folder.
pub(crate) fn names() -> Vec<String> {
    let entries = fs::read_dir(root().join("run")).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.filter(|e| e.path().is_dir()).filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// What of a bed is still there: one line each, empty when nothing is.
pub(crate) fn leftovers(name: &str, network: &str) -> Vec<String> {
    let processes = process::members("net", network).into_iter();
    let mut found: Vec<_> =
        processes.map(|p| format!("process {p} ({})", process::comm(p).unwrap_or_default())).collect();
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let dir = folder(name).display().to_string();
    found.extend(mounts.lines().filter(|l| l.contains(&dir)).map(|l| format!("mount {l}")));
    found.extend(cgroup::leftovers(name).iter().map(|g| format!("control group {}", g.display())));
    found
}
