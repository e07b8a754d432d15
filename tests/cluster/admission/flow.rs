//! Whose requests share what of the API server.

use anyhow::{Result, ensure};

use crate::admission::callers::Callers;
use crate::admission::requests::{Cases, get, report};
use crate::plane;

/// The probe's requests are in the share of its namespace, those of the controller and of a kubelet are not.
pub async fn of_the_probe(all: &Callers, cases: &mut Cases) -> Result<()> {
    let schema = get("/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/nrh-node");
    let schema = all.admin.must(&schema).await?["metadata"]["uid"].clone();
    let call = get(report("worker-1"));
    plane::soon(async || {
        let found = all.pod.flow(&call).await?;
        ensure!(schema == found.as_str(), "expected the probe in flow {schema}, found {found}");
        Ok(())
    })
    .await?;
    cases.note("the probe has a share of its own", true, "");
    for caller in [&all.controller, &all.unit, &all.admin] {
        let found = caller.flow(&call).await?;
        cases.note(&format!("{} is not in it", caller.name), schema != found.as_str(), &found);
    }
    Ok(())
}
