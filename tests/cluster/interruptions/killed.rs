//! The leader is killed before and after each kind of write of a remediation, one remediation for each such point, and another one
//! takes over: whatever was under way is done once, and nothing is left of it. Before: the write never arrives. After: it is carried
//! out, and the answer never comes back. In memory `tests/controller` does the same at each single write.
//!
//! Leaders leave their Lease behind. Its holder is taken out by hand, as an operator does who deletes the Lease: how it runs out is
//! another test's (`sleeper`), and costs a quarter of a minute.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt};
use nrh::api::{NodeCommand, NodeRemediation, RemediationPolicy};
use nrh::controller::calls::Calls;
use nrh::controller::run::Ended;
use nrh::core::plan::PlanSettings;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::interruptions::account::{self, Write};
use crate::interruptions::cases::{ACTS, By, CASES, Case, Part};
use crate::interruptions::process::Process;
use crate::interruptions::stand_in::Remediators;
use crate::interruptions::way::{Call, CallOutcome, Judge, rough};
use crate::interruptions::{Stage, daemons, door, free_lease, hand_offs, kill, start_set, until, workload};
use crate::objects::ours;
use crate::plane;

/// Names the one kind of remediation that is to be tried, in the midst of work on it.
const ONLY: &str = "NRH_CASE";
/// How long the last write may follow after all is settled.
const FOLLOWS: Duration = Duration::from_secs(10);
/// How long what a dead leader has sent may still arrive.
const TRAILS: Duration = Duration::from_millis(300);

/// The write that is to be the leader's last one.
struct Shot {
    node: String,
    fate: CallOutcome,
    kind: &'static str,
    hit: Option<Call>,
}

/// Hits that write, and lets nothing of the remediation pass after it.
#[derive(Clone, Default)]
struct Aim(Arc<Mutex<Option<Shot>>>);

impl Aim {
    fn take(&self, node: &str, fate: CallOutcome, kind: &'static str) {
        *self.0.lock().unwrap() = Some(Shot { node: node.to_owned(), fate, kind, hit: None });
    }

    /// What was hit. All passes from now on.
    fn leave(&self) -> Option<Call> {
        self.0.lock().unwrap().take()?.hit
    }
}

impl Judge for Aim {
    fn call(&mut self, call: &Call) -> CallOutcome {
        let mut shot = self.0.lock().unwrap();
        let Some(shot) = shot.as_mut().filter(|shot| call.is_of_remediation(&shot.node)) else {
            return CallOutcome::Answered;
        };
        if shot.hit.is_some() {
            // Others of that moment.
            return CallOutcome::Lost;
        }
        if call.kind() != shot.kind {
            return CallOutcome::Answered;
        }
        shot.hit = Some(call.clone());
        shot.fate
    }
}

enum Leader {
    Process(Process),
    Task(JoinHandle<Result<(), Ended>>),
}

/// The stage, and the one way on which all leaders go.
struct Range<'a> {
    stage: &'a Stage<'a>,
    aim: Aim,
    gone: Arc<Notify>,
    way: Client,
    kubeconfig: Value,
}

/// What came of one kind of remediation.
struct Row {
    title: &'static str,
    by: By,
    /// How often the leader was killed before and after each kind of write.
    kinds: BTreeMap<&'static str, [usize; 2]>,
}

impl Row {
    /// Points before a write, and after one.
    fn points(&self) -> [usize; 2] {
        [0, 1].map(|place| self.kinds.values().map(|met| met[place]).sum())
    }
}

/// The kinds of remediations of that part, at all of their points.
pub async fn at_each_write(stage: &Stage<'_>, part: Part) -> Result<()> {
    let (aim, gone) = (Aim::default(), Arc::new(Notify::new()));
    let way = rough(stage.upstream.clone(), gone.clone(), aim.clone());
    let kubeconfig = door::open(way.clone()).await?;
    let range = Range { stage, aim, gone, way, kubeconfig };
    stage.bed.kubectl(&["apply", "-f", &plane::folder("config/samples/drain-rights.yaml")])?;
    let policies: Api<RemediationPolicy> = Api::all(stage.admin.clone());
    let mut rows = Vec::new();
    let only = std::env::var(ONLY).ok();
    let is_known = only.as_ref().is_none_or(|only| CASES.iter().any(|case| case.name == only));
    ensure!(is_known, "{ONLY}={only:?}: there is no such kind of remediation");
    let is_meant = |case: &&Case| case.part == part && only.as_ref().is_none_or(|only| case.name == only);
    let cases: Vec<&Case> = CASES.iter().filter(is_meant).collect();
    if cases.iter().any(|case| case.hands_off()) {
        hand_offs::install(stage)?;
        // They play for as long as the test runs, and are never done with a node.
        Remediators::new(stage.admin.clone());
    }
    for case in cases {
        policies.create(&PostParams::default(), &serde_json::from_value(case.policy())?).await?;
        rows.push(range.case(case).await.with_context(|| case.title)?);
        policies.delete(case.name, &DeleteParams::default()).await?;
    }
    // One that is named may be another test's.
    ensure!(!rows.is_empty() || only.is_some(), "no kind of remediation was tried");
    let points: usize = rows.iter().flat_map(Row::points).sum();
    println!(
        "the leader was killed at {points} points, before and after each kind of write of a remediation:\n{}",
        table(&rows)?
    );
    Ok(())
}

