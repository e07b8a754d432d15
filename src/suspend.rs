//! `nrh suspend` and `nrh resume`: a person's veto on all that is done to one node, in their own name.

use anyhow::Context;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::api::NodeRuntimeHealth;
use crate::caller::{client, whoami, within};
use crate::cli::{ResumeArgs, SuspendArgs};

/// Runs `nrh suspend`.
///
/// # Errors
/// The cluster does not answer, the node has no object, or the API server says no.
pub async fn suspend(args: SuspendArgs) -> anyhow::Result<()> {
    let by = whoami(client().await?).await?;
    write(&args.node, &suspended(&by, args.reason.as_deref())).await?;
    println!("suspended by {by}: nothing is begun on node {0}; `nrh resume {0}` lifts it", args.node);
    Ok(())
}

/// Runs `nrh resume`, whoever has suspended the node.
///
/// # Errors
/// As [`suspend`].
pub async fn resume(args: ResumeArgs) -> anyhow::Result<()> {
    write(&args.node, &resumed()).await?;
    println!("node {} is not suspended any more", args.node);
    Ok(())
}

/// The whole veto: nothing of one that stood before stays under another's name.
fn suspended(by: &str, reason: Option<&str>) -> Value {
    json!({"spec": {"suspend": true, "suspendedBy": by, "reason": reason}})
}

/// That nobody wants one.
fn resumed() -> Value {
    json!({"spec": {"suspend": false, "suspendedBy": null, "reason": null}})
}

async fn write(node: &str, patch: &Value) -> anyhow::Result<()> {
    let api: Api<NodeRuntimeHealth> = Api::all(client().await?);
    let patched = within(api.patch(node, &PatchParams::default(), &Patch::Merge(patch))).await;
    patched.map(drop).with_context(|| {
        format!(
            "cannot change NodeRuntimeHealth {node} (it takes the verb patch on noderuntimehealths: ClusterRole nrh:operator)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(spec: &Value, patch: &Value) -> NodeRuntimeHealth {
        let mut object = json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRuntimeHealth", "metadata": {"name": "w1"},
            "spec": spec});
        let fields = patch["spec"].as_object().unwrap();
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
}
