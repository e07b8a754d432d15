//! Pods, their DaemonSet, reports, leaders and a lame API server in random order: what is said of a pod is what its last read shows.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::fake_api::world::Replica;
use crate::fake_api::{Call, Fault};
use crate::stuck_pods::Rollout;

const NODES: usize = 2;
const STEP: Duration = Duration::from_millis(250);
/// From when a pod is stuck; times in the API are whole seconds.
const STUCK: Duration = Duration::from_secs(119);
/// Within this nothing is said any more of a pod that is well or gone.
const SOON: Duration = Duration::from_secs(5);
/// The same where reads failed or were late: what is not read is confirmed no more.
const LATE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
enum Happens {
    /// A pod is to go, with so much of its grace period left.
    Deleted(usize, u64),
    /// It is gone, with a successor that is ready, or has no sandbox, or none.
    Gone(usize, Option<bool>),
    Ready(usize),
    Creating(usize),
    /// The DaemonSet says that so many are ready, true or not.
    Says(usize),
    /// Something hangs on a node, or no more.
    Sick(usize, bool),
    /// Pods cannot be read, or only slowly, or again.
    Fails,
    Slow(u64),
    Works,
    NewLeader,
}

fn happens() -> impl Strategy<Value = Happens> {
    let node = || 1..=NODES;
    prop_oneof![
        4 => (node(), 0..30_u64).prop_map(|(node, grace)| Happens::Deleted(node, grace)),
        4 => (node(), any::<Option<bool>>()).prop_map(|(node, next)| Happens::Gone(node, next)),
        2 => node().prop_map(Happens::Ready),
        2 => node().prop_map(Happens::Creating),
        6 => (0..=NODES).prop_map(Happens::Says),
        1 => (node(), any::<bool>()).prop_map(|(node, sick)| Happens::Sick(node, sick)),
        1 => Just(Happens::Fails),
        1 => (1..5_u64).prop_map(Happens::Slow),
        3 => Just(Happens::Works),
        1 => Just(Happens::NewLeader),
    ]
}

/// How long it stays so: about the times that matter.
fn then() -> impl Strategy<Value = Duration> {
    prop_oneof![0..6_000_u64, 15_000..45_000_u64, 95_000..140_000_u64].prop_map(Duration::from_millis)
}

/// What is so of one pod, by the API server's own objects.
struct Truth {
    /// Since when it is well or gone.
    over: Option<Instant>,
    /// Whether it was stuck at any time.
    was_stuck: bool,
}

struct Watch {
    rollout: Rollout,
    pods: BTreeMap<String, Truth>,
    lives: usize,
    /// When reads failed or were slow last.
    lame: Option<Instant>,
    is_lame: bool,
    /// How often a stuck pod was told of.
    told: usize,
}

impl Watch {
    fn name(&self, node: usize) -> Option<String> {
        let pods = self.rollout.world.api.list("pods");
        let here = pods.into_iter().find(|pod| pod["spec"]["nodeName"] == format!("w{node}"))?;
        here["metadata"]["name"].as_str().map(str::to_owned)
    }

