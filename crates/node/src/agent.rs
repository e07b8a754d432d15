//! The executor: it executes one command on one object, with at most one action. The same code runs in a Job
//! (`nrh run-command`) and inside the probe. The node's own preflight decides.
//!
//! ```text
//! command ─► well formed, for us ─► known outcome? ─► epoch, time ─► hold + prove ─► preflight ─► claim ─► execute ─► verify
//! ```
//!
//! The order of these steps is the safety argument and never changes:
//! - a pidfd holds the process *before* the preflight, so the executor signals the process that it checked;
//! - the executor takes the claim *after* the preflight and directly *before* the action, by creating a file
//!   exclusively: two executors, a late Job and a restart together execute the action once. After a crash between claim
//!   and action, the action is never executed;
//! - every result is stored under the operation, a refusal as well: an operation has one outcome for every caller.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::collect::kubelet::USUAL_HEALTHZ;
use crate::cri::endpoint::{DOCKER, Endpoint};
use crate::proc;
use crate::proc::role::{CNI_FOLDERS, Prover};
use crate::reader::Reader;
use nrh_core::action::Action;
use nrh_core::command::{ActionCommand, Outcome, OutcomeReason};
use nrh_core::restart_safety::RestartSafety;
use nrh_core::thresholds::Thresholds;

pub(crate) mod admission;
mod check;
mod checker;
pub(crate) mod claims;
mod execute;
pub(crate) mod job;
mod target;
mod verdict;

pub use checker::Bounds;
pub use job::run;

use checker::Checker;
use claims::{Claims, Known, Moment, NoLeader};
use verdict::Refusal;

/// Linux capabilities a container needs to act, each with its reason. Everything else is dropped.
///
/// With them go: uid 0, `hostPID: true`, `hostNetwork: true` (the Job must start where no CNI works),
/// `allowPrivilegeEscalation: false`, a read-only root, and `appArmorProfile: Unconfined` and `SELinux` type
/// `spc_t`, since default profiles forbid signals to processes outside the container.
pub const CAPABILITIES: &[(&str, &str)] = &[
    ("KILL", "to signal the one hung process; shims run as root too, but a plugin may have changed its user"),
    (
        "SYS_PTRACE",
        "to read the executable, environment, wait channel and open files of host processes, which have more capabilities than this container: without it no role can be proven",
    ),
];

/// Host folders a container needs to act: path, whether it is mounted writable, reason.
pub const MOUNTS: &[(&str, bool, &str)] = &[
    (
        "/run/nrh",
        true,
        "epoch and claims: what makes an operation happen once, whichever collector carries it out (type DirectoryOrCreate)",
    ),
    (
        "/run/containerd",
        false,
        "containerd's socket; the folder, not the socket, since a restarted runtime makes a new one. Connecting \
         needs no writable mount. Sockets elsewhere (Docker, CRI-O) are reached below the root of process 1, with the \
         right to read processes",
    ),
];

/// The probe's last judgement of a restart, and its moment; `None` before the first one.
pub type LastJudgement = Option<(Instant, RestartSafety)>;

/// Settings of an executor.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// Name of this node; commands for other nodes are refused.
    pub node: String,
    /// Folder for epoch and claims, shared with every other executor on the node.
    pub state_dir: PathBuf,
    /// Endpoint of the container runtime.
    pub endpoint: Endpoint,
    /// Docker's own socket; used if Docker is the runtime.
    pub docker_socket: PathBuf,
    /// The kubelet's version, if it is known.
    pub kubelet_version: Option<String>,
    /// Whether the daemons can be restarted, as the probe sees it now; `None` in a Job, which restarts none.
    pub restart_safety: Option<watch::Receiver<LastJudgement>>,
    /// The node's system bus; if `None`, the executor looks for it.
    pub bus: Option<PathBuf>,
    /// Whether actions are allowed; if not, every command is refused.
    pub allow_actions: bool,
    /// Path of the process table.
    pub proc: PathBuf,
    /// Root of the node's own file systems: that of process 1.
    pub host: PathBuf,
    /// Where a kubelet serves its health check unless it is configured otherwise.
    pub healthz: SocketAddr,
    /// Folders of CNI plugins.
    pub cni_folders: Vec<PathBuf>,
    /// Deadlines of the single waits.
    pub bounds: Bounds,
    /// Ages from which a process counts as hung or as started.
    pub thresholds: Thresholds,
    /// Threads for blocking reads; clones of the settings share them.
    pub reader: Reader,
}

