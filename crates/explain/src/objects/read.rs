//! Reads the objects from a file or from the cluster.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::Value;

use super::Objects;
use nrh_api::plain::plain;
use nrh_api::view::guard::Guarded;
use nrh_api::view::report::owner;
use nrh_api::view::{View, pods};
use nrh_api::{NodeCommand, NodeRemediation, NodeRuntimeHealth, RemediationConfig, RemediationPolicy};
use nrh_caller::{ClusterArgs, DEADLINE, client, code, error_text, list, objects_in};
use nrh_core::fault::{MAX_LINE, PodRef};
use nrh_core::matching::pod_of;
use nrh_core::policy::asks_of_pods;
use nrh_core::text::bounded;

/// Largest number of pods that are read one by one.
const MAX_PODS: usize = 500;

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
        let is_input = path.as_os_str() == "-";
        let shown = if is_input { "standard input".to_owned() } else { path.display().to_string() };
        let text = if is_input { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(path) };
        let objects = Self::parse(&text.with_context(|| format!("cannot read {shown}"))?)
            .with_context(|| format!("cannot use {shown}"))?;
        let saved = objects.newest().unwrap_or_else(Timestamp::now);
        Ok((objects, saved))
    }

    /// Reads the output of `kubectl get nodes,nrh,ncmd,rmp,rmc,nrem -o yaml` (or json).
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let mut objects = Self::default();
        for item in objects_in(text)? {
            let kind = item.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
            objects.add(&kind, item);
        }
        if objects.statuses.is_empty() && objects.read.nodes.values().all(|node| node.unreadable.is_some()) {
            let found = match objects.unusable.as_slice() {
                [] => String::new(),
                broken => format!("; {}", broken.join("; ")),
            };
            bail!(
                "expected a list with Nodes and NodeRuntimeHealths, such as `kubectl get nodes,nrh,ncmd,rmp,rmc,nrem -o yaml` prints{found}"
            );
        }
        Ok(objects)
    }

    /// Adds an object of a kind that explanations are made from. One that cannot be read is recorded.
    fn add(&mut self, kind: &str, item: Value) {
        match kind {
            "Node" => {
                let status = self.store::<Node>(kind, item).and_then(|node| node.status);
                let conditions = status.and_then(|status| status.conditions).unwrap_or_default();
                self.date(conditions.iter().filter_map(|one| one.last_heartbeat_time.as_ref()).map(|time| time.0));
            }
            "NodeRuntimeHealth" => {
                let Some(object) = self.store::<NodeRuntimeHealth>(kind, item) else { return };
                let (name, owner) = (object.name_any(), owner(&object.metadata));
                let status = object.status.unwrap_or_default();
                self.date(status.conditions.iter().map(|condition| condition.last_transition_time.0));
                self.date(status.probe.iter().filter_map(|probe| probe.heartbeat_at));
                self.statuses.insert(name, (owner, status));
            }
            "NodeCommand" => drop(self.store::<NodeCommand>(kind, item)),
            "RemediationPolicy" => drop(self.store::<RemediationPolicy>(kind, item)),
            "RemediationConfig" => drop(self.store::<RemediationConfig>(kind, item)),
            "NodeRemediation" => drop(self.store::<NodeRemediation>(kind, item)),
            "Pod" => match Guarded::read(&plain(item, usize::MAX)).0 {
                Ok(pod) => self.pods.push(pod),
                Err(bad) => self.refuse(kind, bad.metadata.name.as_deref(), &bad.why),
            },
            _ => self.skip(kind, &item),
        }
    }

    fn date(&mut self, times: impl Iterator<Item = Timestamp>) {
        self.newest = self.newest.into_iter().chain(times).max();
    }

    /// Stores an object, or that it cannot be read. Returns the object if it can be.
    fn store<K: View + Resource>(&mut self, kind: &str, item: Value) -> Option<K> {
        // Text from a node must not pass for a line of this program.
        let object = Guarded::<K>::read(&plain(item, usize::MAX));
        let name = object.meta().name.clone();
        let key = name.as_deref().unwrap_or_default();
        match object.0 {
            Ok(object) => {
                object.store(key, &mut self.read);
                let errors = object.errors();
                if !errors.is_empty() {
                    self.refuse(kind, name.as_deref(), &errors.join("; "));
                }
                Some(object)
            }
            Err(bad) => {
                K::store_unreadable(&bad, key, &mut self.read);
                self.refuse(kind, name.as_deref(), &bad.why);
                None
            }
        }
    }

    /// Records an object of our API group that no explanation uses. One of another group is ignored.
    fn skip(&mut self, kind: &str, item: &Value) {
        let group = item.get("apiVersion").and_then(Value::as_str).and_then(|version| version.split('/').next());
        if group == Some("runtimehealth.io") {
            let name = item.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            let (kind, name) = (bounded(kind, 63), bounded(name, 253));
            self.unusable.push(format!(
                "{kind} {name} is skipped: expected NodeRuntimeHealth, NodeCommand, RemediationPolicy, RemediationConfig or NodeRemediation"
            ));
        }
    }

    /// Records an object that cannot be used; the others are still used.
    fn refuse(&mut self, kind: &str, name: Option<&str>, error: &str) {
        let name = name.unwrap_or("without a name");
        let shown = if kind == "RemediationPolicy" { "policy" } else { kind };
        self.unusable.push(bounded(&format!("{shown} {name} cannot be used: {error}"), MAX_LINE));
    }

    pub(super) async fn fetch_by(client: Client, node: Option<&str>) -> anyhow::Result<Self> {
        let mut objects = Self::default();
        objects.fetch::<Node>(&client, node).await?;
        objects.fetch::<NodeRuntimeHealth>(&client, node).await?;
        objects.fetch::<NodeCommand>(&client, node).await?;
        objects.fetch::<RemediationPolicy>(&client, node).await?;
        match objects.fetch::<RemediationConfig>(&client, node).await {
            // An older installation has none of them, and an older role does not let them be read.
            Err(error) if code(&error) == Some(404) => {}
            Err(error) if code(&error) == Some(403) => objects.unusable.push(
                "it is not known whether all remediation is suspended: no right to list remediationconfigs".to_owned(),
            ),
            answer => answer?,
        }
        objects.fetch::<NodeRemediation>(&client, node).await?;
        objects.fetch_pods(client, node).await;
        Ok(objects)
    }

    /// Adds all objects of a kind, to explain a node.
    async fn fetch<K: Resource<DynamicType = ()>>(
        &mut self,
        client: &Client,
        node: Option<&str>,
    ) -> anyhow::Result<()> {
        let items = list::<K>(client.clone()).await.with_context(|| {
            format!("cannot list {}{}", K::plural(&()), node.map_or_else(String::new, |n| format!(" to explain {n}")))
        })?;
        for item in items {
            self.add(&K::kind(&()), item);
        }
        Ok(())
    }

    /// Reads the pods that faults name: to explain a node, only where a policy asks for them; for a recording, all of them.
    /// What cannot be read stays unknown, as for the controller.
    async fn fetch_pods(&mut self, client: Client, node: Option<&str>) {
        if node.is_some() && !asks_of_pods(&self.read.policies) {
            return;
        }
        let named = self.named_pods(node);
        if named.len() > MAX_PODS {
            let count = named.len();
            self.unusable.push(format!("of {count} pods that faults name only {MAX_PODS} are read"));
        }
        for named in named.into_iter().take(MAX_PODS) {
            let api: Api<Guarded<Pod>> = Api::namespaced(client.clone(), &named.namespace);
            match tokio::time::timeout(DEADLINE, api.get_opt(&named.name)).await {
                Ok(Ok(Some(Guarded(Ok(pod))))) if pods::names(&pod).any(|name| name == named) => self.pods.push(pod),
                Ok(Ok(Some(Guarded(Err(bad))))) => {
                    self.unusable.push(format!("the labels of pod {named} are not known: {}", bad.why));
                }
                Ok(Ok(_)) => drop(self.gone.insert(named)),
                // The other pods are most likely unreadable, too.
                Ok(Err(error)) => {
                    let error = error_text(&error.into());
                    self.unusable.push(format!("the labels of pods are not known: reading pod {named}: {error}"));
                    return;
                }
                Err(_) => {
                    self.unusable.push(format!("the labels of pods are not known: no answer for pod {named} in time"));
                    return;
                }
            }
        }
    }

    /// The pods that faults name, of one node or of all.
    fn named_pods(&self, node: Option<&str>) -> BTreeSet<PodRef> {
        let is_meant = |name: &str| node.is_none_or(|node| node == name);
        let reports = self.read.reports.iter().filter(|(name, _)| is_meant(name));
        let faults = reports.flat_map(|(_, report)| &report.faults).filter_map(|seen| pod_of(&seen.fault));
        let remediations = self.read.remediations.values().filter(|remediation| is_meant(&remediation.node));
        let past = remediations.flat_map(|remediation| &remediation.faults);
        faults.chain(past.filter_map(|fault| fault.subject.pod.as_ref())).cloned().collect()
    }
}
