//! A containerd that the kubelet does not use.

use super::*;
use crate::proc::fake::listens;

const USUAL: &str = "/run/containerd/containerd.sock";
const HOST: &str = "/run/host-containerd/containerd.sock";

#[test]
fn a_containerd_that_the_kubelet_does_not_use_is_left_out_once_it_listens() {
    let began = 999;
    let root = Proc::new().with(&SHIM).with(&Entry { began, ..CONTAINERD });
    let alone = Proc::new().with(&CONTAINERD);
    let mut scanner = root.scanner();
    let mut seen = |endpoint: Option<&str>| pids(&scanner.check(false, endpoint.map(Path::new)).unwrap());
    assert_eq!(seen(Some(USUAL)), [40, 50], "it may be the kubelet's, which starts");
    for root in [&root, &alone] {
        listens(&root.file("40"), HOST);
    }
    assert_eq!(seen(Some(USUAL)), [50]);
    assert_eq!(seen(None), [40, 50], "the kubelet's endpoint is not known");
    assert_eq!(seen(Some(HOST)), [40, 50]);
    assert_eq!(pids(&alone.scanner().check(false, Some(Path::new(USUAL))).unwrap()), [40], "the kubelet has no shim");
}
