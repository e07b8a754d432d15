//! Which finished remediations are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Ctx;
use crate::context::{Nodes, Requeue};
use crate::moment::since;
use crate::plan::Effect;
use crate::policy::{Mode, Policy};
use crate::procedure::boot::{self, RETRY_AFTER_FAILED_REBOOT};
use crate::remediation::Remediation;

/// Maximum number of records of manual requests that never began, for each policy.
const NEVER_BEGAN: u32 = 20;

/// Finished remediations beyond the limit or the time to live of their policy, oldest first.
///
/// Some records stay longer, because decisions depend on them. First, records of remediations that executed an action in the last
/// hour, or in the period for which actions on a node and nodes with a new fault are counted. (A fault that could not be resolved
/// is not tried again at once.) Second, records of the last day with a reboot of the node. Third, the newest record about each
/// fault that is still there.
pub(super) fn sweep<'a>(ctx: Ctx<'a>, requeue: &mut Requeue) -> Vec<Effect> {
    let needed = needed(ctx.nodes);
    // Manual requests that never began are counted separately: they take no place from a record of executed actions.
    let mut by_policy: BTreeMap<(&str, bool), Vec<&'a Remediation>> = BTreeMap::new();
    for remediation in
        ctx.snapshot.remediations.values().filter(|remediation| !remediation.is_live() && !remediation.deleting)
    {
        by_policy.entry((&remediation.policy, never_began(remediation))).or_default().push(remediation);
    }
    let mut gone: Vec<(jiff::Timestamp, &str)> = Vec::new();
    // How many records a policy keeps is unknown if the policy cannot be read.
    by_policy.retain(|(policy, _), _| !ctx.snapshot.unusable_policies.contains(*policy));
    for ((policy, never_began), mut finished) in by_policy {
        let known = ctx.policies.get(policy);
        let mut history = known.map_or(ctx.settings.history, |policy| policy.history);
        if never_began {
            history.limit = history.limit.min(NEVER_BEGAN);
        }
        // These records count how often actions ran on a node, and on how many nodes a fault was new.
        let within = |policy: &&Policy| policy.limits.per_node.window.max(policy.limits.storm.window);
        let counted = known.map_or(Duration::ZERO, within);
        let memory = ctx.settings.failed_memory.max(counted);
        finished.sort_by(|a, b| ended(b).cmp(&ended(a)).then_with(|| b.name.cmp(&a.name)));
        // The newest record of each node goes before any second one: a node that writes many takes no place from the others.
        let mut of_node: BTreeMap<&str, usize> = BTreeMap::new();
        let rank = |remediation: &'a Remediation| {
            let newer = of_node.entry(&remediation.node).or_default();
            *newer += 1;
            (*newer, remediation)
        };
        let mut ranked: Vec<_> = finished.into_iter().map(rank).collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        for (place, (_, remediation)) in ranked.into_iter().enumerate() {
            let age = since(ctx.snapshot.now, ended(remediation));
            let is_over_limit = place >= usize::try_from(history.limit).unwrap_or(usize::MAX);
            if !is_over_limit && age < history.ttl {
                requeue.after(history.ttl.saturating_sub(age));
                continue;
            }
            if needed.contains(remediation.name.as_str()) {
                continue;
            }
            // The controller keeps the record of a reboot longer than any other record.
            let longest = if boot::is_remembered(remediation) { RETRY_AFTER_FAILED_REBOOT } else { Duration::ZERO };
            let memory = memory.max(longest);
            if remediation.mode == Mode::Enforce && !never_began && age < memory {
                requeue.after(memory.saturating_sub(age));
                continue;
            }
            gone.push((ended(remediation), &remediation.name));
        }
    }
    gone.sort_unstable();
    gone.into_iter().map(|(_, name)| Effect::DeleteRemediation { name: name.to_owned() }).collect()
}

/// Whether it is the record of a manual request with which nothing began: no decision depends on it.
fn never_began(remediation: &Remediation) -> bool {
    remediation.manual.is_some() && remediation.steps.is_empty() && remediation.stopped().is_none()
}

fn ended(remediation: &Remediation) -> jiff::Timestamp {
    remediation.finished_at.unwrap_or(remediation.started_at)
}

/// The newest finished remediation, and the newest dry run, about each fault that is still there: neither replaces the other.
fn needed<'a>(nodes: &Nodes<'a>) -> BTreeSet<&'a str> {
    let mut needed = BTreeSet::new();
    for node in nodes.values().filter(|node| !node.finished.is_empty()) {
        for seen in &node.seen {
            for mode in [Mode::Enforce, Mode::DryRun] {
                let is_it = |remediation: &&&Remediation| {
                    remediation.mode == mode && remediation.fault(&seen.fault.id).is_some()
                };
                needed.extend(node.finished.iter().rev().find(is_it).map(|remediation| remediation.name.as_str()));
            }
        }
    }
    needed
}
