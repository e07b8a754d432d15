//! `nrh restart-safe`: whether the kubelet and the runtime of a node can be restarted now, by a check that is newer than the
//! request.

use std::process;
use std::time::Duration;

use anyhow::{anyhow, bail};
use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::No;
use crate::api::condition::{find, status_of};
use crate::api::{ConditionType, NodeRuntimeHealth};
use crate::caller::{client, error_text, refused, within};
use crate::cli::RestartSafeArgs;
use crate::core::snapshot::TriState;
use crate::core::text::bounded;
use crate::terminal::print_as;

/// Time between two reads of the object.
const EVERY: Duration = Duration::from_millis(500);
/// Default wait: the probe takes about ten seconds on a full node.
const WAIT: Duration = Duration::from_secs(30);
/// Longest reason that is printed, in bytes.
const MAX_REASON: usize = 2048;

/// Runs `nrh restart-safe`.
///
/// # Errors
/// [`No`] where a restart does harm. Any other error: there was no answer within the time.
pub async fn run(args: RestartSafeArgs) -> anyhow::Result<()> {
    let (node, began) = (args.node.as_str(), Instant::now());
    let asked = ask(&args).await;
    let (safe, reason) = match &asked {
        Ok(object) => verdict(object),
        Err(error) => (TriState::Unknown, bounded(&error_text(error), MAX_REASON)),
    };
    let seconds = asked.is_ok().then(|| began.elapsed().as_secs() + 1);
    let answer = Answer { node, restart_safe: safe.as_str(), reason: &reason, checked_within_seconds: seconds };
    print_as(args.print.output, &answer, Answer::line)?;
    match safe {
        TriState::True => Ok(()),
        TriState::False => Err(No(format!("do not restart the kubelet or the runtime of node {node} now")).into()),
        TriState::Unknown => bail!(
            "whether the kubelet or the runtime of node {node} can be restarted is not known: do not restart; `kubectl \
             describe nrh {node}` says what is not known"
        ),
    }
}

/// Asks the probe of the node for a check, and returns the report with it.
///
/// # Errors
/// The cluster cannot be reached, or there was no answer within the time.
async fn ask(args: &RestartSafeArgs) -> anyhow::Result<NodeRuntimeHealth> {
    let node = args.node.as_str();
    let wait = args.timeout.map_or(WAIT, crate::api::HumanDuration::get);
    let api: Api<NodeRuntimeHealth> = Api::all(client(&args.cluster).await?);
    let name = name(Timestamp::now(), process::id());
    let patch = Patch::Merge(json!({"spec": {"checkRequested": name}}));
    let before = within(api.patch(node, &PatchParams::default(), &patch)).await.map_err(|error| {
        let right = "the verb patch on noderuntimehealths: ClusterRole nrh:operator";
        refused(error, &format!("cannot ask for a check of node {node}"), right)
    })?;
    let mut last = Err(anyhow!("its NodeRuntimeHealth was not read"));
    let answered = async {
        loop {
            last = within(api.get(node)).await;
            if let Ok(object) = &last
                && is_answered(object, &name, answer_of(&before))
            {
                return object.clone();
            }
            sleep(EVERY).await;
        }
    };
    match timeout(wait, answered).await {
        Ok(object) => Ok(object),
        Err(_) => bail!("no answer from node {node} within {} s: {}", wait.as_secs(), whereabouts(node, last)),
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    node: &'a str,
    restart_safe: &'a str,
    reason: &'a str,
    /// Absent without a check.
    #[serde(skip_serializing_if = "Option::is_none")]
    checked_within_seconds: Option<u64>,
}

impl Answer<'_> {
    fn line(&self) -> String {
        let Self { node, restart_safe, reason, checked_within_seconds } = self;
        let checked = checked_within_seconds.map_or_else(String::new, |within| format!(" (checked within {within} s)"));
        format!("node {node}: RestartSafe {restart_safe}: {reason}{checked}\n")
    }
}

/// A name that no other request has.
fn name(now: Timestamp, process: u32) -> String {
    format!("restart-safe-{}-{process}", now.as_millisecond())
}

