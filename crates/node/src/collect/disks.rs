//! The node's disks: the file systems of the kubelet's and the runtime's folders, and the kubelet's client certificate. The
//! collector reads all of it as the kubelet or the runtime itself sees it, through that process's own root. What is mounted
//! into the probe's pod may differ from that.
//!
//! A dead disk or server blocks every process that reads it, so this has its own thread. It touches no path below a pod's
//! folder.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, fstat, fstatvfs};

use super::host::{Daemon, Who};
use super::kubelet::settings::flag;
use crate::proc::{Handle, bounded::read_whole, rooted};
use nrh_core::observation::{Credential, DisksSeen, FilesystemSeen, Owner, Space};
use nrh_core::text::bounded;

pub(crate) mod credential;

const KUBELET: &str = "/var/lib/kubelet";
/// Longest list of options of a file system.
const MAX_OPTIONS: usize = 16 << 10;
/// Options of an ext4 that accepts no writes any more after an error. Since Linux 6.12 it is not marked read-only then, so
/// neither the mount table nor `statvfs` shows it.
const STOPPED: [&str; 2] = ["emergency_ro", "shutdown"];

/// A daemon's own folders, and where its flags say its credentials are.
#[derive(Clone, Debug)]
struct Places {
    daemon: Daemon,
    folders: Vec<PathBuf>,
    /// The folder in which a runtime keeps data that lives as long as the boot (sockets, bundles, locks). This is not all of
    /// `/run`: a unit may have that read-only, and its own folder writable. `None` for other daemons, and for runtimes whose
    /// usual folder is not known.
    run: Option<PathBuf>,
    /// The flags of a kubelet; `None` for other daemons, and where they cannot be read.
    args: Option<Vec<String>>,
    /// Whether this is final: a daemon that has just started may not have opened its data yet.
    settled: bool,
}

/// The state of the disk collector.
#[derive(Debug)]
pub struct Disks {
    proc: PathBuf,
    sys: PathBuf,
    /// What was found about daemons that still run. It does not change while they run.
    known: Vec<Places>,
}

impl Disks {
    /// Reads this `/proc` and this `/sys`.
    pub fn new(proc: &Path, sys: &Path) -> Self {
        Self { proc: proc.to_path_buf(), sys: sys.to_path_buf(), known: Vec::new() }
    }

    /// One reading. An error is in the field that it concerns.
    pub fn check(&mut self, who: &Who) -> DisksSeen {
        let nobody = || Credential::Unknown("no kubelet is seen through which its certificate could be checked".into());
        let mut seen = DisksSeen { filesystems: Vec::new(), unseen: who.unseen.clone(), credential: nobody() };
        self.known.retain(|places| who.daemons.contains(&places.daemon));
        for daemon in &who.daemons {
            if let Err(error) = self.daemon(daemon, &mut seen) {
                let why = format!("the folders of {} cannot be checked: {error}", daemon.owner);
                seen.unseen.get_or_insert(bounded(&why, 200));
            }
        }
        seen
    }

