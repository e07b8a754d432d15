//! First processes of containers whose creation takes longer than usual. They live in the container's own PID namespace, where
//! no other role is proven.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Proven;
use crate::proc::role::{KUBELET_NAMESPACE, Proof};
use crate::proc::{self, RawProcess};
use nrh_core::observation::InitSeen;
use nrh_core::text::bounded;

/// Prefix of `runc`'s own process name while it changes from a process of the node to the first one of a container.
const NAME: &str = "runc:[";
/// The creation of a container takes less than this.
const YOUNG: Duration = Duration::from_secs(10);
/// Maximum distance between the first process of a container and its shim: between them are at most an OCI runtime and a
/// wrapper around it.
const MAX_ANCESTORS: usize = 3;
/// Maximum number of them in one reading.
const MAX_INITS: usize = 1024;

/// The reason why a process counts as a first process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum KnownBy {
    /// Its parent is an OCI runtime that creates a container.
    Maker,
    /// Its own name, as a child of the shim. Any process of a container can choose that name.
    Name,
}

/// The first processes below a shim of the kubelet's, and the reason why some are missing where there are too many. Those that
/// an OCI runtime creates come first; after that, no pod takes the room of another.
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
