//! The way between a controller and the API server: on it calls are counted, delayed, refused, cut and lost, and what watches tell
//! is disturbed.

use std::io::{Error, ErrorKind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body as Answer;
use http::header::{HeaderValue, USER_AGENT};
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::sleep;
use tower::BoxError;

use crate::interruptions::watched::{Change, Telling, watched};

/// After this long without a word a connection is at its end. The product's clients say so themselves after 310 s (its
/// `read_timeout`), by a timer of the connection, which this way has not. Longer than any call is waited for.
const SILENT: Duration = Duration::from_secs(8);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    Answered,
    /// It arrives, and is answered, after a while.
    Late(Duration),
    /// It never arrives, and nobody says so.
    Lost,
    /// It arrives and is carried out, and its answer is lost.
    Unanswered,
    /// It is refused on the way with this code.
    Refused(u16),
    /// The connection breaks before it has arrived.
    CutBefore,
    /// It arrives and is carried out, and the connection breaks before its answer is back.
    CutAfter,
}

/// Who says what becomes of calls, and of what watches tell.
pub trait Judge: Send + 'static {
    fn call(&mut self, call: &Call) -> CallOutcome;

    /// What becomes of a change that a watch is about to tell.
    fn change(&mut self, _change: &Change) -> Telling {
        Telling::Told
    }

    /// Whether the watch of that resource expires now, so that a list is due. Asked again and again.
    fn expires(&mut self, _resource: &str) -> bool {
        false
    }

    /// Something has happened to what a watch tells.
    fn met(&mut self, _what: &'static str) {}
}

impl<F: FnMut(&Call) -> CallOutcome + Send + 'static> Judge for F {
    fn call(&mut self, call: &Call) -> CallOutcome {
        self(call)
    }
}

/// What a call does about the command that stands in a node's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OfCommand {
    Gives,
    Withdraws,
}

#[derive(Clone, Debug)]
pub struct Call {
    method: Method,
    path: String,
    command: Option<OfCommand>,
    pub is_watch: bool,
    is_dry_run: bool,
}

impl Call {
    fn of(request: &Request<Body>) -> Self {
        let uri = request.uri();
        let asks = |what| uri.query().is_some_and(|query| query.contains(what));
        let (is_watch, is_dry_run) = (asks("watch=true"), asks("dryRun=All"));
        Self { method: request.method().clone(), path: uri.path().to_owned(), command: None, is_watch, is_dry_run }
    }

    pub fn is_write(&self) -> bool {
        self.method != Method::GET && !self.is_dry_run
    }

    pub fn is_of_lease(&self) -> bool {
        self.path.contains("/leases")
    }

    /// Whether it is a write of that node's remediation: of the ledger, the remediation itself, its node, its Job, its pod or the command to
    /// its agent, each of which has the node's name in its own once it is made. Statuses that only tell, events, questions about
    /// rights and the Lease are none.
    pub fn is_of_remediation(&self, node: &str) -> bool {
        let others = [
            "/leases",
            "/events",
            "/noderuntimehealths",
            "/nodecommands",
            "/remediationpolicies",
            "/remediationconfigs",
            "/selfsubjectaccessreviews",
        ];
        let is_named = self.method == Method::POST || self.path.contains("/configmaps/") || self.path.contains(node);
        let is_other = self.command.is_none() && others.iter().any(|other| self.path.contains(other));
        self.is_write() && is_named && !is_other
    }

    pub fn is_of(&self, resource: &str) -> bool {
        self.path.split('/').any(|part| part == resource)
    }

    pub fn makes(&self, resource: &str) -> bool {
        self.is_write() && self.method == Method::POST && self.last() == resource
    }

    /// What is done to what, without any name: `PATCH noderemediations/status`.
    pub fn kind(&self) -> String {
        match self.command {
            Some(OfCommand::Gives) => return "command given".to_owned(),
            Some(OfCommand::Withdraws) => return "command withdrawn".to_owned(),
            None => {}
        }
        let mut parts = self.path.trim_start_matches('/').split('/').peekable();
        // `api/v1`, or `apis` with a group and its version.
        let group = usize::from(parts.next() != Some("api"));
        parts.nth(group);
        if parts.next_if_eq(&"namespaces").is_some() {
            parts.next();
        }
        let resource = parts.next().unwrap_or_default();
        let subresource = parts.nth(1).map(|part| format!("/{part}")).unwrap_or_default();
        format!("{} {resource}{subresource}", self.method)
    }