fn table(rows: &[Row]) -> Result<String> {
    let mut text = String::new();
    for row in rows {
        let [before, after] = row.points();
        let how = if row.by == By::Process { "SIGKILL of a process" } else { "end of a task" };
        writeln!(text, "  {}: {before} before, {after} after ({how})", row.title)?;
        for (kind, [before, after]) in &row.kinds {
            writeln!(text, "    {kind}: {before} before, {after} after")?;
        }
    }
    Ok(text)
}

impl Range<'_> {
    async fn case(&self, case: &Case) -> Result<Row> {
        let (begun, mut nodes, mut kinds) = (Timestamp::now(), Vec::new(), BTreeMap::<&str, [usize; 2]>::new());
        let mut leader = self.start(case)?;
        for (place, fate) in [CallOutcome::Lost, CallOutcome::Unanswered].into_iter().enumerate() {
            let how = if fate == CallOutcome::Lost { "before" } else { "after" };
            for kind in case.kinds() {
                let node = format!("{}-{how}-{:02}", case.name, nodes.len());
                let (next, hit) = self.point(case, &node, fate, kind, leader).await?;
                leader = next;
                nodes.push(node);
                println!("killed {how} {kind}: {:?}", hit.as_ref().map(Call::line));
                kinds.entry(kind).or_default()[place] += usize::from(hit.is_some());
            }
        }
        self.kill(leader).await?;
        let is_missing = |kind: &&str| kinds.get(*kind).is_none_or(|met| met.contains(&0));
        let missing: Vec<_> = case.kinds().filter(is_missing).collect();
        ensure!(missing.is_empty(), "the leader was not killed before and after each of {missing:?}, but at {kinds:?}");
        self.audit(case, begun, &nodes)?;
        Ok(Row { title: case.title, by: case.by, kinds })
    }

    /// A node is repaired, and the leader dies at that write of its remediation. The next leader, and the write, if there was such a one.
    async fn point(
        &self,
        case: &Case,
        node: &str,
        fate: CallOutcome,
        kind: &'static str,
        mut leader: Leader,
    ) -> Result<(Leader, Option<Call>)> {
        let (fleet, rival) = (&self.stage.fleet, format!("other-than-{node}"));
        if case.fault.is_cluster_fault() {
            // One that knows the set from its beginning checks it again after a quarter of a minute.
            self.kill(leader).await?;
            self.sick(case, node).await?;
            self.aim.take(node, fate, kind);
            leader = self.start(case)?;
        } else {
            self.aim.take(node, fate, kind);
            self.sick(case, node).await?;
        }
        let mut nodes = vec![node.to_owned()];
        let is_hit = tokio::select! {
            () = self.gone.notified() => true,
            settled = self.settled(node) => {
                settled.context("without a crash")?;
                // The last write may be under way.
                tokio::time::timeout(FOLLOWS, self.gone.notified()).await.is_ok()
            }
        };
        let mut hit = None;
        if is_hit {
            self.kill(leader).await?;
            tokio::time::sleep(TRAILS).await;
            hit = self.aim.leave();
            while self.gone.notified().now_or_never().is_some() {}
            // Where the write is not carried out, the next leader sees no more than this one.
            if case.has_rival && fate == CallOutcome::Unanswered {
                self.sick(case, &rival).await?;
                nodes.push(rival);
            }
            leader = self.start(case)?;
        }
        self.aim.leave();
        let what = || format!("node {node}, killed at {kind}, {fate:?}: {:?}", hit.as_ref().map(Call::line));
        for node in &nodes {
            self.settled(node).await.with_context(what)?;
            fleet.check_acts(node, case.acts).await.with_context(what)?;
        }
        let most = fleet.most_at_a_time(&nodes).await?;
        ensure!(most <= 1, "{}: {most} nodes were in work at a time, one is allowed", what());
        for node in &nodes {
            self.remove(case, node).await?;
        }
        Ok((leader, hit))
    }

    fn start(&self, case: &Case) -> Result<Leader> {
        Ok(match case.by {
            By::Process => Leader::Process(Process::start(self.stage.bed, "killed", &self.kubeconfig)?),
            By::Task => {
                let calls = Calls::new(self.way.clone(), self.way.clone());
                Leader::Task(start_set(calls, "killed", (case.settings)(PlanSettings::default())))
            }
        })
    }

    async fn kill(&self, leader: Leader) -> Result<()> {
        match leader {
            Leader::Process(process) => {
                process.kill()?;
                free_lease(&self.stage.admin).await
            }
            Leader::Task(task) => kill(&self.stage.admin, task).await,
        }
    }

    async fn sick(&self, case: &Case, node: &str) -> Result<()> {
        let labels = [("case", case.name), (daemons::LABEL, node)];
        if case.drains() {
            // It may be bound before there is a node: so the node never stands without its pod.
            workload::make(&self.stage.admin, node).await?;
        }
        self.stage.fleet.machine(node, &labels, case.fault, case.kubelet, case.fails).await?;
        if let Some(action) = case.manual {
            self.ask(case, node, action).await?;
        }
        if !case.fault.is_cluster_fault() {
            return Ok(());
        }
        daemons::make(&self.stage.admin, node).await?;
        let what = format!("a pod of DaemonSet {node} that loops");
        until(&what, async || daemons::loops(&self.stage.admin, node).await).await
    }

    /// A person has that action of the policy done, in the name that the client has.
    async fn ask(&self, case: &Case, node: &str, action: &str) -> Result<()> {
        let review: Api<SelfSubjectReview> = Api::all(self.stage.admin.clone());
        let who = review.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
        let by = who.status.and_then(|status| status.user_info?.username).context("a name of one's own")?;
        let nodes: Api<Node> = Api::all(self.stage.admin.clone());
        let uid = nodes.get(node).await?.uid().context("a uid")?;
        let spec = json!({"nodeName": node, "nodeUid": uid, "policy": case.name, "mode": "Enforce",
            "manual": {"requestedBy": by, "fault": case.fault, "action": action}});
        let manual = ours("NodeRemediation", &format!("{node}-by-hand"), spec);
        let remediations: Api<NodeRemediation> = Api::all(self.stage.admin.clone());
        remediations.create(&PostParams::default(), &serde_json::from_value(manual)?).await?;
        Ok(())
    }

    async fn remove(&self, case: &Case, node: &str) -> Result<()> {
        if case.fault.is_cluster_fault() {
            daemons::unmake(&self.stage.admin, node).await?;
        }
        if case.drains() {
            workload::unmake(&self.stage.admin, node).await?;
        }
        self.stage.fleet.remove(node).await
    }

    /// Waits until the node's remediation has repaired it, holds nothing any more, and no command stands.
    async fn settled(&self, node: &str) -> Result<()> {
        let fleet = &self.stage.fleet;
        fleet.resolved(node).await?;
        let commands: Api<NodeCommand> = Api::all(self.stage.admin.clone());
        until("the end of what the remediation holds, and of the command", async || {
            let holds = fleet.remediations(node).await?.iter().any(|remediation| !remediation.finalizers().is_empty());
            let command = commands.get_opt(node).await?.and_then(|command| command.spec.command);
            Ok(!holds && command.is_none())
        })
        .await?;
        fleet.ledger_is_empty().await
    }

    /// By the API server's own account each act was done once per node, and no two nodes that had to share were in work at a time.
    fn audit(&self, case: &Case, begun: Timestamp, nodes: &[String]) -> Result<()> {
        let writes = account::since(self.stage.bed, begun)?;
        for node in nodes {
            let is_its = |write: &&Write| write.name.starts_with(node.as_str()) && write.is_done();
            let of_node: Vec<&Write> = writes.iter().filter(is_its).collect();
            for act in ACTS {
                let done = of_node.iter().filter(|write| write.kind() == act).count();
                let expected = case.written.iter().find(|(kind, _)| *kind == act).map_or(0, |(_, count)| *count);
                ensure!(done == expected, "{node}: expected {act} {expected} times, found {done}: {of_node:#?}");
            }
            let pair = [node.clone(), format!("other-than-{node}")];
            let most = account::most_at_a_time(&writes, &pair);
            ensure!(most <= 1, "{node}: {most} nodes were in work at a time, one is allowed");
        }
        Ok(())
    }
}