    fn change(&mut self, what: Happens) {
        let world = self.rollout.world.clone();
        match what {
            Happens::Deleted(node, grace) => {
                if let Some(name) = self.name(node) {
                    let at = json!(self.rollout.after(Duration::from_secs(grace)));
                    world.api.change("pods", &name, |pod| {
                        let before = pod["metadata"]["deletionTimestamp"].take();
                        pod["metadata"]["deletionTimestamp"] = if before.is_null() { at } else { before };
                    });
                }
            }
            Happens::Gone(node, next) => {
                if let Some(name) = self.name(node) {
                    world.api.remove("pods", &name);
                }
                self.lives += 1;
                let how = next.map(|ready| if ready { json!({"ready": true}) } else { self.creating() });
                if let Some(how) = how {
                    self.rollout.put(node, &format!("log-{node}-{}", self.lives), &how);
                }
            }
            Happens::Ready(node) | Happens::Creating(node) => {
                let is_ready = matches!(what, Happens::Ready(_));
                let how = if is_ready { json!({"ready": true}) } else { self.creating() };
                if let Some(name) = self.name(node)
                    && world.api.get("pods", &name).is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_null())
                {
                    self.rollout.put(node, &name, &how);
                }
            }
            Happens::Says(ready) => self.rollout.says(ready),
            Happens::Sick(node, sick) => world.set_sick(&format!("w{node}"), sick),
            Happens::Fails => self.lame(|| Fault::Code(500)),
            Happens::Slow(seconds) => self.lame(move || Fault::AnsweredLate(Duration::from_secs(seconds))),
            Happens::Works => {
                world.api.unhook();
                self.is_lame = false;
            }
            Happens::NewLeader => {}
        }
    }

    fn creating(&self) -> Value {
        json!({"without": self.rollout.after(Duration::ZERO)})
    }

    fn lame(&mut self, how: impl Fn() -> Fault + Send + 'static) {
        // A controller that cannot list the pods of its Jobs says nothing at all.
        let of_pods = |call: &Call| {
            let is_of_jobs = call.target.namespace.as_deref() == Some("nrh-node");
            !call.is_write() && call.target.plural == "pods" && call.verb != "watch" && !is_of_jobs
        };
        self.rollout.world.api.hook(move |call| of_pods(call).then(&how));
        self.is_lame = true;
    }

    /// Takes over what is so, and compares it with what is said.
    fn check(&mut self) -> Result<(), TestCaseError> {
        let (now, wall) = (Instant::now(), self.rollout.world.wall());
        if self.is_lame {
            self.lame = Some(now);
        }
        let pods = self.rollout.world.api.list("pods");
        let names: Vec<&str> = pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
        for (name, truth) in &mut self.pods {
            if !names.contains(&name.as_str()) {
                truth.over.get_or_insert(now);
            }
        }
        for pod in &pods {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let truth = self.pods.entry(name).or_insert(Truth { over: None, was_stuck: false });
            let since = |at: &Value| {
                let at: Option<Timestamp> = at.as_str().and_then(|at| at.parse().ok());
                at.and_then(|at| Duration::try_from(wall.duration_since(at)).ok())
            };
            let deleted = &pod["metadata"]["deletionTimestamp"];
            let ready = pod["status"]["conditions"][0]["status"] == "True";
            let lasts = if deleted.is_null() { since(&pod["status"]["startTime"]) } else { since(deleted) };
            truth.was_stuck |= lasts.is_some_and(|lasts| lasts >= STUCK);
            if ready && deleted.is_null() {
                truth.over.get_or_insert(now);
            } else {
                truth.over = None;
            }
        }
        let is_late = self.lame.is_some_and(|at| now.duration_since(at) < LATE);
        for node in 1..=NODES {
            for (name, state) in self.rollout.said(node) {
                let truth = self.pods.get(&name);
                prop_assert!(truth.is_some_and(|truth| truth.was_stuck), "{name} is {state}, and never was stuck");
                let over = truth.and_then(|truth| truth.over).map(|at| now.duration_since(at));
                let bound = if is_late { LATE } else { SOON };
                let is_said = state == "Confirmed" || !is_late;
                prop_assert!(
                    !is_said || over.is_none_or(|over| over <= bound),
                    "{name} is {state}, and well or gone for {over:?}"
                );
                self.told += 1;
            }
        }
        Ok(())
    }

    async fn run(&mut self, all: &[(Happens, Duration)]) -> Result<(), TestCaseError> {
        let mut leader: Replica = self.rollout.world.controller("a");
        for (what, lasts) in all {
            self.change(*what);
            if matches!(what, Happens::NewLeader) {
                // Nobody says anything until the lease has run out.
                self.lame = Some(Instant::now());
                leader.crash().await;
                leader = self.rollout.world.controller("b");
            }
            let until = Instant::now() + *lasts;
            while Instant::now() < until {
                sleep(STEP).await;
                self.check()?;
            }
        }
        Ok(())
    }
}

fn runs(all: &[(Happens, Duration)]) -> Result<usize, TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.map_err(|error| TestCaseError::fail(error.to_string()))?.block_on(async {
        let rollout = Rollout::new(NODES);
        let mut watch = Watch { rollout, pods: BTreeMap::new(), lives: 0, lame: None, is_lame: false, told: 0 };
        watch.run(all).await?;
        Ok(watch.told)
    })
}

/// What the property is about happens at all.
#[test]
fn a_stuck_pod_is_told_of_in_this_world() {
    let minutes = |minutes| Duration::from_mins(minutes);
    let all =
        [(Happens::Deleted(1, 0), minutes(0)), (Happens::Says(0), minutes(3)), (Happens::Gone(1, None), minutes(1))];
    assert!(runs(&all).unwrap() > 100);
}

#[test]
fn a_new_leader_that_cannot_read_a_pod_says_nothing_of_it() {
    let ms = Duration::from_millis;
    let all = [
        (Happens::Says(0), ms(0)),
        (Happens::Deleted(2, 0), ms(16_501)),
        (Happens::Slow(1), ms(103_251)),
        (Happens::Fails, ms(751)),
        (Happens::NewLeader, ms(0)),
        (Happens::Gone(2, None), ms(95_000)),
    ];
    assert!(runs(&all).unwrap() > 0);
}

#[test]
fn nothing_is_said_of_a_pod_that_is_not_there_or_is_well() {
    // Each case is some twenty minutes of a cluster. The macro would make as many as `PROPTEST_CASES` says, which is meant for properties
    // that take milliseconds.
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { 2 } else { 6 };
    let config =
        ProptestConfig { cases, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() };
    let all = proptest::collection::vec((happens(), then()), 4..24);
    TestRunner::new(config).run(&all, |all| runs(&all).map(drop)).unwrap_or_else(|error| panic!("{error}"));
}
