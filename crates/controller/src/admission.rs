//! Checks whether the admission policies are in force. Roles say which objects the controller may write. Admission policies say
//! which of them and how. Without them a stolen token, or a mistake, has no bounds but the controller's own.
//!
//! The controller tries, by dry runs that change nothing, what each policy that binds it must refuse. It also lists the policies
//! and bindings that bind others. As long as it has no proof, it does nothing to nodes.

use std::fmt::Debug;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use http::Request;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{ListParams, PartialObjectMeta, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::calls::{CallError, Calls, bounded};
use super::events::Events;
use super::handles::Handles;
use nrh_api::{NODE_NAMESPACE, SYSTEM_NAMESPACE};

/// The policies of `config/admission`, each with a binding of the same name.
pub const POLICIES: [&str; 23] = [
    "nrh-approvals",
    "nrh-cancellations",
    "nrh-commands",
    "nrh-drains",
    "nrh-exclusions",
    "nrh-hand-offs",
    "nrh-jobs",
    "nrh-jobs-fixed",
    "nrh-manual-requests",
    "nrh-names",
    "nrh-node-changes",
    "nrh-node-marks",
    "nrh-node-reports",
    "nrh-nodes-keep-out",
    "nrh-pod-deletion",
    "nrh-pod-eviction",
    "nrh-pods",
    "nrh-pods-fixed",
    "nrh-remediations",
    "nrh-reports",
    "nrh-suspensions",
    "nrh-system",
    "nrh-tokens",
];

/// The error with which an API server refuses every Job while it sees no parameter of the policy.
pub const NO_PARAMETER: &str = "no params found for policy binding";

/// The message for [`NO_PARAMETER`]: the cause and the solution.
pub fn no_parameter() -> String {
    format!(
        "ValidatingAdmissionPolicy {JOBS} refuses every Job, because the API server sees no pod in {SYSTEM_NAMESPACE}: if there are \
         pods, restart kube-apiserver (kubernetes/kubernetes issue 133827 is such a case)"
    )
}

/// The policy that has parameters: the pods of the controller's namespace.
pub const JOBS: &str = "nrh-jobs";

/// Label of all objects of the project.
pub const OURS: &str = "app.kubernetes.io/part-of=nrh";
/// Name of the objects of the dry runs. No object of that name is ever created.
const TRIED: &str = "nrh-admission-check";
/// Image of a Job that is tried: by digest, since a policy that refuses tags would answer in place of ours.
pub const TRIED_IMAGE: &str = "tried@sha256:0000000000000000000000000000000000000000000000000000000000000000";
/// Maximum number of pods from which one is chosen for the dry run.
const MOST_PODS: u32 = 20;
/// Time between two checks while no policy is missing.
const AGAIN: Duration = Duration::from_mins(3);
/// Time between two checks otherwise.
const SOON: Duration = Duration::from_secs(5);
/// Checks repeatedly, for as long as the process runs. The leader reports a finding once.
pub async fn run(Handles { calls, cache, leadership, .. }: Handles, events: Events) {
    let (began, mut reported) = (Instant::now(), None);
    loop {
        let node = cache.lock().snapshot.nodes.keys().next().cloned();
        let wait = match lacking(&calls, node.as_deref()).await {
            Ok(lacks) => {
                let wait = if lacks.is_empty() { AGAIN } else { SOON };
                if cache.lock().admission.note(lacks, Instant::now()) {
                    cache.wake();
                }
                wait
            }
            Err(error) => {
                tracing::warn!(error = error.line(), "whether the admission policies are in force is not known");
                cache.lock().admission.note_failure(error.line());
                SOON
            }
        };
        let (complaint, not_enforced) = {
            let (state, now) = (cache.lock(), Instant::now());
            (state.admission.complaint(began, now).map(<[String]>::to_vec), state.admission.not_enforced(now))
        };
        if complaint.is_none() || leadership.term(Instant::now()).is_some() {
            if let Some(not_enforced) = not_enforced.filter(|_| complaint.is_some() && complaint != reported) {
                tracing::error!(reason = not_enforced, "nothing is done to any node");
                events.not_enforced(not_enforced);
            }
            reported = complaint;
        }
        tokio::time::sleep(wait).await;
    }
}

/// What is missing, one sentence each, by dry runs on the named Node and other objects.
///
/// # Errors
/// A call that failed for another reason than the policy that it tries. Then the result is unknown.
pub async fn lacking(calls: &Calls, node: Option<&str>) -> Result<Vec<String>, CallError> {
    let mut lacks = absent(calls).await?;
    if let Some(node) = node {
        lacks.extend(changes_a_node(calls, node).await?);
    }
    // A Job that differs from the controller's Jobs, and a ConfigMap with another name than the ledger's.
    let container = json!({"name": "tried", "image": TRIED_IMAGE, "command": ["tried"]});
    let job = json!({"metadata": {"name": TRIED, "namespace": NODE_NAMESPACE}, "spec": {"suspend": true, "template": {"spec":
        {"restartPolicy": "Never", "containers": [container]}}}});
    lacks.extend(create::<Job>(calls, NODE_NAMESPACE, JOBS, job).await?);
    let map = json!({"metadata": {"name": TRIED, "namespace": SYSTEM_NAMESPACE}});
    lacks.extend(create::<ConfigMap>(calls, SYSTEM_NAMESPACE, "nrh-names", map).await?);
    lacks.extend(deletes_a_pod(calls).await?);
    Ok(lacks)
}

/// Policies and bindings that do not exist, or deny nothing.
async fn absent(calls: &Calls) -> Result<Vec<String>, CallError> {
    let ours = ListParams::default().labels(OURS);
    let policies = calls.read::<ValidatingAdmissionPolicy>();
    let policies = bounded(|| "listing ValidatingAdmissionPolicies".to_owned(), policies.list(&ours)).await?;
    let bindings = calls.read::<ValidatingAdmissionPolicyBinding>();
    let bindings = bounded(|| "listing ValidatingAdmissionPolicyBindings".to_owned(), bindings.list(&ours)).await?;
    Ok(POLICIES.into_iter().filter_map(|name| flaw(name, &policies.items, &bindings.items)).collect())
}

/// What is wrong with a policy and its binding, if anything.
pub fn flaw(
    name: &str,
    policies: &[ValidatingAdmissionPolicy],
    bindings: &[ValidatingAdmissionPolicyBinding],
) -> Option<String> {
    let policy = policies.iter().find(|policy| policy.name_any() == name).and_then(|policy| policy.spec.as_ref());
    let Some(policy) = policy else {
        return Some(format!("ValidatingAdmissionPolicy {name} is missing: apply config/admission"));
    };
    if policy.failure_policy.as_deref().is_some_and(|on_failure| on_failure != "Fail") {
        return Some(format!("ValidatingAdmissionPolicy {name} does not fail closed (failurePolicy Fail)"));
    }
    let denies = |binding: &ValidatingAdmissionPolicyBinding| {
        binding.spec.as_ref().is_some_and(|spec| {
            let denies = spec.validation_actions.iter().flatten().any(|action| action == "Deny");
            denies && spec.policy_name.as_deref() == Some(name) && spec.match_resources.is_none()
        })
    };
    // The policy compares only with the pods that its binding selects.
    let names_all_pods = |binding: &ValidatingAdmissionPolicyBinding| {
        let params = binding.spec.as_ref().and_then(|spec| spec.param_ref.as_ref());
        params.is_some_and(|params| {
            params.namespace.as_deref() == Some(SYSTEM_NAMESPACE) && params.selector == Some(LabelSelector::default())
        })
    };
    if name == JOBS && bindings.iter().any(|binding| denies(binding) && !names_all_pods(binding)) {
        return Some(format!(
            "the binding of ValidatingAdmissionPolicy {name} does not name all pods of {SYSTEM_NAMESPACE}"
        ));
    }
    let is_bound = bindings.iter().any(denies);
    (!is_bound).then(|| format!("ValidatingAdmissionPolicy {name} has no binding that denies everywhere"))
}

/// Tries to set a label on a Node, to a value that nobody can have set: a patch that changes nothing is no try.
async fn changes_a_node(calls: &Calls, node: &str) -> Result<Option<String>, CallError> {
    let value = format!("{:016x}", RandomState::new().build_hasher().finish());
    let label = json!({"metadata": {"labels": {"runtimehealth.io/admission-check": value}}});
    let params = PatchParams { dry_run: true, ..PatchParams::default() };
    let what = || format!("labelling Node {node} in a dry run");
    let nodes = calls.act::<Node>();
    refused("nrh-node-changes", bounded(what, nodes.patch(node, &params, &Patch::Merge(label))).await)
}

/// Tries to delete a pod that no DaemonSet controls, without its uid. If no pod exists, for example with a controller outside of
/// the cluster, the check of the binding must suffice.
async fn deletes_a_pod(calls: &Calls) -> Result<Option<String>, CallError> {
    let pods = calls.read_in::<Pod>(SYSTEM_NAMESPACE);
    let what = || format!("listing pods in {SYSTEM_NAMESPACE}");
    let found = bounded(what, pods.list_metadata(&ListParams::default().limit(MOST_PODS))).await?;
    // The API server runs no admission for a pod that is being deleted already.
    let stays = |pod: &&PartialObjectMeta<Pod>| pod.metadata.deletion_timestamp.is_none();
    let Some(pod) = found.items.iter().find(stays).map(ResourceExt::name_any) else { return Ok(None) };
    let what = || format!("deleting pod {SYSTEM_NAMESPACE}/{pod} in a dry run");
    // The dry run is in the query, where an audit log shows it. The client would put it into the body.
    let path = format!("/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods/{pod}?dryRun=All");
    let call = async {
        let request = Request::delete(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        calls.raw_acts().request::<Value>(request).await
    };
    let lack = refused("nrh-pod-deletion", bounded(what, call).await)?;
    if lack.is_none() {
        return Ok(None);
    }
    let what = || format!("reading pod {SYSTEM_NAMESPACE}/{pod}");
    let now = bounded(what, pods.get_metadata_opt(&pod)).await?;
    Ok(lack.filter(|_| now.as_ref().is_some_and(|pod| stays(&pod))))
}

async fn create<K>(calls: &Calls, namespace: &str, policy: &str, object: Value) -> Result<Option<String>, CallError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug,
    K: Serialize + DeserializeOwned + Send + Sync,
{
    let what = || format!("creating {namespace}/{TRIED} in a dry run");
    let object = serde_json::from_value(object)
        .map_err(|error| CallError::Api { what: what(), source: Box::new(kube::Error::SerdeError(error)) })?;
    let params = PostParams { dry_run: true, ..PostParams::default() };
    refused(policy, bounded(what, calls.act_in::<K>(namespace).create(&params, &object)).await)
}

/// Whether the named policy refused the call. A refusal by anything else proves nothing.
fn refused<T>(policy: &str, answer: Result<T, CallError>) -> Result<Option<String>, CallError> {
    match answer {
        Ok(_) => Ok(Some(format!("ValidatingAdmissionPolicy {policy} does not refuse what it must"))),
        // The object was deleted after it was found.
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) if error.is_refusal() && error.line().contains(&format!("'{policy}'")) => {
            Ok((policy == JOBS && error.line().contains(NO_PARAMETER)).then(no_parameter))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use k8s_openapi::api::admissionregistration::v1::MatchResources;

    use super::super::cache::proof::{GOOD_FOR, Proof};
    use super::*;

    fn policy(name: &str, on_failure: &str) -> ValidatingAdmissionPolicy {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"failurePolicy": on_failure}})).unwrap()
    }

    fn binding(name: &str, action: &str) -> ValidatingAdmissionPolicyBinding {
        let params = json!({"namespace": SYSTEM_NAMESPACE, "selector": {}});
        let spec = json!({"policyName": name, "validationActions": [action], "paramRef": params});
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    }

    #[test]
    fn a_policy_counts_only_where_it_fails_closed_and_denies() {
        let of = |policies: &[_], bindings: &[_]| flaw("nrh-jobs", policies, bindings);
        let (right, bound) = (policy("nrh-jobs", "Fail"), binding("nrh-jobs", "Deny"));
        assert_eq!(of(slice::from_ref(&right), slice::from_ref(&bound)), None);
        for (policies, bindings, word) in [
            (vec![], vec![bound.clone()], "is missing"),
            (vec![right.clone()], vec![], "no binding"),
            (vec![right.clone()], vec![binding("nrh-jobs", "Audit")], "no binding"),
            (vec![right.clone()], vec![binding("nrh-names", "Deny")], "no binding"),
            (vec![policy("nrh-jobs", "Ignore")], vec![bound.clone()], "fail closed"),
        ] {
            let why = of(&policies, &bindings).unwrap();
            assert!(why.contains(word), "{why}");
        }
        for params in [
            json!({"namespace": "nrh-node", "selector": {}}),
            json!({"namespace": SYSTEM_NAMESPACE, "name": "x"}),
            Value::Null,
        ] {
            let mut some = bound.clone();
            some.spec.as_mut().unwrap().param_ref = serde_json::from_value(params).unwrap();
            assert!(of(slice::from_ref(&right), &[some]).unwrap().contains("does not name all pods"));
        }
        let mut narrow = bound;
        narrow.spec.as_mut().unwrap().match_resources = Some(MatchResources::default());
        assert!(of(&[right], &[narrow]).is_some(), "a binding for some objects alone");
    }

    #[test]
    fn only_the_policy_itself_proves_that_it_refuses() {
        let api = |code, message: &str| {
            let status = kube::core::Status { code, message: message.to_owned(), ..kube::core::Status::default() };
            CallError::Api { what: "trying".to_owned(), source: Box::new(kube::Error::Api(Box::new(status))) }
        };
        let message = "ValidatingAdmissionPolicy 'nrh-jobs' with binding 'nrh-jobs' denied request: no";
        assert_eq!(refused::<()>("nrh-jobs", Err(api(403, message))).unwrap(), None);
        assert!(refused("nrh-jobs", Ok(())).unwrap().is_some());
        let lost = |policy: &str| {
            let message = "denied request: failed to configure binding";
            api(422, &format!("ValidatingAdmissionPolicy '{policy}' {message}: {NO_PARAMETER}"))
        };
        assert!(refused::<()>("nrh-jobs", Err(lost("nrh-jobs"))).unwrap().unwrap().contains("restart kube-apiserver"));
        assert!(refused::<()>("nrh-jobs", Err(lost("corp-jobs"))).is_err(), "of somebody else's policy");
        for other in
            [api(403, "jobs.batch is forbidden: no right"), api(429, message), api(403, "policy 'nrh-jobs-fixed'")]
        {
            assert!(refused::<()>("nrh-jobs", Err(other)).is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_proof_of_late_it_is_uncertain() {
        let (mut proof, now) = (Proof::default(), Instant::now());
        assert!(proof.not_enforced(now).unwrap().contains("not known"));
        assert!(proof.note(Vec::new(), now), "the first proof is news");
        assert_eq!((proof.not_enforced(now), proof.next_change(now)), (None, Some(GOOD_FOR)));
        assert!(!proof.note(Vec::new(), now + AGAIN));
        let late = now + AGAIN + GOOD_FOR;
        proof.note_failure("no answer".to_owned());
        assert!(proof.not_enforced(late).unwrap().ends_with("no answer"));
        assert!(proof.note(Vec::new(), late), "again");
        assert!(proof.note(vec!["x is missing".to_owned()], late));
        assert!(!proof.note(vec!["x is missing".to_owned()], late + SOON));
        assert!(proof.not_enforced(late).unwrap().contains("x is missing"));
    }
}
