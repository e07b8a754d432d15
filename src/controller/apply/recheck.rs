//! The last look before an act: everything that may say no is read again, live, not from the cache of the watches; an answer of the
//! last quarter of a second counts as live.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use tokio::time::Instant;

use super::{Applier, ApplyError, reboot};
use crate::api::policy::{PolicyRule, PolicyStep};
use crate::api::{NodeRemediation, NodeRuntimeHealth, RemediationPolicy, convert};
use crate::controller::cache::arrival::Arrivals;
use crate::controller::cache::fold::Folds;
use crate::controller::cache::{node, pods, report};
use crate::controller::calls::bounded_opt;
use crate::core::episode::{Episode, EpisodeFault, StepRecord};
use crate::core::fault::{FaultState, FaultType, PodRef};
use crate::core::foreign::Asked;
use crate::core::narrow::asks_of_pods;
use crate::core::plan::EVIDENCE_MAX_AGE;
use crate::core::policy::{ActionType, ApprovalMode, Mode, Policy};
use crate::core::snapshot::{NodeView, Tri, missed_after};
use kube::core::DeserializeGuard;

mod meant;

use meant::{LivePod, Question, still_meant};

/// What is about to be done, for which the last look is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look<'a> {
    /// The episode.
    pub episode: &'a str,
    /// The operation of its step.
    pub operation: &'a str,
    /// The node.
    pub node: &'a str,
    /// The node's uid.
    pub node_uid: &'a str,
    /// The version of the ledger in which the episode's slot was stored.
    pub paid_from: &'a str,
}

/// What was read, when nothing in it says no.
#[derive(Debug)]
pub(super) struct Live {
    /// The node.
    pub node: Node,
    /// Its report.
    pub report: NodeRuntimeHealth,
    /// The episode, as it stands now.
    pub episode: Episode,
}

/// What was read.
struct Read {
    node: Option<Node>,
    report: Option<NodeRuntimeHealth>,
    policy: Option<RemediationPolicy>,
    /// Whether that policy was read for this look alone.
    is_policy_new: bool,
    episode: Option<NodeRemediation>,
    /// The pod of the fault, where a policy asks for labels or owners.
    pod: Option<LivePod>,
    /// The other policies, as the controller knows them.
    others: Vec<Policy>,
}

impl Applier {
    /// Reads node, report, policy and episode again. What was read is folded in, so that a "no" is the base
    /// of the next decision.
    ///
    /// The ledger must still be the version that this process has written. Who was overtaken without knowing it, since its machine
    /// stood still with all its clocks, would spend a slot that the next leader may have given back: its episode did not show then. The
    /// episode is known to be there before the ledger is asked for; so if the version is the same, whoever leads from then on finds that
    /// episode and keeps its slot.
    pub(super) async fn recheck(&self, look: Look<'_>) -> Result<Live, ApplyError> {
        let Look { episode: name, operation, node, node_uid, paid_from } = look;
        let policy = self.cache.lock().snapshot.episodes.get(name).map(|e| e.policy.clone());
        let policy = policy.ok_or_else(|| ApplyError::NotNow(format!("episode {name} is not known any more")))?;
        let pod = self.asked_pod(name, operation);
        let read = Box::pin(self.read_again(name, node, &policy, pod));
        let ledger = async { Ok(self.lately.ledger(&self.calls).await?) };
        let (read, ledger) = futures::try_join!(read, ledger)?;
        self.fold_in(&read);
        if ledger.as_deref() != Some(paid_from) {
            let found = ledger.unwrap_or_else(|| "none".to_owned());
            return Err(ApplyError::Overtaken { expected: paid_from.to_owned(), found });
        }
        let live = judge(read, operation, node_uid, &policy).map_err(ApplyError::NotNow)?;
        let state = self.cache.lock();
        let unseen = Arrivals::default();
        let arrivals = state.arrivals.get(node).unwrap_or(&unseen);
        fresh(&live, operation, arrivals, Instant::now()).map_err(ApplyError::NotNow)?;
        drop(state);
        Ok(live)
    }

