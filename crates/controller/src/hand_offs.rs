//! Remediators' kinds and objects, as the API server shows them. The controller reads them on demand, while a node is handed off,
//! and never watches them. A read without an answer decides nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::authorization::v1::ResourceAttributes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResource;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject};
use kube::core::ApiResource;
use serde_json::Value;
use tokio::time::Instant;

use super::cache::State;
use super::calls::{CallError, Calls, bounded_opt};
use super::handles::Handles;
use super::permissions::is_allowed;
use nrh_api::{HAND_OFF_LABEL, OPERATION_LABEL};
use nrh_core::fault::MAX_LINE;
use nrh_core::hand_off::{HandOffView, HandedOff, TemplateRef};
use nrh_core::snapshot::TriState;
use nrh_core::text::bounded;

pub mod machine;
pub mod rights;

/// Time between two reads of the same object.
const EVERY: Duration = Duration::from_secs(10);
/// Maximum number of reads at the same time.
const AT_ONCE: usize = 4;

/// Writes the objects of a kind in a namespace.
pub fn objects(calls: &Calls, kind: &ApiResource, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(calls.raw_acts(), namespace, kind)
}

/// The kinds of a group and version; empty if it is not served.
async fn served(calls: &Calls, api_version: &str) -> Result<Vec<APIResource>, CallError> {
    let client = calls.raw_acts();
    let call = client.list_api_group_resources(api_version);
    let list = bounded_opt(|| format!("reading the kinds of {api_version}"), call).await?;
    Ok(list.map(|list| list.resources).unwrap_or_default())
}

/// A kind among those of its group; `None` if it does not exist, or its objects have no namespace.
fn among(served: &[APIResource], api_version: &str, kind: &str) -> Option<ApiResource> {
    let resource = served.iter().find(|one| one.kind == kind && one.namespaced && !one.name.contains('/'))?;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    Some(ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        plural: resource.name.clone(),
    })
}

/// Looks up a kind.
pub async fn kind(calls: &Calls, api_version: &str, kind: &str) -> Result<Option<ApiResource>, CallError> {
    Ok(among(&served(calls, api_version).await?, api_version, kind))
}

/// Whether the controller may do this to objects of a kind.
async fn may(
    calls: &Calls,
    kind: &ApiResource,
    verb: &str,
    namespace: &str,
    name: Option<&str>,
) -> Result<bool, CallError> {
    let attributes = ResourceAttributes {
        group: Some(kind.group.clone()),
        resource: Some(kind.plural.clone()),
        verb: Some(verb.to_owned()),
        namespace: Some(namespace.to_owned()),
        name: name.map(ToOwned::to_owned),
        ..ResourceAttributes::default()
    };
    is_allowed(calls, attributes).await
}

/// The message for a missing right.
fn no_right(template: &TemplateRef, kind: &ApiResource, verbs: &[&str]) -> String {
    format!(
        "handOff to {template}: the controller may not {} {}.{} in namespace {}: give it a ClusterRole with that right and the \
         label {HAND_OFF_LABEL}: \"true\"",
        verbs.join(", "),
        kind.plural,
        kind.group,
        template.namespace
    )
}

/// The error that the kind of an object is not served now. This says nothing about the object, which may exist under another
/// version.
pub fn not_served(handed: &HandedOff) -> CallError {
    CallError::NoAnswer {
        what: format!("reading {handed}: its kind is not served (any more) in {}", handed.api_version),
    }
}

/// The operation that an object was created for, if the controller created it.
pub fn operation_of(object: &DynamicObject) -> Option<&str> {
    object.annotations().get(OPERATION_LABEL).map(String::as_str)
}

