//! Which finished remediations are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::evidence::Nodes;
use super::reboot::{self, RETRY_AFTER_FAILED_REBOOT};
use super::{Ctx, Effect, Wake};
use crate::moment::since;
use crate::policy::{Mode, Policy};
use crate::remediation::Remediation;

/// Most records of starts by hand that never began, for each policy.
const NEVER_BEGAN: u32 = 20;

/// Most records that one pass removes: where a limit is lowered thousands may be too many. A pass ends when all that it has begun is
/// done, and as long as the API server is slow to delete nothing else is decided. What is left goes in the passes after it, since one
/// that has done anything is followed by another at once.
const AT_ONCE: usize = 64;

/// Finished remediations beyond the limit or the time to live of their policy, oldest first; not more than one pass may remove.
///
/// Some are kept longer, since decisions rest on them: those of the last hour that acted, or of the time in which acts
/// on a node and nodes with a new fault are counted (a fault that could not be healed is not tried again at once), those of the last
/// day that rebooted a node, and the newest one about each fault that is still there.
pub(super) fn sweep<'a>(ctx: Ctx<'a>, nodes: &Nodes<'a>, wake: &mut Wake) -> Vec<Effect> {
    let needed = needed(nodes);
    // Starts by hand that never began are counted for themselves: they take no place from a record of what was done.
    let mut by_policy: BTreeMap<(&str, bool), Vec<&Remediation>> = BTreeMap::new();
    for remediation in
        ctx.snapshot.remediations.values().filter(|remediation| !remediation.is_live() && !remediation.deleting)
    {
        by_policy.entry((&remediation.policy, never_began(remediation))).or_default().push(remediation);
    }
    let mut gone: Vec<(jiff::Timestamp, &str)> = Vec::new();
    // What a policy wants kept that cannot be read is not known.
    by_policy.retain(|(policy, _), _| !ctx.snapshot.unusable_policies.contains(*policy));
    for ((policy, never_began), mut finished) in by_policy {
        let known = ctx.policies.get(policy);
        let mut history = known.map_or(ctx.settings.history, |policy| policy.history);
        if never_began {
            history.limit = history.limit.min(NEVER_BEGAN);
        }
        // How often a node was acted on, and on how many a fault was new, is counted from them.
        let within = |policy: &&Policy| policy.limits.per_node.window.max(policy.limits.storm.window);
        let counted = known.map_or(Duration::ZERO, within);
        let memory = ctx.settings.failed_memory.max(counted);
        finished.sort_by(|a, b| ended(b).cmp(&ended(a)).then_with(|| b.name.cmp(&a.name)));
        for (place, remediation) in finished.into_iter().enumerate() {
            let age = since(ctx.snapshot.now, ended(remediation));
            let is_over_limit = place >= usize::try_from(history.limit).unwrap_or(usize::MAX);
            if !is_over_limit && age < history.ttl {
                wake.at(history.ttl.saturating_sub(age));
                continue;
            }
            if needed.contains(remediation.name.as_str()) {
                continue;
            }
            // A reboot is remembered longer than anything else.
            let longest = if reboot::is_remembered(remediation) { RETRY_AFTER_FAILED_REBOOT } else { Duration::ZERO };
            let memory = memory.max(longest);
            if remediation.mode == Mode::Enforce && !never_began && age < memory {
                wake.at(memory.saturating_sub(age));
                continue;
            }
            gone.push((ended(remediation), &remediation.name));
        }
    }
    gone.sort_unstable();
    gone.into_iter().take(AT_ONCE).map(|(_, name)| Effect::DeleteRemediation { name: name.to_owned() }).collect()
}

/// Whether it is the record of a start by hand with which nothing was begun: no decision rests on it.
fn never_began(remediation: &Remediation) -> bool {
    remediation.manual.is_some() && remediation.steps.is_empty() && remediation.stopped().is_none()
}

fn ended(remediation: &Remediation) -> jiff::Timestamp {
    remediation.finished_at.unwrap_or(remediation.started_at)
}

/// The newest finished remediation about each fault that still shows, and the newest dry run beside it: neither speaks for the other.
fn needed<'a>(nodes: &Nodes<'a>) -> BTreeSet<&'a str> {
    let mut needed = BTreeSet::new();
    for facts in nodes.values().filter(|facts| !facts.finished.is_empty()) {
        for seen in &facts.seen {
            for mode in [Mode::Enforce, Mode::DryRun] {
                let is_it = |remediation: &&&Remediation| {
                    remediation.mode == mode && remediation.fault(&seen.fault.id).is_some()
                };
                needed.extend(facts.finished.iter().rev().find(is_it).map(|remediation| remediation.name.as_str()));
            }
        }
    }
    needed
}
