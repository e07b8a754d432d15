//! What the controller may do.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::PostParams;

use super::calls::{CallError, Calls, bounded};

/// Asks the API server whether the controller may do this.
pub async fn is_allowed(calls: &Calls, attributes: ResourceAttributes) -> Result<bool, CallError> {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    let (verb, resource) = (text(&attributes.verb), text(&attributes.resource));
    let review = review(attributes);
    let api = calls.act::<SelfSubjectAccessReview>();
    let what = || format!("asking whether {verb} may be done to {resource}");
    let answer = bounded(what, api.create(&PostParams::default(), &review)).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// The question whether whoever asks may do this.
pub fn review(attributes: ResourceAttributes) -> SelfSubjectAccessReview {
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    SelfSubjectAccessReview { spec, ..Default::default() }
}
