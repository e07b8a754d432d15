//! What the engine decides in 2,000 random worlds, as one fingerprint for every hundred of them.
//!
//! A change of structure keeps the fingerprints. A change of behaviour changes some, and its commit says why. `NRH_GOLDEN=write` writes
//! `golden.txt`; `NRH_GOLDEN=FOLDER` writes the decisions themselves, so that `diff -r` compares those of two commits.

use std::fmt::Write;
use std::fs;
use std::hash::Hasher;
use std::path::Path;

use fnv::FnvHasher;
use nrh_core::plan::{Effect, NodeStatusView, Operation, Plan, PolicyStatusView};
use nrh_core::remediation::Remediation;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use serde::Serialize;

use crate::events::{event, happen, with_losses};
use crate::random_worlds::{any_worlds, round};
use crate::world::secs;

const BATCHES: u8 = 20;
const WORLDS: usize = 100;

#[test]
fn decisions_are_those_of_the_commit_before() {
    let mode = std::env::var("NRH_GOLDEN").ok();
    let batches: Vec<(u8, String)> = (0..BATCHES).map(|batch| (batch, decisions(batch))).collect();
    let lines = batches.iter().map(|(batch, text)| format!("{batch:02} {:016x}", fingerprint(text)));
    let found = lines.collect::<Vec<_>>().join("\n") + "\n";
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plan/golden.txt");
    match mode.as_deref() {
        Some("write") => fs::write(&golden, &found).unwrap(),
        Some(folder) => {
            fs::create_dir_all(folder).unwrap();
            for (batch, text) in &batches {
                fs::write(Path::new(folder).join(format!("{batch:02}.txt")), text).unwrap();
            }
        }
        None => {}
    }
    let expected = fs::read_to_string(&golden).unwrap();
    assert_eq!(
        found, expected,
        "the engine decides differently. To see what: NRH_GOLDEN=FOLDER on this commit and on the one before, then diff -r. If it is \
         meant: NRH_GOLDEN=write, and say in the commit what changed and why"
    );
}

/// All plans of one batch of worlds, which are the same on every machine.
fn decisions(batch: u8) -> String {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[batch; 32]);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    let strategy = (any_worlds(), prop::collection::vec(round(with_losses(event())), 1..25));
    let mut text = String::new();
    for number in 0..WORLDS {
        let (mut world, rounds) = strategy.new_tree(&mut runner).unwrap().current();
        let mut before = world.snapshot();
        for (turn, round) in rounds.iter().enumerate() {
            happen(&mut world, &round.event, turn);
            world.tick(secs(round.wait));
            let now = world.snapshot();
            let mut snapshot = if round.is_stale { before } else { now.clone() };
            snapshot.now = now.now;
            let plan = world.carry_out(&snapshot, &round.chaos);
            before = now;
            writeln!(text, "world {number}, round {turn}").unwrap();
            render(&mut text, &plan);
        }
    }
    text
}

fn fingerprint(text: &str) -> u64 {
    let mut hasher = FnvHasher::default();
    hasher.write(text.as_bytes());
    hasher.finish()
}

/// In the words that users see: those of the code may change.
fn render(text: &mut String, plan: &Plan) {
    let mut line = |what: &str, more: String| writeln!(text, "  {what} {more}").unwrap();
    for effect in &plan.effects {
        match effect {
            Effect::StoreLedger(ledger) => line("store ledger", json(ledger)),
            Effect::WriteRemediation(one) => line("write", remediation(one)),
            Effect::BeginManualRequest(one) => line("begin manual request", remediation(one)),
            Effect::UpdateManualRequest { name, node, message, .. } => {
                line("answer manual request", format!("{name} on {node}: {message}"));
            }
            Effect::Act { remediation, operation_id, node, node_uid, operation } => {
                let what = self::operation(operation);
                line("start", format!("{remediation} {operation_id} {node} {node_uid}: {what}"));
            }
            Effect::Remove { remediation, node, marker, successor } => {
                line("remove", format!("{remediation} {node} {}, successor {successor:?}", json(marker)));
            }
            Effect::TimeOutHandOff { remediation, node, handed, at, why } => {
                line("expire hand-off", format!("{remediation} {node} {} {at} {why}", json(handed)));
            }
            Effect::WithdrawCommand { node, .. } => line("withdraw command", node.clone()),
            Effect::DeleteJob { operation_id } => line("delete job", operation_id.clone()),
            Effect::DeleteRemediation { name } => line("delete", name.clone()),
        }
    }
    for blocked in &plan.blocked {
        line("blocked", json(blocked));
    }
    for (name, status_view) in &plan.nodes {
        line("node", format!("{name} {}", node(status_view)));
    }
    for (name, status_view) in &plan.policies {
        line("policy", format!("{name} {}", policy(status_view)));
    }
    line("next", format!("{:?}", plan.next));
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap()
}

fn operation(operation: &Operation) -> String {
    match operation {
        Operation::Cordon => "Cordon".to_owned(),
        Operation::Taint(effect) => format!("Taint {}", json(effect)),
        Operation::Drain(drain) => format!("Drain {}", json(drain)),
        Operation::DeletePod(pod) => format!("DeletePod {}", json(pod)),
        Operation::RunJob(command) => format!("Job {}", json(command)),
        Operation::GiveCommand(command) => format!("NodeCommand {}", json(command)),
        Operation::HandOff(hand_off) => format!("HandOff {}", json(hand_off)),
        Operation::Notify(message) => format!("Notify {message}"),
    }
}

fn remediation(one: &Remediation) -> String {
    let Remediation { name, identity, node, node_uid, policy, mode, phase, message, started_at, finished_at, .. } = one;
    let is_new = identity.is_none();
    let steps: Vec<String> = one.steps.iter().map(|step| format!("{} {}", step.phrase(), json(step))).collect();
    format!(
        "{name} (new {is_new}) {node} {node_uid} {policy} {mode:?} {} {started_at} {finished_at:?} {} {steps:?} {} {message}",
        phase.as_str(),
        json(&one.faults),
        json(&one.cleanup),
    )
}

fn node(one: &NodeStatusView) -> String {
    let remedies: Vec<_> = one.assigned_rules.iter().map(|(id, remedy)| (id, &remedy.policy, &remedy.rule)).collect();
    let stopped = one.stopped.as_ref().map(|stopped| (&stopped.remediation, &stopped.message, stopped.at));
    let conditions = [one.probe_reporting, one.self_healing.status(), one.pods_progressing, one.stable];
    format!(
        "{:?} {:?} {:?} {:?} {:?} {remedies:?} {:?} {stopped:?} {:?} {} {conditions:?} {} {} {}",
        one.health,
        one.top_fault_type,
        one.top_fault,
        one.activity,
        one.policy,
        one.remediation,
        one.kubelet_version,
        json(&one.cluster_faults),
        one.restart_safe_known,
        json(&one.flap),
        one.check_sequence,
    )
}

fn policy(one: &PolicyStatusView) -> String {
    let numbers = [one.selected, one.unhealthy, one.unknown, one.in_flight, one.max_unhealthy, one.max_in_flight];
    let blocked = one.blocked.as_ref().map(|(reason, message)| (json(reason), message));
    format!("{numbers:?} {blocked:?} {:?} {:?} {:?} {:?}", one.overlaps, one.limits, one.windows, one.storms)
}
