//! First processes of containers whose creation takes longer than usual.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Proven;
use crate::proc::role::init::{KnownBy, first_process};
use crate::proc::{AwakeClock, RawProcess};
use nrh_core::observation::InitSeen;
use nrh_core::text::bounded;

/// The creation of a container takes less than this.
const YOUNG: Duration = Duration::from_secs(10);
/// Maximum number of them in one reading.
const MAX_INITS: usize = 1024;

/// The first processes below a shim of this containerd namespace or below a monitor of CRI-O, and the reason why some are missing
/// where there are too many. Those that an OCI runtime creates come first; after that, no pod takes the room of another.
pub(super) fn find(
    proven: &BTreeMap<(i32, u64), Proven>,
    namespace: &str,
    table: &[RawProcess],
    clock: &AwakeClock,
) -> (Vec<InitSeen>, Option<String>) {
    let proof = |process: &RawProcess| proven.get(&(process.pid, process.start_ticks)).map(|known| &known.proof);
    let mut found: Vec<(KnownBy, InitSeen)> = table
        .iter()
        .filter(|process| !process.is_dead() && clock.age(process.start_ticks) >= YOUNG)
        .filter_map(|process| {
            let (known_by, above) = first_process(table, process, &[namespace], proof)?;
            let init = InitSeen {
                pid: process.pid,
                start_ticks: process.start_ticks,
                age: clock.age(process.start_ticks),
                serves: bounded(above.serves(&[namespace])?, 128),
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
            let rank = of_shim.entry(one.1.serves.clone()).or_default();
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
