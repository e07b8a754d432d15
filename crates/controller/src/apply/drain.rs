//! One round of a drain. The controller lists the node's pods again and evicts those that must go, each by its uid. It never
//! deletes them directly, because an eviction respects disruption budgets.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Toleration};
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use kube::core::Status;
use tokio::time::Instant;

use super::preflight::PreflightState;
use super::{Applier, ApplyError};
use crate::calls::{CallError, bounded};
use crate::clock::AGREE;
use nrh_api::view::{node as nodes, pods, report};
use nrh_api::{NODE_NAMESPACE, SYSTEM_NAMESPACE};
use nrh_core::action::Drain;
use nrh_core::command::OutcomeReason;
use nrh_core::drain::{Answer, CannotEnd, NodePod, PodState, RecreatedBy, Round, cannot_end, hung};
use nrh_core::fault::MAX_LINE;
use nrh_core::moment::since;
use nrh_core::remediation::ActionResult;
use nrh_core::snapshot::TriState;
use nrh_core::text::bounded as cut;

/// Maximum number of pods in one answer. Each pod is stripped before the controller requests the next page.
const PAGE: u32 = 100;
/// Maximum number of pages. No kubelet accepts that many pods. Pods that have ended, which may be thousands, are not listed.
const MAX_PAGES: u32 = 20;
/// Taint of a node that is cordoned.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// Maximum time of a round. After it the controller requests no further eviction, because other nodes wait.
const ROUND: Duration = Duration::from_secs(5);
/// Selects the pods that have not ended.
const LIVE: &str = ",status.phase!=Succeeded,status.phase!=Failed";
/// Cause with which the API server reports that an object's namespace is being deleted.
const NAMESPACE_ENDS: &str = "NamespaceTerminating";
/// Annotation of a mirror pod, which the kubelet has from a file.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

impl Applier {
    /// Evicts the pods that may go now, and reports what is left.
    pub(super) async fn drain(
        &self,
        operation: &str,
        params: &Drain,
        live: &PreflightState,
    ) -> Result<ActionResult, ApplyError> {
        let (view, remediation) = (nodes::view(&live.node), &live.remediation);
        let node = &remediation.node;
        if !view.unschedulable || view.cordoned_by.as_deref() != Some(remediation.name.as_str()) {
            return Err(ApplyError::NotNow(format!(
                "Node {node} does not carry the cordon of remediation {} (any more): evicted pods would come back",
                remediation.name
            )));
        }
        let began = Instant::now();
        let faults = live.report.status.as_ref().map(|status| status.faults.as_slice()).unwrap_or_default();
        let heartbeat = report::view(&live.report).heartbeat;
        let works = heartbeat.map_or(TriState::Unknown, |heartbeat| heartbeat.kubelet_works);
        let cannot = cannot_end(view.ready, works, faults);
        if let Some(CannotEnd::Known(why) | CannotEnd::Uncertain(why)) = &cannot
            && !params.ignore_runtime_hang
        {
            return Err(ApplyError::NotNow(format!("evicted pods would not end on Node {node} by now: {why}")));
        }
        let Some(pods) = self.pods_of(node, remediation.cordoned_at()).await? else {
            let message = format!(
                "Node {node} has more pods that have not ended than any kubelet takes: expected at most {}, found more; see \
                 who binds pods to it (kubectl get pods -A --field-selector spec.nodeName={node})",
                PAGE * MAX_PAGES
            );
            return Ok(ActionResult::Refused { reason: OutcomeReason::Protected, message });
        };
        let first = remediation.attempt(operation).and_then(|step| step.started_at);
        let age = first.map_or(Duration::ZERO, |first| since(self.clock.now(), first));
        let is_endless = matches!(cannot, Some(CannotEnd::Known(_)));
        let name = format!("{operation}/{}", age.as_secs());
        let mut round = Round::begin(params, &pods, &hung(faults), &name).endless(is_endless);
        self.not_suspended()?;
        while let Some(pod) = round.take() {
            // Another leader may continue this drain by now.
            self.must_lead()?;
            let answer = match self.may_evict_in(&pod.pod.namespace, operation) {
                Ok(_turn) => self.evict(&pod, params).await,
                Err(why) => Answer::Refused(why),
            };
            tracing::debug!(node, pod = %pod.pod, answer = ?answer, "eviction");
            round.answered(pod, answer);
            if began.elapsed() >= ROUND {
                round.stop("the API server is slow");
            }
            if self.not_suspended().is_err() {
                round.stop("all remediation is suspended");
            }
        }
        let message = round.sentence();
        Ok(if round.is_quiet() { ActionResult::Quiet { message } } else { ActionResult::InProgress { message } })
    }

