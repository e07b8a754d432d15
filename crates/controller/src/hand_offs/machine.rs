//! The Machine of a node. Remediators of infrastructure providers (Metal3, say) learn from the owner of their object which
//! machine is meant, and do nothing without one.
//!
//! A Node names its Machine in annotations, which its own kubelet may write. So the controller accepts only a Machine that also
//! names this Node. Otherwise one node could cause the reboot of another.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::api::DynamicObject;
use kube::core::ApiResource;
use serde_json::Value;

use super::{kind, may, no_right, objects};
use crate::calls::{CallError, Calls, bounded_opt};
use nrh_core::hand_off::TemplateRef;
use nrh_core::text::{bounded, is_subdomain};

/// The kind of the owner, in whichever group.
const MACHINE: &str = "Machine";
/// Group and versions of Cluster API's Machines, the newest first.
const CLUSTER_API: &[&str] = &["cluster.x-k8s.io/v1beta2", "cluster.x-k8s.io/v1beta1"];
/// Name of a Node's Machine of Cluster API, and its namespace.
const CLUSTER_API_MARKS: [&str; 2] = ["cluster.x-k8s.io/machine", "cluster.x-k8s.io/cluster-namespace"];
/// Group and version of the Machines of `OpenShift`.
const MACHINE_API: &[&str] = &["machine.openshift.io/v1beta1"];
/// Namespace and name of a Node's Machine of `OpenShift`.
const MACHINE_API_MARK: &str = "machine.openshift.io/machine";
/// Annotations by which people exclude a Machine of Cluster API from every remediation.
const OPT_OUTS: [&str; 2] = ["cluster.x-k8s.io/paused", "cluster.x-k8s.io/skip-remediation"];
/// Maximum length of a name that is repeated to people.
const MAX_NAME: usize = 253;

/// A Machine that a Node names, which proves nothing yet.
#[derive(Debug, PartialEq, Eq)]
struct Named {
    versions: &'static [&'static str],
    namespace: String,
    name: String,
}

/// The Machine that a Node names.
fn named(node: &Node) -> Option<Named> {
    let mark = |key: &str| node.annotations().get(key).map(String::as_str);
    let [name, namespace] = CLUSTER_API_MARKS.map(mark);
    let (versions, namespace, name) = if let (Some(namespace), Some(name)) = (namespace, name) {
        (CLUSTER_API, namespace, name)
    } else {
        let (namespace, name) = mark(MACHINE_API_MARK)?.split_once('/')?;
        (MACHINE_API, namespace, name)
    };
    // The name becomes part of a path.
    is_subdomain(name).then(|| Named { versions, namespace: bounded(namespace, MAX_NAME), name: name.to_owned() })
}

/// The node's Machine as an owner of objects in that namespace; otherwise why there is none. Then nothing may be created.
pub async fn owner(calls: &Calls, node: &Node, namespace: &str) -> Result<Result<OwnerReference, String>, CallError> {
    let of_node = node.name_any();
    let Some(named) = named(node) else {
        let [name, in_namespace] = CLUSTER_API_MARKS;
        return Ok(Err(format!(
            "Node {of_node} names no Machine that its remediator could work on: expected the annotations {name} and {in_namespace}, \
             or {MACHINE_API_MARK}"
        )));
    };
    let what = format!("Machine {}/{} of Node {of_node}", named.namespace, named.name);
    // The garbage collector looks for an owner in the namespace of the object that it owns.
    if named.namespace != namespace {
        return Ok(Err(format!("{what}: expected it in namespace {namespace}, that of the template")));
    }
    let Some(kind) = first_served(calls, named.versions).await? else {
        return Ok(Err(format!("{what}: expected the kind {MACHINE} in {}, found none", named.versions.join(" or "))));
    };
    let api = objects(calls, &kind, namespace);
    let Some(machine) = bounded_opt(|| format!("reading {what}"), api.get(&named.name)).await? else {
        return Ok(Err(format!("{what} is not there")));
    };
    Ok(believed(&machine, &kind, node).map_err(|why| format!("{what} {why}")))
}

/// The Machine as an owner, if it also names the Node and nobody has excluded it from remediation.
fn believed(machine: &DynamicObject, kind: &ApiResource, node: &Node) -> Result<OwnerReference, String> {
    if machine.metadata.deletion_timestamp.is_some() {
        return Err("is being deleted".to_owned());
    }
    let says = |key: &str| machine.data.pointer(&format!("/status/nodeRef/{key}")).and_then(Value::as_str);
    let is_its = says("name") == Some(node.name_any().as_str());
    // Newer versions give no uid. If Machines of several clusters exist side by side, several Nodes may have the same name. Then
    // the provider id must match, which no kubelet can change once it is set.
    let uid = says("uid").filter(|uid| !uid.is_empty());
    let provider = machine.data.pointer("/spec/providerID").and_then(Value::as_str).filter(|id| !id.is_empty());
    let of_node = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
    let is_this =
        uid.map_or_else(|| provider.is_some() && provider == of_node, |uid| Some(uid) == node.metadata.uid.as_deref());
    if !is_its || (uid.is_some() && !is_this) {
        let found = bounded(says("name").unwrap_or("none"), MAX_NAME);
        return Err(format!("names another node in status.nodeRef: expected this one, found {found}"));
    }
    if !is_this {
        let [found, expected] = [provider, of_node].map(|id| bounded(id.unwrap_or("none"), MAX_NAME));
        return Err(format!(
            "has no uid in status.nodeRef, so expected the Node's spec.providerID ({expected}), found {found}"
        ));
    }
    if let Some(mark) = OPT_OUTS.into_iter().find(|mark| machine.annotations().contains_key(*mark)) {
        return Err(format!("has the annotation {mark}: a person or a tool has excluded it"));
    }
    let uid = machine.uid().ok_or("has no uid")?;
    Ok(OwnerReference {
        api_version: kind.api_version.clone(),
        kind: MACHINE.to_owned(),
        name: machine.name_any(),
        uid,
        ..OwnerReference::default()
    })
}

