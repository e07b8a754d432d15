//! Control groups of containers that are in no list of the runtime, and contain processes.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use super::pods::PodGroups;
use crate::proc::groups::{self, container_id, pod_uid};
use crate::proc::rooted;
use nrh_core::observation::UntrackedSeen;
use nrh_core::text::bounded;

/// Maximum number of groups in one folder; more is an error, never a partial result.
const MAX_GROUPS: usize = 4096;
/// Maximum number of them reported in one reading, and of processes of each.
const MAX_FOUND: usize = 16;
const MAX_PIDS: usize = 8;
/// A container that starts is in no list yet: the runtime lists a sandbox only after it has started, and the newest list is up to a
/// minute old.
const STARTING: Duration = Duration::from_secs(90);

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The reported groups, at most `MAX_FOUND`.
    pub reported: Vec<UntrackedSeen>,
    /// How many more there are.
    pub left_out: usize,
}

/// What a search knows about the node.
pub(super) struct Search<'a> {
    /// Where the kubelet keeps the groups of pods.
    pub pods: &'a PodGroups,
    /// The ids in the runtime's newest lists.
    pub listed: &'a BTreeSet<String>,
    /// The age of a process; `None` if it has ended.
    pub age: &'a dyn Fn(i32) -> Option<Duration>,
}

/// Searches below the kubelet's group of all pods. `None` where that group is at none of the usual places.
pub(super) fn find(root: &OwnedFd, search: &Search<'_>) -> io::Result<Option<Found>> {
    let (mut found, mut is_checked) = (Found::default(), false);
    // Of a kubelet whose driver was changed, the group of the other driver may still be there.
    for path in search.pods.places() {
        let Some(pods) = rooted::folder(root, &path)? else { continue };
        is_checked = true;
        let path = path.display().to_string();
        // Pods of the class Guaranteed are here. Those of the two other classes are one folder further down.
        for name in groups::children(&pods, MAX_GROUPS)? {
            if let Some(uid) = pod_uid(&name) {
                of_pod(&pods, (&path, &name), &uid, search, &mut found)?;
            } else if is_class(&name) {
                let Some(class) = rooted::folder(&pods, Path::new(&name))? else { continue };
                let path = format!("{path}/{name}");
                for pod in groups::children(&class, MAX_GROUPS)? {
                    let Some(uid) = pod_uid(&pod) else { continue };
                    of_pod(&class, (&path, &pod), &uid, search, &mut found)?;
                }
            }
        }
    }
    Ok(is_checked.then_some(found))
}

fn of_pod(
    parent: impl AsFd,
    (path, name): (&str, &str),
    uid: &str,
    search: &Search<'_>,
    found: &mut Found,
) -> io::Result<()> {
    let Some(pod) = rooted::folder(parent, Path::new(name))? else { return Ok(()) };
    for container in groups::children(&pod, MAX_GROUPS)? {
        let Some(id) = container_id(&container).filter(|id| !search.listed.contains(*id)) else { continue };
        let Some(group) = rooted::folder(&pod, Path::new(&container))? else { continue };
        // With version 2 the kernel reports on the whole subtree; a group with subgroups has no processes of its own.
        let events = groups::file(&group, "cgroup.events")?;
        let populated = events.map(|text| text.lines().any(|line| line == "populated 1"));
        let mut pids = if populated == Some(false) { Vec::new() } else { processes(&group)? };
        // crun puts the processes of a container into a subgroup.
        if pids.is_empty() && populated == Some(true) {
            for below in groups::children(&group, MAX_GROUPS)? {
                pids.extend(rooted::folder(&group, Path::new(&below))?.map(processes).transpose()?.unwrap_or_default());
            }
        }
        // A group that has only threads in it has no age.
        let is_starting = !pids.is_empty() && !pids.iter().any(|pid| (search.age)(*pid) >= Some(STARTING));
        let lives = populated.unwrap_or(!pids.is_empty()) && !is_starting;
        pids.truncate(MAX_PIDS);
        if lives && found.reported.len() >= MAX_FOUND {
            found.left_out += 1;
        } else if lives {
            let group = bounded(&format!("{path}/{name}/{container}"), 256);
            found.reported.push(UntrackedSeen { id: id.to_owned(), pod_uid: uid.to_owned(), group, pids });
        }
    }
    Ok(())
}

