//! A bare client that asks the same of the same API server: the same kinds of requests in the same share, without a thought.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Context, Result};
use futures::StreamExt;
use http::Request;
use kube::Client;
use nrh_testbed::Bed;
use serde_json::{Value, json};

use crate::stage::count;

/// Requests in flight of the engine: eight chains of acts and eight writes of statuses.
pub const PARALLEL: usize = 16;
/// Requests that are repeated at most: of more, every second, third … one.
const MOST: usize = 6_000;
/// Label of what it makes, by which it is removed.
const MARK: &str = "bench-bare";
const GROUP: &str = "/apis/runtimehealth.io/v1alpha1";

/// What it reached.
#[derive(Debug, Default)]
pub struct Bare {
    /// Requests a second.
    pub rate: f64,
    /// How many.
    requests: usize,
    /// Those that the server did not carry out.
    refused: usize,
    left_out: BTreeSet<String>,
}

impl Bare {
    /// Prints how much it asked, and the kinds of requests that cannot be repeated.
    pub fn print(&self) {
        let mut left_out = self.left_out.iter().cloned().collect::<Vec<_>>().join(", ");
        if left_out.is_empty() {
            left_out.push_str("none");
        }
        println!("    bare client: {} requests, {} of them refused; left out: {left_out}", self.requests, self.refused);
    }
}

/// The same requests once more, in the same order, on other objects of the same kinds, so many of them in flight.
pub async fn rate(client: &Client, bed: &Bed, kinds: &[String], nodes: &[String], parallel: usize) -> Result<Bare> {
    let templates = Templates::read(bed)?;
    let mut bare = Bare::default();
    let mut requests = Vec::new();
    for (index, kind) in kinds.iter().step_by(kinds.len() / MOST + 1).enumerate() {
        let node = nodes.get(index % nodes.len().max(1)).context("a node")?;
        match templates.request(kind, index, node)? {
            Some(request) => requests.push(request),
            None => {
                bare.left_out.insert(kind.clone());
            }
        }
    }
    bare.requests = requests.len();
    let begun = Instant::now();
    let sent = futures::stream::iter(requests).map(|request| async { client.request_text(request).await.err() });
    let errors: Vec<_> = sent.buffer_unordered(parallel).filter_map(|error| async { error }).collect().await;
    bare.rate = count(bare.requests) / begun.elapsed().as_secs_f64();
    bare.refused = errors.len();
    if let Some(error) = errors.first() {
        println!("    the first refusal of the bare client: {error}");
    }
    clean(bed)?;
    Ok(bare)
}

