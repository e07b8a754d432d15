//! What the bed asks of a machine: its own program answers there, from that kernel.

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::process::Identity;
use crate::view;

/// Process 2 and its children are the kernel's own threads: they come and go.
const KERNEL: i32 = 2;

/// A question.
#[derive(Debug, clap::Subcommand)]
pub enum Question {
    /// All processes as JSON
    Processes,
    /// Send a signal to exactly one process; prints whether it was there
    Signal {
        /// Pid
        pid: i32,
        /// Start in clock ticks since boot
        started: u64,
        /// Number of the signal
        signal: i32,
    },
}

/// Answers on standard output.
pub fn answer(question: &Question) -> Result<()> {
    match *question {
        Question::Processes => {
            let mut all = view::processes(1)?;
            all.retain(|process| process.pid != KERNEL && process.host_ppid != KERNEL);
            println!("{}", serde_json::to_string(&all)?);
        }
        Question::Signal { pid, started, signal } => {
            let signal = Signal::from_named_raw(signal).with_context(|| format!("no signal {signal}"))?;
            println!("{}", Identity { pid, started }.signal(signal)?);
        }
    }
    Ok(())
}
