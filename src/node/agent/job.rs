//! `nrh act`: one order from the environment, one outcome into the termination message.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;

use super::reader::Reader;
use super::{Agent, AgentSettings};
use crate::cli::ActArgs;
use crate::core::fault::MAX_LINE;
use crate::core::order::{Order, Outcome, OutcomeReason, OutcomeState};
use crate::core::text::bounded;
use crate::node::collect::HostPaths;
use crate::node::collect::kubelet::Finder;
use crate::node::cri::endpoint::{self, Endpoint, Flags, NamedBy};

/// Largest order that is read, in bytes.
const MAX_ORDER: usize = 64 << 10;
/// Largest termination message the kubelet keeps, in bytes.
const MAX_OUTCOME: usize = 4096;
/// How long the runtime's socket is looked for.
const FIND: Duration = Duration::from_secs(5);

/// Runs one order, in a Job. The outcome goes to `--outcome`; the exit code is 0 when the order was done or refused,
/// and 1 when it failed or could not be read.
pub async fn run(args: ActArgs) -> anyhow::Result<()> {
    let outcome = match read_order(&args.order) {
        Ok(order) => {
            let flags = Flags { runtime: args.runtime_endpoint.clone(), docker: args.docker_endpoint.clone() };
            let (endpoint, docker_socket) = sockets(flags).await;
            let settings = AgentSettings::new(&args.node_name, &args.state_dir, endpoint);
            Agent::new(AgentSettings { docker_socket, ..settings }).execute(&order).await
        }
        Err(said) => unreadable(&said),
    };
    write_outcome(&args.outcome, &outcome)?;
    anyhow::ensure!(outcome.state != OutcomeState::Failed, "the order failed: {}", outcome.message);
    Ok(())
}

pub(in crate::node) fn read_order(text: &str) -> Result<Order, String> {
    if text.len() > MAX_ORDER {
        return Err(format!("the order has {} bytes, at most {MAX_ORDER} are read", text.len()));
    }
    serde_json::from_str(text).map_err(|error| format!("the order cannot be read: {error}"))
}

/// There is no operation to answer, but the Job must say what was wrong.
fn unreadable(said: &str) -> Outcome {
    Outcome {
        operation_id: String::new(),
        state: OutcomeState::Failed,
        reason: OutcomeReason::CannotLook,
        message: bounded(said, MAX_LINE),
        at: Timestamp::now(),
    }
}

/// The runtime's socket as a person named it, else as the kubelet uses it, else where one is found; and Docker's. Where
/// none is, every look that needs the runtime fails by itself, and says where it looked.
async fn sockets(flags: Flags) -> (Endpoint, PathBuf) {
    let find = move || {
        let host = HostPaths::default();
        let kubelet = Finder::new(&host.proc).find().ok().flatten().and_then(|found| found.settings.ok());
        let named = kubelet.and_then(|settings| settings.runtime_endpoint);
        (endpoint::find(&flags, named.as_deref(), &host), endpoint::docker(&flags, &host))
    };
    let found = Reader::default().run(FIND, find).await.ok();
    let (endpoint, docker) = found.map_or((None, None), |(endpoint, docker)| (endpoint, Some(docker)));
    let usual = || Endpoint::cri(PathBuf::from("/run/containerd/containerd.sock"), NamedBy::Nobody);
    (endpoint.unwrap_or_else(usual), docker.unwrap_or_else(|| PathBuf::from(endpoint::DOCKER)))
}

fn write_outcome(path: &Path, outcome: &Outcome) -> anyhow::Result<()> {
    let text = serde_json::to_vec(outcome).context("cannot write the outcome as JSON")?;
    anyhow::ensure!(text.len() <= MAX_OUTCOME, "the outcome has {} bytes, at most {MAX_OUTCOME} fit", text.len());
    std::fs::write(path, text).with_context(|| format!("cannot write the outcome to {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(folder: &Path, order: &str) -> ActArgs {
        ActArgs {
            order: order.to_owned(),
            node_name: "n1".to_owned(),
            runtime_endpoint: Some(folder.join("none.sock")),
            docker_endpoint: None,
            state_dir: folder.join("state"),
            outcome: folder.join("outcome"),
        }
    }

    fn order() -> serde_json::Value {
        serde_json::json!({
            "operationId": "op-1", "epoch": 1, "node": "n2", "action": "ReleaseCont", "faultId": "f",
            "faultType": "HungContainer", "target": {}, "issuedAt": Timestamp::now(), "ttlSeconds": 60
        })
    }

    fn written(folder: &Path) -> Outcome {
        serde_json::from_slice(&std::fs::read(folder.join("outcome")).unwrap()).unwrap()
    }

    #[tokio::test]
    async fn a_refusal_is_an_answer_not_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        run(args(folder.path(), &order().to_string())).await.unwrap();
        let outcome = written(folder.path());
        assert_eq!((outcome.state, outcome.reason), (OutcomeState::Refused, OutcomeReason::WrongNode));
        assert_eq!(outcome.operation_id, "op-1");
    }

    #[tokio::test]
    async fn orders_that_cannot_be_read_fail_and_say_why() {
        let folder = tempfile::tempdir().unwrap();
        let mut unknown = order();
        unknown["path"] = "/etc".into();
        let mut other = order();
        other["action"] = "PowerOff".into();
        for text in [String::new(), "{".to_owned(), unknown.to_string(), other.to_string(), " ".repeat(MAX_ORDER + 1)] {
            assert!(run(args(folder.path(), &text)).await.is_err(), "{text:.80}");
            let outcome = written(folder.path());
            assert_eq!(outcome.state, OutcomeState::Failed);
            assert!(std::fs::metadata(folder.path().join("outcome")).unwrap().len() < 4096);
        }
    }
}
