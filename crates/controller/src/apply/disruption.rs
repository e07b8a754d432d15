//! Whether the controller may end a running pod by the kill of its shim. It checks the disruption budgets immediately before, as
//! an eviction does. The API server counts an eviction at once, but a kill only after a while, so evictions wait for kills.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::ListParams;
use kube::core::{Selector, SelectorExt};
use tokio::sync::{RwLock, RwLockReadGuard};
use tokio::time::{Instant, timeout};

use super::preflight::PreflightRequest;
use super::{Applier, ApplyError};
use crate::calls::{DEADLINE, bounded};
use nrh_api::view::pods;
use nrh_core::action::{Action, Signal};
use nrh_core::command::{ActionCommand, OutcomeReason};
use nrh_core::fault::{FaultType, MAX_LINE, PodRef, Role, Target};
use nrh_core::moment::since;
use nrh_core::remediation::{ActionResult, Remediation, RemediationFault, StepRecord, StepState};
use nrh_core::text::bounded as cut;

/// How long after the kill of a running pod's shim no eviction follows in its namespace, and no other kill of a pod that a budget
/// covers. A budget's numbers fall only after the kubelet has reported the end and the disruption controller has counted it.
const SETTLE: Duration = Duration::from_secs(30);
/// How long the controller waits for a budget that allows no disruption, or whose status is outdated, because a rollout passes.
/// It is less than the time that an attempt has to begin.
const WAIT: Duration = Duration::from_mins(2);
/// A blocked action is tried again after this time at most.
const TRIED_EVERY: Duration = Duration::from_secs(20);
/// An attempt has at most this time to begin.
const FORGOTTEN: Duration = Duration::from_mins(10);
/// Maximum number of namespaces, and of operations, that are remembered.
const NAMESPACES: usize = 1_024;

/// Recent kills of running pods' shims.
#[derive(Debug, Default)]
pub struct Kills {
    /// A kill is checked alone, evictions share the lock. Two concurrent checks, or an eviction meanwhile, would spend the same free
    /// disruption twice.
    turn: RwLock<()>,
    /// The last kill of each namespace.
    last: Mutex<BTreeMap<String, Kill>>,
    /// Since when the budgets have refused an operation's pod.
    full: Mutex<BTreeMap<String, Instant>>,
}

/// A kill that was allowed.
#[derive(Debug)]
struct Kill {
    at: Instant,
    operation: String,
    /// Whether it was requested from the API server, whatever the answer.
    is_requested: bool,
}

impl Kills {
    /// Records that a kill is now requested from the API server.
    pub(super) fn request(&self, operation: &str) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        for kill in last.values_mut().filter(|kill| kill.operation == operation) {
            kill.is_requested = true;
        }
    }

    /// Forgets a kill that was not requested after all.
    pub(super) fn forget(&self, operation: &str) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.retain(|_, kill| kill.operation != operation || kill.is_requested);
    }

    /// Another recent kill in the namespace.
    fn other(&self, namespace: &str, operation: &str, now: Instant) -> Option<String> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.retain(|_, kill| now.saturating_duration_since(kill.at) < SETTLE);
        last.get(namespace).map(|kill| kill.operation.clone()).filter(|last| last != operation)
    }

    /// Records that a kill is allowed. Returns `false` if too many are recorded.
    fn note(&self, namespace: &str, operation: &str, now: Instant) -> bool {
        self.full.lock().unwrap_or_else(PoisonError::into_inner).remove(operation);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_room = last.len() < NAMESPACES || last.contains_key(namespace);
        if is_room {
            let is_requested = last.get(namespace).is_some_and(|kill| kill.operation == operation && kill.is_requested);
            last.insert(namespace.to_owned(), Kill { at: now, operation: operation.to_owned(), is_requested });
        }
        is_room
    }

    /// How long the budgets have refused the operation's pod, as far as they were checked.
    fn full_for(&self, operation: &str, now: Instant) -> Duration {
        let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        full.retain(|_, since| now.saturating_duration_since(*since) < FORGOTTEN);
        if full.len() >= NAMESPACES {
            return Duration::ZERO;
        }
        now.saturating_duration_since(*full.entry(operation.to_owned()).or_insert(now))
    }
}

