//! What arguments, environments and folders prove.

use super::*;

fn args(line: &str) -> Vec<String> {
    line.split(' ').map(ToOwned::to_owned).collect()
}

#[test]
fn a_monitor_names_its_container() {
    let id = "c".repeat(64);
    let crio = format!(
        "/usr/bin/conmon -b /run/containers/storage/x/userdata -c {id} --exit-dir /run/crio/exits -l /l -n k8s"
    );
    assert_eq!(monitor(&args(&crio)), Some(Proof::Monitor { id: id.clone() }));
    assert_eq!(monitor(&args(&format!("conmon --cid={id} -u x"))), Some(Proof::Monitor { id }));
    for none in ["conmon --version", "conmon -c", "conmon -c short -u x"] {
        assert_eq!(monitor(&args(none)), None, "{none}");
    }
}

#[test]
fn a_serving_shim_is_told_from_the_calls_of_its_binary() {
    let serving =
        args("/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id abc -address /run/containerd/containerd.sock");
    let proof = Proof::Shim { id: "abc".to_owned(), namespace: "k8s.io".to_owned() };
    assert_eq!(shim(&serving), Some(proof.clone()));
    assert_eq!(shim(&args("x --id=abc --namespace=k8s.io")), Some(proof));
    for call in [
        "shim -namespace k8s.io -address a -publish-binary /usr/bin/containerd -id abc -bundle /b delete",
        "shim -namespace k8s.io -id abc start",
        "shim -namespace k8s.io",
        "shim -id abc",
        "shim -namespace k8s.io -id",
        "shim -ids abc -namespace k8s.io",
    ] {
        assert_eq!(shim(&args(call)), None, "{call}");
    }
}

#[test]
fn clients_have_a_verb_and_a_container() {
    let create = args("runc --root /run/containerd/runc/k8s.io --log l create --bundle /b --pid-file p abc");
    let proof = Proof::RuntimeClient { verb: "create".to_owned(), container_id: Some("abc".to_owned()) };
    assert_eq!(client(&create), Some(proof));
    let kill = Proof::RuntimeClient { verb: "kill".to_owned(), container_id: Some("abc".to_owned()) };
    for line in ["runc --root r kill --all abc 9", "runc kill abc 15", "crun kill abc"] {
        assert_eq!(client(&args(line)), Some(kill.clone()), "{line}");
    }
    let nothing = Proof::RuntimeClient { verb: "delete".to_owned(), container_id: None };
    assert_eq!(client(&args("runc delete --force")), Some(nothing));
    assert_eq!(client(&args("runc --version")), None);
}
