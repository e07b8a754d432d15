//! The two lanes that ask the runtime as a whole: its version on a fresh connection, and the round of lists.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::pace::{Looker, Pace, drive};
use super::slot::{Failure, Slot};
use super::{Shared, lock};
use crate::core::observation::{ListRound, RuntimeSeen};
use crate::node::collect::lists::{ListCall, Lists};
use crate::node::cri::endpoint::{Endpoint, NamedBy};
use crate::node::cri::{Cri, CriError};

pub(super) async fn version(shared: Arc<Shared>, pace: Pace) {
    let looker = Version { shared: Arc::clone(&shared), bound: pace.bound, was_there: false };
    drive(&shared, looker, pace).await;
}

pub(super) async fn lists(shared: Arc<Shared>, pace: Pace) {
    let looker =
        ListLooker { shared: Arc::clone(&shared), bound: pace.bound, connected: None, lists: Lists::default() };
    drive(&shared, looker, pace).await;
}

/// The socket to use, or why there is none.
pub(super) fn endpoint(shared: &Shared) -> Result<Endpoint, Failure> {
    lock(&shared.endpoint).clone().ok_or_else(|| {
        Failure::Blind(
            "no runtime socket known: none named by flag, none by a running kubelet, none at a usual path".to_owned(),
        )
    })
}

struct Version {
    shared: Arc<Shared>,
    bound: Duration,
    was_there: bool,
}

impl Looker for Version {
    type Value = RuntimeSeen;
    const NAME: &'static str = "version";

    fn slot(shared: &Shared) -> &Mutex<Slot<RuntimeSeen>> {
        &shared.version
    }

    fn stored(shared: &Shared) {
        shared.aim_tasks();
    }

    async fn look(&mut self) -> Result<RuntimeSeen, Failure> {
        let endpoint = endpoint(&self.shared)?;
        let connected = Cri::connect(&endpoint.socket).await;
        // A default path that never answered is a guess of ours: nothing there means that we are blind.
        if let Err(CriError::Unreachable(reason)) = &connected
            && endpoint.named_by == NamedBy::Nobody
            && !self.was_there
        {
            return Err(Failure::Blind(format!(
                "nobody named the runtime's socket, and a usual one is dead: {reason}"
            )));
        }
        let cri = connected.map_err(unconnected)?;
        self.was_there = true;
        Ok(cri.version(self.bound).await?)
    }
}

/// A connection that is not accepted in time is an answer of its own, and nothing was left behind.
pub(super) fn unconnected(error: CriError) -> Failure {
    match error {
        CriError::Deadline(after) => Failure::Failed(format!("connection not accepted within {} s", after.as_secs())),
        other => other.into(),
    }
}

struct ListLooker {
    shared: Arc<Shared>,
    bound: Duration,
    /// Two connections: one for lists, one for direct questions, and the socket they lead to.
    connected: Option<(Endpoint, Cri, Cri)>,
    lists: Lists,
}

impl Looker for ListLooker {
    type Value = ListRound;
    const NAME: &'static str = "lists";

    fn slot(shared: &Shared) -> &Mutex<Slot<ListRound>> {
        &shared.lists
    }

    fn stored(shared: &Shared) {
        shared.aim_tasks();
    }

    async fn look(&mut self) -> Result<ListRound, Failure> {
        let endpoint = endpoint(&self.shared)?;
        let kept = self.connected.take().filter(|(to, ..)| *to == endpoint);
        let (to, lists, status) = if let Some(kept) = kept {
            kept
        } else {
            let lists = Cri::connect(&endpoint.socket).await.map_err(unconnected)?;
            let status = Cri::connect(&endpoint.socket).await.map_err(unconnected)?;
            (endpoint, lists, status)
        };
        let shared = Arc::clone(&self.shared);
        let at = move |call: ListCall| {
            *lock(&shared.list_call) = call;
            lock(&shared.lists).sent(tokio::time::Instant::now());
        };
        let result = self.lists.round(&lists, &status, self.bound, at).await;
        *lock(&self.shared.rechecks_out) = self.lists.outstanding();
        // Kept only after a whole round: a connection that erred is not trusted with the next one.
        if result.is_ok() {
            self.connected = Some((to, lists, status));
        }
        Ok(result?)
    }
}
