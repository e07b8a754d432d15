//! The folder of the bundles: one file each below the state folder; the oldest bundle is removed first.
//!
//! The folder is on a file system in memory (`/run`): its size is bounded, and a boot removes it.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nrh_core::fault::Fault;
use nrh_core::text::bounded;

use crate::evidence::LARGEST;

/// Name of the folder below the state folder.
const FOLDER: &str = "evidence";
/// Maximum number of bundles.
pub const MAX_BUNDLES: usize = 32;
/// Maximum size of all bundles together, in bytes.
const MAX_BYTES: u64 = 4 << 20;
/// Maximum length of a bundle's name.
const MAX_NAME: usize = 120;
/// Prefix of the file of a bundle that is being written.
const NEW: &str = "new-";
/// Age after which a partial file is abandoned: no write takes so long.
const HALF_WRITTEN: Duration = Duration::from_mins(1);
const END: &str = ".json";

/// The folder of a node's bundles.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

/// One bundle file.
struct Kept {
    written: SystemTime,
    name: String,
    bytes: u64,
}

/// Returns the name of a fault's bundle: the same after a restart of the probe, a different one for a recurrence of the
/// fault.
pub fn name(fault: &Fault) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let id: String = fault.id.chars().filter(|c| plain(*c)).collect();
    format!("{}-{}", bounded(&id, 80), fault.first_seen.strftime("%Y%m%dt%H%M%Sz"))
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

