//! Flags and environment, read once; nothing else reads either.

use std::fmt;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::api::HumanDuration;
use crate::core::policy::ActionType;
use crate::telemetry::LogFormat;

pub use nrh_caller::ClusterArgs;
pub use nrh_controller::args::ControllerArgs;
pub use nrh_explain::args::{EvidenceArgs, ExplainArgs, StatusArgs};
#[cfg(target_os = "linux")]
pub use nrh_node::args::{ProbeArgs, RunCommandArgs};
pub use nrh_terminal::OutputArgs;

/// Node Runtime Health: finds the faulty object on a node and remediates it in place.
#[derive(Debug, Parser)]
#[command(name = "nrh", version, about)]
pub struct Cli {
    /// Flags that every part has.
    #[command(flatten)]
    pub log: LogArgs,
    /// What to run.
    #[command(subcommand)]
    pub command: Command,
}

/// What is logged, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Common options")]
pub struct LogArgs {
    /// Log format on standard error.
    #[arg(long, global = true, env = "NRH_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Log level, or directives such as `info,nrh=debug`; by default `info` for what runs in the cluster, `off` for the other commands.
    #[arg(long, global = true, env = "NRH_LOG")]
    pub log: Option<String>,
}

/// The parts of the program `nrh`. The probe is a program of its own, see [`ProbeCli`].
#[derive(Debug, Subcommand)]
pub enum Command {
    #[cfg(target_os = "linux")]
    /// The controller: plans and executes remediations in the whole cluster.
    Controller(ControllerArgs),
    #[cfg(target_os = "linux")]
    /// Executes one command on this node, then ends (runs inside a Job).
    #[command(hide = true)]
    RunCommand(RunCommandArgs),
    /// Lists all nodes, the worst first: health, most urgent fault, whether a restart is safe, and what is done.
    #[command(after_help = "Examples:\n  nrh get\n  nrh get -w\n  nrh get worker-1 worker-2 -o yaml")]
    Get(GetArgs),
    /// Explains the state of a node: its faults, what is done about them, and what blocks it.
    #[command(
        after_help = "Examples:\n  nrh explain worker-1\n  nrh explain --file objects.yaml worker-1\n  nrh explain worker-1 -o json"
    )]
    Explain(ExplainArgs),
    /// Checks the cluster before and after the installation: versions, your rights, admission, controller, probes, and what each node lacks. Exit code 0 = all is well, 1 = something is not, 2 = unknown.
    #[command(after_help = "Examples:\n  nrh check\n  nrh check -o json")]
    Check(CheckArgs),
    #[cfg(target_os = "linux")]
    /// Shows what the probe of this node sees, without the API server.
    #[command(after_help = "Examples:\n  nrh status\n  nrh status -o json")]
    Status(StatusArgs),
    /// Prints the evidence that the probe of a node has kept of its confirmed faults.
    #[command(
        after_help = "Examples:\n  nrh evidence worker-1\n  nrh evidence worker-1 -o json\n  nrh evidence --local"
    )]
    Evidence(EvidenceArgs),
    /// Lists the steps that wait for approval, and approves one of them.
    #[command(after_help = "Examples:\n  nrh approve\n  nrh approve worker-1 --operation OPERATION")]
    Approve(ApproveArgs),
    /// Lists the steps that can be requested on a node, and requests one of them.
    #[command(
        after_help = "Examples:\n  nrh remediate worker-1\n  nrh remediate worker-1 --fault HungContainer --action ReleaseHungProcess"
    )]
    Remediate(RemediateArgs),
    /// Cancels a remediation, or a manual request that has not started.
    #[command(after_help = "Examples:\n  nrh cancel worker-1 --reason 'the disk is being replaced'")]
    Cancel(CancelArgs),
    /// Suspends remediation of a node, or all remediation, until `nrh resume`.
    #[command(
        after_help = "Examples:\n  nrh suspend worker-1 --reason 'the disk is being replaced'\n  nrh suspend --all --reason 'network maintenance until 18:00'"
    )]
    Suspend(SuspendArgs),
    /// Resumes remediation of a node, or all remediation.
    #[command(after_help = "Examples:\n  nrh resume worker-1\n  nrh resume --all")]
    Resume(ResumeArgs),
    /// Checks whether kubelet and runtime of a node can be restarted now: exit code 0 = yes, 1 = no, 2 = unknown.
    #[command(after_help = "Examples:\n  nrh restart-safe worker-1 && ssh worker-1 systemctl restart kubelet")]
    RestartSafe(RestartSafeArgs),
    /// Simulates what policies would do over a timeline.
    #[command(
        after_help = "Examples:\n  nrh simulate --timeline timeline.yaml --policy policies/\n  nrh simulate --record >timeline.yaml"
    )]
    Simulate(SimulateArgs),
    /// Rewrites policy files of older versions to the names of this version.
    #[command(after_help = "Examples:\n  nrh migrate --in-place policies/*.yaml")]
    Migrate(MigrateArgs),
    /// Prints what belongs to this version: custom resource definitions, thresholds, shell completions, manual pages.
    #[command(subcommand)]
    Generate(Generate),
}

