//! What the probe saves across its own restart, in the state folder: one small file, valid for one boot.
//!
//! The module also has the lock that allows only one probe per node, in pod mode or in unit mode.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::cri::endpoint::{Endpoint, Flags};
use crate::parse_error::ParseError;
use crate::proc::bounded::{invalid, read_file};
use nrh_core::command::Outcome;
use nrh_core::tracker::Tracker;

const STATE: &str = "probe.json";
const LOCK: &str = "probe.lock";
/// A state file larger than this is not ours.
const LARGEST: usize = 4 << 20;
/// Interval between two attempts to take a lock that another probe holds.
const LOCK_RETRY: Duration = Duration::from_secs(2);

/// The saved state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Saved {
    /// The boot for which it is valid.
    pub boot_id: String,
    /// Faults with the history of their checks.
    #[serde(default)]
    pub tracker: Tracker,
    /// Conditions of the last judgement, with the times of their transitions.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Outcome of the last command.
    pub agent: Option<Outcome>,
    /// The sockets that a person has configured for the probe: a Job on this node uses them as well.
    #[serde(default)]
    pub sockets: Flags,
    /// The runtime's socket in use.
    pub endpoint: Option<Endpoint>,
    /// The kubelet's process as last seen.
    pub kubelet: Option<KubeletProcess>,
    /// The kubelet's version, as the controller reported it.
    pub kubelet_version: Option<String>,
}

/// A process of the kubelet, and what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletProcess {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// The start time by the wall clock, as first computed.
    pub began: Timestamp,
    /// Whether a sandbox of a pod, or with CRI-O a container of one, has been created since the start.
    pub creates_pods: bool,
}

/// The state file.
#[derive(Debug)]
pub struct StateFile {
    folder: PathBuf,
    boot_id: String,
    /// The bytes last written: identical content is not written again.
    written: Vec<u8>,
}

impl StateFile {
    /// Opens the file in this folder, for this boot. Creates the folder if it is missing.
    pub fn open(folder: &Path, boot_id: &str) -> io::Result<Self> {
        make_folder(folder)?;
        Ok(Self { folder: folder.to_path_buf(), boot_id: boot_id.to_owned(), written: Vec::new() })
    }

    /// Loads what an earlier probe of this boot has saved; an unreadable file, or one of another boot, counts as empty.
    pub fn load(&self, now: Duration) -> Saved {
        let fresh = || Saved { boot_id: self.boot_id.clone(), ..Saved::default() };
        let path = self.folder.join(STATE);
        let bytes = match read_bounded(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return fresh(),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot read the saved state: starting afresh");
                return fresh();
            }
        };
        match serde_json::from_slice::<Saved>(&bytes) {
            Ok(saved) if saved.boot_id == self.boot_id => Saved { tracker: saved.tracker.restored(now), ..saved },
            Ok(_) => {
                tracing::info!("the node has booted since: starting afresh");
                fresh()
            }
            Err(error) => {
                let error = ParseError::from(&error);
                tracing::warn!(path = %path.display(), %error, "the saved state is not readable: starting afresh");
                fresh()
            }
        }
    }

    /// Writes a new file and renames it over the old one, so that a crash leaves one of the two complete.
    pub fn save(&mut self, saved: &Saved) -> io::Result<()> {
        let bytes = serde_json::to_vec(saved).map_err(io::Error::other)?;
        if bytes == self.written {
            return Ok(());
        }
        let (path, new) = (self.folder.join(STATE), self.folder.join("probe.json.new"));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&bytes)?;
        std::fs::rename(&new, &path)?;
        self.written = bytes;
        Ok(())
    }
}

fn make_folder(folder: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let read = read_file(&mut File::open(path)?, LARGEST)?;
    if read.truncated {
        return Err(invalid(format!("larger than {LARGEST} bytes")));
    }
    Ok(read.bytes)
}

/// The lock for the only probe of the node, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct OneProbe {
    _file: File,
}

impl OneProbe {
    /// Takes the lock, or waits until the probe that holds it ends. The wait is logged once.
    pub async fn wait(folder: &Path) -> io::Result<Self> {
        make_folder(folder)?;
        let path = folder.join(LOCK);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        let mut logged = false;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _file: file }),
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    if !logged {
                        tracing::info!(path = %path.display(), "another probe runs on this node: waiting until it ends");
                        logged = true;
                    }
                    tokio::time::sleep(LOCK_RETRY).await;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const NOW: Duration = Duration::from_secs(100);

    #[test]
    fn what_is_saved_is_loaded_in_the_same_boot_only() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = StateFile::open(folder.path(), "boot-1").unwrap();
        let mut saved = file.load(NOW);
        assert_eq!(saved, Saved { boot_id: "boot-1".into(), ..Saved::default() });
        saved.conditions.push(nrh_api::condition::condition(
            &[],
            nrh_api::ConditionType::RuntimeReady,
            nrh_core::snapshot::TriState::True,
            nrh_api::ConditionReason::NoFault,
            "x",
            jiff::Timestamp::UNIX_EPOCH,
        ));
        file.save(&saved).unwrap();
        assert_eq!(StateFile::open(folder.path(), "boot-1").unwrap().load(NOW), saved);
        let other = StateFile::open(folder.path(), "boot-2").unwrap().load(NOW);
        assert_eq!((other.boot_id.as_str(), other.conditions.len()), ("boot-2", 0));
        let mode = std::fs::metadata(folder.path().join(STATE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_broken_or_oversized_file_is_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::open(folder.path(), "boot-1").unwrap();
        for content in ["", "{", "[]", r#"{"bootId":"boot-1","tracker":{"entries":7}}"#] {
            std::fs::write(folder.path().join(STATE), content).unwrap();
            assert_eq!(file.load(NOW), Saved { boot_id: "boot-1".into(), ..Saved::default() }, "{content}");
        }
        let oversized = File::create(folder.path().join(STATE)).unwrap();
        oversized.set_len(LARGEST as u64 + 10).unwrap();
        assert_eq!(file.load(NOW).boot_id, "boot-1");
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_probe_waits_and_takes_over() {
        let folder = tempfile::tempdir().unwrap();
        let first = OneProbe::wait(folder.path()).await.unwrap();
        let second = tokio::time::timeout(Duration::from_mins(1), OneProbe::wait(folder.path())).await;
        assert!(second.is_err(), "the first still runs");
        let path = folder.path().to_path_buf();
        let waiting = tokio::spawn(async move { OneProbe::wait(&path).await });
        tokio::time::sleep(Duration::from_secs(5)).await;
        drop(first);
        tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap().unwrap();
    }
}
