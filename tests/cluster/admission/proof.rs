//! What the controller finds where a fence is down.

use anyhow::{Result, ensure};
use nrh::controller::admission::{POLICIES, lacking};
use nrh::controller::calls::Calls;
use nrh_testbed::{Bed, operator};

use crate::admission::callers::{CONTROLLER, Callers, by_token};
use crate::admission::jobs;
use crate::admission::requests::Cases;
use crate::plane;

/// Those that the controller tries itself, and the others.
const TRIED: [&str; 4] = ["nrh-node-changes", "nrh-jobs", "nrh-names", "nrh-pod-deletion"];

pub async fn of_the_controller(all: &Callers, bed: &Bed, cases: &mut Cases) -> Result<()> {
    let calls = all.controller.calls();
    until_lacking(&calls, &[]).await?;
    cases.note("all policies are proven to be in force", true, "");
    // What a node may do to its own Node.
    bed.kubectl(&["label", "node", "worker-1", "runtimehealth.io/admission-check=tried"])?;
    until_lacking(&calls, &[]).await?;
    cases.note("a label of that name on the Node changes nothing", true, "");
    let bindings = |names: &[&str]| {
        let kind = ["delete", "validatingadmissionpolicybinding"];
        bed.kubectl(&[&kind, names].concat())
    };
    bindings(&POLICIES)?;
    let missing = POLICIES.map(|name| format!("{name} has no binding that denies"));
    let tried = TRIED.map(|name| format!("{name} does not refuse what it must"));
    until_lacking(&calls, &[missing.as_slice(), &tried].concat()).await?;
    cases.note("each missing binding is named, and what is not refused", true, "");
    plane::install(bed)?;
    until_lacking(&calls, &[]).await?;
    cases.note("they are back", true, "");
    // What an administrator might do to find out what would be denied.
    let audit = r#"{"spec": {"validationActions": ["Audit"]}}"#;
    bed.kubectl(&["patch", "validatingadmissionpolicybinding", "nrh-commands", "--type=merge", "-p", audit])?;
    until_lacking(&calls, &["nrh-commands has no binding that denies".to_owned()]).await?;
    bed.kubectl(&["delete", "validatingadmissionpolicy", "nrh-exclusions"])?;
    until_lacking(&calls, &["nrh-commands".to_owned(), "nrh-exclusions is missing".to_owned()]).await?;
    cases.note("a binding that only audits and a policy that is gone are named", true, "");
    plane::install(bed)?;
    until_lacking(&calls, &[]).await
}

/// All policies are proven to be in force.
pub async fn holds(all: &Callers) -> Result<()> {
    until_lacking(&all.controller.calls(), &[]).await
}

/// After the operator was removed, the same API server lets a new installation create its Jobs.
pub async fn of_another_installation(bed: &Bed) -> Result<()> {
    let token = operator::controllers_token(bed, CONTROLLER, operator::IMAGE)?;
    let controller = by_token("controller of the new installation", &bed.client_config().await?, token)?;
    until_lacking(&controller.calls(), &[]).await?;
    controller.until_allowed(&jobs::tried(jobs::shaped())).await
}

/// Waits until exactly that is missing: admission takes a moment to learn of its policies.
async fn until_lacking(calls: &Calls, expected: &[String]) -> Result<()> {
    plane::soon(async || {
        let found = lacking(calls, Some("worker-1")).await.map_err(|error| error.line());
        let is_such = found.as_ref().is_ok_and(|lacks| {
            let is_named = |part: &String| lacks.iter().any(|lack| lack.contains(part));
            lacks.len() == expected.len() && expected.iter().all(is_named)
        });
        ensure!(is_such, "expected {expected:?}, found {found:?}");
        Ok(())
    })
    .await
}
