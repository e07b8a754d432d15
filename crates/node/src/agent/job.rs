//! `nrh run-command`: reads one command from the environment and writes one outcome to the termination message.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;

use super::{Agent, AgentSettings};
use crate::args::RunCommandArgs;
use crate::collect::HostPaths;
use crate::collect::kubelet::Finder;
use crate::cri::endpoint::{self, Endpoint, Flags, NamedBy};
use crate::proc;
use crate::reader::Reader;
use crate::state::StateFile;
use nrh_api::local::STATE_DIR;
use nrh_core::command::{ActionCommand, Outcome, OutcomeReason, OutcomeState};
use nrh_core::fault::MAX_LINE;
use nrh_core::text::bounded;

/// Maximum size of a command, in bytes.
const MAX_ORDER: usize = 64 << 10;
/// Maximum size of a termination message that the kubelet keeps, in bytes.
const MAX_OUTCOME: usize = 4096;
/// How long the search for the runtime's socket may take.
const FIND: Duration = Duration::from_secs(5);

/// Executes one command in a Job. The outcome goes to `--outcome`; the exit code is 0 if the command was executed or
/// refused, and 1 if it failed or could not be read.
pub async fn run(args: RunCommandArgs) -> anyhow::Result<()> {
    run_in(Path::new(STATE_DIR), args).await
}

async fn run_in(state_dir: &Path, args: RunCommandArgs) -> anyhow::Result<()> {
    let outcome = match read_command(&args.command) {
        Ok(command) => {
            let (endpoint, docker_socket) = sockets(state_dir).await;
            let settings = AgentSettings::new(&args.node_name, state_dir, endpoint);
            Agent::new(AgentSettings { docker_socket, ..settings }).execute(&command).await
        }
        Err(message) => unreadable(&message),
    };
    write_outcome(&args.outcome, &outcome)?;
    anyhow::ensure!(outcome.state != OutcomeState::Failed, "the command failed: {}", outcome.message);
    Ok(())
}

pub(crate) fn read_command(text: &str) -> Result<ActionCommand, String> {
    if text.len() > MAX_ORDER {
        return Err(format!("the command has {} bytes, at most {MAX_ORDER} are read", text.len()));
    }
    serde_json::from_str(text).map_err(|error| format!("the command cannot be read: {error}"))
}

/// There is no operation to answer, but the Job must report the error.
fn unreadable(message: &str) -> Outcome {
    Outcome {
        operation_id: String::new(),
        state: OutcomeState::Failed,
        reason: OutcomeReason::CheckFailed,
        message: bounded(message, MAX_LINE),
        at: Timestamp::now(),
    }
}

/// Returns the runtime's socket, and Docker's: as a person configured it for this node's probe, else as the kubelet
/// uses it, else as found. The creator of the Job names none. If there is no socket, every check that needs the runtime
/// fails by itself and reports the path.
async fn sockets(state_dir: &Path) -> (Endpoint, PathBuf) {
    let state_dir = state_dir.to_owned();
    let find = move || {
        let host = HostPaths::default();
        let Flags { runtime, docker } = named_to_probe(&state_dir, &host.proc).unwrap_or_default();
        // A probe that runs as a unit sees the node's own folders, and this Job few of them.
        let here = |path: PathBuf| host.socket(&path);
        let flags = Flags { runtime: runtime.map(here), docker: docker.map(here) };
        let kubelet = Finder::new(&host.proc).find().ok().flatten().and_then(|found| found.settings.ok());
        let named = kubelet.as_ref().and_then(|settings| settings.runtime_endpoint.as_deref());
        let usual = kubelet.as_ref().and_then(|settings| settings.usual_runtime);
        (endpoint::find(&flags, named, usual, &host), endpoint::docker(&flags, &host))
    };
    let found = Reader::default().run(FIND, find).await.ok();
    let (endpoint, docker) = found.map_or((None, None), |(endpoint, docker)| (endpoint, Some(docker)));
    let usual = || Endpoint::cri(PathBuf::from("/run/containerd/containerd.sock"), NamedBy::Nobody);
    (endpoint.unwrap_or_else(usual), docker.unwrap_or_else(|| PathBuf::from(endpoint::DOCKER)))
}

fn named_to_probe(state_dir: &Path, proc: &Path) -> std::io::Result<Flags> {
    let boot_id = proc::boot_id(proc)?;
    Ok(StateFile::open(state_dir, &boot_id)?.load(proc::uptime(proc)?).sockets)
}

fn write_outcome(path: &Path, outcome: &Outcome) -> anyhow::Result<()> {
    let text = serde_json::to_vec(outcome).context("cannot write the outcome as JSON")?;
    anyhow::ensure!(text.len() <= MAX_OUTCOME, "the outcome has {} bytes, at most {MAX_OUTCOME} fit", text.len());
    std::fs::write(path, text).with_context(|| format!("cannot write the outcome to {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Saved;

    async fn act(folder: &Path, command: &str) -> anyhow::Result<()> {
        let args =
            RunCommandArgs { command: command.to_owned(), node_name: "n1".to_owned(), outcome: folder.join("outcome") };
        run_in(&folder.join("state"), args).await
    }

    fn command() -> serde_json::Value {
        serde_json::json!({
            "operationId": "op-1", "epoch": 1, "node": "n2", "action": "ReleaseHungProcess", "releaseHungProcess": {"signal": "SIGCONT"}, "faultId": "f",
            "faultType": "HungContainer", "target": {}, "issuedAt": Timestamp::now(), "ttlSeconds": 60
        })
    }

    fn written(folder: &Path) -> Outcome {
        serde_json::from_slice(&std::fs::read(folder.join("outcome")).unwrap()).unwrap()
    }

    #[tokio::test]
    async fn a_refusal_is_an_answer_not_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        act(folder.path(), &command().to_string()).await.unwrap();
        let outcome = written(folder.path());
        assert_eq!((outcome.state, outcome.reason), (OutcomeState::Refused, OutcomeReason::WrongNode));
        assert_eq!(outcome.operation_id, "op-1");
    }

    #[tokio::test]
    async fn the_node_names_the_sockets() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = StateFile::open(folder.path(), &proc::boot_id(Path::new(proc::PROC)).unwrap()).unwrap();
        let named = Flags { runtime: Some("/named.sock".into()), docker: Some("/docker.sock".into()) };
        file.save(&Saved { sockets: named, ..file.load(Duration::ZERO) }).unwrap();
        let found = sockets(folder.path()).await;
        assert_eq!(found, (Endpoint::cri("/named.sock".into(), NamedBy::Flag), PathBuf::from("/docker.sock")));
    }

    #[tokio::test]
    async fn commands_that_cannot_be_read_fail_and_say_why() {
        let folder = tempfile::tempdir().unwrap();
        let mut unknown = command();
        unknown["path"] = "/etc".into();
        let mut other = command();
        other["action"] = "PowerOff".into();
        for text in [String::new(), "{".to_owned(), unknown.to_string(), other.to_string(), " ".repeat(MAX_ORDER + 1)] {
            assert!(act(folder.path(), &text).await.is_err(), "{text:.80}");
            let outcome = written(folder.path());
            assert_eq!(outcome.state, OutcomeState::Failed);
            assert!(std::fs::metadata(folder.path().join("outcome")).unwrap().len() < 4096);
        }
    }
}
