//! Hand-offs as calls. The controller creates the remediator's object, notifies the remediator that its time is over, and deletes
//! the object, but only if the object is its own.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PropagationPolicy};
use kube::core::ApiResource;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::preflight::PreflightState;
use super::{Applier, ApplyError};
use crate::calls::{CallError, bounded, bounded_opt, delete_params, our_label, patch_params, post_params};
use crate::hand_offs::rights::version;
use crate::hand_offs::{kind, machine, not_served, objects, operation_of};
use nrh_api::{
    NODE_LABEL, NODE_NAME_ANNOTATION, NodeRemediation, OPERATION_LABEL, REMEDIATION_ANNOTATION, TIMED_OUT_ANNOTATION,
};
use nrh_core::action::HandOff;
use nrh_core::command::OutcomeReason;
use nrh_core::fault::MAX_LINE;
use nrh_core::hand_off::{HandedOff, TemplateRef};
use nrh_core::remediation::{self, ActionResult, Remediation};
use nrh_core::text::{bounded as cut, short_name};

impl Applier {
    /// Creates the object of a reserved step. If an object of this operation exists, it is from before a crash.
    pub(super) async fn hand_off(
        &self,
        operation: &str,
        params: &HandOff,
        live: &PreflightState,
    ) -> Result<ActionResult, ApplyError> {
        let template = &params.remediation_template;
        let handed = HandedOff::new(template, &live.remediation.node, operation);
        let failed = |message: String| Ok(ActionResult::Failed { message });
        let missing = |kind: &str| {
            failed(format!(
                "{} has no namespaced kind {kind} here: is its remediator installed? Nothing was made",
                template.api_version
            ))
        };
        let Some(of_template) = kind(&self.calls, &template.api_version, &template.kind).await? else {
            return missing(&template.kind);
        };
        let Some(of_object) = kind(&self.calls, &handed.api_version, &handed.kind).await? else {
            return missing(&handed.kind);
        };
        let api = objects(&self.calls, &of_object, &handed.namespace);
        if let Some(existing) = bounded_opt(|| format!("reading {handed}"), api.get(&handed.name)).await? {
            return self.met(&api, &existing, &handed).await;
        }
        let templates = objects(&self.calls, &of_template, &template.namespace);
        let read = bounded_opt(|| format!("reading {template}"), templates.get(&template.name)).await?;
        let Some(read) = read else { return failed(format!("{template} is not there: nothing was made of it")) };
        if let Some(message) = is_another(&read, template, operation, &live.remediation) {
            return failed(message);
        }
        if !read.data.pointer("/spec/template").is_some_and(Value::is_object) {
            return failed(format!("{template}: expected spec.template, found none: nothing was made of it"));
        }
        let machine = if template.needs_machine() {
            match machine::owner(&self.calls, &live.node, &template.namespace).await? {
                Ok(owner) => Some(owner),
                Err(why) => return failed(cut(&format!("{why}: nothing was made of {template}"), MAX_LINE)),
            }
        } else {
            None
        };
        // The reads may have taken longer than the term lasts. Nothing else would refuse an object that is created after another
        // leader has deleted this one.
        self.must_lead()?;
        self.not_suspended()?;
        let object = object(&handed, &live.remediation, &of_object, &read, machine);
        match bounded(|| format!("creating {handed}"), api.create(&post_params(), &object)).await {
            Ok(_) => Ok(ActionResult::Started),
            Err(error) if error.is_conflict() => {
                let existing = bounded(|| format!("reading {handed}"), api.get(&handed.name)).await?;
                self.met(&api, &existing, &handed).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Handles an existing object of that name. The object of a remediation that has finished with it is deleted first, because a
    /// Machine that also owns it would keep it from being garbage-collected.
    async fn met(
        &self,
        api: &Api<DynamicObject>,
        existing: &DynamicObject,
        handed: &HandedOff,
    ) -> Result<ActionResult, ApplyError> {
        let Some((remediation, operation)) = stranded(existing, handed) else { return not_made(existing, handed) };
        if !self.has_done_with(remediation, operation, handed) && !self.is_gone(remediation).await {
            return not_made(existing, handed);
        }
        self.must_lead()?;
        let params =
            DeleteParams { propagation_policy: Some(PropagationPolicy::Background), ..delete_params(existing.uid()) };
        bounded_opt(|| format!("deleting {handed} of before"), async { api.delete(&handed.name, &params).await })
            .await?;
        tracing::info!(object = %handed, "what an earlier remediation has left behind was deleted");
        Err(ApplyError::NotNow(format!("{handed}, left behind by an earlier remediation, was to be deleted first")))
    }

    /// Whether a remediation is finished and its deletion of the object is no longer pending.
    fn has_done_with(&self, remediation: &str, operation: &str, handed: &HandedOff) -> bool {
        let known = self.known(remediation);
        let Some(remediation) = known.filter(|remediation| remediation.phase.is_final()) else { return false };
        let is_it = |of: &HandedOff| of.operation_id == operation && of.name == handed.name;
        let mut all = remediation.cleanup.0.iter();
        all.any(|record| record.removed_at.is_some() && record.marker.hand_off().is_some_and(is_it))
    }

    /// Notifies a remediator that its time is over, and ends the attempt. An object that may not be notified, or does not exist,
    /// is left alone.
    pub(super) async fn time_out_hand_off(
        &self,
        name: &str,
        handed: &HandedOff,
        at: Timestamp,
        why: &str,
    ) -> Result<(), ApplyError> {
        let outcome = match self.annotate_timeout(handed, at).await {
            Ok(true) => format!("{handed} was notified"),
            Ok(false) => format!("{handed} is not there any more"),
            Err(error) if error.is_refusal() => format!("its remediator could not be notified: {}", error.line()),
            Err(error) => return Err(error.into()),
        };
        let message = format!("{why}; {outcome}");
        tracing::info!(remediation = name, object = %handed, operation = handed.operation_id, message, "hand-off timed out");
        let Some(remediation) = self.known(name) else { return Ok(()) };
        let next = remediation::timed_out(&remediation, &handed.operation_id, &message, self.clock.now());
        self.write_remediation(&next).await
    }

    /// Sets the annotation that the time is over. Returns `false` if the object is gone, or not the remediation's.
    async fn annotate_timeout(&self, handed: &HandedOff, at: Timestamp) -> Result<bool, CallError> {
        let Some((api, existing)) = self.ours(handed).await? else { return Ok(false) };
        let at = nrh_core::moment::clock(at);
        // An earlier leader set it, and died before it could record that.
        if existing.annotations().get(TIMED_OUT_ANNOTATION) == Some(&at) {
            return Ok(true);
        }
        let patch = json!({"metadata": {"uid": existing.uid(), "annotations": {TIMED_OUT_ANNOTATION: at}}});
        let what = || format!("telling {handed} that its time is over");
        let notified = bounded_opt(what, api.patch(&handed.name, &patch_params(), &Patch::Merge(&patch))).await?;
        Ok(notified.is_some())
    }

    /// Deletes the object, if it is still the remediation's.
    pub(super) async fn delete_hand_off(&self, name: &str, handed: &HandedOff) -> Result<(), CallError> {
        let Some((api, existing)) = self.ours(handed).await? else { return Ok(()) };
        let params = delete_params(existing.uid());
        match bounded(|| format!("deleting {handed}"), api.delete(&handed.name, &params)).await {
            Ok(_) => tracing::info!(remediation = name, object = %handed, "hand-off taken back"),
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The object, if it exists and was created in this remediation.
    async fn ours(&self, handed: &HandedOff) -> Result<Option<(Api<DynamicObject>, DynamicObject)>, CallError> {
        let kind = kind(&self.calls, &handed.api_version, &handed.kind).await?.ok_or_else(|| not_served(handed))?;
        let api = objects(&self.calls, &kind, &handed.namespace);
        let read = bounded_opt(|| format!("reading {handed}"), api.get(&handed.name)).await?;
        let is_ours = |read: &DynamicObject| operation_of(read).is_some_and(|id| handed.is_of_remediation(id));
        Ok(read.filter(is_ours).map(|read| (api, read)))
    }
}

/// Why nothing is created from a template, if it is not the one that a person approved. A person who may edit it need not be one
/// who may approve it.
fn is_another(
    read: &DynamicObject,
    template: &TemplateRef,
    operation: &str,
    remediation: &Remediation,
) -> Option<String> {
    let step = remediation.attempt(operation)?;
    let by = step.approved_by.as_ref()?;
    let (is, expected) = (version(read), step.template_version.as_deref().unwrap_or("unknown"));
    (is != expected).then(|| {
        let message = format!(
            "{template} has changed since {by} was asked: expected uid and generation {expected}, found {is}: nothing was made of it"
        );
        cut(&message, MAX_LINE)
    })
}

/// The remediation, and its operation, for which an object was created earlier, by the object's own annotations.
fn stranded<'a>(existing: &'a DynamicObject, handed: &HandedOff) -> Option<(&'a str, &'a str)> {
    let operation = operation_of(existing)?;
    let is_left = existing.metadata.deletion_timestamp.is_none() && operation != handed.operation_id;
    Some((existing.annotations().get(REMEDIATION_ANNOTATION)?.as_str(), operation)).filter(|_| is_left)
}

/// The result for a step whose object name is already taken.
fn not_made(existing: &DynamicObject, handed: &HandedOff) -> Result<ActionResult, ApplyError> {
    let whose = operation_of(existing);
    if existing.metadata.deletion_timestamp.is_some() {
        return Err(ApplyError::NotNow(format!("{handed} of before is still being deleted")));
    }
    if whose == Some(handed.operation_id.as_str()) {
        return Ok(ActionResult::Started);
    }
    let message = format!("{handed} already exists, {}: another tool handles the node", owner(existing));
    Ok(ActionResult::Refused { reason: OutcomeReason::Protected, message: cut(&message, MAX_LINE) })
}

/// The owner of an object, as far as the object says.
fn owner(existing: &DynamicObject) -> String {
    if let Some(remediation) = existing.annotations().get(REMEDIATION_ANNOTATION) {
        return format!("of remediation {}", cut(remediation, 253));
    }
    if let Some(owner) = existing.owner_references().first() {
        return format!("of {} {}", cut(&owner.kind, 63), cut(&owner.name, 253));
    }
    let manager = existing.managed_fields().first().and_then(|fields| fields.manager.as_deref());
    manager.map_or_else(|| "without an owner".to_owned(), |manager| format!("made by {}", cut(manager, 128)))
}

/// The object as created from its template. If its remediator needs that, the node's Machine owns it as well.
fn object(
    handed: &HandedOff,
    remediation: &Remediation,
    kind: &ApiResource,
    template: &DynamicObject,
    machine: Option<OwnerReference>,
) -> DynamicObject {
    let spec = template.data.pointer("/spec/template/spec").filter(|spec| spec.is_object());
    let mut object = DynamicObject::new(&handed.name, kind).within(&handed.namespace);
    object.metadata.labels = Some(BTreeMap::from([
        our_label(),
        (NODE_LABEL.to_owned(), short_name(&handed.name, 63)),
        (OPERATION_LABEL.to_owned(), handed.operation_id.clone()),
    ]));
    object.metadata.annotations = Some(BTreeMap::from([
        (REMEDIATION_ANNOTATION.to_owned(), remediation.name.clone()),
        (NODE_NAME_ANNOTATION.to_owned(), handed.name.clone()),
        (OPERATION_LABEL.to_owned(), handed.operation_id.clone()),
    ]));
    // If the remediation is removed by force, the object is deleted with it. If a Machine owns it as well, it is deleted only
    // when the Machine is also gone.
    let remediation = remediation.identity.as_ref().map(|(uid, _)| OwnerReference {
        api_version: NodeRemediation::api_version(&()).into_owned(),
        kind: NodeRemediation::kind(&()).into_owned(),
        name: remediation.name.clone(),
        uid: uid.clone(),
        ..OwnerReference::default()
    });
    let owners: Vec<OwnerReference> = remediation.into_iter().chain(machine).collect();
    object.metadata.owner_references = Some(owners).filter(|owners| !owners.is_empty());
    object.data = json!({"spec": spec.cloned().unwrap_or_else(|| json!({}))});
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hand_offs::tests::handed;

    fn existing(metadata: &Value) -> DynamicObject {
        let mut object =
            json!({"apiVersion": "r.example/v1", "kind": "Fix", "metadata": {"name": "w1", "namespace": "m"}});
        object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn only_the_object_of_this_very_operation_is_taken_for_made() {
        let of = |id: &str| json!({"annotations": {OPERATION_LABEL: id, REMEDIATION_ANNOTATION: "e-1"}});
        assert!(matches!(not_made(&existing(&of("e-1-2")), &handed()), Ok(ActionResult::Started)));
        let refusal = |metadata: Value| match not_made(&existing(&metadata), &handed()) {
            Ok(ActionResult::Refused { reason: OutcomeReason::Protected, message }) => message,
            other => panic!("{other:?}"),
        };
        assert!(refusal(of("e-1-1")).contains("of remediation e-1:"));
        let owner =
            json!({"ownerReferences": [{"apiVersion": "x/v1", "kind": "NodeHealthCheck", "name": "nhc", "uid": "u"}]});
        assert!(refusal(owner).contains("of NodeHealthCheck nhc:"));
        assert!(refusal(json!({"managedFields": [{"manager": "kubectl"}]})).contains("made by kubectl:"));
        assert!(refusal(json!({})).contains("without an owner:"));
        let going = json!({"deletionTimestamp": "2025-01-01T00:00:00Z"});
        assert!(matches!(not_made(&existing(&going), &handed()), Err(ApplyError::NotNow(_))));
    }
}
