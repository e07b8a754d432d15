//! Real folders of real processes; made-up ones where a real fault of a disk cannot be had here.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use super::*;
use crate::proc;
use crate::proc::fake::Running;
use crate::waiting::wait_until;

fn this_process(owner: Owner) -> Daemon {
    let pid = i32::try_from(std::process::id()).unwrap();
    let stat = Handle::open(Path::new(proc::PROC), pid).unwrap().stat().unwrap();
    Daemon { owner, pid, start_ticks: stat.start_ticks }
}

fn scanner(proc: &Path) -> Disks {
    Disks::new(proc, Path::new("/sys"))
}

fn folder(path: &Path) -> OwnedFd {
    rooted::open(fs::File::open("/").unwrap(), path, rooted::FOLDER).unwrap()
}

#[test]
fn folders_of_one_file_system_are_one_entry_and_its_room_is_told() {
    let temp = tempfile::tempdir().unwrap();
    let (one, two) = (temp.path().join("one"), temp.path().join("two"));
    fs::create_dir(&one).unwrap();
    fs::create_dir(&two).unwrap();
    let (scanner, mut all) = (scanner(Path::new(proc::PROC)), Vec::new());
    for path in [&two, &one, &two] {
        scanner.add(path, &folder(path), &mut all).unwrap();
    }
    let [seen] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!(seen.folders, [one.display().to_string(), two.display().to_string()]);
    assert!(seen.bytes.left > 0 && seen.bytes.left < seen.bytes.total, "{seen:?}");
    assert_eq!(seen.read_only, None);
    scanner.add(Path::new("/proc"), &folder(Path::new("/proc")), &mut all).unwrap();
    assert_eq!((all.len(), all[1].bytes.total), (2, 0), "a file system without a size");
}

/// Runs a script in a mount namespace of its own, which takes its mounts along when it ends, and returns the process in it
/// once it has said that it is ready. `None` where that cannot be had.
fn mounted(script: &str) -> Option<(Running, tempfile::TempDir)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let temp = tempfile::tempdir().unwrap();
    let script =
        format!("set -e; mount --make-rprivate /; cd {}; {script}; touch ready; exec sleep 60", temp.path().display());
    let mut child = Running::start(Command::new("unshare").args(["--mount", "sh", "-c", &script]));
    let is_ready = || temp.path().join("ready").exists();
    // It ends at the first command that fails; one that is only slow is no reason to skip.
    wait_until("the mounts", || is_ready() || child.0.try_wait().unwrap().is_some());
    if !is_ready() {
        eprintln!("SKIP: cannot mount here");
        return None;
    }
    Some((child, temp))
}

/// A folder of this process, as it sees it.
fn check(process: &Running, path: &Path) -> FilesystemSeen {
    let open = rooted::open(process.handle().root().unwrap(), path, rooted::FOLDER).unwrap();
    let mut all = Vec::new();
    scanner(Path::new(proc::PROC)).add(path, &open, &mut all).unwrap();
    all.remove(0)
}

#[test]
fn a_full_file_system_is_seen_through_the_process_that_has_it() {
    let script = "mkdir full; mount -t tmpfs -o size=1m,nr_inodes=100 tmpfs full; dd if=/dev/zero of=full/x bs=64k 2>/dev/null || true";
    let Some((process, temp)) = mounted(script) else { return eprintln!("SKIP: mounts need root") };
    let path = temp.path().join("full");
    let seen = check(&process, &path);
    assert_eq!((seen.bytes, seen.inodes.total), (Space { total: 1 << 20, left: 0 }, 100), "{seen:?}");
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "here nothing is mounted");
}

#[test]
fn a_mount_that_is_read_only_is_that_for_the_process_that_sees_it_so() {
    let script = "mkdir rw ro; mount -t tmpfs tmpfs rw; mount --bind rw ro; mount -o remount,bind,ro ro";
    let Some((process, temp)) = mounted(script) else { return eprintln!("SKIP: mounts need root") };
    let (rw, ro) = (check(&process, &temp.path().join("rw")), check(&process, &temp.path().join("ro")));
    assert_eq!(rw.device, ro.device, "one file system");
    assert_eq!((rw.read_only, ro.read_only.as_deref()), (None, Some("it is mounted read-only")));
}

/// A real ext4 that is made to meet an error. New kernels do not mark it read-only.
#[test]
fn an_ext4_that_has_stopped_after_an_error_is_seen() {
    let script = "truncate -s 16M image; mkfs.ext4 -q image; mkdir disk; mount -o loop,errors=remount-ro image disk; \
                  device=$(stat -c %Hd:%Ld disk); name=$(basename $(readlink /sys/dev/block/$device)); \
                  cp /proc/fs/ext4/$name/options before; echo x > /sys/fs/ext4/$name/trigger_fs_error; \
                  until ! touch disk/x 2>/dev/null; do sleep 0.1; done";
    let Some((process, temp)) = mounted(script) else { return eprintln!("SKIP: mounts need root and loop devices") };
    let seen = check(&process, &temp.path().join("disk"));
    let why = seen.read_only.unwrap();
    assert!(why.contains("emergency_ro") || why.contains("read-only"), "{why}");
    let before = fs::read_to_string(temp.path().join("before")).unwrap();
    assert!(before.lines().all(|line| !STOPPED.contains(&line)), "a healthy one has none of the words");
}

