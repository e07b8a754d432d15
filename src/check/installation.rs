//! Checks the installed parts: definitions, admission, controller, probe, policies.

use anyhow::Context;
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::{Finding, Verdict};
use crate::api::condition::{find, standing_of};
use crate::api::plain::plain;
use crate::api::suspension::suspended_everywhere;
use crate::api::view::guard::Guarded;
use crate::api::{
    CONFIG_NAME, ConditionType, DEPLOYMENT_NAME, LEASE_NAME, NODE_NAMESPACE, RemediationConfig, RemediationPolicy,
    SYSTEM_NAMESPACE, Suspend, crds,
};
use crate::caller::{code, error_text, list, within};
use crate::controller::admission::{JOBS, NO_PARAMETER, OURS, POLICIES, TRIED_IMAGE, flaw, no_parameter};
use crate::controller::leader::LEASE_DURATION;
use crate::core::snapshot::TriState;

const PROBE: &str = "nrh-probe";
const DEFINITIONS: &str = "definitions";
const ADMISSION: &str = "admission policies";
const CONTROLLER: &str = "controller";

/// All checks of the installed parts, with the definitions that were read.
pub(super) async fn checked(client: &Client, found: anyhow::Result<Vec<CustomResourceDefinition>>) -> Vec<Finding> {
    let mut findings = vec![match found {
        Ok(found) => judge_definitions(&found),
        Err(error) => Finding::unknown(DEFINITIONS, &error),
    }];
    findings.push(admission(client).await.unwrap_or_else(|error| Finding::unknown(ADMISSION, &error)));
    findings.push(controller(client).await.unwrap_or_else(|error| Finding::unknown(CONTROLLER, &error)));
    findings.push(probe(client).await.unwrap_or_else(|error| Finding::unknown("probe", &error)));
    findings.extend(policies(client).await.unwrap_or_else(|error| vec![Finding::unknown("policies", &error)]));
    findings
}

/// The operator's definitions that exist.
///
/// # Errors
/// The API server does not say.
pub(super) async fn definitions(client: &Client) -> anyhow::Result<Vec<CustomResourceDefinition>> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut found = Vec::new();
    for (_, wanted) in crds::all() {
        found.extend(within(api.get_opt(&wanted.name_any())).await.context("cannot read the definitions")?);
    }
    Ok(found)
}

/// Whether the definitions are those of this version.
pub(super) fn judge_definitions(found: &[CustomResourceDefinition]) -> Finding {
    let failed = |message: String| Finding::new(DEFINITIONS, Verdict::Failed, message);
    for (_, wanted) in crds::all() {
        let name = wanted.name_any();
        let Some(one) = found.iter().find(|one| one.name_any() == name) else {
            return failed(format!("{name} is missing: `kubectl apply -k crds`"));
        };
        let conditions = one.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        if !conditions.iter().any(|one| one.type_ == "Established" && one.status == "True") {
            return failed(format!("{name} is not established: `kubectl describe crd {name}` says why"));
        }
        let schemas = |crd: &CustomResourceDefinition| {
            let schema = crd.spec.versions.iter().map(|version| version.schema.clone());
            serde_json::to_value(schema.collect::<Vec<_>>()).unwrap_or_default()
        };
        if schemas(one) != schemas(&wanted) {
            let version = env!("CARGO_PKG_VERSION");
            let message =
                format!("{name} is of another version than this `nrh` ({version}): upgrade the older of the two");
            return Finding::new(DEFINITIONS, Verdict::Warning, message);
        }
    }
    Finding::new(DEFINITIONS, Verdict::Ok, format!("all {}, of this version", found.len()))
}

async fn admission(client: &Client) -> anyhow::Result<Finding> {
    let ours = ListParams::default().labels(OURS);
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let policies = within(policies.list(&ours)).await.context("cannot list validatingadmissionpolicies")?.items;
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let bindings = within(bindings.list(&ours)).await.context("cannot list validatingadmissionpolicybindings")?.items;
    let judged = judge_admission(&policies, &bindings);
    Ok(if judged.verdict == Verdict::Ok { proven(client, judged).await } else { judged })
}