    /// The pod of the fault of a step, where any policy asks for labels or owners.
    fn asked_pod(&self, episode: &str, operation: &str) -> Option<PodRef> {
        let state = self.cache.lock();
        let episode = state.snapshot.episodes.get(episode)?;
        let step = episode.steps.iter().find(|step| step.operation_id == operation)?;
        let fault = episode.fault(&step.fault_id)?;
        let pod = fault.subject.pod.as_ref().or(step.target.pod.as_ref())?;
        asks_of_pods(&state.snapshot.policies).then(|| pod.clone())
    }

    /// That pod, read now.
    async fn read_pod(&self, named: Option<PodRef>) -> Result<Option<LivePod>, ApplyError> {
        let Some(named) = named else { return Ok(None) };
        let api = self.calls.read_in::<Pod>(&named.namespace);
        let pod = bounded_opt(|| format!("reading pod {named}"), api.get(&named.name)).await?;
        if let Some(pod) = pod.filter(|pod| pods::names(pod).any(|name| name == named)) {
            return Ok(Some(LivePod::There(named, Box::new(pod))));
        }
        let last = self.cache.lock().known_pods.gone(&named);
        Ok(Some(LivePod::Gone(named, last)))
    }

    async fn read_again(
        &self,
        episode: &str,
        node: &str,
        policy: &str,
        pod: Option<PodRef>,
    ) -> Result<Read, ApplyError> {
        let calls = &self.calls;
        let (nodes, reports) = (calls.read::<Node>(), calls.read::<NodeRuntimeHealth>());
        let all = async {
            Ok(futures::try_join!(
                bounded_opt(|| format!("reading Node {node}"), nodes.get(node)),
                bounded_opt(|| format!("reading NodeRuntimeHealth {node}"), reports.get(node)),
                self.lately.policy(calls, policy),
                self.lately.episode(calls, episode),
            )?)
        };
        let ((node, report, policy, episode), pod) = futures::try_join!(all, self.read_pod(pod))?;
        let others = self.cache.lock().snapshot.policies.clone();
        let is_policy_new = policy.as_ref().is_some_and(|read| read.is_new);
        let policy = policy.map(|read| read.policy);
        Ok(Read { node, report, policy, is_policy_new, episode, pod, others })
    }

    fn fold_in(&self, read: &Read) {
        let (mut state, now) = (self.cache.lock(), Instant::now());
        if let Some(node) = read.node.clone() {
            node.fold(&mut state, now);
        }
        if let Some(report) = read.report.clone() {
            report.fold(&mut state, now);
        }
        if let Some(policy) = read.policy.clone().filter(|_| read.is_policy_new) {
            DeserializeGuard(Ok(policy)).fold(&mut state, now);
        }
        if let Some(episode) = read.episode.clone() {
            episode.fold(&mut state, now);
        }
    }
}

