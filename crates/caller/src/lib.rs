//! The common part of the commands for people: each call has a timeout, and each write names its author.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use kube::{Api, Client, Config, Resource};
use serde_json::Value;

/// Timeout of one answer of the API server.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Which cluster, for the commands that people run.
#[derive(Clone, Debug, Default, Args)]
pub struct ClusterArgs {
    /// Kubeconfig file; by default that of KUBECONFIG, then `~/.kube/config`, then the cluster that this runs in.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; by default the current one.
    #[arg(long)]
    pub context: Option<String>,
}

/// The client of the named cluster; by default that of the current kubeconfig, or the one in which this process runs.
pub async fn client(cluster: &ClusterArgs) -> anyhow::Result<Client> {
    let ClusterArgs { kubeconfig, context } = cluster;
    if kubeconfig.is_some() || context.is_some() {
        let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
        let config = match kubeconfig {
            Some(path) => Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &options).await?,
            None => Config::from_kubeconfig(&options).await?,
        };
        return Ok(Client::try_from(config)?);
    }
    let config = Config::infer().await.map_err(|error| match error.source() {
        // Outside of a cluster the missing in-cluster configuration is expected, so the message leaves it out.
        Some(why) if std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() => {
            anyhow!("{why}; KUBECONFIG names the kubeconfig of a cluster, by default ~/.kube/config")
        }
        _ => anyhow!(error.to_string()),
    });
    config.and_then(|config| Ok(Client::try_from(config)?)).context("cannot find a cluster")
}

/// The objects in a file: all its documents, and the items of a list as `kubectl get -o yaml` prints it.
pub fn objects_in(text: &str) -> anyhow::Result<Vec<Value>> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|error| no_yaml(&error)).context("it is neither YAML nor JSON")?;
    let objects = documents.into_iter().flat_map(|mut object| match object.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => vec![object],
    });
    Ok(objects.collect())
}

/// The error of a file, with its line and column.
pub fn no_yaml(error: &serde_saphyr::Error) -> anyhow::Error {
    anyhow!("{}", error.without_snippet())
}

/// The answer to a call, or an error after the timeout.
pub async fn within<T>(call: impl Future<Output = kube::Result<T>>) -> anyhow::Result<T> {
    let answer = tokio::time::timeout(DEADLINE, call).await;
    let answer = answer.with_context(|| {
        format!("no answer from the API server within {} s; check KUBECONFIG and the network", DEADLINE.as_secs())
    })?;
    match answer {
        // A missing object has a message of its own.
        Err(kube::Error::Api(status)) if status.code == 404 && status.message.contains("page not found") => {
            bail!("the API server does not know this kind: is the operator installed? Run `nrh check`")
        }
        answer => Ok(answer?),
    }
}

/// All objects of a kind; each is parsed later on its own, so an unreadable one hides no other.
pub async fn list<K: Resource<DynamicType = ()>>(client: Client) -> anyhow::Result<Vec<Value>> {
    let request =
        Request::new(K::url_path(&(), None)).list(&ListParams::default()).map_err(kube::Error::BuildRequest)?;
    let mut whole: Value = within(client.request(request)).await?;
    match whole.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => Ok(items),
        _ => bail!("expected a list in the answer of the API server, found none"),
    }
}

/// The caller's own name, as the API server knows it.
pub async fn whoami(client: Client) -> anyhow::Result<String> {
    let api: Api<SelfSubjectReview> = Api::all(client);
    let (params, question) = (PostParams::default(), SelfSubjectReview::default());
    let review = within(api.create(&params, &question)).await.context("cannot ask the API server who you are")?;
    let name = review.status.and_then(|status| status.user_info).and_then(|user| user.username);
    name.context("the API server does not say who you are")
}

/// The status code of the API server's answer.
pub fn code(error: &anyhow::Error) -> Option<u16> {
    match error.downcast_ref::<kube::Error>()? {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[tokio::test]
    async fn a_kind_that_the_api_server_does_not_know_is_no_debug_text() {
        let answer = |message: &str| {
            let status = Status { code: 404, message: message.to_owned(), ..Status::default() };
            within(async { kube::Result::<()>::Err(kube::Error::Api(Box::new(status))) })
        };
        let unknown = answer("404 page not found\n").await.unwrap_err().to_string();
        assert!(unknown.contains("is the operator installed?") && unknown.contains("nrh check"), "{unknown}");
        let missing = answer("nodes \"w9\" not found").await.unwrap_err();
        assert_eq!(code(&missing), Some(404), "{missing}");
    }
}