/// What `nrh generate` prints.
#[derive(Debug, Subcommand)]
pub enum Generate {
    /// Prints the custom resource definitions, or writes them to a folder.
    Crds {
        /// Folder to write one file per definition to; printed when absent.
        #[arg(long)]
        out: Option<PathBuf>,
    },
    #[cfg(target_os = "linux")]
    /// Prints, per kind of fault, the seconds from its first sign to its confirmation, as JSON.
    Thresholds {
        /// Those that a probe with this configuration has; a file that a probe would refuse is refused here too.
        #[arg(long)]
        config: Option<PathBuf>,
    },
    /// Prints the completions of a shell, such as `nrh generate completions bash >/etc/bash_completion.d/nrh`.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Writes the manual pages, one per command, such as `nrh generate man --out /usr/local/share/man/man1`.
    Man {
        /// Folder to write them to.
        #[arg(long)]
        out: PathBuf,
    },
}

/// Flags of `nrh migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// Files with policies.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Rewrite the files in place. Without it the result is printed.
    #[arg(long)]
    pub in_place: bool,
}

/// The probe of Node Runtime Health: checks the runtime and the kubelet of its own node.
#[cfg(target_os = "linux")]
#[derive(Debug, Parser)]
#[command(name = "nrh-probe", version, about)]
pub struct ProbeCli {
    /// Flags that every part has.
    #[command(flatten)]
    pub log: LogArgs,
    /// The probe's own.
    #[command(flatten)]
    pub probe: ProbeArgs,
}

