//! The stage: a bed with the operator installed as a user would, and the questions acts ask of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::Value;

use super::tell::Teller;
use super::wait::{POLL_INTERVAL, wait};
use super::workloads::{EVERYWHERE, NAMESPACE, some_workloads};
use super::writes::Write;
use crate::layout::Layout;
use crate::operator::Programs;
use crate::view::{self, Pod, Snapshot};
use crate::{Bed, Node, operator, state};

/// Everything acts work with.
pub(super) struct Stage {
    pub(super) bed: Bed,
    pub(super) tell: Teller,
    /// The node on which everything happens.
    pub(super) sick: Node,
    /// The node that stays healthy throughout.
    pub(super) well: Node,
    /// The operator's static programs.
    pub(super) programs: Programs,
    /// The operator's default thresholds by fault, in seconds.
    pub(super) thresholds: BTreeMap<String, u64>,
    /// Longest pause between two checks of an act.
    pub(super) poll: Duration,
    /// Longest time to a cure, in place of the act's own.
    pub(super) limit: Option<Duration>,
    /// Whether other acts are played on other nodes of the same cluster at the same time.
    pub(super) shared: bool,
}

/// Taint that keeps the controllers off nodes that will be sick: Kubernetes would move them when one of these is lost for
/// more than a minute, which is no act of ours.
const RESERVED: &str = "demo/reserved";

/// Keeps what is scheduled from now on off a node.
pub(super) fn reserve(bed: &Bed, node: &Node) -> Result<()> {
    bed.kubectl(&["taint", "node", &node.name, &format!("{RESERVED}=:NoSchedule")]).map(drop)
}

/// Takes that back.
pub(super) fn open(bed: &Bed, node: &Node) -> Result<()> {
    bed.kubectl(&["taint", "node", &node.name, &format!("{RESERVED}-")]).map(drop)
}

/// A policy of `config/policies`.
pub(super) fn shipped_policy(file: &str) -> Result<Value> {
    let path = state::workspace().join("config/policies").join(file);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_saphyr::from_str(&text).with_context(|| path.display().to_string())
}

impl Stage {
    /// Takes a bed, installs the operator and the workloads, and waits until all runs.
    ///
    /// With `apart` the controllers are kept off the node that will be sick.
    pub(super) fn set(bed: Bed, tell: Teller, programs: Programs, apart: bool) -> Result<Self> {
        let [sick, well] = bed.nodes() else { anyhow::bail!("the demo needs two nodes") };
        let (sick, well) = (sick.clone(), well.clone());
        let thresholds = thresholds(&programs.nrh)?;
        let stage =
            Self { bed, tell, sick, well, programs, thresholds, poll: POLL_INTERVAL, limit: None, shared: false };
        stage.install(apart)?;
        Ok(stage)
    }

    /// Whether a node is one that this stage is about.
    fn is_own(&self, node: Option<&str>) -> bool {
        node == Some(self.sick.name.as_str()) || node == Some(self.well.name.as_str())
    }

    fn install(&self, apart: bool) -> Result<()> {
        if !self.sick.is_stand_in() {
            self.tell.say("building the operator's image from the shipped Dockerfile's final stage");
        }
        operator::load_image(&self.bed, self.bed.nodes(), &self.programs)?;
        if apart {
            reserve(&self.bed, &self.sick)?;
        }
        self.tell.say("kubectl apply -k config/default");
        operator::apply_folder(&self.bed, "config/default")?;
        if apart {
            operator::wait(&self.bed)?;
            open(&self.bed, &self.sick)?;
        }
        if self.sick.layout == Layout::Docker {
            self.apply_in_turn()?;
        }
        self.bed.apply(&super::workloads::workloads(&self.sick.name))?;
        self.tell.say("waiting for the controller, the probes and the workloads");
        operator::wait(&self.bed)?;
        self.settle()
    }

    /// Docker starts a dockerd for each sandbox. On an emulated machine, several at once take longer than the two minutes that the
    /// kubelet waits for one.
    fn apply_in_turn(&self) -> Result<()> {
        self.tell.say("waiting for the controller and the probes, then for one workload after another");
        operator::wait(&self.bed)?;
        for name in EVERYWHERE {
            self.bed.apply(&some_workloads(&[name]))?;
            let what = format!("daemonset/{name}");
            self.bed.kubectl(&["-n", NAMESPACE, "rollout", "status", &what, "--timeout=900s"])?;
        }
        Ok(())
    }

