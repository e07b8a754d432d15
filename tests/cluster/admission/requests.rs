//! One request at a time, by one caller, with what must come of it.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::{Method, Request};
use kube::client::Body;
use kube::{Client, Config};
use nrh::controller::calls::Calls;
use serde_json::{Value, json};

use crate::admission::callers::Callers;
use crate::admission::{controller, drains, hand_offs, jobs, nodes};
use crate::objects::{COMMANDS, POLICIES, REMEDIATIONS, REPORTS, ours};
use crate::plane;
use crate::remediators::template;

/// Pods of the probe and of Jobs.
const PODS: &str = "/api/v1/namespaces/nrh-node/pods";

const ANSWERS: Duration = Duration::from_mins(1);

pub fn report(node: &str) -> String {
    format!("{REPORTS}/{node}")
}

pub struct Caller {
    pub name: &'static str,
    client: Client,
}

#[derive(Clone, Debug)]
pub struct Call {
    method: Method,
    path: String,
    kind: &'static str,
    body: Value,
}

impl Call {
    fn request(&self) -> Request<Vec<u8>> {
        let body = if self.body.is_null() { Vec::new() } else { self.body.to_string().into_bytes() };
        let request = Request::builder().method(self.method.clone()).uri(&self.path);
        request.header("content-type", self.kind).body(body).unwrap()
    }
}

fn call(method: Method, path: impl Into<String>, kind: &'static str, body: Value) -> Call {
    Call { method, path: path.into(), kind, body }
}

pub fn create(path: impl Into<String>, body: Value) -> Call {
    call(Method::POST, path, "application/json", body)
}

pub fn merge(path: impl Into<String>, body: Value) -> Call {
    call(Method::PATCH, path, "application/merge-patch+json", body)
}

/// Merges a patch into an object, lists by the names of their elements.
pub fn strategic(path: impl Into<String>, body: Value) -> Call {
    call(Method::PATCH, path, "application/strategic-merge-patch+json", body)
}

/// Puts an object in place of the one that stands.
pub fn update(path: impl Into<String>, body: Value) -> Call {
    call(Method::PUT, path, "application/json", body)
}

pub fn delete(path: impl Into<String>, options: Value) -> Call {
    call(Method::DELETE, path, "application/json", options)
}

pub fn get(path: impl Into<String>) -> Call {
    call(Method::GET, path, "application/json", Value::Null)
}

pub fn apply(path: impl Into<String>, body: Value) -> Call {
    call(Method::PATCH, path, "application/apply-patch+yaml", body)
}

/// Applies a status as the probe does.
pub fn apply_status(node: &str, status: Value) -> Call {
    let mut body = json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRuntimeHealth",
        "metadata": {"name": node}});
    body["status"] = status;
    let path = format!("{}/status?fieldManager=nrh-probe&force=true", report(node));
    apply(path, body)
}

impl Caller {
    pub fn new(name: &'static str, config: &Config) -> Result<Self> {
        let mut config = config.clone();
        // The server's first answer is the one that counts, as it is for the controller.
        config.default_retry = false;
        Ok(Self { name, client: Client::try_from(config)? })
    }

    /// The way of the controller's own code, with this caller's credential.
    pub fn calls(&self) -> Calls {
        Calls::new(self.client.clone(), self.client.clone())
    }

    /// Sends a call; the error is the server's code and message.
    pub async fn send(&self, call: &Call) -> Result<Value, (u16, String)> {
        match self.client.request::<Value>(call.request()).await {
            Ok(value) => Ok(value),
            Err(kube::Error::Api(status)) => Err((status.code, status.message.clone())),
            Err(error) => Err((0, error.to_string())),
        }
    }