impl Applier {
    /// Refuses a command that would end a pod against a disruption budget. A command that was already given is not checked again,
    /// because the budgets may by now show its own effect. This check comes before the preflight, so that the preflight is more
    /// recent.
    ///
    /// # Errors
    /// As long as a budget may still allow it, or another kill of that namespace is not yet visible in its budgets.
    pub(super) async fn ends_too_many(
        &self,
        request: PreflightRequest<'_>,
        command: &ActionCommand,
    ) -> Result<Option<ActionResult>, ApplyError> {
        let Some(asked) = self.asked_of(request, command) else { return Ok(None) };
        let pod = &asked.pod;
        let read = self.calls.find_in::<Pod>(&pod.namespace, &pod.name).await?;
        let Some(found) = read.filter(|found| pods::names(found).any(|name| name == *pod)) else { return Ok(None) };
        // A pod that is being deleted already uses no further disruption.
        if found.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        // No other check and no eviction runs between the read and the record.
        let busy = || {
            let why = format!("the controller checks another kill, or evicts pods; the kill of Pod {pod} waits");
            ApplyError::NotNow(why)
        };
        let _turn = timeout(DEADLINE, self.kills.turn.write()).await.map_err(|_| busy())?;
        let what = || format!("listing the PodDisruptionBudgets of namespace {}", pod.namespace);
        let api = self.calls.read_in::<PodDisruptionBudget>(&pod.namespace);
        let budgets = bounded(what, api.list(&ListParams::default())).await?;
        let mut covering = budgets.items.iter().filter(|budget| covers(budget, &found)).peekable();
        if covering.peek().is_none() {
            return Ok(None);
        }
        let (now, operation) = (Instant::now(), &command.operation_id);
        let refused = |reason, message: String| {
            // The other executor may already execute an attempt that has begun, so nobody knows that nothing was changed.
            if asked.is_begun || asked.age < WAIT {
                return Err(ApplyError::NotNow(message));
            }
            Ok(Some(ActionResult::Refused { reason, message: cut(&message, MAX_LINE) }))
        };
        if let Some(other) = self.unshown(operation, &pod.namespace) {
            let message = format!(
                "the kill of Pod {pod} waits: what operation {other} has ended in its namespace does not show in its budgets yet"
            );
            // A step that has only waited for others was not tried. That spends no attempt, and no harsher step follows from it.
            return refused(OutcomeReason::CheckFailed, message);
        }
        let Some(full) = covering.find(|budget| !has_room(budget, &found)) else {
            return if self.kills.note(&pod.namespace, operation, now) { Ok(None) } else { Err(busy()) };
        };
        let message = format!(
            "PodDisruptionBudget {}/{} allows no disruption, and the kill would end Pod {pod}: nothing was changed",
            pod.namespace,
            full.name_any()
        );
        let waited = self.kills.full_for(operation, now);
        // An action whose turn came late has not waited for its budgets yet.
        let is_over = waited.saturating_add(TRIED_EVERY) >= WAIT;
        refused(if is_over { OutcomeReason::Protected } else { OutcomeReason::CheckFailed }, message)
    }

