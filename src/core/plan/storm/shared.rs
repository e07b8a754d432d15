//! What sick nodes have in common that most nodes have not: a version, an image, a pool.

use std::collections::BTreeMap;

use crate::core::snapshot::NodeView;

/// The labels by which providers and autoscalers name the pool of a node.
const POOLS: [&str; 4] = [
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "karpenter.sh/nodepool",
    "kubernetes.azure.com/agentpool",
];

/// One thing that nodes may have in common: what it is called, and how a node has it.
type Trait = (&'static str, for<'n> fn(&'n NodeView) -> Option<&'n str>);

/// All of them, in the order in which they are told: an image brings its versions with it, and a pool its image.
const TRAITS: [Trait; 4] = [
    ("kubelet", |node| node.kubelet_version.as_deref()),
    ("runtime", |node| node.runtime_version.as_deref()),
    ("image", |node| node.os_image.as_deref()),
    ("pool", |node| POOLS.iter().find_map(|label| node.labels.get(*label)).map(String::as_str)),
];

/// What nine of ten of the sick have, and at most half of all nodes, in words, if there is such a thing.
pub(super) fn shared(sick: &[&NodeView], all: &[&NodeView]) -> Option<String> {
    TRAITS.iter().find_map(|(what, of)| {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for value in sick.iter().filter_map(|node| of(node)) {
            *counts.entry(value).or_default() += 1;
        }
        let (value, having) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        if having * 10 < sick.len() * 9 {
            return None;
        }
        let of_all = all.iter().filter(|node| of(node) == Some(value)).count();
        let is_of_few = of_all * 2 <= all.len();
        is_of_few
            .then(|| format!("{having} of the {} have {what} {value}, which {of_all} of all nodes have", sick.len()))
    })
}