impl AgentSettings {
    /// Default settings of an executor that may execute actions.
    pub fn new(node: &str, state_dir: &Path, endpoint: Endpoint) -> Self {
        Self {
            node: node.to_owned(),
            state_dir: state_dir.to_owned(),
            endpoint,
            docker_socket: PathBuf::from(DOCKER),
            kubelet_version: None,
            restart_safety: None,
            bus: None,
            allow_actions: true,
            proc: PathBuf::from(proc::PROC),
            host: Path::new(proc::PROC).join("1/root"),
            healthz: USUAL_HEALTHZ,
            cni_folders: CNI_FOLDERS.iter().map(PathBuf::from).collect(),
            bounds: Bounds::default(),
            thresholds: Thresholds::default(),
            reader: Reader::default(),
        }
    }
}

/// Executes commands.
#[derive(Debug)]
pub struct Agent {
    claims: Claims,
    checker: Checker,
}

impl Agent {
    /// Creates an executor with these settings; it touches nothing yet.
    pub fn new(settings: AgentSettings) -> Self {
        let prover = Prover::new(&settings.proc).with_cni_folders(settings.cni_folders.clone());
        Self { claims: Claims::new(&settings.state_dir), checker: Checker { prover, settings } }
    }

    /// Executes one command, at most once per operation id.
    ///
    /// The call is bounded: the preflight by its longest time, the action by the sum of its own bounds. A repeated call
    /// with the same command returns the stored outcome.
    pub async fn execute(&self, command: &ActionCommand) -> Outcome {
        self.execute_while(command, || true).await
    }

    /// As [`Agent::execute`], if the command is still current right before the action: the preflight may take minutes.
    pub async fn execute_while(&self, command: &ActionCommand, is_current: impl Fn() -> bool + Send + Sync) -> Outcome {
        let outcome = self.carry_out(command, is_current).await.unwrap_or_else(|refusal| refusal.outcome(command));
        tracing::info!(
            operation = outcome.operation_id,
            action = ?command.action,
            state = ?outcome.state,
            reason = ?outcome.reason,
            message = outcome.message,
            "command ended"
        );
        outcome
    }

    /// Returns what this executor lacks to execute actions, one sentence each; empty if nothing is missing.
    pub async fn self_check(&self) -> Vec<String> {
        let mut missing = check::check(&self.checker).await;
        if !self.checker.allow_actions {
            missing.push("actions are disabled (--allow-actions)".to_owned());
        }
        missing
    }

    /// Returns an error for a refusal that is not stored: the command was not admitted, or another executor owns its
    /// claim.
    async fn carry_out(&self, command: &ActionCommand, is_current: impl Fn() -> bool) -> Result<Outcome, Refusal> {
        if !self.checker.allow_actions {
            return Err(Refusal::new(OutcomeReason::ActionsDisabled, "actions are disabled on this node"));
        }
        let admitted = admission::admit(command, &self.checker.node)?;
        self.in_its_boot(command)?;
        self.claims.prepare().map_err(no_state)?;
        if let Some(outcome) = self.known(command).await? {
            return Ok(outcome);
        }
        let first_read = self.first_read_in_time(command).await?;
        let began = Instant::now();
        let longest = self.checker.longest_check(command.fault_type);
        let checked = tokio::time::timeout(longest, execute::check(&self.checker, command, &admitted)).await;
        let (took, seconds) = (began.elapsed(), longest.as_secs());
        let checked = match checked {
            Err(_) => Err(Refusal::cannot_check(format!("the check took longer than {seconds}s"))),
            // If the process was stalled, the results of the check are old: they describe the past, not the present.
            Ok(Ok(_)) if took > longest => {
                Err(Refusal::cannot_check(format!("this process was stalled: its check is older than {seconds}s")))
            }
            Ok(checked) => checked,
        };
        let allowed = match checked {
            Ok(allowed) => allowed,
            Err(refusal) => return self.refuse(command, refusal).await,
        };
        // Not stored: the controller may have given the same operation to a Job.
        if !is_current() {
            let message = "the controller withdrew the command while this node checked it";
            return Err(Refusal::new(OutcomeReason::Expired, message));
        }
        // The check itself may take longer than the time to live, where it waits for a list.
        let within = admission::ttl(command).max(longest);
        admission::in_time(command, within, &first_read, &self.now().map_err(no_state)?)?;
        if !self.claims.claim(command, None).map_err(no_state)? {
            return self.claimed_by_another(command).await;
        }
        let outcome = execute::execute(command, allowed, &self.checker.bounds.after(took)).await;
        if let Err(error) = self.claims.conclude(command, &outcome) {
            // The action is executed. Only a restart of this executor does not learn its outcome.
            tracing::warn!(operation = command.operation_id, %error, "cannot store the outcome");
        }
        Ok(outcome)
    }