    /// Applies one policy. Where it is for the pods of some namespaces, that of the demo is one more.
    pub(super) fn apply_policy(&self, file: &str) -> Result<()> {
        let mut policy = shipped_policy(file)?;
        let mut added = String::new();
        for rule in policy["spec"]["rules"].as_array_mut().into_iter().flatten() {
            if let Some(namespaces) = rule["match"]["namespaces"].as_array_mut() {
                namespaces.push(Value::from(NAMESPACE));
                added = format!(", with namespace {NAMESPACE} added");
            }
        }
        self.tell.say(&format!("a GitOps change: kubectl apply -f config/policies/{file}{added}"));
        self.bed.apply(&policy)
    }

    /// Whether the sick node's object names a fault as confirmed.
    pub(super) fn confirmed(&self, fault: &str) -> bool {
        let Ok(health) = operator::health(&self.bed, &self.sick.name) else { return false };
        operator::faults(&health).any(|found| found["type"] == fault && found["state"] == "Confirmed")
    }

    /// Seconds from then to when a remediation was opened on the sick node for such a fault, if one was since.
    pub(super) fn opened(&self, fault: &str, since: Timestamp) -> Option<f64> {
        let all = operator::remediations(&self.bed).ok()?;
        let is_for = |remediation: &&Value| {
            let faults = remediation["status"]["faults"].as_array();
            remediation["spec"]["nodeName"] == *self.sick.name
                && faults.is_some_and(|all| all.iter().any(|one| one["type"] == fault))
        };
        let opened = all.iter().filter(is_for).filter_map(|remediation| remediation["status"]["startedAt"].as_str());
        let after = opened.filter_map(|at| Some(at.parse::<Timestamp>().ok()?.duration_since(since).as_secs_f64()));
        after.filter(|seconds| *seconds >= 0.0).reduce(f64::min)
    }

    pub(super) fn show_health(&self) {
        let (sick, well) = (self.sick.name.as_str(), self.well.name.as_str());
        self.print(&format!("kubectl get nrh {sick} {well}"), &["get", "nrh", sick, well]);
    }

    pub(super) fn show_remediations(&self) {
        self.print("kubectl get nrem", &["get", "nrem"]);
    }

    /// What `nrh explain` says of the sick node.
    pub(super) fn show_explanation(&self) {
        if self.tell.is_silent() {
            return;
        }
        self.tell.say(&format!("nrh explain {}", self.sick.name));
        match self.bed.command(&self.programs.nrh).args(["explain", &self.sick.name]).output() {
            Ok(output) => self.tell.show(&String::from_utf8_lossy(&output.stdout)),
            Err(error) => self.tell.show(&format!("{}: {error}", self.programs.nrh.display())),
        }
    }

    /// What helps to find out why something did not work.
    pub(super) fn show_details(&self) {
        self.print("kubectl describe nrh", &["describe", "nrh", &self.sick.name]);
        self.print("kubectl get nrem -o yaml", &["get", "nrem", "-o", "yaml"]);
        self.print(
            "kubectl get pods",
            &["get", "pods", "-A", "-o", "wide", "--field-selector", &format!("spec.nodeName={}", self.sick.name)],
        );
        self.print(
            "controller",
            &["-n", "nrh-system", "logs", "-l", "app.kubernetes.io/component=controller", "--tail", "40", "--prefix"],
        );
    }

    pub(super) fn print(&self, title: &str, args: &[&str]) {
        if self.tell.is_silent() {
            return;
        }
        self.tell.say(title);
        match self.bed.kubectl(args) {
            Ok(text) => self.tell.show(&text),
            Err(error) => self.tell.show(&format!("{error:#}")),
        }
    }

    /// What the operator may write about nodes of other stages.
    pub(super) fn writes_elsewhere(&self) -> Vec<Write> {
        let others = self.bed.nodes().iter().filter(|node| self.shared && !self.is_own(Some(&node.name)));
        others.flat_map(|node| Write::jobs(&node.name)).collect()
    }

