//! What the node remembers of orders, in its state folder: shared by the probe and every Job, and by their
//! restarts.
//!
//! ```text
//! epoch        highest leader term seen
//! seen/ID      when operation ID was first read, by the monotonic clock of this boot
//! ops/ID       exists once: whoever created it owns operation ID; later it holds what came of it
//! ```
//!
//! `ops/ID` is created exclusively before the act and never created again, so a crash between the two leaves a
//! claim without an outcome: that operation is not acted on any more, and says so.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use serde::{Deserialize, Serialize};

use crate::core::command::{ActionCommand, Outcome};
use crate::node::misread::Misread;

/// Claims older than this are swept. An order can be started for at most an hour and the clock slack of
/// another, so nothing that could still be started loses its claim.
const KEEP: Duration = Duration::from_hours(24);
/// Most marks looked at in one sweep.
const MAX_SWEEP: usize = 256;
/// Largest file of ours that is read.
const MAX_FILE: u64 = 128 << 10;
/// How far a term may be above the minutes since 1970, at which a new Lease begins: room for leaders that change more often
/// than once a minute, and for a clock that is behind.
const TERMS_AHEAD: u64 = 1000;
/// How long the epoch's lock is waited for. Its holder waits for the disk twice, at times for seconds; the caller gives
/// up after five.
const LOCK_WAIT: Duration = Duration::from_secs(4);

/// A moment of this boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Moment {
    /// Identity of the boot.
    pub(super) boot: String,
    /// Time since boot.
    pub(super) uptime: Duration,
}

/// What is stored under an operation's id.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    order: ActionCommand,
    /// Process id of the claimant, for people.
    pid: u32,
    outcome: Option<Outcome>,
}

/// Why an order's term is not that of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoLeader {
    /// This node has seen a later one.
    Behind { seen: u64 },
    /// No term is as high at this time.
    Ahead { highest: u64 },
}

/// What is known of an operation.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::node) enum Known {
    /// Nobody has claimed it.
    Free,
    /// It has ended, with this outcome.
    Ended(Outcome),
    /// It is claimed, and no outcome is stored: it is under way, or its claimant has died.
    Open,
    /// It is claimed by another order with the same id.
    OtherOrder,
}

/// The state folder.
#[derive(Clone, Debug)]
pub(super) struct Claims {
    folder: PathBuf,
}

impl Claims {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// Makes the folders, readable by root only.
    pub(super) fn prepare(&self) -> io::Result<()> {
        for folder in ["ops", "seen"] {
            DirBuilder::new().recursive(true).mode(0o700).create(self.folder.join(folder))?;
        }
        Ok(())
    }

    /// Raises the stored epoch to `epoch`, unless it is no leader's at `now`. May sleep while it waits for another process:
    /// call it on a thread of its own.
    ///
    /// No leader's term is far above the minutes since 1970. If one were believed, every order of the true leader would be
    /// refused from then on.
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

    /// When this operation was first read: `now`, unless it was read before.
    pub(super) fn first_read(&self, order: &ActionCommand, now: &Moment) -> io::Result<Moment> {
        let name = format!("seen/{}", order.operation_id);
        if self.create(&name, now)? {
            return Ok(now.clone());
        }
        let path = self.folder.join(&name);
        let bytes = read(&path)?.unwrap_or_default();
        serde_json::from_slice(&bytes).map_err(|error| unreadable(&path, &error))
    }

    /// What is known of this order's operation.
    pub(super) fn known(&self, order: &ActionCommand) -> io::Result<Known> {
        let path = self.claim_path(order);
        let Some(bytes) = read(&path)? else { return Ok(Known::Free) };
        Ok(of_claim(&bytes, order))
    }

    /// Takes the operation; `false` when it is taken already. With an outcome, it has ended by that.
    pub(super) fn claim(&self, order: &ActionCommand, outcome: Option<Outcome>) -> io::Result<bool> {
        self.create(
            &format!("ops/{}", order.operation_id),
            &Claim { order: order.clone(), pid: std::process::id(), outcome },
        )
    }

    /// Stores what came of an operation that the caller has claimed.
    pub(super) fn conclude(&self, order: &ActionCommand, outcome: &Outcome) -> io::Result<()> {
        let claim = Claim { order: order.clone(), pid: std::process::id(), outcome: Some(outcome.clone()) };
        self.replace(&format!("ops/{}", order.operation_id), &claim)
    }

    /// Removes what is older than a day, a bounded number of operations at a time.
    pub(super) fn sweep(&self, now: &Moment) -> io::Result<()> {
        for entry in std::fs::read_dir(self.folder.join("seen"))?.take(MAX_SWEEP) {
            let entry = entry?;
            if Self::is_old(&entry.path(), now)? {
                // The claim first: after a crash between the two, the mark still says how old the order is.
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
        // Of an earlier boot (the folder outlived it), or cut short: only the wall clock is left to tell.
        Ok(std::fs::metadata(mark)?.modified()?.elapsed().is_ok_and(|age| age > KEEP))
    }

    fn claim_path(&self, order: &ActionCommand) -> PathBuf {
        self.folder.join("ops").join(&order.operation_id)
    }

    /// Makes a file that is not there yet, in one step: whoever finds it finds all of it. `false` when it exists.
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

    /// Puts a file in the place of another in one step: readers see the old one or the new one, whole.
    fn replace(&self, name: &str, content: &impl Serialize) -> io::Result<()> {
        let fresh = self.write(content)?;
        let path = self.folder.join(name);
        std::fs::rename(&fresh, &path)?;
        sync_folder(&path)
    }

    /// Writes a file under a name of its own, all of it on the disk.
    fn write(&self, content: &impl Serialize) -> io::Result<PathBuf> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let unique = format!(".new-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let fresh = self.folder.join(&unique);
        // Left behind by a process of the same id that crashed.
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

/// What a claim says of this order's operation. One that cannot be read was cut short by a crash: it is a claim all the
/// same.
pub(in crate::node) fn of_claim(bytes: &[u8], order: &ActionCommand) -> Known {
    let Ok(claim) = serde_json::from_slice::<Claim>(bytes) else { return Known::Open };
    match claim.outcome {
        _ if !same_attempt(&claim.order, order) => Known::OtherOrder,
        Some(outcome) => Known::Ended(outcome),
        None => Known::Open,
    }
}

/// One attempt at one fault. A new leader may give the same order again, with its own epoch and time, and with a
/// target that was looked up anew: that is the same attempt, and it has one outcome.
fn same_attempt(a: &ActionCommand, b: &ActionCommand) -> bool {
    (&a.fault_id, a.fault_type, a.action) == (&b.fault_id, b.fault_type, b.action)
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn sync_folder(file: &Path) -> io::Result<()> {
    file.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

fn unreadable(path: &Path, error: &serde_json::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {}", path.display(), Misread::from(error)))
}
