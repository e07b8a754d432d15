//! An API server in memory for the reporter and the listener, with the clock under control.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::channel::mpsc::{UnboundedSender, unbounded};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::client::{Connect, Connection, Feedback};
use super::command::Command;
use super::draft::Draft;
use super::listener::Listener;
use super::{Delivery, Reporter};
use nrh_api::NodeRuntimeHealthStatus;
use nrh_api::health::ProbeStatus;
use nrh_core::fault::Fault;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Mood {
    #[default]
    Well,
    Answers(u16),
    /// Accepts the request and never answers.
    Silent,
    /// Has a CRD that does not know this field of the status.
    Before(&'static str),
    /// Starts a watch, and reports in it that the version is too old.
    Expired,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Write,
    Read,
    Watch,
}

type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;
type Watcher = UnboundedSender<Result<Frame<Bytes>, io::Error>>;

#[derive(Default)]
pub(super) struct Server {
    pub mood: Mood,
    /// How it answers reads of the command and watches, if different.
    pub reads: Option<Mood>,
    pub watches: Option<Mood>,
    /// What the controller has written to the status of the report.
    pub controller: Value,
    /// Whether bookmarks are sent.
    pub bookmarks: bool,
    /// Whether the current watches send nothing more, not even their end.
    is_hung: bool,
    command: Value,
    version: u64,
    /// The changes of the command, by version.
    events: Vec<(u64, Value)>,
    watchers: Vec<Watcher>,
    /// Requests in order of arrival: seconds since the start, purpose, and the status in the request.
    log: Vec<(u64, Kind, Value)>,
}

#[derive(Clone)]
pub(super) struct Api {
    server: Arc<Mutex<Server>>,
    began: Instant,
}

impl Api {
    pub(super) fn new() -> Self {
        Self { server: Arc::default(), began: Instant::now() }
    }

    pub(super) fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap()
    }

    pub(super) fn mood(&self, mood: Mood) {
        self.server().mood = mood;
    }

    pub(super) fn writes(&self) -> Vec<(u64, Value)> {
        let log = &self.server().log;
        log.iter().filter(|(_, kind, _)| *kind == Kind::Write).map(|(at, _, body)| (*at, body.clone())).collect()
    }

    pub(super) fn times(&self, what: Kind) -> Vec<u64> {
        self.server().log.iter().filter(|(_, kind, _)| *kind == what).map(|(at, ..)| *at).collect()
    }

    pub(super) fn forget(&self) {
        self.server().log.clear();
    }

    pub(super) fn command(&self, spec: &Value) {
        let mut server = self.server();
        server.version += 1;
        let version = server.version;
        let object = |spec: &Value| {
            let metadata = json!({"name": "n1", "resourceVersion": version.to_string()});
            json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeCommand", "metadata": metadata, "spec": spec})
        };
        let (kind, now) = match (server.command.is_null(), spec.is_null()) {
            (true, true) => return,
            (true, false) => ("ADDED", object(spec)),
            (false, false) => ("MODIFIED", object(spec)),
            (false, true) => ("DELETED", object(&server.command["spec"])),
        };
        server.command = if spec.is_null() { Value::Null } else { now.clone() };
        let event = json!({"type": kind, "object": now});
        server.events.push((version, event.clone()));
        server.tell(&event);
    }

    pub(super) fn cut(&self) {
        for watcher in self.server().watchers.drain(..) {
            let _ = watcher.unbounded_send(Err(io::Error::other("connection reset by peer")));
        }
    }

    /// Silences the current watches for ever; later watches work.
    pub(super) fn hang(&self) {
        self.server().is_hung = true;
    }

    pub(super) fn client(&self) -> Client {
        let me = self.clone();
        Client::new(
            tower::service_fn(move |request: Request<Body>| {
                let me = me.clone();
                async move { Ok::<_, Infallible>(me.answer(request).await) }
            }),
            "default",
        )
    }

    async fn answer(&self, request: Request<Body>) -> Answer {
        let (parts, body) = request.into_parts();
        let body: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap_or_default();
        let query = parts.uri.query().unwrap_or_default();
        let kind = if parts.method == Method::PATCH {
            assert_eq!(parts.uri.path(), "/apis/runtimehealth.io/v1alpha1/noderuntimehealths/n1/status");
            assert!(query.contains("force=true") && query.contains("fieldManager=nrh-probe"), "{query}");
            Kind::Write
        } else if query.contains("watch=true") {
            assert_eq!(parts.uri.path(), "/apis/runtimehealth.io/v1alpha1/nodecommands");
            assert!(query.contains("fieldSelector=metadata.name%3Dn1&") || query.ends_with("%3Dn1"), "{query}");
            assert!(query.contains("allowWatchBookmarks=true"), "{query}");
            Kind::Watch
        } else {
            assert_eq!(parts.method, Method::GET);
            assert_eq!(parts.uri.path(), "/apis/runtimehealth.io/v1alpha1/nodecommands/n1");
            // A minimum version in the query would allow an answer from a cache.
            assert_eq!(query, "");
            Kind::Read
        };
        let (mood, controller, command) = {
            let mut server = self.server();
            server.log.push((self.began.elapsed().as_secs(), kind, body["status"].clone()));
            let of_kind = match kind {
                Kind::Write => None,
                Kind::Read => server.reads,
                Kind::Watch => server.watches,
            };
            (of_kind.unwrap_or(server.mood), server.controller.clone(), server.command.clone())
        };
        let failure = |code: u16, reason: &str, message: &str| {
            let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
                "message": message});
            (code, body)
        };
        let (code, body) = match (mood, kind) {
            (Mood::Silent, _) => std::future::pending().await,
            (Mood::Answers(code), _) => failure(code, "X", "scripted"),
            (Mood::Before(field), _)
                if !(body["status"][field].is_null() && body["status"]["probe"][field].is_null()) =>
            {
                let message =
                    format!("failed to create typed patch object (/n1): .status.{field}: field not declared in schema");
                failure(500, "", &message)
            }
            (Mood::Expired, Kind::Watch) => {
                let (_, gone) = failure(410, "Expired", "too old resource version");
                (200, json!({"type": "ERROR", "object": gone}))
            }
            (_, Kind::Watch) => return self.watch(query),
            (_, Kind::Read) if command.is_null() => failure(404, "NotFound", "nodecommands \"n1\" not found"),
            (_, Kind::Read) => (200, command),
            (_, Kind::Write) => {
                let owners = json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid"}]);
                (200, json!({"metadata": {"name": "n1", "ownerReferences": owners}, "status": controller}))
            }
        };
        let body = Full::from(serde_json::to_vec(&body).unwrap()).map_err(|never| match never {}).boxed_unsync();
        Response::builder().status(StatusCode::from_u16(code).unwrap()).body(body).unwrap()
    }

    /// Answers with a watch from the version in the query, or from the current state.
    fn watch(&self, query: &str) -> Answer {
        let number = |key: &str| -> Option<u64> {
            query.split('&').find_map(|part| part.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
        };
        let length = number("timeoutSeconds").unwrap();
        assert!((1800..=3600).contains(&length), "{query}");
        let (watcher, frames) = unbounded();
        let mut server = self.server();
        server.is_hung = false;
        match number("resourceVersion") {
            Some(since) => {
                server.events.iter().filter(|(at, _)| *at > since).for_each(|(_, event)| send(&watcher, event));
            }
            None if server.command.is_null() => {}
            None => send(&watcher, &json!({"type": "ADDED", "object": server.command})),
        }
        if !query.contains("resourceVersion") {
            // This bookmark says nothing about whether later ones are sent.
            let mut mark = bookmark(server.version);
            mark["object"]["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
            send(&watcher, &mark);
        }
        server.watchers.push(watcher.clone());
        drop(server);
        let me = self.clone();
        tokio::spawn(async move {
            for _ in 0..length / 60 {
                sleep(Duration::from_mins(1)).await;
                let server = me.server();
                let mark = bookmark(server.version);
                if server.bookmarks && !server.is_hung && server.watchers.iter().any(|one| one.same_receiver(&watcher))
                {
                    send(&watcher, &mark);
                }
            }
            sleep(Duration::from_secs(length % 60)).await;
            let mut server = me.server();
            if !server.is_hung {
                server.watchers.retain(|one| !one.same_receiver(&watcher));
                watcher.close_channel();
            }
        });
        Response::new(StreamBody::new(frames).boxed_unsync())
    }
}

impl Server {
    fn tell(&mut self, event: &Value) {
        if !self.is_hung {
            self.watchers.retain(|watcher| !watcher.is_closed());
            self.watchers.iter().for_each(|watcher| send(watcher, event));
        }
    }
}

fn bookmark(version: u64) -> Value {
    json!({"type": "BOOKMARK", "object": {"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeCommand",
        "metadata": {"resourceVersion": version.to_string()}}})
}

fn send(watcher: &Watcher, event: &Value) {
    let _ = watcher.unbounded_send(Ok(Frame::data(Bytes::from(format!("{event}\n")))));
}

/// A reporter and a listener that use a server in memory.
pub(super) struct Bench {
    pub api: Api,
    pub drafts: watch::Sender<Option<Arc<Draft>>>,
    pub feedback: watch::Receiver<Feedback>,
    pub command: watch::Receiver<Command>,
    pub delivered: watch::Receiver<Delivery>,
    pub clients: Arc<Mutex<u32>>,
    pub suspected: Option<Instant>,
}

impl Bench {
    pub(super) fn new() -> Self {
        let api = Api::new();
        let (drafts, newest) = watch::channel(None);
        let (sender, feedback) = watch::channel(Feedback::default());
        let (commands, command) = watch::channel(Command::default());
        let clients = Arc::new(Mutex::new(0));
        let connect = || -> Connect {
            let (made, server) = (Arc::clone(&clients), api.clone());
            Box::new(move || {
                *made.lock().unwrap() += 1;
                let client = server.client();
                Box::pin(async move { Ok(Connection { client, until: None }) })
            })
        };
        let (delivery, delivered) = watch::channel(Delivery::default());
        let listener =
            Listener { connect: connect(), name: "n1".into(), command: commands, delivery: delivery.clone() };
        tokio::spawn(listener.run());
        let (connect, name) = (connect(), "n1".into());
        let reporter = Reporter { connect, name, drafts: newest, feedback: sender, delivery };
        tokio::spawn(reporter.run());
        Self { api, drafts, feedback, command, delivered, clients, suspected: None }
    }

    pub(super) fn say(&self, faults: Vec<Fault>) {
        self.say_answering(faults, 0);
    }

    pub(super) fn say_answering(&self, faults: Vec<Fault>, answers: u64) {
        let probe = ProbeStatus { version: "1".into(), ..ProbeStatus::default() };
        let status = NodeRuntimeHealthStatus { probe: Some(probe), faults, ..NodeRuntimeHealthStatus::default() };
        self.drafts.send_replace(Some(Arc::new(Draft::new(status, Instant::now(), self.suspected, answers))));
    }
}

pub(super) async fn seconds(count: u64) {
    sleep(Duration::from_secs(count)).await;
}