    /// All pods of a node that have not ended, as the API server has them now. A list without a resource version is not served
    /// from an old cache. `None` if there are more pods than any kubelet accepts, because then nobody could say that none is
    /// left.
    async fn pods_of(&self, node: &str, cordoned_at: Option<Timestamp>) -> Result<Option<Vec<NodePod>>, ApplyError> {
        let api = Api::<Pod>::all(self.calls.watches());
        let mut params = ListParams::default().fields(&format!("spec.nodeName={node}{LIVE}")).limit(PAGE);
        let mut found = Vec::new();
        for _ in 0..MAX_PAGES {
            let page = bounded(|| format!("listing the pods of Node {node}"), api.list(&params)).await?;
            // The server has selected the pods. The controller still ignores a pod that is not bound to the node.
            let of_node = |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
            let state = self.cache.lock();
            // If the DaemonSet cannot be read, nobody knows whether it owns the pod. Such pods are skipped.
            let is_of_set = |pod: &Pod| state.is_of_daemon_set(pod) != TriState::False;
            found.extend(page.items.iter().filter(of_node).map(|pod| read(pod, cordoned_at, is_of_set(pod))));
            drop(state);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(Some(found)),
            }
        }
        Ok(None)
    }

    async fn evict(&self, pod: &NodePod, params: &Drain) -> Answer {
        let grace = params.grace_for(pod).map(i64::from);
        let pod = &pod.pod;
        let eviction = Eviction {
            metadata: ObjectMeta {
                name: Some(pod.name.clone()),
                namespace: Some(pod.namespace.clone()),
                ..ObjectMeta::default()
            },
            delete_options: Some(DeleteOptions {
                grace_period_seconds: grace,
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
            Err(error) => {
                if is_without_right(&error) {
                    // The controller discards what it knew of the right. It begins nothing based on it, and checks the right
                    // again immediately.
                    self.cache.lock().note_may_evict(TriState::Unknown, Instant::now());
                    self.cache.wake();
                }
                answer(&error)
            }
        }
    }
}

/// Whether the controller itself lacks the right. An admission policy that protects one pod uses its own words.
fn is_without_right(error: &CallError) -> bool {
    error.code() == Some(403) && error.line().contains("cannot create resource \"pods/eviction\"")
}

/// The meaning of a refusal.
fn answer(error: &CallError) -> Answer {
    if matches!(error, CallError::NoAnswer { .. }) {
        return Answer::Stop("the API server gave no answer".to_owned());
    }
    let Some(status) = error.answer() else { return Answer::Stop(error.line()) };
    let message = cut(&status.message, MAX_LINE);
    let is_ending =
        status.details.iter().flat_map(|details| &details.causes).any(|cause| cause.reason == NAMESPACE_ENDS);
    match status.code {
        // The deletion of the namespace deletes the pod too.
        403 if is_ending => Answer::Refused("its namespace is being deleted, which deletes the pod too".to_owned()),
        403 if is_without_right(error) => Answer::Stop("the controller may not evict pods any more".to_owned()),
        404 => Answer::Gone,
        // Another pod has the name by now, or another client writes to the pod. The next round checks it again, and the drain is
        // not done before that.
        409 => Answer::Refused("it was changed meanwhile, and is checked again".to_owned()),
        429 => match budgets(status) {
            Some(why) => Answer::Refused(why),
            // No budget refused it. The server is busy, or a webhook protects the pod.
            None => Answer::Busy(format!("asked to retry later: {message}")),
        },
        502 | 503 => Answer::Stop(format!("{message} ({})", status.code)),
        code => Answer::Refused(format!("{message} ({code})")),
    }
}

/// The disruption budgets that refuse the eviction, in their words.
fn budgets(status: &Status) -> Option<String> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let of_budgets = causes.filter(|cause| cause.reason == "DisruptionBudget");
    let messages: Vec<&str> = of_budgets.map(|cause| cause.message.as_str()).collect();
    if !messages.is_empty() {
        return Some(cut(&messages.join("; "), MAX_LINE));
    }
    status.message.contains("disruption budget").then(|| cut(&status.message, MAX_LINE))
}

/// A pod, stripped to what a drain needs.
fn read(pod: &Pod, cordoned_at: Option<Timestamp>, is_of_set: bool) -> NodePod {
    let spec = pod.spec.as_ref();
    let tolerations = spec.and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    let made = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let volumes = spec.and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let named = pods::pod_ref(pod);
    let is_mirror = pod.annotations().contains_key(MIRROR_ANNOTATION);
    NodePod {
        recreated_by: match pods::controller(pod) {
            _ if is_mirror => RecreatedBy::Kubelet,
            None => RecreatedBy::Nobody,
            Some(_) if is_of_set => RecreatedBy::DaemonSet,
            Some(_) => RecreatedBy::Controller,
        },
        state: match phase {
            Some("Succeeded" | "Failed") => PodState::Finished,
            _ if pod.metadata.deletion_timestamp.is_some() => PodState::Terminating,
            _ => PodState::Live,
        },
        has_empty_dir: volumes.iter().any(|volume| volume.empty_dir.is_some()),
        has_no_grace: spec.and_then(|spec| spec.termination_grace_period_seconds).is_some_and(|own| own <= 0),
        recreated_after_cordon: tolerations.iter().any(tolerates_cordon)
            // The clocks of the API server and of the controller may differ by so much.
            && made.zip(cordoned_at).is_some_and(|(made, at)| made - AGREE > at),
        is_ours: [SYSTEM_NAMESPACE, NODE_NAMESPACE].contains(&named.namespace.as_str()),
        pod: named,
    }
}

