//! What makes a machine a node of its bed, written into its disk before it boots.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::BOOTS;
use crate::network::CONTROL_PLANE_IP;
use crate::realm::output;

/// Files for one machine.
#[derive(Debug)]
pub(crate) struct Files {
    /// Where they are until they are on the disk.
    folder: tempfile::TempDir,
    /// Their paths on the machine, with their mode.
    paths: Vec<(PathBuf, &'static str)>,
    /// Links, each with its target.
    links: Vec<(PathBuf, String)>,
}

impl Files {
    /// Those that give the machine name and address at each boot.
    pub(crate) fn new(bed: &Path, name: &str, ip: &str) -> Result<Self> {
        let mut files = Self { folder: tempfile::tempdir_in(bed)?, paths: Vec::new(), links: Vec::new() };
        let words = [("BOOTS", BOOTS), ("NAME", name), ("IP", ip), ("GATEWAY", &CONTROL_PLANE_IP.to_string())];
        let fill = |text: String, (word, value): &(&str, &str)| text.replace(&format!("{{{word}}}"), value);
        files.script("/etc/bed/set-up", &words.iter().fold(SET_UP.to_owned(), fill))?;
        files.write("/etc/hostname", &format!("{name}\n"))?;
        Ok(files)
    }

    /// A file with this text.
    pub(crate) fn write(&mut self, path: &str, text: &str) -> Result<()> {
        self.add(path, text, "0100644")
    }

    /// A program of this machine's, without what only a debugger reads.
    pub(crate) fn program(&mut self, path: &str, program: &Path) -> Result<()> {
        self.paths.push((path.into(), "0100755"));
        output(Command::new("strip").arg("-o").arg(self.last()?).arg(program)).map(drop)
    }

    /// A program that is a script.
    pub(crate) fn script(&mut self, path: &str, text: &str) -> Result<()> {
        self.add(path, text, "0100755")
    }

    /// A link to another path.
    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.links.push((path.into(), target.to_owned()));
    }

    /// A unit of systemd that starts at each boot.
    pub(crate) fn unit(&mut self, name: &str, text: &str) -> Result<()> {
        let wanted = format!("/etc/systemd/system/multi-user.target.wants/{name}.service");
        self.link(&wanted, &format!("../{name}.service"));
        self.write(&format!("/etc/systemd/system/{name}.service"), text)
    }

    fn add(&mut self, path: &str, text: &str, mode: &'static str) -> Result<()> {
        self.paths.push((path.into(), mode));
        fs::write(self.last()?, text).with_context(|| path.to_owned())
    }

    /// Where the newest one is until it is on the disk.
    fn last(&self) -> Result<PathBuf> {
        Ok(self.folder.path().join(self.paths.len().checked_sub(1).context("no file")?.to_string()))
    }

    /// Writes them into the file system of a disk, in place of those that are there.
    pub(crate) fn finish(&self, disk: &Path) -> Result<()> {
        let links = self.links.iter().map(|(path, target)| format!("rm {0}\nsymlink {0} {target}\n", path.display()));
        let all = self.paths.iter().map(|(path, _)| path).chain(self.links.iter().map(|(path, _)| path));
        let folders: BTreeSet<&Path> = all.flat_map(|path| path.ancestors().skip(1)).collect();
        // What is there already it only says.
        let folders = folders.iter().map(|folder| format!("mkdir {}\n", folder.display()));
        let files = self.paths.iter().enumerate().map(|(number, (path, mode))| {
            let (path, file) = (path.display(), self.folder.path().join(number.to_string()));
            format!("rm {path}\nwrite {} {path}\nset_inode_field {path} mode {mode}\n", file.display())
        });
        let script = self.folder.path().join("script");
        fs::write(&script, folders.chain(files).chain(links).collect::<String>())?;
        output(Command::new("debugfs").arg("-w").arg("-f").arg(&script).arg(disk))?;
        for (path, _) in &self.paths {
            let found = output(Command::new("debugfs").args(["-R", &format!("stat {}", path.display())]).arg(disk))?;
            ensure!(found.contains("Type: regular"), "{} is not on the machine's disk: {found}", path.display());
        }
        Ok(())
    }
}

/// Runs at each boot, before ssh, containerd and the kubelet.
const SET_UP: &str = "#!/bin/sh -e
hostname {NAME}
ip link set eth0 up
ip address replace {IP}/32 dev eth0
ip route replace {GATEWAY} dev eth0
ip route replace default via {GATEWAY}
sysctl -qw net.ipv4.ip_forward=1
# Of SELinux: what was written into the disk has no label yet.
if [ -e /sys/fs/selinux/enforce ]; then restorecon -RF /etc /root /usr/bin /usr/lib/cni /usr/local /usr/sbin /var/lib; setenforce 1; fi
cat /proc/sys/kernel/random/boot_id >>{BOOTS}
";
