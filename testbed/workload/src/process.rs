//! The personalities that run inside pods.

use std::io::{Error, Result, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{WaitOptions, wait};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// What a workload does on SIGTERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnTerm {
    /// Ends at once, as a well-behaved workload does.
    Exit,
    /// Goes on, so that only SIGKILL after the grace period ends it.
    Ignore,
}

/// Holds a sandbox's namespaces: reaps what is left to it and ends on SIGTERM.
pub(crate) fn pause() -> Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGCHLD])?;
    for signal in signals.forever() {
        if signal != SIGCHLD {
            break;
        }
        // One SIGCHLD may stand for several children.
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
    }
    Ok(())
}

/// Stands in for a low-level runtime of which one call can be made to hang.
pub(crate) fn runc(arguments: &[&str]) -> Result<()> {
    if arguments.contains(&"create") && Path::new("/run/nrh-hang-runc").exists() {
        return pause();
    }
    // Only where it cannot be executed does this return.
    Err(Command::new("/run/nrh-real/runc").args(arguments).exec())
}

/// Works beside a program that it has started, which ends with the container.
pub(crate) fn start(program: &str, arguments: &[&str]) -> Result<()> {
    Command::new(program).args(arguments).spawn()?;
    work(OnTerm::Exit)
}

/// Works until it is told to end.
pub(crate) fn work(on_term: OnTerm) -> Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    // Only now: whoever reads this line may send the signal.
    println!("working, on SIGTERM: {on_term:?}");
    for signal in signals.forever() {
        println!("signal {signal}");
        if on_term == OnTerm::Exit {
            break;
        }
    }
    Ok(())
}

/// Prints `lines` lines a second until it is told to end.
pub(crate) fn chatter(lines: &str) -> Result<()> {
    let lines: u32 =
        lines.parse().map_err(|error| Error::other(format!("{lines:?} is no number of lines: {error}")))?;
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let mut out = std::io::BufWriter::new(std::io::stdout());
    while signals.pending().next().is_none() {
        let began = Instant::now();
        // A few at a time, as a busy program does.
        for number in 0..lines.div_ceil(10) {
            writeln!(out, "line {number}: nothing of interest has happened")?;
        }
        out.flush()?;
        sleep(Duration::from_millis(100).saturating_sub(began.elapsed()));
    }
    Ok(())
}

/// Fails after a second while its cause exists, else works: a crash loop whose cause can be taken away.
pub(crate) fn fail_while(cause: &Path) -> Result<()> {
    if cause.try_exists()? {
        sleep(Duration::from_secs(1));
        return Err(Error::other(format!("{} is there", cause.display())));
    }
    work(OnTerm::Exit)
}

/// Connects to the API server's port as an in-cluster client would find it.
pub(crate) fn reach() -> Result<()> {
    let variable = |name: &str| std::env::var(name).map_err(|_| Error::other(format!("${name} is not set")));
    let host = variable("KUBERNETES_SERVICE_HOST")?;
    let host: IpAddr = host.parse().map_err(|_| Error::other(format!("no address: {host}")))?;
    let port = variable("KUBERNETES_SERVICE_PORT")?;
    let port: u16 = port.parse().map_err(|_| Error::other(format!("no port: {port}")))?;
    let address = SocketAddr::new(host, port);
    TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    println!("{address} answers");
    Ok(())
}
