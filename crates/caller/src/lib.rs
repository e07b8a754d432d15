//! The common part of the commands for people: each call has a timeout, and each write names its author.

use std::error::Error;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{Request, Status};
use kube::{Api, Client, Config, Resource};
use serde_json::Value;
use serde_saphyr::UserMessageFormatter;

/// Timeout of one answer of the API server.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// The API server that this process calls, with the context of the kubeconfig that names it: for messages.
static SERVER: OnceLock<String> = OnceLock::new();

/// Which cluster, for the commands that people run.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Common options")]
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
        let config = match kubeconfig.as_ref().map(Kubeconfig::read_from).transpose() {
            Ok(Some(kubeconfig)) => Config::from_custom_kubeconfig(kubeconfig, &options).await,
            Ok(None) => Config::from_kubeconfig(&options).await,
            Err(error) => Err(error),
        };
        let config = config.map_err(|error| anyhow!(without_quotes(&error_text(&error.into())))).context(
            "cannot find the cluster that --kubeconfig or --context names; `kubectl config get-contexts` lists the contexts",
        )?;
        return connect(config, cluster);
    }
    let config = Config::infer().await.map_err(|error| match error.source() {
        // Outside of a cluster the missing in-cluster configuration is expected, so the message leaves it out.
        Some(why) if std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() => {
            let why = without_quotes(&why.to_string());
            anyhow!("{why}; --kubeconfig or KUBECONFIG names the kubeconfig of a cluster, by default ~/.kube/config")
        }
        _ => anyhow!(error.to_string()),
    });
    config.and_then(|config| connect(config, cluster)).context("cannot find a cluster")
}

fn connect(config: Config, cluster: &ClusterArgs) -> anyhow::Result<Client> {
    let kubeconfig = || match &cluster.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let context = cluster.context.clone().or_else(|| kubeconfig().ok()?.current_context);
    let of = context.map_or_else(String::new, |context| format!(" of context {context}"));
    let _ = SERVER.set(format!("{}{of}", config.cluster_url.to_string().trim_end_matches('/')));
    Ok(Client::try_from(config)?)
}

/// The API server, as messages name it.
fn server() -> String {
    SERVER.get().map_or_else(|| "the API server".to_owned(), |server| format!("the API server {server}"))
}

/// Whether the call has not reached the API server: another call to it will not, either.
pub fn is_unreachable(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Service(_))) || error.is::<tokio::time::error::Elapsed>()
}

/// An error of the client without the second pair of quotes around a path.
fn without_quotes(error: &str) -> String {
    error.replace("'\"", "'").replace("\"'", "'")
}

/// The objects in a file: all its documents, and the items of a list as `kubectl get -o yaml` prints it.
pub fn objects_in(text: &str) -> anyhow::Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)
        .map_err(|error| no_yaml(&error))
        .context("it cannot be read as YAML or JSON")?;
    let objects = documents.into_iter().flat_map(|mut object| match object.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => vec![object],
    });
    Ok(objects.collect())
}

/// The error of a file, with its line and column.
pub fn no_yaml(error: &serde_saphyr::Error) -> anyhow::Error {
    anyhow!("{}", error.without_snippet().render_with_formatter(&UserMessageFormatter))
}

/// The answer to a call, or an error after the timeout.
pub async fn within<T>(call: impl Future<Output = kube::Result<T>>) -> anyhow::Result<T> {
    let answer = tokio::time::timeout(DEADLINE, call).await;
    Ok(answer.with_context(|| {
        format!("no answer from {} within {} s; check KUBECONFIG and the network", server(), DEADLINE.as_secs())
    })??)
}

/// An error with its causes. Many libraries repeat their cause in their own message: each cause appears once.
pub fn error_text(error: &anyhow::Error) -> String {
    let mut causes: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = match cause.downcast_ref::<kube::Error>() {
            // Its cause is the same answer as debug text.
            Some(kube::Error::Api(status)) => {
                causes.push(said(status));
                break;
            }
            Some(kube::Error::Service(_)) => {
                format!("{} cannot be reached; check KUBECONFIG and the network", server())
            }
            _ => cause.to_string(),
        };
        if !causes.iter().any(|before| before.contains(text.trim())) {
            causes.push(text);
        }
    }
    causes.join(": ")
}

