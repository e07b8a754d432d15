//! The objects that an explanation is made from, read from the cluster or from a file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ObjectMeta;
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;

use nrh_api::convert::{self, Invalid};
use nrh_api::health::{CollectorState, CollectorStatus, Summary};
use nrh_api::plain::plain;
use nrh_api::view::guard::{BoundedStatus, Guarded};
use nrh_api::view::{command, node, pods, report};
use nrh_api::{
    NodeCommand, NodeRemediation, NodeRuntimeHealth, RemediationConfig, RemediationPolicy, Suspend, WrittenFlap,
};
use nrh_caller::ClusterArgs;
use nrh_caller::{DEADLINE, client, code, list, objects_in};
use nrh_core::condition_history::ConditionHistory;
use nrh_core::external_condition::ObservedCondition;
use nrh_core::fault::{Fault, MAX_LINE, PodRef};
use nrh_core::flap::{Flap, FlapView};
use nrh_core::matching::{PodSeen, pod_of};
use nrh_core::policy::Policy;
use nrh_core::policy::{asked_keys, asks_of_pods};
use nrh_core::snapshot::{CommandView, Ledger, Slot, Snapshot, TriState, UnreadableRemediation};
use nrh_core::text::bounded;

/// Largest number of pods that are read one by one.
const MAX_PODS: usize = 500;

/// All objects that a decision is made from, as far as the caller may read them.
#[derive(Debug, Default)]
pub struct Objects {
    nodes: Vec<Node>,
    healths: Vec<NodeRuntimeHealth>,
    /// By node, including those that cannot be read.
    commands: BTreeMap<String, CommandView>,
    policies: Vec<RemediationPolicy>,
    configs: Vec<RemediationConfig>,
    /// Why an unreadable config suspends all remediation.
    suspended: Option<String>,
    remediations: Vec<NodeRemediation>,
    /// Pods that faults name, as far as they were read.
    pods: Vec<Pod>,
    /// Pods that faults name and that no longer exist.
    gone: BTreeSet<PodRef>,
    /// Objects that cannot be read, one sentence each.
    unreadable: Vec<String>,
    /// The unreadable reports, and why. Their nodes are blocked, as by the controller.
    broken: Vec<(ObjectMeta, String)>,
    /// The unreadable remediations. Their nodes are blocked, too.
    lost: BTreeMap<String, UnreadableRemediation>,
}

/// What the controller has written about a node.
#[derive(Debug, Default)]
pub struct Told {
    /// Faults that it has found from API state.
    pub faults: Vec<Fault>,
    /// Its summary.
    pub summary: Option<Summary>,
    /// What it blocks, one line each.
    pub blocked: Vec<String>,
    /// Collectors of the probe that cannot check now.
    pub blind: Vec<CollectorStatus>,
    /// What the probe lacks, one line each.
    pub missing: Vec<String>,
    /// Whether the node's report cannot be read.
    pub is_unreadable: bool,
}

impl Objects {
    /// Reads the objects from a file, or from the cluster to explain a node. Returns with them the moment of the explanation:
    /// for saved objects the moment when they were saved, as far as they show it.
    pub async fn load(
        file: Option<&Path>,
        node: Option<&str>,
        cluster: &ClusterArgs,
    ) -> anyhow::Result<(Self, Timestamp)> {
        let Some(path) = file else {
            return Ok((Self::fetch_by(client(cluster).await?, node).await?, Timestamp::now()));
        };
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let objects = Self::parse(&text).with_context(|| format!("cannot use {}", path.display()))?;
        let saved = objects.newest().unwrap_or_else(Timestamp::now);
        Ok((objects, saved))
    }

