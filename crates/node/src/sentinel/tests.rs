//! The file against a real folder in memory: whose it is, what is in its place, and that nothing of others is touched.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::SystemTime;

use super::*;
use nrh_core::examples;

const NAME: &str = "reboot-required";

/// The root of a node whose `/run` is in memory.
pub(crate) struct Host(pub(crate) tempfile::TempDir);

impl Host {
    pub(crate) fn new() -> Self {
        Self::below(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    fn below(root: tempfile::TempDir) -> Self {
        fs::create_dir(root.path().join(FOLDER)).unwrap();
        let host = Self(root);
        host.chmod(0o755);
        host
    }

    fn chmod(&self, mode: u32) {
        fs::set_permissions(self.path(""), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(FOLDER).join(name)
    }

    fn folder(&self) -> Folder {
        Folder::open(self.0.path()).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.path("")).unwrap();
        let mut names: Vec<String> = names.map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn refused(&self) -> String {
        Folder::open(self.0.path()).unwrap_err().to_string()
    }
}

pub(crate) fn mark() -> Mark {
    Mark {
        node: "n1".into(),
        operation_id: "op-1".into(),
        boot_id: "boot".into(),
        until: 5000,
        made_at: jiff::Timestamp::now().as_second(),
    }
}

fn issued(operation: &str) -> Command {
    Command { command: Some(examples::command(operation)), ..Command::NONE }
}

fn tended(host: &Host, command: &Command) -> Vec<(String, &'static str)> {
    remove_obsolete_markers(&host.folder(), "n1", command, "boot", Duration::from_secs(1000)).unwrap()
}

#[test]
fn a_mark_is_there_whole_and_known_again_by_what_it_holds() {
    let host = Host::new();
    let folder = host.folder();
    assert_eq!(folder.check(NAME).unwrap(), Found::Nothing);
    assert_eq!(folder.place(NAME, &mark()).unwrap(), Placed::Made);
    assert_eq!(host.names(), [NAME], "and nothing else is left behind");
    // By another process, with nothing but the file.
    assert_eq!(host.folder().check(NAME).unwrap(), Found::Ours(mark()));
    assert_eq!(folder.place(NAME, &mark()).unwrap(), Placed::Made, "the same once more");
    let text = fs::read_to_string(host.path(NAME)).unwrap();
    assert!(text.starts_with("*** Node Runtime Health requests a reboot"), "{text}");
    // One of ours that was left by an earlier operation makes room.
    let later = Mark { operation_id: "op-2".into(), ..mark() };
    assert_eq!(folder.place(NAME, &later).unwrap(), Placed::Made);
    assert_eq!(folder.check(NAME).unwrap(), Found::Ours(later));
}

#[test]
fn what_somebody_else_has_put_there_is_never_touched() {
    let ours = mark().text();
    let text = |change: fn(&mut Mark)| {
        let mut changed = mark();
        change(&mut changed);
        changed.text()
    };
    let of_others = [
        String::new(),
        "*** System restart required ***\n".to_owned(),
        // Nearly ours.
        ours[..ours.len() - 2].to_owned(),
        format!("{ours}\n"),
        ours.replace("op-1", "op-1\",\"operationId\":\"op-2"),
        ours.replace("\"until\"", "\"since\""),
        format!("{ours}{}", "x".repeat(MAX_FILE)),
        // Ours to the letter, copied there by somebody: its time of change is another.
        text(|mark| mark.made_at -= 60),
    ];
    for text in of_others {
        let host = Host::new();
        fs::write(host.path(NAME), &text).unwrap();
        let Found::Others(whose) = host.folder().check(NAME).unwrap() else { panic!("ours: {text}") };
        assert!(whose.contains("user ") && whose.contains("last changed 20"), "{whose}");
        assert_eq!(host.folder().place(NAME, &mark()).unwrap(), Placed::Others(whose));
        assert_eq!(tended(&host, &Command::NONE), []);
        assert_eq!(fs::read_to_string(host.path(NAME)).unwrap(), text);
    }
}

#[test]
fn who_asks_for_a_reboot_by_our_file_makes_it_his() {
    type Ask = fn(&Host);
    let asks: [(&str, Ask); 4] = [
        ("touch", |host| {
            let file = fs::OpenOptions::new().write(true).open(host.path(NAME)).unwrap();
            file.set_modified(SystemTime::now()).unwrap();
        }),
        ("write over", |host| fs::write(host.path(NAME), "*** System restart required ***\n").unwrap()),
        ("append", |host| {
            let mut file = fs::OpenOptions::new().append(true).open(host.path(NAME)).unwrap();
            file.write_all(b"linux-image\n").unwrap();
        }),
        ("link", |host| fs::hard_link(host.path(NAME), host.path("theirs")).unwrap()),
    ];
    for (how, ask) in asks {
        let host = Host::new();
        host.folder().place(NAME, &mark()).unwrap();
        ask(&host);
        assert!(matches!(host.folder().check(NAME).unwrap(), Found::Others(_)), "{how}");
        assert_eq!(tended(&host, &Command::NONE), [], "{how}");
        assert!(host.path(NAME).exists(), "{how}");
    }
}

#[test]
fn what_is_no_plain_file_is_neither_followed_nor_opened_nor_touched() {
    type Put = fn(&Host, &Path);
    let host = Host::new();
    let elsewhere = host.0.path().join("elsewhere");
    let hostile: [(&str, Put); 4] = [
        ("Symlink", |host, to| symlink(to, host.path(NAME)).unwrap()),
        ("Symlink", |host, to| {
            fs::write(to, mark().text()).unwrap();
            symlink(to, host.path(NAME)).unwrap();
        }),
        ("Directory", |host, _| fs::create_dir(host.path(NAME)).unwrap()),
        ("Fifo", |host, _| {
            assert!(std::process::Command::new("mkfifo").arg(host.path(NAME)).status().unwrap().success());
        }),
    ];
    let mut written = None;
    for (kind, put) in hostile {
        put(&host, &elsewhere);
        written = written.or_else(|| fs::read_to_string(&elsewhere).ok());
        let before = fs::symlink_metadata(host.path(NAME)).unwrap().file_type();
        let folder = host.folder();
        let said = folder.check(NAME).unwrap_err().to_string();
        assert!(said.contains(&format!("expected a plain file or nothing, found {kind}")), "{said}");
        assert!(matches!(folder.place(NAME, &mark()).unwrap_err(), SentinelError::Unfit(_)), "{kind}");
        assert_eq!(tended(&host, &Command::NONE), [], "{kind}");
        assert_eq!(fs::symlink_metadata(host.path(NAME)).unwrap().file_type(), before, "{kind}");
        if before.is_dir() { fs::remove_dir(host.path(NAME)) } else { fs::remove_file(host.path(NAME)) }.unwrap();
    }
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), written.unwrap(), "nothing was written through the link");
}

#[test]
fn a_folder_that_is_none_or_that_others_may_write_is_not_used() {
    let host = Host::new();
    let run = host.0.path().join(FOLDER);
    host.chmod(0o1777);
    assert!(host.refused().contains("expected a folder that only its owner"), "{}", host.refused());
    host.chmod(0o755);
    fs::rename(&run, host.0.path().join("real")).unwrap();
    assert!(host.refused().contains("cannot open"), "{}", host.refused());
    symlink("real", &run).unwrap();
    assert!(host.refused().contains("as a folder that is no link"), "{}", host.refused());
    fs::remove_file(&run).unwrap();
    fs::write(&run, "").unwrap();
    assert!(host.refused().contains("cannot open"), "{}", host.refused());
    let gone = Folder::open(&host.0.path().join("gone")).unwrap_err().to_string();
    assert!(gone.contains("cannot open"), "{gone}");
}

#[test]
fn a_folder_that_outlives_a_boot_is_not_used() {
    // Where this project is built is on a disk as a rule.
    let Host(host) = Host::below(tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap());
    let dir = fs::File::open(host.path()).unwrap();
    let kind = u64::try_from(rustix::fs::fstatfs(&dir).unwrap().f_type).unwrap();
    let opened = Folder::open(host.path());
    if IN_MEMORY.contains(&kind) {
        return drop(opened.unwrap());
    }
    let said = opened.unwrap_err().to_string();
    assert!(said.contains("would reboot the node again and again"), "{said}");
}

#[test]
fn a_folder_that_vanishes_meanwhile_is_an_error_and_no_mark() {
    let host = Host::new();
    let folder = host.folder();
    fs::remove_dir(host.0.path().join(FOLDER)).unwrap();
    let said = folder.place(NAME, &mark()).unwrap_err().to_string();
    assert!(said.contains("cannot make /run/reboot-required"), "{said}");
    // Nothing is in a folder that is gone, which is no error.
    assert_eq!(remove_obsolete_markers(&folder, "n1", &Command::default(), "boot", Duration::ZERO).unwrap(), []);
}

#[test]
fn a_file_system_that_takes_no_writes_is_told_as_such() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    let host = Host::new();
    let run = host.0.path().join(FOLDER);
    // Who may not mount cannot try it.
    if mount("none", &run, "tmpfs", MountFlags::RDONLY, Some(c"mode=755")).is_err() {
        return;
    }
    let placed = Folder::open(host.0.path()).and_then(|folder| folder.place(NAME, &mark()));
    unmount(&run, UnmountFlags::DETACH).unwrap();
    let said = placed.unwrap_err().to_string();
    assert!(said.contains("Read-only file system"), "{said}");
}

