//! What changed between two views that should not have.

use std::collections::{BTreeMap, BTreeSet};

use super::{NodeView, Pod, PodName, Snapshot};

/// How the kernel names every shim of containerd.
const SHIM: &str = "containerd-shim";

/// What may differ: the objects of the injected fault and what resolves them, nothing else.
#[derive(Debug, Clone, Default)]
pub struct Allowed {
    pods: Vec<(String, String)>,
    loops: Vec<(String, String)>,
    programs: BTreeSet<(String, String)>,
    stopped: BTreeSet<String>,
    specs: BTreeSet<String>,
}

impl Allowed {
    /// Pods of a namespace whose names begin so, with their sandboxes, containers and processes: the victim and its successors.
    #[must_use]
    pub fn pods(mut self, namespace: &str, prefix: &str) -> Self {
        self.pods.push((namespace.to_owned(), prefix.to_owned()));
        self
    }

    /// Pods of a namespace whose names begin so, and whose containers end and start again all the while: the pods, their
    /// sandboxes and shims stay the same.
    #[must_use]
    pub fn crash_loops(mut self, namespace: &str, prefix: &str) -> Self {
        self.loops.push((namespace.to_owned(), prefix.to_owned()));
        self
    }

    /// Processes of one program outside pods on one node, such as a containerd that the injection restarted.
    #[must_use]
    pub fn program(mut self, node: &str, comm: &str) -> Self {
        self.programs.insert((node.to_owned(), comm.to_owned()));
        self
    }

    /// A node on which the injection stopped every container: its pods restart, but stay the same pods.
    #[must_use]
    pub fn stopped_node(mut self, node: &str) -> Self {
        self.stopped.insert(node.to_owned());
        self
    }

    /// A node whose spec may differ, for example while it is cordoned.
    #[must_use]
    pub fn node_spec(mut self, node: &str) -> Self {
        self.specs.insert(node.to_owned());
        self
    }

    fn pod(&self, namespace: &str, name: &str) -> bool {
        names(&self.pods, namespace, name)
    }

    fn crash_loop(&self, namespace: &str, name: &str) -> bool {
        names(&self.loops, namespace, name)
    }
}

fn names(list: &[(String, String)], namespace: &str, name: &str) -> bool {
    list.iter().any(|(own, prefix)| own == namespace && name.starts_with(prefix.as_str()))
}

/// A kind of thing that changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// The spec of a Node
    NodeSpec,
    /// A pod by namespace, name and uid
    Pod,
    /// The restart count of a container
    Restarts,
    /// A sandbox in the runtime's list
    Sandbox,
    /// A container in the runtime's list
    Container,
    /// A process by pid and start time
    Process,
}

/// One change outside the allowance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Kind
    pub what: What,
    /// Node, or namespace of a pod
    pub place: String,
    /// Name
    pub subject: String,
    /// Before, if it was there
    pub before: Option<String>,
    /// After, if it is there
    pub after: Option<String>,
}

/// How much was compared: a comparison of nothing proves nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pods
    pub pods: usize,
    /// Containers
    pub containers: usize,
    /// Processes
    pub processes: usize,
}

/// Everything that differs outside the allowance, and how much was compared.
pub fn diff(before: &Snapshot, after: &Snapshot, allowed: &Allowed) -> (Vec<Change>, Counts) {
    let mut changes = Changes::default();
    let mut counts = Counts::default();

    for (name, old, new) in pair(&before.cluster.nodes, &after.cluster.nodes) {
        if !allowed.specs.contains(name) {
            changes.compare(What::NodeSpec, "", name, old.map(ToString::to_string), new.map(ToString::to_string));
        }
    }
    let (old, new) = (pods(before, allowed), pods(after, allowed));
    counts.pods = old.len();
    for ((namespace, name), old, new) in pair(&old, &new) {
        let uid = |pod: Option<&&Pod>| pod.map(|pod| pod.uid.clone());
        changes.compare(What::Pod, namespace, name, uid(old), uid(new));
        if let (Some(old), Some(new)) = (old, new)
            && !old.node.as_ref().is_some_and(|node| allowed.stopped.contains(node))
            && !allowed.crash_loop(namespace, name)
        {
            for (container, old, new) in pair(&restarts(old), &restarts(new)) {
                let subject = format!("{name}/{container}");
                let [old, new] = [old, new].map(|count| count.map(ToString::to_string));
                changes.compare(What::Restarts, namespace, &subject, old, new);
            }
        }
    }
    let missing = NodeView::default();
    for (node, old, new) in pair(&before.nodes, &after.nodes) {
        let (old, new) = (old.unwrap_or(&missing), new.unwrap_or(&missing));
        let views = Views { before: old, after: new, pods: &before.cluster.pods };
        compare_node(node, &views, allowed, &mut changes, &mut counts);
    }
    (changes.0, counts)
}

/// One node at both times.
struct Views<'a> {
    before: &'a NodeView,
    after: &'a NodeView,
    /// Pods of the cluster before
    pods: &'a [Pod],
}

