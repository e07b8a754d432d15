//! The component for production: images by digest.

use anyhow::Result;
use nrh_testbed::Bed;
use serde_json::{Value, json};

use crate::admission::callers::Callers;
use crate::admission::proof;
use crate::admission::requests::{Cases, create, merge, strategic};
use crate::plane;

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/nrh-system/deployments/nrh-controller?dryRun=All";
const PROBE: &str = "/apis/apps/v1/namespaces/nrh-node/daemonsets/nrh-probe?dryRun=All";
const PODS: &str = "/api/v1/namespaces/nrh-node/pods?dryRun=All";

/// Nobody gives a workload of this project an image by tag; one that stands already is no obstacle to whatever else is written.
pub async fn wanted(all: &Callers, bed: &Bed, cases: &mut Cases) -> Result<()> {
    let component = plane::folder("config/digests/policy.yaml");
    bed.kubectl(&["apply", "-f", &component])?;
    let image = |container: &str, image: &str| json!({"spec": {"template": {"spec": {"containers": [{"name": container, "image": image}]}}}});
    let digest = format!("example.org/nrh@sha256:{}", "0a".repeat(32));
    let (tag, short) = ("example.org/nrh:2", "example.org/nrh@sha256:0a0a");
    let by_tag = "named by digest: expected NAME@sha256:DIGEST, found example.org/nrh";
    let admin = &all.admin;
    admin.until_denied(&strategic(DEPLOYMENT, image("controller", tag))).await?;
    for (path, container) in [(DEPLOYMENT, "controller"), (PROBE, "probe")] {
        for other in [tag, short] {
            let call = strategic(path, image(container, other));
            cases.denied_as_it_is(admin, &format!("{container}: {other}"), call, by_tag).await;
        }
        let call = strategic(path, image(container, &digest));
        cases.allowed(admin, &format!("{container} by digest"), call).await;
        let labels = merge(path, json!({"metadata": {"labels": {"seen": "yes"}}}));
        cases.allowed(admin, &format!("labels of {container}, which stands with a tag"), labels).await;
    }
    let pod = |image: &str, first: Value| {
        let spec = json!({"containers": [{"name": "c", "image": image}], "initContainers": first});
        create(PODS, json!({"metadata": {"name": "debugger"}, "spec": spec}))
    };
    cases.denied_as_it_is(admin, "a pod by tag", pod(tag, json!([])), by_tag).await;
    let first = json!([{"name": "first", "image": tag}]);
    cases.denied_as_it_is(admin, "a first container by tag", pod(&digest, first), by_tag).await;
    cases.allowed(admin, "a pod by digest", pod(&digest, json!([]))).await;
    // The API server names only one of the policies that refuse: this one must not answer for those that the controller proves.
    proof::holds(all).await?;
    bed.kubectl(&["delete", "-f", &component])?;
    admin.until_allowed(&pod(tag, json!([]))).await
}
