//! The explanation of one node as data: the content of `-o json`, and the source of the text.

use jiff::Timestamp;
use serde::Serialize;

use nrh_api::NodeRuntimeHealthStatus;
use nrh_api::health::{CollectorState, CollectorStatus};
use nrh_core::blocked::BlockReason;
use nrh_core::fault::{Fault, FaultState};
use nrh_core::flap::FlapView;
use nrh_core::plan::{Effect, Health, Operation, Plan};
use nrh_core::policy::{Policy, Rule};
use nrh_core::remediation::{Phase, Remediation, StepRecord};
use nrh_core::snapshot::Snapshot;

/// Largest number of unusable objects that are named.
const MOST_INVALID: usize = 20;
/// Largest number of remediations, and of manual requests, of one node.
const MOST_REMEDIATIONS: usize = 5;

/// Everything that is known about one node, and the decisions on it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explanation<'a> {
    pub node: &'a str,
    pub health: Health,
    /// Who has suspended all remediation, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspended: Option<&'a str>,
    /// Why the controller executes nothing on this node, whatever the faults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excluded: Option<&'a str>,
    /// Why the engine does not use its report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report_unused: Option<String>,
    /// The probe, if it has ever reported.
    pub probe: Option<Probe>,
    /// Whether the report cannot be read.
    pub report_unreadable: bool,
    /// What the probe lacks, one line each.
    pub missing_capabilities: Vec<&'a str>,
    /// Collectors of the probe that cannot check now.
    pub collectors: Vec<&'a CollectorStatus>,
    /// Objects that cannot be used, one sentence each; at most 20.
    pub invalid: Vec<&'a str>,
    /// How many more cannot be used.
    pub invalid_omitted: usize,
    /// Policies that are not valid, so that nobody knows whether they select the node; at most 20.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unusable_policies: Vec<&'a str>,
    /// How often the node changes, while that is more than a reboot causes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flapping: Option<String>,
    /// Faults, the most severe first.
    pub faults: Vec<ExplainedFault<'a>>,
    /// Faults that only the controller can find, since only the controller reads pods.
    pub controller_faults: Vec<&'a Fault>,
    /// What the controller last wrote about the node.
    pub controller_messages: Vec<&'a str>,
    /// Whether the controller last wrote that it is blocked there. It knows more than these objects: its ledger, its rights, whether the
    /// admission policies are in force.
    pub controller_is_blocked: bool,
    /// Steps that are passed over now, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<String>,
    /// Actions that start now, by these objects.
    pub now: Vec<String>,
    /// Steps that people have requested and that have not started.
    pub manual_requests: Vec<Manual<'a>>,
    /// The newest remediations, at most 5.
    pub remediations: Vec<Recorded<'a>>,
    /// Seconds until the controller decides again, if nothing changes before.
    pub decided_again_seconds: Option<u64>,
}

/// The probe's last report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Probe {
    /// Seconds since its last report.
    pub last_report_seconds: u64,
    /// Seconds within which it promises the next one.
    pub interval_seconds: u64,
    /// Whether it may execute actions.
    pub actions_enabled: bool,
}

/// A fault, and what is decided on it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExplainedFault<'a> {
    pub fault: &'a Fault,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<&'a str>,
    /// The steps of the rule, in order.
    pub steps: Vec<String>,
    /// Why nothing is done about it now.
    pub blocked: Vec<Block<'a>>,
}

/// One reason why nothing is done.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Block<'a> {
    pub reason: BlockReason,
    pub message: &'a str,
}

/// A step that a person has requested.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Manual<'a> {
    pub name: &'a str,
    pub policy: &'a str,
    /// What is requested, for which fault, by whom.
    pub request: String,
    /// Why it has not started.
    pub message: &'a str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Recorded<'a> {
    pub name: &'a str,
    pub policy: &'a str,
    pub phase: Phase,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Why, in one sentence.
    pub message: &'a str,
    pub attempts: &'a [StepRecord],
}

