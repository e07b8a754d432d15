//! The objects of a kind, for the verbs that change one of them: one that cannot be read hides no other.

use anyhow::Context;
use kube::{Client, Resource};

use crate::api::view::guard::{BoundedStatus, Guarded, UnreadableObject};
use crate::caller::list;
use crate::terminal::complain;

/// All objects of a kind, and those that cannot be read. Each of these is named on standard error.
///
/// # Errors
/// The API server does not list them.
pub(crate) async fn read<K>(client: Client) -> anyhow::Result<(Vec<K>, Vec<UnreadableObject>)>
where
    K: BoundedStatus + Resource<DynamicType = ()>,
{
    let items = list::<K>(client).await.with_context(|| format!("cannot list {}", K::plural(&())))?;
    let (mut objects, mut unreadable) = (Vec::new(), Vec::new());
    for item in &items {
        match Guarded::read(item).0 {
            Ok(object) => objects.push(object),
            Err(bad) => {
                let name = bad.metadata.name.as_deref().unwrap_or_default();
                complain(&format!("{} {name} cannot be read: {}", K::kind(&()), bad.why));
                unreadable.push(*bad);
            }
        }
    }
    Ok((objects, unreadable))
}

#[cfg(test)]
mod tests;
