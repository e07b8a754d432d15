//! What the commands have in common that a person gives: each call has its end, and each write says who writes.

use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};

/// How long the API server may take for one answer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// The cluster of the current kubeconfig.
pub(crate) async fn client() -> anyhow::Result<Client> {
    Client::try_default().await.context("cannot find a cluster: set KUBECONFIG")
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
