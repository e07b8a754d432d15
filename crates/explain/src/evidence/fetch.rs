//! Reads bundles through the probe's pod: it runs `nrh evidence --local` there, as `kubectl exec` would. The API holds only the
//! names of bundles. No part of the operator has this right: the person's own right counts.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, ListParams};
use kube::{Api, Client, Error, ResourceExt};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use nrh_api::NODE_NAMESPACE as NAMESPACE;
use nrh_api::view::guard::Guarded;
use nrh_core::text::bounded;
use nrh_terminal::complain;

/// The label of the probes' pods, and the container in them.
const PROBES: &str = "app.kubernetes.io/name=nrh-probe";
const CONTAINER: &str = "probe";
/// Timeout of one answer of the API server.
const ANSWER: Duration = Duration::from_secs(20);
/// Timeout of the command with all its output.
const WHOLE: Duration = Duration::from_mins(1);
/// Largest output that is read, in bytes. A node keeps far less than that.
const LARGEST: u64 = 16 << 20;
/// Largest error output that is read, in bytes.
const MAX_COMPLAINT: u64 = 8 << 10;
/// Longest foreign sentence that is passed on.
const MAX_MESSAGE: usize = 400;

/// The bundles of a node, or of one fault where it is named. What could not be read there is the last of them.
pub(super) async fn fetch(
    client: Client,
    node: &str,
    fault: Option<&str>,
) -> anyhow::Result<Vec<anyhow::Result<Value>>> {
    let pod = probe_of(Api::namespaced(client.clone(), NAMESPACE), node).await?;
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let mut command = vec!["/nrh", "evidence", "--local", "--output", "json"];
    command.extend(fault.into_iter().flat_map(|fault| ["--fault", fault]));
    let answer = timeout(WHOLE, run_in_pod(&pods, &pod, node, command)).await;
    let late = || anyhow!("it did not send everything within {} s; {}", WHOLE.as_secs(), instead(node));
    let cannot = || format!("cannot fetch the evidence of node {node} out of pod {pod}");
    let (text, failure) = answer.map_err(|_| late()).flatten().with_context(cannot)?;
    let bundles: Vec<Value> = match (serde_json::from_slice(&text), &failure) {
        (Err(_), Some(failure)) => bail!("{}: {failure}", cannot()),
        (bundles, _) => bundles.context("the answer of the probe's pod is not whole")?,
    };
    if bundles.is_empty() {
        let of = fault.map_or_else(String::new, |fault| format!(" of {:?}", bounded(fault, 120)));
        bail!(
            "node {node} keeps no bundle{of}: no fault was confirmed since it booted, or newer bundles replaced the older ones"
        );
    }
    Ok(bundles.into_iter().map(Ok).chain(failure.map(|failure| Err(anyhow!(failure)))).collect())
}

/// The alternative where the way through the API server and the kubelet fails.
fn instead(node: &str) -> String {
    format!("`nrh evidence --local` as root on {node} reads the same, and needs neither kubelet nor API server")
}

/// The pod of the probe on this node.
async fn probe_of(pods: Api<Guarded<Pod>>, node: &str) -> anyhow::Result<String> {
    let wanted = ListParams::default().labels(PROBES).fields(&format!("spec.nodeName={node}"));
    let found = timeout(ANSWER, pods.list(&wanted)).await.context("the API server gave no answer in time")?;
    let found = found.map_err(|error| match error {
        Error::Api(answer) if answer.code == 403 => {
            anyhow!("may not find the probe's pod: `list` on pods in namespace {NAMESPACE} is missing")
        }
        error => anyhow::Error::new(error).context(format!("cannot list the pods of {NAMESPACE}")),
    })?;
    let phase =
        |pod: &Guarded<Pod>| pod.0.as_ref().ok().and_then(|pod| pod.status.as_ref()?.phase.clone()).unwrap_or_default();
    match found.items.iter().find(|pod| phase(pod) == "Running").or(found.items.first()) {
        None => {
            bail!("no probe's pod is on node {node} (is it a unit there, or is there no such node?); {}", instead(node))
        }
        Some(pod) if phase(pod) != "Running" => {
            bail!("the probe's pod {} of node {node} does not run ({}); {}", pod.name_any(), phase(pod), instead(node))
        }
        Some(pod) => Ok(pod.name_any()),
    }
}

/// The output of a command in the pod, and why the command failed, if it did.
async fn run_in_pod(
    pods: &Api<Pod>,
    pod: &str,
    node: &str,
    command: Vec<&str>,
) -> anyhow::Result<(Vec<u8>, Option<String>)> {
    let how = AttachParams::default().container(CONTAINER).stdin(false).stdout(true).stderr(true);
    let mut running = match timeout(ANSWER, pods.exec(pod, command, &how)).await {
        Ok(begun) => begun.map_err(|error| refused(error, node))?,
        Err(_) => bail!("its kubelet gave no answer within {} s; {}", ANSWER.as_secs(), instead(node)),
    };
    let (end, out, complaint) = (running.take_status(), running.stdout(), running.stderr());
    let (text, complaint) = tokio::try_join!(read(out, LARGEST), read(complaint, MAX_COMPLAINT))?;
    let Some(end) = end else { return Ok((text, None)) };
    let end = end.await.unwrap_or_default();
    if end.status.as_deref() == Some("Failure") {
        let complaint = String::from_utf8_lossy(&complaint);
        let answer = if complaint.trim().is_empty() { end.message.unwrap_or_default() } else { complaint.into_owned() };
        let answer = bounded(answer.trim(), MAX_MESSAGE);
        return Ok((text, Some(format!("`nrh evidence --local` failed there: {answer}"))));
    }
    for line in String::from_utf8_lossy(&complaint).lines() {
        complain(&bounded(line, MAX_MESSAGE));
    }
    Ok((text, None))
}

async fn read(stream: Option<impl AsyncRead + Unpin>, most: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        stream.take(most.saturating_add(1)).read_to_end(&mut bytes).await.context("the connection ended early")?;
    }
    if bytes.len() as u64 > most {
        bail!("it printed more than {most} bytes, which is not an answer of ours");
    }
    Ok(bytes)
}

/// The error for a command that did not start.
fn refused(error: Error, node: &str) -> anyhow::Error {
    let Error::Api(status) = error else { return anyhow::Error::new(error).context("no connection to the pod") };
    let answer = bounded(&status.message, MAX_MESSAGE);
    match status.code {
        403 => anyhow!(
            "may not run a command in the probe's pod: that needs `get` and `create` on pods/exec in namespace \
             {NAMESPACE}, and the verb `debug` on noderuntimehealths.runtimehealth.io, since who can do this is root \
             on the node: {answer}"
        ),
        404 => anyhow!("the pod is gone: {answer}"),
        500..=599 => anyhow!("its kubelet cannot be reached, or does not answer: {answer}; {}", instead(node)),
        code => anyhow!("refused with status {code}: {answer}"),
    }
}

#[cfg(test)]
mod tests;
