//! Checks whether the rule of a step still applies to its fault, by the current pod, node and policy.
//!
//! The engine has checked the same with the cache ([`Policy::still_means`]). Since then somebody may have removed a label,
//! updated a kubelet or put a rule before this one. The controller must not act against that. An unknown fact is no agreement.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;

use nrh_api::NodeRuntimeHealth;
use nrh_api::view::pods;
use nrh_core::fault::{Fault, FaultState, FaultType, PodRef, Severity};
use nrh_core::matching::{MatchContext, MissingFact, PodSeen, pod_of};
use nrh_core::policy::{ActionType, Mode, Policy, Rule, RuleMatch};
use nrh_core::policy::{Applicability, asked_keys};
use nrh_core::remediation::{RemediationFault, StepRecord};
use nrh_core::snapshot::NodeView;

/// The pod of a fault, as the preflight read it.
#[derive(Debug)]
pub(super) enum LivePod {
    /// The API server has the pod.
    There(PodRef, Box<Pod>),
    /// The API server no longer has the pod. The second value is what the controller saw of it last.
    Gone(PodRef, PodSeen),
}

impl LivePod {
    /// The properties of the pod that the policies select by.
    fn seen(self, policies: &[&Policy]) -> (PodRef, PodSeen) {
        match self {
            Self::There(named, pod) => {
                let asked: BTreeSet<String> = asked_keys(policies.iter().copied());
                (named, PodSeen::Read(pods::traits(&pod, &asked)))
            }
            Self::Gone(named, seen) => (named, seen),
        }
    }
}

/// The objects that the question is about.
pub(super) struct Question<'a> {
    /// The fault as the remediation has it.
    pub fault: &'a RemediationFault,
    /// The step that is about to be executed.
    pub step: &'a StepRecord,
    /// The node, read now.
    pub view: &'a NodeView,
    /// Its report, read now.
    pub report: &'a NodeRuntimeHealth,
    /// The policy of the remediation, read now.
    pub policy: &'a Policy,
    /// All policies that the controller knows.
    pub others: &'a [Policy],
}

/// Checks that the policy still intends the action. If not: which rule says so and what was found. An unknown fact does not keep
/// the controller from notifying people.
pub(super) fn still_meant(of: &Question<'_>, pod: Option<LivePod>) -> Result<(), String> {
    let Some(rule) = of.policy.rule(&of.fault.rule) else { return Ok(()) };
    let fault = as_it_shows(of);
    let before = |other: &&Policy| {
        let is_before = other.name != of.policy.name && other.order(of.policy).is_lt();
        is_before && other.mode == Mode::Enforce && other.selector.matches(&of.view.labels)
    };
    let before: Vec<&Policy> = of.others.iter().filter(before).collect();
    let asking: Vec<&Policy> = before.iter().copied().chain([of.policy]).collect();
    let pods: BTreeMap<PodRef, PodSeen> = pod.map(|pod| pod.seen(&asking)).into_iter().collect();
    let around = MatchContext {
        pods: Some(&pods),
        runtime: of.view.runtime_version.as_deref(),
        kubelet: of.view.kubelet_version.as_deref(),
    };
    let what = format!("{} ({})", fault.kind, fault.subject);
    let doubt = |policy: &Policy, rule: &Rule, lack: MissingFact| {
        if of.step.action == ActionType::Notify {
            return Ok(());
        }
        let (rule, policy, field) = (&rule.name, &policy.name, lack.field);
        Err(format!(
            "{what}: it is not known whether rule {rule} of policy {policy} applies, by match.{field}: {}",
            lack.what
        ))
    };
    for other in before {
        match other.rule_for(&fault, &around) {
            RuleMatch::Rule(now) => {
                return Err(format!("{what}: it is for rule {} of policy {} by now", now.name, other.name));
            }
            RuleMatch::Perhaps(now, lack) => doubt(other, now, lack)?,
            RuleMatch::Nothing => {}
        }
    }
    match of.policy.still_means(rule, &fault, &around) {
        Applicability::Yes => Ok(()),
        Applicability::Other(now) => {
            Err(format!("{what}: it is for rule {} by now, which goes before rule {}", now.name, rule.name))
        }
        Applicability::No(why) => Err(format!("{what}: rule {} is not for it any more: {why}", rule.name)),
        Applicability::Perhaps(now, lack) => doubt(of.policy, now, lack),
    }
}