    /// What API, runtime and kernel show now.
    pub(super) fn snapshot(&self) -> Result<Snapshot> {
        let taken = Snapshot::take(&self.bed, &[&self.sick, &self.well])?;
        Ok(if self.shared { taken.of_its_nodes() } else { taken })
    }

    /// Waits until every pod of the real nodes that should run does, and no Job of the operator does.
    pub(super) fn settle(&self) -> Result<()> {
        wait("all pods run", || {
            let pods = view::pods(&self.bed, None)?;
            let runs =
                |pod: &Pod| pod.phase == "Succeeded" || pod.name.starts_with("crash-") || (pod.ready && !pod.deleting);
            let own = pods.iter().filter(|pod| self.is_own(pod.node.as_deref()));
            let others: Vec<_> =
                own.filter(|pod| !runs(pod)).map(|pod| format!("{} ({})", pod.name, pod.phase)).collect();
            ensure!(others.is_empty(), "these do not: {}", others.join(", "));
            Ok(true)
        })?;
        wait("no remediation is open", || {
            let path = r#"jsonpath={range .items[*]}{.spec.nodeName} {.status.phase}{"\n"}{end}"#;
            let text = self.bed.kubectl(&["get", "nrem", "-o", path])?;
            let open = |line: &str| {
                let mut words = line.split_whitespace();
                let own = self.is_own(words.next()) || !self.shared;
                own && matches!(words.next(), Some("Pending" | "Running" | "Verifying"))
            };
            Ok(!text.lines().any(open))
        })
    }

    /// The pod of a DaemonSet on the sick node that is not being deleted.
    pub(super) fn pod_of(&self, daemon_set: &str) -> Result<Option<Pod>> {
        let pods = view::pods(&self.bed, Some(&self.sick.name))?;
        Ok(pods
            .into_iter()
            .find(|pod| pod.namespace == NAMESPACE && pod.owner.as_deref() == Some(daemon_set) && !pod.deleting))
    }

    /// A pod by uid, also one that is being deleted.
    pub(super) fn pod_by_uid(&self, uid: &str) -> Result<Option<Pod>> {
        Ok(view::pods(&self.bed, Some(&self.sick.name))?.into_iter().find(|pod| pod.uid == uid))
    }

    /// Whether the DaemonSet's pod on the sick node is another one than `old` (if given) and really runs.
    pub(super) fn daemon_set_runs(&self, daemon_set: &str, old: Option<&str>) -> Result<bool> {
        let Some(pod) = self.pod_of(daemon_set)? else { return Ok(false) };
        Ok(old != Some(pod.uid.as_str()) && view::pod_runs(&self.bed, &self.sick, &pod.uid)?.is_ok())
    }

    /// Waits until the DaemonSet's pod on the sick node runs; returns it.
    pub(super) fn running_pod(&self, daemon_set: &str) -> Result<Pod> {
        wait(&format!("a pod of {daemon_set} runs on {}", self.sick.name), || self.daemon_set_runs(daemon_set, None))?;
        self.pod_of(daemon_set)?.with_context(|| format!("the pod of {daemon_set} is gone"))
    }

    /// Deletes a pod and does not wait.
    pub(super) fn delete_pod(&self, pod: &Pod) -> Result<()> {
        self.bed.kubectl(&["-n", &pod.namespace, "delete", "pod", &pod.name, "--wait=false"]).map(drop)
    }

    /// Reads one field of the sick Node.
    pub(super) fn node_field(&self, path: &str) -> Result<String> {
        self.bed.kubectl(&["get", "node", &self.sick.name, "-o", &format!("jsonpath={path}")])
    }
}

/// The operator's own word on its default thresholds.
pub(super) fn thresholds(nrh: &Path) -> Result<BTreeMap<String, u64>> {
    let output = Command::new(nrh)
        .args(["generate", "thresholds"])
        .output()
        .with_context(|| format!("run {}", nrh.display()))?;
    serde_json::from_slice(&output.stdout).with_context(|| format!("{} thresholds", nrh.display()))
}