    /// Refuses a command that is for another boot. The state folder does not survive a boot, so this check comes
    /// before everything that reads the folder. A process lives in one boot only, so the result holds until the action.
    fn in_its_boot(&self, command: &ActionCommand) -> Result<(), Refusal> {
        let Some(boot_id) = &command.boot_id else { return Ok(()) };
        let root = self.checker.prover.root();
        let boot = proc::boot_id(root);
        let boot = boot.map_err(|error| Refusal::cannot_check(format!("cannot read the boot id: {error}")))?;
        if boot == *boot_id {
            return Ok(());
        }
        let message =
            format!("the node has already rebooted: the command names boot {boot_id}, the current boot is {boot}");
        Err(Refusal::new(OutcomeReason::AlreadyRebooted, message))
    }

    /// Checks that the command is from the newest leader and in time. Returns when it was first read.
    async fn first_read_in_time(&self, command: &ActionCommand) -> Result<Moment, Refusal> {
        let (claims, epoch) = (self.claims.clone(), command.epoch);
        let raised = self
            .checker
            .reader
            .run(self.checker.bounds.processes, move || claims.raise_epoch(epoch, Timestamp::now()))
            .await?;
        if let Err(no_leader) = raised.map_err(no_state)? {
            let message = match no_leader {
                NoLeader::Behind { seen } => {
                    format!("the command is of leader term {epoch}, this node has seen {seen}")
                }
                NoLeader::Ahead { highest } => format!(
                    "the command is of leader term {epoch}, above {highest}, the highest term that this node accepts by its clock: \
                     see docs/runbook/controller.md"
                ),
            };
            return Err(Refusal::new(OutcomeReason::Expired, message));
        }
        let now = self.now().map_err(no_state)?;
        let first = self.claims.first_read(command, &now).map_err(no_state)?;
        admission::in_time(command, admission::ttl(command), &first, &now)?;
        if let Err(error) = self.claims.sweep(&now) {
            tracing::warn!(%error, "cannot sweep old claims");
        }
        Ok(first)
    }

    /// Returns what is already known of the operation, if anything.
    async fn known(&self, command: &ActionCommand) -> Result<Option<Outcome>, Refusal> {
        let claimed = |message: &str| Err(Refusal::new(OutcomeReason::AlreadyExecuted, message));
        match self.claims.known(command).map_err(no_state)? {
            Known::Free => Ok(None),
            Known::Ended(outcome) => Ok(Some(outcome)),
            Known::Open if matches!(command.action, Action::MarkForReboot(_)) => {
                execute::left(&self.checker, command).await.map(Some)
            }
            Known::Open => claimed(
                "another executor claimed the operation; it is running, or that executor ended without a result",
            ),
            Known::OtherCommand => claimed("another command with this operationID was executed"),
        }
    }

    async fn claimed_by_another(&self, command: &ActionCommand) -> Result<Outcome, Refusal> {
        let gone = || Refusal::new(OutcomeReason::AlreadyExecuted, "another executor has claimed the operation");
        self.known(command).await?.ok_or_else(gone)
    }

    /// Ends the operation with a refusal, so that no other executor executes it later.
    async fn refuse(&self, command: &ActionCommand, refusal: Refusal) -> Result<Outcome, Refusal> {
        let outcome = refusal.outcome(command);
        match self.claims.claim(command, Some(outcome.clone())) {
            Ok(true) => Ok(outcome),
            Ok(false) => self.claimed_by_another(command).await,
            Err(error) => {
                tracing::warn!(operation = command.operation_id, %error, "cannot store a refusal");
                Ok(outcome)
            }
        }
    }

    fn now(&self) -> std::io::Result<Moment> {
        let root = self.checker.prover.root();
        Ok(Moment { boot: proc::boot_id(root)?, uptime: proc::uptime(root)? })
    }
}

/// Without its state folder the executor cannot guarantee at-most-once execution.
fn no_state(error: impl std::fmt::Display) -> Refusal {
    Refusal::cannot_check(format!("cannot use the state folder: {error}"))
}

#[cfg(test)]
mod tests;
