use std::fs;
use std::path::PathBuf;

use rcgen::{CertificateParams, KeyPair};

use super::*;
use crate::proc::fake::{self, Proc};

/// A certificate for any name, and its key.
pub(in crate::collect::kubelet) fn made() -> (rcgen::Certificate, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["worker-1".to_owned()]).unwrap().self_signed(&key).unwrap();
    (certificate, key)
}

/// A made-up `/proc` with kubelet 40, and these of its files; and the file of a token.
fn node(files: &[(&str, &str)]) -> (Proc, PathBuf) {
    let proc = Proc::new();
    proc.write("40/stat", fake::stat(40, b"kubelet", 'S', 1, 9000));
    for (path, text) in files {
        proc.write(&format!("40/root/{path}"), text);
    }
    proc.write("token", "abc.def\n");
    let token = proc.file("token");
    (proc, token)
}

fn served(server: Server) -> RunningServer {
    RunningServer { pid: 40, start_ticks: 9000, server }
}

#[test]
fn its_own_certificates_are_taken_and_the_one_that_a_person_has_named_alone() {
    let (own, got, named) = (made(), made(), made());
    // The one that a kubelet has got stands in one file with its key, and may be a link.
    let got_pem = format!("{}{}", got.0.pem(), got.1.serialize_pem());
    let pki = "var/lib/kubelet/pki";
    let files = [
        (format!("{pki}/kubelet.crt"), own.0.pem()),
        (format!("{pki}/x.pem"), got_pem),
        ("etc/tls.crt".into(), named.0.pem()),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let (proc, token) = node(&files);
    let link = proc.file(&format!("40/root/{pki}/kubelet-server-current.pem"));
    std::os::unix::fs::symlink("/var/lib/kubelet/pki/x.pem", link).unwrap();
    let found = door(proc.path(), &served(Server::default()), Some(&token)).unwrap();
    assert_eq!(found.pins, [own.0.der().clone(), got.0.der().clone()]);
    assert_eq!((found.address, found.of), ("127.0.0.1:10250".parse().unwrap(), (40, 9000)));
    assert!(!format!("{found:?}").contains("abc"), "{found:?}");
    let server =
        Server { cert_file: Some("/etc/tls.crt".into()), address: "127.1.2.3".parse().unwrap(), ..Server::default() };
    let found = door(proc.path(), &served(server), Some(&token)).unwrap();
    assert_eq!((found.pins, found.address.to_string()), (vec![named.0.der().clone()], "127.1.2.3:10250".to_owned()));
}

#[test]
fn without_a_certificate_or_a_token_nobody_is_asked() {
    let (pem, key) = made();
    let pem = pem.pem();
    let (proc, token) = node(&[("var/lib/kubelet/pki/kubelet.crt", &pem), ("key.pem", &key.serialize_pem())]);
    let why = |served: &RunningServer, token| door(proc.path(), served, token).unwrap_err();
    let healthy = served(Server::default());
    assert!(why(&healthy, None).contains("outside of a pod"));
    assert!(why(&healthy, Some(Path::new("/none"))).contains("token"));
    fs::write(&token, " \n").unwrap();
    assert!(why(&healthy, Some(&token)).contains("empty"));
    fs::write(&token, "abc.def").unwrap();
    for (server, expected) in [
        (Server { enabled: false, ..Server::default() }, "switched off"),
        (Server { cert_dir: "/elsewhere".into(), ..Server::default() }, "is not found"),
        (Server { cert_dir: "pki".into(), ..Server::default() }, "not an absolute path"),
        (Server { cert_file: Some("/key.pem".into()), ..Server::default() }, "holds no certificate"),
        // Of a range that no machine has.
        (Server { address: "192.0.2.1".parse().unwrap(), ..Server::default() }, "no address of this node"),
    ] {
        let said = why(&served(server), Some(&token));
        assert!(said.contains(expected) && said.len() <= 300, "{said}");
    }
    assert!(why(&RunningServer { start_ticks: 9001, ..healthy.clone() }, Some(&token)).contains("has ended"));
    assert!(why(&RunningServer { pid: 41, ..healthy }, Some(&token)).contains("cannot be found"));
}
