//! First processes of containers that are being made for longer than a moment. They live in the container's own PID namespace, where
//! nothing else is proven.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Proven;
use crate::core::observation::InitSeen;
use crate::core::text::bounded;
use crate::node::proc::role::{KUBELET_NAMESPACE, Proof};
use crate::node::proc::{self, RawProcess};

/// How `runc` calls itself at its steps from a process of the node to the first one of a container.
const NAME: &str = "runc:[";
/// A container is made in less than this.
const YOUNG: Duration = Duration::from_secs(10);
/// How far the first process of a container may be from its shim: an OCI runtime and a wrapper around it are between them at most.
const MAX_ANCESTORS: usize = 3;
/// Most of them in one look.
const MAX_INITS: usize = 1024;

/// What a first process is known by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum KnownBy {
    /// Its parent, which is an OCI runtime that makes a container.
    Maker,
    /// What it calls itself, as a child of the shim. Any process of a container can call itself so.
    Name,
}

/// Those below a shim of the kubelet's, and why not all of them where there are too many. What an OCI runtime makes goes first;
/// after that no pod takes the room of another.
pub(super) fn find(
    proven: &BTreeMap<(i32, u64), Proven>,
    table: &[RawProcess],
    uptime: Duration,
) -> (Vec<InitSeen>, Option<String>) {
    let proof = |process: &RawProcess| proven.get(&(process.pid, process.start_ticks)).map(|known| &known.proof);
    let shim = |process: &RawProcess| match proof(process)? {
        Proof::Shim { id, namespace } if namespace == KUBELET_NAMESPACE => Some(bounded(id, 128)),
        _ => None,
    };
    let is_maker = |process: &RawProcess| matches!(proof(process), Some(Proof::RuntimeClient { verb, .. }) if verb == "create" || verb == "run");
    let known_by = |process: &RawProcess| {
        let parent = proc::find(table, process.parent)?;
        if is_maker(parent) && proof(process).is_none() {
            return Some(KnownBy::Maker);
        }
        (process.command.starts_with(NAME) && shim(parent).is_some()).then_some(KnownBy::Name)
    };
    let mut found: Vec<(KnownBy, InitSeen)> = table
        .iter()
        .filter(|process| !process.is_dead() && proc::age(process.start_ticks, uptime) >= YOUNG)
        .filter_map(|process| {
            let known_by = known_by(process)?;
            let init = InitSeen {
                pid: process.pid,
                start_ticks: process.start_ticks,
                age: proc::age(process.start_ticks, uptime),
                sandbox_id: proc::ancestors(table, process, MAX_ANCESTORS).find_map(shim)?,
            };
            Some((known_by, init))
        })
        .collect();
    let beyond = found.len().saturating_sub(MAX_INITS);
    if beyond > 0 {
        found.sort_by_key(|(known_by, init)| (*known_by, init.start_ticks, init.pid));
        let mut of_shim: BTreeMap<String, usize> = BTreeMap::new();
        let mut ranked: Vec<(usize, (KnownBy, InitSeen))> = Vec::with_capacity(found.len());
        for one in found {
            let rank = of_shim.entry(one.1.sandbox_id.clone()).or_default();
            *rank += usize::from(one.0 == KnownBy::Name);
            ranked.push((*rank, one));
        }
        ranked.sort_by_key(|(rank, (known_by, _))| (*known_by, *rank));
        ranked.truncate(MAX_INITS);
        found = ranked.into_iter().map(|(_, one)| one).collect();
    }
    let lack = (beyond > 0).then(|| {
        format!("{beyond} processes that may be the first of a container are not checked, beyond {MAX_INITS}")
    });
    (found.into_iter().map(|(_, init)| init).collect(), lack)
}