    /// Lets the controller evict a pod of the namespace, or says why not now. While the guard is held, no kill is checked.
    pub(super) fn may_evict_in(&self, namespace: &str, operation: &str) -> Result<RwLockReadGuard<'_, ()>, String> {
        let turn = self.kills.turn.try_read().map_err(|_| "waits for the check of a kill".to_owned())?;
        match self.unshown(operation, namespace) {
            Some(kill) => Err(format!("waits until the kill by operation {kill} shows in the disruption budgets")),
            None => Ok(turn),
        }
    }

    /// Another kill in that namespace that its budgets may not show yet.
    fn unshown(&self, operation: &str, namespace: &str) -> Option<String> {
        let recent = self.kills.other(namespace, operation, Instant::now());
        recent.or_else(|| self.unsettled(operation, namespace))
    }

    /// Which pod a command would end, and the state of the attempt; `None` if it ends none, or was given already.
    fn asked_of(&self, request: PreflightRequest<'_>, command: &ActionCommand) -> Option<Asked> {
        let state = self.cache.lock();
        let remediation = state.snapshot.remediations.get(request.remediation)?;
        let fault = remediation.fault(&command.fault_id);
        let pod = ended_by(&command.action, command.fault_type, &command.target, fault)?.clone();
        let given = state.snapshot.commands.get(request.node).and_then(|command| command.command.as_ref());
        let is_given = given.is_some_and(|given| given.operation_id == command.operation_id)
            || state.snapshot.jobs.contains_key(&command.operation_id);
        let step = remediation.attempt(&command.operation_id)?;
        let age = since(self.clock.now(), step.scheduled_at);
        (!is_given).then(|| Asked { pod, is_begun: step.started_at.is_some(), age })
    }

    /// Another kill in that namespace, by any leader, that is recent or under way.
    fn unsettled(&self, operation: &str, namespace: &str) -> Option<String> {
        let state = self.cache.lock();
        let now = self.clock.now();
        let is_recent = |at: Timestamp| Duration::try_from(now.duration_since(at)).is_ok_and(|age| age < SETTLE);
        let is_under_way = |step: &StepRecord| match step.state {
            StepState::Scheduled | StepState::Started => step.started_at.is_some(),
            _ => self.settings.latest_execution(step).is_some_and(|until| until > now),
        };
        let is_other = |remediation: &Remediation, step: &StepRecord| {
            let fault = remediation.fault(&step.fault_id);
            let pod = fault.and_then(|known| ended_by(&step.action, known.kind, &step.target, fault));
            step.operation_id != operation
                && pod.is_some_and(|pod| pod.namespace == namespace)
                && (is_under_way(step) || step.executed_at.is_some_and(is_recent))
        };
        state.snapshot.remediations.values().find_map(|remediation| {
            let step = remediation.steps.iter().find(|step| is_other(remediation, step))?;
            Some(step.operation_id.clone())
        })
    }
}

/// The end of a pod that is to be checked.
struct Asked {
    pod: PodRef,
    /// Whether the other executor has begun the attempt once.
    is_begun: bool,
    /// How long ago the attempt was reserved.
    age: Duration,
}

/// The pod that an action ends. A shim holds all containers of its pod. No container depends on a `runc create` yet.
fn ended_by<'a>(
    action: &Action,
    kind: FaultType,
    target: &'a Target,
    fault: Option<&'a RemediationFault>,
) -> Option<&'a PodRef> {
    let is_kill = matches!(action, Action::ReleaseHungProcess(params) if params.signal == Signal::Kill);
    let is_of_shim = target.process.as_ref().is_none_or(|process| process.role != Role::RuntimeClient);
    let pod = target.pod.as_ref().or_else(|| fault?.subject.pod.as_ref());
    pod.filter(|_| is_kill && is_of_shim && kind == FaultType::HungContainer)
}

/// Whether a budget covers the pod. A budget without a selector covers no pod, one with an empty selector covers all.
fn covers(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.clone());
    // For an unknown operator nobody knows whether it matches the pod. The controller assumes that it does.
    selector
        .is_some_and(|selector| Selector::try_from(selector).map_or(true, |selector| selector.matches(pod.labels())))
}

/// Whether a budget allows the disruption of the pod, by its own latest status. A pod that is not Ready uses no disruption of a
/// budget that is met without it.
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
    fn a_kill_that_was_requested_once_is_not_forgotten() {
        let (kills, now) = (Kills::default(), Instant::now());
        assert!(kills.note("n", "one", now));
        kills.forget("one");
        assert_eq!(kills.other("n", "two", now), None);
        assert!(kills.note("n", "one", now));
        kills.request("one");
        // The request got no answer: the kill is checked once more, and the preflight fails.
        assert!(kills.note("n", "one", now));
        kills.forget("one");
        assert_eq!(kills.other("n", "two", now), Some("one".to_owned()));
        assert_eq!(kills.other("n", "two", now + SETTLE), None);
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
        let silent = budget(&json!({"selector": {}}), &Value::Null);
        assert!(!has_room(&silent, &pod(&json!({}), "False")), "it has not said anything");
    }
}