impl Views<'_> {
    /// Whether something that no longer ran was the kubelet's to collect: it removes what is left of a deleted pod by itself,
    /// at a time of its own choice.
    fn remains(&self, pod: &PodName) -> bool {
        !self.pods.iter().any(|known| known.uid == pod.uid)
    }
}

fn compare_node(node: &str, views: &Views, allowed: &Allowed, changes: &mut Changes, counts: &mut Counts) {
    let (before, after) = (views.before, views.after);
    // A leaked shim's sandbox may be in one list only, or its pod already gone from it. A shim may hold a container alone.
    let lists = || [before, after].into_iter().map(|view| &view.lists);
    let of_containers = lists().flat_map(|lists| &lists.containers);
    let of_containers = of_containers.flat_map(|c| [&c.sandbox, &c.id].map(|id| (id.as_str(), &c.pod)));
    let of_sandboxes = lists().flat_map(|lists| &lists.sandboxes).map(|s| (s.id.as_str(), &s.pod));
    let owners: BTreeMap<&str, &PodName> = of_containers.chain(of_sandboxes).collect();
    let free = |pod: &PodName| allowed.pod(&pod.namespace, &pod.name);
    let crashes = |pod: &PodName| allowed.crash_loop(&pod.namespace, &pod.name);
    let stopped = allowed.stopped.contains(node);

    let sandboxes = |view: &NodeView| -> BTreeMap<(String, String), String> {
        let all = &view.lists.sandboxes;
        // The kubelet collects a sandbox that has ended once its pod has a newer one, or is gone.
        let is_replaced =
            |s: &super::Sandbox| all.iter().any(|other| other.pod.uid == s.pod.uid && other.created > s.created);
        let is_collected = |s: &super::Sandbox| !s.ready && (views.remains(&s.pod) || is_replaced(s));
        let lists = all.iter().filter(|s| !stopped && !free(&s.pod) && !is_collected(s));
        let entry = |s: &super::Sandbox| ((s.pod.name.clone(), s.id.clone()), format!("ready: {}", s.ready));
        lists.map(entry).collect()
    };
    for ((pod, id), old, new) in pair(&sandboxes(before), &sandboxes(after)) {
        changes.compare(What::Sandbox, node, &format!("{pod} {id}"), old.cloned(), new.cloned());
    }
    let containers = |view: &NodeView| -> BTreeMap<(String, String), String> {
        let left = |c: &super::Container| c.state == "EXITED" && views.remains(&c.pod);
        let lists = view.lists.containers.iter();
        let lists = lists.filter(|c| !stopped && !free(&c.pod) && !crashes(&c.pod) && !left(c));
        lists.map(|c| ((format!("{}/{}", c.pod.name, c.name), c.id.clone()), c.state.clone())).collect()
    };
    let (old, new) = (containers(before), containers(after));
    counts.containers += old.len();
    for ((name, id), old, new) in pair(&old, &new) {
        changes.compare(What::Container, node, &format!("{name} {id}"), old.cloned(), new.cloned());
    }
    let processes = |view: &NodeView| -> BTreeMap<(i32, u64), String> {
        let other = view.processes.iter().filter(|process| match &process.shim_of {
            Some(id) => {
                let owner = owners.get(id.as_str());
                let is_shim = process.comm.starts_with(SHIM);
                !stopped && !owner.is_some_and(|pod| free(pod) || (crashes(pod) && !is_shim))
            }
            None => !allowed.programs.contains(&(node.to_owned(), process.comm.clone())),
        });
        other.map(|process| ((process.host_pid, process.started), process.comm.clone())).collect()
    };
    let (old, new) = (processes(before), processes(after));
    counts.processes += old.len();
    for ((pid, started), old, new) in pair(&old, &new) {
        let comm = |name: Option<&String>| name.map(|comm| format!("{comm}, started {started}"));
        // A program may rename itself; pid and start are what names a process.
        if old.is_none() || new.is_none() {
            changes.compare(What::Process, node, &pid.to_string(), comm(old), comm(new));
        }
    }
}

fn pods<'a>(snapshot: &'a Snapshot, allowed: &Allowed) -> BTreeMap<(&'a str, &'a str), &'a Pod> {
    let other = snapshot.cluster.pods.iter().filter(|pod| !allowed.pod(&pod.namespace, &pod.name));
    other.map(|pod| ((pod.namespace.as_str(), pod.name.as_str()), pod)).collect()
}

fn restarts(pod: &Pod) -> BTreeMap<&str, i32> {
    pod.containers.iter().map(|container| (container.name.as_str(), container.restarts)).collect()
}

/// All keys of both maps with their values.
fn pair<'a, K: Ord, V>(
    before: &'a BTreeMap<K, V>,
    after: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = (&'a K, Option<&'a V>, Option<&'a V>)> {
    let keys: BTreeSet<&K> = before.keys().chain(after.keys()).collect();
    keys.into_iter().map(|key| (key, before.get(key), after.get(key)))
}

#[derive(Debug, Default)]
struct Changes(Vec<Change>);

impl Changes {
    fn compare(&mut self, what: What, place: &str, subject: &str, before: Option<String>, after: Option<String>) {
        if before != after {
            self.0.push(Change { what, place: place.to_owned(), subject: subject.to_owned(), before, after });
        }
    }
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