/// Milliseconds of `act` with what has to stand before it, each asked for after the answer to the one before: a slot, a remediation with its
/// reserved step, a check. Whoever keeps that order is not quicker.
pub async fn chains(client: &Client, bed: &Bed, act: &str, nodes: &[String], times: usize) -> Result<Vec<f64>> {
    let kinds =
        ["patch configmaps", "create noderemediations", "patch noderemediations/status", "get noderuntimehealths", act];
    let templates = Templates::read(bed)?;
    let mut taken = Vec::new();
    for (index, node) in nodes.iter().cycle().take(times).enumerate() {
        let made = |kind: &str| templates.request(kind, index, node)?.with_context(|| format!("no way to {kind}"));
        let requests = kinds.into_iter().map(made).collect::<Result<Vec<_>>>()?;
        let begun = Instant::now();
        for request in requests {
            client.request_text(request).await?;
        }
        taken.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    clean(bed)?;
    Ok(taken)
}

/// Removes what was made.
fn clean(bed: &Bed) -> Result<()> {
    for kind in ["noderemediations", "nodecommands", "jobs --namespace=nrh-node"] {
        let words: Vec<&str> = kind.split(' ').collect();
        let label = format!("--selector={MARK}=yes");
        bed.kubectl(&[&["delete", "--wait=false", &label], words.as_slice()].concat())?;
    }
    Ok(())
}

/// What the requests are made from: objects that the controller has made.
struct Templates {
    remediation: Value,
    remediations: Vec<String>,
    job: Option<Value>,
    /// The controller's part of a report, by node.
    reports: BTreeMap<String, Value>,
}

impl Templates {
    fn read(bed: &Bed) -> Result<Self> {
        let list = |what: &[&str]| -> Result<Vec<Value>> {
            let text = bed.kubectl(&[&["get", "-o", "json"], what].concat())?;
            let mut list: Value = serde_json::from_str(&text)?;
            Ok(list["items"].take().as_array().cloned().unwrap_or_default())
        };
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let remediations = list(&["noderemediations"])?;
        let jobs = list(&["jobs", "--namespace=nrh-node"])?;
        Ok(Self {
            remediation: remediations.first().cloned().context("a remediation as a template")?,
            remediations: remediations.iter().map(name).collect(),
            job: jobs.into_iter().next(),
            reports: list(&["noderuntimehealths"])?.into_iter().map(|report| (name(&report), report)).collect(),
        })
    }

    /// A request of this kind; none where there is no way to ask the same.
    fn request(&self, kind: &str, index: usize, node: &str) -> Result<Option<Request<Vec<u8>>>> {
        let remediation = self.remediations.get(index % self.remediations.len().max(1)).context("a remediation")?;
        let merge = "application/merge-patch+json";
        let made = match kind {
            "get nodes" => get(&format!("/api/v1/nodes/{node}")),
            "get noderuntimehealths" => get(&format!("{GROUP}/noderuntimehealths/{node}")),
            "get remediationpolicies" => get(&format!("{GROUP}/remediationpolicies/bench")),
            "get noderemediations" => get(&format!("{GROUP}/noderemediations/{remediation}")),
            "list pods" => get(&format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}&limit=100")),
            "create noderemediations" => {
                let body = json!({
                    "apiVersion": self.remediation["apiVersion"], "kind": self.remediation["kind"], "spec": self.remediation["spec"],
                    "metadata": {"name": format!("bare-{index}-{}", stamp()), "labels": {MARK: "yes"}},
                });
                // Nobody but the controller opens remediations: the client has its token.
                send("POST", &format!("{GROUP}/noderemediations"), "application/json", &body)
            }
            "patch noderemediations/status" => {
                let body = json!({"status": {"message": format!("written by a bare client: {index}")}});
                send("PATCH", &format!("{GROUP}/noderemediations/{remediation}/status"), merge, &body)
            }
            "get nodecommands" => get(&format!("{GROUP}/nodecommands/{node}")),
            "create nodecommands" | "patch nodecommands" => {
                let report = self.reports.get(node).context("a report")?;
                // A command would be one to somebody: a check is asked for, which nobody answers here.
                let body = json!({
                    "apiVersion": report["apiVersion"], "kind": "NodeCommand", "spec": {"checkSequence": index},
                    "metadata": {"name": node, "labels": {MARK: "yes"}, "ownerReferences": report["metadata"]["ownerReferences"]},
                });
                let path = format!("{GROUP}/nodecommands/{node}?fieldManager=nrh-controller&force=true");
                send("PATCH", &path, "application/apply-patch+yaml", &body)
            }
            "apply noderuntimehealths/status" => {
                let report = self.reports.get(node).context("a report")?;
                let body = apply(report, index);
                let path = format!("{GROUP}/noderuntimehealths/{node}/status?fieldManager=nrh-controller&force=true");
                send("PATCH", &path, "application/apply-patch+yaml", &body)
            }
            "create jobs" => {
                let Some(job) = &self.job else { return Ok(None) };
                let body = another(job, index);
                send("POST", "/apis/batch/v1/namespaces/nrh-node/jobs", "application/json", &body)
            }
            "create events" => {
                let body = json!({
                    "apiVersion": "events.k8s.io/v1", "kind": "Event", "type": "Normal", "reason": "ActionExecuted", "action": "RunJob",
                    "metadata": {"name": format!("bare-{index}-{}", stamp()), "namespace": "default"},
                    "note": "written by a bare client", "reportingController": "nrh-controller", "reportingInstance": "bare",
                    "eventTime": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
                    "regarding": {"apiVersion": "v1", "kind": "Node", "name": node},
                });
                send("POST", "/apis/events.k8s.io/v1/namespaces/default/events", "application/json", &body)
            }
            "patch configmaps" => {
                let body = json!({"metadata": {"annotations": {MARK: index.to_string()}}});
                send("PATCH", "/api/v1/namespaces/nrh-system/configmaps/nrh-ledger", merge, &body)
            }
            _ => return Ok(None),
        };
        made.map(Some)
    }
}

/// Different in each run.
fn stamp() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// What the controller owns of a report, with another word in it.
fn apply(report: &Value, index: usize) -> Value {
    let owned = ["ProbeReporting", "PodsProgressing", "SelfHealing", "NodeStable"];
    let conditions = report["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let own: Vec<Value> =
        conditions.into_iter().filter(|c| c["type"].as_str().is_some_and(|kind| owned.contains(&kind))).collect();
    let mut status = json!({"conditions": own, "remediation": report["status"]["remediation"], "summary": report["status"]["summary"]});
    if let Some(summary) = status["summary"].as_object_mut() {
        summary.insert("activity".to_owned(), json!(format!("bare {index}")));
    }
    json!({"apiVersion": report["apiVersion"], "kind": report["kind"], "status": status})
}

/// Another Job of the same shape, which no controller of ours knows.
fn another(job: &Value, index: usize) -> Value {
    let mut template = job["spec"]["template"].clone();
    template["metadata"] = json!({"labels": {MARK: "yes"}});
    let mut spec = job["spec"].clone();
    if let Some(fields) = spec.as_object_mut() {
        fields.remove("selector");
        fields.remove("manualSelector");
        fields.insert("template".to_owned(), template);
    }
    json!({"apiVersion": "batch/v1", "kind": "Job", "spec": spec,
        "metadata": {"name": format!("bare-{index}-{}", stamp()), "namespace": "nrh-node", "labels": {MARK: "yes"}}})
}

fn get(path: &str) -> Result<Request<Vec<u8>>> {
    Ok(Request::get(path).body(Vec::new())?)
}

fn send(method: &str, path: &str, content: &str, body: &Value) -> Result<Request<Vec<u8>>> {
    let request = Request::builder().method(method).uri(path).header("content-type", content);
    Ok(request.body(serde_json::to_vec(body)?)?)
}
