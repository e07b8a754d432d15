//! What the controller may do.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::PostParams;

use super::calls::{CallError, Calls, bounded};
use nrh_core::snapshot::TriState;

/// How often the controller checks whether a question is due.
pub const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Time until a right is asked for again, by the last answer.
pub const fn again(known: TriState) -> Duration {
    match known {
        TriState::True => Duration::from_mins(5),
        TriState::False => Duration::from_secs(30),
        TriState::Unknown => Duration::from_secs(15),
    }
}

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
