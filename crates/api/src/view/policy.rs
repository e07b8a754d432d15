//! The policies and what applies to all of them, as a decision reads them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nrh_core::policy::{Mode, Policy};
use nrh_core::snapshot::Snapshot;

use super::View;
use super::guard::UnreadableObject;
use crate::policy::RemediationPolicySpec;
use crate::{RemediationConfig, RemediationPolicy, Suspend, convert};

impl View for RemediationPolicy {
    fn store(&self, name: &str, snapshot: &mut Snapshot) -> bool {
        put(name, &self.metadata, convert::policy(self).ok(), Some(&self.spec), snapshot)
    }

    fn store_unreadable(bad: &UnreadableObject, name: &str, snapshot: &mut Snapshot) -> bool {
        put(name, &bad.metadata, None, None, snapshot)
    }

    fn remove(name: &str, snapshot: &mut Snapshot) -> bool {
        let known = snapshot.policies.len();
        snapshot.policies.retain(|policy| policy.name != name);
        snapshot.unusable_policies.remove(name) || snapshot.policies.len() < known
    }

    fn errors(&self) -> Vec<String> {
        convert::policy(self).err().map(|invalid| invalid.0).unwrap_or_default()
    }
}

/// Stores a policy, in the order of names. Where it is not valid, its last valid version stays: an editing mistake must not end a
/// running remediation, nor give the faults of the policy to another policy.
fn put(
    name: &str,
    meta: &ObjectMeta,
    valid: Option<Policy>,
    spec: Option<&RemediationPolicySpec>,
    snapshot: &mut Snapshot,
) -> bool {
    let place = snapshot.policies.binary_search_by(|known| known.name.as_str().cmp(name));
    let known = place.ok().map(|place| snapshot.policies.remove(place));
    let last = known.as_ref().filter(|known| meta.uid.as_ref() == Some(&known.uid));
    let policy = valid.or_else(|| Some(broken(last?, spec)));
    let was_unusable = snapshot.unusable_policies.remove(name);
    let changed = known != policy || was_unusable != policy.is_none();
    let (Ok(place) | Err(place)) = place;
    match policy {
        Some(policy) => snapshot.policies.insert(place, policy),
        None => drop(snapshot.unusable_policies.insert(name.to_owned())),
    }
    changed
}

/// The last valid version of a policy that is not valid any more. A suspension or a mode without actions applies at once,
/// wherever it can be read.
fn broken(last: &Policy, spec: Option<&RemediationPolicySpec>) -> Policy {
    Policy {
        is_broken: true,
        suspend: last.suspend || spec.is_some_and(|spec| spec.suspend),
        mode: spec.map_or(last.mode, |spec| if spec.mode == Mode::Enforce { last.mode } else { spec.mode }),
        ..last.clone()
    }
}

/// The API server admits only one.
impl View for RemediationConfig {
    fn store(&self, _name: &str, snapshot: &mut Snapshot) -> bool {
        suspend(self.suspended_by_text(), snapshot)
    }

    fn store_unreadable(bad: &UnreadableObject, _name: &str, snapshot: &mut Snapshot) -> bool {
        suspend(Some(format!("it cannot be read: {}", bad.why)), snapshot)
    }

    fn remove(_name: &str, snapshot: &mut Snapshot) -> bool {
        suspend(None, snapshot)
    }
}

fn suspend(by: Option<String>, snapshot: &mut Snapshot) -> bool {
    let was = std::mem::replace(&mut snapshot.suspended, by);
    was != snapshot.suspended
}
