//! The way to the API server: by the pod's token, or by a kubeconfig (the kubelet's, in unit mode).

use std::path::PathBuf;
use std::time::Duration;

use futures::future::BoxFuture;
use http::Request;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{GetParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, Resource};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::{NodeRuntimeHealth, NodeRuntimeHealthStatus, PROBE_MANAGER};
use crate::core::order::Order;

/// End of every call.
const DEADLINE: Duration = Duration::from_secs(10);
const CONNECT: Duration = Duration::from_secs(5);

/// Where the credentials are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// The pod's own `ServiceAccount`.
    InCluster,
    /// A kubeconfig. It is read again after a refusal: kubelets renew their certificates.
    Kubeconfig(PathBuf),
}

impl Credentials {
    /// A client that sends each request once: retries are the reporter's to decide.
    pub async fn connect(&self) -> Result<Client, CallError> {
        let unusable = |error: String| CallError::Unusable { error };
        let mut config = match self {
            Self::InCluster => Config::incluster().map_err(|error| unusable(error.to_string()))?,
            Self::Kubeconfig(path) => {
                let read = Kubeconfig::read_from(path)
                    .map_err(|error| unusable(format!("cannot read {}: {error}", path.display())))?;
                if runs_programs(&read) {
                    return Err(unusable(format!(
                        "{} names a credential plugin, which is a program to run, and the probe runs none: use a \
                         kubeconfig with a client certificate or a token file",
                        path.display()
                    )));
                }
                Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                    .await
                    .map_err(|error| unusable(format!("{}: {error}", path.display())))?
            }
        };
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = Some(DEADLINE);
        config.write_timeout = Some(DEADLINE);
        Client::try_from(config).map_err(|error| unusable(error.to_string()))
    }
}

/// Whether any user of this kubeconfig gets its credentials from another program.
fn runs_programs(config: &Kubeconfig) -> bool {
    let users = config.auth_infos.iter().filter_map(|user| user.auth_info.as_ref());
    users.into_iter().any(|user| user.exec.is_some() || user.auth_provider.is_some())
}

/// Makes a client, again after each refusal.
pub type Connect = Box<dyn Fn() -> BoxFuture<'static, Result<Client, CallError>> + Send + Sync>;

/// Why a call did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The object does not exist; the controller makes it.
    #[error("the object does not exist yet")]
    Missing,
    /// The credentials are not accepted, or not good enough.
    #[error("the API server refused: {message} ({code})")]
    Refused {
        /// HTTP status.
        code: u16,
        /// What it said.
        message: String,
    },
    /// No answer in time.
    #[error("no answer within {} s", DEADLINE.as_secs())]
    Deadline,
    /// The credentials cannot be read.
    #[error("no usable credentials: {error}")]
    Unusable {
        /// Why.
        error: String,
    },
    /// Anything else on the way.
    #[error("{0}")]
    Transport(Box<kube::Error>),
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 404 => Self::Missing,
            kube::Error::Api(status) => Self::Refused { code: status.code, message: status.message.clone() },
            other => Self::Transport(Box::new(other)),
        }
    }
}

/// What the probe learns from its own object, be it by reading or by writing it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Feedback {
    /// The order that stands there, if one does and it can be read.
    pub order: Option<Order>,
    /// The highest look request.
    pub look_requested: u64,
    /// Whether an episode of healing this node runs.
    pub episode: bool,
    /// Uid of the Node that owns the object.
    pub node_uid: Option<String>,
}

/// The part of the object that the probe reads. Everything else is skipped, not kept.
#[derive(Debug, Deserialize)]
struct OwnObject {
    metadata: ObjectMeta,
    status: Option<OwnStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OwnStatus {
    order: Option<Value>,
    remediation: Option<OwnRemediation>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OwnRemediation {
    episode: Option<String>,
    look_requested: Option<u64>,
}

impl From<OwnObject> for Feedback {
    fn from(object: OwnObject) -> Self {
        let status = object.status.unwrap_or_default();
        let remediation = status.remediation.unwrap_or_default();
        let order = status.order.and_then(|raw| match serde_json::from_value(raw) {
            Ok(order) => Some(order),
            Err(error) => {
                // An order we cannot read is not carried out in part.
                tracing::warn!(%error, "the order in our object is not readable: leaving it alone");
                None
            }
        });
        let owners = object.metadata.owner_references.unwrap_or_default();
        Self {
            order,
            look_requested: remediation.look_requested.unwrap_or_default(),
            episode: remediation.episode.is_some(),
            node_uid: owners.into_iter().find(|owner| owner.kind == "Node").map(|owner| owner.uid),
        }
    }
}

/// Writes the probe's part of the status: everything it owns, by force, so that nothing stale stays behind.
pub async fn apply(client: &Client, name: &str, status: &NodeRuntimeHealthStatus) -> Result<Feedback, CallError> {
    let body = json!({
        "apiVersion": NodeRuntimeHealth::api_version(&()),
        "kind": NodeRuntimeHealth::kind(&()),
        "metadata": { "name": name },
        "status": status,
    });
    let params = PatchParams::apply(PROBE_MANAGER).force();
    call(client, request().patch_subresource("status", name, &params, &Patch::Apply(&body))).await
}

/// Reads the object.
pub async fn read(client: &Client, name: &str) -> Result<Feedback, CallError> {
    call(client, request().get(name, &GetParams::default())).await
}

fn request() -> kube::core::Request {
    kube::core::Request::new(NodeRuntimeHealth::url_path(&(), None))
}

async fn call(
    client: &Client,
    request: Result<Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<Feedback, CallError> {
    let request = request.map_err(kube::Error::BuildRequest)?;
    match tokio::time::timeout(DEADLINE, client.request::<OwnObject>(request)).await {
        Ok(answer) => Ok(answer?.into()),
        Err(_) => Err(CallError::Deadline),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_kubeconfig_that_names_a_program_is_refused_and_nothing_is_run() {
        let folder = tempfile::tempdir().unwrap();
        let (path, ran) = (folder.path().join("kubeconfig"), folder.path().join("ran"));
        let config = format!(
            r#"{{"clusters": [{{"name": "c", "cluster": {{"server": "http://127.0.0.1:1"}}}}],
                "contexts": [{{"name": "x", "context": {{"cluster": "c", "user": "u"}}}}],
                "current-context": "x",
                "users": [{{"name": "u", "user": {{"exec": {{
                    "apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": ["{}"]}}}}}}]}}"#,
            ran.display()
        );
        std::fs::write(&path, config).unwrap();
        let error = Credentials::Kubeconfig(path).connect().await.err().unwrap();
        assert!(error.to_string().contains("credential plugin"), "{error}");
        assert!(!ran.exists());
    }
}
