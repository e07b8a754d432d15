//! The runtime's table: one folder per sandbox and container, so that it outlives a restart as containerd's does.
//!
//! ```text
//! sandboxes/ID  containers/ID   object.json  written once by containerd
//!                               task.json    the process, written by the shim when it starts
//!                               exit.json    its end, written by the shim when it has taken the exit status
//! s/SANDBOX.json, .sock         the shim of a sandbox
//! ```
//! A shim that is stopped writes no end: as on a real node, the lists go on calling its containers running.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_cri::v1 as cri;
use rustix::process::Signal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::process::Identity;

/// Exit code of a process that was killed.
pub(super) const KILLED: i32 = 137;

/// What is stored of a sandbox or a container.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Object {
    /// Full id.
    pub(super) id: String,
    /// Id of its sandbox; a sandbox' own.
    pub(super) sandbox: String,
    /// Nanoseconds since 1970.
    pub(super) created: i64,
    /// Address of a sandbox.
    pub(super) ip: String,
    /// The command line to run.
    pub(super) argv: Vec<String>,
    /// Its environment.
    pub(super) env: Vec<(String, String)>,
    /// As the kubelet wished it.
    pub(super) config: Config,
}

/// The kubelet's wish.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Config {
    /// A sandbox.
    Sandbox(Box<cri::PodSandboxConfig>),
    /// A container.
    Container(Box<cri::ContainerConfig>),
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Exit {
    /// Exit code.
    pub(super) code: i32,
    /// Nanoseconds since 1970.
    pub(super) at: i64,
}

/// Where an object stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Not started.
    Created,
    /// Started, and no end was told.
    Running(Identity),
    /// Ended.
    Exited(Exit),
}

/// The table below a folder.
#[derive(Debug, Clone)]
pub(super) struct Table {
    root: PathBuf,
}

impl Table {
    pub(super) fn open(root: &Path) -> Result<Self> {
        for folder in ["sandboxes", "containers", "s"] {
            fs::create_dir_all(root.join(folder)).with_context(|| root.display().to_string())?;
        }
        Ok(Self { root: root.to_owned() })
    }

    /// Socket of a sandbox' shim.
    pub(super) fn shim_socket(&self, sandbox: &str) -> PathBuf {
        self.root.join("s").join(format!("{sandbox}.sock"))
    }

    /// Where the shim of a sandbox says who it is.
    pub(super) fn shim_identity(&self, sandbox: &str) -> PathBuf {
        self.root.join("s").join(format!("{sandbox}.json"))
    }

    pub(super) fn sandboxes(&self) -> Vec<Object> {
        self.all("sandboxes")
    }

    pub(super) fn containers(&self) -> Vec<Object> {
        self.all("containers")
    }

    fn all(&self, kind: &str) -> Vec<Object> {
        let entries = fs::read_dir(self.root.join(kind)).into_iter().flatten().flatten();
        // What is being made or removed just now is not there.
        let mut found: Vec<Object> =
            entries.filter_map(|entry| read(&entry.path().join("object.json")).ok().flatten()).collect();
        found.sort_by(|a, b| a.created.cmp(&b.created).then_with(|| a.id.cmp(&b.id)));
        found
    }

    fn folder(&self, id: &str) -> Option<PathBuf> {
        let valid = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let both = ["sandboxes", "containers"].map(|kind| self.root.join(kind).join(id));
        both.into_iter().find(|folder| valid && folder.join("object.json").exists())
    }

    /// A sandbox or container.
    pub(super) fn find(&self, id: &str) -> Option<Object> {
        read(&self.folder(id)?.join("object.json")).ok().flatten()
    }

    pub(super) fn add(&self, object: &Object) -> Result<()> {
        let kind = if matches!(object.config, Config::Sandbox(_)) { "sandboxes" } else { "containers" };
        let folder = self.root.join(kind).join(&object.id);
        fs::create_dir_all(&folder)?;
        write(&folder.join("object.json"), object)
    }

