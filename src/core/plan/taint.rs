//! Taints: when that of an episode is taken back, and what it means that it is gone.
//!
//! A taint lasts as long as its episode, and no longer: where a node is to be kept from pods after the end of the ladder, that is
//! what a cordon with `keepFor` is for. Only one episode at a time puts a taint on a node, so none is ever handed on.

use super::evidence::NodeFacts;
use super::{Ctx, Effect, ending};
use crate::core::episode::{Episode, since};

/// Takes the taint back, if one is owed. None where there is nothing of ours on the node.
pub(super) fn take_back(ctx: Ctx<'_>, facts: &NodeFacts<'_>, episode: &mut Episode) -> Option<Effect> {
    if !episode.undo.owes_taint() {
        return None;
    }
    let same_node = facts.view.filter(|view| view.uid == episode.node_uid);
    match same_node {
        Some(view) if view.tainted_by.as_deref().is_none_or(|mark| mark == episode.name) => {
            Some(Effect::Untaint { episode: episode.name.clone(), node: episode.node.clone() })
        }
        // Another node, or somebody else's mark: nothing of ours is left there.
        _ => {
            episode.undo.untainted_at = Some(ctx.snapshot.now);
            None
        }
    }
}

/// Whether somebody else took the taint off the node. Our mark without it is a sure sign; a node without either only after the
/// time that a cache may be behind.
pub(super) fn was_removed(ctx: Ctx<'_>, facts: &NodeFacts<'_>, episode: &Episode) -> bool {
    let Some(view) = facts.view else { return false };
    // With nothing left to do it was to be taken back anyway: by us, perhaps, and only the record of it is missing.
    if !episode.undo.owes_taint() || view.tainted || !episode.has_work() {
        return false;
    }
    let Some(acted_at) = episode.tainted_at() else { return false };
    match view.tainted_by.as_deref() {
        Some(mark) => mark == episode.name,
        None => since(ctx.snapshot.now, acted_at) >= ctx.settings.cache_lag,
    }
}

/// A mark that no open episode stands behind.
pub(super) fn stray(ctx: Ctx<'_>, facts: &NodeFacts<'_>, is_slot: impl Fn(&str) -> bool) -> Option<Effect> {
    let view = facts.view?;
    let mark = view.tainted_by.as_deref()?;
    let is_stray = ending::is_stray(ctx, view, mark, is_slot);
    is_stray.then(|| Effect::Untaint { episode: mark.to_owned(), node: facts.name.to_owned() })
}