    /// Reads the output of `kubectl get nodes,nrh,ncmd,rmp,rmc,nrem -o yaml` (or json).
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let mut objects = Self::default();
        for item in objects_in(text)? {
            let kind = item.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
            let name = item.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
            match kind.as_str() {
                "Node" => {
                    let read = objects.read(&kind, item);
                    objects.nodes.extend(read);
                }
                "NodeRuntimeHealth" => {
                    let read = objects.read(&kind, item);
                    objects.healths.extend(read);
                }
                "NodeCommand" => {
                    let read = objects.read(&kind, item);
                    objects.command(read.into_iter());
                }
                "RemediationPolicy" => {
                    let read = objects.read(&kind, item);
                    objects.policies.extend(read);
                }
                "RemediationConfig" => {
                    let read = objects.read(&kind, item);
                    objects.configs.extend(read);
                }
                "NodeRemediation" => {
                    let read = objects.read(&kind, item);
                    objects.remediations.extend(read);
                }
                "Pod" => {
                    let read = objects.read(&kind, item);
                    objects.pods.extend(read);
                }
                _ => {
                    let group =
                        item.get("apiVersion").and_then(Value::as_str).and_then(|version| version.split('/').next());
                    if group == Some("runtimehealth.io") {
                        let (kind, name) = (bounded(&kind, 63), bounded(&name, 253));
                        objects.unreadable.push(format!(
                            "{kind} {name} is skipped: expected NodeRuntimeHealth, NodeCommand, RemediationPolicy, RemediationConfig or NodeRemediation"
                        ));
                    }
                }
            }
        }
        if objects.nodes.is_empty() && objects.healths.is_empty() {
            let found = match objects.unreadable.as_slice() {
                [] => String::new(),
                broken => format!("; {}", broken.join("; ")),
            };
            bail!(
                "expected a list with Nodes and NodeRuntimeHealths, such as `kubectl get nodes,nrh,ncmd,rmp,rmc,nrem -o yaml` prints{found}"
            );
        }
        Ok(objects)
    }

    /// Records an object that cannot be read; the others are still used.
    fn refuse(&mut self, kind: &str, metadata: ObjectMeta, error: &str) {
        let name = metadata.name.as_deref().unwrap_or("without a name");
        let shown = if kind == "RemediationPolicy" { "policy" } else { kind };
        self.unreadable.push(bounded(&format!("{shown} {name} cannot be used: {error}"), MAX_LINE));
        if kind == "NodeRemediation" {
            self.lost.insert(name.to_owned(), convert::unreadable_remediation(&metadata, error));
        }
        if kind == "RemediationConfig" {
            self.suspended = Some(format!("it cannot be read: {error}"));
        }
        if kind == "NodeCommand" {
            self.commands.insert(name.to_owned(), command::unreadable(&metadata, error));
        }
        if kind == "NodeRuntimeHealth" {
            self.broken.push((metadata, error.to_owned()));
        }
    }

    /// The object, if it can be read; otherwise the error is recorded.
    fn read<K: BoundedStatus + DeserializeOwned>(&mut self, kind: &str, object: Value) -> Option<K> {
        // Text from a node must not pass for a line of this program.
        let object = Guarded::read(&plain(object, usize::MAX));
        object.0.map_err(|bad| self.refuse(kind, bad.metadata, &bad.why)).ok()
    }

    /// Adds commands that can be read.
    fn command(&mut self, commands: impl Iterator<Item = NodeCommand>) {
        self.commands.extend(commands.map(|object| (object.name_any(), command::view(&object))));
    }

    /// The items that can be read.
    fn readable<K: BoundedStatus + DeserializeOwned>(&mut self, kind: &str, items: Vec<Value>) -> Vec<K> {
        items.into_iter().filter_map(|item| self.read(kind, item)).collect()
    }

    async fn fetch_by(client: Client, node: Option<&str>) -> anyhow::Result<Self> {
        let what =
            |kind: &str| format!("cannot list {kind}{}", node.map_or_else(String::new, |n| format!(" to explain {n}")));
        let mut objects = Self::default();
        let nodes = list::<Node>(client.clone()).await.with_context(|| what("nodes"))?;
        objects.nodes = objects.readable("Node", nodes);
        let healths = list::<NodeRuntimeHealth>(client.clone()).await.with_context(|| what("noderuntimehealths"))?;
        objects.healths = objects.readable("NodeRuntimeHealth", healths);
        let commands = list::<NodeCommand>(client.clone()).await.with_context(|| what("nodecommands"))?;
        let commands = objects.readable("NodeCommand", commands);
        objects.command(commands.into_iter());
        let policies = list::<RemediationPolicy>(client.clone()).await.with_context(|| what("remediationpolicies"))?;
        objects.policies = objects.readable("RemediationPolicy", policies);
        match list::<RemediationConfig>(client.clone()).await {
            Ok(configs) => objects.configs = objects.readable("RemediationConfig", configs),
            // An older installation has none of them, and an older role does not let them be read.
            Err(error) if code(&error) == Some(404) => {}
            Err(error) if code(&error) == Some(403) => objects.unreadable.push(
                "it is not known whether all remediation is suspended: no right to list remediationconfigs".to_owned(),
            ),
            Err(error) => return Err(error.context(what("remediationconfigs"))),
        }
        let remediations = list::<NodeRemediation>(client.clone()).await.with_context(|| what("noderemediations"))?;
        objects.remediations = objects.readable("NodeRemediation", remediations);
        objects.fetch_pods(client, node).await;
        Ok(objects)
    }

    /// Reads the pods that faults name: to explain a node, only where a policy asks for them; for a recording, all of them.
    /// What cannot be read stays unknown, as for the controller.
    async fn fetch_pods(&mut self, client: Client, node: Option<&str>) {
        let policies: Vec<Policy> = self.policies.iter().filter_map(|object| convert::policy(object).ok()).collect();
        if node.is_some() && !asks_of_pods(&policies) {
            return;
        }
        let named = self.named_pods(node);
        if named.len() > MAX_PODS {
            let count = named.len();
            self.unreadable.push(format!("of {count} pods that faults name only {MAX_PODS} are read"));
        }
        for named in named.into_iter().take(MAX_PODS) {
            let api: Api<Pod> = Api::namespaced(client.clone(), &named.namespace);
            match tokio::time::timeout(DEADLINE, api.get_opt(&named.name)).await {
                Ok(Ok(Some(pod))) if pods::names(&pod).any(|name| name == named) => self.pods.push(pod),
                Ok(Ok(_)) => drop(self.gone.insert(named)),
                // The other pods are most likely unreadable, too.
                Ok(Err(error)) => {
                    self.unreadable.push(format!("the labels of pods are not known: reading pod {named}: {error}"));
                    return;
                }
                Err(_) => {
                    self.unreadable
                        .push(format!("the labels of pods are not known: no answer for pod {named} in time"));
                    return;
                }
            }
        }
    }

    /// The pods that faults name, of one node or of all.
    fn named_pods(&self, node: Option<&str>) -> BTreeSet<PodRef> {
        let is_meant = |name: &str| node.is_none_or(|node| node == name);
        let reports = self.healths.iter().filter(|object| is_meant(&object.name_any()));
        let faults = reports.filter_map(|object| object.status.as_ref()).flat_map(|status| &status.faults);
        let remediations = self.remediations.iter().filter(|object| is_meant(&object.spec.node_name));
        let past = remediations.filter_map(|object| object.status.as_ref()).flat_map(|status| &status.faults);
        faults.filter_map(pod_of).chain(past.filter_map(|fault| fault.subject.pod.as_ref())).cloned().collect()
    }

    /// What is known of the pods that were read: all their labels, and which labels that policies ask for they lack.
    fn pods_seen(&self, policies: &[Policy]) -> BTreeMap<PodRef, PodSeen> {
        let asked = asked_keys(policies);
        let gone = self.gone.iter().map(|pod| (pod.clone(), PodSeen::Gone));
        let read = self.pods.iter().flat_map(|pod| {
            let labels = pod.metadata.labels.iter().flatten().map(|(key, _)| key.clone());
            let seen = PodSeen::Read(pods::traits(pod, &asked.iter().cloned().chain(labels).collect()));
            pods::names(pod).map(move |name| (name, seen.clone()))
        });
        gone.chain(read).collect()
    }

    /// All nodes among the objects, those with a report first.
    pub fn node_names(&self) -> Vec<String> {
        let broken = self.broken.iter().filter_map(|(metadata, _)| metadata.name.clone());
        let mut names: Vec<String> = self.healths.iter().map(ResourceExt::name_any).chain(broken).collect();
        let reported: BTreeSet<String> = names.iter().cloned().collect();
        names.extend(self.nodes.iter().map(ResourceExt::name_any).filter(|name| !reported.contains(name)));
        names
    }

    /// The newest time that the objects name: they were saved at that time, or later.
    pub fn newest(&self) -> Option<Timestamp> {
        let reports = self.healths.iter().flat_map(|object| {
            let conditions = object.status.iter().flat_map(|status| &status.conditions);
            conditions.map(|condition| condition.last_transition_time.0).chain(heartbeat(object))
        });
        let nodes = self.nodes.iter().flat_map(|node| {
            let conditions = node.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
            conditions.filter_map(|condition| condition.last_heartbeat_time.as_ref()).map(|time| time.0)
        });
        reports.chain(nodes).max()
    }

    /// What the controller has written about a node. Only the controller reads pods.
    pub fn told(&self, node: &str) -> Told {
        let status =
            self.healths.iter().find(|object| object.name_any() == node).and_then(|object| object.status.clone());
        let is_unreadable = self.broken.iter().any(|(metadata, _)| metadata.name.as_deref() == Some(node));
        let Some(status) = status else { return Told { is_unreadable, ..Told::default() } };
        let (collectors, missing) =
            status.probe.map(|probe| (probe.collectors, probe.missing_capabilities)).unwrap_or_default();
        Told {
            blind: collectors
                .into_iter()
                .filter(|collector| !matches!(collector.state, CollectorState::Ok | CollectorState::Starting))
                .collect(),
            missing,
            is_unreadable,
            faults: status.cluster_faults,
            summary: status.summary,
            blocked: status.remediation.map(|remediation| remediation.blocked).unwrap_or_default(),
        }
    }

    /// The snapshot as of `now`, and the errors of objects that cannot be used.
    pub fn snapshot(&self, now: Timestamp) -> (Snapshot, Vec<String>) {
        let mut invalid = self.unreadable.clone();
        // The rights of the controller are not checked here, as with hand-offs.
        let mut snapshot = Snapshot { now, ceiling: u32::MAX, may_evict: TriState::True, ..Snapshot::default() };
        snapshot.suspended = self.suspended.clone().or_else(|| self.configs.iter().find_map(Suspend::veto));
        for object in &self.nodes {
            snapshot.nodes.insert(object.name_any(), node::view(object));
        }
        for object in &self.healths {
            let mut view = report::view(object);
            // The controller measures arrival by its own clock; the caller has only the times in the object.
            let age = heartbeat(object).and_then(|at| now.duration_since(at).try_into().ok()).unwrap_or(Duration::ZERO);
            if let Some(beat) = view.heartbeat.as_mut() {
                beat.arrived = age;
            }
            for reported in &mut view.faults {
                reported.looked = reported.looked.saturating_add(age);
            }
            snapshot.reports.insert(object.name_any(), view);
            match flap(object, &snapshot) {
                Ok(Some(flap)) => drop(snapshot.flaps.insert(object.name_any(), flap)),
                Ok(None) => {}
                Err(why) => {
                    let name = object.name_any();
                    invalid.push(format!("status.flapping of NodeRuntimeHealth {name} is not used: {why}"));
                }
            }
        }
        for (metadata, error) in &self.broken {
            let view = report::unreadable(metadata, error);
            snapshot.reports.insert(metadata.name.clone().unwrap_or_default(), view);
        }
        snapshot.commands.clone_from(&self.commands);
        for object in &self.policies {
            match convert::policy(object) {
                Ok(policy) => snapshot.policies.push(policy),
                Err(Invalid(errors)) => {
                    invalid.push(format!("policy {} cannot be used: {}", object.name_any(), errors.join("; ")));
                }
            }
        }
        let mut ledger = Ledger::default();
        for object in &self.remediations {
            if let Some(manual) = convert::manual(object) {
                snapshot.manual_requests.insert(manual.name.clone(), manual);
                continue;
            }
            let remediation = convert::remediation(object);
            if remediation.is_open() {
                let slot = Slot {
                    node: remediation.node.clone(),
                    policy: remediation.policy.clone(),
                    taken_at: remediation.started_at,
                    kinds: None,
                };
                ledger.slots.insert(remediation.name.clone(), slot);
            }
            snapshot.remediations.insert(remediation.name.clone(), remediation);
        }
        snapshot.ledger = Some(ledger);
        snapshot.unreadable = self.lost.clone();
        snapshot.noticed = self.noticed(&snapshot);
        snapshot.pods_seen = self.pods_seen(&snapshot.policies);
        (snapshot, invalid)
    }

    /// Conditions that policies ask for. Only the controller knows how long they have been there: one that it has not written
    /// down yet counts as new.
    fn noticed(&self, snapshot: &Snapshot) -> BTreeMap<String, Vec<ObservedCondition>> {
        let mut notices = ConditionHistory::default();
        for (node, view) in &snapshot.nodes {
            notices.note(node, view, &snapshot.policies, Duration::ZERO);
        }
        let mut all = notices.noticed(Duration::ZERO, snapshot.now);
        for (node, noticed) in &mut all {
            let told = self.told(node).faults;
            for one in noticed {
                let id = one.id(node);
                let Some(known) = told.iter().find(|fault| fault.id == id) else { continue };
                one.first_seen = known.first_seen;
                let lasted = Duration::try_from(snapshot.now.duration_since(known.first_seen)).unwrap_or_default();
                for of in one.lasted.values_mut() {
                    (of.unbroken, of.all_in_all) = (lasted, lasted);
                }
            }
        }
        all
    }
}

