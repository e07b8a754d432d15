//! When the runtime last created something for a pod: the sign that a kubelet works on it.

use std::time::Duration;

use jiff::Timestamp;

use super::labels::{LABEL_UID, MAX_UID};
use super::messages::{Container, Sandbox};
use super::wire::{Item, Listed, size_of_text};
use super::{Cri, CriError, LIST_CONTAINERS, LIST_SANDBOXES};
use nrh_core::text::bounded;

/// When an object was created, and for which pod; `R` is its kind.
struct Made<R> {
    pod_uid: String,
    /// Nanoseconds since 1970.
    at: i64,
    what: std::marker::PhantomData<fn(R)>,
}

impl<R> Made<R> {
    fn new(pod_uid: &str, at: i64) -> Self {
        Self { pod_uid: bounded(pod_uid, MAX_UID), at, what: std::marker::PhantomData }
    }

    const fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_text(self.pod_uid.as_str())
    }
}

impl Item for Made<Container> {
    type Raw = Container;

    fn of(raw: Container) -> Self {
        Self::new(raw.labels.get(LABEL_UID).map(String::as_str).unwrap_or_default(), raw.created_at)
    }

    fn size(&self) -> usize {
        self.bytes()
    }
}

impl Item for Made<Sandbox> {
    type Raw = Sandbox;

    fn of(raw: Sandbox) -> Self {
        Self::new(&raw.metadata.unwrap_or_default().uid, raw.created_at)
    }

    fn size(&self) -> usize {
        self.bytes()
    }
}

impl Cri {
    /// When the newest sandbox or container of the pod with this uid was created; `None` when there is none.
    pub async fn last_created(&self, pod_uid: &str, deadline: Duration) -> Result<Option<Timestamp>, CriError> {
        let containers: Listed<Made<Container>> = self.list(LIST_CONTAINERS, deadline).await?;
        let sandboxes: Listed<Made<Sandbox>> = self.list(LIST_SANDBOXES, deadline).await?;
        let of_containers = containers.items.iter().filter(|made| made.pod_uid == pod_uid).map(|made| made.at);
        let of_sandboxes = sandboxes.items.iter().filter(|made| made.pod_uid == pod_uid).map(|made| made.at);
        let newest = of_containers.chain(of_sandboxes).max();
        Ok(newest.and_then(|nanos| Timestamp::from_nanosecond(nanos.into()).ok()))
    }
}
