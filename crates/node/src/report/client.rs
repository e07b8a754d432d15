//! The connection to the API server, with the pod's token or with a kubeconfig (the kubelet's, in unit mode).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::Request;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams};
use kube::client::ClientBuilder;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;
use tower::layer::layer_fn;

use super::clock::{Dated, Tell};
use super::plugin;
use crate::parse_error::ParseError;
use nrh_api::plain::plain;
use nrh_api::{NodeRuntimeHealth, NodeRuntimeHealthStatus, PROBE_MANAGER};
use nrh_core::text::bounded;

/// Deadline of every call; for a watch it applies until the watch has started.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);
const CONNECT: Duration = Duration::from_secs(5);
/// How long before its expiry a credential is renewed.
const RENEW: Duration = Duration::from_mins(1);
/// Minimum time for which a credential is used.
const LEAST_USE: Duration = Duration::from_secs(30);

/// Where the credentials are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// The pod's own `ServiceAccount`.
    InCluster,
    /// A kubeconfig. It is read again after a refusal, because kubelets renew their certificates.
    Kubeconfig(PathBuf),
}

impl Credentials {
    /// Creates a client that sends each request once: the caller decides on retries. A connection without a byte for
    /// `silence` is closed. What the answers show about the node's clock is reported to `tell`.
    pub async fn connect(&self, tell: &Tell, silence: Duration) -> Result<Connection, CallError> {
        let mut until = None;
        let mut config = match self {
            Self::InCluster => Config::incluster().map_err(|error| CallError::Unusable(error.to_string()))?,
            Self::Kubeconfig(path) => {
                let read = Kubeconfig::read_from(path).map_err(|error| {
                    let why = match &error {
                        KubeconfigError::Parse(error) => ParseError::from(&**error).to_string(),
                        _ => error.to_string(),
                    };
                    CallError::Unusable(format!("cannot read {}: {why}", path.display()))
                })?;
                let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                    .await
                    .map_err(|error| CallError::Unusable(format!("{}: {error}", path.display())))?;
                if config.auth_info.auth_provider.is_some() {
                    return Err(CallError::Unusable(format!(
                        "{} names an auth-provider, which Kubernetes has not had since 1.26: use a client certificate, a \
                         token file or a credential plugin (exec)",
                        path.display()
                    )));
                }
                // The probe runs the plugin itself: the client would block the only thread, on which everything runs.
                if let Some(exec) = config.auth_info.exec.take() {
                    let made = plugin::credential(&exec).await.map_err(CallError::Unusable)?;
                    until = made.expires.map(before);
                    config.auth_info = AuthInfo {
                        impersonate: config.auth_info.impersonate,
                        impersonate_uid: config.auth_info.impersonate_uid,
                        impersonate_groups: config.auth_info.impersonate_groups,
                        ..made.auth
                    };
                }
                config
            }
        };
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = Some(silence);
        config.write_timeout = Some(DEADLINE);
        let stack = ClientBuilder::try_from(config).map_err(|error| CallError::Unusable(error.to_string()))?;
        let dated = layer_fn(|service| Dated { service, tell: Arc::clone(tell) });
        let client = stack.with_layer(&dated).build();
        Ok(Connection { client, until })
    }
}

/// Returns the time shortly before a credential expires.
fn before(expires: Timestamp) -> Instant {
    let left = Duration::try_from(expires.duration_since(Timestamp::now())).unwrap_or_default();
    // A credential with a short lifetime must not start the plugin for every call: the API server reports when it has
    // expired.
    Instant::now() + left.saturating_sub(RENEW).max(LEAST_USE)
}

/// A connection to the API server, and how long it is valid.
#[derive(Clone)]
pub struct Connection {
    /// The client.
    pub client: Client,
    /// When to create a new connection; `None` = when this one is refused.
    pub until: Option<Instant>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("until", &self.until).finish_non_exhaustive()
    }
}

/// Creates a client, again after each refusal.
pub type Connect = Box<dyn Fn() -> BoxFuture<'static, Result<Connection, CallError>> + Send + Sync>;

