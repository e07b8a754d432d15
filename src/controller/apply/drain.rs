//! One round of a drain: the node's pods are listed anew, and those that are to go are evicted, each by its uid. Never a plain
//! deletion: a disruption budget has to be asked.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::api::{Api, ListParams, PostParams};
use kube::core::Status;
use tokio::time::Instant;

use super::recheck::Live;
use super::{Applier, ApplyError};
use crate::api::{NODE_NAMESPACE, SYSTEM_NAMESPACE};
use crate::controller::cache::{node as nodes, pods};
use crate::controller::calls::{CallError, bounded};
use crate::core::drain::{Answer, Drain, NodePod, Owner, PodState, Round, hung};
use crate::core::episode::{ActResult, since};
use crate::core::fault::{MAX_LINE, PodRef};
use crate::core::text::bounded as cut;

/// Most pods in one answer; each is stripped before the next page is asked for.
const PAGE: u32 = 100;
/// Most pages: no kubelet takes that many pods.
const MAX_PAGES: u32 = 20;
/// No further eviction is asked for when a round has taken this long: other nodes wait for it.
const ROUND: Duration = Duration::from_secs(5);
/// Time between two rounds, by which they are counted.
const APART: u64 = 10;
/// Annotation of a pod that only mirrors one that the kubelet has from a file.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

impl Applier {
    /// Evicts what may go now, and says what is left.
    pub(super) async fn drain(&self, operation: &str, with: &Drain, live: &Live) -> Result<ActResult, ApplyError> {
        let (view, episode) = (nodes::view(&live.node), &live.episode);
        if !view.unschedulable || view.cordoned_by.as_deref() != Some(episode.name.as_str()) {
            return Err(ApplyError::NotNow(format!(
                "Node {} does not carry the cordon of episode {} (any more): evicted pods would come back",
                episode.node, episode.name
            )));
        }
        let began = Instant::now();
        let pods = self.pods_of(&episode.node).await?;
        let faults = live.report.status.as_ref().map(|status| status.faults.as_slice()).unwrap_or_default();
        let first = episode.steps.iter().find(|step| step.operation_id == operation).and_then(|step| step.started_at);
        let age = first.map_or(Duration::ZERO, |first| since(self.clock.now(), first));
        let mut round = Round::begin(with, &pods, &hung(faults), age.as_secs() / APART);
        while let Some(pod) = round.take() {
            // Another leader may be at it by now.
            if self.leadership.term(Instant::now()).is_none() {
                return Err(ApplyError::NotLeading);
            }
            let answer = self.evict(&pod, with).await;
            tracing::debug!(node = episode.node, pod = %pod, answer = ?answer, "eviction");
            round.answered(pod, answer);
            if began.elapsed() >= ROUND {
                round.stop("the API server takes its time");
            }
        }
        let message = round.sentence();
        Ok(if round.left() == 0 { ActResult::Done { message } } else { ActResult::UnderWay { message } })
    }

    /// All pods of a node. More of them than any kubelet takes are an error: nobody could say that none is left.
    async fn pods_of(&self, node: &str) -> Result<Vec<NodePod>, ApplyError> {
        let api = Api::<Pod>::all(self.calls.watches());
        let mut params = ListParams::default().fields(&format!("spec.nodeName={node}")).limit(PAGE);
        let mut found = Vec::new();
        for _ in 0..MAX_PAGES {
            let page = bounded(|| format!("listing the pods of Node {node}"), api.list(&params)).await?;
            // The server has selected them; one that is not bound to the node is none of its pods whatever it says.
            let of_node = |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
            found.extend(page.items.iter().filter(of_node).map(read));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(found),
            }
        }
        Err(ApplyError::NotNow(format!("Node {node} has more pods than {}: expected fewer", PAGE * MAX_PAGES)))
    }

    async fn evict(&self, pod: &PodRef, with: &Drain) -> Answer {
        let eviction = Eviction {
            metadata: ObjectMeta {
                name: Some(pod.name.clone()),
                namespace: Some(pod.namespace.clone()),
                ..ObjectMeta::default()
            },
            delete_options: Some(DeleteOptions {
                grace_period_seconds: with.grace_period_seconds.map(i64::from),
                preconditions: Some(Preconditions { uid: Some(pod.uid.clone()), resource_version: None }),
                ..DeleteOptions::default()
            }),
        };
        // Not `Api::evict`: that of kube 5.0 writes `delete_options`, which no API server reads.
        let api = self.calls.act_in::<Pod>(&pod.namespace);
        let params = PostParams::default();
        let call = api.create_subresource::<_, Status>("eviction", &pod.name, &params, &eviction);
        match bounded(|| format!("evicting Pod {pod}"), call).await {
            Ok(_) => Answer::Accepted,
            Err(error) => answer(&error),
        }
    }
}

/// What a refusal says.
fn answer(error: &CallError) -> Answer {
    let status = match error {
        CallError::NoAnswer { .. } => return Answer::Stop("the API server gave no answer".to_owned()),
        CallError::Api { source, .. } => match source.as_ref() {
            kube::Error::Api(status) => status,
            _ => return Answer::Stop(error.line()),
        },
    };
    let said = cut(&status.message, MAX_LINE);
    match status.code {
        404 => Answer::Gone,
        // Another pod has its name by now, or somebody writes to it: the next round looks anew, and it is not done before that.
        409 => Answer::Refused("it was changed meanwhile, and is looked at anew".to_owned()),
        429 => match budgets(status) {
            Some(why) => Answer::Refused(why),
            // Not a budget: the server itself has enough to do.
            None => Answer::Stop(format!("the API server asks for patience: {said}")),
        },
        code => Answer::Refused(format!("{said} ({code})")),
    }
}

