//! Certificates as real tools make them, in kubeconfigs as kubelets are given them.

use std::fs;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};

use super::*;
use crate::proc::Handle;

/// The last second of 2024 by the clock, and what the certificate says.
const NOW: u64 = 1_735_689_599;

/// A certificate from 1 October 2024 to 1 October of this year, with its key behind it, as the kubelet keeps it.
fn pem(until: i32) -> String {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    (params.not_before, params.not_after) = (date_time_ymd(2024, 10, 1), date_time_ymd(until, 10, 1));
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    format!("{}{}", certificate.pem(), key.serialize_pem())
}

fn kubeconfig(user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: default\nclusters: [{{name: c, cluster: {{server: x}}}}]\n\
         contexts:\n- {{name: other, context: {{cluster: c, user: b}}}}\n- {{name: default, context: {{cluster: c, user: a}}}}\n\
         users:\n- {{name: b, user: {{token: secret}}}}\n- {{name: a, user: {user}}}\n"
    )
}

/// A root with these files, as a process would see it.
fn root(files: &[(&str, &str)]) -> (tempfile::TempDir, OwnedFd) {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let open = fs::File::open(folder.path()).unwrap().into();
    (folder, open)
}

fn checked(root: &OwnedFd, args: &[&str]) -> Credential {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    check(root, &args, UNIX_EPOCH + Duration::from_secs(NOW))
}

const ARGS: [&str; 2] = ["/usr/bin/kubelet", "--kubeconfig=/etc/kubernetes/kubelet.conf"];
const DAY: u64 = 86_400;

#[test]
fn the_certificate_that_the_kubeconfig_names_counts() {
    let config = kubeconfig("{client-certificate: /var/lib/kubelet/pki/current.pem, client-key: /x}");
    let (folder, open) =
        root(&[("etc/kubernetes/kubelet.conf", &config), ("var/lib/kubelet/pki/of-2024.pem", &pem(2025))]);
    // A link, as the kubelet makes it: absolute, in its own root.
    let link = folder.path().join("var/lib/kubelet/pki/current.pem");
    std::os::unix::fs::symlink("/var/lib/kubelet/pki/of-2024.pem", link).unwrap();
    let expected = Credential::Certificate {
        place: "/var/lib/kubelet/pki/current.pem".to_owned(),
        lifetime: Duration::from_secs(365 * DAY),
        // October, November and December are 92 days; one second of them is left.
        left: Duration::from_secs((365 - 92) * DAY + 1),
    };
    assert_eq!(checked(&open, &ARGS), expected);
}

#[test]
fn a_certificate_in_the_kubeconfig_itself_is_read_and_one_that_has_expired_has_nothing_left() {
    let data = serde_json::to_string(&ByteString(pem(2025).into_bytes())).unwrap();
    let config = kubeconfig(&format!("{{client-certificate-data: {data}}}"));
    let (_folder, open) = root(&[("etc/kubernetes/kubelet.conf", &config)]);
    let Credential::Certificate { place, left, .. } = checked(&open, &ARGS) else { panic!("no certificate") };
    assert_eq!((place.as_str(), left.as_secs() / DAY), ("/etc/kubernetes/kubelet.conf", 273));
    let args: Vec<String> = ARGS.iter().map(|arg| (*arg).to_owned()).collect();
    let later = check(&open, &args, UNIX_EPOCH + Duration::from_secs(NOW + 400 * DAY));
    assert!(matches!(later, Credential::Certificate { left: Duration::ZERO, .. }), "{later:?}");
}

#[test]
fn one_that_was_only_to_begin_with_does_not_count_beside_the_one_that_was_got_since() {
    let data = serde_json::to_string(&ByteString(pem(2024).into_bytes())).unwrap();
    let config = kubeconfig(&format!("{{client-certificate-data: {data}}}"));
    let conf = ("etc/kubernetes/kubelet.conf", config.as_str());
    let place = |root: &OwnedFd, args: &[&str]| match checked(root, args) {
        Credential::Certificate { place, .. } => place,
        other => panic!("{other:?}"),
    };
    let newer = pem(2026);
    let (_folder, open) = root(&[conf, ("var/lib/kubelet/pki/kubelet-client-current.pem", &newer)]);
    assert_eq!(place(&open, &ARGS), "/var/lib/kubelet/pki/kubelet-client-current.pem");
    let (_folder, open) = root(&[conf, ("certs/kubelet-client-current.pem", &newer)]);
    assert_eq!(place(&open, &ARGS), "/etc/kubernetes/kubelet.conf");
    assert_eq!(place(&open, &[ARGS[0], ARGS[1], "--cert-dir=/certs"]), "/certs/kubelet-client-current.pem");
    let (_folder, open) = root(&[conf, ("var/lib/kubelet/pki/kubelet-client-current.pem", "cut off")]);
    assert!(matches!(checked(&open, &ARGS), Credential::Unknown(_)));
}

