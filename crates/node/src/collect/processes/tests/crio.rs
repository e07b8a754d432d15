//! The conmons of CRI-O, as a real machine shows them.

use super::*;
use nrh_core::fault::PodRef;

const ID: &str = "2deb87b7c00de9c623d0939829c8b32f15c1cd6ed13aaf8586b542af526cf8af";

/// The conmon of a container that has run, in this state.
fn conmon(state: char, name: &str) -> Proc {
    let args = format!(
        "/usr/bin/conmon -b /run/containers/storage/overlay-containers/{ID}/userdata -c {ID} --exit-dir \
         /var/run/crio/exits -n {name} -r /usr/sbin/runc --runtime-arg --root=/run/runc --syslog -u {ID} -s"
    );
    Proc::new().with(&Entry { pid: 732, state, command: b"conmon", exe: "/usr/bin/conmon", args: &args, ..SHIM })
}

#[test]
fn a_stopped_conmon_is_seen_with_its_pod_and_whether_its_container_lives() {
    let name = "k8s_main_a-vm_default_2a0f32c21d00d0b6e2f638383dde7ea0_0";
    let uid = "2a0f32c21d00d0b6e2f638383dde7ea0".to_owned();
    let pod = PodRef { namespace: "default".to_owned(), name: "a-vm".to_owned(), uid };
    for (child, living_children) in [('S', 1), ('Z', 0)] {
        let container = Entry { pid: 774, parent: 732, state: child, command: b"busybox", nested: "1", ..SHIM };
        let table = conmon('T', name).with(&container).scanner().check(false, None).unwrap();
        let [seen] = table.processes.as_slice() else { panic!("{table:?}") };
        assert_eq!((seen.pid, seen.state, seen.wchan.as_deref()), (732, 'T', Some("do_signal_stop")));
        assert_eq!(seen.role, ProcessRole::Monitor { id: ID.to_owned(), pod: Some(pod.clone()), living_children });
        assert_eq!(seen.role.serves(), Some((ID, living_children)));
    }
}

#[test]
fn a_conmon_of_podman_serves_nothing_of_the_kubelets() {
    let table = conmon('T', "agitated_bell").scanner().check(false, None).unwrap();
    assert_eq!(table.processes[0].role, ProcessRole::Monitor { id: ID.to_owned(), pod: None, living_children: 0 });
    assert_eq!(table.processes[0].role.serves(), None);
}

#[test]
fn a_conmon_whose_arguments_cannot_be_read_is_neither_there_nor_absent() {
    let table = conmon('D', "k8s_main_a-vm_default_2a0f_0").scanner().check(false, None).unwrap();
    let candidates: Vec<_> = table.unproven.iter().map(|one| (one.pid, one.possible_role)).collect();
    assert_eq!((table.processes, candidates), (Vec::new(), vec![(732, PossibleRole::Monitor)]));
}

/// Nothing else shows a container of CRI-O that is being created: no list contains it.
#[test]
fn the_first_process_of_a_container_is_known_by_its_conmon() {
    let args = format!("runc --root /run/runc create --bundle /b {ID}");
    let client = Entry { pid: 740, parent: 732, args: &args, ..RUNC };
    let init = |pid, parent| Entry { pid, parent, ..INIT };
    for (name, expected) in [("k8s_main_a-vm_default_2a0f_0", &[741, 742][..]), ("agitated_bell", &[])] {
        let root = conmon('S', name).with(&client).with(&init(741, 740)).with(&init(742, 732));
        let inits = root.scanner().check(false, None).unwrap().inits;
        assert!(inits.iter().all(|init| init.serves == ID));
        assert_eq!(inits.iter().map(|init| init.pid).collect::<Vec<_>>(), expected, "{name}");
    }
}