    fn daemon(&mut self, daemon: &Daemon, seen: &mut DisksSeen) -> io::Result<()> {
        let handle = Handle::of(&self.proc, daemon.pid, daemon.start_ticks)?;
        let known = self.known.iter().find(|places| places.daemon == *daemon).cloned();
        let places = if let Some(known) = known {
            known
        } else {
            let places = places(daemon, &handle)?;
            if places.settled {
                self.known.push(places.clone());
            }
            places
        };
        let root = handle.root()?;
        if daemon.owner == Owner::Kubelet {
            seen.credential = places.args.as_deref().map_or_else(
                || Credential::Unknown("the kubelet's flags cannot be read".to_owned()),
                |args| credential::check(&root, args, std::time::SystemTime::now()),
            );
        }
        let mut found = 0_usize;
        for folder in places.folders.iter().chain(&places.run) {
            if let Some(open) = rooted::folder(&root, folder)? {
                self.add(folder, &open, &mut seen.filesystems)?;
                found += usize::from(places.folders.contains(folder));
            }
        }
        // A daemon whose data are elsewhere was not checked.
        if found < places.folders.len() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "they are not at their usual place"));
        }
        Ok(())
    }

    fn add(&self, folder: &Path, open: &OwnedFd, all: &mut Vec<FilesystemSeen>) -> io::Result<()> {
        let (stat, vfs) = (fstat(open)?, fstatvfs(open)?);
        let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        let device = format!("{major}:{minor}");
        let read_only = if vfs.f_flag.contains(StatVfsMountFlags::RDONLY) {
            Some("it is mounted read-only".to_owned())
        } else {
            self.stopped(&device)
        };
        let name = bounded(&folder.display().to_string(), 120);
        if let Some(known) = all.iter_mut().find(|known| known.device == device) {
            if !known.folders.contains(&name) {
                known.folders.push(name);
                known.folders.sort();
            }
            known.read_only = known.read_only.take().or(read_only);
            return Ok(());
        }
        let block = vfs.f_frsize;
        all.push(FilesystemSeen {
            device,
            folders: vec![name],
            bytes: Space { total: vfs.f_blocks.saturating_mul(block), left: vfs.f_bavail.saturating_mul(block) },
            inodes: Space { total: vfs.f_files, left: vfs.f_favail },
            read_only,
        });
        Ok(())
    }

    /// The state of an ext4 on this device, if it accepts no writes. Other file systems turn read-only as a whole.
    fn stopped(&self, device: &str) -> Option<String> {
        let link = std::fs::read_link(self.sys.join("dev/block").join(device)).ok()?;
        let options = self.proc.join("fs/ext4").join(link.file_name()?).join("options");
        let options = read_whole(&options, MAX_OPTIONS).ok()?;
        let word = options.lines().find(|line| STOPPED.contains(line))?;
        Some(format!("ext4 has stopped after an error ({word})"))
    }
}

/// Where a daemon keeps its data: where it has them open, otherwise at the usual place.
fn places(daemon: &Daemon, handle: &Handle) -> io::Result<Places> {
    let open = |end: &str| {
        let file = handle.open_file(end)?;
        Ok::<_, io::Error>(file.and_then(|file| {
            let depth = Path::new(end).components().count().saturating_sub(1);
            file.ancestors().nth(depth).map(Path::to_path_buf)
        }))
    };
    let (mut args, mut settled) = (None, true);
    let mut or_usual = |found: Option<PathBuf>, usual: &str| {
        settled = found.is_some();
        Some(found.unwrap_or_else(|| PathBuf::from(usual)))
    };
    let (data, run) = match &daemon.owner {
        Owner::Kubelet => {
            args = handle.args().ok();
            settled = args.is_some();
            let root_dir = args.as_deref().and_then(|args| flag(args, "root-dir")).filter(|path| path.starts_with('/'));
            (Some(root_dir.map_or_else(|| PathBuf::from(KUBELET), PathBuf::from)), None)
        }
        Owner::Runtime(name) => match name.as_str() {
            "containerd" => {
                let data = open("/io.containerd.metadata.v1.bolt/meta.db")?;
                (or_usual(data, "/var/lib/containerd"), Some("/run/containerd"))
            }
            "dockerd" => (or_usual(open("/volumes/metadata.db")?, "/var/lib/docker"), Some("/run/docker")),
            // Packages make the folder above it, wherever the storage is.
            "crio" => (Some("/var/lib/containers/storage/overlay".into()), Some("/run/crio")),
            // It keeps only a few small files.
            _ => (None, None),
        },
        Owner::Node | Owner::Pods => (None, None),
    };
    let folders = data.into_iter().collect();
    Ok(Places { daemon: daemon.clone(), folders, run: run.map(PathBuf::from), args, settled })
}

#[cfg(test)]
mod tests;