    /// The server's code, and its message where that is no success. The body of a success is not read: a watch has no end.
    pub async fn code(&self, call: &Call) -> Result<(u16, String)> {
        let sent = self.client.send(call.request().map(Body::from));
        let answer =
            tokio::time::timeout(ANSWERS, sent).await.with_context(|| format!("no answer within {ANSWERS:?}"))??;
        let code = answer.status().as_u16();
        if answer.status().is_success() {
            return Ok((code, String::new()));
        }
        let body = answer.into_body().collect_bytes().await?;
        let message =
            serde_json::from_slice::<Value>(&body).ok().and_then(|body| Some(body["message"].as_str()?.to_owned()));
        Ok((code, message.unwrap_or_else(|| String::from_utf8_lossy(&body).into_owned())))
    }

    /// Uid of the `FlowSchema` by which the API server takes a call.
    pub async fn flow(&self, call: &Call) -> Result<String> {
        let answer = self.client.send(call.request().map(Body::from)).await?;
        let uid = answer.headers().get("x-kubernetes-pf-flowschema-uid").context("expected the header of a flow")?;
        Ok(uid.to_str()?.to_owned())
    }

    /// The same without any effect; admission has its say all the same.
    async fn try_out(&self, call: &Call) -> Result<Value, (u16, String)> {
        let mut dry = call.clone();
        dry.path.push_str(if dry.path.contains('?') { "&dryRun=All" } else { "?dryRun=All" });
        self.send(&dry).await
    }

    /// Sends a call that sets the stage; it must succeed.
    pub async fn must(&self, call: &Call) -> Result<Value> {
        match self.send(call).await {
            Ok(value) => Ok(value),
            Err((code, message)) => bail!("{}: {} {}: {code}: {message}", self.name, call.method, call.path),
        }
    }

    /// Waits until a right that was just granted is known to the API server.
    pub async fn until_allowed(&self, call: &Call) -> Result<()> {
        plane::soon(async || self.must(call).await.map(drop)).await
    }

    /// Waits until a policy that was just made says no, or a right that was just taken back is gone.
    pub async fn until_denied(&self, call: &Call) -> Result<()> {
        plane::soon(async || {
            let found = self.try_out(call).await;
            let is_denied = matches!(found, Err((403, _)));
            ensure!(is_denied, "{}: {} {}: expected to be denied, found {found:?}", self.name, call.method, call.path);
            Ok(())
        })
        .await
    }

    pub async fn account(&self) -> Result<String> {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let answer = self.must(&create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)).await?;
        Ok(answer["status"]["userInfo"]["username"].as_str().context("expected a name")?.to_owned())
    }
}

#[derive(Default)]
pub struct Cases {
    tried: usize,
    wrong: Vec<String>,
}

impl Cases {
    pub async fn allowed(&mut self, caller: &Caller, what: &str, call: Call) {
        self.tried += 1;
        if let Err((code, message)) = caller.send(&call).await {
            self.wrong.push(format!("{}: {what}: expected to be allowed, found {code}: {message}", caller.name));
        }
    }

    /// A request that must be denied with this sentence. It has no effect if it is not.
    pub async fn denied(&mut self, caller: &Caller, what: &str, call: Call, sentence: &str) {
        self.check_denial(caller, what, caller.try_out(&call).await, sentence);
    }

    /// The same for a request that knows no try-out.
    pub async fn denied_as_it_is(&mut self, caller: &Caller, what: &str, call: Call, sentence: &str) {
        self.check_denial(caller, what, caller.send(&call).await, sentence);
    }

    fn check_denial(&mut self, caller: &Caller, what: &str, answer: Result<Value, (u16, String)>, sentence: &str) {
        self.tried += 1;
        match answer {
            Ok(_) => self.wrong.push(format!("{}: {what}: expected to be denied, was allowed", caller.name)),
            Err((403, message)) if message.contains(sentence) => {}
            Err((code, message)) => self.wrong.push(format!(
                "{}: {what}: expected to be denied with {sentence:?}, found {code}: {message}",
                caller.name
            )),
        }
    }

    /// What was tried by other means, and whether it went as it must.
    pub fn note(&mut self, what: &str, went_well: bool, found: &str) {
        self.tried += 1;
        if !went_well {
            self.wrong.push(format!("{what}: found {found}"));
        }
    }

