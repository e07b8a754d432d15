//! What arguments, environments and folders prove.

use super::*;

fn args(line: &str) -> Vec<String> {
    line.split(' ').map(ToOwned::to_owned).collect()
}

/// As CRI-O 1.37 calls conmon 2.1.12 on a real machine.
const CONMON: &str = "/usr/bin/conmon -b /run/containers/storage/overlay-containers/ID/userdata -c ID --exit-dir /var/run/crio/exits -l /var/log/pods/default_b-vm_e6e39357f7c8d7f35a29d6c15880926e/main/0.log --log-level info -n k8s_main_b-vm_default_e6e39357f7c8d7f35a29d6c15880926e_0 -P /run/containers/storage/overlay-containers/ID/userdata/conmon-pidfile -p /run/containers/storage/overlay-containers/ID/userdata/pidfile --persist-dir /var/lib/containers/storage/overlay-containers/ID/userdata -r /usr/sbin/runc --runtime-arg --root=/run/runc --socket-dir-path /var/run/crio --syslog -u ID -s";

#[test]
fn a_monitor_names_its_container_and_that_of_crio_its_pod() {
    let id = "c".repeat(64);
    let pod = PodRef {
        namespace: "default".to_owned(),
        name: "b-vm".to_owned(),
        uid: "e6e39357f7c8d7f35a29d6c15880926e".to_owned(),
    };
    let crio = Proof::Monitor { id: id.clone(), pod: Some(pod) };
    assert_eq!(monitor(&args(&CONMON.replace("ID", &id))), Some(crio.clone()));
    assert_eq!(crio.role(), Some(Role::Shim));
    for name in ["agitated_bell", "k8s_main_b-vm_default_0", "k8s_main___uid_0", "main_b-vm_default_uid_0"] {
        let podman = monitor(&args(&format!("conmon --cid={id} -u x -n {name}")));
        assert_eq!(podman, Some(Proof::Monitor { id: id.clone(), pod: None }), "{name}");
        assert_eq!(podman.unwrap().role(), None, "{name}");
    }
    for exec in ["-e", "--exec", "--exec-attach", "--exec-process-spec /x", "--exec-process-spec=/x"] {
        assert_eq!(monitor(&args(&format!("{} {exec}", CONMON.replace("ID", &id)))), None, "{exec}");
    }
    for none in ["conmon --version", "conmon -c", "conmon -c short -u x"] {
        assert_eq!(monitor(&args(none)), None, "{none}");
    }
}

#[test]
fn a_serving_shim_is_told_from_the_calls_of_its_binary() {
    let serving =
        args("/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id abc -address /run/containerd/containerd.sock");
    let proof = |address: &str| {
        let address = address.to_owned();
        Some(Proof::Shim { id: "abc".to_owned(), namespace: "k8s.io".to_owned(), address })
    };
    assert_eq!(shim(&serving), proof("/run/containerd/containerd.sock"));
    assert_eq!(shim(&args("x --id=abc --namespace=k8s.io")), proof(""));
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
    let checkpoint = Proof::RuntimeClient { verb: "checkpoint".to_owned(), container_id: Some("abc".to_owned()) };
    assert_eq!(client(&args("runc --root r checkpoint --image-path /i --leave-running abc")), Some(checkpoint));
    let nothing = Proof::RuntimeClient { verb: "delete".to_owned(), container_id: None };
    assert_eq!(client(&args("runc delete --force")), Some(nothing));
    assert_eq!(client(&args("runc --version")), None);
}

#[test]
fn the_pod_of_a_call_is_named_only_by_names_of_kubernetes() {
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=kube-system;K8S_POD_NAME=dns-1.a;K8S_POD_UID=u1";
    assert_eq!((pod_name(args).as_deref(), pod_uid(args).as_deref()), (Some("kube-system/dns-1.a"), Some("u1")));
    let long = "x".repeat(254);
    for (from, to) in
        [("dns-1.a", ""), ("dns-1.a", "../x"), ("dns-1.a", "a\u{1b}[31m"), ("dns-1.a", &long), ("NAMESPACE", "N")]
    {
        assert_eq!(pod_name(&args.replace(from, to)), None, "{to:?}");
    }
}

#[test]
fn of_the_programs_of_k3s_its_plugins_alone_are_plugins() {
    let prover = Prover::new(Path::new("/proc"));
    let is_other = |path: &str| k3s::is_other_program(Path::new(path));
    for program in ["/var/lib/rancher/k3s/data/0a1b/bin/blkid", "/var/lib/rancher/k3s/data/0a1b/bin/k3s"] {
        assert!(prover.in_cni_folder(Path::new(program)) && is_other(program), "{program}");
    }
    for plugin in
        ["/var/lib/rancher/k3s/data/0a1b/bin/cni", "/var/lib/rancher/k3s/data/cni/multus", "/opt/cni/bin/bridge"]
    {
        assert!(prover.in_cni_folder(Path::new(plugin)) && !is_other(plugin), "{plugin}");
    }
}
