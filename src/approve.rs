//! `nrh approve`: a person's approval of one step that waits for it.
//!
//! A person sees a step before the approval: without `--operation` the command lists what waits, and what an approval would
//! touch.

use std::fmt::Write;

use anyhow::bail;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde::Serialize;
use serde_json::json;

use crate::api::{NodeRemediation, convert};
use crate::caller::{client, refused, whoami, within};
use crate::cli::ApproveArgs;
use crate::core::fault::Target;
use crate::core::moment::clock;
use crate::core::remediation::{Approval, Remediation, StepRecord};
use crate::core::text::bounded;
use crate::objects;
use crate::terminal::print_as;

/// Longest line about a step, in bytes.
const MAX_LINE: usize = 1024;

/// Runs `nrh approve`.
///
/// # Errors
/// The cluster does not answer, nothing of that name waits, or the API server refuses.
pub async fn run(args: ApproveArgs) -> anyhow::Result<()> {
    approve(client(&args.cluster).await?, args).await
}

pub(crate) async fn approve(client: Client, args: ApproveArgs) -> anyhow::Result<()> {
    let (listed, _) = objects::read::<NodeRemediation>(client.clone()).await?;
    let remediations: Vec<Remediation> = listed.iter().map(convert::remediation).collect();
    let waiting = waiting(&remediations, args.what.as_deref())?;
    let Some(operation) = args.operation else {
        let steps: Vec<WaitingStep<'_>> = waiting.iter().map(WaitingStep::new).collect();
        return print_as(args.print.output, &steps, |_| list_waiting(&waiting));
    };
    let Some(chosen @ (remediation, _)) = waiting.iter().find(|(_, step)| step.operation_id == operation) else {
        bail!("operation {operation} does not wait for approval{}", these_do(&waiting));
    };
    let api: Api<NodeRemediation> = Api::all(client.clone());
    let by = whoami(client).await?;
    let approval = Approval { approved_by: by, operation_id: operation };
    let patch = Patch::Merge(json!({"spec": {"approval": approval}}));
    let written = within(api.patch(&remediation.name, &PatchParams::default(), &patch)).await.map_err(|error| {
        let what = format!("cannot approve {} in remediation {}", approval.operation_id, remediation.name);
        refused(error, &what, "the verbs patch and approve on noderemediations: ClusterRole nrh:approver")
    })?;
    print_as(args.print.output, &written, |_| {
        let (by, what, name) = (&approval.approved_by, summary(chosen), &remediation.name);
        format!("approved by {by}: {what}; `kubectl get nrem {name}` shows the result\n")
    })
}

/// A step that awaits approval, as `-o json` and `-o yaml` print it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WaitingStep<'a> {
    remediation: &'a str,
    node: &'a str,
    policy: &'a str,
    operation_id: &'a str,
    action: String,
    fault_id: &'a str,
    /// What an approval would touch.
    target: &'a Target,
    since: Timestamp,
    approve_command: String,
}

impl<'a> WaitingStep<'a> {
    fn new(&(remediation, step): &Waiting<'a>) -> Self {
        Self {
            remediation: &remediation.name,
            node: &remediation.node,
            policy: &remediation.policy,
            operation_id: &step.operation_id,
            action: step.phrase(),
            fault_id: &step.fault_id,
            target: &step.target,
            since: step.scheduled_at,
            approve_command: remediation.approve_command(&step.operation_id),
        }
    }
}

/// A remediation and its step that awaits approval.
type Waiting<'a> = (&'a Remediation, &'a StepRecord);

/// The steps that await approval; with `what`, those of that node or remediation.
fn waiting<'a>(remediations: &'a [Remediation], what: Option<&str>) -> anyhow::Result<Vec<Waiting<'a>>> {
    let all = remediations.iter().filter_map(|remediation| {
        remediation.unapproved()?;
        Some((remediation, remediation.current_step()?))
    });
    let all: Vec<Waiting<'_>> = all.collect();
    let Some(what) = what else { return Ok(all) };
    let is_its = |(remediation, _): &&Waiting<'_>| remediation.node == what || remediation.name == what;
    let its: Vec<Waiting<'_>> = all.iter().filter(is_its).copied().collect();
    if its.is_empty() {
        bail!("no step of node or remediation {what} waits for approval{}", these_do(&all));
    }
    Ok(its)
}

/// The steps that do wait, as the end of an error.
fn these_do(waiting: &[Waiting<'_>]) -> String {
    if waiting.is_empty() { String::new() } else { format!("; these do:\n{}", list_waiting(waiting)) }
}

/// The step on one line: action, fault, node and policy.
fn summary(&(remediation, step): &Waiting<'_>) -> String {
    let text = format!("{} on node {}, policy {}", remediation.purpose(step), remediation.node, remediation.policy);
    // Names come from the node: no character in one may change what the person who decides sees.
    bounded(&text, MAX_LINE)
}

/// The waiting steps, with the command that approves each.
fn list_waiting(waiting: &[Waiting<'_>]) -> String {
    let mut text = String::new();
    for one @ (remediation, step) in waiting {
        let target = bounded(&serde_json::to_string(&step.target).unwrap_or_default(), MAX_LINE);
        // A write to a text does not fail.
        let _ = writeln!(text, "{}", summary(one));
        let _ = writeln!(text, "  waits since {}, target {target}", clock(step.scheduled_at));
        let command = remediation.approve_command(&step.operation_id);
        let _ = writeln!(text, "  details: kubectl describe nrh {}; approve: {command}", remediation.node);
    }
    if text.is_empty() { "no step waits for approval\n".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remediation(node: &str, state: &str, approved: &str) -> Remediation {
        let object = json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRemediation", "metadata": {"name": format!("{node}-e")},
            "spec": {"nodeName": node, "nodeUid": "u", "policy": "p", "mode": "Enforce",
                "approval": {"approvedBy": "ann", "operationId": approved}},
            "status": {"phase": "AwaitingApproval", "startedAt": "2025-01-01T00:00:00Z",
                "faults": [{"id": "f", "type": "OrphanContainer", "subject": {"kind": "Container", "name": "c"}, "rule": "r", "stepIndex": 0,
                    "state": "Open"}],
                "attempts": [{"operationId": format!("{node}-op"), "faultId": "f", "action": "CleanupOrphans", "stepIndex": 0, "executor": "Job",
                    "target": {"containerId": "abc"}, "state": state, "scheduledAt": "2025-01-01T00:00:00Z"}]}});
        convert::remediation(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_waiting_step_is_listed_with_its_target() {
        let all = [
            remediation("w1", "AwaitingApproval", "another"),
            remediation("w2", "Scheduled", "w2-op"),
            remediation("w3", "AwaitingApproval", "w3-op"),
        ];
        let text = list_waiting(&waiting(&all, None).unwrap());
        for part in
            ["CleanupOrphans for OrphanContainer", "\"containerId\":\"abc\"", "nrh approve w1 --operation w1-op"]
        {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
        assert!(!text.contains("w2") && !text.contains("w3"), "{text}");
        assert_eq!(waiting(&all, Some("w1-e")).unwrap().len(), 1);
        let error = waiting(&all, Some("w2")).unwrap_err().to_string();
        assert!(error.contains("node or remediation w2") && error.contains("w1-op"), "{error}");
        assert_eq!((list_waiting(&[]).as_str(), these_do(&[]).as_str()), ("no step waits for approval\n", ""));
    }
}
