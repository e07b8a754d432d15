//! The judge on trial: the same acts with parts of the operator made wrong, side by side on one control plane.
//!
//! A judge that finds everything well proves nothing until it has been seen to find fault. Nodes are stand-ins, since
//! they are quick and let the operator's view and hands be bent from outside; the acts, what is recorded of them and the
//! judge are the demo's own.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::act::{Act, enforced};
use super::acts::{HungContainer, Orphan};
use super::judge::{ActRecord, judge};
use super::report::{Report, StageKind};
use super::stage::{Stage, open, reserve, thresholds};
use super::tell::Teller;
use super::workloads;
use crate::stand_in::mutant::{self, Mutation};
use crate::wait::SOON;
use crate::{Bed, BedOptions, Node, operator};

/// How often each bed checks; they share the machine.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Label that binds a node to the policies of its variant.
const LABEL: &str = "demo/variant";
/// What runs on each node, to be hit or left alone.
const WORKLOADS: [&str; 3] = ["log-shipper", "mesh-agent", "node-metrics"];
/// The enforcing policies that apply to the acts.
const POLICIES: [&str; 2] = ["hung-container", "orphans"];

/// An act that can be played so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incident {
    /// A frozen shim under a deleted pod; a Job acts.
    HungContainer,
    /// An orphan that keeps the kubelet from starting, while other pods run on; the probe acts.
    Orphan,
}

/// One act on a node of its own.
#[derive(Debug, Clone, Copy)]
pub struct Variant {
    /// What happens
    pub incident: Incident,
    /// What of the operator is made wrong, if anything
    pub mutation: Option<Mutation>,
    /// How long a cure is waited for
    pub limit: Duration,
}

/// Plays all variants at the same time and judges each; one more node stays healthy throughout.
pub fn play(variants: &[Variant]) -> Result<Vec<Report>> {
    let programs = operator::built()?;
    let nodes = variants.len() + 1;
    let bed = Bed::up(BedOptions { name: "mutations".into(), nodes, stand_ins: true, ..BedOptions::default() })?;
    operator::load_image(&bed, bed.nodes(), &programs)?;
    let (well, sick) = bed.nodes().split_last().context("no nodes")?;
    for (number, (node, variant)) in sick.iter().zip(variants).enumerate() {
        bed.kubectl(&["label", "node", &node.name, &format!("{LABEL}=v{number}")])?;
        reserve(&bed, node)?;
        if let Some(mutation) = variant.mutation {
            node.set_image(operator::IMAGE, mutation.image(&programs, &node.dir.join("bin")))?;
            start_mutant(node, mutation)?;
        }
    }
    operator::apply_folder(&bed, "config/default")?;
    for number in 0..variants.len() {
        for name in POLICIES {
            bed.apply(&policy(name, number)?)?;
        }
    }
    operator::wait(&bed)?;
    for node in sick {
        open(&bed, node)?;
    }
    bed.apply(&workloads::some_workloads(&WORKLOADS))?;
    for name in WORKLOADS {
        let what = format!("daemonset/{name}");
        bed.kubectl(&["-n", workloads::NAMESPACE, "rollout", "status", &what, "--timeout=480s"])?;
    }
    let thresholds = thresholds(&programs.nrh)?;
    let one = |node: &Node, variant: &Variant| -> Result<Report> {
        let stage = Stage {
            bed: Bed::attach(bed.name())?,
            tell: Teller::silent(),
            sick: node.clone(),
            well: well.clone(),
            programs: programs.clone(),
            thresholds: thresholds.clone(),
            poll: POLL_INTERVAL,
            limit: Some(variant.limit),
            shared: true,
        };
        stage.settle()?;
        Ok(Report { stage: StageKind::FakeRuntime, ..play_one(&stage, variant.incident) })
    };
    let reports: Result<Vec<Report>> = std::thread::scope(|scope| {
        let one = &one;
        let all: Vec<_> =
            sick.iter().zip(variants).map(|(node, variant)| scope.spawn(move || one(node, variant))).collect();
        all.into_iter().map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    if reports.is_err() {
        eprintln!("testbed: logs are in {}", bed.save_logs()?.display());
    }
    bed.down()?;
    reports
}

fn play_one(stage: &Stage, incident: Incident) -> Report {
    let mut act: Box<dyn Act> = match incident {
        Incident::HungContainer => Box::new(HungContainer),
        Incident::Orphan => Box::new(Orphan::probe_runs()),
    };
    let mut record = ActRecord { act: act.name().into(), ..ActRecord::default() };
    if let Err(error) = enforced(act.as_mut(), stage, &mut record) {
        record.errors.push(format!("{error:#}"));
    }
    judge(&[record], stage.thresholds.clone(), false)
}

/// The server that only the operator asks.
fn start_mutant(node: &Node, mutation: Mutation) -> Result<()> {
    let argv = [mutant::RUNTIME, "--socket", mutant::SOCKET, "--mutation", &mutation.name()].map(str::to_owned);
    node.start(mutant::RUNTIME, &argv)?;
    let there = || node.root_path(mutant::SOCKET).exists();
    ensure!(crate::process::wait_until(SOON, there), "{} of {} does not listen", mutant::RUNTIME, node.name);
    Ok(())
}

/// A shipped policy for one variant's node: what happens on the others is none of its business.
fn policy(name: &str, number: usize) -> Result<Value> {
    let mut policy = super::stage::shipped_policy(&format!("{name}.yaml"))?;
    policy["metadata"]["name"] = json!(format!("{name}-v{number}"));
    policy["spec"]["nodeSelector"] = json!({"matchLabels": {LABEL: format!("v{number}")}});
    policy["spec"]["limits"]["maxUnhealthy"] = json!("100%");
    Ok(policy)
}
