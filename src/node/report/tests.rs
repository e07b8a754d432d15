//! The reporter against an API server in memory, with the clock under control.

use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{advance, sleep};

use super::*;
use crate::api::NodeRuntimeHealthStatus;
use crate::api::health::ProbeStatus;
use crate::core::examples::fault;
use crate::core::fault::{Fault, FaultState, FaultType};
use crate::core::order::{NodeAction, Order};

/// How the server answers from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Mood {
    #[default]
    Well,
    Answers(u16),
    /// Takes the request and never answers.
    Silent,
    /// Answers after so many seconds.
    Slow(u64),
    /// Has definitions that do not know this field of the status.
    Before(&'static str),
}

#[derive(Default)]
struct Server {
    mood: Mood,
    /// How it answers to reads of the command, where that is another way.
    reads: Option<Mood>,
    /// What the controller has written to the report's status.
    controller: Value,
    /// The spec of the node's command; null = there is none.
    command: Value,
    /// Requests as they came: seconds since the start, method, and the status in it.
    log: Vec<(u64, Method, Value)>,
}

#[derive(Clone)]
struct Api {
    server: Arc<Mutex<Server>>,
    began: Instant,
}

impl Api {
    fn new() -> Self {
        Self { server: Arc::default(), began: Instant::now() }
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap()
    }

    fn mood(&self, mood: Mood) {
        self.server().mood = mood;
    }

    fn writes(&self) -> Vec<(u64, Value)> {
        let log = &self.server().log;
        log.iter().filter(|(_, method, _)| *method == Method::PATCH).map(|(at, _, body)| (*at, body.clone())).collect()
    }

    /// When the command was read.
    fn reads(&self) -> Vec<u64> {
        self.server().log.iter().filter(|(_, method, _)| *method == Method::GET).map(|(at, ..)| *at).collect()
    }

    fn forget(&self) {
        self.server().log.clear();
    }

    fn client(&self) -> Client {
        let me = self.clone();
        Client::new(
            tower::service_fn(move |request: Request<Body>| {
                let me = me.clone();
                async move { Ok::<_, Infallible>(me.answer(request).await) }
            }),
            "default",
        )
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap_or_default();
        if parts.method == Method::PATCH {
            assert_eq!(parts.uri.path(), "/apis/runtimehealth.io/v1alpha1/noderuntimehealths/n1/status");
            let query = parts.uri.query().unwrap_or_default();
            assert!(query.contains("force=true") && query.contains("fieldManager=nrh-probe"), "{query}");
        } else {
            assert_eq!(parts.method, Method::GET);
            assert_eq!(parts.uri.path(), "/apis/runtimehealth.io/v1alpha1/nodecommands/n1");
            // A version to be no older than would have it answered out of a cache.
            assert_eq!(parts.uri.query().unwrap_or_default(), "");
        }
        let is_read = parts.method == Method::GET;
        let (mood, controller, command) = {
            let mut server = self.server();
            server.log.push((self.began.elapsed().as_secs(), parts.method, body["status"].clone()));
            let mood = if is_read { server.reads.unwrap_or(server.mood) } else { server.mood };
            (mood, server.controller.clone(), server.command.clone())
        };
        if let Mood::Slow(seconds) = mood {
            sleep(Duration::from_secs(seconds)).await;
        }
        let (code, body) = match mood {
            Mood::Silent => std::future::pending().await,
            Mood::Answers(code) => {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                    "reason": "X", "message": "scripted"});
                (code, status)
            }
            Mood::Before(field) if !body["status"][field].is_null() => {
                let message =
                    format!("failed to create typed patch object (/n1): .status.{field}: field not declared in schema");
                (
                    500,
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500, "message": message}),
                )
            }
            Mood::Well | Mood::Before(_) | Mood::Slow(_) if is_read && command.is_null() => {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                    "reason": "NotFound", "message": "nodecommands \"n1\" not found"});
                (404, status)
            }
            Mood::Well | Mood::Before(_) | Mood::Slow(_) if is_read => {
                (200, json!({"metadata": {"name": "n1"}, "spec": command}))
            }
            Mood::Well | Mood::Before(_) | Mood::Slow(_) => {
                let owners = json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid"}]);
                (200, json!({"metadata": {"name": "n1", "ownerReferences": owners}, "status": controller}))
            }
        };
        let body = Body::from(serde_json::to_vec(&body).unwrap());
        Response::builder().status(StatusCode::from_u16(code).unwrap()).body(body).unwrap()
    }
}

