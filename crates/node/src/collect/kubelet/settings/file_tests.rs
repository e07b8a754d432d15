//! What the reader reads stays in the root of the kubelet, and its messages contain none of it.

use std::os::unix::fs::symlink;

use super::read;
use super::tests::{args, process_with};

#[test]
fn nothing_of_the_file_is_in_what_is_said_of_it() {
    let texts = [
        "healthzPort: 1001\nstaticPodURLHeader: {token: [hunter2}\n",
        "healthzPort: hunter2\n",
        "healthzBindAddress: hunter2\n",
        "address: hunter2\n",
        "featureGates: {hunter2: hunter2}\n",
        "-----BEGIN EC PRIVATE KEY-----\nhunter2==\n",
    ];
    for text in texts {
        let folder = process_with(&[("k", text), ("d/1.conf", text)]);
        for flag in ["--config=/k", "--config-dir=/d"] {
            let error = read(&args(&[flag]), folder.path()).unwrap_err();
            assert!(!error.contains("hunter2") && error.contains("kubelet"), "{text}: {error}");
        }
    }
    let folder = process_with(&[("k", "a: 1\nhealthzPort: hunter2\n")]);
    let error = read(&args(&["--config=/k"]), folder.path()).unwrap_err();
    assert!(error.ends_with("/k: expected u16 at line 2, column 14"), "{error}");
}

/// A process whose working folder is `home` in its root, beside a file outside that does not belong to it.
fn working() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("of");
    std::fs::create_dir_all(root.join("home/d")).unwrap();
    std::fs::create_dir_all(root.join("etc")).unwrap();
    std::fs::write(folder.path().join("foreign"), "healthzPort: 66\n").unwrap();
    std::fs::write(root.join("etc/k.yaml"), "healthzPort: 77\n").unwrap();
    symlink(&root, folder.path().join("root")).unwrap();
    symlink(root.join("home"), folder.path().join("cwd")).unwrap();
    folder
}

#[test]
fn a_relative_path_begins_at_the_working_folder_and_stays_in_the_root() {
    let folder = working();
    let home = folder.path().join("of/home");
    symlink("/etc/k.yaml", home.join("own")).unwrap();
    symlink("/etc/k.yaml", home.join("d/1.conf")).unwrap();
    symlink("/home/d", home.join("linked")).unwrap();
    symlink(folder.path().join("foreign"), home.join("absolute")).unwrap();
    symlink("../../foreign", home.join("up")).unwrap();
    let read = |flag: &str| read(&args(&[flag]), folder.path()).map(|settings| settings.healthz_port);
    for own in ["--config=own", "--config=../etc/k.yaml", "--config-dir=d", "--config-dir=linked"] {
        assert_eq!(read(own), Ok(77), "{own}");
    }
    for foreign in ["--config=absolute", "--config=up", "--config=../../foreign"] {
        assert!(read(foreign).is_err(), "{foreign}: {:?}", read(foreign));
    }
    std::fs::remove_file(folder.path().join("cwd")).unwrap();
    symlink(folder.path(), folder.path().join("cwd")).unwrap();
    assert!(read("--config=foreign").unwrap_err().contains("not below its root"));
}

#[test]
fn drop_ins_are_read_in_sub_folders_too_in_the_order_of_their_paths() {
    let folder = process_with(&[("d/9.conf", "healthzPort: 9\n"), ("d/no", "healthzPort: 1\n")]);
    let root = folder.path().join("root/d");
    std::fs::create_dir_all(root.join("team/a")).unwrap();
    std::fs::write(root.join("team/a/50.conf"), "healthzPort: 50\n").unwrap();
    assert_eq!(read(&args(&["--config-dir=/d"]), folder.path()).unwrap().healthz_port, 50);
    std::fs::write(root.join("z.conf"), "healthzPort: 60\n").unwrap();
    assert_eq!(read(&args(&["--config-dir=/d"]), folder.path()).unwrap().healthz_port, 60);
}

#[test]
fn a_folder_of_drop_ins_is_that_of_the_kubelets_own_root() {
    let folder = working();
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("1.conf"), "healthzPort: 66\n").unwrap();
    symlink(&other, folder.path().join("of/d")).unwrap();
    let error = read(&args(&["--config-dir=/d"]), folder.path()).unwrap_err();
    assert!(error.contains("cannot list"), "{error}");
}