impl<'a> Explanation<'a> {
    /// The facts and decisions on one node. `status` is the status of its report, if that can be read.
    pub(super) fn new(
        node: &'a str,
        snapshot: &'a Snapshot,
        decided: &'a Plan,
        status: Option<&'a NodeRuntimeHealthStatus>,
        invalid: &'a [String],
    ) -> Self {
        let status_view = decided.nodes.get(node);
        let own = status_view.map(|status_view| status_view.cluster_faults.as_slice()).unwrap_or_default();
        // Only the controller reads pods.
        let found = status.into_iter().flat_map(|status| &status.cluster_faults);
        let summary = status.and_then(|status| status.summary.as_ref());
        let messages: Vec<&String> =
            status.and_then(|status| status.remediation.as_ref()).into_iter().flat_map(|one| &one.blocked).collect();
        let probe = || status.into_iter().filter_map(|status| status.probe.as_ref());
        let beyond: Vec<&Fault> = found.filter(|fault| own.iter().all(|own| own.id != fault.id)).collect();
        let health = match summary {
            Some(summary) if !beyond.is_empty() => summary.health,
            _ if beyond.iter().any(|fault| fault.state == FaultState::Confirmed) => Health::Unhealthy,
            _ => status_view.map(|status_view| status_view.health).unwrap_or_default(),
        };
        let report = snapshot.reports.get(node);
        let reported = report.into_iter().flat_map(|report| report.faults.iter().map(|seen| &seen.fault));
        let activity = summary.map(|summary| summary.activity.as_str()).filter(|text| !text.is_empty());
        let requests = snapshot.manual_requests.values().filter(|manual| manual.node == node);
        let mut remediations: Vec<&Remediation> =
            snapshot.remediations.values().filter(|remediation| remediation.node == node).collect();
        remediations.sort_by_key(|remediation| std::cmp::Reverse(remediation.started_at));
        Self {
            node,
            health,
            suspended: snapshot.suspended.as_deref(),
            excluded: status_view.and_then(|status_view| status_view.excluded.as_deref()),
            report_unused: unused(node, snapshot),
            probe: report.and_then(|report| report.heartbeat.as_ref()).map(|beat| Probe {
                last_report_seconds: beat.arrived.as_secs(),
                interval_seconds: beat.interval.as_secs(),
                actions_enabled: beat.actions_enabled,
            }),
            report_unreadable: report.is_some() && status.is_none(),
            missing_capabilities: probe().flat_map(|probe| &probe.missing_capabilities).map(String::as_str).collect(),
            collectors: probe()
                .flat_map(|probe| &probe.collectors)
                .filter(|one| !matches!(one.state, CollectorState::Ok | CollectorState::Starting))
                .collect(),
            invalid: invalid.iter().take(MOST_INVALID).map(String::as_str).collect(),
            invalid_omitted: invalid.len().saturating_sub(MOST_INVALID),
            unusable_policies: snapshot.unusable_policies.iter().take(MOST_INVALID).map(String::as_str).collect(),
            flapping: snapshot.flaps.get(node).filter(|flap| flap.flapping.is_some()).map(FlapView::describe),
            faults: reported.chain(own).map(|fault| explained(node, fault, snapshot, decided)).collect(),
            controller_is_blocked: !messages.is_empty(),
            controller_messages: activity.into_iter().chain(messages.into_iter().map(String::as_str)).collect(),
            controller_faults: beyond,
            passed_over: decided.effects.iter().flat_map(|effect| passed_over(node, effect, snapshot)).collect(),
            now: decided.effects.iter().filter_map(|effect| starts(node, effect)).collect(),
            manual_requests: requests
                .take(MOST_REMEDIATIONS)
                .map(|manual| Manual {
                    name: &manual.name,
                    policy: &manual.policy,
                    request: manual.phrase(),
                    message: &manual.message,
                })
                .collect(),
            remediations: remediations.into_iter().take(MOST_REMEDIATIONS).map(recorded).collect(),
            decided_again_seconds: decided.next.map(|next| next.as_secs().max(1)),
        }
    }
}