/// A reporter at work on a server in memory.
struct Bench {
    api: Api,
    drafts: watch::Sender<Option<Arc<Draft>>>,
    feedback: watch::Receiver<Feedback>,
    command: watch::Receiver<Command>,
    delivered: watch::Receiver<Delivery>,
    clients: Arc<Mutex<u32>>,
    suspected: Option<Instant>,
}

impl Bench {
    fn new() -> Self {
        let api = Api::new();
        let (drafts, newest) = watch::channel(None);
        let (sender, feedback) = watch::channel(Feedback::default());
        let (commands, command) = watch::channel(Command::default());
        let clients = Arc::new(Mutex::new(0));
        let (made, server) = (Arc::clone(&clients), api.clone());
        let connect: Connect = Box::new(move || {
            *made.lock().unwrap() += 1;
            let client = server.client();
            Box::pin(async move { Ok(Connection { client, until: None }) })
        });
        let wall = || Timestamp::UNIX_EPOCH;
        let (delivery, delivered) = watch::channel(Delivery::default());
        let (name, feedback_to) = ("n1".into(), sender);
        let reporter =
            Reporter { connect, name, drafts: newest, feedback: feedback_to, command: commands, delivery, wall };
        tokio::spawn(reporter.run());
        Self { api, drafts, feedback, command, delivered, clients, suspected: None }
    }

    fn say(&self, faults: Vec<Fault>) {
        self.say_answering(faults, 0);
    }

    fn say_answering(&self, faults: Vec<Fault>, answers: u64) {
        let probe = ProbeStatus { version: "1".into(), ..ProbeStatus::default() };
        let status = NodeRuntimeHealthStatus { probe: Some(probe), faults, ..NodeRuntimeHealthStatus::default() };
        self.drafts.send_replace(Some(Arc::new(Draft::new(status, Instant::now(), self.suspected, answers))));
    }
}

fn confirmed() -> Fault {
    Fault { state: FaultState::Confirmed, ..fault(FaultType::HungContainer) }
}

async fn seconds(count: u64) {
    sleep(Duration::from_secs(count)).await;
}

fn gaps(writes: &[(u64, Value)]) -> Vec<u64> {
    writes.windows(2).map(|pair| pair[1].0 - pair[0].0).collect()
}

#[tokio::test(start_paused = true)]
async fn at_rest_it_writes_every_five_minutes_and_reads_the_command_once() {
    let bench = Bench::new();
    bench.say(Vec::new());
    for _ in 0..360 {
        seconds(10).await;
        bench.say(Vec::new());
    }
    let writes = bench.api.writes();
    assert!((11..=14).contains(&writes.len()), "{} writes in an hour", writes.len());
    assert!(gaps(&writes).iter().all(|gap| (268..=331).contains(gap)), "{:?}", gaps(&writes));
    for (pair, gap) in writes.iter().zip(gaps(&writes)) {
        let promised = pair.1["probe"]["intervalSeconds"].as_u64().unwrap();
        assert!(gap <= promised, "promised {promised}, took {gap}");
    }
    let sequences: Vec<u64> = writes.iter().map(|(_, body)| body["probe"]["sequence"].as_u64().unwrap()).collect();
    assert_eq!(sequences, (1..=sequences.len() as u64).collect::<Vec<_>>());
    assert_eq!(bench.api.reads(), [0]);

    // Something is blocked, so a fresh check may be asked for: at the next report that shows.
    bench.api.forget();
    bench.api.server().controller = json!({"remediation": {"held": ["StaleEvidence: x"]}});
    bench.api.server().command = json!({"lookRequested": 3});
    for _ in 0..60 {
        seconds(10).await;
        bench.say(Vec::new());
    }
    let written: Vec<u64> = bench.api.writes().iter().map(|(at, _)| *at).collect();
    assert_eq!(bench.api.reads(), written);
    assert_eq!(bench.command.borrow().look_requested, 3);
}