/// Flags of `nrh get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// Only these nodes.
    pub nodes: Vec<String>,
    /// Watch: print each node again when its line changes. Ends with Ctrl-C.
    #[arg(long, short)]
    pub watch: bool,
    /// How to print.
    #[command(flatten)]
    pub print: OutputArgs,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Flags of `nrh check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// How to print.
    #[command(flatten)]
    pub print: OutputArgs,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Flags of `nrh approve`.
#[derive(Debug, Args)]
pub struct ApproveArgs {
    /// A node, or the name of a remediation; by default all steps that wait.
    pub what: Option<String>,
    /// Approve this operation. Without it, what waits is printed.
    #[arg(long)]
    pub operation: Option<String>,
    /// How to print.
    #[command(flatten)]
    pub print: OutputArgs,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Flags of `nrh remediate`.
#[derive(Debug, Args)]
pub struct RemediateArgs {
    /// The node.
    pub node: String,
    /// The action to execute, such as `CleanupOrphans` or `RestartKubelet`: a step that a policy has for the fault. Without it, the possible steps are printed.
    #[arg(long, value_parser = action)]
    pub action: Option<ActionType>,
    /// For this fault: its type, or its id where the node has several of that type.
    #[arg(long)]
    pub fault: Option<String>,
    /// Use the step of this policy.
    #[arg(long)]
    pub policy: Option<String>,
    /// Why, in one sentence; recorded in the remediation.
    #[arg(long)]
    pub reason: Option<String>,
    /// Cancel the request if it cannot start within this time (1m to 24h); 1h by default.
    #[arg(long)]
    pub timeout: Option<HumanDuration>,
    /// How to print.
    #[command(flatten)]
    pub print: OutputArgs,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

fn action(text: &str) -> Result<ActionType, String> {
    let all = ActionType::ALL;
    let found = all.into_iter().find(|action| action.as_str() == text);
    let names = || all.map(ActionType::as_str).join(", ");
    found.ok_or_else(|| format!("expected one of {}", names()))
}

/// Flags of `nrh cancel`.
#[derive(Debug, Args)]
pub struct CancelArgs {
    /// A node, or the name of a remediation.
    pub what: String,
    /// Why, in one sentence; recorded in the remediation.
    #[arg(long)]
    pub reason: Option<String>,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// One node, or everything.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct SuspendTarget {
    /// The node.
    pub node: Option<String>,
    /// All nodes and all policies: `RemediationConfig` cluster.
    #[arg(long)]
    pub all: bool,
}

impl fmt::Display for SuspendTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.node.as_deref().unwrap_or("--all"))
    }
}

/// Flags of `nrh suspend`.
#[derive(Debug, Args)]
pub struct SuspendArgs {
    /// What is suspended.
    #[command(flatten)]
    pub target: SuspendTarget,
    /// Why, in one sentence, for the people who find it suspended.
    #[arg(long)]
    pub reason: Option<String>,
    /// Replace the suspension of another person.
    #[arg(long)]
    pub force: bool,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Flags of `nrh resume`.
#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// What is resumed.
    #[command(flatten)]
    pub target: SuspendTarget,
    /// Resume also what another person suspended.
    #[arg(long)]
    pub force: bool,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Flags of `nrh restart-safe`.
#[derive(Debug, Args)]
pub struct RestartSafeArgs {
    /// The node. Its probe asks every container now.
    pub node: String,
    /// How long to wait for the answer (1s to 24h); 30s by default.
    #[arg(long)]
    pub timeout: Option<HumanDuration>,
    /// How to print.
    #[command(flatten)]
    pub print: OutputArgs,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Flags of `nrh simulate`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("source").required(true).args(["timeline", "record"])))]
pub struct SimulateArgs {
    /// File with what happens, and with what is expected of the policies.
    #[arg(long, short)]
    pub timeline: Option<PathBuf>,
    /// Print a timeline instead: the last remediations in the cluster of the current kubeconfig, and its present faults.
    #[arg(long, conflicts_with_all = ["policies", "assume_enforce", "output"])]
    pub record: bool,
    /// With `--record`: read from a file instead, as `kubectl get nodes,nrh,ncmd,rmp,rmc,nrem -o yaml` prints it.
    #[arg(long, short, requires = "record")]
    pub file: Option<PathBuf>,
    /// File or folder with policies; may be given several times. By default those that the timeline names.
    #[arg(long = "policy", short)]
    pub policies: Vec<PathBuf>,
    /// Treat dry-run policies as enforcing ones.
    #[arg(long)]
    pub assume_enforce: bool,
    /// How to print. JSON and YAML: `start` and `end`, `unmet` (what was expected in vain), `notes`, and `lines`, each with `at` and
    /// `seconds` since `start`, `node`, `policy`, `what`, its `detail`, and `message`.
    #[command(flatten)]
    pub print: OutputArgs,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn a_simulation_without_a_source_is_asked_for_either() {
        let error = |words: &[&str]| Cli::try_parse_from(words).unwrap_err().to_string();
        assert!(error(&["nrh", "simulate"]).contains("--timeline <TIMELINE>|--record"));
        assert!(error(&["nrh", "simulate", "--record", "-t", "a"]).contains("cannot be used with"));
    }

    #[test]
    fn what_many_commands_have_in_common_is_shown_apart_from_their_own_flags() {
        let mut cli = Cli::command();
        let help = cli.find_subcommand_mut("explain").unwrap().render_help().to_string();
        cli.build();
        let explain = cli.find_subcommand("explain").unwrap();
        let common = explain.get_arguments().filter(|one| one.get_help_heading() == Some("Common options"));
        let common: Vec<&str> = common.map(|one| one.get_id().as_str()).collect();
        assert_eq!(common, ["kubeconfig", "context", "log_format", "log"], "{help}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn whoever_makes_the_job_names_no_socket_and_no_folder() {
        for flag in ["--runtime-endpoint=/x", "--docker-endpoint=/x", "--state-dir=/x"] {
            let words = ["nrh", "run-command", "--command={}", "--node-name=n1"];
            assert!(Cli::try_parse_from(words).is_ok());
            assert!(Cli::try_parse_from([&words[..], &[flag]].concat()).is_err(), "{flag}");
        }
        let act = Cli::command().find_subcommand("run-command").cloned().unwrap();
        let variables: Vec<_> = act.get_arguments().filter_map(|argument| argument.get_env()).collect();
        assert_eq!(variables, ["NRH_COMMAND", "NODE_NAME"]);
    }
}
