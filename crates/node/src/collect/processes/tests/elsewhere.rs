//! A containerd that the kubelet does not use.

use super::*;
use crate::proc::fake::listens;

const USUAL: &str = "/run/containerd/containerd.sock";

#[test]
fn a_containerd_that_the_kubelet_does_not_use_is_left_out_once_it_listens() {
    let folder = tempfile::tempdir().unwrap();
    let host = folder.path().join("host-containerd/containerd.sock");
    let me = i32::try_from(std::process::id()).unwrap();
    let of_people = format!("x -namespace default -id of-people -address {}", host.display());
    let of_people = Entry { pid: 51, args: &of_people, ..SHIM };
    let root = Proc::new().with(&SHIM).with(&of_people).with(&Entry { pid: me, began: 999, ..CONTAINERD });
    let mut scanner = root.scanner();
    let mut seen = |endpoint: Option<&Path>| pids(&scanner.check(false, endpoint).unwrap());
    let (usual, both) = (Path::new(USUAL), [50, me]);
    assert_eq!(seen(Some(usual)), both, "it may be the kubelet's, which starts");
    let _listener = listens(&root.file(&me.to_string()), &host);
    assert_eq!(seen(Some(usual)), [50]);
    assert_eq!(seen(None), both, "the kubelet's endpoint is not known");
    assert_eq!(seen(Some(&host)), both);

    let stuck = Entry { pid: 52, state: 'D', ..SHIM };
    let root = root.with(&stuck);
    assert_eq!(seen(Some(usual)), both, "a process that cannot be read may be its shim");
    fs::remove_dir_all(root.file("52")).unwrap();
    assert_eq!(seen(Some(usual)), [50]);
    fs::remove_dir_all(root.file("50")).unwrap();
    assert_eq!(seen(Some(usual)), [me], "the kubelet has no shim");
}