#[tokio::test(start_paused = true)]
async fn a_suspicion_is_told_at_once_then_every_15_s_for_ten_minutes_then_every_minute() {
    let mut bench = Bench::new();
    bench.say(Vec::new());
    seconds(60).await;
    bench.api.forget();
    bench.suspected = Some(Instant::now());
    for _ in 0..900 {
        bench.say(vec![fault(FaultType::HungContainer)]);
        seconds(1).await;
    }
    let writes = bench.api.writes();
    assert!(writes[0].0 <= 62, "{}", writes[0].0);
    assert_eq!(writes[0].1["probe"]["intervalSeconds"].as_u64().map(|seconds| seconds <= 15), Some(true));
    for (pair, gap) in writes.iter().zip(gaps(&writes)) {
        let (at, promised) = (pair.0, pair.1["probe"]["intervalSeconds"].as_u64().unwrap());
        assert!(gap <= promised.max(1), "at {at}: promised {promised}, took {gap}");
        match at {
            0..640 => assert!(gap <= 15, "at {at}: {gap}"),
            680.. => assert!((53..=60).contains(&gap), "at {at}: {gap}"),
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_running_episode_keeps_the_rhythm_of_15_s() {
    let bench = Bench::new();
    bench.api.server().controller = json!({"remediation": {"episode": "e-1"}});
    for _ in 0..1200 {
        bench.say(vec![confirmed()]);
        seconds(1).await;
    }
    let writes = bench.api.writes();
    assert!(gaps(&writes).iter().skip(1).all(|gap| *gap <= 15), "{:?}", gaps(&writes));
}

#[tokio::test(start_paused = true)]
async fn ages_alone_are_no_news() {
    let bench = Bench::new();
    for age in 0..100 {
        let mut one = fault(FaultType::HungContainer);
        (one.look_age_seconds, one.for_seconds, one.confirmations) = (age, age, 7);
        one.evidence = vec![format!("{age} s old")];
        one.message = format!("state changes {age}");
        bench.say(vec![one]);
        advance(Duration::from_millis(100)).await;
    }
    assert_eq!(bench.api.writes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_age_is_sent_as_it_is_when_it_is_sent() {
    let bench = Bench::new();
    bench.api.mood(Mood::Answers(500));
    let old = Fault { look_age_seconds: 5, for_seconds: 60, ..confirmed() };
    bench.say(vec![old]);
    seconds(100).await;
    bench.api.mood(Mood::Well);
    seconds(40).await;
    let writes = bench.api.writes();
    let (at, body) = writes.last().unwrap();
    let age = body["faults"][0]["lookAgeSeconds"].as_u64().unwrap();
    assert!((at + 4..=at + 5).contains(&age), "sent at {at} with age {age}");
}

#[tokio::test(start_paused = true)]
async fn while_the_server_is_away_nothing_piles_up_and_the_newest_goes_out_once() {
    for mood in [Mood::Answers(500), Mood::Answers(404), Mood::Answers(409), Mood::Answers(429), Mood::Silent] {
        let bench = Bench::new();
        bench.say(Vec::new());
        seconds(5).await;
        bench.api.mood(mood);
        for second in 0..600 {
            let kind = if second % 2 == 0 { FaultType::HungContainer } else { FaultType::LeakedShim };
            bench.say(vec![fault(kind)]);
            seconds(1).await;
        }
        bench.say(vec![confirmed()]);
        bench.api.forget();
        bench.api.mood(Mood::Well);
        seconds(45).await;
        let news: Vec<_> = bench.api.writes().into_iter().filter(|(_, body)| body["faults"] != json!([])).collect();
        let said: Vec<_> = news.iter().map(|(_, body)| body["faults"][0]["state"].clone()).collect();
        assert!(!said.is_empty(), "{mood:?}");
        assert!(said.iter().all(|state| state == "Confirmed"), "{mood:?}: {said:?}");
        assert_eq!(news[0].1["probe"]["sequence"], 2, "{mood:?}: what did not arrive is not counted");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_are_tried_again_ever_more_slowly_with_a_new_client_now_and_then() {
    let bench = Bench::new();
    bench.api.mood(Mood::Answers(503));
    bench.say(Vec::new());
    seconds(600).await;
    let tries = bench.api.writes();
    assert!((20..=40).contains(&tries.len()), "{} tries in ten minutes", tries.len());
    assert!(gaps(&tries).iter().all(|gap| *gap <= 31), "{:?}", gaps(&tries));
    assert!(*bench.clients.lock().unwrap() > 3);
    let said = bench.delivered.borrow().clone();
    let (since, error) = said.failing.unwrap();
    assert!(said.taken.is_none() && since.elapsed() >= Duration::from_secs(590) && error.contains("503"), "{error}");
    bench.api.mood(Mood::Well);
    seconds(40).await;
    let said = bench.delivered.borrow().clone();
    assert!(said.failing.is_none() && said.taken.is_some_and(|taken| taken.elapsed() <= Duration::from_secs(40)));
}

#[tokio::test(start_paused = true)]
async fn an_unauthorized_answer_makes_a_new_client_at_once() {
    let bench = Bench::new();
    bench.say(Vec::new());
    seconds(1).await;
    bench.api.mood(Mood::Answers(401));
    bench.say(vec![fault(FaultType::LeakedShim)]);
    seconds(2).await;
    bench.api.mood(Mood::Well);
    seconds(5).await;
    assert!(*bench.clients.lock().unwrap() >= 2);
    assert_eq!(bench.api.writes().last().unwrap().1["faults"][0]["type"], "LeakedShim");
}

fn order() -> Order {
    Order {
        operation_id: "op-1".into(),
        epoch: 3,
        node: "n1".into(),
        action: NodeAction::ReleaseCont,
        allow_running_pods: false,
        fault_id: "f".into(),
        fault_type: FaultType::HungContainer,
        target: crate::core::fault::Target::default(),
        restart: None,
        boot_id: None,
        mark: None,
        issued_at: Timestamp::UNIX_EPOCH,
        ttl_seconds: 60,
    }
}

#[tokio::test(start_paused = true)]
async fn the_command_is_read_often_only_while_something_is_confirmed_and_tells_what_it_holds() {
    let mut bench = Bench::new();
    bench.say(vec![fault(FaultType::HungContainer)]);
    seconds(30).await;
    assert_eq!(bench.api.reads().len(), 1, "a suspicion brings no order");
    assert_eq!(*bench.command.borrow_and_update(), Command::NONE);
    bench.api.forget();
    bench.say(vec![confirmed()]);
    seconds(30).await;
    assert!((6..=8).contains(&bench.api.reads().len()), "{:?}", bench.api.reads());

    bench.api.server().controller = json!({"remediation": {"episode": "e", "held": ["x"]}});
    bench.api.server().command = json!({"order": order(), "lookRequested": 4});
    tokio::time::timeout(Duration::from_secs(6), bench.command.changed()).await.unwrap().unwrap();
    let command = bench.command.borrow_and_update().clone();
    assert_eq!(command, Command { is_known: true, order: Some(order()), look_requested: 4 });
    seconds(60).await;
    let feedback = bench.feedback.borrow().clone();
    assert_eq!((feedback.episode, feedback.node_uid.as_deref()), (true, Some("node-uid")));
    // The same again is no news.
    assert!(tokio::time::timeout(Duration::from_mins(1), bench.command.changed()).await.is_err());
    // That nobody answers, or knows the kind, says nothing of it; that there is no such object says that no order stands.
    for mood in [Mood::Answers(503), Mood::Answers(404)] {
        bench.api.mood(mood);
        seconds(60).await;
        assert!(bench.command.borrow().order.is_some(), "{mood:?}");
    }
    bench.api.mood(Mood::Well);
    bench.api.server().command = Value::Null;
    seconds(60).await;
    assert_eq!(*bench.command.borrow(), Command::NONE);
}

#[tokio::test(start_paused = true)]
async fn reads_that_fail_hold_up_no_report_and_reports_that_fail_no_read() {
    let bench = Bench::new();
    bench.api.server().reads = Some(Mood::Answers(403));
    for round in 0..60 {
        let kind = if round % 2 == 0 { FaultType::HungContainer } else { FaultType::LeakedShim };
        bench.say(vec![fault(kind)]);
        seconds(2).await;
    }
    assert!(bench.api.writes().len() >= 58, "{}", bench.api.writes().len());
    assert!((6..=14).contains(&bench.api.reads().len()), "ever more slowly: {:?}", bench.api.reads());
    let said = bench.delivered.borrow().clone();
    assert!(said.failing.is_some_and(|(_, error)| error.contains("403")) && said.taken.is_some());
    assert!(!bench.command.borrow().is_known, "nobody has said that no order stands");

    bench.api.server().reads = Some(Mood::Well);
    bench.api.server().command = json!({"order": order()});
    bench.api.mood(Mood::Answers(500));
    bench.say(vec![confirmed()]);
    seconds(40).await;
    assert_eq!(bench.command.borrow().order, Some(order()));
    assert!(bench.delivered.borrow().failing.as_ref().is_some_and(|(_, error)| error.contains("500")));
}

#[tokio::test(start_paused = true)]
async fn an_order_is_read_although_each_report_takes_so_long_that_the_next_is_due_already() {
    let bench = Bench::new();
    bench.api.mood(Mood::Slow(3));
    bench.api.server().reads = Some(Mood::Well);
    bench.api.server().command = json!({"order": order()});
    for round in 0..40 {
        let kind = if round % 2 == 0 { FaultType::HungContainer } else { FaultType::LeakedShim };
        bench.say(vec![Fault { state: FaultState::Confirmed, ..fault(kind) }]);
        seconds(1).await;
    }
    assert_eq!(bench.command.borrow().order, Some(order()));
    let (reads, writes) = (bench.api.reads().len(), bench.api.writes().len());
    assert!(writes >= 12 && reads + 1 >= writes, "{writes} reports, {reads} reads");
}

#[tokio::test(start_paused = true)]
async fn a_look_that_was_asked_for_is_answered_by_a_write_although_nothing_changed() {
    let bench = Bench::new();
    bench.say_answering(vec![confirmed()], 0);
    seconds(8).await;
    bench.api.forget();
    bench.say_answering(vec![confirmed()], 1);
    seconds(2).await;
    assert_eq!(bench.api.writes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_order_that_cannot_be_read_is_left_alone() {
    for order in [json!({"operationID": 7}), json!("x"), json!({"action": "ReformatDisk"}), json!([])] {
        let bench = Bench::new();
        bench.api.server().command = json!({"order": order, "lookRequested": 2});
        bench.say(vec![confirmed()]);
        seconds(20).await;
        let command = bench.command.borrow().clone();
        assert_eq!(command, Command { look_requested: 2, ..Command::NONE }, "the rest is read");
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_changes_is_written_once_a_second_at_most() {
    let bench = Bench::new();
    for i in 0..200 {
        let kind = if i % 2 == 0 { FaultType::HungContainer } else { FaultType::LeakedShim };
        bench.say(vec![fault(kind)]);
        sleep(Duration::from_millis(50)).await;
    }
    assert!(bench.api.writes().len() <= 11, "{}", bench.api.writes().len());
}

#[tokio::test]
async fn definitions_of_before_get_a_report_without_what_they_do_not_know() {
    let api = Api::new();
    let safe = crate::api::health::RestartSafeStatus::default();
    let status = NodeRuntimeHealthStatus { restart_safe: Some(safe), ..NodeRuntimeHealthStatus::default() };
    client::apply(&api.client(), "n1", &status).await.unwrap();
    assert_eq!(api.writes().len(), 1);
    api.mood(Mood::Before("restartSafe"));
    client::apply(&api.client(), "n1", &status).await.unwrap();
    let writes = api.writes();
    assert_eq!(writes.len(), 3);
    assert!(writes[1].1["restartSafe"].is_object() && writes[2].1["restartSafe"].is_null(), "{writes:?}");
    // Any other refusal is told as it is, and once.
    api.mood(Mood::Answers(500));
    client::apply(&api.client(), "n1", &status).await.unwrap_err();
    assert_eq!(api.writes().len(), 4);
}
