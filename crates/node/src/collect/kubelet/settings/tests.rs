use std::os::unix::fs::symlink;

use rustix::fs::{CWD, Mode};

use super::*;

fn args(words: &[&str]) -> Vec<String> {
    std::iter::once("kubelet").chain(words.iter().copied()).map(ToOwned::to_owned).collect()
}

fn process_with(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join("root").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

#[test]
fn without_flags_the_kubelets_defaults_hold() {
    let folder = process_with(&[]);
    assert_eq!(read(&args(&[]), folder.path()), Ok(Settings::default()));
}

#[test]
fn flags_win_over_drop_ins_and_those_over_the_file() {
    let folder = process_with(&[
        (
            "etc/k.yaml",
            "kind: KubeletConfiguration\nhealthzPort: 1001\nhealthzBindAddress: 10.0.0.1\ncontainerRuntimeEndpoint: unix:///a.sock\nother: {x: [1]}\n",
        ),
        ("etc/d/20.conf", "healthzPort: 1002\n"),
        ("etc/d/10.conf", "healthzPort: 1003\ncontainerRuntimeEndpoint: unix:///b.sock\n"),
        ("etc/d/30.txt", "healthzPort: 1004\n"),
    ]);
    let settings = read(&args(&["--config", "/etc/k.yaml", "--config-dir=/etc/d"]), folder.path()).unwrap();
    assert_eq!(settings.healthz_port, 1002);
    assert_eq!(settings.healthz_address, "10.0.0.1".parse::<IpAddr>().unwrap());
    assert_eq!(settings.runtime_endpoint.as_deref(), Some("unix:///b.sock"));
    let flags = ["--config=/etc/k.yaml", "--healthz-port=0", "--container-runtime-endpoint", "unix:///c.sock"];
    let settings = read(&args(&flags), folder.path()).unwrap();
    assert_eq!((settings.healthz_port, settings.runtime_endpoint.as_deref()), (0, Some("unix:///c.sock")));
}

#[test]
fn a_kubelet_that_keeps_no_groups_of_pods_says_so() {
    let folder = process_with(&[("none", "cgroupsPerQOS: false\n"), ("plain", "healthzPort: 1001\n")]);
    for (words, expected) in [
        (&["--config=/none"][..], true),
        (&["--config=/plain"], false),
        (&["--cgroups-per-qos=false"], true),
        (&["--config=/none", "--cgroups-per-qos=true"], false),
    ] {
        assert_eq!(read(&args(words), folder.path()).unwrap().pod_groups.none, expected, "{words:?}");
    }
}

#[test]
fn a_kubelet_that_keeps_the_groups_of_pods_below_its_own_says_so() {
    let folder = process_with(&[("kind", "cgroupRoot: /kubelet\n")]);
    for (words, expected) in [
        (&[][..], ""),
        (&["--config=/kind"], "/kubelet"),
        (&["--cgroup-root=/own"], "/own"),
        (&["--config=/kind", "--cgroup-root=/"], "/"),
    ] {
        assert_eq!(read(&args(words), folder.path()).unwrap().pod_groups.root, expected, "{words:?}");
    }
}

#[test]
fn settings_that_thresholds_depend_on_come_with_where_they_stand() {
    use SettingsSource::{Assumed, Default, File, Flags};
    let folder = process_with(&[
        ("plain", "healthzPort: 1001\nfeatureGates:\nruntimeRequestTimeout: \"\"\n"),
        ("slow", "runtimeRequestTimeout: 15m\nfeatureGates: {EventedPLEG: true, Other: true}\n"),
        ("d/10.conf", "featureGates: {EventedPLEG: false}\n"),
        ("zero", "runtimeRequestTimeout: 0s\n"),
        ("odd", "runtimeRequestTimeout: soon\nhealthzPort: 1002\n"),
    ]);
    let read = |words: &[&str]| {
        let kubelet = read(&args(words), folder.path()).unwrap().kubelet;
        (kubelet.request_timeout.as_secs(), kubelet.evented_pleg, kubelet.source)
    };
    assert_eq!(read(&[]), (120, false, Default));
    assert_eq!(read(&["--config=/plain"]), (120, false, Default));
    assert_eq!(read(&["--config=/slow"]), (900, true, File));
    assert_eq!(read(&["--config=/slow", "--config-dir=/d"]), (900, false, File));
    assert_eq!(read(&["--config=/slow", "--runtime-request-timeout=4m0s"]), (240, true, Flags));
    assert_eq!(read(&["--feature-gates=A=false,EventedPLEG=true", "--feature-gates", "B=true"]), (120, true, Flags));
    assert_eq!(read(&["--config=/zero"]), (120, false, File));
    assert_eq!(read(&["--config=/odd"]), (120, false, Assumed), "its port is asked all the same");
}

#[test]
fn where_its_own_port_is_and_what_it_shows_there_is_read_too() {
    let folder = process_with(&[
        ("k.yaml", "address: 10.0.0.1\nport: 10260\ntlsCertFile: /etc/tls.crt\n"),
        ("zero.yaml", "address: \"\"\nport: 0\nenableServer: false\ntlsCertFile: \"\"\n"),
    ]);
    let server = |words: &[&str]| read(&args(words), folder.path()).unwrap().server.unwrap();
    assert_eq!(server(&[]), Server::default());
    let found = server(&["--config=/k.yaml", "--cert-dir=/pki"]);
    assert_eq!((found.address.to_string(), found.port), ("10.0.0.1".to_owned(), 10260));
    assert_eq!((found.cert_dir, found.cert_file), ("/pki".into(), Some("/etc/tls.crt".into())));
    let flags = ["--config=/k.yaml", "--address=::1", "--port", "99", "--tls-cert-file=/x.crt", "--enable-server"];
    let found = server(&flags);
    assert_eq!((found.address.to_string(), found.port, found.enabled), ("::1".to_owned(), 99, true));
    assert_eq!(found.cert_file, Some("/x.crt".into()));
    assert_eq!(server(&["--config=/zero.yaml"]), Server { enabled: false, ..Server::default() });
    assert!(!server(&["--enable-server=false"]).enabled);
    for wrong in ["--address=here", "--port=99999"] {
        assert!(read(&args(&[wrong]), folder.path()).unwrap_err().contains("kubelet"), "{wrong}");
    }
}

#[test]
fn links_are_followed_inside_the_kubelets_own_root() {
    let folder = process_with(&[("real/k.json", r#"{"healthzPort": 77}"#)]);
    symlink("/real/k.json", folder.path().join("root/k.yaml")).unwrap();
    assert_eq!(read(&args(&["--config=/k.yaml"]), folder.path()).unwrap().healthz_port, 77);
}

#[test]
fn a_file_that_cannot_be_understood_is_said_so_and_never_guessed() {
    let folder = process_with(&[("bad", "{{{"), ("port", "healthzPort: 99999"), ("ip", "healthzBindAddress: x y")]);
    for path in ["/bad", "/port", "/ip", "/missing", "/"] {
        let error = read(&args(&[&format!("--config={path}")]), folder.path()).unwrap_err();
        assert!(error.len() <= 300 && error.contains("kubelet"), "{path}: {error}");
    }
    let large = process_with(&[("large", &"#".repeat(2 << 20))]);
    assert!(read(&args(&["--config=/large"]), large.path()).unwrap_err().contains("larger than"));
}

#[test]
fn a_folder_of_too_many_files_is_not_read() {
    let names: Vec<String> = (0..=MAX_DROP_INS).map(|number| format!("d/{number}.conf")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
    let read = |files: &[(&str, &str)]| read(&args(&["--config-dir=/d"]), process_with(files).path());
    assert!(read(&files[1..]).is_ok());
    assert!(read(&files).unwrap_err().contains("more than 64 files"));
}

#[test]
fn a_file_that_is_nested_too_deeply_is_refused() {
    let folder = process_with(&[("deep", &format!("other: {}", "[".repeat(60) + &"]".repeat(60)))]);
    assert!(read(&args(&["--config=/deep"]), folder.path()).is_err());
}

#[test]
fn a_pipe_in_place_of_the_file_does_not_hold_the_thread() {
    let folder = process_with(&[("x", "")]);
    let pipe = folder.path().join("root/pipe");
    rustix::fs::mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
    assert!(read(&args(&["--config=/pipe"]), folder.path()).unwrap_err().contains("not a plain file"));
}

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