impl Folder {
    /// Returns the folder below this state folder. Nothing is touched yet.
    pub fn below(state_dir: &Path) -> Self {
        Self(state_dir.join(FOLDER))
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the names of the existing bundles, the oldest first; none if there is no folder.
    pub fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.kept()?.into_iter().map(|kept| kept.name).collect())
    }

    /// Returns the text of one bundle.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        if !is_name(name) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a name of a bundle"));
        }
        let mut bytes = Vec::new();
        File::open(self.file(name))?.take(LARGEST as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > LARGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("larger than {LARGEST} bytes")));
        }
        Ok(bytes)
    }

    /// Keeps a bundle completely or not at all, after making room for it, and returns the names of all bundles kept.
    pub fn keep(&self, name: &str, json: &[u8]) -> io::Result<BTreeSet<String>> {
        let length = json.len() as u64;
        if !is_name(name) || json.len() > LARGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no bundle of {length} bytes is kept")));
        }
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let mut kept = self.kept()?;
        kept.retain(|other| other.name != name);
        let mut bytes = kept.iter().fold(length, |sum, other| sum.saturating_add(other.bytes));
        let mut there: BTreeSet<String> = kept.iter().map(|other| other.name.clone()).collect();
        for oldest in kept {
            if there.len() < MAX_BUNDLES && bytes <= MAX_BYTES {
                break;
            }
            match std::fs::remove_file(self.file(&oldest.name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            bytes = bytes.saturating_sub(oldest.bytes);
            there.remove(&oldest.name);
        }
        // The temporary file has its own name: a write that was abandoned on timeout can still be running.
        let new = self.0.join(format!("{NEW}{name}"));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        if let Err(error) = file.write_all(json).and_then(|()| std::fs::rename(&new, self.file(name))) {
            let _ = std::fs::remove_file(&new);
            return Err(error);
        }
        there.insert(name.to_owned());
        Ok(there)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}{END}"))
    }

    /// Returns the bundles, the oldest first. Files with other names are not bundles, and stay untouched.
    fn kept(&self) -> io::Result<Vec<Kept>> {
        let entries = match std::fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut kept = Vec::new();
        for entry in entries {
            let entry = entry?;
            let file = entry.file_name();
            if file.to_str().is_some_and(|file| file.starts_with(NEW) && !file.ends_with(END)) {
                self.sweep(&entry);
                continue;
            }
            let Some(name) = file.to_str().and_then(|file| file.strip_suffix(END)).filter(|name| is_name(name)) else {
                continue;
            };
            let about = entry.metadata()?;
            if about.is_file() {
                kept.push(Kept { written: about.modified()?, name: name.to_owned(), bytes: about.len() });
            }
        }
        kept.sort_by(|a, b| (a.written, &a.name).cmp(&(b.written, &b.name)));
        Ok(kept)
    }

    /// Removes the partial file of a probe that ended during the write; a recent file can still be being written.
    fn sweep(&self, entry: &std::fs::DirEntry) {
        let written = entry.metadata().and_then(|about| about.modified());
        if written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > HALF_WRITTEN)) {
            let _ = std::fs::remove_file(self.0.join(entry.file_name()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use nrh_core::examples::fault;
    use nrh_core::fault::FaultType;

    /// Sets the time of a bundle, in seconds since the epoch.
    fn aged(folder: &Folder, name: &str, seconds: u64) {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        File::options().write(true).open(folder.file(name)).unwrap().set_modified(at).unwrap();
    }

    #[test]
    fn what_was_never_written_to_its_end_goes_and_what_is_being_written_stays() {
        let state = tempfile::tempdir().unwrap();
        let folder = Folder::below(state.path());
        folder.keep("b-1", b"{}").unwrap();
        let half = |name: &str| folder.path().join(format!("{NEW}{name}"));
        for name in ["old", "young"] {
            std::fs::write(half(name), b"{").unwrap();
        }
        File::options().write(true).open(half("old")).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(folder.names().unwrap(), ["b-1"]);
        assert!(!half("old").exists() && half("young").exists());
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let state = tempfile::tempdir().unwrap();
        let folder = Folder::below(state.path());
        assert!(folder.names().unwrap().is_empty(), "no folder, no bundles");
        for number in 0..40_u64 {
            let name = format!("b-{number}");
            let there = folder.keep(&name, b"{}").unwrap();
            aged(&folder, &name, number);
            assert!(there.contains(&name) && there.len() <= MAX_BUNDLES);
        }
        let names = folder.names().unwrap();
        assert_eq!((names.len(), names[0].as_str()), (MAX_BUNDLES, "b-8"));
        // Writing a bundle again removes no other one.
        folder.keep("b-39", b"{ }").unwrap();
        assert_eq!(folder.names().unwrap()[0], "b-8");
        let mode = std::fs::metadata(folder.file("b-39")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn all_together_stay_below_the_ceiling() {
        let state = tempfile::tempdir().unwrap();
        let folder = Folder::below(state.path());
        let large = vec![b' '; LARGEST];
        for number in 0..40_u64 {
            folder.keep(&format!("b-{number}"), &large).unwrap();
            let bytes: u64 = folder.kept().unwrap().iter().map(|kept| kept.bytes).sum();
            assert!(bytes <= MAX_BYTES, "{bytes}");
        }
        assert!(folder.keep("b", &vec![b' '; LARGEST + 1]).is_err());
    }

    #[test]
    fn files_of_others_are_neither_told_nor_removed() {
        let state = tempfile::tempdir().unwrap();
        let folder = Folder::below(state.path());
        folder.keep("a", b"{}").unwrap();
        for other in ["new", "x y.json", "notes.txt"] {
            std::fs::write(folder.0.join(other), "").unwrap();
        }
        assert_eq!(folder.names().unwrap(), ["a"]);
        assert!(folder.read("../probe").is_err() && folder.read("none").is_err());
        assert_eq!(folder.read("a").unwrap(), b"{}");
    }

    #[test]
    fn a_name_is_of_the_fault_and_its_first_sight() {
        let mut one = fault(FaultType::HungContainer);
        let first = name(&one);
        assert!(first.starts_with("hungcontainer-") && first.ends_with("-19700101t000000z") && is_name(&first));
        one.first_seen = jiff::Timestamp::from_second(60).unwrap();
        assert_ne!(name(&one), first);
        one.id = "../\u{1b}x".repeat(100);
        assert!(is_name(&name(&one)));
    }
}
