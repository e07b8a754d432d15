//! What sick nodes have in common that most nodes have not: a version, an image, a pool.

use std::collections::BTreeMap;
use std::fmt;

use crate::snapshot::NodeView;

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

/// What four of five of the sick have, and at most half of all nodes.
#[derive(Clone, Debug)]
pub(super) struct Common {
    what: &'static str,
    of: for<'n> fn(&'n NodeView) -> Option<&'n str>,
    value: String,
    having: usize,
    affected: usize,
    of_all: usize,
}

impl Common {
    /// How many of the sick have it.
    pub fn having(&self) -> u32 {
        u32::try_from(self.having).unwrap_or(u32::MAX)
    }

    /// Whether the node has it, too.
    pub fn is_of(&self, node: &NodeView) -> bool {
        (self.of)(node) == Some(self.value.as_str())
    }
}

impl fmt::Display for Common {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, value, having, affected, of_all, .. } = self;
        write!(f, "{having} of the {affected} have {what} {value}, which {of_all} of all nodes have")
    }
}

/// Such a thing, if there is one.
pub(super) fn shared(affected: &[&NodeView], all: &[&NodeView]) -> Option<Common> {
    TRAITS.iter().find_map(|&(what, of)| {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for value in affected.iter().filter_map(|node| of(node)) {
            *counts.entry(value).or_default() += 1;
        }
        let (value, having) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        if having * 5 < affected.len() * 4 {
            return None;
        }
        let of_all = all.iter().filter(|node| of(node) == Some(value)).count();
        let is_of_few = of_all * 2 <= all.len();
        is_of_few.then(|| Common { what, of, value: value.to_owned(), having, affected: affected.len(), of_all })
    })
}
