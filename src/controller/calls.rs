//! Calls to the API server: each with a deadline, and acts with exactly one attempt.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::api::{PatchParams, PostParams};
use kube::{Api, Client, Resource};
use tokio::time::timeout;

use crate::api::CONTROLLER_MANAGER;

/// Longest time one call may take. Long enough for a busy API server, short enough that a pass that meets a
/// hung one ends before the next leader could want to start.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// Least wait after an answer that we ask too much (429). Its header `Retry-After` says a second or more, but the client does not
/// hand it on.
const BUSY: Duration = Duration::from_secs(1);
/// Longest wait that an answer is followed in: what holds may have changed after that.
const LONGEST_ASKED: Duration = Duration::from_mins(1);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The API server, or the way to it, said no.
    #[error("{what} failed")]
    Api {
        /// What was tried, with the object's name.
        what: String,
        /// What was answered.
        #[source]
        source: Box<kube::Error>,
    },
    /// No answer within [`DEADLINE`]. It may have happened or not.
    #[error("{what} got no answer within {} s", DEADLINE.as_secs())]
    NoAnswer {
        /// What was tried, with the object's name.
        what: String,
    },
}

impl CallError {
    /// The status code of the answer, where there was one.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            Self::NoAnswer { .. } => None,
        }
    }

    /// For how long the API server asks not to be asked again: by its answer (`details.retryAfterSeconds`), and for a while in any
    /// case where it says that it is asked too much.
    pub fn retry_after(&self) -> Option<Duration> {
        let Self::Api { source, .. } = self else { return None };
        let kube::Error::Api(status) = source.as_ref() else { return None };
        let said = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        let said = Some(Duration::from_secs(said.into())).filter(|said| !said.is_zero());
        let least = (status.code == 429).then_some(BUSY);
        said.max(least).map(|wait| wait.min(LONGEST_ASKED))
    }

    /// Whether there is no such object.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Whether somebody else wrote first: a compare-and-swap lost, a uid changed, or the name is taken.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// Whether the very same call cannot succeed later either: refused by rights, schema or admission.
    pub fn is_refusal(&self) -> bool {
        matches!(self.code(), Some(400 | 401 | 403 | 405 | 422))
    }

    /// One line with all causes.
    pub fn line(&self) -> String {
        match self {
            Self::Api { what, source } => {
                let text = match source.as_ref() {
                    // Its own text repeats the whole answer; people need the sentence.
                    kube::Error::Api(status) => format!("{what} failed: {} ({})", status.message, status.code),
                    other => format!("{what} failed: {other}"),
                };
                crate::core::text::bounded(&text, 512)
            }
            Self::NoAnswer { .. } => self.to_string(),
        }
    }
}

/// The two clients: one that reads (and may be retried by itself), one that acts (and is never).
///
/// The stock client repeats a request up to 15 times on 429, 503 and 504, also a POST. That is welcome for
/// reads; for acts we want to see each answer and decide ourselves.
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
    /// `acts` must not repeat requests by itself.
    pub const fn new(reads: Client, acts: Client) -> Self {
        Self { reads, acts }
    }

    /// Both clients from the same configuration, as the environment gives it.
    pub fn from_config(mut config: kube::Config) -> Result<Self, kube::Error> {
        let reads = Client::try_from(config.clone())?;
        config.default_retry = false;
        Ok(Self { reads, acts: Client::try_from(config)? })
    }

    /// The reading client, for watches.
    pub fn watches(&self) -> Client {
        self.reads.clone()
    }

    /// The acting client, for the recorder of events.
    pub fn raw_acts(&self) -> Client {
        self.acts.clone()
    }

    /// Reads cluster-scoped objects.
    pub fn read<K>(&self) -> Api<K>
    where
        K: Resource<Scope = ClusterResourceScope>,
        K::DynamicType: Default,
    {
        Api::all(self.reads.clone())
    }

    /// Reads objects of one namespace.
    pub fn read_in<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.reads.clone(), namespace)
    }

    /// Writes cluster-scoped objects.
    pub fn act<K>(&self) -> Api<K>
    where
        K: Resource<Scope = ClusterResourceScope>,
        K::DynamicType: Default,
    {
        Api::all(self.acts.clone())
    }

    /// Writes objects of one namespace.
    pub fn act_in<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.acts.clone(), namespace)
    }
}

/// For a patch in the controller's name.
pub fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(CONTROLLER_MANAGER.to_owned()), ..PatchParams::default() }
}

/// For a creation in the controller's name.
pub fn post_params() -> PostParams {
    PostParams { field_manager: Some(CONTROLLER_MANAGER.to_owned()), ..PostParams::default() }
}

/// Waits for one call, at most [`DEADLINE`]. `what` says what is tried, for the error.
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

/// The same, where "there is no such object" is an answer.
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