/// Tries in a dry run what the policies have to refuse to the caller, too.
async fn proven(client: &Client, judged: Finding) -> Finding {
    let container = json!({"name": "tried", "image": TRIED_IMAGE});
    let job = json!({"metadata": {"generateName": "nrh-check-"}, "spec": {"suspend": true, "template": {"spec":
        {"restartPolicy": "Never", "containers": [container]}}}});
    let Ok(job) = serde_json::from_value::<Job>(job) else { return judged };
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let tried = within(Api::namespaced(client.clone(), NODE_NAMESPACE).create(&params, &job)).await;
    judge_tried(tried.map(drop), judged)
}

/// Whether the admission policies have refused a Job that they have to refuse.
pub(super) fn judge_tried(tried: anyhow::Result<()>, judged: Finding) -> Finding {
    let Err(error) = tried else {
        let message = format!("they exist, and {JOBS} lets a Job through: does the API server enforce such policies?");
        return Finding::new(ADMISSION, Verdict::Failed, message);
    };
    let why = error_text(&error);
    let is_refused = why.contains(&format!("'{JOBS}'"));
    if is_refused && why.contains(NO_PARAMETER) {
        return Finding::new(ADMISSION, Verdict::Failed, no_parameter());
    }
    if is_refused {
        return judged;
    }
    // Without the right, the API server refuses before it asks the policies. Any other answer says nothing of them.
    let (verdict, why) = if code(&error) == Some(403) && why.contains("cannot create resource \"jobs\"") {
        (Verdict::Ok, "you may not create Jobs in nrh-node")
    } else {
        (Verdict::Unknown, why.as_str())
    };
    Finding::new(ADMISSION, verdict, format!("{}; not tested: {why}", judged.message))
}

pub(super) fn judge_admission(
    policies: &[ValidatingAdmissionPolicy],
    bindings: &[ValidatingAdmissionPolicyBinding],
) -> Finding {
    let flaws: Vec<String> = POLICIES.into_iter().filter_map(|name| flaw(name, policies, bindings)).collect();
    if !flaws.is_empty() {
        let (count, named) = (flaws.len(), flaws.into_iter().take(2).collect::<Vec<_>>().join("; "));
        let message = format!("nothing is done to nodes; apply config/admission; {count} flaws: {named}");
        return Finding::new(ADMISSION, Verdict::Failed, message);
    }
    let warned = policies.iter().find(|policy| {
        let checked = policy.status.as_ref().and_then(|status| status.type_checking.as_ref());
        checked.is_some_and(|checked| checked.expression_warnings.as_ref().is_some_and(|warnings| !warnings.is_empty()))
    });
    let (verdict, message) = match warned.map(ResourceExt::name_any) {
        Some(name) => {
            let how = format!("`kubectl get validatingadmissionpolicy {name} -o yaml`");
            (Verdict::Warning, format!("the API server warns of {name}: {how}"))
        }
        None => (Verdict::Ok, format!("all {} are in place", POLICIES.len())),
    };
    Finding::new(ADMISSION, verdict, message)
}

async fn controller(client: &Client) -> anyhow::Result<Finding> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let found = within(api.get_opt(DEPLOYMENT_NAME)).await.context("cannot read the Deployment of the controller")?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let lease = within(leases.get_opt(LEASE_NAME)).await.context("cannot read the Lease of the controller")?;
    Ok(judge_controller(found.as_ref(), lease.as_ref(), Timestamp::now()))
}

pub(super) fn judge_controller(found: Option<&Deployment>, lease: Option<&Lease>, now: Timestamp) -> Finding {
    let at = format!("{SYSTEM_NAMESPACE}/{DEPLOYMENT_NAME}");
    let failed = |message: String| Finding::new(CONTROLLER, Verdict::Failed, message);
    let Some(found) = found else {
        return failed(format!("Deployment {at} is missing: `kubectl apply -k YOUR-OVERLAY`"));
    };
    let wanted = found.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let available = found.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0);
    let replicas = format!("{available} of {wanted} replicas available");
    let spec = lease.and_then(|lease| lease.spec.as_ref());
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).filter(|holder| !holder.is_empty());
    let age = spec.and_then(|spec| spec.renew_time.as_ref()).map(|at| now.duration_since(at.0).as_secs());
    // This compares the clocks of two machines, so the limit is twice the duration.
    let limit = 2 * i64::try_from(LEASE_DURATION.as_secs()).unwrap_or(i64::MAX);
    match (holder, age) {
        (Some(holder), Some(age)) if age <= limit => {
            let verdict = match available {
                0 => Verdict::Failed,
                _ if available < wanted => Verdict::Warning,
                _ => Verdict::Ok,
            };
            Finding::new(CONTROLLER, verdict, format!("{replicas}, {holder} leads"))
        }
        _ => failed(format!(
            "{replicas}, none leads: `kubectl -n {SYSTEM_NAMESPACE} logs deployment/{DEPLOYMENT_NAME}` says why"
        )),
    }
}

