//! The way between a controller and the API server: on it calls are counted, delayed, refused and lost.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::header::{HeaderValue, USER_AGENT};
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio::sync::Notify;

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is answered.
    Answered,
    /// It arrives, and is answered, after a while.
    Late(Duration),
    /// It never arrives, and nobody says so.
    Lost,
    /// It arrives and is carried out, and its answer is lost.
    Unanswered,
    /// It is refused on the way with this code.
    Refused(u16),
}

/// A call as it is judged.
#[derive(Clone, Debug)]
pub struct Call {
    method: Method,
    path: String,
    /// Whether it asks to be told of changes.
    pub is_watch: bool,
}

impl Call {
    fn of(request: &Request<Body>) -> Self {
        let uri = request.uri();
        let is_watch = uri.query().is_some_and(|query| query.contains("watch=true"));
        Self { method: request.method().clone(), path: uri.path().to_owned(), is_watch }
    }

    /// Whether it changes something.
    pub fn is_write(&self) -> bool {
        self.method != Method::GET
    }

    /// Whether it is about the leader's Lease.
    pub fn is_of_lease(&self) -> bool {
        self.path.contains("/leases")
    }

    /// Whether it is a write of that node's episode: of the ledger, the episode itself, its node or its Job, each of which has the
    /// node's name in its own once it is made. Statuses that only tell, events and the Lease are none.
    pub fn is_of_episode(&self, node: &str) -> bool {
        let others = ["/leases", "/events", "/noderuntimehealths", "/remediationpolicies"];
        let is_named = self.method == Method::POST || self.path.contains("/configmaps/") || self.path.contains(node);
        self.is_write() && is_named && !others.iter().any(|other| self.path.contains(other))
    }

    /// Whether it makes an object of that resource.
    pub fn makes(&self, resource: &str) -> bool {
        self.method == Method::POST && self.path.rsplit('/').next() == Some(resource)
    }

    /// One line, for people.
    pub fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

/// A client whose calls meet what `judge` says. `gone` is told when a call that is lost, or whose answer is, has come as far as
/// it comes.
pub fn rough(upstream: Client, gone: Arc<Notify>, judge: impl FnMut(&Call) -> Fate + Send + 'static) -> Client {
    let judge = Arc::new(Mutex::new(judge));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (upstream, judge, gone) = (upstream.clone(), judge.clone(), gone.clone());
        async move {
            let fate = {
                let mut judge = judge.lock().unwrap();
                (*judge)(&Call::of(&request))
            };
            match fate {
                Fate::Answered => {}
                Fate::Late(by) => tokio::time::sleep(by).await,
                Fate::Lost => {
                    gone.notify_one();
                    return std::future::pending().await;
                }
                Fate::Unanswered => {
                    let _ = upstream.send(request).await;
                    gone.notify_one();
                    return std::future::pending().await;
                }
                Fate::Refused(code) => return Ok(refusal(code)),
            }
            upstream.send(request).await
        }
    });
    Client::new(service, "default")
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

fn refusal(code: u16) -> Response<Body> {
    let reason = match code {
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        _ => "InternalError",
    };
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "injected",
        "reason": reason, "code": code, "details": {"retryAfterSeconds": 1}});
    let body = Body::from(status.to_string().into_bytes());
    let response =
        Response::builder().status(code).header("content-type", "application/json").header("retry-after", "1");
    response.body(body).unwrap()
}