    pub fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    /// The last part of its path: of a call about many objects the resource.
    fn last(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// A client whose calls meet what `judge` says. `gone` is told when a call that is lost, or whose answer is, has come as far as
/// it comes.
pub fn rough(upstream: Client, gone: Arc<Notify>, judge: impl Judge) -> Client {
    let judge = Arc::new(Mutex::new(judge));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (upstream, judge, gone) = (upstream.clone(), judge.clone(), gone.clone());
        async move {
            let (command, request) = command_in(request).await?;
            let call = Call { command, ..Call::of(&request) };
            let fate = judge.lock().unwrap().call(&call);
            let response = pass(&upstream, &gone, fate, request).await?;
            if call.is_watch && response.status().is_success() {
                return Ok(response.map(|body| watched(body, judge, call.last().to_owned())));
            }
            Ok::<_, BoxError>(response.map(Answer::new))
        }
    });
    Client::new(service, "default")
}

/// What the request does about a command, if anything: that stands in its body.
async fn command_in(request: Request<Body>) -> Result<(Option<OfCommand>, Request<Body>), BoxError> {
    let is_write = [Method::PATCH, Method::POST].contains(request.method());
    if !is_write || !request.uri().path().contains("/nodecommands") {
        return Ok((None, request));
    }
    let (parts, body) = request.into_parts();
    let bytes = body.collect_bytes().await?;
    let said: Value = serde_json::from_slice(&bytes)?;
    let command = said.pointer("/spec/command");
    let command = command.map(|command| if command.is_null() { OfCommand::Withdraws } else { OfCommand::Gives });
    Ok((command, Request::from_parts(parts, Body::from(bytes.to_vec()))))
}

/// As far as a call of that fate comes.
async fn pass(
    upstream: &Client,
    gone: &Notify,
    fate: CallOutcome,
    request: Request<Body>,
) -> Result<Response<Body>, BoxError> {
    match fate {
        CallOutcome::Answered => {}
        CallOutcome::Late(by) => sleep(by).await,
        CallOutcome::Lost => {
            gone.notify_one();
            return Err(silence().await);
        }
        CallOutcome::Unanswered => {
            let _ = upstream.send(request).await;
            gone.notify_one();
            return Err(silence().await);
        }
        CallOutcome::Refused(code) => return Ok(refusal(code)),
        CallOutcome::CutBefore => return Err(cut()),
        CallOutcome::CutAfter => {
            let _ = upstream.send(request).await;
            return Err(cut());
        }
    }
    Ok(upstream.send(request).await?)
}

pub fn cut() -> BoxError {
    Error::new(ErrorKind::ConnectionReset, "injected: the connection broke").into()
}

/// A connection of which nothing is heard, until it is given up.
pub async fn silence() -> BoxError {
    sleep(SILENT).await;
    Error::new(ErrorKind::TimedOut, "injected: no word for too long").into()
}

/// A client that tells the API server its name, as it then stands in the audit log.
pub fn named(upstream: Client, name: &'static str) -> Client {
    let service = tower::service_fn(move |mut request: Request<Body>| {
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(name));
        let upstream = upstream.clone();
        async move { upstream.send(request).await }
    });
    Client::new(service, "default")
}

/// A client whose Lease is its own, so that whoever uses it leads, whoever else leads too. The terms before its own are as many as
/// `terms`: of two the one with more of them is the later one.
pub fn own_lease(upstream: Client, terms: i32) -> Client {
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"leaseTransitions": terms},
        "metadata": {"name": "nrh-controller", "namespace": "nrh-system"}});
    let own = Arc::new(Mutex::new((0_u64, lease)));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (upstream, own) = (upstream.clone(), own.clone());
        async move {
            if !Call::of(&request).is_of_lease() {
                return Ok::<_, BoxError>(upstream.send(request).await?);
            }
            let is_write = request.method() != Method::GET;
            let body = request.into_body().collect_bytes().await?;
            let mut own = own.lock().unwrap();
            if is_write {
                *own = (own.0 + 1, serde_json::from_slice(&body)?);
            }
            let (version, mut lease) = own.clone();
            lease["metadata"]["resourceVersion"] = json!(version.to_string());
            Ok(answer(200, &lease))
        }
    });
    Client::new(service, "default")
}

fn refusal(code: u16) -> Response<Body> {
    answer(code, &failure(code))
}

pub fn failure(code: u16) -> Value {
    let reason = match code {
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        _ => "InternalError",
    };
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "injected",
        "reason": reason, "code": code, "details": {"retryAfterSeconds": 1}})
}

fn answer(code: u16, said: &Value) -> Response<Body> {
    let body = Body::from(said.to_string().into_bytes());
    let response =
        Response::builder().status(code).header("content-type", "application/json").header("retry-after", "1");
    response.body(body).unwrap()
}
