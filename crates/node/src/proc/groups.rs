//! The control groups of a process, found below the root of a process that sees the node's groups.

use std::io;
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};

use super::handle::Handle;
use super::{bounded::read_file, rooted};
use nrh_core::action::is_service;
use nrh_core::text::{bounded, is_full_id};

/// Longest list of groups that is read.
const MAX_GROUPS: usize = 16 << 10;
/// Longest file of a group that is read. All are one line, except the list of its processes.
const MAX_FILE: usize = 256 << 10;
/// The mount point of control groups on every distribution.
pub(crate) const MOUNT: &str = "sys/fs/cgroup";

/// The groups of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups(pub(crate) String);

impl Handle {
    /// Its control groups.
    pub fn groups(&self) -> io::Result<Groups> {
        let read = read_file(&mut self.file("cgroup")?, MAX_GROUPS)?;
        if read.truncated {
            return Err(io::Error::other("a list of control groups that is too long"));
        }
        Ok(Groups(String::from_utf8_lossy(&read.bytes).into_owned()))
    }
}

impl Groups {
    /// The folders in which files of this controller may be, version 1 before version 2. Where both are in use, version 2 has
    /// its own folder.
    pub fn folders(&self, controller: &str) -> impl Iterator<Item = PathBuf> + '_ {
        let old = self.line(|_, controllers| controllers.split(',').any(|one| one == controller));
        let new = self.line(|number, controllers| number == "0" && controllers.is_empty());
        let old = old.map(|path| Path::new(MOUNT).join(controller).join(path));
        let beside = new.as_ref().map(|path| Path::new(MOUNT).join("unified").join(path));
        old.into_iter().chain(new.map(|path| Path::new(MOUNT).join(path))).chain(beside)
    }

    /// The part of its path that is known where the kernel shows it relative to the reader's group, in another control-group namespace
    /// of version 2.
    pub fn relative(&self) -> Option<PathBuf> {
        let path = self.0.lines().find_map(|line| line.strip_prefix("0::"))?;
        path.starts_with("/../").then(|| below(path))
    }

    /// The systemd service that it is part of. It is the outermost one, where a person's own service manager has services
    /// inside it.
    pub fn service(&self) -> Option<String> {
        // Where both versions are in use, systemd keeps its own tree.
        let own = self.line(|_, controllers| controllers == "name=systemd");
        let path = own.or_else(|| self.line(|number, _| number == "0"))?;
        let mut folders = path.components().filter_map(|part| part.as_os_str().to_str());
        folders.find(|folder| is_service(folder)).map(ToOwned::to_owned)
    }

    /// The group of the first line whose number and controllers match.
    fn line(&self, wanted: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
        self.0.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            wanted(number, controllers).then(|| below(path))
        })
    }
}

/// The part of a kernel path below the common root. From inside a control-group namespace the path first leads up
/// (`/../../system.slice/x`): the part that both have in common is the top of the tree that the other's root shows.
pub(super) fn below(path: &str) -> PathBuf {
    Path::new(path).components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

/// Names of the groups directly below one; empty where it was removed meanwhile.
///
/// # Errors
/// When the folder cannot be read, or there are more than `most`.
pub(crate) fn children(group: impl AsFd, most: usize) -> io::Result<Vec<String>> {
    use rustix::fs::{Dir, FileType, Mode, OFlags, openat};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut names = Vec::new();
    for entry in Dir::new(openat(group, ".", flags, Mode::empty())?)? {
        let entry = match entry {
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NODEV) => break,
            entry => entry?,
        };
        let name = entry.file_name().to_string_lossy();
        if entry.file_type() != FileType::Directory || name == "." || name == ".." {
            continue;
        }
        if names.len() >= most {
            return Err(io::Error::other(format!("more than {most} control groups in one folder")));
        }
        names.push(name.into_owned());
    }
    Ok(names)
}

/// A file of a group; `None` where the group has no such file.
pub(crate) fn file(group: impl AsFd, name: &str) -> io::Result<Option<String>> {
    match rooted::read(group, Path::new(name), MAX_FILE) {
        Ok(text) => Ok(Some(text)),
        // ENODEV: the group was removed meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(19) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The pod of a group by its name: `podUID`, or with systemd `kubepods-burstable-podUID.slice`, in which the uid has underscores.
pub(crate) fn pod_uid(name: &str) -> Option<String> {
    let uid = match name.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once("-pod")?.1.replace('_', "-"),
        None => name.strip_prefix("pod")?.to_owned(),
    };
    let is_uid = !uid.is_empty() && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_uid.then(|| bounded(&uid, 64))
}

/// The container of a group by its name: `ID`, or with systemd `cri-containerd-ID.scope`, `docker-ID.scope`, `crio-ID.scope`.
pub(crate) fn container_id(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let id = name.rsplit_once('-').map_or(name, |(_, id)| id);
    (is_full_id(id) && !name.contains(CONMON_GROUP)).then_some(id)
}

/// Part of the name of the group in which CRI-O runs a conmon: `crio-conmon-ID.scope`.
pub(crate) const CONMON_GROUP: &str = "-conmon-";

pub(crate) fn has(group: impl AsFd, pid: i32) -> io::Result<bool> {
    let members = file(group, "cgroup.procs")?.unwrap_or_default();
    Ok(members.lines().any(|line| line.parse() == Ok(pid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders(text: &str, controller: &str) -> Vec<String> {
        Groups(text.to_owned()).folders(controller).map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn folders_of_both_versions() {
        let both = "9:pids:/system.slice/containerd.service\n3:cpu,cpuacct:/x\n0::/init.scope\n";
        let places = ["pids/system.slice/containerd.service", "init.scope", "unified/init.scope"];
        assert_eq!(folders(both, "pids"), places.map(|place| format!("sys/fs/cgroup/{place}")));
        for new in ["0::/system.slice/a:b.service\n", "0::/../../../system.slice/a:b.service\n"] {
            assert_eq!(folders(new, "pids").first().unwrap(), "sys/fs/cgroup/system.slice/a:b.service");
        }
        assert!(folders("no groups here", "pids").is_empty());
    }
}