#[test]
fn years_after_2049_are_written_in_another_form() {
    let config = kubeconfig("{client-certificate: c.pem}");
    let (_folder, open) = root(&[("etc/kubernetes/kubelet.conf", &config), ("etc/kubernetes/c.pem", &pem(2124))]);
    let Credential::Certificate { place, lifetime, .. } = checked(&open, &ARGS) else { panic!("no certificate") };
    assert_eq!((place.as_str(), lifetime.as_secs() / DAY), ("/etc/kubernetes/c.pem", 36_524));
}

#[test]
fn what_is_no_certificate_has_no_end() {
    for user in ["{token: secret}", "{exec: {command: aws}}", "{tokenFile: /x}", "{}"] {
        let (_folder, open) = root(&[("etc/kubernetes/kubelet.conf", &kubeconfig(user))]);
        assert_eq!(checked(&open, &ARGS), Credential::Other, "{user}");
    }
    let (_folder, open) = root(&[]);
    assert_eq!(checked(&open, &["kubelet", "--v=2"]), Credential::Other, "a kubelet without a cluster");
}

#[test]
fn what_cannot_be_read_is_not_known_and_no_secret_is_told() {
    let conf = "etc/kubernetes/kubelet.conf";
    let (gone, broken) = (kubeconfig("{client-certificate: /gone.pem}"), kubeconfig("{client-certificate: /bad.pem}"));
    let (der, cut) = (pem(2025), pem(2025));
    let cut = &cut[..cut.len() / 8];
    let cases: [&[(&str, &str)]; 7] = [
        &[],
        &[(conf, "token: secret: secret")],
        &[(conf, "current-context: nobody\nusers: [{name: a, user: {token: secret}}]")],
        &[(conf, &gone)],
        &[(conf, &broken), ("bad.pem", cut)],
        &[(conf, &broken), ("bad.pem", "-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n")],
        &[(conf, &broken), ("bad.pem", &der.replace("CERTIFICATE", "PUBLIC KEY"))],
    ];
    for files in cases {
        let (_folder, open) = root(files);
        let Credential::Unknown(why) = checked(&open, &ARGS) else { panic!("{files:?}") };
        assert!(why.len() <= 300 && !why.contains("secret"), "{why}");
    }
    let (_folder, open) = root(&[]);
    for args in [["kubelet", "--kubeconfig=relative"], ["k3s", "agent"]] {
        assert!(matches!(checked(&open, &args), Credential::Unknown(_)), "{args:?}");
    }
    let huge = "#".repeat(300 << 10);
    let (_folder, open) = root(&[(conf, &huge)]);
    assert!(matches!(checked(&open, &ARGS), Credential::Unknown(why) if why.contains("larger than")));
}

/// Bytes that nobody meant to be a certificate: never a panic, hardly ever an answer.
#[test]
fn odd_bytes_are_no_certificate() {
    let real = CertificateDer::from_pem_slice(pem(2025).as_bytes()).unwrap();
    assert!(validity(&real).is_ok());
    for cut in 0..real.len() {
        assert!(validity(&real[..cut]).is_err(), "cut at {cut}");
    }
    for at in 0..real.len().min(120) {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = real.to_vec();
            bytes[at] ^= flip;
            let _ = validity(&bytes);
        }
    }
}

#[test]
fn the_root_of_a_real_process_is_where_the_search_begins() {
    let pid = i32::try_from(std::process::id()).unwrap();
    let root = Handle::open(Path::new(crate::proc::PROC), pid).unwrap().root().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.pem");
    fs::write(&file, pem(2025)).unwrap();
    let config = folder.path().join("k.conf");
    fs::write(&config, kubeconfig(&format!("{{client-certificate: {}}}", file.display()))).unwrap();
    let seen = checked(&root, &["kubelet", "--kubeconfig", &config.display().to_string()]);
    assert!(matches!(seen, Credential::Certificate { .. }), "{seen:?}");
}
