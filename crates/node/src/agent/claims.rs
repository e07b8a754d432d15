//! What the node remembers of commands, in its state folder. The probe and all Jobs share the folder, also across
//! restarts.
//!
//! ```text
//! epoch        highest leader term seen
//! seen/ID      when operation ID was first read, by the monotonic clock of this boot
//! ops/ID       exists once: whoever created it owns operation ID; later it holds what came of it
//! ```
//!
//! `ops/ID` is created exclusively before the action and never again. A crash between claim and outcome leaves a claim
//! without an outcome: that operation is not executed any more, and the executor reports so.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use serde::{Deserialize, Serialize};

use crate::parse_error::ParseError;
use crate::proc::bounded::{existing, invalid, read_file};
use nrh_core::command::{ActionCommand, Outcome};

/// Claims older than this are swept. A command can be started for at most one hour plus one hour of clock slack, so no
/// command that can still be started loses its claim.
const KEEP: Duration = Duration::from_hours(24);
/// Maximum number of files in `seen/` checked per sweep.
const MAX_SWEEP: usize = 256;
/// Maximum size of a file that is read.
const MAX_FILE: usize = 128 << 10;
/// How far a term may be above the minutes since 1970, which is the first term of a new Lease. It leaves room for
/// leaders that change more often than once a minute, and for a slow clock.
const TERMS_AHEAD: u64 = 1000;
/// How long to wait for the epoch's lock. Its holder waits for the disk twice, sometimes for seconds; the caller gives
/// up after five seconds.
const LOCK_WAIT: Duration = Duration::from_secs(4);

/// A point in time of this boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Moment {
    pub(super) boot: String,
    pub(super) uptime: Duration,
}

/// Content of a claim file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    command: ActionCommand,
    /// Process id of the claimant, as information for people.
    pid: u32,
    outcome: Option<Outcome>,
}

/// Why a command's term is not the leader's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoLeader {
    /// This node has seen a later term.
    Behind { seen: u64 },
    /// No leader can have so high a term at this time.
    Ahead { highest: u64 },
}

/// What is known of an operation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Nobody has claimed it.
    Free,
    Ended(Outcome),
    /// It is claimed without an outcome: it is in progress, or its claimant has died.
    Open,
    /// It is claimed by another command with the same id.
    OtherCommand,
}

#[derive(Clone, Debug)]
pub(super) struct Claims {
    folder: PathBuf,
}

impl Claims {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// Creates the folders, readable by root only.
    pub(super) fn prepare(&self) -> io::Result<()> {
        for folder in ["ops", "seen"] {
            DirBuilder::new().recursive(true).mode(0o700).create(self.folder.join(folder))?;
        }
        Ok(())
    }

