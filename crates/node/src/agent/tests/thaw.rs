//! Thawing the control group of a container in creation.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use nrh_core::action::ThawCgroup;

const UID: &str = "0a1b2c3d-0000-4000-8000-00000000000f";
/// The file that freezes a group, by version, with its two values.
const FREEZERS: [(&str, &str, [&str; 2]); 3] = [
    ("/sys/fs/cgroup/freezer", "freezer.state", ["FROZEN", "THAWED"]),
    ("/sys/fs/cgroup/unified", "cgroup.freeze", ["1", "0"]),
    ("/sys/fs/cgroup", "cgroup.freeze", ["1", "0"]),
];

/// A node with the first process of a container, in a control group of a pod, and a neighbour in another group of that pod.
struct Frozen {
    node: Node,
    sandbox: String,
    container: String,
    pods: PathBuf,
    file: &'static str,
    values: [&'static str; 2],
    init: (Running, Running),
    neighbour: (Running, Running),
}

impl Frozen {
    /// One for each version of control groups that this machine has and lets this user change.
    fn all() -> Vec<Self> {
        Self::all_with(|node, sandbox, _| node.stage.below_shim("k8s.io", sandbox, "runc:[2:INIT]", &[]))
    }

    /// The same with this first process of the container, and what is above it.
    fn all_with(init: impl Fn(&Node, &str, &str) -> (Running, Running)) -> Vec<Self> {
        let with = |(mount, file, values)| Self::with(mount, file, values, &init);
        let found: Vec<Self> = FREEZERS.into_iter().filter_map(with).collect();
        if found.is_empty() {
            eprintln!("SKIP: no freezer to make a group in");
        }
        found
    }

