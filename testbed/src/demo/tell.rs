//! The narrator: plain words, with the time since the demo began.

use std::io::Write;
use std::time::Instant;

/// Tells the story on standard output.
#[derive(Debug, Clone, Copy)]
pub(super) struct Teller {
    began: Instant,
}

impl Teller {
    pub(super) fn new() -> Self {
        Self { began: Instant::now() }
    }

    /// A headline.
    #[expect(clippy::unused_self, reason = "the teller tells all, with or without the time")]
    pub(super) fn head(self, text: &str) {
        write(&format!("\n== {text} ==\n"));
    }

    /// A sentence.
    pub(super) fn say(self, text: &str) {
        let seconds = self.began.elapsed().as_secs();
        write(&format!("[{:02}:{:02}] {text}\n", seconds / 60, seconds % 60));
    }

    /// What a command printed.
    #[expect(clippy::unused_self, reason = "the teller tells all, with or without the time")]
    pub(super) fn show(self, text: &str) {
        for line in text.lines() {
            write(&format!("        {line}\n"));
        }
    }
}

/// A closed pipe ends nobody's demo.
fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}
