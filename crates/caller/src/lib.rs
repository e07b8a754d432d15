//! The common part of the commands for people: each call has a timeout, and each write names its author.

use std::error::Error;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{Request, Status};
use kube::{Api, Client, Config, Resource};
use serde_json::Value;
use serde_saphyr::UserMessageFormatter;

/// Timeout of one answer of the API server.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Most objects in one answer of the API server: each has a deadline, and a slow line takes its time.
const PAGE: u32 = 500;

/// Variables of the environment, in the order in which kube reads them.
const HTTPS_PROXY: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
const NO_PROXY: [&str; 2] = ["NO_PROXY", "no_proxy"];

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

fn connect(mut config: Config, cluster: &ClusterArgs) -> anyhow::Result<Client> {
    if has_proxy_of_environment(&config) && is_direct(&config.cluster_url, &variable(NO_PROXY)) {
        config.proxy_url = None;
    }
    let kubeconfig = || match &cluster.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let context = cluster.context.clone().or_else(|| kubeconfig().ok()?.current_context);
    let of = context.map_or_else(String::new, |context| format!(" of context {context}"));
    let _ = SERVER.set(format!("{}{of}", config.cluster_url.to_string().trim_end_matches('/')));
    Ok(Client::try_from(config)?)
}

/// The first of these variables of the environment that is set; empty if none is.
fn variable(names: [&str; 2]) -> String {
    names.into_iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty())).unwrap_or_default()
}

/// Whether the proxy comes from the environment. One that the kubeconfig names is for its cluster, whatever the environment says.
fn has_proxy_of_environment(config: &Config) -> bool {
    let proxy = variable(HTTPS_PROXY).parse::<Uri>();
    proxy.is_ok_and(|proxy| Some(proxy) == config.proxy_url)
}

/// Whether the proxy of the environment is not for this API server, as for kubectl: the API server is on this machine, or `NO_PROXY`
/// names it. kube searches that list for the proxy itself.
fn is_direct(server: &Uri, no_proxy: &str) -> bool {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    is_here || Matcher::builder().all("http://proxy").no(no_proxy).build().intercept(server).is_none()
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
    // As much as `kubectl get` prints of 5,000 nodes. The file is the caller's own.
    let budget = serde_saphyr::budget! {
        max_nodes: 20_000_000,
        max_events: 40_000_000,
        max_total_scalar_bytes: 1 << 30
    };
    let documents: Vec<Value> =
        serde_saphyr::from_multiple_with_options(text, serde_saphyr::options! { budget: budget })
            // With its line and column.
            .map_err(|error| anyhow!("{}", error.without_snippet().render_with_formatter(&UserMessageFormatter)))
            .context("it cannot be read as YAML or JSON")?;
    let objects = documents.into_iter().flat_map(|mut object| match object.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => vec![object],
    });
    Ok(objects.collect())
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

/// The error of a write. Where the right is missing, it names the right. Admission answers 403 for other reasons, too.
pub fn refused(error: anyhow::Error, what: &str, right: &str) -> anyhow::Error {
    let said = error_text(&error);
    let lacks_right =
        code(&error) == Some(403) && [" cannot ", " needs the verb"].iter().any(|lack| said.contains(lack));
    error.context(if lacks_right { format!("{what} (requires {right})") } else { what.to_owned() })
}

/// All objects of a kind, page by page; each is parsed later on its own, so an unreadable one hides no other.
pub async fn list<K: Resource<DynamicType = ()>>(client: Client) -> anyhow::Result<Vec<Value>> {
    let (request, mut all) = (Request::new(K::url_path(&(), None)), Vec::new());
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let mut page: Value = within(client.request(request.list(&params).map_err(kube::Error::BuildRequest)?)).await?;
        match page.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => all.extend(items),
            _ => bail!("expected a list in the answer of the API server, found none"),
        }
        match page.pointer("/metadata/continue").and_then(Value::as_str).filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(token),
            None => return Ok(all),
        }
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
    fn the_environments_proxy_is_not_for_this_machine_nor_for_what_no_proxy_names() {
        for (server, no_proxy, expected) in [
            ("https://10.0.0.1:6443", "", false),
            ("https://127.0.0.1:6443", "", true),
            ("https://[::1]:6443", "", true),
            ("https://localhost:6443", "", true),
            ("https://10.0.0.1:6443", "10.0.0.0/8", true),
            ("https://api.corp.example:6443", ".corp.example,10.0.0.0/8", true),
            ("https://api.corp.example:6443", "other.example", false),
            ("https://api.corp.example:6443", "*", true),
        ] {
            assert_eq!(is_direct(&server.parse().unwrap(), no_proxy), expected, "{server} {no_proxy}");
        }
    }

    #[test]
    fn a_list_of_a_thousand_nodes_is_read() {
        let image =
            "- names: [registry.example/app@sha256:0, registry.example/app:1]\n      sizeBytes: 1\n    ".repeat(50);
        let node = format!("- kind: Node\n  status:\n    images:\n    {image}\n");
        let text = format!("apiVersion: v1\nkind: List\nitems:\n{}", node.repeat(1000));
        assert_eq!(objects_in(&text).unwrap().len(), 1000);
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
        let text = |(code, said)| error_text(&refused(answer(code, said), "cannot cancel a", "the verb cancel"));
        let lack = "User \"ann\" cannot patch resource";
        let denied = "ValidatingAdmissionPolicy 'x' denied request: expected a remediation that is not at its end";
        assert_eq!(text((403, lack)), format!("cannot cancel a (requires the verb cancel): {lack}"));
        assert_eq!(text((403, denied)), format!("cannot cancel a: {denied}"));
        assert_eq!(text((404, "no")), "cannot cancel a: no");
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