    fn with(
        mount: &str,
        file: &'static str,
        values: [&'static str; 2],
        init: impl Fn(&Node, &str, &str) -> (Running, Running),
    ) -> Option<Self> {
        let (sandbox, container) = (id(), id());
        let pods = Path::new(mount).join(format!("nrh-test-{}-kubepods", &container[16..]));
        // Where both versions are in use, the folder above them is none of a controller.
        if !Path::new(mount).join("cgroup.procs").exists() || fs::create_dir(&pods).is_err() {
            return None;
        }
        let node = Node::new();
        let init = init(&node, &sandbox, &container);
        let neighbour = node.stage.below_shim("k8s.io", &sandbox, "runc:[2:INIT]", &[]);
        let frozen = Self { node, sandbox, container, pods, file, values, init, neighbour };
        for (id, process) in [(&frozen.container, &frozen.init.0), (&frozen.sandbox, &frozen.neighbour.0)] {
            fs::create_dir_all(frozen.group(id)).unwrap();
            fs::write(frozen.group(id).join("cgroup.procs"), process.pid.to_string()).unwrap();
        }
        frozen.lists(0);
        if !frozen.group(&frozen.container).join(file).exists() {
            return None;
        }
        frozen.freeze(&frozen.group(&frozen.container));
        frozen.freeze(&frozen.group(&frozen.sandbox));
        Some(frozen)
    }

    fn group(&self, id: &str) -> PathBuf {
        self.pods.join(format!("pod{UID}/{id}"))
    }

    fn set(&self, group: &Path, value: usize) {
        fs::write(group.join(self.file), self.values[value]).unwrap();
    }

    fn freeze(&self, group: &Path) {
        self.set(group, 0);
        wait_until("the freeze", || is_frozen(group));
    }

    fn lists(&self, state: i32) {
        self.node.runtime.set(|world| world.containers = vec![container(&self.container, &self.sandbox, state)]);
    }

    fn thaw(&self) -> ActionCommand {
        self.thaw_of(&self.init.0, &self.container)
    }

    fn thaw_of(&self, process: &Running, id: &str) -> ActionCommand {
        let group = self.group(id).strip_prefix("/").unwrap().display().to_string();
        let process = process_target(process.as_target(Role::ContainerInit), &self.sandbox);
        let target = Target { control_group: Some(group), pod: Some(pod(UID)), ..process };
        command(Action::ThawCgroup(ThawCgroup), FaultType::FrozenCgroup, target)
    }

    #[track_caller]
    fn untouched(&self) {
        assert!([&self.container, &self.sandbox].into_iter().all(|id| is_frozen(&self.group(id))));
    }
}

impl Executes for Frozen {
    fn settings(&self) -> AgentSettings {
        let mut settings = self.node.settings();
        settings.host = PathBuf::from("/");
        settings.thresholds.set_bound(&nrh_core::faults::frozen_cgroup::AGE, Duration::ZERO);
        settings
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let inner = self.group(&self.container).join("container");
        let groups =
            [inner, self.group(&self.container), self.group(&self.sandbox), self.pods.join(format!("pod{UID}"))];
        for group in groups.iter().rev().chain([&self.pods]) {
            let _ = fs::write(group.join(self.file), self.values[1]);
        }
        for process in [&self.init.0, &self.neighbour.0] {
            let _ = fs::write(Path::new(&self.pods).parent().unwrap().join("cgroup.procs"), process.pid.to_string());
        }
        for group in groups.iter().chain([&self.pods]) {
            let _ = fs::remove_dir(group);
        }
    }
}

fn is_frozen(group: &Path) -> bool {
    let read = |file: &str| fs::read_to_string(group.join(file)).unwrap_or_default();
    read("freezer.state").trim() == "FROZEN" || read("cgroup.events").contains("frozen 1")
}

#[tokio::test]
async fn a_frozen_container_in_creation_is_thawed_and_its_neighbour_is_not() {
    for frozen in Frozen::all() {
        let outcome = frozen.execute(&frozen.thaw()).await;
        done(&outcome);
        assert!(outcome.message.contains("it was frozen, and is not frozen any more"), "{}", outcome.message);
        assert!(!is_frozen(&frozen.group(&frozen.container)) && is_frozen(&frozen.group(&frozen.sandbox)));
        frozen.refuses(&frozen.thaw(), Recovered).await;
        assert_eq!(frozen.node.runtime.writes(), [] as [String; 0]);
    }
}

/// crun has its processes in a group below that of the container.
#[tokio::test]
async fn a_frozen_container_whose_process_is_in_a_group_below_it_is_thawed() {
    for frozen in Frozen::all() {
        let group = frozen.group(&frozen.container);
        let inner = group.join("container");
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("cgroup.procs"), frozen.init.0.pid.to_string()).unwrap();
        wait_until("the freeze", || is_frozen(&inner));
        let mut command = frozen.thaw();
        command.target.control_group = Some(inner.strip_prefix("/").unwrap().display().to_string());
        done(&frozen.execute(&command).await);
        assert!(!is_frozen(&group) && !is_frozen(&inner) && is_frozen(&frozen.group(&frozen.sandbox)));
        // Two groups below it is none of the runtime's.
        command.target.control_group = command.target.control_group.map(|path| path + "/deeper");
        frozen.refuses(&command, CheckFailed).await;
    }
}

#[tokio::test]
async fn a_sandbox_in_creation_is_in_no_list_and_is_thawed() {
    for frozen in Frozen::all() {
        let command = || frozen.thaw_of(&frozen.neighbour.0, &frozen.sandbox);
        // One that is ready has a process of its own, whatever that calls itself.
        frozen.node.runtime.set(|world| world.sandboxes = vec![sandbox(&frozen.sandbox, true)]);
        frozen.refuses(&command(), Recovered).await;
        frozen.untouched();
        frozen.node.runtime.set(|world| world.sandboxes.clear());
        done(&frozen.execute(&command()).await);
        assert!(!is_frozen(&frozen.group(&frozen.sandbox)) && is_frozen(&frozen.group(&frozen.container)));
    }
}

/// Docker has a shim for each container.
#[tokio::test]
async fn a_frozen_container_of_docker_is_thawed_where_docker_is_the_runtime() {
    let init = |node: &Node, _: &str, container: &str| node.stage.below_shim("moby", container, "runc:[2:INIT]", &[]);
    for frozen in Frozen::all_with(init) {
        let command = || {
            let mut command = frozen.thaw();
            command.target.container_id = Some(frozen.container.clone());
            command
        };
        frozen.refuses(&command(), TargetChanged).await;
        frozen.untouched();
        frozen.node.runtime.name("docker");
        // A sandbox that Docker does not list may be a container of anybody.
        let mut sandbox = command();
        (sandbox.target.sandbox_id, sandbox.target.container_id) = (Some(frozen.container.clone()), None);
        frozen.refuses(&sandbox, TargetGone).await;
        frozen.untouched();
        done(&frozen.execute(&command()).await);
        assert!(!is_frozen(&frozen.group(&frozen.container)) && is_frozen(&frozen.group(&frozen.sandbox)));
    }
}

/// CRI-O does not list a container while its OCI runtime makes it.
#[tokio::test]
async fn a_frozen_container_of_crio_is_thawed_while_it_is_made() {
    let (name, init) = ("k8s_c_p_d_0a1b_0", "runc:[2:INIT]");
    let made = |node: &Node, _: &str, id: &str| {
        let parents = [("conmon", ["--cid", id, "-n", name]), ("runc", ["create", "--bundle", "/b", id])];
        node.stage.below_all(&parents, init, &[])
    };
    let not_made = |node: &Node, _: &str, id: &str| node.stage.below("conmon", ["--cid", id, "-n", name], init, &[]);
    let of = |is_made: bool, all: Vec<Frozen>| all.into_iter().map(move |one| (is_made, one));
    for (is_made, frozen) in of(true, Frozen::all_with(made)).chain(of(false, Frozen::all_with(not_made))) {
        frozen.node.runtime.set(|world| world.containers.clear());
        let mut command = frozen.thaw();
        (command.target.sandbox_id, command.target.container_id) = (None, Some(frozen.container.clone()));
        let outcome = frozen.execute(&command).await;
        came_to(&outcome, if is_made { Executed } else { TargetGone });
        assert_eq!(is_frozen(&frozen.group(&frozen.container)), !is_made);
    }
}

#[tokio::test]
async fn what_a_group_above_freezes_is_not_thawed() {
    for frozen in Frozen::all() {
        frozen.freeze(&frozen.pods);
        for thawed in [false, true] {
            if thawed {
                frozen.set(&frozen.group(&frozen.container), 1);
            }
            frozen.refuses_saying(&frozen.thaw(), Protected, &format!("{} is frozen", frozen.pods.display())).await;
            frozen.untouched();
        }
    }
}

#[tokio::test]
async fn a_paused_container_and_one_that_nobody_knows_are_not_thawed() {
    for frozen in Frozen::all() {
        for state in [1, 2, 3] {
            frozen.lists(state);
            frozen.refuses(&frozen.thaw(), Recovered).await;
        }
        frozen.node.runtime.set(|world| world.containers = vec![container(&frozen.container, &id(), 0)]);
        frozen.refuses(&frozen.thaw(), TargetChanged).await;
        frozen.node.runtime.set(|world| world.containers.clear());
        frozen.refuses(&frozen.thaw(), TargetGone).await;
        frozen.lists(0);
        frozen.node.runtime.say("ListContainers", Say::Never);
        frozen.refuses(&frozen.thaw(), CheckFailed).await;
        frozen.untouched();
    }
}

#[tokio::test]
async fn only_the_named_process_in_the_named_group_of_the_named_pod() {
    for frozen in Frozen::all() {
        frozen.node.refuses(&frozen.thaw(), Recovered).await;
        let mut young = frozen.thaw();
        young.target.process.as_mut().unwrap().start_ticks += 1;
        let mut elsewhere = frozen.thaw();
        elsewhere.target.sandbox_id = Some(id());
        let mut shim = frozen.thaw();
        shim.target.process = Some(frozen.init.1.as_target(Role::ContainerInit));
        let other = frozen.thaw_of(&frozen.init.0, &frozen.sandbox);
        for command in [&young, &elsewhere, &shim, &other] {
            frozen.refuses(command, TargetChanged).await;
        }
        let (mut no_pod, mut pod_of_another, mut none) = (frozen.thaw(), frozen.thaw(), frozen.thaw());
        no_pod.target.control_group = no_pod.target.control_group.map(|group| group.replace("kubepods", "user"));
        pod_of_another.target.pod = Some(pod("0b"));
        none.target.control_group = None;
        let mut hung = frozen.thaw();
        hung.fault_type = FaultType::HungContainer;
        for command in [&no_pod, &pod_of_another, &none, &hung] {
            frozen.refuses(command, CheckFailed).await;
        }
        frozen.untouched();
    }
}