/// Whether the scheduler places a pod with this toleration on a cordoned node.
fn tolerates_cordon(toleration: &Toleration) -> bool {
    let exists = toleration.operator.as_deref() == Some("Exists");
    // With `Exists` and without a key it is for all taints.
    let key = toleration.key.as_deref().unwrap_or_default();
    let is_key = if key.is_empty() { exists } else { key == UNSCHEDULABLE };
    // The taint has no value.
    let is_value = exists || toleration.value.as_deref().unwrap_or_default().is_empty();
    let is_effect = matches!(toleration.effect.as_deref(), None | Some("" | "NoSchedule"));
    is_key && is_value && is_effect
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
        let refused = Answer::Refused("The disruption budget web needs 2 healthy pods and has 2 currently".to_owned());
        assert_eq!(answer(&failed(429, text, &budget)), refused);
        assert_eq!(answer(&failed(429, text, &json!([]))), Answer::Refused(text.to_owned()));
        assert!(matches!(answer(&failed(429, "too many requests", &json!([]))), Answer::Busy(_)));
        assert!(matches!(answer(&failed(503, "no endpoints", &json!([]))), Answer::Stop(_)));
        let ends = json!([{"reason": "NamespaceTerminating", "message": "namespace d is being terminated", "field": "metadata.namespace"}]);
        let with_it = Answer::Refused("its namespace is being deleted, which deletes the pod too".to_owned());
        assert_eq!(answer(&failed(403, "unable to create new content in namespace d", &ends)), with_it);
        let bare = "pods \"p\" is forbidden: User \"c\" cannot create resource \"pods/eviction\" in API group \"\" in the namespace \"d\"";
        assert!(matches!(answer(&failed(403, bare, &json!([]))), Answer::Stop(_)));
        assert!(is_without_right(&failed(403, bare, &json!([]))));
        let spared = failed(403, "ValidatingAdmissionPolicy 'keep' denied request", &json!([]));
        assert!(!is_without_right(&spared) && matches!(answer(&spared), Answer::Refused(_)));
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
            let is_of_set = pod["metadata"]["ownerReferences"][0]["kind"] == "DaemonSet";
            read(&serde_json::from_value(pod).unwrap(), Some("2026-01-01T00:00:00Z".parse().unwrap()), is_of_set)
        };
        for (own, is_none) in [(json!(0), true), (json!(-1), true), (json!(1), false), (Value::Null, false)] {
            assert_eq!(pod(&move |p| p["spec"]["terminationGracePeriodSeconds"] = own.clone()).has_no_grace, is_none);
        }
        let back = |toleration: Value, made: &'static str| {
            let back = pod(&move |p| {
                p["spec"]["tolerations"] = json!([toleration]);
                p["metadata"]["creationTimestamp"] = json!(made);
            });
            back.recreated_after_cordon
        };
        let (before, after) = ("2025-12-31T23:59:00Z", "2026-01-01T00:01:00Z");
        for all in [
            json!({"operator": "Exists"}),
            json!({"key": UNSCHEDULABLE, "operator": "Exists"}),
            json!({"key": UNSCHEDULABLE, "effect": "NoSchedule"}),
        ] {
            assert!(back(all.clone(), after), "{all}");
            assert!(!back(all.clone(), before), "evicted once, it may go elsewhere: {all}");
        }
        for none in [
            json!({"key": "other", "operator": "Exists"}),
            json!({"operator": "Exists", "effect": "NoExecute"}),
            json!({"key": UNSCHEDULABLE, "value": "x"}),
        ] {
            assert!(!back(none.clone(), after), "{none}");
        }
        let plain = pod(&|_| {});
        assert_eq!(plain.recreated_by, RecreatedBy::Controller);
        assert_eq!(plain.state, PodState::Live);
        assert!(!plain.has_empty_dir && !plain.is_ours);
        let owner =
            |kind: &'static str| pod(&move |p| p["metadata"]["ownerReferences"][0]["kind"] = json!(kind)).recreated_by;
        assert_eq!(owner("DaemonSet"), RecreatedBy::DaemonSet);
        let loose = pod(&|p| p["metadata"]["ownerReferences"][0]["controller"] = json!(false));
        assert_eq!(loose.recreated_by, RecreatedBy::Nobody);
        let mirror = pod(&|p| p["metadata"]["annotations"] = json!({MIRROR_ANNOTATION: "x"}));
        assert_eq!(mirror.recreated_by, RecreatedBy::Kubelet);
        assert_eq!(pod(&|p| p["status"]["phase"] = json!("Failed")).state, PodState::Finished);
        let going = pod(&|p| p["metadata"]["deletionTimestamp"] = json!("2025-01-01T00:00:00Z"));
        assert_eq!(going.state, PodState::Terminating);
        assert!(pod(&|p| p["spec"]["volumes"][0] = json!({"name": "e", "emptyDir": {}})).has_empty_dir);
        assert!(pod(&|p| p["metadata"]["namespace"] = json!("nrh-system")).is_ours);
    }
}
