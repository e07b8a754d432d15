//! `nrh remediate`: a person's manual request for one step of a policy on one node, executed now.
//!
//! A person sees a step before it starts: without `--action` the command lists the confirmed faults of the node, and the steps
//! that are available for them.

use std::fmt::Write;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use serde::Serialize;

use crate::api::convert::{self, Invalid};
use crate::api::view::{node, report};
use crate::api::{ManualRequestSpec, NodeRemediation, NodeRemediationSpec, NodeRuntimeHealth, RemediationPolicy};
use crate::caller::{client, refused, whoami, within};
use crate::cli::RemediateArgs;
use crate::core::fault::{Fault, FaultState};
use crate::core::manual::{self, Choice};
use crate::core::matching::MatchContext;
use crate::core::policy::{ActionType, Mode, Policy};
use crate::core::text::{bounded, short_name};
use crate::objects;
use crate::terminal::{complain, print_as};

/// Longest line about a fault or a step, in bytes.
const MAX_LINE: usize = 512;

/// A confirmed fault, with the steps that a person can start for it.
struct Ready<'r> {
    fault: &'r Fault,
    choices: Vec<Choice<'r>>,
}

/// The fault in the form of `-o json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed<'r> {
    fault: &'r Fault,
    steps: Vec<ListedStep<'r>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ListedStep<'r> {
    policy: &'r str,
    rule: &'r str,
    step_index: usize,
    action: String,
}

impl<'r> Listed<'r> {
    fn of(ready: &'r Ready<'r>) -> Self {
        let step = |choice: &Choice<'r>| ListedStep {
            policy: &choice.policy.name,
            rule: &choice.rule.name,
            step_index: choice.step_index,
            action: choice.step.action.phrase(),
        };
        Self { fault: ready.fault, steps: ready.choices.iter().map(step).collect() }
    }
}

/// Runs `nrh remediate`.
///
/// # Errors
/// The cluster does not answer, the node has no such fault, no policy has such a step, several match, or the API server
/// refuses.
pub async fn run(args: RemediateArgs) -> anyhow::Result<()> {
    remediate(client(&args.cluster).await?, args).await
}

pub(crate) async fn remediate(client: Client, args: RemediateArgs) -> anyhow::Result<()> {
    if let Some(action) = args.action.filter(|action| action.traits().under_cordon) {
        let action = action.as_str();
        bail!("{action} is done under the cordon of its remediation: start the Cordon before it, and {action} follows");
    }
    let node = within(Api::<Node>::all(client.clone()).get(&args.node)).await;
    let node = node.with_context(|| format!("cannot read node {}", args.node))?;
    let health = within(Api::<NodeRuntimeHealth>::all(client.clone()).get(&args.node)).await;
    let health = health.with_context(|| format!("cannot read the report (noderuntimehealth) of node {}", args.node))?;
    let uid = node.uid().context("the node has no uid")?;
    if report::owner(&health.metadata).as_deref() != Some(&uid) {
        bail!(
            "the report of {} belongs to an earlier node of that name: wait for the probe of the current node",
            args.node
        );
    }
    let (listed, _) = objects::read::<RemediationPolicy>(client.clone()).await?;
    let (policies, unusable) = usable(&listed);
    for sentence in unusable {
        complain(&sentence);
    }

    let faults = confirmed(&health);
    let (labels, view) = (node.labels(), node::view(&node));
    // The engine checks the traits of pods later.
    let around =
        MatchContext { pods: None, runtime: view.runtime_version.as_deref(), kubelet: view.kubelet_version.as_deref() };
    let choices = |fault| manual::choices(&policies, labels, &around, fault, args.action);
    let ready: Vec<Ready<'_>> = faults.iter().map(|fault| Ready { fault, choices: choices(fault) }).collect();
    let Some(action) = args.action else {
        let listed: Vec<Listed<'_>> = ready.iter().map(Listed::of).collect();
        return print_as(args.print.output, &listed, |_| list_ready(&args.node, &ready));
    };
    let (fault, choice) = one(&args, &ready)?;
    let by = whoami(client.clone()).await?;
    let object = NodeRemediation {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-by-hand-", short_name(&plain(&args.node), 32).trim_end_matches('-'))),
            ..ObjectMeta::default()
        },
        spec: NodeRemediationSpec {
            node_name: args.node.clone(),
            node_uid: uid,
            policy: choice.policy.name.clone(),
            mode: Mode::Enforce,
            manual: Some(ManualRequestSpec {
                requested_by: by.clone(),
                fault: fault.kind,
                // The request is for the fault that the person saw, and for no other fault that comes while it waits.
                fault_id: Some(fault.id.clone()),
                action,
                policy_generation: Some(choice.policy.generation),
                reason: args.reason.clone(),
                start_timeout: args.timeout,
            }),
            ..NodeRemediationSpec::default()
        },
        status: None,
    };
    let made = within(Api::<NodeRemediation>::all(client).create(&PostParams::default(), &object)).await;
    let made = made.map_err(|error| {
        let right = "the verbs create, remediate and approve on noderemediations: ClusterRole nrh:manual-remediation";
        refused(error, "cannot start it", right)
    })?;
    print_as(args.print.output, &made, |made| asked(&by, &args.node, fault, choice, &made.name_any()))
}

