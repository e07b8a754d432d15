//! Executes the actions. Each is one call, after the preflight, with the expected state as its precondition.

use std::mem::discriminant;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PropagationPolicy};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::preflight::{PreflightRequest, PreflightState};
use super::{Applier, ApplyError};
use crate::cache::fold::Ingest;
use crate::calls::{CallError, DEADLINE, bounded, bounded_opt, delete_params, patch_params, post_params};
use crate::commands::{self, Command};
use crate::events::Kind;
use crate::jobs;
use nrh_api::view::{node as nodes, pods};
use nrh_api::{CORDON_ANNOTATION, NODE_NAMESPACE, NodeCommand};
use nrh_core::command::{ActionCommand, OutcomeReason, OutcomeState};
use nrh_core::fault::PodRef;
use nrh_core::moment::since;
use nrh_core::plan::Operation;
use nrh_core::remediation::{self, ActionResult, Remediation, StepRecord, StepState};
use nrh_core::snapshot::TriState;
use nrh_core::stuck;

mod cleanup;

/// How often the controller immediately repeats an action whose object another client has just written. A request for a fresh
/// check is also in the object of a command.
const CONFLICTS: u32 = 2;

/// How a remediation releases a marker on a node.
#[derive(Debug)]
pub(super) struct Release {
    pub patch: Value,
    /// Whether an Event on the Node notifies people, and its kind.
    pub event: Option<Kind>,
    /// The effect in words.
    pub what: String,
}

impl Applier {
    /// Executes a reserved step and records the result.
    pub(super) async fn act(&self, request: PreflightRequest<'_>, operation: &Operation) -> Result<(), ApplyError> {
        let PreflightRequest { remediation: name, operation: operation_id, node, .. } = request;
        let kind = action_name(operation);
        let mut conflicts = 0;
        let (live, result) = loop {
            let refused = match operation {
                // The disruption budgets of the pod that the command ends may refuse it. A final refusal by the API server is a result too.
                Operation::RunJob(command) | Operation::GiveCommand(command) => {
                    let weighed = Box::pin(self.ends_too_many(request, command)).await;
                    weighed.or_else(|error| settle(Err(error)).map(Some))
                }
                _ => Ok(None),
            };
            let refused = refused.inspect_err(|_| self.metrics.act(kind, "NotNow"))?;
            let live = Box::pin(self.preflight(request)).await.and_then(|live| is_budget_checked(operation, live));
            let live = live.and_then(|live| self.must_lead().map(|()| live)).inspect_err(|_| {
                self.kills.forget(operation_id);
                self.metrics.act(kind, "NotNow");
            })?;
            let result = if let Some(refused) = refused {
                Ok(refused)
            } else {
                self.kills.request(operation_id);
                self.carry_out(name, operation_id, &live).await
            };
            match result {
                // The write changed nothing. The controller immediately checks the current state again.
                Err(ApplyError::Call(error)) if error.is_conflict() && conflicts < CONFLICTS => conflicts += 1,
                result => break (live, result),
            }
        };
        let result = settle(result).inspect_err(|_| self.metrics.act(kind, "Error"))?;
        let next = remediation::executed(&live.remediation, operation_id, result.clone(), self.clock.now());
        let result = settle_quiet(&next, operation_id, result);
        // For an action in rounds, people are notified of its beginning and its end.
        if !is_further_round(&live.remediation, operation_id, &result) {
            self.metrics.act(kind, result_name(&result));
            tracing::info!(remediation = name, node, operation = operation_id, act = kind, result = ?result, "action executed");
            if let Some(step) = next.attempt(operation_id) {
                self.events.executed(&next, step, &result);
            }
        }
        self.write_remediation(&next).await
    }

    /// Executes the action on the objects that were just read.
    async fn carry_out(
        &self,
        name: &str,
        operation_id: &str,
        live: &PreflightState,
    ) -> Result<ActionResult, ApplyError> {
        match &live.operation {
            Operation::Cordon => self.cordon(name, live).await,
            Operation::Taint(effect) => self.taint(name, *effect, live).await,
            Operation::Drain(params) => self.drain(operation_id, params, live).await,
            Operation::DeletePod(pod) => self.delete_pod(operation_id, pod, live).await,
            Operation::RunJob(command) => self.run_job(command).await,
            Operation::GiveCommand(command) => self.give_command(command, live).await,
            Operation::HandOff(params) => Box::pin(self.hand_off(operation_id, params, live)).await,
            // Its Event is queued with its result.
            Operation::Notify(_) if !self.events.has_room() => {
                Err(ApplyError::NotNow("its Event cannot be queued: too many Events wait to be sent".to_owned()))
            }
            Operation::Notify(message) => Ok(ActionResult::Done { message: message.clone() }),
        }
    }