/// Why the report is not used, if so: without that reason every fault looks as if no policy selected it.
fn unused(node: &str, snapshot: &Snapshot) -> Option<String> {
    let Some(view) = snapshot.nodes.get(node) else {
        return Some(format!("Node {node} is not among the objects: without it nothing is decided"));
    };
    let owner = snapshot.reports.get(node)?.node_uid.as_deref();
    (owner != Some(view.uid.as_str())).then(|| {
        let owner = owner.unwrap_or("none");
        format!(
            "the report is not about this Node (expected an owner with uid {}, found {owner}): it is not used",
            view.uid
        )
    })
}

fn explained<'a>(node: &str, fault: &'a Fault, snapshot: &'a Snapshot, decided: &'a Plan) -> ExplainedFault<'a> {
    let found = rule_for(node, fault, snapshot, decided);
    let its = decided.blocked.iter().filter(|block| block.node == node && block.fault_id.as_deref() == Some(&fault.id));
    ExplainedFault {
        fault,
        policy: found.map(|(policy, _)| policy.name.as_str()),
        rule: found.map(|(_, rule)| rule.name.as_str()),
        steps: found.map_or_else(Vec::new, |(_, rule)| rule.steps.iter().map(|step| step.action.phrase()).collect()),
        blocked: its.map(|block| Block { reason: block.reason, message: &block.message }).collect(),
    }
}

/// The rule that the decision has chosen for a fault, with its policy.
fn rule_for<'s>(node: &str, fault: &Fault, snapshot: &'s Snapshot, decided: &Plan) -> Option<(&'s Policy, &'s Rule)> {
    let assigned = decided.nodes.get(node)?.assigned_rules.get(&fault.id)?;
    let policy = snapshot.policies.iter().find(|policy| policy.name == assigned.policy)?;
    Some((policy, policy.rule(assigned.rule.as_deref()?)?))
}

fn recorded(remediation: &Remediation) -> Recorded<'_> {
    Recorded {
        name: &remediation.name,
        policy: &remediation.policy,
        phase: remediation.phase,
        finished_at: remediation.finished_at,
        message: &remediation.message,
        attempts: &remediation.steps,
    }
}

/// The steps that this effect records as ended before they began: skipped, or of a dry run.
fn passed_over(node: &str, effect: &Effect, snapshot: &Snapshot) -> Vec<String> {
    let (Effect::WriteRemediation(written) | Effect::BeginManualRequest(written)) = effect else { return Vec::new() };
    let known = snapshot.remediations.get(&written.name).map(|known| known.steps.as_slice()).unwrap_or_default();
    let is_new = |step: &&StepRecord| known.iter().all(|known| known.operation_id != step.operation_id);
    let ended = written.steps.iter().filter(|step| written.node == node && step.state.is_final()).filter(is_new);
    ended.map(|step| format!("{}: {}", step.phrase(), step.message)).collect()
}

/// The action that this effect starts on the node, if any.
fn starts(node: &str, effect: &Effect) -> Option<String> {
    let Effect::Act { node: target, operation, .. } = effect else { return None };
    (target == node).then(|| match operation {
        Operation::Cordon => "Cordon".to_owned(),
        Operation::Taint(effect) => format!("Taint({})", effect.as_str()),
        Operation::Drain(_) => "Drain".to_owned(),
        Operation::DeletePod(pod) => format!("DeletePod {pod}"),
        Operation::RunJob(command) => format!("{} by Job", command.action.phrase()),
        Operation::GiveCommand(command) => format!("{} by Probe", command.action.phrase()),
        Operation::HandOff(with) => format!("HandOff by {}", with.remediation_template),
        Operation::Notify(message) => format!("Notify: {message}"),
    })
}
