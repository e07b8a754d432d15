#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::super::{Cluster, Container, Lists, PodContainer, Process, Sandbox};
use super::*;

fn name(pod: &str) -> PodName {
    PodName { namespace: "demo".into(), name: pod.into(), uid: format!("uid-{pod}") }
}

fn process(pid: i32, comm: &str, sandbox: Option<&str>) -> Process {
    Process {
        host_pid: pid,
        pid,
        host_ppid: 1,
        started: 7,
        comm: comm.into(),
        state: 'S',
        shim_of: sandbox.map(Into::into),
    }
}

/// A node with a pod `agent-x`, a pod `other`, a containerd and a kubelet.
fn snapshot() -> Snapshot {
    let pod = |pod: &str| Pod {
        namespace: "demo".into(),
        name: pod.into(),
        uid: format!("uid-{pod}"),
        node: Some("real-1".into()),
        containers: vec![PodContainer { name: "work".into(), restarts: 1, ..PodContainer::default() }],
        ..Pod::default()
    };
    let sandbox = |pod: &str| Sandbox { id: format!("s-{pod}"), pod: name(pod), ready: true, created: 1 };
    let container = |pod: &str| Container {
        id: format!("c-{pod}"),
        sandbox: format!("s-{pod}"),
        pod: name(pod),
        name: "work".into(),
        state: "RUNNING".into(),
    };
    let view = NodeView {
        processes: vec![
            process(10, "containerd", None),
            process(11, "kubelet", None),
            process(20, "containerd-shim", Some("s-agent-x")),
            process(21, "workload", Some("s-agent-x")),
            process(30, "containerd-shim", Some("s-other")),
        ],
        lists: Lists {
            sandboxes: vec![sandbox("agent-x"), sandbox("other")],
            containers: vec![container("agent-x"), container("other")],
        },
    };
    Snapshot {
        cluster: Cluster {
            nodes: [("real-1".to_owned(), json!({"podCIDR": "10.0.0.0/24"}))].into(),
            pods: vec![pod("agent-x"), pod("other")],
        },
        nodes: [("real-1".to_owned(), view)].into(),
    }
}

fn kinds(after: &Snapshot, allowed: &Allowed) -> Vec<(What, String)> {
    let (changes, _) = diff(&snapshot(), after, allowed);
    changes.into_iter().map(|change| (change.what, change.subject)).collect()
}

/// The snapshot after `agent-x` was replaced by `agent-y`.
fn replaced() -> Snapshot {
    let mut after = snapshot();
    let pod = &mut after.cluster.pods[0];
    (pod.name, pod.uid) = ("agent-y".into(), "uid-agent-y".into());
    let view = after.nodes.get_mut("real-1").unwrap();
    view.lists.sandboxes[0].pod = name("agent-y");
    view.lists.sandboxes[0].id = "s-agent-y".into();
    view.lists.containers[0].pod = name("agent-y");
    view.lists.containers[0].id = "c-agent-y".into();
    view.lists.containers[0].sandbox = "s-agent-y".into();
    view.processes[2] = process(40, "containerd-shim", Some("s-agent-y"));
    view.processes[3] = process(41, "workload", Some("s-agent-y"));
    after
}

#[test]
fn nothing_changed_is_said_with_how_much_was_compared() {
    let (changes, counts) = diff(&snapshot(), &snapshot(), &Allowed::default());
    assert_eq!(changes, []);
    assert_eq!(counts, Counts { pods: 2, containers: 2, processes: 5 });
}

#[test]
fn the_victim_and_its_successor_may_change_and_do_not_count() {
    let allowed = Allowed::default().pods("demo", "agent-");
    let (changes, counts) = diff(&snapshot(), &replaced(), &allowed);
    assert_eq!(changes, []);
    assert_eq!(counts, Counts { pods: 1, containers: 1, processes: 3 });
    assert_eq!(kinds(&replaced(), &Allowed::default().pods("elsewhere", "agent-")).len(), 10);
}

#[test]
fn each_other_change_is_named() {
    let allowed = Allowed::default().pods("demo", "agent-");
    let mut after = replaced();
    after.cluster.pods[1].containers[0].restarts = 2;
    assert_eq!(kinds(&after, &allowed), [(What::Restarts, "other/work".into())]);

    let mut after = replaced();
    after.cluster.pods[1].uid = "new".into();
    assert_eq!(kinds(&after, &allowed), [(What::Pod, "other".into())]);

    let mut after = replaced();
    after.nodes.get_mut("real-1").unwrap().lists.containers[1].state = "EXITED".into();
    assert_eq!(kinds(&after, &allowed), [(What::Container, "other/work c-other".into())]);

    // The same pid with another start is another process.
    let mut after = replaced();
    after.nodes.get_mut("real-1").unwrap().processes[4].started = 8;
    assert_eq!(kinds(&after, &allowed), [(What::Process, "30".into()), (What::Process, "30".into())]);

    let mut after = replaced();
    after.cluster.nodes.insert("real-1".into(), json!({"unschedulable": true}));
    assert_eq!(kinds(&after, &allowed), [(What::NodeSpec, "real-1".into())]);
    assert_eq!(kinds(&after, &allowed.node_spec("real-1")), []);

    let mut after = snapshot();
    after.nodes.clear();
    assert_eq!(kinds(&after, &Allowed::default()).len(), 9);
}

