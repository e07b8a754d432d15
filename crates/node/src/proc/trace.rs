//! Kernel stacks, limits and signal handlers of a process, for its evidence.
//!
//! None of it is in the memory of the process: no read takes its memory lock, which a process in state D may hold for ever. Each can
//! block in the kernel all the same.

use std::io;

use super::bounded::{invalid, whole_lines};
use super::handle::{Handle, MAX_STATUS};

/// Longest stack that is read: the kernel names at most 64 functions.
const MAX_STACK: usize = 8 << 10;
/// Longest `limits` that is read.
const MAX_LIMITS: usize = 16 << 10;

impl Handle {
    /// The kernel functions it is in, innermost first. Needs `CAP_SYS_ADMIN`.
    pub fn kernel_stack(&self) -> io::Result<String> {
        self.text("stack", MAX_STACK)
    }

    /// The same for one of its threads.
    pub fn thread_kernel_stack(&self, thread: i32) -> io::Result<String> {
        self.text(&format!("task/{thread}/stack"), MAX_STACK)
    }

    /// Its limits, as the kernel's table.
    pub fn limits(&self) -> io::Result<String> {
        self.text("limits", MAX_LIMITS)
    }

    /// The signals for which it has a handler: bit 0 is signal 1.
    pub fn caught_signals(&self) -> io::Result<u64> {
        parse_caught(&self.text("status", MAX_STATUS)?)
            .ok_or_else(|| invalid(format!("status of process {}: no SigCgt line", self.pid())))
    }
}

fn parse_caught(status: &str) -> Option<u64> {
    u64::from_str_radix(whole_lines(status).find_map(|line| line.strip_prefix("SigCgt:"))?.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caught_signals_are_read_by_name() {
        assert_eq!(parse_caught("SigIgn:\t0000000000000001\nSigCgt:\tfffffffd7fc1feff\n"), Some(0xffff_fffd_7fc1_feff));
        assert_eq!(parse_caught("SigCgt:\tx\n"), None);
        assert_eq!(parse_caught("Name:\tx\n"), None);
        assert_eq!(parse_caught("SigCgt:\tfffffffd7fc1feff"), None, "cut");
    }
}
