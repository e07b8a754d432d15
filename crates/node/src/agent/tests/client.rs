//! Ending a client of the low-level runtime that hangs.

use super::*;
use crate::docker::fake::Fake as Docker;
use nrh_core::examples::SAFE_KILL;

/// A hung `runc create` below a shim, and the same of another sandbox beside it.
struct Hung {
    node: Node,
    sandbox: String,
    container: String,
    client: Running,
    shim: Running,
    neighbour: (Running, Running),
}

impl Hung {
    fn new(namespace: &str, verb: &str) -> Self {
        let (node, sandbox, container) = (Node::new(), id(), id());
        // A shim of Docker's serves a container, one of the kubelet's containerd a sandbox.
        let served = if namespace == "moby" { &container } else { &sandbox };
        let (client, shim) = node.stage.client(namespace, served, verb, &container);
        let neighbour = node.stage.client(namespace, &id(), verb, &id());
        Self { node, sandbox, container, client, shim, neighbour }
    }

    fn command(&self) -> ActionCommand {
        let process = self.client.as_target(Role::RuntimeClient);
        let target = Target { container_id: Some(self.container.clone()), ..process_target(process, &self.sandbox) };
        command(SAFE_KILL, FaultType::RuntimeClientHung, target)
    }

    #[track_caller]
    fn others_untouched(&self) {
        for process in [&self.neighbour.0, &self.neighbour.1] {
            assert!(process.state().is_some());
        }
        assert_eq!(self.node.runtime.writes(), [] as [String; 0]);
    }
}

#[tokio::test]
async fn a_hung_create_is_ended_its_shim_and_its_neighbour_are_not() {
    let hung = Hung::new("k8s.io", "create");
    let mut strict = hung.node.settings();
    strict.thresholds.set_bound(&nrh_core::faults::runtime_client_hung::AGE, Duration::from_mins(5));
    strict.refuses(&hung.command(), Recovered).await;
    assert!(hung.client.state().is_some());
    // It is young, but does nothing.
    strict.thresholds.set_bound(&nrh_core::thresholds::NO_PROGRESS_TIME, Duration::ZERO);
    let at_once = nrh_core::thresholds::Confirmation {
        grace_period: Duration::ZERO,
        ..nrh_core::faults::runtime_client_hung::CONFIRM.shipped
    };
    strict.thresholds.set_confirm(&nrh_core::faults::runtime_client_hung::CONFIRM, at_once);
    let again = ActionCommand { operation_id: format!("again-{}", hung.client.pid), ..hung.command() };
    done(&strict.execute(&again).await);
    assert_eq!(hung.client.state(), None);
    // The stand-in of a shim outlives its child.
    assert!(hung.shim.state().is_some());
    hung.others_untouched();
}

#[tokio::test]
async fn only_the_commanded_container_of_the_commanded_sandbox_and_only_what_may_be_cut_off() {
    type Change = fn(&mut Target);
    let hung = Hung::new("k8s.io", "create");
    let changes: [(Change, OutcomeReason); 4] = [
        (|target| target.container_id = Some(id()), TargetChanged),
        (|target| target.sandbox_id = Some(id()), TargetChanged),
        (|target| target.container_id = None, CheckFailed),
        (|target| target.process.as_mut().unwrap().role = Role::Shim, TargetChanged),
    ];
    for (change, reason) in changes {
        let mut command = hung.command();
        change(&mut command.target);
        hung.node.refuses(&command, reason).await;
    }
    assert!(hung.client.state().is_some());
    for verb in ["exec", "pause", "run", "update"] {
        let hung = Hung::new("k8s.io", verb);
        hung.node.refuses(&hung.command(), TargetChanged).await;
        assert!(hung.client.state().is_some(), "{verb}");
    }
}

#[tokio::test]
async fn what_works_for_nobody_of_the_kubelets_is_left_alone() {
    // Under another namespace of the same containerd, and without a shim.
    let others = Hung::new("default", "create");
    others.node.refuses(&others.command(), TargetChanged).await;
    assert!(others.client.state().is_some());
    let (node, container) = (Node::new(), id());
    let alone = node.stage.child("alone/runc", &["create", "--bundle", "/b", &container]);
    let target =
        Target { container_id: Some(container), ..process_target(alone.as_target(Role::RuntimeClient), &id()) };
    let command = command(SAFE_KILL, FaultType::RuntimeClientHung, target);
    node.refuses(&command, TargetChanged).await;
    assert!(alone.state().is_some());
}

#[tokio::test]
async fn with_docker_it_is_ended_on_dockers_word_that_the_container_is_of_that_pod() {
    let (hung, docker) = (Hung::new("moby", "create"), Docker::start());
    let mut settings = hung.node.settings();
    settings.docker_socket = docker.socket();
    let mut command = hung.command();
    command.target.pod = Some(pod(&format!("uid-{}", &hung.sandbox[..1])));
    let again =
        |number: u32| ActionCommand { operation_id: format!("try-{number}-{}", hung.client.pid), ..command.clone() };
    // The runtime is containerd: this Docker is somebody's own.
    settings.refuses(&again(1), TargetChanged).await;
    hung.node.runtime.name("docker");
    docker.lists(&[&hung.sandbox], &[]);
    settings.refuses(&again(2), TargetGone).await;
    assert!(hung.client.state().is_some());
    docker.lists(&[&hung.sandbox], &[(&hung.container, &hung.sandbox)]);
    done(&settings.execute(&again(3)).await);
    assert_eq!(hung.client.state(), None);
    hung.others_untouched();
}

#[tokio::test]
async fn with_docker_a_hung_create_of_a_sandbox_is_ended() {
    let (hung, docker) = (Hung::new("moby", "create"), Docker::start());
    let mut settings = hung.node.settings();
    settings.docker_socket = docker.socket();
    hung.node.runtime.name("docker");
    let sandbox = &hung.container;
    let mut command = hung.command();
    command.target.sandbox_id = Some(sandbox.clone());
    command.target.pod = Some(pod(&format!("uid-{}", &sandbox[..1])));
    docker.lists(&[&hung.sandbox], &[]);
    settings.refuses(&command, TargetGone).await;
    docker.lists(&[sandbox], &[]);
    command.operation_id = format!("again-{}", hung.client.pid);
    done(&settings.execute(&command).await);
    assert_eq!(hung.client.state(), None);
    hung.others_untouched();
}

#[tokio::test]
async fn with_crio_it_is_ended_below_the_conmon_of_its_container_and_below_crio() {
    const NAME: &str = "k8s_main_web-0_default_uid-web_0";
    let (node, container, other) = (Node::new(), id(), id());
    for (parent, flags, ends) in [
        ("conmon", ["--cid", &container, "-n", NAME], true),
        ("crio", ["--log-level", "info", "--config", "/etc/crio/crio.conf"], true),
        ("conmon", ["--cid", &container, "-n", "agitated_bell"], false),
        ("conmon", ["--cid", &other, "-n", NAME], false),
    ] {
        let (client, parent) = node.stage.below(parent, flags, "runc", &["create", "--bundle", "/b", &container]);
        let process = Some(client.as_target(Role::RuntimeClient));
        let target = Target { process, container_id: Some(container.clone()), ..Target::default() };
        let outcome = node.execute(&command(SAFE_KILL, FaultType::RuntimeClientHung, target)).await;
        came_to(&outcome, if ends { Executed } else { TargetChanged });
        assert_eq!((client.state().is_none(), parent.state().is_some()), (ends, true), "{flags:?}");
    }
}
