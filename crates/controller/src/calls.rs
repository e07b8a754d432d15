//! Calls to the API server. Each has a deadline, and a write has exactly one attempt.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::api::{DeleteParams, PatchParams, PostParams, Preconditions};
use kube::core::Status;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use nrh_api::CONTROLLER_MANAGER;
use nrh_core::text::is_subdomain;

/// Maximum time of one call. It is long enough for a busy API server. It is short enough that a pass that meets an unresponsive
/// one ends before the next leader could start.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// Minimum wait after the answer 429 (too many requests). Its header `Retry-After` says a second or more, but the client does not
/// pass it on.
const BUSY: Duration = Duration::from_secs(1);
/// Maximum wait that the controller accepts from an answer. After that the situation may have changed.
const LONGEST_ASKED: Duration = Duration::from_mins(1);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The API server, or the connection to it, returned an error.
    #[error("{what} failed")]
    Api {
        /// What was tried, with the object's name.
        what: String,
        /// What was answered.
        #[source]
        source: Box<kube::Error>,
    },
    /// No answer came within [`DEADLINE`]. The call may or may not have taken effect.
    #[error("{what} got no answer within {} s", DEADLINE.as_secs())]
    NoAnswer {
        /// What was tried, with the object's name.
        what: String,
    },
}

impl CallError {
    /// The answer of the API server, if there was one.
    pub fn answer(&self) -> Option<&Status> {
        let Self::Api { source, .. } = self else { return None };
        if let kube::Error::Api(status) = source.as_ref() { Some(status) } else { None }
    }

    /// The status code of the answer, if there was one.
    pub fn code(&self) -> Option<u16> {
        Some(self.answer()?.code)
    }

    /// How long the API server asks the controller to wait before the next request: by its answer (`details.retryAfterSeconds`),
    /// and for a minimum time whenever it reports too many requests.
    pub fn retry_after(&self) -> Option<Duration> {
        let status = self.answer()?;
        let requested = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        let requested = Some(Duration::from_secs(requested.into())).filter(|requested| !requested.is_zero());
        let least = (status.code == 429).then_some(BUSY);
        requested.max(least).map(|wait| wait.min(LONGEST_ASKED))
    }

    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Whether another client wrote first: the compare-and-swap failed, the uid changed, or the name is taken.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409) || self.names_another_uid()
    }

    /// Whether it was a patch that names another uid, which is invalid to the API server.
    fn names_another_uid(&self) -> bool {
        self.answer().is_some_and(|status| {
            let mut causes = status.details.iter().flat_map(|details| &details.causes);
            status.code == 422 && causes.any(|cause| cause.field == "metadata.uid")
        })
    }

    /// Whether the same call cannot succeed later either, because rights, schema or admission refuse it. A 401 passes: an API server
    /// answers it while its keys or its authenticator change.
    pub fn is_refusal(&self) -> bool {
        matches!(self.code(), Some(400 | 403 | 405 | 422)) && !self.is_conflict()
    }

    /// One line with all causes.
    pub fn line(&self) -> String {
        match self {
            Self::Api { what, source } => {
                let text = match source.as_ref() {
                    // The error's own text repeats the whole answer. People need only the sentence.
                    kube::Error::Api(status) => format!("{what} failed: {} ({})", status.message, status.code),
                    other => format!("{what} failed: {other}"),
                };
                nrh_core::text::bounded(&text, 512)
            }
            Self::NoAnswer { .. } => self.to_string(),
        }
    }
}

/// The two clients: one for reads, which may retry by itself, and one for writes, which never does.
///
/// The stock client repeats a request up to 15 times on 429, 503 and 504, also a POST. That is useful for reads. For writes the
/// controller must see each answer and decide itself.
#[derive(Clone)]
pub struct Calls {
    reads: Client,
    acts: Client,
}

impl Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Calls")
    }
}

impl Calls {
    /// `acts` must not retry requests by itself.
    pub const fn new(reads: Client, acts: Client) -> Self {
        Self { reads, acts }
    }

    /// Creates both clients from the same configuration, as the environment gives it.
    pub fn from_config(mut config: kube::Config) -> Result<Self, kube::Error> {
        let reads = Client::try_from(config.clone())?;
        config.default_retry = false;
        Ok(Self { reads, acts: Client::try_from(config)? })
    }

    /// The reading client, for watches.
    pub fn watches(&self) -> Client {
        self.reads.clone()
    }