    /// Raises the stored epoch to `epoch`, unless no leader can have that term at `now`. It can sleep while another
    /// process holds the lock: call it on a separate thread.
    ///
    /// A leader's term is never far above the minutes since 1970. If this node accepted such a term, it would refuse
    /// every later command of the true leader.
    pub(super) fn raise_epoch(&self, epoch: u64, now: Timestamp) -> io::Result<Result<(), NoLeader>> {
        let minutes = u64::try_from(now.as_second() / 60).unwrap_or_default();
        let highest = minutes.saturating_add(TERMS_AHEAD);
        if epoch > highest {
            return Ok(Err(NoLeader::Ahead { highest }));
        }
        let _lock = self.lock()?;
        let path = self.folder.join("epoch");
        let seen = match read(&path)? {
            None => 0,
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| unreadable(&path, &error))?,
        };
        if epoch < seen {
            return Ok(Err(NoLeader::Behind { seen }));
        }
        if epoch > seen {
            self.replace("epoch", &epoch)?;
        }
        Ok(Ok(()))
    }

    /// Returns when this operation was first read: `now`, unless it was read before.
    pub(super) fn first_read(&self, command: &ActionCommand, now: &Moment) -> io::Result<Moment> {
        let name = format!("seen/{}", command.operation_id);
        if self.create(&name, now)? {
            return Ok(now.clone());
        }
        let path = self.folder.join(&name);
        let bytes = read(&path)?.unwrap_or_default();
        serde_json::from_slice(&bytes).map_err(|error| unreadable(&path, &error))
    }

    pub(super) fn known(&self, command: &ActionCommand) -> io::Result<Known> {
        let Some(bytes) = read(&self.folder.join("ops").join(&command.operation_id))? else { return Ok(Known::Free) };
        Ok(of_claim(&bytes, command))
    }

    /// Claims the operation; `false` if it is claimed already. With an outcome, the operation has ended with it.
    pub(super) fn claim(&self, command: &ActionCommand, outcome: Option<Outcome>) -> io::Result<bool> {
        self.create(
            &format!("ops/{}", command.operation_id),
            &Claim { command: command.clone(), pid: std::process::id(), outcome },
        )
    }

    /// Stores the outcome of an operation that the caller has claimed.
    pub(super) fn conclude(&self, command: &ActionCommand, outcome: &Outcome) -> io::Result<()> {
        let claim = Claim { command: command.clone(), pid: std::process::id(), outcome: Some(outcome.clone()) };
        self.replace(&format!("ops/{}", command.operation_id), &claim)
    }

    /// Removes what is older than a day, a bounded number of operations per call.
    pub(super) fn sweep(&self, now: &Moment) -> io::Result<()> {
        for entry in std::fs::read_dir(self.folder.join("seen"))?.take(MAX_SWEEP) {
            let entry = entry?;
            if Self::is_old(&entry.path(), now)? {
                // The claim is removed first: after a crash between the two removals, the file in `seen/` still has the
                // age of the command.
                remove(&self.folder.join("ops").join(entry.file_name()))?;
                remove(&entry.path())?;
            }
        }
        Ok(())
    }

    fn is_old(mark: &Path, now: &Moment) -> io::Result<bool> {
        let Some(bytes) = read(mark)? else { return Ok(false) };
        if let Ok(seen) = serde_json::from_slice::<Moment>(&bytes)
            && seen.boot == now.boot
        {
            return Ok(now.uptime.saturating_sub(seen.uptime) > KEEP);
        }
        // The file is from an earlier boot (the folder outlived it) or incomplete: only the wall clock shows its age.
        Ok(std::fs::metadata(mark)?.modified()?.elapsed().is_ok_and(|age| age > KEEP))
    }

    /// Creates a new file in one step, so that readers see the whole file. Returns `false` if it exists.
    fn create(&self, name: &str, content: &impl Serialize) -> io::Result<bool> {
        let fresh = self.write(content)?;
        let path = self.folder.join(name);
        match renameat_with(CWD, &fresh, CWD, &path, RenameFlags::NOREPLACE) {
            Ok(()) => sync_folder(&path).map(|()| true),
            Err(error) => {
                remove(&fresh)?;
                if error == rustix::io::Errno::EXIST { Ok(false) } else { Err(error.into()) }
            }
        }
    }

    /// Replaces a file in one step: readers see the whole old file or the whole new one.
    fn replace(&self, name: &str, content: &impl Serialize) -> io::Result<()> {
        let fresh = self.write(content)?;
        let path = self.folder.join(name);
        std::fs::rename(&fresh, &path)?;
        sync_folder(&path)
    }

    /// Writes a file under a temporary, unique name and syncs it to the disk.
    fn write(&self, content: &impl Serialize) -> io::Result<PathBuf> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let unique = format!(".new-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let fresh = self.folder.join(&unique);
        // A crashed process with the same id can have left it.
        remove(&fresh)?;
        let bytes = serde_json::to_vec(content).map_err(io::Error::other)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        Ok(fresh)
    }

    fn lock(&self) -> io::Result<File> {
        let path = self.folder.join("epoch.lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        let end = Instant::now() + LOCK_WAIT;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let text = format!("{} is locked by another process", path.display());
                    return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns what a claim says about this command's operation. An unreadable claim was truncated by a crash and still
/// counts as a claim.
pub(crate) fn of_claim(bytes: &[u8], command: &ActionCommand) -> Known {
    let Ok(claim) = serde_json::from_slice::<Claim>(bytes) else { return Known::Open };
    match claim.outcome {
        _ if !same_attempt(&claim.command, command) => Known::OtherCommand,
        Some(outcome) => Known::Ended(outcome),
        None => Known::Open,
    }
}

/// Whether both commands are the same attempt at the same fault. A new leader can repeat a command with its own epoch
/// and time, and with a newly resolved target: that is the same attempt, with one outcome.
fn same_attempt(a: &ActionCommand, b: &ActionCommand) -> bool {
    let of = |one: &ActionCommand| (one.fault_id.clone(), one.fault_type, one.action.kind(), one.signal());
    of(a) == of(b)
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let Some(mut file) = existing(File::open(path))? else { return Ok(None) };
    Ok(Some(read_file(&mut file, MAX_FILE)?.bytes))
}

fn remove(path: &Path) -> io::Result<()> {
    existing(std::fs::remove_file(path))?;
    Ok(())
}

fn sync_folder(file: &Path) -> io::Result<()> {
    file.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

fn unreadable(path: &Path, error: &serde_json::Error) -> io::Error {
    invalid(format!("{}: {}", path.display(), ParseError::from(error)))
}
