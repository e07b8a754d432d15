//! Every question of the judge has an end: commands and calls with a deadline.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};

/// Runs a command and returns what it prints; at the deadline it is ended with everything it started.
pub(crate) fn output(command: &mut Command, limit: Duration) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    // A group of its own: entering namespaces puts a wrapper in front of the program, and both have to go.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("start {name}"))?;
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());

    let end = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().with_context(|| format!("wait for {name}"))? {
            break status;
        }
        if Instant::now() > end {
            // An error means that the group has just ended by itself.
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            child.wait().with_context(|| format!("wait for {name}"))?;
            bail!("{name} {} did not answer within {limit:?}", arguments(command));
        }
        thread::sleep(Duration::from_millis(5));
    };
    let text = |reader: thread::JoinHandle<Vec<u8>>| {
        let bytes = reader.join().map_err(|_| anyhow!("the reader of {name} failed"))?;
        Ok::<_, anyhow::Error>(String::from_utf8_lossy(&bytes).into_owned())
    };
    let (stdout, stderr) = (text(stdout)?, text(stderr)?);
    ensure!(status.success(), "{name} {} ended with {status}: {}", arguments(command), stderr.trim());
    Ok(stdout)
}

fn arguments(command: &Command) -> String {
    let all: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
    all.join(" ")
}

/// Reads a pipe on a thread, so that a full pipe never stops its writer.
fn drain(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What could be read before an error is still worth showing.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Runs a future to its end or deadline on a thread of its own, so that callers may be in any runtime or none.
pub(crate) fn block_on<T: Send>(
    what: &str,
    limit: Duration,
    future: impl Future<Output = Result<T>> + Send,
) -> Result<T> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")?;
        runtime.block_on(async {
            tokio::time::timeout(limit, future)
                .await
                .map_err(|_| anyhow!("{what} did not answer within {limit:?}"))?
                .with_context(|| what.to_owned())
        })
    };
    thread::scope(|scope| scope.spawn(run).join().map_err(|_| anyhow!("the thread for {what} failed"))?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_is_ended_with_its_children() {
        let before = Instant::now();
        let mut command = Command::new("sh");
        // The inner shell holds the pipe; if it lived on, reading would wait for it.
        command.args(["-c", "sh -c 'sleep 60; true'; true"]);
        let error = output(&mut command, Duration::from_millis(200)).unwrap_err();
        assert!(error.to_string().contains("did not answer within 200ms"), "{error}");
        assert!(before.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn long_output_and_failures_come_back() {
        let limit = Duration::from_secs(10);
        let text = output(Command::new("seq").arg("100000"), limit).unwrap();
        assert!(text.ends_with("100000\n"));
        let error = output(Command::new("sh").args(["-c", "echo why >&2; exit 3"]), limit).unwrap_err();
        assert!(error.to_string().ends_with("exit status: 3: why"), "{error}");
    }

    #[test]
    fn a_call_that_hangs_is_given_up() {
        let hang = std::future::pending::<Result<()>>();
        let error = block_on("Tasks/Get", Duration::from_millis(50), hang).unwrap_err();
        assert_eq!(error.to_string(), "Tasks/Get did not answer within 50ms");
    }
}