/// Whether the act may go on; if not, which object said no, what was expected and what was found.
fn judge(read: Read, operation: &str, node_uid: &str, policy_name: &str) -> Result<Live, String> {
    let episode = read.episode.as_ref().map(convert::episode).ok_or("its episode is gone")?;
    if episode.deleting || episode.phase.is_final() {
        return Err(format!("episode {} is at an end ({})", episode.name, episode.phase.as_str()));
    }
    if let Some(cancel) = &episode.cancel {
        return Err(format!("episode {} was cancelled {}", episode.name, cancel.told()));
    }
    if episode.mode != Mode::Enforce {
        return Err(format!("episode {} is a dry run", episode.name));
    }
    let step = episode.steps.iter().find(|step| step.operation_id == operation && !step.state.is_final());
    let step = step.ok_or_else(|| format!("episode {} has no open step {operation}", episode.name))?;

    let node = read.node.ok_or_else(|| format!("Node {} is gone", episode.node))?;
    let view = node::view(&node);
    if view.uid != node_uid || episode.node_uid != node_uid {
        return Err(format!("Node {} was replaced: expected uid {node_uid}, found {}", episode.node, view.uid));
    }
    if view.deleting {
        return Err(format!("Node {} is being deleted", episode.node));
    }
    if let Some(veto) = view.vetoes.first() {
        return Err(format!("Node {} asks to be left alone: {veto}", episode.node));
    }

    let policy = read.policy.ok_or_else(|| format!("RemediationPolicy {policy_name} is gone"))?;
    if policy.spec.suspend || policy.spec.mode != Mode::Enforce {
        return Err(format!("RemediationPolicy {policy_name} does not act now: it is suspended or a dry run"));
    }

    let fault = episode.fault(&step.fault_id);
    let rule = fault.and_then(|fault| policy.spec.rules.iter().find(|rule| rule.name == fault.rule));
    let now = rule.and_then(|rule| rule.steps.get(usize::try_from(step.rung).ok()?));
    let signal = |now: &PolicyStep| now.release_hung_process.as_ref().map(|with| with.signal);
    let restart = |now: &PolicyStep| now.action.restarts().map(|_| now.restart.clone().unwrap_or_default());
    let now = now
        .filter(|now| (now.action, signal(now), restart(now)) == (step.action, step.signal, step.restart.clone()))
        .filter(|now| now.hand_off == step.hand_off)
        .filter(|now| convert::drain(now) == step.drain)
        .filter(|now| convert::taint(now) == step.taint)
        .filter(|now| convert::reboot(now) == step.reboot)
        .filter(|now| convert::mark_for_reboot(now) == step.mark_for_reboot);
    let now =
        now.ok_or_else(|| format!("RemediationPolicy {policy_name} does not name {} there any more", step.phrase()))?;
    if now.mode != Mode::Enforce {
        return Err(format!("{} of RemediationPolicy {policy_name} is a dry run now", step.phrase()));
    }
    if now.approval == Some(ApprovalMode::Manual) && episode.approved(operation).is_none() {
        return Err(format!("{} in episode {} is not approved (any more)", step.phrase(), episode.name));
    }

    let report = read.report.ok_or_else(|| format!("NodeRuntimeHealth {} is gone", episode.node))?;
    if let Some(why) = report.spec.veto() {
        return Err(format!("NodeRuntimeHealth {} is suspended: {why}", episode.node));
    }
    if report::owner(&report.metadata).as_deref() != Some(node_uid) {
        return Err(format!("NodeRuntimeHealth {} is about another node of that name", episode.node));
    }
    if let Some(fault) = fault {
        still_stands(fault, rule, &view)?;
        let policy = convert::policy(&policy)
            .map_err(|bad| format!("RemediationPolicy {policy_name} is not valid now: {}", bad.0.join("; ")))?;
        let others = &read.others;
        still_meant(&Question { fault, step, view: &view, report: &report, policy: &policy, others }, read.pod)?;
    }
    let kind = episode.faults.iter().find(|fault| fault.id == step.fault_id).map(|fault| fault.kind);
    // Faults that the controller finds itself do not stand in the probe's list.
    let confirmed = kind.is_some_and(crate::core::fault::FaultType::is_cluster_fault)
        || report.status.as_ref().is_some_and(|status| {
            status.faults.iter().any(|fault| fault.id == step.fault_id && fault.state == FaultState::Confirmed)
        });
    if !confirmed {
        return Err(format!("fault {} is not confirmed any more", step.fault_id));
    }
    still_replaced(step, &view)?;
    still_safe(step, &report)?;
    reboot::still_to_do(&episode, step, &view, &report)?;
    Ok(Live { node, report, episode })
}

/// Whether a deleted pod would have a successor: none comes under such a taint, whoever has put it there since the decision.
fn still_replaced(step: &StepRecord, view: &NodeView) -> Result<(), String> {
    match view.repels_daemon_sets().filter(|_| step.action == ActionType::DeletePod) {
        Some(taint) => {
            Err(format!("{}: its pod would have no successor under the node's taint {taint}", step.phrase()))
        }
        None => Ok(()),
    }
}

/// Whether the daemon of a restart can be restarted by the probe's newest word.
fn still_safe(step: &StepRecord, report: &NodeRuntimeHealth) -> Result<(), String> {
    let Some(daemon) = step.action.restarts() else { return Ok(()) };
    let view = report::view(report).restart;
    let safe = view.of(daemon);
    if safe == Tri::True || step.restart.as_ref().is_some_and(|with| with.even_if_unsafe) {
        return Ok(());
    }
    Err(format!("{}: RestartSafe is {} for it by now: {}", step.phrase(), safe.as_str(), view.message))
}

