//! A stand-in for systemd's `Restart=always RestartSec=5` in front of a node's kubelet.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use crate::start_check;

/// How long the program has after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// `testbed supervise [--start-check] [--log FILE] -- PROGRAM ARGS…`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Run the start check of kubelets ≤ 1.23 (a labelled stand-in) before each start
    #[arg(long)]
    pub start_check: bool,
    /// CRI socket the start check asks
    #[arg(long, default_value = crate::view::SOCKET)]
    pub socket: PathBuf,
    /// File that gets one line for each start and exit
    #[arg(long)]
    pub log: Option<PathBuf>,
    /// Seconds between an exit and the next start
    #[arg(long, default_value_t = 5)]
    pub restart_sec: u64,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

/// Runs the program until SIGTERM, starting it again after each exit.
pub fn run(args: &Args) -> Result<()> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().context("start a runtime")?;
    let done = runtime.block_on(supervise(args));
    // A start check that still waits for its runtime must not hold up the end.
    runtime.shutdown_background();
    done
}

async fn supervise(args: &Args) -> Result<()> {
    let mut log = Log::open(args)?;
    let mut terminated = signal(SignalKind::terminate()).context("handle SIGTERM")?;
    let mut interrupted = signal(SignalKind::interrupt()).context("handle SIGINT")?;
    let told = async {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
    };
    tokio::pin!(told);
    let mut attempt = 0_u64;
    loop {
        attempt += 1;
        tokio::select! {
            () = &mut told => return log.line("asked to end"),
            checked = check(args) => if let Some(missing) = checked? {
                eprintln!("{}", missing.log_line(Timestamp::now()));
                log.line(&format!("attempt {attempt} refused by the start check (a stand-in for kubelets ≤ 1.23): {missing}"))?;
            } else {
                let mut child = start(&args.command)?;
                let started = Instant::now();
                log.line(&format!("attempt {attempt} started pid {}", child.id().unwrap_or_default()))?;
                tokio::select! {
                    status = child.wait() => log.exit(attempt, status?, started)?,
                    () = &mut told => {
                        let status = end(&mut child).await?;
                        log.exit(attempt, status, started)?;
                        return log.line("asked to end");
                    }
                }
            }
        }
        tokio::select! {
            () = &mut told => return log.line("asked to end"),
            () = sleep(Duration::from_secs(args.restart_sec)) => {}
        }
    }
}

async fn check(args: &Args) -> Result<Option<start_check::MissingSandbox>> {
    if !args.start_check {
        return Ok(None);
    }
    let socket = args.socket.clone();
    let checked = tokio::task::spawn_blocking(move || start_check::ask(&socket)).await;
    Ok(checked.context("the start check")?.err())
}

fn start(command: &[String]) -> Result<Child> {
    let (program, arguments) = command.split_first().context("no program")?;
    Command::new(program).args(arguments).spawn().with_context(|| format!("start {program}"))
}

/// SIGTERM, and SIGKILL to that process alone when its time is over: containers live on.
async fn end(child: &mut Child) -> Result<ExitStatus> {
    // A child that has just ended has no pid any more, and needs no signal.
    if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
        kill_process(pid, Signal::TERM).context("forward SIGTERM")?;
    }
    if let Ok(status) = timeout(GRACE, child.wait()).await {
        return status.context("wait for the program");
    }
    child.kill().await.context("SIGKILL")?;
    child.wait().await.context("wait for the program")
}

/// One line for each event, with its time.
#[derive(Debug)]
struct Log(Option<File>);

impl Log {
    fn open(args: &Args) -> Result<Self> {
        let open = |path: &PathBuf| {
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.with_context(|| format!("open {}", path.display()))
        };
        Ok(Self(args.log.as_ref().map(open).transpose()?))
    }

    fn line(&mut self, text: &str) -> Result<()> {
        match &mut self.0 {
            Some(file) => writeln!(file, "{} {text}", Timestamp::now()).context("write the log"),
            None => Ok(()),
        }
    }

    fn exit(&mut self, attempt: u64, status: ExitStatus, started: Instant) -> Result<()> {
        self.line(&format!("attempt {attempt} ended after {:.1} s: {status}", started.elapsed().as_secs_f64()))
    }
}