    pub fn count(&self) -> usize {
        self.tried
    }

    pub fn check(&self) {
        assert!(self.wrong.is_empty(), "{} of {} went wrong:\n{}", self.wrong.len(), self.tried, self.wrong.join("\n"));
    }
}

/// Policies become active a moment after they are created, each on its own: waits until each has denied something.
pub async fn wait_until_active(callers: &Callers) -> Result<()> {
    let admin = &callers.admin;
    for node in ["worker-1", "worker-2"] {
        let uid = admin.must(&get(format!("/api/v1/nodes/{node}"))).await?["metadata"]["uid"].clone();
        admin.must(&create(REPORTS, owned_report(node, &uid))).await?;
    }
    let command = owned_command("worker-1", &json!("u"), json!({"command": nodes::command()}));
    let map = create("/api/v1/namespaces/nrh-system/configmaps", json!({"metadata": {"name": "canary"}}));
    let hands_off = hand_offs::policy("canary", &[template("a.example/v1", "CanaryTemplate")]);
    let image = json!({"spec": {"containers": [{"name": "c", "image": "x"}]}});
    // Somebody's taint with our key, with our mark beside it.
    let marked = json!({"metadata": {"annotations": {"runtimehealth.io/tainted-by": "canary:NoSchedule"}},
        "spec": {"taints": [{"key": "runtimehealth.io/unhealthy", "effect": "NoSchedule"}]}});
    let canaries = [
        (&callers.unbound, apply_status("worker-1", json!({}))),
        (admin, create(COMMANDS, command)),
        (admin, create("/apis/batch/v1/namespaces/nrh-node/jobs", jobs::shaped())),
        (&callers.controller, map),
        (&callers.controller, merge("/api/v1/nodes/worker-1", json!({"metadata": {"labels": {"canary": "x"}}}))),
        (admin, merge("/api/v1/nodes/worker-1", marked)),
        (&callers.controller, remediation_with(&json!({"approval": {"approvedBy": "x", "operationId": "y"}}))),
        (&callers.controller, remediation_with(&json!({"cancel": {"cancelledBy": "x"}}))),
        (admin, merge(report("worker-2"), json!({"spec": {"suspendedBy": "canary"}}))),
        (&callers.operator, merge(report("worker-2"), json!({"metadata": {"finalizers": ["example.org/canary"]}}))),
        (admin, remediation_with(&json!({}))),
        (&callers.operator, create(POLICIES, hands_off)),
        (&callers.operator, create(POLICIES, drains::policy("canary"))),
        (&callers.controller, delete(format!("{PODS}/canary"), Value::Null)),
        (&callers.sets, create(PODS, controller::bare_pod("nobodys"))),
        (&callers.sets, strategic(format!("{PODS}/canary"), image)),
    ];
    admin.must(&create(PODS, controller::bare_pod("canary"))).await?;
    for (caller, call) in canaries {
        plane::soon(async || {
            let found = caller.try_out(&call).await;
            let is_denied = matches!(&found, Err((403, message)) if message.contains("ValidatingAdmissionPolicy"));
            let (who, method, path) = (caller.name, &call.method, &call.path);
            ensure!(is_denied, "{who}: {method} {path} is still not denied by a policy: {found:?}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// A remediation with something more in its spec.
fn remediation_with(more: &Value) -> Call {
    let mut spec = json!({"nodeName": "n", "nodeUid": "u", "policy": "p", "mode": "Enforce"});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    create(REMEDIATIONS, ours("NodeRemediation", "canary", spec))
}

/// A report as the controller makes it.
pub fn owned_report(node: &str, uid: &Value) -> Value {
    owned("NodeRuntimeHealth", node, uid, json!({}))
}

/// A command to a node as the controller makes it.
pub fn owned_command(node: &str, uid: &Value, spec: Value) -> Value {
    owned("NodeCommand", node, uid, spec)
}

fn owned(kind: &str, node: &str, uid: &Value, spec: Value) -> Value {
    let mut object = ours(kind, node, spec);
    object["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}]);
    object
}