/// The disruption budgets that say no, in their words.
fn budgets(status: &Status) -> Option<String> {
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    let of_budgets =
        causes.iter().filter(|cause| cause.reason == "DisruptionBudget").map(|cause| cause.message.clone());
    let said: Vec<String> = of_budgets.collect();
    if !said.is_empty() {
        return Some(cut(&said.join("; "), MAX_LINE));
    }
    status.message.contains("disruption budget").then(|| cut(&status.message, MAX_LINE))
}

/// A pod, stripped to what a drain needs.
fn read(pod: &Pod) -> NodePod {
    let annotations: Option<&BTreeMap<String, String>> = pod.metadata.annotations.as_ref();
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let named = pods::pod_ref(pod);
    let is_mirror = annotations.is_some_and(|all| all.contains_key(MIRROR_ANNOTATION));
    NodePod {
        owner: match pods::controller(pod) {
            _ if is_mirror => Owner::Kubelet,
            None => Owner::Nobody,
            Some(_) if pods::daemon_set(pod).is_some() => Owner::DaemonSet,
            Some(_) => Owner::Controller,
        },
        state: match phase {
            Some("Succeeded" | "Failed") => PodState::Finished,
            _ if pod.metadata.deletion_timestamp.is_some() => PodState::Terminating,
            _ => PodState::Live,
        },
        has_empty_dir: volumes.iter().any(|volume| volume.empty_dir.is_some()),
        is_ours: [SYSTEM_NAMESPACE, NODE_NAMESPACE].contains(&named.namespace.as_str()),
        pod: named,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn failed(code: u16, message: &str, causes: &Value) -> CallError {
        let status = json!({"status": "Failure", "message": message, "reason": "R", "code": code, "details": {"causes": causes}});
        let status: Status = serde_json::from_value(status).unwrap();
        CallError::Api { what: "evicting Pod d/p".into(), source: Box::new(kube::Error::Api(Box::new(status))) }
    }

    #[test]
    fn a_budget_is_quoted_and_a_busy_server_ends_the_round() {
        let budget = json!([{"reason": "DisruptionBudget", "message": "The disruption budget web needs 2 healthy pods and has 2 currently"}]);
        let text = "Cannot evict pod as it would violate the pod's disruption budget.";
        let said = Answer::Refused("The disruption budget web needs 2 healthy pods and has 2 currently".to_owned());
        assert_eq!(answer(&failed(429, text, &budget)), said);
        assert_eq!(answer(&failed(429, text, &json!([]))), Answer::Refused(text.to_owned()));
        assert!(matches!(answer(&failed(429, "too many requests", &json!([]))), Answer::Stop(_)));
        assert_eq!(answer(&failed(404, "gone", &json!([]))), Answer::Gone);
        assert!(matches!(answer(&failed(409, "Precondition failed: UID", &json!([]))), Answer::Refused(_)));
        let two = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        assert_eq!(answer(&failed(500, two, &json!([]))), Answer::Refused(format!("{two} (500)")));
        assert!(matches!(answer(&CallError::NoAnswer { what: "x".into() }), Answer::Stop(_)));
    }

    #[test]
    fn a_pod_is_read_as_what_it_is() {
        let pod = |change: &dyn Fn(&mut Value)| {
            let mut pod = json!({"metadata": {"name": "p", "namespace": "d", "uid": "u",
                    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": "o", "controller": true}]},
                "spec": {"nodeName": "w1", "containers": [], "volumes": [{"name": "c", "configMap": {"name": "c"}}]},
                "status": {"phase": "Running"}});
            change(&mut pod);
            read(&serde_json::from_value(pod).unwrap())
        };
        let plain = pod(&|_| {});
        assert_eq!(plain.owner, Owner::Controller);
        assert_eq!(plain.state, PodState::Live);
        assert!(!plain.has_empty_dir && !plain.is_ours);
        let owner = |kind: &'static str| pod(&move |p| p["metadata"]["ownerReferences"][0]["kind"] = json!(kind)).owner;
        assert_eq!(owner("DaemonSet"), Owner::DaemonSet);
        assert_eq!(pod(&|p| p["metadata"]["ownerReferences"][0]["controller"] = json!(false)).owner, Owner::Nobody);
        let mirror = pod(&|p| p["metadata"]["annotations"] = json!({MIRROR_ANNOTATION: "x"}));
        assert_eq!(mirror.owner, Owner::Kubelet);
        assert_eq!(pod(&|p| p["status"]["phase"] = json!("Failed")).state, PodState::Finished);
        let going = pod(&|p| p["metadata"]["deletionTimestamp"] = json!("2025-01-01T00:00:00Z"));
        assert_eq!(going.state, PodState::Terminating);
        assert!(pod(&|p| p["spec"]["volumes"][0] = json!({"name": "e", "emptyDir": {}})).has_empty_dir);
        assert!(pod(&|p| p["metadata"]["namespace"] = json!("nrh-system")).is_ours);
    }
}
