//! Control groups of a bed: one subtree per bed, so that what its containers leave behind is known and removed.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};

use crate::process::wait_until;
use crate::wait::ENDS;

/// Subtree of all beds.
const ROOT: &str = "nrh-testbed";

/// Path of a bed's or a node's group below each hierarchy.
pub(crate) fn path(bed: &str, node: &str) -> String {
    format!("{ROOT}/{bed}/{node}")
}

/// Moves the calling shell into the group `$1`, made in each hierarchy.
///
/// With the unified hierarchy a group either holds processes or hands controllers on, so they sit in a leaf of it.
pub(crate) const JOIN: &str = r#"
group=$1
join() { # hierarchy
  path=$1
  for step in $(echo "$group" | tr / ' '); do
    if [ -e "$path/cgroup.subtree_control" ]; then
      for c in $(cat "$path/cgroup.controllers"); do echo "+$c" >"$path/cgroup.subtree_control" 2>/dev/null || true; done
    fi
    parent=$path; path=$path/$step; mkdir -p "$path"
    if [ -e "$path/cpuset.cpus" ] && [ -e "$path/cpuset.mem_exclusive" ]; then
      cat "$parent/cpuset.cpus" >"$path/cpuset.cpus"; cat "$parent/cpuset.mems" >"$path/cpuset.mems"
    fi
  done
  echo $$ >"$path/cgroup.procs"
}
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then join /sys/fs/cgroup; else
  # The unified one may be there beside the others: without controllers, but runc makes groups in it.
  for hierarchy in $(awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/mounts); do join "$hierarchy"; done
fi
"#;

/// Inside the new namespaces: shows each hierarchy from the own group on, as on a machine of its own.
pub(crate) const REMOUNT: &str = r#"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  umount /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup
  mkdir -p /sys/fs/cgroup/init
  while read -r pid; do echo "$pid" >/sys/fs/cgroup/init/cgroup.procs || true; done </sys/fs/cgroup/cgroup.procs
else
  awk '$3 == "cgroup" || $3 == "cgroup2" { print $2, $3, $4 }' /proc/mounts | while read -r path type options; do
    if [ "$type" = cgroup2 ]; then umount "$path"; mount -t cgroup2 cgroup2 "$path"; continue; fi
    name=$(echo "$options" | tr , '\n' | grep -vx -e rw -e ro -e relatime -e nosuid -e nodev -e noexec | paste -sd,)
    case $name in name=*) name=none,$name ;; esac
    umount "$path"; mount -t cgroup -o "$name" cgroup "$path"
  done
fi
"#;

/// Lets everything in the groups of the bed `$1` go on: with version 1 the kernel cannot end what is frozen. Groups come and
/// go meanwhile; one that stays frozen shows by processes that do not end.
pub(crate) const THAW: &str = r#"
find "/sys/fs/cgroup/freezer/nrh-testbed/$1" -name freezer.state 2>/dev/null | while read -r state; do
  { echo THAWED >"$state"; } 2>/dev/null
done
"#;

/// The same for a bed that is taken down by its owner.
pub(crate) fn thaw(bed: &str) -> Result<()> {
    Command::new("sh").args(["-c", THAW, "sh", bed]).status().context("sh").map(drop)
}

/// Where the hierarchies are mounted.
fn hierarchies() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let fields = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>());
    fields.filter(|f| f.len() > 2 && f[2].starts_with("cgroup")).map(|f| PathBuf::from(f[1])).collect()
}

/// The groups of a bed that exist.
pub(crate) fn leftovers(bed: &str) -> Vec<PathBuf> {
    hierarchies().into_iter().map(|h| h.join(ROOT).join(bed)).filter(|p| p.exists()).collect()
}

/// Removes the groups of a bed whose processes have ended.
pub(crate) fn remove(bed: &str) -> Result<()> {
    // The kernel lets go of a group a moment after its last process.
    let gone = wait_until(ENDS, || {
        for group in leftovers(bed) {
            remove_tree(&group);
            if let Some(root) = group.parent() {
                // Fails, rightly, while another bed is up.
                let _ = fs::remove_dir(root);
            }
        }
        leftovers(bed).is_empty()
    });
    ensure!(gone, "control groups stay: {:?}", leftovers(bed));
    Ok(())
}

fn remove_tree(group: &PathBuf) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    let _ = fs::remove_dir(group);
}
