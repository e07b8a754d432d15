//! A person who has a step of a policy done on one node.

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use nrh::api::NodeRemediation;
use nrh::core::fault::FaultType;
use serde_json::json;

/// Has that action of the policy done for the fault, in the name that the client has.
pub async fn start(client: &Client, node: &str, policy: &str, fault: FaultType, action: &str) -> Result<()> {
    let review: Api<SelfSubjectReview> = Api::all(client.clone());
    let who = review.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    let by = who.status.and_then(|status| status.user_info?.username).context("a name of one's own")?;
    let nodes: Api<Node> = Api::all(client.clone());
    let uid = nodes.get(node).await?.uid().context("a uid")?;
    let manual = json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRemediation",
        "metadata": {"name": format!("{node}-by-hand")},
        "spec": {"nodeName": node, "nodeUid": uid, "policy": policy, "mode": "Enforce",
            "manual": {"requestedBy": by, "fault": fault, "action": action}}});
    let remediations: Api<NodeRemediation> = Api::all(client.clone());
    remediations.create(&PostParams::default(), &serde_json::from_value(manual)?).await?;
    Ok(())
}
