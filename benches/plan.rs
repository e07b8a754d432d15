//! How long one decision takes, at 100, 1,000 and 10,000 nodes, and at 10,000 by 1, 5 and 20 policies that all select every node: it
//! has to grow about linearly.
//!
//! Prints each size's time with the ratio to the smallest per node, and writes `target/bench/plan.json`.

#![expect(clippy::cast_precision_loss, reason = "nanoseconds and node counts are far below 2^52")]

mod record;
#[path = "../crates/core/tests/plan/samples.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "the tests of the decision use the rest of it")]
mod samples;

use nrh::core::action::CleanupOrphans;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nrh::core::engine::plan;
use nrh::core::fault::{Fault, FaultType, PodRef, Severity, Subject, SubjectKind, Target};
use nrh::core::plan::PlanSettings;
use nrh::core::policy::{Action, Amount, History, Limits, Policy};
use nrh::core::snapshot::{Heartbeat, Ledger, NodeView, ReportView, ReportedFault, RestartView, Snapshot, TriState};
use record::Line;

/// One node in this many is sick.
const SICK: usize = 50;

fn main() -> std::io::Result<()> {
    let settings = PlanSettings::default();
    let mut lines = Vec::new();
    let mut base = None;
    for (nodes, policies) in [(100_usize, 1_usize), (1_000, 1), (10_000, 1), (10_000, 5), (10_000, 20)] {
        let snapshot = fleet(nodes, policies);
        let per_node = quickest(|| {
            let decided = plan(&snapshot, &settings);
            assert_eq!(decided.nodes.len(), nodes, "every node has a status view");
        }) / nodes as f64;
        let baseline = *base.get_or_insert(per_node);
        lines.push(Line::new(format!("plan, {nodes} nodes, {policies} policies"), per_node, "ns/node", baseline));
    }
    record::write("plan", &lines)
}

/// Nanoseconds of the quickest of several runs: what else the machine does only makes it slower.
fn quickest(mut work: impl FnMut()) -> f64 {
    let begin = Instant::now();
    let mut best = f64::MAX;
    while begin.elapsed() < Duration::from_secs(3) {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_nanos() as f64);
    }
    best
}

fn fleet(nodes: usize, policies: usize) -> Snapshot {
    let names: Vec<String> = (0..nodes).map(|n| format!("node-{n:05}")).collect();
    let view = |name: &String| NodeView {
        uid: format!("uid-{name}"),
        labels: BTreeMap::from([("kubernetes.io/os".to_owned(), "linux".to_owned())]),
        ready: TriState::True,
        ..NodeView::default()
    };
    let report = |(n, name): (usize, &String)| ReportView {
        node_uid: Some(format!("uid-{name}")),
        heartbeat: Some(Heartbeat {
            arrived: Duration::from_secs(5),
            age_known: true,
            interval: Duration::from_secs(15),
            sequence: 7,
            boot_id: "b".into(),
            actions_enabled: true,
            kubelet_works: TriState::True,
        }),
        faults: if n % SICK == 0 { vec![leaked_shim(name)] } else { Vec::new() },
        restart: RestartView { kubelet: TriState::True, runtime: TriState::True, ..RestartView::default() },
        ..ReportView::default()
    };
    Snapshot {
        now: jiff::Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_hours(24),
        nodes: names.iter().map(|name| (name.clone(), view(name))).collect(),
        reports: names.iter().enumerate().map(|(n, name)| (name.clone(), report((n, name)))).collect(),
        policies: (0..policies).map(policy).collect(),
        ledger: Some(Ledger::default()),
        epoch: 1,
        ceiling: 10,
        ..Snapshot::default()
    }
}

fn leaked_shim(node: &str) -> ReportedFault {
    let pod = PodRef { namespace: "kube-system".into(), name: format!("agent-{node}"), uid: format!("pod-{node}") };
    let fault = Fault {
        severity: Severity::Medium,
        subject: Subject { pod: Some(pod), ..Subject::of(SubjectKind::Shim) },
        target: Target::default(),
        first_seen: jiff::Timestamp::UNIX_EPOCH,
        duration_seconds: 90,
        check_age_seconds: 2,
        ..samples::fault(FaultType::LeakedShim, node)
    };
    ReportedFault { fault, checked: Duration::from_secs(7) }
}

/// The one with the least priority is for the faults that there are: all others are asked first.
fn policy(number: usize) -> Policy {
    let kind = if number == 0 { FaultType::LeakedShim } else { FaultType::UnresponsiveShim };
    let rule = samples::rule("leftovers", &[kind], &[samples::step(Action::CleanupOrphans(CleanupOrphans))]);
    Policy {
        limits: Limits { max_unhealthy: Amount::Percent(30), max_in_flight: Amount::Count(5), ..Limits::default() },
        history: History { limit: 50, ttl: Duration::from_hours(1) },
        priority: i32::try_from(number).unwrap_or(i32::MAX),
        ..samples::policy(&format!("leftovers-{number}"), &[rule])
    }
}