/// The policies that can be used, and a sentence about each of the others.
fn usable(listed: &[RemediationPolicy]) -> (Vec<Policy>, Vec<String>) {
    let (mut policies, mut unusable) = (Vec::new(), Vec::new());
    for object in listed {
        match convert::policy(object) {
            Ok(policy) => policies.push(policy),
            Err(Invalid(why)) => {
                unusable.push(format!("policy {} cannot be used: {}", object.name_any(), why.join("; ")));
            }
        }
    }
    (policies, unusable)
}

/// The node's name in characters that are valid in an object name.
fn plain(node: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    node.chars().map(plain).collect::<String>().trim_matches('-').to_owned()
}

/// All confirmed faults of a report, including the controller's, most urgent first.
fn confirmed(health: &NodeRuntimeHealth) -> Vec<Fault> {
    let status = health.status.as_ref();
    let all = status.into_iter().flat_map(|status| status.faults.iter().chain(&status.cluster_faults));
    let mut all: Vec<Fault> = all.filter(|fault| fault.state == FaultState::Confirmed).cloned().collect();
    all.sort_by(Fault::by_urgency);
    all
}

/// The requested fault and step of one policy, or an error that says how to make the request unambiguous.
fn one<'r>(args: &RemediateArgs, ready: &'r [Ready<'r>]) -> anyhow::Result<(&'r Fault, &'r Choice<'r>)> {
    let is_meant =
        |fault: &Fault| args.fault.as_deref().is_none_or(|named| fault.id == named || fault.kind.as_str() == named);
    let is_its = |choice: &&Choice<'_>| args.policy.as_deref().is_none_or(|named| choice.policy.name == named);
    let mut found: Vec<(&Fault, &Choice<'_>)> = Vec::new();
    for one in ready.iter().filter(|one| is_meant(one.fault)) {
        // Of one policy the first such step counts: the others follow it.
        for choice in one.choices.iter().filter(is_its) {
            if !found.iter().any(|(fault, known)| fault.id == one.fault.id && known.policy.name == choice.policy.name) {
                found.push((one.fault, choice));
            }
        }
    }
    match found.as_slice() {
        [one] => Ok(*one),
        [] => bail!(
            "{} is no step for a fault that is confirmed now{}{}; without --action all are listed:\n{}",
            args.action.map_or("this", ActionType::as_str),
            args.fault.as_ref().map_or_else(String::new, |fault| format!(", of --fault {fault}")),
            args.policy.as_ref().map_or_else(String::new, |policy| format!(", in --policy {policy}")),
            list_ready(&args.node, ready)
        ),
        several => {
            let lines = several.iter().map(|(fault, choice)| format!("  {}", line(&args.node, fault, choice)));
            let lines = lines.collect::<Vec<_>>().join("\n");
            bail!("there are several: say which with --fault (a type or an id) and --policy\n{lines}")
        }
    }
}

/// The command that starts a step.
fn line(node: &str, fault: &Fault, choice: &Choice<'_>) -> String {
    let action = choice.step.action.kind().as_str();
    let text = format!(
        "{}, step {} of rule {} of policy {}: nrh remediate {node} --fault {} --action {action} --policy {}",
        choice.step.action.phrase(),
        choice.step_index + 1,
        choice.rule.name,
        choice.policy.name,
        fault.id,
        choice.policy.name
    );
    bounded(&text, MAX_LINE)
}

/// Confirmed faults with their available steps.
fn list_ready(node: &str, ready: &[Ready<'_>]) -> String {
    let mut text = String::new();
    for one in ready {
        // A write to a text does not fail. Names come from the node: they must not move the reader's cursor.
        let what = bounded(&format!("{}: {}", one.fault, one.fault.message), MAX_LINE);
        let _ = writeln!(text, "{what}");
        for choice in &one.choices {
            let _ = writeln!(text, "  {}", line(node, one.fault, choice));
        }
        if one.choices.is_empty() {
            let _ = writeln!(text, "  no enforcing policy that selects the node has such a step for it");
        }
    }
    if text.is_empty() { format!("no fault is confirmed on node {node}\n") } else { text }
}

/// The request that was written, and what follows.
fn asked(by: &str, node: &str, fault: &Fault, choice: &Choice<'_>, name: &str) -> String {
    let action = choice.step.action.phrase();
    let what = bounded(&format!("{action} for {fault} on node {node}"), MAX_LINE);
    let rest: Vec<String> =
        choice.rule.steps.iter().skip(choice.step_index + 1).map(|step| step.action.phrase()).collect();
    let then = if rest.is_empty() { "nothing else".to_owned() } else { rest.join(", ") };
    format!(
        "asked for by {by}: {what}\n  as policy {} has it, within its limits and windows; if it does not help: {then}\n  \
         follow it: kubectl get nrem {name} -w\n  stop it: nrh cancel {name}\n",
        choice.policy.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(name: &str, steps: &serde_json::Value) -> RemediationPolicy {
        let object = json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy", "metadata": {"name": name},
            "spec": {"mode": "Enforce", "rules": [{"name": "r", "match": {"faults": ["HungContainer"]}, "steps": steps}]}});
        serde_json::from_value(object).unwrap()
    }

    fn policy(name: &str, steps: &serde_json::Value) -> Policy {
        convert::policy(&object(name, steps)).unwrap()
    }

    #[test]
    fn an_invalid_policy_is_named_and_the_others_are_used() {
        let listed = [object("empty", &json!([])), object("good", &json!([{"action": "Notify"}]))];
        let (policies, unusable) = usable(&listed);
        assert_eq!(policies.iter().map(|policy| policy.name.as_str()).collect::<Vec<_>>(), ["good"]);
        assert!(unusable.len() == 1 && unusable[0].starts_with("policy empty cannot be used: "), "{unusable:?}");
    }

    fn health(names: &[&str]) -> NodeRuntimeHealth {
        let fault = |name: &&str| {
            json!({"id": format!("hungcontainer-{name}"), "type": "HungContainer", "severity": "High", "state": "Confirmed",
            "message": "does not answer", "firstSeen": "2026-01-01T00:00:00Z", "subject": {"kind": "Container", "name": name}})
        };
        let mut faults: Vec<_> = names.iter().map(fault).collect();
        faults.push(json!({"id": "x", "type": "DiskFull", "severity": "High", "state": "Suspected", "message": "",
            "firstSeen": "2026-01-01T00:00:00Z", "subject": {"kind": "Host"}}));
        serde_json::from_value(
            json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRuntimeHealth", "metadata": {"name": "w1"},
            "spec": {}, "status": {"faults": faults}}),
        )
        .unwrap()
    }

    fn args(action: &str, more: &[&str]) -> RemediateArgs {
        use clap::Parser;
        let line = [&["nrh", "remediate", "w1", "--action", action], more].concat();
        let crate::cli::Command::Remediate(args) = crate::cli::Cli::try_parse_from(line).unwrap().command else {
            panic!()
        };
        args
    }

    #[test]
    fn one_step_of_one_policy_is_started_or_it_is_asked_which() {
        let release = |signal: &str| json!({"action": "ReleaseHungProcess", "releaseHungProcess": {"signal": signal}});
        let [cordon, drain, restart] = ["Cordon", "Drain", "RestartKubelet"].map(|action| json!({"action": action}));
        let policies = [
            policy("a", &json!([cordon, drain, restart, release("SIGCONT"), release("SIGKILL")])),
            policy("b", &json!([release("SIGKILL")])),
        ];
        let faults = confirmed(&health(&["log", "web"]));
        assert_eq!(faults.len(), 2, "a suspicion is none");
        let of = |action| -> Vec<Ready<'_>> {
            let choices = |fault| {
                manual::choices(&policies, &std::collections::BTreeMap::new(), &MatchContext::default(), fault, action)
            };
            faults.iter().map(|fault| Ready { fault, choices: choices(fault) }).collect()
        };
        let all = list_ready("w1", &of(None));
        for part in [
            "HungContainer (",
            "step 4 of rule r of policy a: nrh remediate w1 --fault hungcontainer-log --action ReleaseHungProcess --policy a",
            "ReleaseHungProcess(SIGKILL), step 1 of rule r of policy b",
        ] {
            assert!(all.contains(part), "{part:?} is missing in:\n{all}");
        }
        assert!(!all.contains("Drain") && !all.contains("RestartKubelet"), "they are never started so:\n{all}");
        let wanted = args("ReleaseHungProcess", &["--policy", "a", "--fault", "hungcontainer-web"]);
        let ready = of(wanted.action);
        let (fault, choice) = one(&wanted, &ready).unwrap();
        assert_eq!((fault.id.as_str(), choice.policy.name.as_str(), choice.step_index), ("hungcontainer-web", "a", 3));
        let text = asked("ann", "w1", fault, choice, "w1-by-hand-x");
        for part in ["if it does not help: ReleaseHungProcess(SIGKILL)", "nrh cancel w1-by-hand-x"] {
            assert!(text.contains(part), "{text}");
        }
        let several = one(&args("ReleaseHungProcess", &["--policy", "a"]), &ready).unwrap_err().to_string();
        assert!(several.contains("say which") && several.contains("hungcontainer-log"), "{several}");
        let none = args("RestartKubelet", &["--policy", "c"]);
        let error = one(&none, &of(none.action)).unwrap_err().to_string();
        assert!(
            error.starts_with("RestartKubelet is no step for a fault that is confirmed now, in --policy c;"),
            "{error}"
        );
        assert_eq!(list_ready("w1", &[]), "no fault is confirmed on node w1\n");
        assert_eq!(plain("ip-10.eu.Internal"), "ip-10-eu-internal");
    }
}
