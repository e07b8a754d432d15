//! What the operator wrote, by the API server's audit log.

use jiff::Timestamp;

use crate::AuditEntry;

/// The operator's service accounts, by namespace.
const ACCOUNTS: [&str; 2] = ["system:serviceaccount:nrh-system:", "system:serviceaccount:nrh-node:"];

/// A write that an act may make.
#[derive(Debug, Clone)]
pub(super) struct Write {
    verb: &'static str,
    resource: &'static str,
    /// Beginning of the object's name; empty = any.
    name: String,
}

impl Write {
    pub(super) fn new(verb: &'static str, resource: &'static str, name: impl Into<String>) -> Self {
        Self { verb, resource, name: name.into() }
    }

    /// The Jobs of a node's steps, made and removed.
    pub(super) fn jobs(node: &str) -> [Self; 2] {
        ["create", "delete"].map(|verb| Self::new(verb, "jobs", node))
    }
}

/// What the operator writes at any time: its own objects, conditions of Nodes, leases and events; and who may ask whether it may.
fn ordinary(entry: &AuditEntry) -> bool {
    let Some(object) = &entry.object_ref else { return true };
    match object.api_group.as_str() {
        "runtimehealth.io" => match object.resource.as_str() {
            "nodecommands" => matches!(entry.verb.as_str(), "create" | "patch"),
            "noderuntimehealths" => matches!(entry.verb.as_str(), "create" | "patch" | "update"),
            "remediationpolicies" | "remediationconfigs" => object.subresource == "status",
            "noderemediations" => true,
            _ => false,
        },
        "coordination.k8s.io" => object.namespace == "nrh-system",
        "events.k8s.io" => object.resource == "events",
        "" => match object.resource.as_str() {
            "events" => true,
            // Its conditions of Nodes; admission refuses it all others.
            "nodes" => object.subresource == "status" && entry.verb == "patch",
            // A create need not name its object.
            "configmaps" => {
                object.namespace == "nrh-system" && (entry.verb == "create" || object.name.starts_with("nrh-ledger"))
            }
            _ => false,
        },
        _ => false,
    }
}

/// Writes of the operator since `since` that are neither ordinary nor on the list, one line each.
pub(super) fn foreign(log: &[AuditEntry], since: Timestamp, allowed: &[Write]) -> Vec<String> {
    log.iter()
        .filter(|entry| entry.request_received_timestamp >= since && entry.is_write())
        .filter(|entry| ACCOUNTS.iter().any(|account| entry.user.username.starts_with(account)))
        // A refused write touched nothing, but nobody should try.
        .filter(|entry| !ordinary(entry) && !allowed.iter().any(|write| fits(entry, write)))
        .map(|entry| {
            let object = entry.object_ref.clone().unwrap_or_default();
            format!(
                "{} {} {}/{} {} → {}",
                entry.user.username,
                entry.verb,
                object.resource,
                object.subresource,
                object.name,
                entry.code()
            )
        })
        .collect()
}

fn fits(entry: &AuditEntry, write: &Write) -> bool {
    let Some(object) = &entry.object_ref else { return false };
    entry.verb == write.verb
        && object.resource == write.resource
        && (object.name.is_empty() && entry.verb == "create" || object.name.starts_with(&write.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(user: &str, verb: &str, group: &str, resource: &str, name: &str) -> AuditEntry {
        serde_json::from_value(serde_json::json!({
            "auditID": "a", "stage": "ResponseComplete", "verb": verb, "user": {"username": user}, "requestURI": "/x",
            "objectRef": {"resource": resource, "apiGroup": group, "name": name}, "responseStatus": {"code": 200},
            "requestReceivedTimestamp": "2026-01-01T00:00:01Z", "stageTimestamp": "2026-01-01T00:00:01Z"
        }))
        .unwrap()
    }

    #[test]
    fn a_pod_that_is_not_on_the_list_may_not_be_deleted() {
        let controller = "system:serviceaccount:nrh-system:nrh-controller";
        let log = [
            entry(controller, "delete", "", "pods", "crash-abc"),
            entry(controller, "delete", "", "pods", "other-abc"),
            entry(controller, "patch", "runtimehealth.io", "noderuntimehealths", "real-1"),
            entry("system:admin", "delete", "", "pods", "third"),
        ];
        let found = foreign(&log, Timestamp::UNIX_EPOCH, &[Write::new("delete", "pods", "crash-")]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("other-abc"));
    }
}
