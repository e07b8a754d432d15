//! Whether a running pod may be ended by the kill of its shim: its disruption budgets are asked right before, as an eviction asks them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use kube::api::ListParams;

use super::recheck::Live;
use super::{Applier, ApplyError};
use crate::controller::cache::pods;
use crate::controller::calls::{bounded, bounded_opt};
use crate::core::episode::ActResult;
use crate::core::fault::{FaultType, MAX_LINE, PodRef, Role};
use crate::core::order::{NodeAction, Order, OutcomeReason};
use crate::core::text::bounded as cut;

impl Applier {
    /// The refusal of an order that would end a pod past a disruption budget. One that was given already, whatever became of its
    /// answer, is not judged anew: what the budgets say by now may be its own doing.
    pub(super) async fn ends_too_many(&self, order: &Order, live: &Live) -> Result<Option<ActResult>, ApplyError> {
        let Some(pod) = ended_by(order, live) else { return Ok(None) };
        let standing = live.report.status.as_ref().and_then(|status| status.order.as_ref());
        let is_ordered = standing.is_some_and(|standing| standing.operation_id == order.operation_id);
        let is_given = is_ordered || self.cache.lock().snapshot.jobs.contains_key(&order.operation_id);
        if is_given {
            return Ok(None);
        }
        let api = self.calls.read_in::<Pod>(&pod.namespace);
        let read = bounded_opt(|| format!("reading Pod {pod}"), api.get(&pod.name)).await?;
        let Some(found) = read.filter(|found| pods::names(found).any(|name| name == pod)) else { return Ok(None) };
        // What goes anyway takes nothing more.
        if found.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        let what = || format!("listing the PodDisruptionBudgets of namespace {}", pod.namespace);
        let api = self.calls.read_in::<PodDisruptionBudget>(&pod.namespace);
        let budgets = bounded(what, api.list(&ListParams::default())).await?;
        let full = budgets.items.iter().find(|budget| covers(budget, &found) && !has_room(budget, &found));
        Ok(full.map(|budget| {
            let message = format!(
                "PodDisruptionBudget {}/{} lets none go, and the kill would end Pod {pod}: nothing was touched",
                pod.namespace,
                budget.name_any()
            );
            ActResult::Refused { reason: OutcomeReason::Protected, message: cut(&message, MAX_LINE) }
        }))
    }
}

/// The pod that an order ends: a shim holds all containers of its pod, and of a `runc create` none depends yet.
fn ended_by(order: &Order, live: &Live) -> Option<PodRef> {
    let role = order.target.process.as_ref().map(|process| process.role);
    if order.action != NodeAction::ReleaseKill
        || order.fault_type != FaultType::HungContainer
        || role == Some(Role::RuntimeClient)
    {
        return None;
    }
    let subject = || live.episode.fault(&order.fault_id)?.subject.pod.clone();
    order.target.pod.clone().or_else(subject)
}

/// Whether a budget is for the pod. One without a selector is for none, one with an empty selector for all.
fn covers(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector.is_some_and(|selector| selects(selector, pod.labels()))
}

fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let mut exact = selector.match_labels.iter().flatten();
    let is_met = |expression: &k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement| {
        let value = labels.get(&expression.key);
        let is_in = value.is_some_and(|value| expression.values.iter().flatten().any(|one| one == value));
        match expression.operator.as_str() {
            "NotIn" => !is_in,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            // Of one that nobody knows it is not known whether it is for the pod: that counts as if it were.
            "In" => is_in,
            _ => true,
        }
    };
    exact.all(|(key, value)| labels.get(key) == Some(value)) && selector.match_expressions.iter().flatten().all(is_met)
}

/// Whether a budget lets the pod go, by its own last word. A pod that is not Ready takes nothing from one that is kept without it.
fn has_room(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let Some(status) = &budget.status else { return false };
    let is_of_now = status.observed_generation.unwrap_or(0) >= budget.metadata.generation.unwrap_or(0);
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let is_ready = conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
    let policy = budget.spec.as_ref().and_then(|spec| spec.unhealthy_pod_eviction_policy.as_deref());
    let is_kept = status.desired_healthy > 0 && status.current_healthy >= status.desired_healthy;
    is_of_now && (status.disruptions_allowed > 0 || (!is_ready && (is_kept || policy == Some("AlwaysAllow"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(labels: &Value, ready: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "labels": labels},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
        .unwrap()
    }

    fn budget(spec: &Value, status: &Value) -> PodDisruptionBudget {
        let budget = json!({"metadata": {"name": "b", "generation": 2}, "spec": spec, "status": status});
        serde_json::from_value(budget).unwrap()
    }

    #[test]
    fn a_budget_is_for_the_pods_that_its_selector_selects() {
        let of = |selector: Value| {
            covers(&budget(&json!({"selector": selector}), &Value::Null), &pod(&json!({"app": "db"}), "True"))
        };
        let one = |operator: &str, values: &[&str]| {
            of(json!({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]}))
        };
        assert!(of(json!({})) && of(json!({"matchLabels": {"app": "db"}})));
        assert!(!of(Value::Null) && !of(json!({"matchLabels": {"app": "db", "tier": "1"}})));
        assert!(one("In", &["db"]) && !one("In", &["web"]) && one("NotIn", &["web"]) && !one("NotIn", &["db"]));
        assert!(one("Exists", &[]) && !one("DoesNotExist", &[]));
        assert!(one("Perhaps", &[]), "what is not understood protects");
    }

    #[test]
    fn a_budget_lets_a_pod_go_as_an_eviction_would() {
        let of = |allowed: i32, healthy: i32, observed: i64, policy: Option<&str>, ready: &str| {
            let status = json!({"disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": 2, "expectedPods": 3,
                "observedGeneration": observed});
            has_room(
                &budget(&json!({"selector": {}, "unhealthyPodEvictionPolicy": policy}), &status),
                &pod(&json!({}), ready),
            )
        };
        assert!(of(1, 3, 2, None, "True"));
        assert!(!of(0, 2, 2, None, "True"), "it is one of those that are needed");
        assert!(of(0, 2, 2, None, "False"), "enough are healthy without it");
        assert!(!of(0, 1, 2, None, "False") && of(0, 1, 2, Some("AlwaysAllow"), "False"));
        assert!(!of(1, 3, 1, None, "True"), "what it says is of an older wish");
        assert!(
            !has_room(&budget(&json!({"selector": {}}), &Value::Null), &pod(&json!({}), "False")),
            "it has not said anything"
        );
    }
}
