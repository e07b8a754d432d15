//! What was done to a node is to be read after the node is gone: nothing of it is collected as garbage.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use kube::{Api, ResourceExt};
use nrh::api::{NodeRemediation, NodeRuntimeHealth};
use nrh::core::remediation::Phase;

use crate::interruptions::{Stage, kill, start, until};

/// A node that was repaired before it is deleted, and one that is in work when it is.
const NODES: [&str; 2] = ["left-healed", "left-in-work"];
/// The collector checks anew what it has put off within so long.
const COLLECTED: Duration = Duration::from_secs(10);

/// Deletes the nodes, and looks for their remediations.
pub async fn its_node(stage: &Stage<'_>) -> Result<()> {
    let [resolved, in_work] = NODES;
    let leader = start(&stage.upstream);
    stage.fleet.sick_node(resolved).await?;
    stage.fleet.resolved(resolved).await?;
    stage.fleet.keep_idle(true);
    stage.fleet.sick_node(in_work).await?;
    until("the cordon of the second node", async || {
        let is_begun = |one: &NodeRemediation| one.status.as_ref().is_some_and(|status| status.attempts.len() >= 2);
        Ok(stage.fleet.remediations(in_work).await?.iter().any(is_begun))
    })
    .await?;
    let before = remediations(stage).await?;
    let phases = || before.values().map(|one| one.status.as_ref().map(|status| status.phase)).collect::<Vec<_>>();
    ensure!(before.len() == NODES.len(), "expected a remediation per node, found {:?}", phases());

    for node in NODES {
        stage.fleet.remove(node).await?;
    }
    // These are the nodes' own: that they go shows that the collector has seen that the nodes are gone.
    let reports: Api<NodeRuntimeHealth> = Api::all(stage.admin.clone());
    until("the end of the nodes' reports", async || {
        let mut left = 0;
        for node in NODES {
            left += usize::from(reports.get_opt(node).await?.is_some());
        }
        Ok(left == 0)
    })
    .await?;
    stage.fleet.ledger_is_empty().await?;
    tokio::time::sleep(COLLECTED).await;

    let after = remediations(stage).await?;
    ensure!(after.keys().eq(before.keys()), "expected {:?}, found {:?}", before.keys(), after.keys());
    for (name, remediation) in &after {
        let status = remediation.status.clone().unwrap_or_default();
        ensure!(remediation.metadata.deletion_timestamp.is_none(), "remediation {name:?} is being deleted");
        ensure!(!status.attempts.is_empty(), "remediation {name:?} has lost what was done: {status:#?}");
        let expected = if remediation.spec.node_name == resolved { Phase::Succeeded } else { Phase::Cancelled };
        ensure!(status.phase == expected, "remediation {name:?}: expected {expected:?}, found {status:#?}");
    }
    println!("two nodes were deleted and their reports with them; their remediations are all there");
    stage.fleet.keep_idle(false);
    kill(&stage.admin, leader).await
}

/// Remediations of the nodes, by name and uid: another one of the same name is not the same.
async fn remediations(stage: &Stage<'_>) -> Result<BTreeMap<(String, Option<String>), NodeRemediation>> {
    let mut all = BTreeMap::new();
    for node in NODES {
        let of_node = stage.fleet.remediations(node).await?;
        all.extend(of_node.into_iter().map(|remediation| ((remediation.name_any(), remediation.uid()), remediation)));
    }
    Ok(all)
}
