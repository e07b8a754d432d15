//! One process of a bundle. Every read here can block in the kernel, so it runs on a separate thread and publishes what
//! it has read as it goes: a read that never returns loses what comes after it, not what came before.

use std::io;
use std::path::Path;
use std::sync::Mutex;

use super::room::Room;
use crate::lock::lock;
use crate::proc::{Handle, Thread, is_gone};
use nrh_api::evidence::{ProcessEvidence, Section, ThreadEvidence};

/// Space for one process, in bytes of JSON.
const ROOM: usize = 14 << 10;
/// Part of that space, reserved for its limits and cgroups.
const MAX_TEXT: usize = 3 << 10;
/// Space of a thread without its stack.
const THREAD: usize = 128;
/// Maximum number of stack lines per thread.
const MAX_FRAMES: usize = 24;

/// Reads what the kernel reports about the process, the most reliable and cheapest first, into `evidence`.
pub(super) fn check(proc: &Path, pid: i32, start_ticks: u64, evidence: &Mutex<ProcessEvidence>) {
    if let Err(error) = read(proc, pid, start_ticks, evidence) {
        let note = if is_gone(&error) { "it has ended".to_owned() } else { format!("cannot be checked: {error}") };
        lock(evidence).note = note;
    }
}

/// An assignment evaluates its value before it takes the lock: nobody waits for a read.
fn read(proc: &Path, pid: i32, start_ticks: u64, evidence: &Mutex<ProcessEvidence>) -> io::Result<()> {
    let mut room = Room(ROOM);
    let handle = Handle::of(proc, pid, start_ticks)?;
    let stat = handle.stat()?;
    lock(evidence).state = stat.state.to_string();
    lock(evidence).command = stat.command;
    lock(evidence).wchan = handle.wchan().ok().flatten();
    lock(evidence).caught_signals = handle.caught_signals().ok().map(|caught| format!("{caught:016x}"));
    let mut texts = Room(MAX_TEXT);
    room.take(MAX_TEXT);
    lock(evidence).limits = section(handle.limits(), &mut texts);
    lock(evidence).groups = section(handle.groups().map(|groups| groups.0), &mut texts);
    let threads = handle.threads();
    match &threads {
        Ok(threads) => lock(evidence).thread_states = states(threads),
        Err(error) => lock(evidence).note = format!("its threads cannot be listed: {error}"),
    }
    let stack = match handle.kernel_stack() {
        Ok(stack) => room.lines(stack.lines().take(MAX_FRAMES)),
        Err(error) => Section::missing(unread_stack(pid, &error)),
    };
    let readable = stack.note.is_empty();
    lock(evidence).stack = stack;
    for thread in ordered(threads.unwrap_or_default()) {
        if !room.take(THREAD) {
            "there is no room for all of its threads".clone_into(&mut lock(evidence).note);
            break;
        }
        let wchan = handle.thread_wchan(thread.id).ok().flatten();
        let stack = readable.then(|| handle.thread_kernel_stack(thread.id).ok()).flatten().unwrap_or_default();
        let stack = room.lines(stack.lines().take(MAX_FRAMES)).lines;
        let one = ThreadEvidence { id: thread.id, state: thread.state.to_string(), wchan, stack };
        lock(evidence).threads.push(one);
    }
    Ok(())
}

fn section(text: io::Result<String>, room: &mut Room) -> Section {
    match text {
        Ok(text) => room.lines(text.lines()),
        Err(error) => Section::missing(format!("cannot be read: {error}")),
    }
}

fn unread_stack(pid: i32, error: &io::Error) -> String {
    let command = format!("`cat /proc/{pid}/stack` as root on the node shows it, if the process still waits there");
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("cannot be read: that takes CAP_SYS_ADMIN, which the probe is not given; {command}")
        }
        _ => format!("cannot be read: {error}; {command}"),
    }
}

fn states(threads: &[Thread]) -> std::collections::BTreeMap<String, u32> {
    let mut states = std::collections::BTreeMap::new();
    for thread in threads {
        let count: &mut u32 = states.entry(thread.state.to_string()).or_default();
        *count = count.saturating_add(1);
    }
    states
}

/// Orders the threads: stuck or stopped ones first, then running ones, then sleeping ones.
fn ordered(mut threads: Vec<Thread>) -> Vec<Thread> {
    threads.sort_by_key(|thread| {
        let rank = match thread.state {
            'D' => 0,
            'T' | 't' => 1,
            'S' | 'I' => 3,
            _ => 2,
        };
        (rank, thread.id)
    });
    threads
}