#[test]
fn a_restarted_program_is_allowed_by_name_only() {
    let mut after = snapshot();
    after.nodes.get_mut("real-1").unwrap().processes[0].host_pid = 99;
    assert_eq!(kinds(&after, &Allowed::default()).len(), 2);
    assert_eq!(kinds(&after, &Allowed::default().program("real-1", "kubelet")).len(), 2);
    assert_eq!(kinds(&after, &Allowed::default().program("real-2", "containerd")).len(), 2);
    assert_eq!(kinds(&after, &Allowed::default().program("real-1", "containerd")), []);
}

#[test]
fn on_a_stopped_node_pods_restart_but_stay_the_same() {
    let allowed = Allowed::default().stopped_node("real-1");
    let mut after = snapshot();
    for pod in &mut after.cluster.pods {
        pod.containers[0].restarts += 1;
    }
    let view = after.nodes.get_mut("real-1").unwrap();
    view.lists = Lists::default();
    view.processes.truncate(2);
    assert_eq!(kinds(&after, &allowed), []);
    after.cluster.pods[1].uid = "new".into();
    assert_eq!(kinds(&after, &allowed), [(What::Pod, "other".into())]);
}

#[test]
fn a_leaked_shim_belongs_to_its_pod_although_only_the_first_check_lists_its_sandbox() {
    let mut after = replaced();
    after.nodes.get_mut("real-1").unwrap().processes.push(process(20, "containerd-shim", Some("s-agent-x")));
    assert_eq!(kinds(&after, &Allowed::default().pods("demo", "agent-")), []);
    assert!(kinds(&after, &Allowed::default()).iter().all(|(_, subject)| subject != "20"));
}

#[test]
fn the_kubelet_may_collect_what_a_deleted_pod_left_but_nobody_may_touch_what_runs_or_what_a_pod_has_kept() {
    let left = |uid: &str, ready: bool, state: &str| {
        let mut view = snapshot();
        let lists = &mut view.nodes.get_mut("real-1").unwrap().lists;
        let pod = PodName { uid: uid.into(), ..name("gone") };
        lists.sandboxes.push(Sandbox { id: "s-gone".into(), pod: pod.clone(), ready, created: 1 });
        let mut container = lists.containers[0].clone();
        (container.id, container.pod, container.state) = ("c-gone".into(), pod, state.into());
        lists.containers.push(container);
        let (changes, _) = diff(&view, &snapshot(), &Allowed::default());
        changes.into_iter().map(|change| change.what).collect::<Vec<_>>()
    };
    assert_eq!(left("uid-gone", false, "EXITED"), []);
    assert_eq!(left("uid-gone", true, "RUNNING"), [What::Sandbox, What::Container]);
    assert_eq!(left("uid-gone", true, "UNKNOWN"), [What::Sandbox, What::Container]);
    // The last dead instance of a pod that is there.
    assert_eq!(left("uid-other", false, "EXITED"), [What::Sandbox, What::Container]);
}

#[test]
fn the_kubelet_may_collect_a_sandbox_that_a_newer_one_has_replaced() {
    let mut view = snapshot();
    let lists = &mut view.nodes.get_mut("real-1").unwrap().lists;
    lists.sandboxes.push(Sandbox { id: "s-old".into(), pod: name("other"), ready: false, created: 0 });
    assert!(diff(&view, &snapshot(), &Allowed::default()).0.is_empty());
}

#[test]
fn a_crash_loop_restarts_its_containers_and_stays_the_same_pod() {
    let allowed = Allowed::default().crash_loops("demo", "other");
    let mut after = snapshot();
    after.cluster.pods[1].containers[0].restarts += 1;
    let view = after.nodes.get_mut("real-1").unwrap();
    view.lists.containers[1].id = "c-other-2".into();
    view.processes.push(process(31, "workload", Some("s-other")));
    assert_eq!(kinds(&after, &allowed), []);
    assert_eq!(kinds(&after, &Allowed::default()).len(), 4);
    let view = after.nodes.get_mut("real-1").unwrap();
    view.processes.retain(|process| process.host_pid != 30);
    view.lists.sandboxes[1].ready = false;
    assert_eq!(kinds(&after, &allowed).len(), 2, "its shim and its sandbox are not free");
    after.cluster.pods[1].uid = "new".into();
    assert!(kinds(&after, &allowed).contains(&(What::Pod, "other".into())));
}