#[test]
fn a_mark_stands_as_long_as_its_command_and_no_longer() {
    let (over, rebooted) = (Some("its time is over"), Some("the boot that it was to end has ended"));
    let (late, of_n2) = (Mark { until: 999, ..mark() }, Mark { node: "n2".into(), ..mark() });
    let cases: [(Mark, Command, Option<&str>); 10] = [
        (mark(), issued("op-1"), None),
        // The API server was not heard yet.
        (mark(), Command::default(), None),
        (mark(), Command::NONE, Some("its command was withdrawn")),
        (mark(), issued("op-2"), Some("another command is issued")),
        (late.clone(), issued("op-1"), over),
        (late, Command::default(), over),
        (Mark { boot_id: "before".into(), ..mark() }, Command::default(), rebooted),
        // Nodes that share a machine do not take each other's away.
        (of_n2.clone(), Command::NONE, None),
        (Mark { until: 999, ..of_n2.clone() }, Command::NONE, over),
        (Mark { boot_id: "before".into(), ..of_n2 }, Command::NONE, rebooted),
    ];
    for (mark, command, why) in cases {
        let host = Host::new();
        host.folder().place("reboot-for-kured", &mark).unwrap();
        fs::write(host.path("nologin"), "").unwrap();
        let removed: Vec<_> = why.into_iter().map(|why| ("op-1".to_owned(), why)).collect();
        assert_eq!(tended(&host, &command), removed, "{mark:?} {command:?}");
        assert_eq!(host.path("reboot-for-kured").exists(), why.is_none());
        assert!(host.path("nologin").exists());
        assert_eq!(tended(&host, &command), [], "once");
    }
}

#[test]
fn what_is_ours_goes_also_from_a_folder_in_which_none_may_be_put_any_more() {
    let host = Host::new();
    host.folder().place(NAME, &mark()).unwrap();
    host.chmod(0o775);
    assert!(host.refused().contains("only its owner"));
    let folder = Folder::open_to_remove(host.0.path()).unwrap();
    let removed = remove_obsolete_markers(&folder, "n1", &Command::NONE, "boot", Duration::from_secs(1000)).unwrap();
    assert_eq!(removed, [("op-1".to_owned(), "its command was withdrawn")]);
    assert_eq!(host.names(), [] as [String; 0]);
}

#[test]
fn names_of_others_hide_none_of_ours() {
    let host = Host::new();
    for number in 0..MAX_NAMES {
        fs::write(host.path(&format!("other-{number}")), "").unwrap();
    }
    host.folder().place(NAME, &mark()).unwrap();
    assert_eq!(tended(&host, &Command::NONE).len(), 1);
}