/// The fault as the report has it now. A fault that the controller finds itself, and has not written there, counts as the most
/// severe. Then more rules apply to it, and any of them may refuse.
fn as_it_shows(of: &Question<'_>) -> Fault {
    let status = of.report.status.iter();
    let mut reported = status.flat_map(|status| status.faults.iter().chain(&status.cluster_faults));
    let fault = reported.find(|fault| fault.id == of.fault.id).cloned();
    let mut fault = fault.unwrap_or_else(|| Fault {
        id: of.fault.id.clone(),
        kind: of.fault.kind,
        severity: Severity::Critical,
        state: FaultState::Confirmed,
        subject: of.fault.subject.clone(),
        target: of.step.target.clone(),
        message: String::new(),
        impact: String::new(),
        first_seen: of.step.scheduled_at,
        duration_seconds: 0,
        confirmations: 0,
        check_age_seconds: 0,
        evidence: Vec::new(),
        evidence_bundle: None,
    });
    if fault.kind == FaultType::NodeCondition {
        fault.subject = of.fault.subject.clone();
    }
    if pod_of(&fault).is_none() {
        fault.subject.pod.clone_from(&of.fault.subject.pod);
        fault.target.pod.clone_from(&of.step.target.pod);
    }
    fault
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::read;
    use super::super::{Read, judge};
    use super::*;
    use nrh_api::convert;

    /// What is read of a node, a fault of pod `d/a`, and that pod.
    fn all(rules: &Value, pod: &Value, change: impl Fn(&mut Value)) -> Read {
        read(|v| {
            v["policy"]["spec"]["rules"] = rules.clone();
            v["node"]["status"] = json!({"nodeInfo": {"kubeletVersion": "v1.36.1", "architecture": "", "bootID": "",
                "containerRuntimeVersion": "containerd://1.7.24", "kernelVersion": "", "kubeProxyVersion": "",
                "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""}});
            let named = json!({"namespace": "d", "name": "a", "uid": "u"});
            v["remediation"]["status"]["faults"][0]["subject"]["pod"] = named.clone();
            v["report"]["status"]["faults"][0]["subject"]["pod"] = named;
            v["pod"] = pod.clone();
            change(v);
        })
    }

    fn rule(name: &str, matches: &Value) -> Value {
        let mut matches = matches.clone();
        if matches.get("faults").is_none() {
            matches["faults"] = json!(["HungContainer"]);
        }
        json!({"name": name, "match": matches,
            "steps": [{"action": "ReleaseHungProcess", "releaseHungProcess": {"signal": "SIGKILL"}}]})
    }

    fn pod(labels: &Value) -> Value {
        json!({"metadata": {"namespace": "d", "name": "a", "uid": "u", "labels": labels}})
    }

    fn verdict(read: Read) -> Result<(), String> {
        verdict_among(read, &[])
    }

    fn verdict_among(read: Read, others: &[Policy]) -> Result<(), String> {
        judge(read, "op", "n1", "p", others, jiff::Timestamp::UNIX_EPOCH).map(|_| ())
    }

    const WHAT: &str = "HungContainer (container of d/a): ";

    #[test]
    fn a_rule_that_means_other_pods_or_nodes_by_now_stops_the_act() {
        let with = |matches: Value, pod: Value| verdict(all(&json!([rule("r", &matches)]), &pod, |_| {}));
        let asks =
            json!({"podSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["db"]}]}});
        assert_eq!(with(asks.clone(), pod(&json!({"app": "web"}))), Ok(()));
        assert_eq!(with(asks.clone(), pod(&json!({}))), Ok(()));
        let no = |why: &str| Err(format!("{WHAT}rule r is not for it any more: {why}"));
        assert_eq!(
            with(asks.clone(), pod(&json!({"app": "db"}))),
            no("match.podSelector asks for app notin (db), and pod d/a has app=db, as it was read")
        );
        // The pod was not read. An unknown property is not absent.
        assert!(with(asks, Value::Null).unwrap_err().contains("rule r of policy p applies"));
        let runtimes = |versions: &str| json!({"runtimes": [{"name": "containerd", "versions": versions}]});
        assert_eq!(with(runtimes("<2"), Value::Null), Ok(()));
        assert_eq!(
            with(runtimes(">=2"), Value::Null),
            no("match.runtimes asks for containerd >=2, and the node's is containerd://1.7.24")
        );
        assert_eq!(
            with(json!({"kubeletVersions": [">=1.37"]}), Value::Null),
            no("match.kubeletVersions asks for >=1.37, and the node's is v1.36.1")
        );
        assert_eq!(with(json!({"ownerKinds": ["None"]}), pod(&json!({}))), Ok(()));
        assert_eq!(
            with(json!({"ownerKinds": ["DaemonSet"]}), pod(&json!({}))),
            no("match.ownerKinds asks for DaemonSet, and the owner of pod d/a is None, as it was read")
        );
        assert_eq!(with(json!({"namespaces": ["e"]}), Value::Null), no("match.namespaces is e, and its pod is d/a"));
        assert!(with(json!({"kubeletVersions": ["new"]}), Value::Null).unwrap_err().contains("expected a range"));
    }

    #[test]
    fn a_rule_that_goes_first_by_now_stops_the_act_and_so_does_doubt_about_it() {
        let db = json!({"podSelector": {"matchLabels": {"app": "db"}}});
        let rules = json!([rule("databases", &db), rule("r", &json!({}))]);
        let with = |pod: &Value| verdict(all(&rules, pod, |_| {}));
        assert_eq!(with(&pod(&json!({"app": "web"}))), Ok(()));
        let other = format!("{WHAT}it is for rule databases by now, which goes before rule r");
        assert_eq!(with(&pod(&json!({"app": "db"}))), Err(other));
        assert!(with(&Value::Null).unwrap_err().contains("rule databases of policy p applies"));
        // A rule for more severe faults, and a rule behind this one, do not matter.
        let mut worse = db.clone();
        worse["minSeverity"] = json!("Critical");
        for rules in [
            json!([rule("databases", &worse), rule("r", &json!({}))]),
            json!([rule("r", &json!({})), rule("databases", &db)]),
        ] {
            assert_eq!(verdict(all(&rules, &pod(&json!({"app": "db"})), |_| {})), Ok(()));
        }
        // People are notified despite unknown facts.
        let tells = |v: &mut Value| {
            v["policy"]["spec"]["rules"][1]["steps"][0] = json!({"action": "Notify"});
            let step = &mut v["remediation"]["status"]["attempts"][0];
            (step["action"], step["releaseHungProcess"]) = (json!("Notify"), Value::Null);
        };
        assert_eq!(verdict(all(&rules, &Value::Null, tells)), Ok(()));
    }

    #[test]
    fn a_policy_that_goes_first_by_now_stops_the_act() {
        let mut object: Value = json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy",
            "metadata": {"name": "first"}, "spec": {"mode": "Enforce", "priority": 10,
                "rules": [rule("dbs", &json!({"podSelector": {"matchLabels": {"app": "db"}}}))]}});
        let with = |object: &Value, pod: &Value| {
            let other = convert::policy(&serde_json::from_value(object.clone()).unwrap()).unwrap();
            verdict_among(all(&json!([rule("r", &json!({}))]), pod, |_| {}), &[other])
        };
        let (web, db) = (pod(&json!({"app": "web"})), pod(&json!({"app": "db"})));
        assert_eq!(with(&object, &web), Ok(()));
        assert_eq!(with(&object, &db), Err(format!("{WHAT}it is for rule dbs of policy first by now")));
        assert!(with(&object, &Value::Null).unwrap_err().contains("rule dbs of policy first applies"));
        // A dry run, a policy behind this one, and a policy for other nodes do not matter.
        for (key, value) in [
            ("mode", json!("DryRun")),
            ("priority", json!(-1)),
            ("nodeSelector", json!({"matchLabels": {"pool": "x"}})),
        ] {
            let before = object["spec"][key].take();
            object["spec"][key] = value;
            assert_eq!(with(&object, &db), Ok(()), "{key}");
            if before.is_null() {
                object["spec"].as_object_mut().unwrap().remove(key);
            } else {
                object["spec"][key] = before;
            }
        }
    }

    #[test]
    fn a_pod_that_is_gone_counts_as_it_was_and_one_that_nobody_saw_as_unknown() {
        let rules = json!([rule("r", &json!({"podSelector": {"matchLabels": {"app": "web"}}}))]);
        let with = |seen: PodSeen| {
            let mut read = all(&rules, &Value::Null, |_| {});
            read.pod = Some(LivePod::Gone(PodRef { namespace: "d".into(), name: "a".into(), uid: "u".into() }, seen));
            verdict(read)
        };
        let was = |value: &str| {
            let labels = BTreeMap::from([("app".to_owned(), value.to_owned())]);
            let traits = nrh_core::matching::PodTraits::of(&labels, None, &["app".to_owned()].into());
            PodSeen::Read(nrh_core::matching::PodTraits {
                gone: true,
                read: std::time::Duration::from_hours(2),
                ..traits
            })
        };
        assert_eq!(with(was("web")), Ok(()));
        assert!(with(was("db")).unwrap_err().ends_with("pod d/a has app=db, when it was last seen"));
        assert!(with(PodSeen::Gone).unwrap_err().contains("has never seen it"));
    }
}