    pub(super) fn remove(&self, id: &str) -> Result<()> {
        let Some(folder) = self.folder(id) else { return Ok(()) };
        // The file first: a folder without it is in no list.
        fs::remove_file(folder.join("object.json"))?;
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())
    }

    pub(super) fn started(&self, id: &str, process: Identity) -> Result<()> {
        write(&self.folder(id).context("no such object")?.join("task.json"), &process)
    }

    /// Stores an end; of two, the first holds. Without effect when the object is gone.
    pub(super) fn ended(&self, id: &str, code: i32) -> Result<()> {
        let Some(folder) = self.folder(id) else { return Ok(()) };
        let path = folder.join("exit.json");
        if path.exists() {
            return Ok(());
        }
        write(&path, &Exit { code, at: nanoseconds() })
    }

    /// Where an object stands, by what its shim has written. A shim that is gone takes what it ran along.
    pub(super) fn standing(&self, object: &Object) -> Result<Standing> {
        let Some(folder) = self.folder(&object.id) else { return Ok(Standing::Created) };
        if let Some(exit) = read(&folder.join("exit.json"))? {
            return Ok(Standing::Exited(exit));
        }
        let Some(process) = read::<Identity>(&folder.join("task.json"))? else { return Ok(Standing::Created) };
        if self.shim_of(&object.sandbox)?.is_some_and(|shim| shim.alive()) {
            return Ok(Standing::Running(process));
        }
        process.signal(Signal::KILL)?;
        self.ended(&object.id, KILLED)?;
        Ok(read(&folder.join("exit.json"))?.map_or(Standing::Created, Standing::Exited))
    }

    /// The process of a sandbox' shim, if it has ever run.
    pub(super) fn shim_of(&self, sandbox: &str) -> Result<Option<Identity>> {
        read(&self.shim_identity(sandbox))
    }

    /// A free address that begins so.
    pub(super) fn free_address(&self, beginning: &str) -> Result<String> {
        let used: BTreeSet<String> = self.sandboxes().into_iter().map(|sandbox| sandbox.ip).collect();
        let mut all = (2..250).map(|number| format!("{beginning}{number}"));
        all.find(|address| !used.contains(address)).context("no address is free")
    }
}

/// Now, as CRI tells times.
pub(super) fn nanoseconds() -> i64 {
    i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// Whole or not at all: others read while this writes.
pub(super) fn write<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let new = path.with_extension(format!("new-{}", std::process::id()));
    fs::write(&new, serde_json::to_vec(value)?).with_context(|| new.display().to_string())?;
    fs::rename(&new, path).with_context(|| path.display().to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn object(id: &str, sandbox: &str, config: Config) -> Object {
        Object {
            id: id.into(),
            sandbox: sandbox.into(),
            created: 1,
            ip: "10.244.1.2".into(),
            argv: vec!["x".into()],
            env: Vec::new(),
            config,
        }
    }

    #[test]
    fn the_first_end_holds_and_a_dead_shim_ends_all_it_ran() {
        let folder = tempfile::tempdir().unwrap();
        let table = Table::open(folder.path()).unwrap();
        table.add(&object("s1", "s1", Config::Sandbox(Box::default()))).unwrap();
        let container = object("c1", "s1", Config::Container(Box::default()));
        table.add(&container).unwrap();
        assert_eq!(table.standing(&container).unwrap(), Standing::Created);
        assert_eq!(table.free_address("10.244.1.").unwrap(), "10.244.1.3");

        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Identity::of(i32::try_from(child.id()).unwrap()).unwrap();
        table.started("c1", process).unwrap();
        let me = Identity::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        write(&table.shim_identity("s1"), &me).unwrap();
        assert_eq!(table.standing(&container).unwrap(), Standing::Running(process));
        write(&table.shim_identity("s1"), &Identity { started: me.started + 1, ..me }).unwrap();
        assert!(matches!(table.standing(&container).unwrap(), Standing::Exited(Exit { code: KILLED, .. })));
        child.wait().unwrap();
        table.ended("c1", 3).unwrap();
        assert!(matches!(table.standing(&container).unwrap(), Standing::Exited(Exit { code: KILLED, .. })));

        table.remove("c1").unwrap();
        assert!(table.find("c1").is_none() && table.find("../c1").is_none() && table.find("s1").is_some());
    }
}
