//! `nrh suspend` and `nrh resume`: a person's veto on all that is done to one node, in their own name.

use anyhow::{Context, bail};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::api::{NodeRuntimeHealth, NodeRuntimeHealthSpec};
use crate::caller::{client, whoami, within};
use crate::cli::{ResumeArgs, SuspendArgs};
use crate::terminal::print;

/// How often it is begun anew when the object has changed meanwhile: probe and controller write in it, too.
const TRIES: u32 = 5;

/// Runs `nrh suspend`.
///
/// # Errors
/// The cluster does not answer, the node has no object, another person has suspended it, or the API server says no.
pub async fn suspend(args: SuspendArgs) -> anyhow::Result<()> {
    let SuspendArgs { node, reason, force } = args;
    let client = client().await?;
    let by = whoami(client.clone()).await?;
    change(client, &node, |spec| {
        if let Some(other) = of_another(spec, &by).filter(|_| !force) {
            bail!(
                "node {node} is suspended already, {other}; nothing was changed. `nrh suspend {node} --force` puts yours in its place"
            );
        }
        Ok(Some(suspended(&by, reason.as_deref())))
    })
    .await?;
    print(&format!("suspended by {by}: nothing is begun on node {node}; `nrh resume {node}` lifts it\n"))
}

/// Runs `nrh resume`.
///
/// # Errors
/// As [`suspend`].
pub async fn resume(args: ResumeArgs) -> anyhow::Result<()> {
    let ResumeArgs { node, force } = args;
    let client = client().await?;
    let by = whoami(client.clone()).await?;
    let before = change(client, &node, |spec| {
        if let Some(other) = of_another(spec, &by).filter(|_| !force) {
            bail!("node {node} is suspended {other}; nothing was changed. `nrh resume {node} --force` lifts it all the same");
        }
        Ok(spec.suspend.then(resumed))
    })
    .await?;
    let told = match before.veto() {
        Some(veto) if veto.is_empty() => "is not suspended any more; nobody was named".to_owned(),
        Some(veto) => format!("is not suspended any more; it was, {veto}"),
        None => "is not suspended; nothing was changed".to_owned(),
    };
    print(&format!("node {node} {told}\n"))
}

/// Whose veto stands and why, where it is not the caller's own: another person's, or one in nobody's name, a script's perhaps.
fn of_another(spec: &NodeRuntimeHealthSpec, me: &str) -> Option<String> {
    let veto = spec.veto().filter(|_| spec.suspended_by.as_deref() != Some(me))?;
    Some(match &spec.suspended_by {
        Some(_) => veto,
        None if veto.is_empty() => "in nobody's name".to_owned(),
        None => format!("in nobody's name: {veto}"),
    })
}

/// The whole veto: nothing of one that stood before stays under another's name.
fn suspended(by: &str, reason: Option<&str>) -> Value {
    json!({"suspend": true, "suspendedBy": by, "reason": reason})
}

/// That nobody wants one.
fn resumed() -> Value {
    json!({"suspend": false, "suspendedBy": null, "reason": null})
}

/// Changes what stands there as it is decided on what was read, and on nothing else: what another person has written meanwhile is read
/// first. What stood there before.
async fn change(
    client: Client,
    node: &str,
    decide: impl Fn(&NodeRuntimeHealthSpec) -> anyhow::Result<Option<Value>>,
) -> anyhow::Result<NodeRuntimeHealthSpec> {
    let api: Api<NodeRuntimeHealth> = Api::all(client);
    for _ in 0..TRIES {
        let found = within(api.get(node)).await.with_context(|| format!("cannot read NodeRuntimeHealth {node}"))?;
        let Some(spec) = decide(&found.spec)? else { return Ok(found.spec) };
        let patch = json!({"metadata": {"resourceVersion": found.resource_version()}, "spec": spec});
        match within(api.patch(node, &PatchParams::default(), &Patch::Merge(&patch))).await {
            Ok(_) => return Ok(found.spec),
            Err(error) if code(&error) == Some(409) => {}
            Err(error) if code(&error) == Some(403) => {
                let right = "it takes the verb patch on noderuntimehealths: ClusterRole nrh:operator";
                return Err(error.context(format!("may not change NodeRuntimeHealth {node} ({right})")));
            }
            Err(error) => return Err(error.context(format!("cannot change NodeRuntimeHealth {node}"))),
        }
    }
    bail!(
        "NodeRuntimeHealth {node} has changed {TRIES} times while it was being changed; nothing was changed, try again"
    )
}

/// What the API server has answered with.
fn code(error: &anyhow::Error) -> Option<u16> {
    match error.downcast_ref::<kube::Error>()? {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(spec: &Value, patch: &Value) -> NodeRuntimeHealth {
        let mut object = json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRuntimeHealth", "metadata": {"name": "w1"},
            "spec": spec});
        let fields = patch.as_object().unwrap();
        let spec = object["spec"].as_object_mut().unwrap();
        for (field, value) in fields {
            if value.is_null() {
                spec.remove(field);
            } else {
                spec.insert(field.clone(), value.clone());
            }
        }
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_veto_is_whole_and_in_ones_own_name() {
        let before = json!({"suspend": true, "suspendedBy": "bob", "reason": "his"});
        let spec = after(&before, &suspended("ann", None)).spec;
        assert_eq!(spec.veto().unwrap(), "by ann", "not his words under her name");
        assert_eq!(after(&before, &suspended("ann", Some("hers"))).spec.veto().unwrap(), "by ann: hers");
        let lifted = after(&before, &resumed()).spec;
        assert_eq!((lifted.veto(), lifted.suspended_by), (None, None));
    }

    #[test]
    fn another_s_veto_is_not_lifted_or_replaced_in_passing() {
        let spec = |spec: Value| serde_json::from_value::<NodeRuntimeHealthSpec>(spec).unwrap();
        let his = spec(json!({"suspend": true, "suspendedBy": "bob", "reason": "disk swap"}));
        assert_eq!(of_another(&his, "ann").unwrap(), "by bob: disk swap");
        assert_eq!(of_another(&his, "bob"), None);
        let unsigned = spec(json!({"suspend": true, "reason": "by bob: disk swap"}));
        assert_eq!(of_another(&unsigned, "ann").unwrap(), "in nobody's name: \"by bob: disk swap\"");
        assert_eq!(of_another(&spec(json!({"suspend": true})), "ann").unwrap(), "in nobody's name");
        assert_eq!(of_another(&spec(json!({"suspend": false, "suspendedBy": "bob"})), "ann"), None, "it is lifted");
    }
}