#[test]
fn the_words_of_an_ext4_are_whole_lines() {
    let temp = tempfile::tempdir().unwrap();
    let (proc, sys) = (temp.path().join("proc"), temp.path().join("sys"));
    fs::create_dir_all(proc.join("fs/ext4/sda1")).unwrap();
    fs::create_dir_all(sys.join("dev/block")).unwrap();
    symlink("../../devices/pci/block/sda/sda1", sys.join("dev/block/8:1")).unwrap();
    let scanner = Disks::new(&proc, &sys);
    let options = |text: &str| fs::write(proc.join("fs/ext4/sda1/options"), text).unwrap();
    assert_eq!(scanner.stopped("8:1"), None, "no ext4");
    options("rw\nerrors=remount-ro\nno_emergency_ro\n");
    assert_eq!(scanner.stopped("8:1"), None);
    for word in STOPPED {
        options(&format!("rw\nerrors=remount-ro\n{word}\n"));
        assert!(scanner.stopped("8:1").is_some_and(|why| why.contains(word)));
    }
    assert_eq!(scanner.stopped("8:2"), None, "no such device");
}

#[test]
fn a_runtimes_data_are_where_it_has_them_open() {
    let temp = tempfile::tempdir().unwrap();
    let plugin = temp.path().join("data/io.containerd.metadata.v1.bolt");
    fs::create_dir_all(&plugin).unwrap();
    let open = fs::File::create(plugin.join("meta.db")).unwrap();
    let daemon = this_process(Owner::Runtime("containerd".to_owned()));
    let handle = Handle::of(Path::new(proc::PROC), daemon.pid, daemon.start_ticks).unwrap();
    let places = places(&daemon, &handle).unwrap();
    assert_eq!((places.folders.as_slice(), places.settled), (&[temp.path().join("data")][..], true));
    assert_eq!(places.run.as_deref(), Some(Path::new("/run/containerd")));
    drop(open);
    assert!(!super::places(&daemon, &handle).unwrap().settled, "it may open them yet");
    let seen = scanner(Path::new(proc::PROC)).check(&Who { daemons: vec![daemon], ..Who::default() });
    // Not open any more, and not at its usual place either: that is said, and its folder below `/run` is checked all the
    // same, where it is there.
    let names: Vec<&str> = seen.filesystems.iter().flat_map(|one| &one.folders).map(String::as_str).collect();
    assert_eq!(Path::new("/run/containerd").exists(), names.contains(&"/run/containerd"), "{seen:?}");
    assert_eq!(Path::new("/var/lib/containerd").exists(), seen.unseen.is_none(), "{seen:?}");
}

#[test]
fn a_kubelets_folder_is_where_its_flag_says() {
    let temp = tempfile::tempdir().unwrap();
    let root_dir = temp.path().join("kubelet");
    // A shell that waits for its input takes any flag.
    let script = format!("exec -a kubelet bash -c 'read -r line' kubelet --root-dir={}", root_dir.display());
    let child = Running::start(Command::new("bash").args(["-c", &script]).stdin(std::process::Stdio::piped()));
    let has_begun = |args: &[String]| args.iter().any(|arg| arg.starts_with("--root-dir"));
    wait_until("the program", || child.handle().args().is_ok_and(|args| has_begun(&args)));
    let start_ticks = child.handle().stat().unwrap().start_ticks;
    let daemon = Daemon { owner: Owner::Kubelet, pid: child.pid(), start_ticks };
    let mut scanner = scanner(Path::new(proc::PROC));
    let mut check = || scanner.check(&Who { daemons: vec![daemon.clone()], ..Who::default() });
    let seen = check();
    assert!(seen.filesystems.is_empty() && seen.unseen.unwrap().contains("usual place"), "it is not there yet");
    assert_eq!(seen.credential, Credential::Other, "a kubelet without a cluster");
    fs::create_dir(&root_dir).unwrap();
    let seen = check();
    assert_eq!((seen.filesystems[0].folders.as_slice(), seen.unseen), (&[root_dir.display().to_string()][..], None));
}

#[test]
fn a_daemon_that_has_ended_says_nothing() {
    let daemon = Daemon { start_ticks: 1, ..this_process(Owner::Kubelet) };
    let seen = scanner(Path::new(proc::PROC)).check(&Who { daemons: vec![daemon], ..Who::default() });
    assert!(seen.filesystems.is_empty() && seen.unseen.is_some());
    assert!(matches!(seen.credential, Credential::Unknown(_)));
}