/// How the node flaps, as the controller has last written it. The rest of the history only the controller knows.
fn flap(object: &NodeRuntimeHealth, snapshot: &Snapshot) -> Result<Option<FlapView>, String> {
    let written = object.status.as_ref().and_then(|status| status.flapping.as_ref()).map(WrittenFlap::read);
    let Some(record) = written else { return Ok(None) };
    let record = record.map_err(ToOwned::to_owned)?;
    let view = snapshot.nodes.get(&object.name_any());
    let Some(view) = view.filter(|view| report::owner(&object.metadata).as_ref() == Some(&view.uid)) else {
        return Ok(None);
    };
    let stands = (view.ready, view.ready_since);
    let flap = Flap::restored(record, None, (stands, stands), 0, snapshot.now)?;
    Ok(flap.settled(0).map(|flap| FlapView {
        record: record.clone(),
        flapping: flap.is_flapping().then(|| flap.lasted(0)),
        unchanged: Duration::from_secs(u64::try_from(flap.unchanged_for(0)).unwrap_or(0)),
        stayed: Vec::new(),
    }))
}

fn heartbeat(object: &NodeRuntimeHealth) -> Option<Timestamp> {
    object.status.as_ref()?.probe.as_ref()?.heartbeat_at
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// An API server with these items in each list.
    fn server(items: impl Fn(&str) -> Value + Clone + Send + 'static) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let kind = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items(&kind)});
            async move { Ok::<_, std::convert::Infallible>(Response::new(Body::from(list.to_string().into_bytes()))) }
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn one_live_object_that_cannot_be_read_is_named_and_the_others_are_looked_at() {
        let named = |name: &str, uid: &str| json!({"name": name, "uid": uid, "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]});
        let client = server(move |kind| match kind {
            "nodes" => {
                json!([{"metadata": named("w1", "u1")}, {"metadata": named("w2", "u2")}, {"metadata": named("w3", "u3"), "spec": 7}])
            }
            "noderuntimehealths" => json!([
                {"metadata": named("w1", "u1"), "spec": {}, "status": {"faults": [{"type": "OfAnotherVersion"}]}},
                {"metadata": named("w2", "u2"), "spec": {}, "status": {"flapping": "often"}},
            ]),
            "nodecommands" => json!([{"metadata": named("w2", "u2"), "spec": {"command": {"action": "ReformatDisk"}}}]),
            "remediationpolicies" => json!([{"metadata": {"name": "p"}, "spec": {"rules": "none"}}]),
            "remediationconfigs" => json!([{"metadata": {"name": "cluster"}, "spec": {"suspend": "perhaps"}}]),
            _ => json!([{"metadata": {"name": "e"}, "spec": {"nodeName": []}}]),
        });
        let objects = Objects::fetch_by(client, Some("w2")).await.unwrap();
        assert_eq!(objects.node_names(), ["w2", "w1"]);
        let (snapshot, invalid) = objects.snapshot(Timestamp::UNIX_EPOCH);
        assert_eq!(snapshot.nodes.keys().collect::<Vec<_>>(), ["w1", "w2"]);
        for said in [
            "Node w3 cannot be used: ",
            "NodeRuntimeHealth w1 cannot be used: ",
            "NodeCommand w2 cannot be used: ",
            "policy p cannot be used: ",
            "RemediationConfig cluster cannot be used: ",
            "NodeRemediation e cannot be used: ",
            "status.flapping of NodeRuntimeHealth w2 is not used: expected a history of changes: ",
        ] {
            assert!(invalid.iter().any(|line| line.starts_with(said)), "{said}: {invalid:?}");
        }
        assert_eq!(invalid.len(), 7);
        // As by the controller: the node is blocked, and no condition counts as clean.
        assert!(snapshot.suspended.as_ref().unwrap().contains("cannot be read"));
        assert!(snapshot.reports["w1"].suspended.as_ref().unwrap().contains("cannot be read"));
        assert!(snapshot.commands["w2"].unreadable.as_ref().unwrap().contains("ReformatDisk"));
        assert!(snapshot.reports["w2"].suspended.is_none() && snapshot.flaps.is_empty());
    }

    #[test]
    fn what_cannot_be_read_in_a_file_is_named_with_the_reason() {
        let broken = "{apiVersion: runtimehealth.io/v1alpha1, kind: NodeRuntimeHealth, metadata: {name: w1}, spec: {suspend: maybe}}";
        let error = Objects::parse(broken).unwrap_err().to_string();
        assert!(error.contains("NodeRuntimeHealth w1 cannot be used") && error.contains("maybe"), "{error}");
        let list =
            "{items: [{kind: Node, metadata: {name: w1}}, {kind: ConfigMap, apiVersion: v1, metadata: {name: c}},
            {kind: RemediationPolciy, apiVersion: runtimehealth.io/v1alpha1, metadata: {name: p}}]}";
        let found = Objects::parse(list).unwrap().unreadable;
        assert_eq!(found.len(), 1, "{found:?}");
        let documents = "{kind: Node, metadata: {name: w1}}\n---\n{kind: Node, metadata: {name: w2}}\n";
        assert_eq!(Objects::parse(documents).unwrap().node_names(), ["w1", "w2"]);
        // As in a live cluster: the readable part of its metadata is enough to block its node.
        let broken = "{items: [{kind: Node, metadata: {name: w1}}, {kind: NodeRemediation, metadata: {name: e1, creationTimestamp: \
            '9999-12-31T23:59:59Z', labels: {runtimehealth.io/node: w1}, finalizers: [runtimehealth.io/remediation]}}]}";
        let blocked = &Objects::parse(broken).unwrap().lost["e1"];
        assert_eq!((blocked.node.as_deref(), blocked.is_open), (Some("w1"), true));
        assert!(found[0].starts_with("RemediationPolciy p is skipped: expected"), "{found:?}");
    }
}