    /// The writing client, for the recorder of events.
    pub fn raw_acts(&self) -> Client {
        self.acts.clone()
    }

    /// Reads cluster-scoped objects.
    pub fn read<K: Resource<DynamicType = (), Scope = ClusterResourceScope>>(&self) -> Api<K> {
        Api::all(self.reads.clone())
    }

    /// Reads objects of one namespace.
    pub fn read_in<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.reads.clone(), namespace)
    }

    /// Reads the cluster-scoped object of this name, if it exists.
    pub async fn find<K>(&self, name: &str) -> Result<Option<K>, CallError>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let api = self.read::<K>();
        bounded_opt(|| format!("reading {} {name}", K::kind(&())), api.get(name)).await
    }

    /// Reads the object of this name in a namespace, if it exists. A node may have named it: a name that cannot be is not put into a path.
    pub async fn find_in<K>(&self, namespace: &str, name: &str) -> Result<Option<K>, CallError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        if !(is_subdomain(namespace) && is_subdomain(name)) {
            return Ok(None);
        }
        let api = self.read_in::<K>(namespace);
        bounded_opt(|| format!("reading {} {namespace}/{name}", K::kind(&())), api.get(name)).await
    }

    /// Writes cluster-scoped objects.
    pub fn act<K: Resource<DynamicType = (), Scope = ClusterResourceScope>>(&self) -> Api<K> {
        Api::all(self.acts.clone())
    }

    /// Writes objects of one namespace.
    pub fn act_in<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.acts.clone(), namespace)
    }
}

/// Parameters of a patch in the controller's name.
pub fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(CONTROLLER_MANAGER.to_owned()), ..PatchParams::default() }
}

/// Parameters of a creation in the controller's name.
pub fn post_params() -> PostParams {
    PostParams { field_manager: Some(CONTROLLER_MANAGER.to_owned()), ..PostParams::default() }
}

/// Parameters of the deletion of exactly this object, and of none that has taken its name since.
pub fn delete_params(uid: Option<String>) -> DeleteParams {
    let preconditions = uid.map(|uid| Preconditions { uid: Some(uid), resource_version: None });
    DeleteParams { preconditions, ..DeleteParams::default() }
}

/// The label of everything that the controller creates.
pub fn our_label() -> (String, String) {
    ("app.kubernetes.io/part-of".to_owned(), "nrh".to_owned())
}

/// Waits for one call, at most [`DEADLINE`]. `what` names the call in the error.
pub async fn bounded<T>(
    what: impl FnOnce() -> String + Send,
    call: impl Future<Output = kube::Result<T>> + Send,
) -> Result<T, CallError> {
    match timeout(DEADLINE, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(CallError::Api { what: what(), source: Box::new(source) }),
        Err(_) => Err(CallError::NoAnswer { what: what() }),
    }
}

/// The same as [`bounded`], where "there is no such object" is an answer.
pub async fn bounded_opt<T>(
    what: impl FnOnce() -> String + Send,
    call: impl Future<Output = kube::Result<T>> + Send,
) -> Result<Option<T>, CallError> {
    match bounded(what, call).await {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: Status) -> CallError {
        CallError::Api { what: "reading Node w1".to_owned(), source: Box::new(kube::Error::Api(Box::new(status))) }
    }

    /// The API server calls a patch with another uid invalid (422), and no conflict (409).
    #[test]
    fn a_patch_of_an_object_that_was_replaced_is_a_conflict_and_another_invalid_one_a_refusal() {
        for (field, is_conflict) in [("metadata.uid", true), ("spec.reason", false)] {
            let status = serde_json::json!({"code": 422, "details": {"causes": [
                {"reason": "FieldValueInvalid", "field": field, "message": "field is immutable: metadata.uid"}]}});
            let error = answer(serde_json::from_value(status).unwrap());
            assert_eq!((error.is_conflict(), error.is_refusal()), (is_conflict, !is_conflict), "{field}");
        }
    }

    #[test]
    fn only_an_answer_that_stays_the_same_is_a_refusal() {
        let answered = |code| answer(Status { code, ..Status::default() });
        for code in [400, 403, 405, 422] {
            assert!(answered(code).is_refusal(), "{code}");
        }
        for code in [401, 404, 409, 429, 500, 503] {
            assert!(!answered(code).is_refusal(), "{code}");
        }
    }
}
