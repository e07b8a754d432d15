//! First processes of containers in creation. They live in the container's own PID namespace, where no other role is proven: the
//! processes above them prove theirs.

use std::collections::BTreeMap;
use std::io;

use super::{DOCKER_NAMESPACE, KUBELET_NAMESPACE, Proof, Prover};
use crate::proc::{self, RawProcess};

/// Prefix of `runc`'s own process name while it changes from a process of the node to the first one of a container.
const NAME: &str = "runc:[";
/// Maximum distance between the first process of a container and its shim or monitor: between them are at most an OCI runtime and a
/// wrapper around it.
const MAX_ANCESTORS: usize = 3;

/// The reason why a process counts as a first process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KnownBy {
    /// Its parent is an OCI runtime that creates a container.
    Maker,
    /// Its own name, as a child of the shim or the monitor. Any process of a container can choose that name.
    Name,
}

/// What is proven above a first process: a shim of one of these containerd namespaces, or a monitor of CRI-O. `proof` returns what
/// is proven of the processes around it.
pub(crate) fn first_process<'p>(
    table: &[RawProcess],
    process: &RawProcess,
    namespaces: &[&str],
    proof: impl Fn(&RawProcess) -> Option<&'p Proof>,
) -> Option<(KnownBy, &'p Proof)> {
    let above = |process: &RawProcess| proof(process).filter(|proof| proof.serves(namespaces).is_some());
    let is_maker = |process: &RawProcess| matches!(proof(process), Some(Proof::RuntimeClient { verb, .. }) if verb == "create" || verb == "run");
    let parent = proc::find(table, process.parent)?;
    let known_by = if is_maker(parent) && proof(process).is_none() {
        KnownBy::Maker
    } else if process.command.starts_with(NAME) && above(parent).is_some() {
        KnownBy::Name
    } else {
        return None;
    };
    Some((known_by, proc::ancestors(table, process, MAX_ANCESTORS).find_map(above)?))
}

impl Prover {
    /// The proof that the process is the first one of a container in creation.
    pub fn prove_init(&self, table: &[RawProcess], process: &RawProcess) -> io::Result<Option<Proof>> {
        let mut proofs = BTreeMap::new();
        for one in proc::ancestors(table, process, MAX_ANCESTORS).chain([process]) {
            if let Some(proof) = self.prove(table, one)? {
                proofs.insert(one.pid, proof);
            }
        }
        let namespaces = [KUBELET_NAMESPACE, DOCKER_NAMESPACE];
        let first = first_process(table, process, &namespaces, |one| proofs.get(&one.pid));
        Ok(first.map(|(known_by, above)| Proof::Init { known_by, above: Box::new(above.clone()) }))
    }
}