    async fn cordon(&self, name: &str, live: &PreflightState) -> Result<ActionResult, ApplyError> {
        if nodes::view(&live.node).unschedulable {
            let Some(mark) = nodes::cordoned_by(&live.node) else { return Ok(ActionResult::AlreadyCordoned) };
            let message = "the node is unschedulable with this remediation's mark".to_owned();
            if mark == name {
                return Ok(ActionResult::Done { message });
            }
            // This remediation keeps a cordon that an earlier one has left, and later removes it or releases it.
            if self.known(&mark).is_none_or(|kept| !live.remediation.shares_cordon_of(&kept)) {
                return Ok(ActionResult::AlreadyCordoned);
            }
            let patch = json!({"metadata": cordon_mark(&live.node, Some(name))});
            self.patch_node(&live.node.name_any(), &patch).await?;
            let message = format!("the node is unschedulable, as remediation {mark} has left it");
            return Ok(ActionResult::Done { message });
        }
        // The annotation comes from a write of this step whose result was not recorded. The controller does not cordon the node
        // again, and the next decision handles the annotation without the cordon. For a later cordon of the same remediation, the
        // annotation of the earlier cordon proves nothing.
        let is_first = live.remediation.cordoned_at().is_none();
        if is_first && nodes::cordoned_by(&live.node).as_deref() == Some(name) {
            let message =
                "the node was unschedulable with this remediation's annotation, and another client has uncordoned it";
            return Ok(ActionResult::Done { message: message.to_owned() });
        }
        let patch = json!({"metadata": cordon_mark(&live.node, Some(name)), "spec": {"unschedulable": true}});
        let node = self.patch_node(&live.node.name_any(), &patch).await?;
        let now = if nodes::view(&node).unschedulable {
            "is unschedulable now"
        } else {
            "the API server still reports it as schedulable"
        };
        Ok(ActionResult::Done { message: format!("the node was schedulable and {now}") })
    }

    /// Patches the node. Returns it as the API server answers.
    pub(super) async fn patch_node(&self, name: &str, patch: &Value) -> Result<Node, CallError> {
        let api = self.calls.act::<Node>();
        let what = || format!("patching Node {name}");
        let node = bounded(what, api.patch(name, &patch_params(), &Patch::Merge(patch))).await?;
        node.clone().fold(&mut self.cache.lock(), Instant::now());
        Ok(node)
    }

