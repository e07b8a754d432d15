//! What the commands have in common that a person gives: each call has its end, and each write says who writes.

use std::error::Error;
use std::time::Duration;

use anyhow::{Context, anyhow};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client, Config};

/// How long the API server may take for one answer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// The cluster of the current kubeconfig, or the one this runs in.
pub(crate) async fn client() -> anyhow::Result<Client> {
    let config = Config::infer().await.map_err(|error| match error.source() {
        // That it does not run in a cluster either is no news to who gives a command outside of one.
        Some(of_kubeconfig) if std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() => {
            anyhow!(of_kubeconfig.to_string())
        }
        _ => anyhow!(error.to_string()),
    });
    let client = config.and_then(|config| Ok(Client::try_from(config)?));
    client.context("no way to a cluster; expected a kubeconfig in KUBECONFIG or ~/.kube/config")
}

/// What is wrong with a file, with its line and column.
pub(crate) fn no_yaml(error: &serde_saphyr::Error) -> anyhow::Error {
    anyhow!("{}", error.without_snippet())
}

/// The answer to a call, or that there is none in time.
pub(crate) async fn within<T>(call: impl Future<Output = kube::Result<T>>) -> anyhow::Result<T> {
    let answer = tokio::time::timeout(DEADLINE, call).await;
    Ok(answer.with_context(|| {
        format!("no answer from the API server within {} s; check KUBECONFIG and the network", DEADLINE.as_secs())
    })??)
}

/// The caller's own name, as the API server knows them.
pub(crate) async fn whoami(client: Client) -> anyhow::Result<String> {
    let api: Api<SelfSubjectReview> = Api::all(client);
    let (params, question) = (PostParams::default(), SelfSubjectReview::default());
    let review = within(api.create(&params, &question)).await.context("cannot ask the API server who you are")?;
    let name = review.status.and_then(|status| status.user_info).and_then(|user| user.username);
    name.context("the API server does not say who you are")
}
