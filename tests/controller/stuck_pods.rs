//! Faults about pods of `DaemonSet`s: said of what a read has shown, and for no longer than the next one shows it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::fake_api::world::{Replica, World};
use crate::fake_api::{Call, Fault};

/// Nodes whose probes report, with a DaemonSet of one pod each.
pub struct Rollout {
    pub world: World,
    nodes: usize,
}

impl Rollout {
    pub fn new(nodes: usize) -> Self {
        let rollout = Self { world: World::new(nodes), nodes };
        rollout.world.policy("pods", "Enforce", &json!([{"action": "Notify"}]));
        rollout.world.api.change("remediationpolicies", "pods", |policy| {
            policy["spec"]["rules"][0]["match"]["faults"] = json!(["StuckDaemonSetPod"]);
        });
        for node in 1..=nodes {
            rollout.world.probe(&format!("w{node}"));
            rollout.put(node, &format!("log-{node}-0"), &json!({"ready": true}));
        }
        rollout.says(nodes);
        rollout
    }

    /// The DaemonSet's own word on how many of its pods are ready.
    pub fn says(&self, ready: usize) {
        self.world.api.put(json!({"apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "log", "namespace": "d", "uid": "set"},
            "spec": {"selector": {"matchLabels": {"app": "log"}}, "template": {}},
            "status": {"desiredNumberScheduled": self.nodes, "currentNumberScheduled": self.nodes, "numberReady": ready,
                "numberMisscheduled": 0, "numberUnavailable": self.nodes.saturating_sub(ready)}}));
    }

    /// A pod as it stands: `ready`, `deletes` (end of its grace period) or `without` (a sandbox, since then).
    pub fn put(&self, node: usize, name: &str, how: &Value) {
        let ready = if how["ready"] == true { "True" } else { "False" };
        let mut conditions = vec![json!({"type": "Ready", "status": ready})];
        let mut containers = json!([]);
        if how["without"].is_string() {
            conditions.push(
                json!({"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": how["without"]}),
            );
            containers = json!([{"name": "log", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": "ContainerCreating"}}}]);
        }
        self.world.api.put(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "d", "uid": format!("uid-{name}"), "labels": {"app": "log"},
                "creationTimestamp": how["without"].as_str().map_or_else(|| self.world.wall().to_string(), ToOwned::to_owned),
                "deletionTimestamp": how["deletes"], "finalizers": ["test/stays"],
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "log", "uid": "set", "controller": true}]},
            "spec": {"nodeName": format!("w{node}"), "containers": []},
            "status": {"startTime": how["without"], "conditions": conditions, "containerStatuses": containers}}));
    }

    pub fn after(&self, time: Duration) -> String {
        let at = self.world.wall() + time;
        at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// What the report on a node says of its pods: which, and how sure.
    pub fn said(&self, node: usize) -> Vec<(String, String)> {
        let status = self.world.status(&format!("w{node}"));
        let faults = status["clusterFaults"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let of_pods = faults.iter().filter(|fault| fault["type"] == "StuckDaemonSetPod");
        of_pods.map(|fault| (text(&fault["subject"]["pod"]["name"]), text(&fault["state"]))).collect()
    }

    async fn healthy(nodes: usize) -> (Self, Replica) {
        let rollout = Self::new(nodes);
        let replica = rollout.world.controller("a");
        rollout.world.all_report().await;
        (rollout, replica)
    }
}

const GRACE: Duration = Duration::from_secs(30);

/// Five minutes in which nothing is said of any pod.
async fn nothing_is_said(rollout: &Rollout, what: &str) {
    for second in 0..300 {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(rollout.said(1), [], "{what}, {second} s later");
    }
}

/// Whenever the last read was: the DaemonSet is well before the next one.
#[tokio::test(start_paused = true)]
async fn a_pod_that_went_20_s_after_its_grace_period_is_never_called_stuck() {
    for phase in 0..6_u32 {
        let (rollout, _replica) = Rollout::healthy(1).await;
        rollout.put(1, "log-1-0", &json!({"deletes": rollout.after(GRACE)}));
        rollout.says(0);
        sleep(GRACE + Duration::from_secs(20) + Duration::from_millis(900) * phase).await;
        rollout.world.api.remove("pods", "log-1-0");
        rollout.put(1, "log-1-1", &json!({"ready": true}));
        rollout.says(1);
        nothing_is_said(&rollout, &format!("phase {phase}")).await;
        assert_eq!(rollout.world.phases(), Vec::<String>::new());
    }
}

/// The answer to a list that was asked for before comes after the DaemonSet's word that all is well.
#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_late_is_not_the_last_word() {
    let (rollout, _replica) = Rollout::healthy(1).await;
    rollout.put(1, "log-1-0", &json!({"deletes": rollout.after(Duration::ZERO)}));
    let lists = |call: &Call| call.is("list", "pods") && call.query.contains_key("labelSelector");
    let asked = rollout.world.clone();
    asked.api.hook(move |call| lists(call).then_some(Fault::AnsweredLate(Duration::from_secs(3))));
    rollout.says(0);
    let before = Instant::now();
    rollout.world.until("it is listed", || asked.api.calls().iter().any(lists)).await;
    assert!(before.elapsed() < Duration::from_secs(10));
    rollout.world.api.unhook();
    rollout.world.api.remove("pods", "log-1-0");
    rollout.put(1, "log-1-1", &json!({"ready": true}));
    rollout.says(1);
    nothing_is_said(&rollout, "the late answer").await;
}