/// Why a call did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The object does not exist; the controller creates it.
    #[error("this node's NodeRuntimeHealth does not exist yet; the controller creates it")]
    Missing,
    /// The credentials are not accepted, or lack a permission.
    #[error("the API server refused: {message} ({code})")]
    Refused {
        /// HTTP status.
        code: u16,
        /// The message of the server.
        message: String,
    },
    /// There was no answer in time.
    #[error("no answer within {} s", DEADLINE.as_secs())]
    Deadline,
    /// The credentials cannot be read.
    #[error("no usable credentials: {0}")]
    Unusable(String),
    /// A watch without data.
    #[error("the API server has said nothing on the watch for {} s", .0.as_secs())]
    Silent(Duration),
    /// A watch that ended right after its start.
    #[error("the API server ended the watch as soon as it had begun")]
    Ended,
    /// Any other transport error.
    #[error("{0}")]
    Transport(Box<kube::Error>),
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        match error {
            // Only a missing object. An unknown path is different: a starting server does not serve the kind yet.
            kube::Error::Api(status) if status.code == 404 && status.reason == "NotFound" => Self::Missing,
            kube::Error::Api(status) => Self::Refused { code: status.code, message: status.message.clone() },
            other => Self::Transport(Box::new(other)),
        }
    }
}

/// What the probe learns from its own object when it writes the report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Feedback {
    /// Whether a remediation of this node is running.
    pub remediation: bool,
    /// Uid of the Node that owns the object.
    pub node_uid: Option<String>,
    /// The kubelet's version, which the controller reads from the Node.
    pub kubelet_version: Option<String>,
}

/// The fields of the object that the probe reads. All other fields are skipped.
#[derive(Debug, Deserialize)]
pub(crate) struct OwnObject {
    metadata: ObjectMeta,
    status: Option<OwnStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OwnStatus {
    kubelet_version: Option<String>,
    remediation: Option<OwnRemediation>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OwnRemediation {
    name: Option<String>,
}

impl From<OwnObject> for Feedback {
    fn from(object: OwnObject) -> Self {
        let status = object.status.unwrap_or_default();
        let remediation = status.remediation.unwrap_or_default();
        let owners = object.metadata.owner_references.unwrap_or_default();
        Self {
            remediation: remediation.name.is_some(),
            kubelet_version: status.kubelet_version.map(|version| bounded(&version, 64)),
            node_uid: owners.into_iter().find(|owner| owner.kind == "Node").map(|owner| owner.uid),
        }
    }
}

/// Returns the answer of a call, or an error after the deadline.
pub(super) async fn in_time<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(CallError::Deadline),
    }
}

/// Writes the probe's part of the status: all fields that it owns, by force, so that no stale field remains.
///
/// After a rollback the installed CRD can be older and refuse a report with an unknown field. The report is then sent
/// again without the newest fields, because a reduced report is better than none.
pub async fn apply(client: &Client, name: &str, status: &NodeRuntimeHealthStatus) -> Result<Feedback, CallError> {
    match apply_all(client, name, status).await {
        Err(CallError::Refused { message, .. }) if is_unknown(&message) => {
            let mut known = NodeRuntimeHealthStatus { restart_safe: None, ..status.clone() };
            if let Some(probe) = &mut known.probe {
                probe.check_answered = None;
            }
            apply_all(client, name, &known).await
        }
        answer => answer,
    }
}

/// Whether the API server reports that it does not know one of the newest fields.
fn is_unknown(message: &str) -> bool {
    message.contains("not declared in schema")
        && ["restartSafe", "checkAnswered"].into_iter().any(|field| message.contains(field))
}

async fn apply_all(client: &Client, name: &str, status: &NodeRuntimeHealthStatus) -> Result<Feedback, CallError> {
    let body = body(name, status);
    let params = PatchParams::apply(PROBE_MANAGER).force();
    let request = request::<NodeRuntimeHealth>().patch_subresource("status", name, &params, &Patch::Apply(&body));
    call::<OwnObject, _>(client, request).await
}

/// Builds the request body. The CRD refuses the whole report for a single control character that a terminal would obey,
/// and messages of runtimes contain tabs and line ends.
fn body(name: &str, status: &NodeRuntimeHealthStatus) -> Value {
    let body = json!({
        "apiVersion": NodeRuntimeHealth::api_version(&()),
        "kind": NodeRuntimeHealth::kind(&()),
        "metadata": { "name": name },
        "status": status,
    });
    plain(body, usize::MAX)
}

pub(super) fn request<K: Resource<DynamicType = ()>>() -> kube::core::Request {
    kube::core::Request::new(K::url_path(&(), None))
}

