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
use crate::core::remediation::{Approval, Remediation};
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
        let listed: Vec<Waiting<'_>> = waiting.iter().filter_map(|remediation| Waiting::of(remediation)).collect();
        return print_as(args.print.output, &listed, |_| list_waiting(&waiting));
    };
    let Some(remediation) = waiting.iter().find(|remediation| remediation.unanswered() == Some(operation.as_str()))
    else {
        bail!("operation {operation} does not wait for approval (any more); what does:\n{}", list_waiting(&waiting));
    };
    let api: Api<NodeRemediation> = Api::all(client.clone());
    let by = whoami(client).await?;
    let approval = Approval { approved_by: by, operation_id: operation };
    let patch = Patch::Merge(json!({"spec": {"approval": approval}}));
    let approved = within(api.patch(&remediation.name, &PatchParams::default(), &patch)).await.map_err(|error| {
        let what = format!("cannot approve {} in remediation {}", approval.operation_id, remediation.name);
        refused(error, &what, "the verbs patch and approve on noderemediations: ClusterRole nrh:approver")
    })?;
    print_as(args.print.output, &approved, |_| {
        let (by, what, name) = (&approval.approved_by, line(remediation), &remediation.name);
        format!("approved by {by}: {what}; `kubectl get nrem {name}` shows the result\n")
    })
}

/// A waiting step, in the form of `-o json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Waiting<'a> {
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

impl<'a> Waiting<'a> {
    fn of(remediation: &'a Remediation) -> Option<Self> {
        let step = remediation.current_step()?;
        Some(Self {
            remediation: &remediation.name,
            node: &remediation.node,
            policy: &remediation.policy,
            operation_id: &step.operation_id,
            action: step.phrase(),
            fault_id: &step.fault_id,
            target: &step.target,
            since: step.scheduled_at,
            approve_command: remediation.approve_command(&step.operation_id),
        })
    }
}

/// Remediations with a waiting step, of this node or of this name.
fn waiting<'e>(remediations: &'e [Remediation], what: Option<&str>) -> anyhow::Result<Vec<&'e Remediation>> {
    let all: Vec<&Remediation> = remediations.iter().filter(|remediation| remediation.unanswered().is_some()).collect();
    let Some(what) = what else { return Ok(all) };
    let its = all.iter().copied().filter(|remediation| remediation.node == what || remediation.name == what);
    let its: Vec<&Remediation> = its.collect();
    if its.is_empty() {
        let others = if all.is_empty() { "no other step does".to_owned() } else { list_waiting(&all) };
        bail!("no step on node (or in remediation) {what} waits for approval; {others}");
    }
    Ok(its)
}

/// The action and its target, in one sentence.
fn line(remediation: &Remediation) -> String {
    let Some(step) = remediation.current_step() else { return String::new() };
    let text = format!("{} on node {}, policy {}", remediation.purpose(step), remediation.node, remediation.policy);
    // Names come from the node: they must not move the cursor of the person who decides.
    bounded(&text, MAX_LINE)
}

/// The waiting steps, with the command that approves each.
fn list_waiting(waiting: &[&Remediation]) -> String {
    let mut text = String::new();
    for remediation in waiting {
        let Some(step) = remediation.current_step() else { continue };
        let touches = bounded(&serde_json::to_string(&step.target).unwrap_or_default(), MAX_LINE);
        // A write to a text does not fail.
        let _ = writeln!(text, "{}", line(remediation));
        let _ = writeln!(text, "  waits since {}, would touch {touches}", clock(step.scheduled_at));
        let yes = remediation.approve_command(&step.operation_id);
        let _ = writeln!(text, "  why: kubectl describe nrh {}; yes: {yes}", remediation.node);
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
    fn what_waits_is_told_with_what_a_yes_would_touch() {
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
        assert!(error.contains("node (or in remediation) w2") && error.contains("w1-op"), "{error}");
        assert_eq!(list_waiting(&[]), "no step waits for approval\n");
    }
}