#[tokio::test(start_paused = true)]
async fn a_stuck_pod_is_confirmed_by_a_read_and_gone_from_the_report_within_five_seconds() {
    for phase in 0..5_u32 {
        let (rollout, _replica) = Rollout::healthy(1).await;
        rollout.put(1, "log-1-0", &json!({"deletes": rollout.after(Duration::ZERO)}));
        rollout.says(0);
        sleep(Duration::from_secs(119)).await;
        assert_eq!(rollout.said(1), [], "it may still go");
        let confirmed = [("log-1-0".to_owned(), "Confirmed".to_owned())];
        rollout.world.until("it is reported", || rollout.said(1) == confirmed).await;
        assert_eq!(rollout.world.status("w1")["summary"]["health"], "Unhealthy");
        sleep(Duration::from_secs(20) + Duration::from_millis(500) * phase).await;
        assert_eq!(rollout.said(1), confirmed, "it stands for as long as it is read");
        // Another pod of the set stays away: the set is troubled on.
        rollout.world.api.remove("pods", "log-1-0");
        sleep(Duration::from_secs(5)).await;
        assert_eq!(rollout.said(1), [], "phase {phase}");
        assert_ne!(rollout.world.status("w1")["summary"]["health"], "Unhealthy");
    }
}

/// The DaemonSet may say that all is well while an old pod of it is stuck: with `maxSurge` its successor runs beside it.
#[tokio::test(start_paused = true)]
async fn a_stuck_pod_stays_told_when_its_set_calls_itself_well() {
    let (rollout, _replica) = Rollout::healthy(1).await;
    rollout.put(1, "log-1-0", &json!({"deletes": rollout.after(Duration::ZERO)}));
    rollout.says(0);
    let confirmed = [("log-1-0".to_owned(), "Confirmed".to_owned())];
    rollout.world.until("it is reported", || rollout.said(1) == confirmed).await;
    rollout.says(1);
    for _ in 0..120 {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(rollout.said(1), confirmed);
    }
    rollout.world.api.remove("pods", "log-1-0");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(rollout.said(1), []);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_was_read_for_longer_than_the_term_lasts_is_not_deleted() {
    let rollout = Rollout::new(3);
    let world = &rollout.world;
    world.api.change("remediationpolicies", "pods", |policy| {
        policy["spec"]["rules"][0]["steps"] = json!([{"action": "DeletePod"}, {"action": "Notify"}]);
    });
    let replica = world.controller("a");
    world.all_report().await;
    // Nothing renews the Lease from the decision on, and each read before the act is just in time by itself.
    let mut is_late = false;
    world.api.hook(move |call| {
        is_late |= call.is("create", "noderemediations");
        let late = match (call.verb, call.target.plural.as_str()) {
            (_, "leases") if is_late => return Some(Fault::Stall),
            ("create", "noderemediations") => 1_000,
            ("get", "nodes" | "pods") if is_late => 4_900,
            _ => return None,
        };
        Some(Fault::Late(Duration::from_millis(late)))
    });
    rollout.put(1, "log-1-0", &json!({"without": rollout.after(Duration::ZERO)}));
    rollout.says(2);
    world.until("decided", || world.step(0)["state"] == "Scheduled").await;
    let read = || world.api.calls().iter().filter(|call| call.is("get", "pods")).count();
    let before = read();
    sleep(Duration::from_mins(1)).await;
    assert!(read() > before, "it came as far as its last read");
    let is_deleted = || world.api.writes().iter().any(|write| write == "delete pods/log-1-0");
    assert!(!is_deleted(), "{:#?}", world.api.writes());
    replica.crash().await;
    world.api.unhook();
    let _next = world.controller("b");
    world.until("deleted", is_deleted).await;
}

#[tokio::test(start_paused = true)]
async fn of_a_pod_that_cannot_be_read_nothing_is_confirmed_and_nothing_is_forgotten() {
    let (rollout, _replica) = Rollout::healthy(1).await;
    rollout.put(1, "log-1-0", &json!({"deletes": rollout.after(Duration::ZERO)}));
    rollout.says(0);
    let is = |state: &str| vec![("log-1-0".to_owned(), state.to_owned())];
    rollout.world.until("it is reported", || rollout.said(1) == is("Confirmed")).await;
    let of_pods = |call: &Call| {
        !call.is_write() && call.target.plural == "pods" && call.target.namespace.as_deref() != Some("nrh-node")
    };
    rollout.world.api.hook(move |call| of_pods(call).then_some(Fault::Code(500)));
    sleep(Duration::from_secs(25)).await;
    assert_eq!(rollout.said(1), is("Suspected"));
    let status = rollout.world.status("w1");
    let progressing = rollout.world.condition("noderuntimehealths", "w1", "PodsProgressing");
    assert_eq!((&status["summary"]["health"], &progressing["status"]), (&json!("Degraded"), &json!("Unknown")));
    let asked = rollout.world.command_spec("w1")["checkSequence"].clone();
    sleep(Duration::from_mins(5)).await;
    assert_eq!(rollout.said(1), is("Suspected"));
    assert_eq!(rollout.world.command_spec("w1")["checkSequence"], asked, "a probe cannot read pods");
    rollout.world.api.unhook();
    rollout.world.until("it is read again", || rollout.said(1) == is("Confirmed")).await;
}
