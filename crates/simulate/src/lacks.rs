//! What policies ask about faults that the timeline does not say. In the cluster, the controller reads it. Here there is nothing
//! to read, so a fault for such a rule stays blocked to the end. A person who tries a policy must learn why. So it is with what is
//! allowed in a policy and has no use.

use std::collections::{BTreeMap, BTreeSet};

use super::injected_fault::pod_like;
use super::timeline::{FaultEvent, Timeline};
use super::world::World;
use nrh_core::fault::FaultType;
use nrh_core::matching::Matching;
use nrh_core::policy::{Policy, Rule, Step};
use nrh_core::snapshot::NodeView;

/// A fault event with its place in the file, as people find it, and its nodes.
struct Coming<'a> {
    place: String,
    fault: &'a FaultEvent,
    nodes: BTreeSet<&'a str>,
}

/// What the policies of a world ask for and the timeline lacks, one sentence each.
pub fn lacks(timeline: &Timeline, world: &World) -> Vec<String> {
    let coming: Vec<Coming<'_>> = timeline
        .events
        .iter()
        .enumerate()
        .filter_map(|(number, event)| {
            let fault = event.fault.as_ref()?;
            let nodes = event.chosen(world.nodes.keys().map(String::as_str)).into_iter().collect();
            Some(Coming { place: format!("event {} (at {})", number + 1, event.at), fault, nodes })
        })
        .collect();
    let mut all = Vec::new();
    for policy in &world.policies {
        let views = world.nodes.iter().map(|(name, node)| (name.as_str(), &node.view));
        let selected: BTreeMap<&str, &NodeView> =
            views.filter(|(_, view)| policy.selector.matches(&view.labels)).collect();
        if selected.is_empty() {
            all.push(format!("policy {} selects none of the nodes", policy.name));
            continue;
        }
        if policy.limits.max_unhealthy.of(1) == 0 {
            let name = &policy.name;
            all.push(format!("limits.maxUnhealthy of policy {name} is 0: nothing starts while a node is unhealthy"));
        }
        all.extend(policy.rules.iter().flat_map(|rule| useless_steps(policy, rule)));
        for rule in policy.rules.iter().filter(|rule| rule.matching != Matching::default()) {
            let is_its = |one: &&Coming<'_>| one.nodes.iter().any(|node| selected.contains_key(node));
            let is_for = |one: &&Coming<'_>| rule.faults.contains(&one.fault.kind);
            let its: Vec<&Coming<'_>> = coming.iter().filter(is_for).filter(is_its).collect();
            let sick: BTreeSet<&str> = its.iter().flat_map(|one| one.nodes.iter().copied()).collect();
            let sick: Vec<(&str, &NodeView)> =
                sick.into_iter().filter_map(|name| Some((name, *selected.get(name)?))).collect();
            all.extend(of_nodes(policy, rule, &sick));
            all.extend(of_pods(policy, rule, &its));
        }
    }
    all
}

/// The steps of a rule that help against none of its faults.
fn useless_steps(policy: &Policy, rule: &Rule) -> Vec<String> {
    let conditions = (!rule.conditions.is_empty()).then_some(FaultType::NodeCondition);
    let kinds: Vec<FaultType> = rule.faults.iter().copied().chain(conditions).collect();
    let useless = |(number, step): (usize, &Step)| {
        let why = kinds.iter().map(|kind| Some((kind, (step.action.traits().addresses)(*kind).err()?)));
        let (kind, why) = why.collect::<Option<Vec<_>>>()?.into_iter().next()?;
        let (number, action) = (number + 1, step.action.kind().as_str());
        Some(format!(
            "step {number} {action} of rule {} of policy {} is skipped for each fault of the rule ({kind}: {why})",
            rule.name, policy.name
        ))
    };
    rule.steps.iter().enumerate().filter_map(useless).collect()
}

/// What the nodes of the faults lack.
fn of_nodes(policy: &Policy, rule: &Rule, sick: &[(&str, &NodeView)]) -> Vec<String> {
    let asked = &rule.matching;
    let without = |asks: bool, field: &str, key: &str, lacks: fn(&NodeView) -> bool| {
        let mut lacking = sick.iter().filter(|(_, view)| asks && lacks(view));
        let (first, more) = (lacking.next()?.0, lacking.count());
        let all = match more {
            0 => format!("node {first} has"),
            more => format!("{} nodes have, such as {first},", more + 1),
        };
        Some(blocked(policy, rule, field, &format!("{all} no {key} in the timeline")))
    };
    let runtimes =
        without(!asked.runtimes.is_empty(), "runtimes", "runtimeVersion", |view| view.runtime_version.is_none());
    let kubelets =
        without(!asked.kubelets.is_empty(), "kubeletVersions", "kubeletVersion", |view| view.kubelet_version.is_none());
    runtimes.into_iter().chain(kubelets).collect()
}

/// What the pods of the faults lack.
fn of_pods(policy: &Policy, rule: &Rule, coming: &[&Coming<'_>]) -> Option<String> {
    let is_unknown = |one: &&&Coming<'_>| one.fault.kind.is_of_a_pod() && pod_like(one.fault).is_none();
    let mut unknown = coming.iter().filter(|_| rule.matching.asks_of_pods()).filter(is_unknown);
    let (first, more) = (&unknown.next()?.place, unknown.count());
    let all = match more {
        0 => format!("the fault of {first} has"),
        more => format!("{} faults have, such as that of {first},", more + 1),
    };
    Some(blocked(policy, rule, rule.matching.field_of_pod(), &format!("{all} neither podLabels nor podOwner")))
}

fn blocked(policy: &Policy, rule: &Rule, field: &str, lack: &str) -> String {
    format!(
        "rule {} of policy {} asks for match.{field}, and {lack}: faults that it may apply to are blocked",
        rule.name, policy.name
    )
}
