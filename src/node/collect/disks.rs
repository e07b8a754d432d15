//! What lies on the node's disks: the file systems of the kubelet's and the runtime's folders, and the kubelet's client
//! certificate. All of it is read as the kubelet or the runtime itself sees it, through that process's own root: what is
//! mounted into our pod, and how, is another matter.
//!
//! A dead disk or server holds up whoever asks for it, so this has a thread of its own. No path below a pod's folder is
//! touched.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, fstat, fstatvfs};

use super::host::{Daemon, Who};
use super::kubelet::settings::flag;
use crate::core::observation::{Credential, DisksSeen, FilesystemSeen, Owner, Space};
use crate::core::text::bounded;
use crate::node::proc::{Handle, bounded::read_whole, rooted};

pub(in crate::node) mod credential;

/// Where a runtime keeps what lives as long as the boot (sockets, bundles, locks). Not all of `/run`: a unit may be given
/// that to read, and its own folder to write.
const fn run_of(runtime: &str) -> Option<&'static str> {
    match runtime.as_bytes() {
        b"containerd" => Some("/run/containerd"),
        b"dockerd" => Some("/run/docker"),
        b"crio" => Some("/run/crio"),
        _ => None,
    }
}
const KUBELET: &str = "/var/lib/kubelet";
/// Longest list of options of a file system.
const MAX_OPTIONS: usize = 16 << 10;
/// Words among the options of an ext4 that takes no writes any more after an error. It is not marked read-only then (since
/// Linux 6.12), so that neither mount table nor `statvfs` tells.
const STOPPED: [&str; 2] = ["emergency_ro", "shutdown"];

/// A daemon's own folders, and where it has been told to find its credentials.
#[derive(Clone, Debug)]
struct Places {
    daemon: Daemon,
    folders: Vec<PathBuf>,
    /// Its folder below `/run`, where that is at its usual place.
    run: Option<PathBuf>,
    /// The flags of a kubelet; none of other daemons, and none where they cannot be read.
    args: Option<Vec<String>>,
    /// Whether this is the last word: a daemon that has just begun may not have opened its data yet.
    settled: bool,
}

/// The disk collector's eye.
#[derive(Debug)]
pub struct Disks {
    proc: PathBuf,
    sys: PathBuf,
    /// What was found of daemons that still run: it does not change while they do.
    known: Vec<Places>,
}

impl Disks {
    /// Looks at this `/proc` and this `/sys`.
    pub fn new(proc: &Path, sys: &Path) -> Self {
        Self { proc: proc.to_path_buf(), sys: sys.to_path_buf(), known: Vec::new() }
    }

    /// One look. What cannot be looked at is said in its place.
    pub fn look(&mut self, who: &Who) -> DisksSeen {
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
        let handle = daemon.handle(&self.proc)?;
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
                |args| credential::look(&root, args, std::time::SystemTime::now()),
            );
        }
        let mut found = 0_usize;
        for folder in places.folders.iter().chain(&places.run) {
            match rooted::open(&root, folder, rooted::FOLDER) {
                Ok(open) => {
                    self.add(folder, &open, &mut seen.filesystems)?;
                    found += usize::from(places.folders.contains(folder));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        // One whose data are elsewhere was not looked at.
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

    /// What an ext4 on this device says of itself, if it takes no writes. Other file systems turn read-only as a whole.
    fn stopped(&self, device: &str) -> Option<String> {
        let link = std::fs::read_link(self.sys.join("dev/block").join(device)).ok()?;
        let options = self.proc.join("fs/ext4").join(link.file_name()?).join("options");
        let options = read_whole(&options, MAX_OPTIONS).ok()?;
        let word = options.lines().find(|line| STOPPED.contains(line))?;
        Some(format!("ext4 has stopped after an error ({word})"))
    }
}

/// Where a daemon keeps its data: where it has them open, else where they usually are.
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
    let data = match &daemon.owner {
        Owner::Kubelet => {
            args = handle.args().ok();
            settled = args.is_some();
            let told = args.as_deref().and_then(|args| flag(args, "root-dir")).filter(|path| path.starts_with('/'));
            Some(told.map_or_else(|| PathBuf::from(KUBELET), PathBuf::from))
        }
        Owner::Runtime(name) => match name.as_str() {
            "containerd" => or_usual(open("/io.containerd.metadata.v1.bolt/meta.db")?, "/var/lib/containerd"),
            "dockerd" => or_usual(open("/volumes/metadata.db")?, "/var/lib/docker"),
            "crio" => Some("/var/lib/containers".into()),
            // It keeps a few small files only.
            _ => None,
        },
        Owner::Node | Owner::Pods => None,
    };
    let run = match &daemon.owner {
        Owner::Runtime(name) => run_of(name).map(PathBuf::from),
        _ => None,
    };
    let folders = data.into_iter().collect();
    Ok(Places { daemon: daemon.clone(), folders, run, args, settled })
}

#[cfg(test)]
mod tests;
