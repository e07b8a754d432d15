//! `nrh`: parses the command line and runs one part. The probe is a program of its own (`src/bin/nrh-probe.rs`).

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use nrh::cli::{Cli, Command, Generate};
use nrh::{process, terminal};

/// Exit code of what was asked for in a way, or of things, that cannot be used; that of a command line that is none.
const UNUSABLE: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Who checks policies, or asks before a restart, has to tell a no from a question that has no answer.
    let is_check = matches!(cli.command, Command::Simulate(_) | Command::RestartSafe(_) | Command::Check(_));
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::complain(&format!("Error: {}", nrh::caller::error_text(&error)));
            let is_unusable = is_check && !error.is::<nrh::No>();
            if is_unusable { ExitCode::from(UNUSABLE) } else { ExitCode::FAILURE }
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    #[cfg(target_os = "linux")]
    let is_service = matches!(cli.command, Command::Controller(_) | Command::RunCommand(_));
    #[cfg(not(target_os = "linux"))]
    let is_service = false;
    let log = if is_service { process::SERVICE } else { process::PERSON };
    process::run(&cli.log, log, async {
        match cli.command {
            #[cfg(target_os = "linux")]
            Command::Controller(args) => Box::pin(nrh::controller::run::run(args)).await,
            #[cfg(target_os = "linux")]
            Command::RunCommand(args) => Box::pin(nrh::node::agent::run(args)).await,
            Command::Get(args) => Box::pin(nrh::get::run(args)).await,
            Command::Check(args) => Box::pin(nrh::check::run(args)).await,
            Command::Explain(args) => Box::pin(nrh::explain::run(args)).await,
            #[cfg(target_os = "linux")]
            Command::Status(args) => Box::pin(nrh::explain::local::run(args)).await,
            Command::Evidence(args) => Box::pin(nrh::explain::evidence::run(args)).await,
            Command::Approve(args) => Box::pin(nrh::approve::run(args)).await,
            Command::Remediate(args) => Box::pin(nrh::remediate::run(args)).await,
            Command::Cancel(args) => Box::pin(nrh::cancel::run(args)).await,
            Command::Suspend(args) => Box::pin(nrh::suspend::suspend(args)).await,
            Command::Resume(args) => Box::pin(nrh::suspend::resume(args)).await,
            Command::RestartSafe(args) => Box::pin(nrh::restart_safe::run(args)).await,
            Command::Simulate(args) => Box::pin(nrh::simulate::run(args)).await,
            Command::Migrate(args) => nrh::migrate::run(&args),
            Command::Generate(Generate::Crds { out }) => print_crds(out.as_deref()),
            #[cfg(target_os = "linux")]
            Command::Generate(Generate::Thresholds { config }) => print_thresholds(config.as_deref()),
            Command::Generate(Generate::Completions { shell }) => print_completions(shell),
            Command::Generate(Generate::Man { out }) => write_man(&out),
        }
    })
}

fn make_folder(path: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(path).with_context(|| format!("cannot make folder {}", path.display()))
}

fn print_crds(out: Option<&Path>) -> anyhow::Result<()> {
    out.map_or(Ok(()), make_folder)?;
    for (file, crd) in nrh::api::crds::all() {
        let yaml = nrh::api::crds::yaml(&crd).with_context(|| format!("cannot write {file} as YAML"))?;
        match out {
            Some(folder) => {
                let path = folder.join(&file);
                std::fs::write(&path, yaml).with_context(|| format!("cannot write {}", path.display()))?;
            }
            None => terminal::print(&format!("---\n{yaml}\n"))?,
        }
    }
    Ok(())
}

fn print_completions(shell: Shell) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "nrh", &mut text);
    terminal::print(&String::from_utf8(text)?)
}

fn write_man(out: &Path) -> anyhow::Result<()> {
    make_folder(out)?;
    clap_mangen::generate_to(Cli::command(), out)
        .with_context(|| format!("cannot write manual pages to {}", out.display()))
}

#[cfg(target_os = "linux")]
fn print_thresholds(config: Option<&Path>) -> anyhow::Result<()> {
    let thresholds = config.map(nrh::node::config::read).transpose()?.unwrap_or_default();
    let seconds: std::collections::BTreeMap<_, _> = nrh::core::fault::FaultType::ALL
        .into_iter()
        .map(|kind| (kind.as_str(), kind.usual_time_to_confirm(&thresholds).as_secs()))
        .collect();
    terminal::print_as(nrh::terminal::OutputFormat::Json, &seconds, |_| String::new())
}