async fn first_served(calls: &Calls, versions: &[&str]) -> Result<Option<ApiResource>, CallError> {
    for version in versions {
        if let Some(found) = kind(calls, version, MACHINE).await? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// What the controller lacks to find the Machines of nodes that are handed off by this template.
pub async fn lacking(calls: &Calls, template: &TemplateRef) -> Result<Vec<String>, CallError> {
    let mut unread = None;
    for versions in [CLUSTER_API, MACHINE_API] {
        let Some(kind) = first_served(calls, versions).await? else { continue };
        if may(calls, &kind, "get", &template.namespace, None).await? {
            return Ok(Vec::new());
        }
        unread.get_or_insert(kind);
    }
    let lack = match unread {
        Some(kind) => no_right(template, &kind, &["get"]),
        None => format!(
            "handOff to {template}: its remediator works on Machines; expected the kind {MACHINE} of {} or {}, found none",
            CLUSTER_API.join(", "),
            MACHINE_API.join(", ")
        ),
    };
    Ok(vec![lack])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(annotations: &Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "w1", "uid": "n1", "annotations": annotations}})).unwrap()
    }

    #[test]
    fn a_node_names_its_machine_in_either_way_and_no_path() {
        let of = |annotations: Value| named(&node(&annotations)).map(|n| (n.versions, n.namespace, n.name));
        let [name, namespace] = CLUSTER_API_MARKS;
        let metal = Some((CLUSTER_API, "metal".to_owned(), "m-1".to_owned()));
        assert_eq!(of(json!({name: "m-1", namespace: "metal"})), metal);
        assert_eq!(of(json!({name: "m-1", namespace: "metal", MACHINE_API_MARK: "o/m-2"})), metal);
        let other = Some((MACHINE_API, "o".to_owned(), "m-2".to_owned()));
        assert_eq!(of(json!({name: "m-1", MACHINE_API_MARK: "o/m-2"})), other, "a name without a namespace is none");
        for nonsense in [json!({}), json!({name: "m-1"}), json!({MACHINE_API_MARK: "m-2"})] {
            assert_eq!(of(nonsense.clone()), None, "{nonsense}");
        }
        for hostile in ["", "../secrets/x", "m/1", "a".repeat(300).as_str()] {
            assert_eq!(of(json!({name: hostile, namespace: "metal"})), None, "{hostile}");
        }
    }

    #[test]
    fn only_a_machine_that_names_the_node_in_turn_is_its_machine() {
        let kind = ApiResource {
            group: "cluster.x-k8s.io".into(),
            version: "v1beta1".into(),
            api_version: "cluster.x-k8s.io/v1beta1".into(),
            kind: MACHINE.into(),
            plural: "machines".into(),
        };
        let mut node = node(&json!({}));
        node.spec = serde_json::from_value(json!({"providerID": "metal3://m/1"})).unwrap();
        let of = |metadata: Value, status: Value| {
            let mut object = json!({"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "metadata": {"name": "m-1", "uid": "u"}});
            object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
            object["spec"] = json!({"providerID": metadata["id"].as_str().unwrap_or("metal3://m/1")});
            object["status"] = status;
            believed(&serde_json::from_value(object).unwrap(), &kind, &node)
        };
        let owner = of(json!({}), json!({"nodeRef": {"name": "w1"}})).unwrap();
        let is = (owner.api_version.as_str(), owner.kind.as_str(), owner.name.as_str(), owner.uid.as_str());
        assert_eq!(is, ("cluster.x-k8s.io/v1beta1", "Machine", "m-1", "u"));
        assert!(of(json!({}), json!({"nodeRef": {"name": "w1", "uid": "n1"}})).is_ok());
        let why = |metadata: Value, status: Value| of(metadata, status).unwrap_err();
        assert!(why(json!({}), json!({"nodeRef": {"name": "w2"}})).ends_with("found w2"));
        assert!(why(json!({}), json!({"nodeRef": {"name": "w1", "uid": "n0"}})).contains("another node"));
        assert!(why(json!({}), json!({})).ends_with("found none"));
        // Another cluster's node may have the same name.
        let other = why(json!({"id": "metal3://m/2"}), json!({"nodeRef": {"name": "w1"}}));
        assert!(other.ends_with("expected the Node's spec.providerID (metal3://m/1), found metal3://m/2"), "{other}");
        assert!(why(json!({"id": ""}), json!({"nodeRef": {"name": "w1"}})).ends_with("found none"));
        for mark in OPT_OUTS {
            let left_alone = why(json!({"annotations": {mark: ""}}), json!({"nodeRef": {"name": "w1"}}));
            assert!(left_alone.contains(mark), "{left_alone}");
        }
        let going = json!({"deletionTimestamp": "2025-01-01T00:00:00Z"});
        assert_eq!(why(going, json!({"nodeRef": {"name": "w1"}})), "is being deleted");
    }
}