/// Whether the condition that the fault is about stands on the Node as the rule asks for it.
fn still_stands(fault: &EpisodeFault, rule: Option<&PolicyRule>, view: &NodeView) -> Result<(), String> {
    if fault.kind != FaultType::NodeCondition {
        return Ok(());
    }
    let asked = rule.into_iter().flat_map(|rule| &rule.matches.node_conditions).map(convert::asked);
    let of_type: Vec<Asked> = asked.filter(|asked| Some(&asked.kind) == fault.subject.name.as_ref()).collect();
    let status = fault.subject.condition.as_ref().map(|condition| condition.status);
    // From one status to another that the rule asks for as well it is the same fault.
    let is_meant = of_type.iter().any(|asked| Some(asked.status) == status);
    if is_meant && of_type.iter().any(|asked| asked.is_met_among(&view.conditions)) {
        return Ok(());
    }
    Err(format!("{} ({}): the Node does not show it any more", fault.kind, fault.subject))
}

/// Whether the report is still as young as an act asks for: calls that were slow have taken their time since the decision.
fn fresh(live: &Live, operation: &str, arrivals: &Arrivals, now: Instant) -> Result<(), String> {
    let node = &live.episode.node;
    let step = live.episode.steps.iter().find(|step| step.operation_id == operation);
    let fault = step.and_then(|step| live.episode.fault(&step.fault_id));
    // That nobody can look is no reason to tell nobody.
    let tells = step.is_some_and(|step| step.action == ActionType::Notify);
    if tells || fault.is_some_and(|fault| fault.kind == FaultType::ProbeSilent) {
        return Ok(());
    }
    let status = live.report.status.as_ref();
    let interval = status.and_then(|status| status.probe.as_ref()).map_or(0, |probe| probe.interval_seconds);
    if arrivals.age(now) > missed_after(Duration::from_secs(u64::from(interval))) {
        return Err(format!("the probe of {node} has missed the heartbeat that it promised meanwhile"));
    }
    let id = fault.map(|fault| fault.id.as_str());
    let reported = status.and_then(|status| status.faults.iter().find(|fault| Some(fault.id.as_str()) == id));
    // A fault of the controller's own is looked at again by the act itself.
    let Some(reported) = reported else { return Ok(()) };
    let looked = arrivals.look_age(Duration::from_secs(reported.look_age_seconds), now);
    if looked > EVIDENCE_MAX_AGE {
        let limit = EVIDENCE_MAX_AGE.as_secs();
        return Err(format!("the last look at {} on {node} is older than {limit}s by now", reported.kind));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Objects that all say yes, with changes on top.
    pub(super) fn read(change: impl Fn(&mut Value)) -> Read {
        let mut all = json!({
            "node": {"metadata": {"name": "w1", "uid": "n1"}},
            "pod": null,
            "report": {"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRuntimeHealth",
                "metadata": {"name": "w1", "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "w1", "uid": "n1"}]},
                "spec": {},
                "status": {"faults": [{"id": "f1", "type": "HungContainer", "severity": "High", "state": "Confirmed",
                    "message": "m", "firstSeen": "2025-01-01T00:00:00Z", "subject": {"kind": "Container"}}]}},
            "policy": {"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy", "metadata": {"name": "p"},
                "spec": {"mode": "Enforce", "rules": [{"name": "r", "match": {"faults": ["HungContainer"]}, "steps": [
                    {"action": "ReleaseHungProcess", "releaseHungProcess": {"signal": "Kill"}}]}]}},
            "episode": {"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRemediation", "metadata": {"name": "e"},
                "spec": {"nodeName": "w1", "nodeUid": "n1", "policy": "p", "mode": "Enforce"},
                "status": {"phase": "Running", "message": "", "openedAt": "2025-01-01T00:00:00Z",
                    "faults": [{"id": "f1", "type": "HungContainer", "subject": {"kind": "Container"}, "rule": "r", "rung": 0, "state": "Open"}],
                    "steps": [{"operationId": "op", "faultId": "f1", "action": "ReleaseHungProcess", "signal": "Kill", "rung": 0, "lane": "Job",
                        "state": "Reserved", "reservedAt": "2025-01-01T00:00:00Z"}]}}
        });
        change(&mut all);
        let mut part = |name: &str| all.get_mut(name).map(Value::take).unwrap();
        Read {
            node: serde_json::from_value(part("node")).unwrap(),
            report: serde_json::from_value(part("report")).unwrap(),
            policy: serde_json::from_value(part("policy")).unwrap(),
            is_policy_new: true,
            episode: serde_json::from_value(part("episode")).unwrap(),
            pod: serde_json::from_value::<Option<Pod>>(part("pod"))
                .unwrap()
                .map(|pod| LivePod::There(pods::pod_ref(&pod), Box::new(pod))),
            others: Vec::new(),
        }
    }

    fn verdict(change: impl Fn(&mut Value)) -> Result<(), String> {
        judge(read(change), "op", "n1", "p").map(|_| ())
    }

    #[test]
    fn a_step_that_was_made_a_dry_run_is_not_taken() {
        let with = |key: &'static str, value: Value| {
            verdict(move |v| v["policy"]["spec"]["rules"][0]["steps"][0][key] = value.clone())
        };
        assert_eq!(with("mode", json!("Enforce")), Ok(()));
        let of = "ReleaseHungProcess(Kill) of RemediationPolicy p is a dry run now";
        assert_eq!(with("mode", json!("DryRun")), Err(of.to_owned()));
        // Another step in its place is another step.
        let other = "RemediationPolicy p does not name ReleaseHungProcess(Kill) there any more";
        assert_eq!(with("releaseHungProcess", json!({"signal": "Cont"})), Err(other.to_owned()));
        assert_eq!(verdict(|v| v["policy"]["spec"]["rules"] = json!([])), Err(other.to_owned()));
    }

    #[test]
    fn a_hand_off_to_another_remediator_is_another_step() {
        let to = |name: &str| json!({"remediationTemplate": {"apiVersion": "r.example/v1", "kind": "FixTemplate", "name": name, "namespace": "m"}});
        let with = |name: &'static str| {
            verdict(move |v| {
                let step = &mut v["episode"]["status"]["steps"][0];
                (step["action"], step["signal"], step["handOff"]) = (json!("HandOff"), Value::Null, to("gentle"));
                v["policy"]["spec"]["rules"][0]["steps"][0] = json!({"action": "HandOff", "handOff": to(name)});
            })
        };
        assert_eq!(with("gentle"), Ok(()));
        assert_eq!(with("harsh"), Err("RemediationPolicy p does not name HandOff(Fix) there any more".to_owned()));
    }

    #[test]
    fn a_taint_with_another_effect_is_another_step() {
        let with = |now: Value| {
            verdict(move |v| {
                let step = &mut v["episode"]["status"]["steps"][0];
                (step["action"], step["signal"], step["taint"]) = (json!("Taint"), Value::Null, json!("NoSchedule"));
                v["policy"]["spec"]["rules"][0]["steps"] =
                    json!([{"action": "Taint", "taint": now.clone()}, {"action": "Notify"}]);
            })
        };
        assert_eq!(with(json!({"effect": "NoSchedule"})), Ok(()));
        let other = "RemediationPolicy p does not name Taint(NoSchedule) there any more".to_owned();
        assert_eq!(with(json!({"effect": "PreferNoSchedule"})), Err(other.clone()));
        assert_eq!(with(json!({})), Err(other), "by default it is PreferNoSchedule");
    }

    #[test]
    fn no_pod_is_deleted_that_would_have_no_successor() {
        let with = |taint: Value| {
            verdict(move |v| {
                v["node"]["spec"] = json!({"taints": [taint.clone()]});
                let status = &mut v["episode"]["status"];
                (status["steps"][0]["action"], status["steps"][0]["signal"]) = (json!("DeletePod"), Value::Null);
                status["faults"][0]["type"] = json!("StuckDaemonSetPod");
                v["policy"]["spec"]["rules"][0] = json!({"name": "r", "match": {"faults": ["StuckDaemonSetPod"]},
                    "steps": [{"action": "DeletePod"}]});
            })
        };
        let ours = |effect: &str| json!({"key": "runtimehealth.io/unhealthy", "effect": effect});
        assert_eq!(with(ours("PreferNoSchedule")), Ok(()));
        assert_eq!(with(json!({"key": "dedicated", "value": "gpu", "effect": "NoSchedule"})), Ok(()), "not our key");
        let hold =
            "DeletePod: its pod would have no successor under the node's taint runtimehealth.io/unhealthy:NoSchedule";
        assert_eq!(with(ours("NoSchedule")), Err(hold.to_owned()));
    }

    #[test]
    fn what_a_person_has_cancelled_meanwhile_is_not_done() {
        let cancelled = verdict(|v| v["episode"]["spec"]["cancel"] = json!({"by": "ann", "reason": "no"}));
        assert_eq!(cancelled, Err("episode e was cancelled by ann: no".to_owned()));
    }

    #[test]
    fn the_first_step_of_a_start_by_hand_is_approved_with_it() {
        let with = |by: &'static str| {
            verdict(move |v| {
                v["policy"]["spec"]["rules"][0]["steps"][0]["approval"] = json!("Manual");
                v["episode"]["spec"]["wish"] =
                    json!({"by": "ann", "fault": "HungContainer", "action": "ReleaseHungProcess"});
                v["episode"]["status"]["steps"][0]["approvedBy"] = json!(by);
            })
        };
        assert_eq!(with("ann"), Ok(()));
        assert!(with("bob").unwrap_err().contains("is not approved"));
    }

    #[test]
    fn a_step_that_asks_is_not_taken_without_a_yes_to_it() {
        let with = |operation: Option<&'static str>| {
            verdict(move |v| {
                v["policy"]["spec"]["rules"][0]["steps"][0]["approval"] = json!("Manual");
                if let Some(operation) = operation {
                    v["episode"]["spec"]["approval"] = json!({"by": "ann", "operationId": operation});
                }
            })
        };
        assert_eq!(with(Some("op")), Ok(()));
        for other in [None, Some("op-2")] {
            assert!(with(other).unwrap_err().contains("is not approved"), "{other:?}");
        }
    }

    #[test]
    fn that_nobody_can_look_keeps_nobody_from_being_told() {
        let tells = |v: &mut Value| {
            v["policy"]["spec"]["rules"][0]["steps"][0] = json!({"action": "Notify"});
            let step = &mut v["episode"]["status"]["steps"][0];
            (step["action"], step["signal"]) = (json!("Notify"), Value::Null);
        };
        let live = |change: &dyn Fn(&mut Value)| judge(read(change), "op", "n1", "p").unwrap();
        assert_eq!(fresh(&live(&tells), "op", &Arrivals::default(), Instant::now()), Ok(()));
        assert!(fresh(&live(&|_| {}), "op", &Arrivals::default(), Instant::now()).is_err());
    }

    #[test]
    fn evidence_that_has_grown_old_since_the_decision_stops_the_act() {
        let live = |look: u64| {
            let of = |v: &mut Value| {
                v["report"]["status"]["faults"][0]["lookAgeSeconds"] = json!(look);
                v["report"]["status"]["probe"] = json!({"version": "1", "mode": "Pod", "bootId": "b", "sequence": 2,
                    "heartbeatAt": "2025-01-01T00:00:15Z", "intervalSeconds": 60, "canAct": true});
            };
            judge(read(of), "op", "n1", "p").unwrap()
        };
        let seconds = Duration::from_secs;
        let start = Instant::now();
        let mut arrivals = Arrivals::default();
        let beat = |sequence: u64, at: &str| crate::api::health::ProbeStatus {
            sequence,
            heartbeat_at: Some(at.parse().unwrap()),
            ..Default::default()
        };
        arrivals.note(&beat(1, "2025-01-01T00:00:00Z"), start, seconds(0));
        let second = start + seconds(15);
        arrivals.note(&beat(2, "2025-01-01T00:00:15Z"), second, seconds(15));
        let verdict = |look: u64, after: u64| fresh(&live(look), "op", &arrivals, second + seconds(after));
        assert_eq!(verdict(5, 40), Ok(()));
        assert!(verdict(5, 41).unwrap_err().contains("older than 45s"));
        assert!(verdict(0, 91).unwrap_err().contains("missed the heartbeat"));
        let never = fresh(&live(0), "op", &Arrivals::default(), second);
        assert!(never.unwrap_err().contains("missed"), "nobody knows when a report came that no watch has brought");
    }

    #[test]
    fn a_condition_that_the_node_does_not_show_any_more_is_not_acted_on() {
        let with = |kind: &'static str, status: &'static str, reason: &'static str| {
            verdict(move |v| {
                v["node"]["status"]["conditions"] = json!([{"type": kind, "status": status, "reason": reason}]);
                let asked = json!([{"type": "KernelDeadlock", "status": "True", "reasons": ["DockerHung", "TaskHung"]},
                    {"type": "KernelDeadlock", "status": "Unknown"}]);
                v["policy"]["spec"]["rules"][0] = json!({"name": "r", "match": {"nodeConditions": asked}, "steps": [{"action": "Cordon"}, {"action": "Notify"}]});
                v["report"]["status"]["faults"] = json!([]);
                let status = &mut v["episode"]["status"];
                status["faults"][0]["type"] = json!("NodeCondition");
                status["faults"][0]["subject"] = json!({"kind": "Condition", "name": "KernelDeadlock",
                    "condition": {"status": "True", "reason": "DockerHung"}});
                (status["steps"][0]["action"], status["steps"][0]["signal"]) = (json!("Cordon"), Value::Null);
            })
        };
        assert_eq!(with("KernelDeadlock", "True", "DockerHung"), Ok(()));
        assert_eq!(with("KernelDeadlock", "True", "TaskHung"), Ok(()), "another reason that the rule names");
        assert_eq!(with("KernelDeadlock", "Unknown", "Silent"), Ok(()), "another status that the rule names");
        for (kind, status, reason) in [
            ("KernelDeadlock", "False", "DockerHung"),
            ("KernelDeadlock", "True", "Other"),
            ("ReadonlyFilesystem", "True", "DockerHung"),
        ] {
            let found = with(kind, status, reason).unwrap_err();
            let expected = "NodeCondition (condition KernelDeadlock=True): the Node does not show it any more";
            assert_eq!(found, expected, "{kind} {status} {reason}");
        }
    }

    #[test]
    fn when_nothing_says_no_the_act_goes_on() {
        assert_eq!(verdict(|_| {}), Ok(()));
    }

    #[test]
    fn each_single_no_stops_the_act_and_says_which() {
        type Case = (&'static str, fn(&mut Value), &'static str);
        let cases: [Case; 14] = [
            ("node gone", |v| v["node"] = Value::Null, "Node w1 is gone"),
            ("node replaced", |v| v["node"]["metadata"]["uid"] = json!("n2"), "was replaced"),
            (
                "node leaves",
                |v| v["node"]["metadata"]["deletionTimestamp"] = json!("2025-01-01T00:00:00Z"),
                "being deleted",
            ),
            ("excluded", |v| v["node"]["metadata"]["labels"] = json!({crate::api::EXCLUDE_LABEL: ""}), "left alone"),
            ("policy gone", |v| v["policy"] = Value::Null, "RemediationPolicy p is gone"),
            ("policy suspended", |v| v["policy"]["spec"]["suspend"] = json!(true), "does not act"),
            ("policy dry", |v| v["policy"]["spec"]["mode"] = json!("DryRun"), "does not act"),
            ("report gone", |v| v["report"] = Value::Null, "NodeRuntimeHealth w1 is gone"),
            ("node suspended", |v| v["report"]["spec"]["suspend"] = json!(true), "suspended"),
            ("other owner", |v| v["report"]["metadata"]["ownerReferences"][0]["uid"] = json!("n0"), "another node"),
            ("clearing", |v| v["report"]["status"]["faults"][0]["state"] = json!("Clearing"), "not confirmed"),
            ("no fault", |v| v["report"]["status"]["faults"] = json!([]), "not confirmed"),
            ("episode ended", |v| v["episode"]["status"]["phase"] = json!("Cancelled"), "at an end"),
            ("step ended", |v| v["episode"]["status"]["steps"][0]["state"] = json!("Cancelled"), "no open step"),
        ];
        for (name, change, expected) in cases {
            let found = verdict(change).unwrap_err();
            assert!(found.contains(expected), "{name}: {found}");
        }
    }
}
