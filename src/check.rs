//! `nrh check`: whether the cluster has what the operator needs, before it is installed and after.
//!
//! It changes nothing. What it may not read is Unknown, and never counts as Ok.

mod installation;
mod nodes;

use anyhow::{Context, bail};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview};
use kube::api::PostParams;
use kube::{Api, Client};
use serde::Serialize;

use crate::No;
use crate::caller::{client, code, error_text, within};
use crate::cli::{CheckArgs, ClusterArgs};
use crate::controller::permissions::review;
use crate::core::text::bounded;
use crate::terminal::{columns, print_as};

/// Oldest version of Kubernetes: the first whose `ValidatingAdmissionPolicy` is on by default.
const OLDEST: (u32, u32) = (1, 30);
const SERVER: &str = "API server";
/// Longest message, in bytes.
const MAX_MESSAGE: usize = 300;

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
enum Verdict {
    /// As required.
    Ok,
    /// It works, but people should know about it.
    Warning,
    /// The state is unknown: the API server did not answer, or the caller may not ask.
    Unknown,
    /// The operator does not work in this state, or not on this node.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Finding {
    /// Part of the cluster: a kind and a name, or a group of them.
    subject: String,
    verdict: Verdict,
    /// What was found; where it is not Ok, also what was expected and what to do.
    message: String,
}

impl Finding {
    fn new(subject: impl Into<String>, verdict: Verdict, message: impl AsRef<str>) -> Self {
        Self { subject: subject.into(), verdict, message: bounded(message.as_ref(), MAX_MESSAGE) }
    }

    /// The finding for a call without a result.
    fn unknown(subject: impl Into<String>, error: &anyhow::Error) -> Self {
        let message = match code(error) {
            Some(403) => format!("you have no right to read it: {}", error_text(error)),
            _ => error_text(error),
        };
        Self::new(subject, Verdict::Unknown, message)
    }
}

/// The result of all checks.
///
/// # Errors
/// The cluster does not answer.
async fn findings(cluster: &ClusterArgs) -> anyhow::Result<Vec<Finding>> {
    let client = client(cluster).await?;
    let mut findings = vec![server(&client).await?];
    let definitions = installation::definitions(&client).await;
    if definitions.as_ref().is_ok_and(Vec::is_empty) {
        findings.push(Finding::new(
            "installation",
            Verdict::Ok,
            "not installed yet: `kubectl apply -k YOUR-OVERLAY` (docs/how-to/install.md)",
        ));
        findings.extend(rights(&client, &INSTALLS, Verdict::Failed).await);
    } else {
        // The following checks name what cannot be read, part by part.
        findings.extend(installation::checked(&client, definitions).await);
        findings.extend(nodes::checked(&client).await);
        findings.extend(rights(&client, &USES, Verdict::Ok).await);
    }
    Ok(findings)
}

/// Runs `nrh check`.
///
/// # Errors
/// [`No`] where a check failed. Any other error: the cluster does not answer, or a check could not be made.
pub async fn run(args: CheckArgs) -> anyhow::Result<()> {
    let findings = findings(&args.cluster).await.unwrap_or_else(|error| vec![Finding::unknown(SERVER, &error)]);
    print_as(args.print.output, &findings, |findings| table(findings))?;
    let named = |verdict| {
        let subjects = findings.iter().filter(move |one| one.verdict == verdict).map(|one| one.subject.as_str());
        subjects.collect::<Vec<_>>().join(", ")
    };
    match findings.iter().map(|one| one.verdict).max() {
        Some(Verdict::Failed) => Err(No(format!("failed: {}", named(Verdict::Failed))).into()),
        Some(Verdict::Unknown) => bail!("unknown: {}", named(Verdict::Unknown)),
        _ => Ok(()),
    }
}

/// The findings, in the order of the checks.
fn table(findings: &[Finding]) -> String {
    let row = |one: &Finding| [format!("{:?}", one.verdict), one.subject.clone(), one.message.clone()];
    columns(["RESULT", "WHAT", "MESSAGE"], findings.iter().map(row))
}

/// The version of the API server.
async fn server(client: &Client) -> anyhow::Result<Finding> {
    let version = within(client.apiserver_version()).await.context("cannot read the version of the API server")?;
    let digits = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().unwrap_or(0);
    let found = (digits(&version.major), digits(&version.minor));
    let (major, minor) = OLDEST;
    let describe = format!("Kubernetes {}", version.git_version);
    Ok(if found >= OLDEST {
        Finding::new(SERVER, Verdict::Ok, describe)
    } else {
        Finding::new(SERVER, Verdict::Failed, format!("{describe}, expected {major}.{minor} or newer"))
    })
}

/// A right, and its purpose.
struct Right {
    what: &'static str,
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
}

const fn right(what: &'static str, verb: &'static str, group: &'static str, resource: &'static str) -> Right {
    Right { what, verb, group, resource }
}

/// The rights that an installation needs. Only an administrator may create roles and bind them beyond their own rights.
const INSTALLS: [Right; 6] = [
    right("create namespaces", "create", "", "namespaces"),
    right("create definitions", "create", "apiextensions.k8s.io", "customresourcedefinitions"),
    right("create admission policies", "create", "admissionregistration.k8s.io", "validatingadmissionpolicies"),
    right("create roles", "escalate", "rbac.authorization.k8s.io", "clusterroles"),
    right("bind roles", "bind", "rbac.authorization.k8s.io", "clusterroles"),
    right("create the probe", "create", "apps", "daemonsets"),
];

/// The rights that people use, by the role that grants them (`config/rbac/people.yaml`).
const USES: [Right; 6] = [
    right("read (nrh:view)", "list", "runtimehealth.io", "noderuntimehealths"),
    right("suspend nodes (nrh:operator)", "patch", "runtimehealth.io", "noderuntimehealths"),
    right("write policies (nrh:operator)", "patch", "runtimehealth.io", "remediationpolicies"),
    right("approve steps (nrh:approver)", "approve", "runtimehealth.io", "noderemediations"),
    right("request steps (nrh:manual-remediation)", "remediate", "runtimehealth.io", "noderemediations"),
    right("read evidence (debug)", "debug", "runtimehealth.io", "noderuntimehealths"),
];

/// Which of these rights the caller has: one line for those, one for the missing ones.
async fn rights(client: &Client, wanted: &[Right], without: Verdict) -> Vec<Finding> {
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let (mut has, mut lacks) = (Vec::new(), Vec::new());
    for right in wanted {
        let attributes = ResourceAttributes {
            verb: Some(right.verb.to_owned()),
            group: Some(right.group.to_owned()),
            resource: Some(right.resource.to_owned()),
            ..ResourceAttributes::default()
        };
        match within(api.create(&PostParams::default(), &review(attributes))).await {
            Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => has.push(right.what),
            Ok(_) => lacks.push(right.what),
            Err(error) => return vec![Finding::unknown("your rights", &error)],
        }
    }
    let line = |may: &str, whats: &[&str], verdict| {
        (!whats.is_empty()).then(|| Finding::new("your rights", verdict, format!("you {may} {}", whats.join(", "))))
    };
    line("may", &has, Verdict::Ok).into_iter().chain(line("may not", &lacks, without)).collect()
}

#[cfg(test)]
mod tests;
