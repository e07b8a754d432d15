//! The image of the Jobs: that of the controller's own pod, with which admission compares it.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::calls::{CallError, Calls, bounded};
use nrh_api::SYSTEM_NAMESPACE;

/// The container of the controller. A mesh may have put one of its own before it.
pub const CONTAINER: &str = "controller";
/// How often it is tried, while the API server is away.
const TRIES: u32 = 12;
/// Time between two tries.
const PAUSE: Duration = Duration::from_secs(5);

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pod cannot be read.
    #[error(
        "the image of the Jobs is not known: {0}; set POD_NAME to the name of the controller's pod, or name the image with --image"
    )]
    Call(#[from] CallError),
    /// The pod has no such container, or one without an image.
    #[error("pod {SYSTEM_NAMESPACE}/{0}: expected a container {CONTAINER} with an image, found none")]
    Nothing(String),
}

/// Reads the image from that pod; waits about a minute for an API server that is away.
///
/// # Errors
/// There is no such pod, it has no image, or the API server does not answer.
pub async fn read(calls: &Calls, pod: &str) -> Result<String, Error> {
    let api = calls.read_in::<Pod>(SYSTEM_NAMESPACE);
    let mut tried = 1;
    let found = loop {
        let what = || format!("reading pod {SYSTEM_NAMESPACE}/{pod}");
        match bounded(what, api.get(pod)).await {
            Ok(found) => break found,
            Err(error) if tried >= TRIES || error.is_not_found() || error.is_refusal() => return Err(error.into()),
            Err(error) => tracing::warn!("{}; trying again in {} s", error.line(), PAUSE.as_secs()),
        }
        tried += 1;
        tokio::time::sleep(PAUSE).await;
    };
    of(&found).ok_or_else(|| Error::Nothing(pod.to_owned()))
}

fn of(pod: &Pod) -> Option<String> {
    let container = pod.spec.as_ref()?.containers.iter().find(|container| container.name == CONTAINER)?;
    container.image.clone().filter(|image| !image.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_is_that_of_the_controller_s_container() {
        let with = |containers: serde_json::Value| -> Pod {
            serde_json::from_value(json!({"spec": {"containers": containers}})).unwrap()
        };
        let both = json!([{"name": "mesh", "image": "a:1"}, {"name": "controller", "image": "b:2"}]);
        assert_eq!(of(&with(both)).as_deref(), Some("b:2"));
        assert_eq!(of(&with(json!([{"name": "controller"}]))), None);
        assert_eq!(of(&with(json!([]))), None);
        assert_eq!(of(&Pod::default()), None);
    }
}