    async fn delete_pod(
        &self,
        operation_id: &str,
        pod: &PodRef,
        live: &PreflightState,
    ) -> Result<ActionResult, ApplyError> {
        let api = self.calls.act_in::<Pod>(&pod.namespace);
        let what = |verb: &'static str| move || format!("{verb} Pod {pod}");
        let found = bounded_opt(what("reading"), api.get(&pod.name)).await?;
        let found = found.filter(|found| found.uid().as_deref() == Some(pod.uid.as_str()));
        let now = self.clock.now();
        let scheduled_at = live.remediation.attempt(operation_id).map_or(now, |step| step.scheduled_at);
        if is_deleted_already(found.as_ref(), scheduled_at, now) {
            let is = if found.is_some() { "is being deleted" } else { "is gone" };
            return Ok(ActionResult::Done { message: format!("Pod {pod} {is} since this attempt began") });
        }
        let Some(found) = found else {
            return Ok(ActionResult::Gone { message: format!("Pod {pod} is gone, or another pod has its name") });
        };
        let is_of_set = self.cache.lock().is_of_daemon_set(&found);
        let node = &live.remediation.node;
        if let Some((reason, message)) = spared(&found, pod, node, now).or_else(|| forged(is_of_set, pod)) {
            return Ok(ActionResult::Refused { reason, message });
        }
        // The read may have taken longer than the term lasts.
        self.must_lead()?;
        self.not_suspended()?;
        let params = delete_params(Some(pod.uid.clone()));
        match bounded(what("deleting"), api.delete(&pod.name, &params)).await {
            Ok(answer) => Ok(ActionResult::Done { message: deleted(pod, &found, answer.left().as_ref()) }),
            Err(error) if error.is_not_found() || error.is_conflict() => {
                Ok(ActionResult::Gone { message: format!("Pod {pod} is gone or was replaced") })
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn run_job(&self, command: &ActionCommand) -> Result<ActionResult, ApplyError> {
        let api = self.calls.act_in::<Job>(NODE_NAMESPACE);
        let job = jobs::job(command, &self.image)?;
        match bounded(|| format!("creating Job {}", command.operation_id), api.create(&post_params(), &job)).await {
            Ok(made) => {
                made.fold(&mut self.cache.lock(), Instant::now());
                Ok(ActionResult::Started)
            }
            // Its name is the operation id, so it is this controller's Job from before a crash.
            Err(error) if error.is_conflict() => Ok(ActionResult::Started),
            Err(error) => Err(error.into()),
        }
    }

    async fn give_command(&self, command: &ActionCommand, live: &PreflightState) -> Result<ActionResult, ApplyError> {
        let agent = live.report.status.as_ref().and_then(|status| status.command_result.as_ref());
        let running =
            agent.filter(|agent| agent.state == OutcomeState::Running && agent.operation_id != command.operation_id);
        if let Some(running) = running {
            let why = format!("node {} still executes command {}", command.node, running.operation_id);
            return Err(ApplyError::NotNow(why));
        }
        let found = live.command.as_ref();
        if found.is_some_and(|found| found.spec.command.as_ref() == Some(command)) {
            return Ok(ActionResult::Started);
        }
        let (node, uid) = (live.node.name_any(), live.node.uid().unwrap_or_default());
        let writer = Command { calls: &self.calls, cache: &self.cache, node: &node, uid: &uid };
        writer.give_command(found, command).await?;
        Ok(ActionResult::Started)
    }

    /// Withdraws the command of an operation. Another leader may have given the next command meanwhile, which stays.
    pub(super) async fn withdraw_command(&self, node: &str, operation_id: &str) -> Result<(), ApplyError> {
        let Some(found) = self.read_now::<NodeCommand>(node).await? else { return Ok(()) };
        if found.spec.command.as_ref().is_some_and(|command| command.operation_id == operation_id) {
            return Ok(commands::withdraw_command(&self.calls, &self.cache, &found).await?);
        }
        found.fold(&mut self.cache.lock(), Instant::now());
        Ok(())
    }

    /// Deletes a Job and its pod.
    pub(super) async fn delete_job(&self, operation_id: &str) -> Result<(), ApplyError> {
        let api = self.calls.act_in::<Job>(NODE_NAMESPACE);
        let what = || format!("deleting Job {operation_id}");
        let uid = self.cache.lock().jobs.get(operation_id).and_then(|row| row.uid.clone());
        let params = DeleteParams { propagation_policy: Some(PropagationPolicy::Background), ..delete_params(uid) };
        bounded_opt(what, api.delete(operation_id, &params)).await?;
        Job::forget(operation_id, &mut self.cache.lock());
        Ok(())
    }
}

/// What a deletion did to a pod, by the pod as read before and as the API server answered; `after` is `None` if the pod is gone.
fn deleted(pod: &PodRef, before: &Pod, after: Option<&Pod>) -> String {
    let phase = before.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Unknown");
    let was = if before.metadata.deletion_timestamp.is_some() { "being deleted already" } else { "not being deleted" };
    let is = match after.map(|pod| &pod.metadata) {
        None => "it is gone now".to_owned(),
        Some(meta) if meta.deletion_timestamp.is_none() => "the API server accepted its deletion".to_owned(),
        Some(meta) => {
            let grace = meta.deletion_grace_period_seconds.unwrap_or_default();
            format!("it is being deleted now, with a grace period of {grace} s")
        }
    };
    format!("Pod {pod} was {phase} and {was}; {is}")
}

/// Whether an earlier call of this attempt may have deleted the pod: its answer, or the record of it, may be lost. `found` is the
/// pod, if it is still there. No attempt begins for a pod that is being deleted, and a call without an answer takes its whole time.
fn is_deleted_already(found: Option<&Pod>, scheduled_at: Timestamp, now: Timestamp) -> bool {
    let Some(meta) = found.map(|pod| &pod.metadata) else { return since(now, scheduled_at) >= DEADLINE };
    let Some(end) = &meta.deletion_timestamp else { return false };
    // The API server adds the grace period to the time of the request, and truncates the sum to the second.
    end.0.as_second() - meta.deletion_grace_period_seconds.unwrap_or_default() >= scheduled_at.as_second()
}

/// Why the controller does not delete a pod; `None` if it does.
fn spared(found: &Pod, pod: &PodRef, node: &str, now: Timestamp) -> Option<(OutcomeReason, String)> {
    let seen = pods::suspect(found, now);
    let Some(seen) = seen.filter(|seen| seen.node == node) else {
        return Some((OutcomeReason::TargetChanged, format!("Pod {pod} is not on node {node}")));
    };
    if seen.daemon_set.is_none() {
        return Some((OutcomeReason::Protected, format!("Pod {pod} is not controlled by a DaemonSet")));
    }
    if seen.is_healthy() {
        return Some((OutcomeReason::Recovered, format!("Pod {pod} is Ready")));
    }
    // A pod whose container has started since the decision, or whose deletion proceeds, recovers by itself.
    let is_stuck = stuck::pattern(&seen).is_some();
    (!is_stuck).then(|| (OutcomeReason::Recovered, format!("Pod {pod} is not stuck any more")))
}

/// Why the controller does not delete a pod that names a DaemonSet as its owner, if no DaemonSet with that uid is known.
fn forged(is_of_set: TriState, pod: &PodRef) -> Option<(OutcomeReason, String)> {
    let why = match is_of_set {
        TriState::True => return None,
        TriState::False => "no DaemonSet with the uid that its ownerReferences name is known",
        TriState::Unknown => "the DaemonSet that its ownerReferences name cannot be read",
    };
    Some((OutcomeReason::Protected, format!("Pod {pod} is not deleted: {why}")))
}

/// The metadata of a write that makes a remediation the owner of the controller's cordon, or nobody.
fn cordon_mark(node: &Node, owner: Option<&str>) -> Value {
    json!({"resourceVersion": node.resource_version(), "annotations": {CORDON_ANNOTATION: owner}})
}

/// Turns a final error into the action's result. An error that may pass leaves the step as it is.
fn settle(result: Result<ActionResult, ApplyError>) -> Result<ActionResult, ApplyError> {
    match result {
        Err(ApplyError::Call(error)) if error.is_refusal() => Ok(ActionResult::Failed { message: error.line() }),
        other => other,
    }
}

/// Turns a quiet round into its result: in progress, or the end.
fn settle_quiet(next: &Remediation, operation_id: &str, result: ActionResult) -> ActionResult {
    let ActionResult::Quiet { message } = result else { return result };
    match next.attempt(operation_id) {
        Some(step) if step.state == StepState::Succeeded => ActionResult::Done { message: step.message.clone() },
        Some(step) => ActionResult::InProgress { message: step.message.clone() },
        None => ActionResult::InProgress { message },
    }
}

/// Whether this was a further round of an action that continues.
fn is_further_round(remediation: &Remediation, operation_id: &str, result: &ActionResult) -> bool {
    let is_it = |step: &StepRecord| step.operation_id == operation_id && step.state == StepState::Started;
    matches!(result, ActionResult::InProgress { .. }) && remediation.current_step().is_some_and(is_it)
}

/// Requires that the action is of the kind that was decided on, and a command the very one whose pod was checked against the
/// disruption budgets.
fn is_budget_checked(weighed: &Operation, live: PreflightState) -> Result<PreflightState, ApplyError> {
    let is_command = matches!(live.operation, Operation::RunJob(_) | Operation::GiveCommand(_));
    if discriminant(&live.operation) != discriminant(weighed) || (is_command && live.operation != *weighed) {
        return Err(ApplyError::NotNow("the action has changed since it was decided on".to_owned()));
    }
    Ok(live)
}

/// The action as policies name it.
const fn action_name(operation: &Operation) -> &'static str {
    match operation {
        Operation::Cordon => "Cordon",
        Operation::Taint(_) => "Taint",
        Operation::Drain(_) => "Drain",
        Operation::DeletePod(_) => "DeletePod",
        Operation::RunJob(command) | Operation::GiveCommand(command) => command.action.kind().as_str(),
        Operation::HandOff(_) => "HandOff",
        Operation::Notify(_) => "Notify",
    }
}

const fn result_name(result: &ActionResult) -> &'static str {
    match result {
        ActionResult::Done { .. } => "Done",
        ActionResult::InProgress { .. } | ActionResult::Quiet { .. } => "InProgress",
        ActionResult::Started => "Started",
        ActionResult::AlreadyCordoned => "AlreadyCordoned",
        ActionResult::AlreadyTainted => "AlreadyTainted",
        ActionResult::Gone { .. } => "Gone",
        ActionResult::Refused { .. } => "Refused",
        ActionResult::Failed { .. } => "Failed",
    }
}

#[cfg(test)]
mod tests;
