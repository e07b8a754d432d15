//! Who may write what, on a real API server with the manifests as shipped, real tokens bound to pods and a real
//! kubelet's certificate. What is allowed is tried beside what is denied: a policy that denies everything would fail
//! too.

mod access;
mod approvals;
mod callers;
mod commands;
mod controller;
mod credential;
mod digests;
mod drains;
mod flow;
mod hand_offs;
mod jobs;
mod manual;
mod mirror;
mod nodes;
mod pods;
mod programs;
mod proof;
mod reach;
mod requests;
mod suspensions;
mod system;
mod verbs;

use anyhow::{Result, ensure};
use nrh_testbed::Bed;
use nrh_testbed::wait::{LONGEST_PAUSE, SOON, poll};

use crate::plane;

use callers::Callers;
use requests::Cases;

#[test]
fn everybody_writes_what_is_theirs_and_nothing_else() {
    let Some(bed) = plane::up("admission") else { return };
    verbs::before(&bed).unwrap();
    install(&bed).unwrap();
    verbs::after(&bed).unwrap();
    let cases = bed
        .run(async |admin| {
            let callers = Callers::new(admin, &bed).await?;
            let mut cases = Cases::default();
            commands::without_any_policy(&callers, &bed, &mut cases).await?;
            requests::wait_until_active(&callers).await?;
            flow::of_the_probe(&callers, &mut cases).await?;
            nodes::with_the_rights_as_shipped(&callers, &mut cases).await?;
            commands::guarded(&callers, &bed, &mut cases).await?;
            access::as_the_table_says(&callers, &bed, &mut cases).await?;
            credential::plugin(&bed, &mut cases).await?;
            nodes::beside_the_controller(&callers, &mut cases).await?;
            nodes::with_too_many_rights(&callers, &mut cases).await?;
            approvals::guarded(&callers, &mut cases).await?;
            manual::started(&callers, &mut cases).await?;
            manual::cancelled(&callers, &mut cases).await?;
            suspensions::signed(&callers, &bed, &mut cases).await?;
            suspensions::owned(&callers, &bed, &mut cases).await?;
            programs::of_people(&callers, &bed, &mut cases).await?;
            controller::names(&callers, &mut cases).await;
            controller::node_changes(&callers, &mut cases).await?;
            controller::taints(&callers, &mut cases).await?;
            controller::marks(&callers, &mut cases).await?;
            mirror::guarded(&callers, &mut cases).await?;
            controller::pod_deletion(&callers, &mut cases).await?;
            hand_offs::by_those_who_may(&callers, &bed, &mut cases).await?;
            hand_offs::rights_of_the_controller(&callers, &bed, &mut cases).await?;
            drains::by_those_who_may(&callers, &bed, &mut cases).await?;
            drains::evictions(&callers, &bed, &mut cases).await?;
            jobs::pinned(&callers, &bed, &mut cases).await?;
            digests::wanted(&callers, &bed, &mut cases).await?;
            pods::guarded(&callers, &bed, &mut cases).await?;
            system::guarded(&callers, &bed, &mut cases).await?;
            proof::of_the_controller(&callers, &bed, &mut cases).await?;
            Ok(cases)
        })
        .unwrap();
    let count = cases.count();
    println!("{count} requests, allowed and denied as they must be");
    cases.check();
    uninstall(&bed).unwrap();
    plane::install(&bed).unwrap();
    bed.run(async |_| proof::of_another_installation(&bed).await).unwrap();
    assert!(count > 100, "expected all cases, tried {count}");
    bed.down().unwrap();
}

/// Installs as a user would, and makes two nodes for the DaemonSet's pods to be bound to.
fn install(bed: &Bed) -> Result<()> {
    plane::install(bed)?;
    for node in ["worker-1", "worker-2"] {
        let text = format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: {node}, labels: {{kubernetes.io/os: linux}}}},
              status: {{capacity: {{cpu: 4, memory: 8Gi, pods: 110}}, allocatable: {{cpu: 4, memory: 8Gi, pods: 110}},
                conditions: [{{type: Ready, status: 'True', reason: Test}}]}}}}"
        );
        bed.kubectl_input(&["create", "-f", "-"], &text)?;
    }
    // Bound by the scheduler; nobody starts them, which the token does not need.
    let arguments = ["wait", "pod", "-n", "nrh-node", "-l", "app.kubernetes.io/name=nrh-probe"];
    let are_bound = || -> Result<()> {
        let waited = bed.kubectl(&[&arguments[..], &["--for=condition=PodScheduled", "--timeout=10s"]].concat());
        let count = bed.kubectl(&["get", "pod", "-n", "nrh-node", "-o", "name"])?.lines().count();
        ensure!(waited.is_ok() && count == 2, "expected 2 pods of the probe on nodes; found {count}: {waited:?}");
        Ok(())
    };
    poll(SOON, LONGEST_PAUSE, are_bound, Result::is_ok).unwrap_or_else(|last| last)
}

/// Removes as a user would; nothing with our label may be left, and nothing may hang on a policy of ours.
fn uninstall(bed: &Bed) -> Result<()> {
    for kind in ["remediationpolicies", "noderemediations"] {
        bed.kubectl(&["delete", kind, "--all"])?;
    }
    bed.kubectl(&["delete", "-k", &plane::folder("config/default"), "--wait=false"])?;
    let kinds = "namespace,crd,clusterrole,clusterrolebinding,flowschema,prioritylevelconfiguration,\
        validatingadmissionpolicy,validatingadmissionpolicybinding";
    let left = || -> Result<String> {
        // Nobody runs the pods, so nobody tells that they have ended.
        for namespace in ["nrh-node", "nrh-system"] {
            bed.kubectl(&["delete", "pod", "--all", "--force", "--grace-period=0", "-n", namespace])?;
        }
        let ours = ["-l", "app.kubernetes.io/part-of=nrh", "-o", "name"];
        let left = bed.kubectl(&[&["get", kinds], &ours[..]].concat())?;
        Ok(left + &bed.kubectl(&[&["get", "role,rolebinding", "-A"], &ours[..]].concat())?)
    };
    let is_over = |left: &Result<String>| left.as_ref().map_or(true, String::is_empty);
    let left = poll(SOON, LONGEST_PAUSE, left, is_over).unwrap_or_else(|last| last)?;
    ensure!(left.is_empty(), "still there after {SOON:?}:\n{left}");
    Ok(())
}