/// What the API server said, and what to do about it where that does not depend on the call.
fn said(status: &Status) -> String {
    let (message, is_ours) = (status.message.trim(), status.message.contains("runtimehealth.io"));
    match status.code {
        401 => {
            "the API server does not accept your credentials (401): renew them, or name another --context".to_owned()
        }
        403 if is_ours && ["get", "list", "watch"].iter().any(|verb| message.contains(&format!("cannot {verb} "))) => {
            format!("{message} (requires ClusterRole nrh:view)")
        }
        // A missing object has a message of its own.
        404 if message.contains("page not found") => {
            "the API server does not know this kind: is the operator installed? Run `nrh check`".to_owned()
        }
        404 if ["nodes ", "noderuntimehealths"].iter().any(|kind| message.starts_with(kind)) => {
            format!("{message}; `nrh get` lists the nodes")
        }
        code if message.is_empty() => format!("the API server answers with status {code} {}", status.reason),
        _ => message.to_owned(),
    }
}

/// The error of a write. Where the right is missing, it names the right.
pub fn refused(error: anyhow::Error, what: &str, right: &str) -> anyhow::Error {
    match code(&error) {
        Some(403) => error.context(format!("{what} (requires {right})")),
        _ => error.context(what.to_owned()),
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
    use super::*;

    fn answer(code: u16, message: &str) -> anyhow::Error {
        let status = Status { code, message: message.to_owned(), reason: "Because".to_owned(), ..Status::default() };
        kube::Error::Api(Box::new(status)).into()
    }

    #[test]
    fn a_cause_is_told_once() {
        let twice = anyhow!("refused").context("no answer (refused)").context("cannot list nodes");
        assert_eq!(error_text(&twice), "cannot list nodes: no answer (refused)");
        let once = anyhow!("refused").context("no answer").context("cannot list nodes");
        assert_eq!(error_text(&once), "cannot list nodes: no answer: refused");
    }

    #[test]
    fn an_answer_of_the_api_server_is_told_with_what_to_do_and_without_debug_text() {
        let denied = |verb| {
            format!("x is forbidden: User \"ann\" cannot {verb} resource \"x\" in API group \"runtimehealth.io\"")
        };
        let missing = |kind| format!("{kind} \"w9\" not found");
        let (read, write, node, report) =
            (denied("list"), denied("patch"), missing("nodes"), missing("noderuntimehealths.runtimehealth.io"));
        for (code, message, expected) in [
            (
                401,
                "Unauthorized",
                "the API server does not accept your credentials (401): renew them, or name another --context",
            ),
            (403, read.as_str(), &format!("{read} (requires ClusterRole nrh:view)")),
            (403, &write, &write),
            (404, &node, &format!("{node}; `nrh get` lists the nodes")),
            (404, &report, &format!("{report}; `nrh get` lists the nodes")),
            (
                404,
                "404 page not found\n",
                "the API server does not know this kind: is the operator installed? Run `nrh check`",
            ),
            (
                404,
                "noderemediations.runtimehealth.io \"r\" not found",
                "noderemediations.runtimehealth.io \"r\" not found",
            ),
            (503, "", "the API server answers with status 503 Because"),
        ] {
            let error = answer(code, message).context("cannot read it");
            assert_eq!(error_text(&error), format!("cannot read it: {expected}"));
        }
        let down = kube::Error::Service("Connection refused".into());
        assert_eq!(
            error_text(&down.into()),
            "the API server cannot be reached; check KUBECONFIG and the network: Connection refused"
        );
    }

    #[test]
    fn a_write_names_the_right_only_where_it_is_missing() {
        let text = |code| error_text(&refused(answer(code, "no"), "cannot cancel a", "the verb cancel"));
        assert_eq!([403, 404].map(text), ["cannot cancel a (requires the verb cancel): no", "cannot cancel a: no"]);
    }

    #[test]
    fn a_file_that_cannot_be_read_says_where_and_not_how_a_program_would_read_it() {
        let error = |text| error_text(&objects_in(text).unwrap_err());
        assert_eq!(
            error("kind: A\nkind: B\n"),
            "it cannot be read as YAML or JSON: duplicate mapping key: kind not allowed here at line 2, column 1"
        );
        assert!(error("a: [1\n").contains("at line 1, column 4"), "{}", error("a: [1\n"));
    }

    #[tokio::test]
    async fn a_context_that_is_not_there_is_named() {
        let missing = ClusterArgs { kubeconfig: Some("/no/such/kubeconfig".into()), context: None };
        let text = client(&missing).await.err().map(|error| error_text(&error)).unwrap_or_default();
        assert!(text.contains("--kubeconfig or --context") && text.contains(" '/no/such/kubeconfig': "), "{text}");
    }
}
