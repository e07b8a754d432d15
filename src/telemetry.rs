//! Logs: one line per change of decision, as JSON for machines or compact for people.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::terminal::Harmless;

/// Most lines that wait to be written.
const WAITING: usize = 256;
/// How long the end of a program waits for its last lines.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Log format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Human,
    /// For machines: one JSON object a line.
    Json,
}

/// Starts logging to standard error. [`Log::finish`] writes the last lines.
///
/// # Errors
/// When the filter is wrong, or no thread can be started.
pub fn start(format: LogFormat, filter: &str) -> anyhow::Result<Log> {
    let filter = filter_of(filter)?;
    let log = Log::to(io::stderr())?;
    let lines = log.clone();
    let lines = tracing_subscriber::fmt::layer().with_writer(move || lines.clone()).with_target(false);
    let lines = match format {
        LogFormat::Human => lines.compact().boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    Ok(log)
}

/// Parses the filter. Its own parser takes a word that is no level for a target: then it logs that target, and nothing else.
fn filter_of(text: &str) -> anyhow::Result<Targets> {
    let is_bare = |directive: &&str| !directive.contains('=') && directive.parse::<LevelFilter>().is_err();
    let bare = text.split(',').map(str::trim).find(is_bare);
    match (bare, text.parse()) {
        (None, Ok(filter)) => Ok(filter),
        (bare, _) => anyhow::bail!(
            "--log (NRH_LOG): expected levels (error, warn, info, debug, trace) or TARGET=LEVEL, found {:?}",
            bare.unwrap_or(text)
        ),
    }
}

/// Writes from a thread of its own. Nobody reads a container's output while its runtime is stopped: then lines are dropped and counted,
/// since the log must not stop the program.
#[derive(Clone, Debug)]
pub struct Log {
    lines: SyncSender<Entry>,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Entry {
    Line(Vec<u8>),
    /// Answered when all lines before it are written.
    End(SyncSender<()>),
}

impl Log {
    fn to(output: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, entries) = sync_channel(WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let lost = Arc::clone(&dropped);
        let write = move || write_entries(&entries, &lost, Harmless(output));
        thread::Builder::new().name("nrh-log".to_owned()).stack_size(64 << 10).spawn(write)?;
        Ok(Self { lines, dropped })
    }

    /// Waits until all lines are written, for at most [`LAST_LINES`].
    pub fn finish(&self) {
        let (written, wait) = sync_channel(1);
        if self.lines.try_send(Entry::End(written)).is_ok() {
            let _ = wait.recv_timeout(LAST_LINES);
        }
    }
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lines.try_send(Entry::Line(line.to_vec())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_entries(entries: &Receiver<Entry>, dropped: &AtomicU64, mut output: impl Write) {
    while let Ok(entry) = entries.recv() {
        let lost = dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let _ = writeln!(output, r#"{{"level":"WARN","message":"{lost} log lines are lost: nobody read them"}}"#);
        }
        match entry {
            // There is nowhere to report that the log cannot be written.
            Entry::Line(line) => drop(output.write_all(&line)),
            Entry::End(written) => {
                let _ = output.flush();
                let _ = written.try_send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_filter_that_would_hide_everything_is_refused() {
        for good in ["info", "off", "warn,nrh_node=debug", "nrh_node=trace"] {
            assert!(filter_of(good).is_ok(), "{good}");
        }
        for bad in ["inof", "info,nrh_node", "nrh=lots"] {
            let error = filter_of(bad).unwrap_err().to_string();
            assert!(error.contains("NRH_LOG") && error.contains("TARGET=LEVEL"), "{error}");
        }
    }

    #[test]
    fn an_output_that_nobody_reads_stops_nobody_and_the_loss_is_told() {
        let (mut read, write) = io::pipe().unwrap();
        let mut log = Log::to(write).unwrap();
        let line = [[b'x'; 1023].as_slice(), b"\n"].concat();
        // Three times what the pipe and the queue hold.
        for _ in 0..3 * (64 + WAITING) {
            log.write_all(&line).unwrap();
        }
        let lost = log.dropped.load(Ordering::Relaxed);
        assert!(lost > 0);
        let reader = thread::spawn(move || {
            let mut text = String::new();
            read.read_to_string(&mut text).unwrap();
            text
        });
        while log.lines.try_send(Entry::Line(b"after\n".to_vec())).is_err() {
            thread::sleep(Duration::from_millis(5));
        }
        log.finish();
        drop(log);
        let text = reader.join().unwrap();
        // The thread takes the count with each line that it writes.
        let number = |line: &str| line.split(|c: char| !c.is_ascii_digit()).find_map(|word| word.parse::<u64>().ok());
        let reported: u64 = text.lines().filter(|line| line.contains("log lines are lost")).filter_map(number).sum();
        assert!(reported >= lost && text.ends_with("after\n"), "{reported} of {lost}");
    }
}
