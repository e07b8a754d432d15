//! The test bed by hand: brings it up and down, and reaches into it.

use std::{os::unix::process::CommandExt, process::Command, time::Duration};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use nrh_testbed::{
    Bed, BedOptions, Platform, assets, images, matrix, on_node, operator, packages, start_check, supervise,
    unprivileged, wait,
};

/// A real Kubernetes on one Linux machine, with faults injected for real.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// Name of the bed
    #[arg(long, global = true, default_value = "bed")]
    name: String,
    #[command(subcommand)]
    command: Sub,
}

#[derive(Debug, Subcommand)]
enum Sub {
    /// Bring a bed up; it ends with this program unless it is kept
    Up {
        /// Real nodes in namespaces of this machine; 2 unless there are machines
        #[arg(long)]
        nodes: Option<usize>,
        /// Nodes that are whole machines
        #[arg(long, default_value_t = 0)]
        machines: usize,
        /// What machines run; an unknown name is answered with all
        #[arg(long, visible_alias = "runtime", default_value = Platform::default().name, value_parser = Platform::named)]
        platform: Platform,
        /// Simulated nodes
        #[arg(long, default_value_t = 0)]
        kwok: usize,
        /// Let systemd run the real nodes
        #[arg(long)]
        units: bool,
        /// Leave it running
        #[arg(long)]
        keep: bool,
    },
    /// Take a kept bed down
    Down,
    /// Five incidents on a real node: observed in a dry run, remediated, verified
    Demo {
        /// Stand-ins for containerd and the kubelet; without root there is no other way
        #[arg(long)]
        fake: bool,
        /// On machines with this platform
        #[arg(long, value_parser = Platform::named, conflicts_with = "fake")]
        platform: Option<Platform>,
        /// Leave the cluster up
        #[arg(long)]
        keep: bool,
        /// Only these acts (hung-container, leaked-shim, orphan-nothing-runs, hung-network-plugin, back-off-pod)
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
        /// Watch no controls: quicker, proves less
        #[arg(long)]
        no_controls: bool,
        /// Simulated nodes
        #[arg(long, default_value_t = 20)]
        kwok: usize,
        /// Where the report is written
        #[arg(long, default_value = "target/demo/report.json")]
        report: std::path::PathBuf,
    },
    /// Write what the tests have seen of each fault into the documentation
    Matrix {
        /// The document
        #[arg(default_value = "docs/reference/faults.md")]
        document: std::path::PathBuf,
    },
    /// Write what was seen to hold on each platform into the documentation
    Support {
        /// The document
        #[arg(default_value = "docs/reference/support.md")]
        document: std::path::PathBuf,
    },
    /// Write who may do what into the documentation
    Access {
        /// The document
        #[arg(default_value = "docs/reference/permissions.md")]
        document: std::path::PathBuf,
        /// The table that the tests hold the API server to
        #[arg(default_value = "tests/cluster/admission/access.yaml")]
        table: std::path::PathBuf,
    },
    /// Build and install what a bed needs; prints the folders with Kubernetes' programs
    Assets {
        /// With the Kubernetes of this platform, first
        #[arg(long, default_value = Platform::default().name, value_parser = Platform::named)]
        platform: Platform,
        /// And what its machines are made from
        #[arg(long)]
        machines: bool,
    },
    /// Build the operator's programs as they are shipped, and the workload of beds
    Programs,
    /// Remove what beds have left behind whose owners were killed
    Tidy,
    /// Run kubectl as admin
    Kubectl {
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Run a command on a node
    Node {
        /// Name of the node
        node: String,
        /// The command
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
    /// Print where the logs are and how they end
    Logs,
    /// List beds
    Status,
    /// What the bed asks of a machine, on the machine
    #[command(hide = true, subcommand)]
    OnNode(on_node::Question),
    /// Run a program and start it again whenever it ends
    Supervise(supervise::Args),
    /// The start check of kubelets ≤ 1.23, a stand-in
    StartCheck {
        /// CRI socket
        #[arg(long, default_value = nrh_testbed::view::SOCKET)]
        socket: std::path::PathBuf,
    },
}

fn main() -> std::process::ExitCode {
    if let Some(done) = nrh_testbed::stand_in::by_name() {
        return ended(done);
    }
    // The client calls each refused connection of a starting server an error.
    let filter =
        tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn,kube_client=off".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    ended(run(Cli::parse()))
}

fn ended(done: Result<()>) -> std::process::ExitCode {
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testbed: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Sub::Up { nodes, machines, platform, kwok, units, keep } => {
            let nodes = nodes.unwrap_or(if machines == 0 { 2 } else { 0 });
            up(BedOptions { name: cli.name, nodes, machines, platform, units, keep, ..BedOptions::default() }, kwok)
        }
        Sub::Demo { fake, platform, keep, only, no_controls, kwok, report } => {
            let fake = fake || !unprivileged::is_root();
            if fake && keep && !unprivileged::is_root() {
                bail!("without root the cluster cannot be kept: its namespaces end with this program");
            }
            unprivileged::become_root()?;
            let options =
                nrh_testbed::demo::Options { fake, machines: platform, keep, only, no_controls, kwok, report };
            let ok = nrh_testbed::demo::run(&options)?;
            if ok { Ok(()) } else { bail!("the demo did not hold, see the report") }
        }
        Sub::Down => Bed::attach(&cli.name)?.down(),
        Sub::Matrix { document } => matrix::write_into(&document),
        Sub::Support { document } => matrix::support::write_into(&document),
        Sub::Access { document, table } => matrix::access::write_into(&document, &table),
        Sub::Programs => {
            operator::shipped()?;
            images::workload_binary().map(drop)
        }
        Sub::Assets { platform, machines } => {
            use packages::{BED, BUILD, BUS, NODE, UNITS};
            [BED, NODE, BUILD, BUS, UNITS].into_iter().try_for_each(packages::ensure)?;
            let folders = platform.programs(&[assets::CONTROL_PLANE, assets::NODE, assets::KWOK])?;
            for folder in &folders {
                println!("{}", folder.display());
            }
            if machines { platform.make_machines(&folders) } else { Ok(()) }
        }
        Sub::Tidy => nrh_testbed::tidy(),
        Sub::Kubectl { args } => become_command(Bed::attach(&cli.name)?.command("kubectl").args(args)),
        Sub::Node { node, command } => {
            let (program, args) = command.split_first().context("no command")?;
            become_command(Bed::attach(&cli.name)?.node(&node)?.command(program).args(args))
        }
        Sub::Logs => logs(&Bed::attach(&cli.name)?),
        Sub::Status => {
            status();
            Ok(())
        }
        Sub::OnNode(question) => on_node::answer(&question),
        Sub::Supervise(args) => supervise::run(&args),
        Sub::StartCheck { socket } => start_check::run(&socket),
    }
}

fn up(options: BedOptions, kwok: usize) -> Result<()> {
    // Heartbeats of thousands of nodes come late on a small machine.
    let node_monitor_grace = (kwok > 500).then_some(Duration::from_mins(15));
    let keep = options.keep;
    let bed = Bed::up(BedOptions { node_monitor_grace, ..options })?;
    if kwok > 0 {
        bed.add_kwok_nodes(kwok)?;
    }
    println!("bed {} is up: testbed --name {0} kubectl get nodes", bed.name());
    if !keep {
        println!("Ctrl-C ends it");
        wait::until_asked_to_end()?;
    }
    Ok(())
}

fn become_command(command: &mut Command) -> Result<()> {
    Err(command.exec()).with_context(|| format!("run {}", command.get_program().display()))
}

fn logs(bed: &Bed) -> Result<()> {
    let mut files: Vec<_> = std::fs::read_dir(bed.dir().join("logs"))?.flatten().map(|e| e.path()).collect();
    files.extend(bed.nodes().iter().flat_map(|n| ["containerd", "kubelet"].map(|name| n.log(name))));
    files.sort_unstable();
    let status = Command::new("tail").args(["-n", "5"]).args(files).status()?;
    if status.success() { Ok(()) } else { bail!("tail ended with {status}") }
}

fn status() {
    for name in Bed::names() {
        match Bed::attach(&name) {
            Ok(bed) => {
                println!("{name}: up, init {}, {}", bed.realm().init.pid, bed.dir().display());
                for node in bed.nodes() {
                    let state = |name| node.daemon(name).map_or("down".into(), |d| format!("pid {}", d.pid));
                    println!(
                        "  {} {} init {} containerd {} kubelet {}",
                        node.name,
                        node.ip,
                        node.init_pid(),
                        state("containerd"),
                        state("kubelet")
                    );
                }
            }
            Err(error) => println!("{name}: {error:#}"),
        }
    }
}