/// Reads the objects of current hand-offs while this process leads, for as long as the process runs.
pub async fn run(Handles { calls, cache, leadership, .. }: Handles) {
    loop {
        let leads = leadership.term(Instant::now()).is_some();
        let wanted = if leads { under_way(&cache.lock()) } else { Vec::new() };
        // An answer may be as old as its request. An object that was created in between does not exist yet in it, which does not
        // mean that it is gone.
        let requested_at = Instant::now();
        let checks = wanted.into_iter().map(|handed| async {
            let view = check(&calls, &handed).await;
            (handed, view)
        });
        let checks: Vec<_> = futures::stream::iter(checks).buffer_unordered(AT_ONCE).collect().await;
        if take(&mut cache.lock(), checks, requested_at) {
            cache.wake();
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Objects of current steps, as far as they are recorded.
fn under_way(state: &State) -> Vec<HandedOff> {
    let open = state.snapshot.remediations.values().filter(|remediation| remediation.is_open());
    open.filter_map(|remediation| remediation.cleanup.hand_off_of(&remediation.current_step()?.operation_id))
        .cloned()
        .collect()
}

async fn check(calls: &Calls, handed: &HandedOff) -> Result<HandOffView, CallError> {
    let kind = kind(calls, &handed.api_version, &handed.kind).await?.ok_or_else(|| not_served(handed))?;
    let api: Api<DynamicObject> = Api::namespaced_with(calls.watches(), &handed.namespace, &kind);
    let read = bounded_opt(|| format!("reading {handed}"), api.get(&handed.name)).await?;
    Ok(read.map_or_else(HandOffView::default, |read| view(&read, handed)))
}

/// What an object reports about its hand-off.
fn view(object: &DynamicObject, handed: &HandedOff) -> HandOffView {
    let is_ours = operation_of(object) == Some(handed.operation_id.as_str());
    if !is_ours || object.metadata.deletion_timestamp.is_some() {
        return HandOffView::default();
    }
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);
    let text = |of: &Value, key: &str| of.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let condition = |kind: &str| conditions.into_iter().flatten().find(|one| text(one, "type") == kind);
    let status = |kind: &str| condition(kind).map_or(TriState::Unknown, |one| TriState::of(&text(one, "status")));
    let shown = ["Succeeded", "Processing"].into_iter().find_map(|kind| {
        let one = condition(kind)?;
        Some(format!("{kind}={} {}: {}", text(one, "status"), text(one, "reason"), text(one, "message")))
    });
    // Kinds without these conditions have a phase, if anything, such as those of Metal3. A phase that says running or waiting
    // proves nothing, because some kinds report it until their object is deleted.
    let phase = object.data.pointer("/status/phase").and_then(Value::as_str);
    let succeeded = match phase.filter(|_| condition("Succeeded").is_none()) {
        Some("Failed") => TriState::False,
        Some("Succeeded") => TriState::True,
        _ => status("Succeeded"),
    };
    let phase = || phase.map(|phase| format!("phase {phase}"));
    HandOffView {
        exists: true,
        processing: status("Processing"),
        succeeded,
        message: bounded(&shown.or_else(phase).unwrap_or_else(|| "nothing yet".to_owned()), MAX_LINE / 2),
        node_goes: status("PermanentNodeDeletionExpected") == TriState::True,
        read: Duration::ZERO,
    }
}

/// Stores the results of reads that started at `requested_at`. Returns whether the planner should know. An object that was not
/// read, or gave no answer, becomes unknown.
fn take(state: &mut State, checks: Vec<(HandedOff, Result<HandOffView, CallError>)>, requested_at: Instant) -> bool {
    let mut seen = BTreeMap::new();
    for (handed, view) in checks {
        match view {
            Ok(view) => drop(seen.insert(handed.operation_id, (view, requested_at))),
            Err(error) => tracing::warn!(object = %handed, error = error.line(), "a hand-off could not be checked"),
        }
    }
    let is_news = seen.iter().any(|(id, (view, _))| state.hand_offs.get(id).is_none_or(|(known, _)| known != view));
    state.hand_offs = seen;
    is_news
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    pub(crate) fn handed() -> HandedOff {
        HandedOff {
            api_version: "r.example/v1".into(),
            kind: "Fix".into(),
            namespace: "m".into(),
            name: "w1".into(),
            operation_id: "e-1-2".into(),
        }
    }

    fn seen(operation: &str, status: &Value) -> HandOffView {
        let object = json!({"apiVersion": "r.example/v1", "kind": "Fix", "status": status,
            "metadata": {"name": "w1", "annotations": {OPERATION_LABEL: operation}}});
        view(&serde_json::from_value(object).unwrap(), &handed())
    }

    #[test]
    fn the_conditions_of_the_contract_are_read_and_other_kinds_have_a_phase() {
        let of = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "R", "message": "m"});
        let busy = seen("e-1-2", &json!({"conditions": [of("Processing", "True"), of("Succeeded", "Unknown")]}));
        assert_eq!((busy.processing, busy.succeeded), (TriState::True, TriState::Unknown));
        let failed = seen("e-1-2", &json!({"conditions": [of("Processing", "False"), of("Succeeded", "False")]}));
        assert_eq!((failed.succeeded, failed.message.as_str()), (TriState::False, "Succeeded=False R: m"));
        let goes = seen("e-1-2", &json!({"conditions": [of("PermanentNodeDeletionExpected", "True")]}));
        assert!(goes.node_goes && !busy.node_goes);
        let metal = seen("e-1-2", &json!({"phase": "Running"}));
        assert_eq!((metal.succeeded, metal.message.as_str()), (TriState::Unknown, "phase Running"));
        for (phase, succeeded) in [
            ("Running", TriState::Unknown),
            ("Waiting", TriState::Unknown),
            ("Deleting machine", TriState::Unknown),
            ("Failed", TriState::False),
            ("Succeeded", TriState::True),
        ] {
            let metal = seen("e-1-2", &json!({"phase": phase}));
            assert_eq!((metal.processing, metal.succeeded), (TriState::Unknown, succeeded), "{phase}");
        }
        let both = seen("e-1-2", &json!({"phase": "Failed", "conditions": [of("Succeeded", "Unknown")]}));
        assert_eq!(both.succeeded, TriState::Unknown, "the condition is the contract");
        let nonsense = seen("e-1-2", &json!({"conditions": [7, {"type": "Succeeded", "status": "Perhaps"}, "x"]}));
        assert!(nonsense.exists && nonsense.succeeded == TriState::Unknown);
        let others = seen("other", &json!({"conditions": [of("Succeeded", "True")]}));
        assert_eq!(others, HandOffView::default(), "somebody else's says nothing of ours");
    }

    #[test]
    fn a_check_without_an_answer_is_no_verdict() {
        let mut state = State::default();
        let view = HandOffView { exists: true, ..HandOffView::default() };
        assert!(take(&mut state, vec![(handed(), Ok(view.clone()))], Instant::now()));
        assert!(!take(&mut state, vec![(handed(), Ok(view))], Instant::now()), "the same again is no news");
        let lost = Err(CallError::NoAnswer { what: "x".into() });
        take(&mut state, vec![(handed(), lost)], Instant::now());
        assert!(state.hand_offs.is_empty());
    }
}