/// The request that the report answers.
fn answer_of(object: &NodeRuntimeHealth) -> Option<&str> {
    object.status.as_ref()?.probe.as_ref()?.check_answered.as_deref()
}

/// Whether the report is newer than the request of this name: it answers that request, or a later one that has replaced it. An
/// answer with the name of the one `before` the request proves nothing.
fn is_answered(object: &NodeRuntimeHealth, name: &str, before: Option<&str>) -> bool {
    let answered = answer_of(object).filter(|answered| Some(*answered) != before);
    answered.is_some_and(|answered| answered == name || object.spec.check_requested.as_deref() == Some(answered))
}

/// The verdict of the report, and its reason.
fn verdict(object: &NodeRuntimeHealth) -> (TriState, String) {
    let conditions = object.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let condition = find(conditions, ConditionType::RestartSafe);
    let reason = condition.map_or("its report does not say", |condition| condition.message.as_str());
    (status_of(conditions, ConditionType::RestartSafe), bounded(reason, MAX_REASON))
}

/// Where the request may be stuck.
fn whereabouts(node: &str, last: anyhow::Result<NodeRuntimeHealth>) -> String {
    let status = match last {
        Err(error) => return error_text(&error),
        Ok(object) => object.status.unwrap_or_default(),
    };
    if status.probe.is_none() {
        return "its probe has never reported; `nrh check` says whether one runs there".to_owned();
    }
    if status_of(&status.conditions, ConditionType::ProbeReporting) == TriState::False {
        return format!("its probe does not report; `kubectl describe nrh {node}` says since when");
    }
    format!(
        "its probe has not asked every container yet, or has not heard of it: `kubectl get ncmd {node} -o yaml` shows whether the \
         controller has passed the request on"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::api::is_check_name;

    fn object(requested: &str, answered: &Value, safe: &str) -> NodeRuntimeHealth {
        let condition = json!({"type": "RestartSafe", "status": safe, "reason": "R", "message": "since a shim is deaf",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        serde_json::from_value(json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRuntimeHealth",
            "metadata": {"name": "w1"}, "spec": {"checkRequested": requested},
            "status": {"conditions": [condition], "probe": {"version": "1", "mode": "Pod", "bootId": "b", "sequence": 1,
                "intervalSeconds": 300, "checkAnswered": answered}}}))
        .unwrap()
    }

    #[test]
    fn only_a_report_that_answers_this_request_or_a_later_one_counts() {
        let is =
            |requested: &str, answered: Value| is_answered(&object(requested, &answered, "True"), "mine", Some("old"));
        assert!(is("mine", json!("mine")));
        assert!(!is("mine", Value::Null) && !is("mine", json!("before")));
        assert!(is("later", json!("later")) && is("later", json!("mine")));
        assert!(!is("later", json!("before")) && !is("old", json!("old")));
        let bare: NodeRuntimeHealth = serde_json::from_value(json!({"apiVersion": "runtimehealth.io/v1alpha1",
            "kind": "NodeRuntimeHealth", "metadata": {"name": "w1"}, "spec": {}}))
        .unwrap();
        assert!(!is_answered(&bare, "mine", None));
        assert_eq!(verdict(&bare).0, TriState::Unknown);
        assert!(whereabouts("w1", Ok(bare)).contains("never reported"));
    }

    #[test]
    fn the_verdict_is_the_conditions_with_its_reason() {
        for (status, safe) in [("True", TriState::True), ("False", TriState::False), ("Unknown", TriState::Unknown)] {
            let line = verdict(&object("a", &json!("a"), status));
            assert_eq!(line, (safe, "since a shim is deaf".to_owned()));
        }
    }

    #[test]
    fn names_are_names() {
        let name = name(Timestamp::now(), u32::MAX);
        assert!(is_check_name(&name), "{name}");
        for wrong in ["", "-a", "a b", "a\n", "é", &"x".repeat(64)] {
            assert!(!is_check_name(wrong), "{wrong:?}");
        }
    }
}