fn processes(group: impl AsFd) -> io::Result<Vec<i32>> {
    let text = match groups::file(group, "cgroup.procs") {
        // The group holds threads instead of processes.
        Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => None,
        read => read?,
    };
    Ok(text.unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect())
}

/// `burstable`, `kubepods-besteffort.slice` and similar names.
fn is_class(name: &str) -> bool {
    let name = name.rsplit_once("kubepods-").map_or(name, |(_, class)| class);
    matches!(name.strip_suffix(".slice").unwrap_or(name), "burstable" | "besteffort")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const UID: &str = "0a1b2c3d-0000-4000-8000-00000000000f";

    fn id(digit: char) -> String {
        digit.to_string().repeat(64)
    }

    /// A tree of plain folders that reads like control groups.
    struct Tree(tempfile::TempDir, &'static str);

    impl Tree {
        fn new() -> Self {
            Self::below("")
        }

        /// Of a kubelet with this `cgroupRoot`.
        fn below(root: &'static str) -> Self {
            Self(tempfile::tempdir().unwrap(), root)
        }

        fn group(&self, path: &str, procs: &str, events: Option<&str>) {
            let folder = self.0.path().join("sys/fs/cgroup").join(path);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cgroup.procs"), procs).unwrap();
            if let Some(events) = events {
                fs::write(folder.join("cgroup.events"), events).unwrap();
            }
        }

        fn find(&self, listed: &[&str]) -> Vec<UntrackedSeen> {
            self.found(listed).reported
        }

        fn found(&self, listed: &[&str]) -> Found {
            self.found_at(listed, &|_| Some(STARTING))
        }

        fn found_at(&self, listed: &[&str], age: &dyn Fn(i32) -> Option<Duration>) -> Found {
            let root = OwnedFd::from(fs::File::open(self.0.path()).unwrap());
            let listed = &listed.iter().map(|id| (*id).to_owned()).collect();
            let pods = &PodGroups { root: self.1.to_owned(), ..PodGroups::default() };
            find(&root, &Search { pods, listed, age }).unwrap().unwrap_or_default()
        }
    }

    #[test]
    fn without_a_group_of_pods_there_is_nothing_to_check() {
        assert_eq!(Tree::new().find(&[]), []);
    }

    #[test]
    fn with_cgroupfs_and_version_1_what_no_list_has_is_found_with_its_processes() {
        let tree = Tree::new();
        let (known, lost, empty) = (id('a'), id('b'), id('c'));
        tree.group(&format!("pids/kubepods/burstable/pod{UID}/{known}"), "11\n", None);
        tree.group(&format!("pids/kubepods/burstable/pod{UID}/{lost}"), "21\n22\n", None);
        tree.group(&format!("pids/kubepods/pod{UID}/{empty}"), "", None);
        let found = tree.find(&[&known]);
        let group = format!("sys/fs/cgroup/pids/kubepods/burstable/pod{UID}/{lost}");
        assert_eq!(found, [UntrackedSeen { id: lost, pod_uid: UID.to_owned(), group, pids: vec![21, 22] }]);
    }

    /// As kind configures its kubelets.
    #[test]
    fn below_the_kubelets_own_group_they_are_found_too() {
        let uid = UID.replace('-', "_");
        let slice = format!("my_kubelet-kubepods-burstable-pod{uid}.slice/cri-containerd-{}.scope", id('b'));
        for group in [
            format!("my-kubelet/kubepods/burstable/pod{UID}/{}", id('b')),
            format!("my_kubelet.slice/my_kubelet-kubepods.slice/my_kubelet-kubepods-burstable.slice/{slice}"),
        ] {
            let tree = Tree::below("/my-kubelet");
            tree.group("my_kubelet.slice/my_kubelet-kubepods.slice", "", Some("populated 0\nfrozen 0\n"));
            tree.group(&group, "21\n", Some("populated 1\nfrozen 0\n"));
            let found: Vec<_> = tree.find(&[]).into_iter().map(|one| (one.pod_uid, one.group)).collect();
            assert_eq!(found, [(UID.to_owned(), format!("sys/fs/cgroup/{group}"))]);
        }
    }

    #[test]
    fn more_of_them_than_are_told_are_counted() {
        let tree = Tree::new();
        for number in 0..20 {
            let id = format!("{number:064x}");
            tree.group(&format!("kubepods/pod{UID}/{id}"), "21\n", Some("populated 1\nfrozen 0\n"));
        }
        let found = tree.found(&[&format!("{:064x}", 7)]);
        assert_eq!((found.reported.len(), found.left_out), (MAX_FOUND, 3));
    }

    #[test]
    fn with_systemd_and_version_2_the_kernels_word_on_the_whole_group_counts() {
        let tree = Tree::new();
        let (lost, ended, divided) = (id('b'), id('c'), id('d'));
        let uid = UID.replace('-', "_");
        let pod = format!("kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid}.slice");
        tree.group(&format!("{pod}/cri-containerd-{lost}.scope"), "31\n", Some("populated 1\nfrozen 0\n"));
        tree.group(&format!("{pod}/cri-containerd-{ended}.scope"), "", Some("populated 0\nfrozen 0\n"));
        tree.group(&format!("{pod}/crio-{divided}.scope"), "", Some("populated 1\nfrozen 0\n"));
        let mut reported: Vec<_> =
            tree.find(&[]).into_iter().map(|one| (one.id, one.pod_uid, one.pids.len())).collect();
        reported.sort_unstable();
        assert_eq!(reported, [(lost.clone(), UID.to_owned(), 1), (divided.clone(), UID.to_owned(), 0)]);
        assert_eq!(tree.find(&[&lost, &divided]), []);
    }

    #[test]
    fn a_container_that_starts_is_not_untracked() {
        let tree = Tree::new();
        tree.group(&format!("kubepods/pod{UID}/{}", id('a')), "21\n22\n", Some("populated 1\nfrozen 0\n"));
        let found = |age: &dyn Fn(i32) -> Option<Duration>| tree.found_at(&[], age).reported.len();
        let young = Duration::from_secs(STARTING.as_secs() - 1);
        assert_eq!(found(&|_| Some(young)), 0);
        assert_eq!(found(&|_| None), 0, "all have ended since");
        assert_eq!(found(&|pid| Some(if pid == 22 { STARTING } else { young })), 1, "one of them is old");
    }

    #[test]
    fn with_crun_the_processes_are_in_a_subgroup() {
        let tree = Tree::new();
        let group = format!("kubepods/pod{UID}/{}", id('a'));
        tree.group(&group, "", Some("populated 1\nfrozen 0\n"));
        tree.group(&format!("{group}/container"), "21\n", None);
        assert_eq!(tree.found_at(&[], &|_| Some(Duration::ZERO)).reported, []);
        assert_eq!(tree.find(&[])[0].pids, [21]);
    }

    #[test]
    fn names_of_any_other_form_are_nobodys() {
        for name in ["pod", "podx/y", "burstable", "kubepods-burstable.slice", "system.slice", "pod../x"] {
            assert_eq!(pod_uid(name), None, "{name}");
        }
        for name in ["init.scope", "abc", "cri-containerd-abc.scope", "", &format!("crio-conmon-{}.scope", id('a'))] {
            assert_eq!(container_id(name), None, "{name}");
        }
    }
}
