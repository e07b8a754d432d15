//! The image of the Jobs: the controller's own, as its Deployment names it.
//!
//! Not as its pod names it: a cluster that rewrites images of pods would do the same to the Job's, and admission compares
//! the Job with the Deployment.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;

use super::calls::{CallError, Calls, bounded};
use crate::api::{DEPLOYMENT_NAME, SYSTEM_NAMESPACE};

/// How often it is tried, while the API server is away.
const TRIES: u32 = 12;
/// Time between two tries.
const PAUSE: Duration = Duration::from_secs(5);

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The Deployment cannot be read.
    #[error(
        "the image of the Jobs is not known: {0}; name it with --image, or run as Deployment {SYSTEM_NAMESPACE}/{DEPLOYMENT_NAME}"
    )]
    Call(#[from] CallError),
    /// The Deployment has no container, or one without an image.
    #[error("Deployment {SYSTEM_NAMESPACE}/{DEPLOYMENT_NAME}: expected a first container with an image, found none")]
    Nothing,
}

/// Reads the image from the Deployment; waits about a minute for an API server that is away.
pub async fn read(calls: &Calls) -> Result<String, Error> {
    let api = calls.read_in::<Deployment>(SYSTEM_NAMESPACE);
    let mut tried = 1;
    let deployment = loop {
        let what = || format!("reading Deployment {SYSTEM_NAMESPACE}/{DEPLOYMENT_NAME}");
        match bounded(what, api.get(DEPLOYMENT_NAME)).await {
            Ok(deployment) => break deployment,
            Err(error) if tried >= TRIES || error.is_not_found() || error.is_refusal() => return Err(error.into()),
            Err(error) => tracing::warn!("{}; trying again in {} s", error.line(), PAUSE.as_secs()),
        }
        tried += 1;
        tokio::time::sleep(PAUSE).await;
    };
    of(&deployment).ok_or(Error::Nothing)
}

fn of(deployment: &Deployment) -> Option<String> {
    let container = deployment.spec.as_ref()?.template.spec.as_ref()?.containers.first()?;
    container.image.clone().filter(|image| !image.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_first_container_s() {
        let with = |containers: serde_json::Value| -> Deployment {
            serde_json::from_value(
                serde_json::json!({"spec": {"selector": {}, "template": {"spec": {"containers": containers}}}}),
            )
            .unwrap()
        };
        assert_eq!(
            of(&with(serde_json::json!([{"name": "c", "image": "a:1"}, {"name": "d", "image": "b:2"}]))).as_deref(),
            Some("a:1")
        );
        assert_eq!(of(&with(serde_json::json!([{"name": "c"}]))), None);
        assert_eq!(of(&with(serde_json::json!([]))), None);
        assert_eq!(of(&Deployment::default()), None);
    }
}
