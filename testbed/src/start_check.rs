//! The start check of kubelets ≤ 1.23 as a labelled stand-in: a container whose sandbox is missing ends the start.
//!
//! Those kubelets cannot be built beside a current control plane; what ended them is a dozen lines, repeated here with
//! their very message: list sandboxes, list all containers, and die on the first container whose sandbox is not in the
//! first list (`buildContainerMapFromRuntime`, removed in 1.24).

use std::fmt::{self, Display};
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;

use crate::view::{self, Container, Sandbox, bounded};

/// The kubelet's own limit for a call to its runtime.
const LIMIT: Duration = Duration::from_mins(2);

/// Why the kubelet would have died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingSandbox {
    /// The sandbox of a container, which no list shows
    pub sandbox: String,
}

impl Display for MissingSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "failed to build map of initial containers from runtime: no PodsandBox found with Id '{}'",
            self.sandbox
        )
    }
}

impl std::error::Error for MissingSandbox {}

impl MissingSandbox {
    /// The line those kubelets wrote last.
    pub fn log_line(&self, at: Timestamp) -> String {
        let at = at.strftime("%m%d %H:%M:%S%.6f");
        format!(r#"E{at} {:7} start_check.rs] "Failed to start ContainerManager" err="{self}""#, std::process::id())
    }
}

/// Runs the check against a CRI socket; the error is the kubelets' own.
pub fn run(socket: &Path) -> anyhow::Result<()> {
    Ok(ask(socket)?)
}

/// Asks the runtime for both lists and checks them.
pub(crate) fn ask(socket: &Path) -> Result<(), MissingSandbox> {
    // Both errors are thrown away, as those kubelets did: a failed sandbox list made every container an orphan, and a
    // failed container list none.
    let sandboxes = bounded::block_on("ListPodSandbox", LIMIT, view::sandboxes(socket)).unwrap_or_default();
    let containers = bounded::block_on("ListContainers", LIMIT, view::containers(socket)).unwrap_or_default();
    check(&sandboxes, &containers)
}

fn check(sandboxes: &[Sandbox], containers: &[Container]) -> Result<(), MissingSandbox> {
    match containers.iter().find(|container| !sandboxes.iter().any(|sandbox| sandbox.id == container.sandbox)) {
        None => Ok(()),
        Some(orphan) => Err(MissingSandbox { sandbox: orphan.sandbox.clone() }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::view::PodName;

    #[test]
    fn the_message_is_the_kubelets() {
        let pod = PodName { namespace: "n".into(), name: "p".into(), uid: "u".into() };
        let sandbox = Sandbox { id: "s1".into(), pod: pod.clone(), ready: false, created: 0 };
        let container = |sandbox: &str| Container {
            id: "c".into(),
            sandbox: sandbox.into(),
            pod: pod.clone(),
            name: "work".into(),
            state: "EXITED".into(),
        };
        // A sandbox that is not ready is a sandbox all the same; an exited container dies of its loss like a running one.
        assert_eq!(check(std::slice::from_ref(&sandbox), &[container("s1")]), Ok(()));
        let missing = check(&[sandbox], &[container("s1"), container("0abc")]).unwrap_err();
        assert_eq!(
            missing.to_string(),
            "failed to build map of initial containers from runtime: no PodsandBox found with Id '0abc'"
        );
        let line = missing.log_line(Timestamp::UNIX_EPOCH);
        assert!(line.starts_with("E0101 00:00:00.000000 "), "{line}");
        assert!(line.contains(r#""Failed to start ContainerManager" err="failed to build map"#), "{line}");
    }

    #[test]
    fn a_runtime_that_does_not_answer_is_no_orphan() {
        assert_eq!(ask(Path::new("/nowhere/containerd.sock")), Ok(()));
    }
}