async fn probe(client: &Client) -> anyhow::Result<Finding> {
    let api: Api<DaemonSet> = Api::namespaced(client.clone(), NODE_NAMESPACE);
    let found = within(api.get_opt(PROBE)).await.context("cannot read the DaemonSet of the probe")?;
    let Some(status) = found.and_then(|found| found.status) else {
        let message = format!("no DaemonSet {NODE_NAMESPACE}/{PROBE}: nodes without the unit are not checked");
        return Ok(Finding::new("probe", Verdict::Warning, message));
    };
    let (wanted, ready) = (status.desired_number_scheduled, status.number_ready);
    let updated = status.updated_number_scheduled.unwrap_or(0);
    let message = format!("{ready} of {wanted} pods ready, {updated} updated");
    let is_whole = ready >= wanted && updated >= wanted && wanted > 0;
    Ok(Finding::new("probe", if is_whole { Verdict::Ok } else { Verdict::Warning }, message))
}

async fn policies(client: &Client) -> anyhow::Result<Vec<Finding>> {
    let configs: Api<RemediationConfig> = Api::all(client.clone());
    let config = within(configs.get_opt(CONFIG_NAME)).await.context("cannot read the remediationconfig")?;
    let policies = list::<RemediationPolicy>(client.clone()).await.context("cannot list remediationpolicies")?;
    let policies: Vec<_> = policies.into_iter().map(|object| Guarded::read(&plain(object, usize::MAX))).collect();
    Ok(judge_policies(&policies, config.as_ref()))
}

pub(super) fn judge_policies(
    policies: &[Guarded<RemediationPolicy>],
    config: Option<&RemediationConfig>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(why) = config.and_then(Suspend::suspended_by_text) {
        findings.push(Finding::new("remediationconfig", Verdict::Warning, suspended_everywhere(&why)));
    }
    if policies.is_empty() {
        findings.push(Finding::new("policies", Verdict::Warning, "none: no step is planned, and none is executed"));
        return findings;
    }
    let (mut count, mut enforced) = (0, 0);
    for policy in policies {
        let policy = match &policy.0 {
            Ok(policy) => policy,
            Err(bad) => {
                let subject = format!("policy {}", bad.metadata.name.as_deref().unwrap_or_default());
                findings.push(Finding::new(subject, Verdict::Failed, format!("it cannot be read: {}", bad.why)));
                continue;
            }
        };
        enforced += usize::from(policy.spec.mode == crate::core::policy::Mode::Enforce);
        let subject = format!("policy {}", policy.name_any());
        let conditions = policy.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let ready = find(conditions, ConditionType::Ready);
        // A verdict on an earlier generation does not apply to the current policy.
        let is_current = ready.is_some_and(|ready| ready.observed_generation == policy.metadata.generation);
        match standing_of(conditions, ConditionType::Ready).filter(|_| is_current) {
            Some((TriState::True, _)) => count += 1,
            Some((TriState::False, reason)) => {
                let message = ready.map(|ready| ready.message.as_str()).unwrap_or_default();
                findings.push(Finding::new(subject, Verdict::Failed, format!("{reason}: {message}")));
            }
            _ => findings.push(Finding::new(subject, Verdict::Unknown, "the controller has not judged it yet")),
        }
    }
    if count > 0 {
        let message = format!("{count} of {} ready, {enforced} in mode Enforce", policies.len());
        findings.insert(0, Finding::new("policies", Verdict::Ok, message));
    }
    findings
}