pub(super) async fn call<A: DeserializeOwned, T: From<A>>(
    client: &Client,
    request: Result<Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<T, CallError> {
    let request = request.map_err(kube::Error::BuildRequest)?;
    Ok(in_time(client.request::<A>(request)).await?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nrh_api::health::{CollectorState, CollectorStatus, ProbeStatus, RuntimeStatus};
    use nrh_core::fault::FaultType;

    fn nobody() -> Tell {
        Arc::new(|_| {})
    }

    /// A kubeconfig with this user.
    fn kubeconfig(folder: &std::path::Path, user: &Value) -> Credentials {
        let path = folder.join("kubeconfig");
        let config = json!({
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
            "users": [{"name": "u", "user": user}],
        });
        std::fs::write(&path, config.to_string()).unwrap();
        Credentials::Kubeconfig(path)
    }

    #[tokio::test]
    async fn a_credential_plugin_that_fails_is_told_and_an_auth_provider_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let user = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/no/such/plugin"}});
        let error = kubeconfig(folder.path(), &user).connect(&nobody(), DEADLINE).await.unwrap_err().to_string();
        assert!(error.contains("credential plugin /no/such/plugin") && error.contains("cannot be run"), "{error}");
        let user = json!({"auth-provider": {"name": "gcp", "config": {}}});
        let error = kubeconfig(folder.path(), &user).connect(&nobody(), DEADLINE).await.unwrap_err().to_string();
        assert!(error.contains("auth-provider"), "{error}");
    }

    /// Collects the place of each text in a value that the CRD refuses.
    fn refused(value: &Value, schema: &Value, at: &str, found: &mut Vec<String>) {
        match value {
            Value::String(text) => {
                let pattern = schema["pattern"].as_str().map(|pattern| regex::Regex::new(pattern).unwrap());
                let most = schema["maxLength"].as_u64().and_then(|most| usize::try_from(most).ok());
                if pattern.is_some_and(|pattern| !pattern.is_match(text))
                    || most.is_some_and(|most| text.chars().count() > most)
                {
                    found.push(at.to_owned());
                }
            }
            Value::Array(items) => items.iter().for_each(|item| refused(item, &schema["items"], at, found)),
            Value::Object(fields) => {
                fields.iter().for_each(|(name, value)| {
                    refused(value, &schema["properties"][name], &format!("{at}.{name}"), found);
                });
            }
            _ => {}
        }
    }

    #[test]
    fn a_report_of_hostile_texts_is_taken_by_the_definition_and_a_raw_one_is_not() {
        let hostile = "rpc error:\n\tcontext \u{1b}[2J\u{9b}31m\r\u{7f}\u{202e}é";
        let mut fault = nrh_core::examples::fault(FaultType::HungContainer);
        (fault.message, fault.impact, fault.evidence) =
            (hostile.to_owned(), hostile.to_owned(), vec![hostile.to_owned()]);
        fault.subject.name = Some(hostile.to_owned());
        let collector = CollectorStatus {
            name: "lists".into(),
            state: CollectorState::Failed,
            age_seconds: None,
            message: hostile.into(),
        };
        let probe = ProbeStatus {
            missing_capabilities: vec![hostile.into()],
            collectors: vec![collector],
            ..ProbeStatus::default()
        };
        let runtime = RuntimeStatus { version: hostile.into(), endpoint: hostile.into(), ..RuntimeStatus::default() };
        let status = NodeRuntimeHealthStatus {
            probe: Some(probe),
            runtime: Some(runtime),
            faults: vec![fault],
            ..NodeRuntimeHealthStatus::default()
        };
        let definitions = serde_json::to_value(nrh_api::crds::all()).unwrap();
        let schema = definitions[0][1]["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
        let check = |body: &Value| {
            let mut found = Vec::new();
            refused(&body["status"], &schema["properties"]["status"], "", &mut found);
            found
        };
        let raw = check(&json!({"status": status}));
        for place in [
            ".faults.message",
            ".faults.evidence",
            ".probe.collectors.message",
            ".probe.missingCapabilities",
            ".runtime.endpoint",
        ] {
            assert!(raw.iter().any(|refused| refused == place), "{place} may hold anything: {raw:?}");
        }
        let written = body("n1", &status);
        assert_eq!(check(&written), Vec::<String>::new());
        assert!(
            !written.to_string().contains("\\u") && written.to_string().contains("rpc error:  context  [2J"),
            "{written}"
        );
    }

    #[test]
    fn a_credential_is_renewed_before_it_ends_and_not_at_every_call() {
        let now = Instant::now();
        let in_ten_minutes = before(Timestamp::now() + jiff::SignedDuration::from_mins(10));
        assert!((535..=541).contains(&in_ten_minutes.saturating_duration_since(now).as_secs()));
        assert!((25..=31).contains(&before(Timestamp::UNIX_EPOCH).saturating_duration_since(now).as_secs()));
    }
}
