//! The narrator: plain words, with the time since the demo began.

use std::io::Write;
use std::time::Instant;

/// Tells the story on standard output.
#[derive(Debug, Clone, Copy)]
pub(super) struct Teller {
    began: Instant,
    silent: bool,
}

impl Teller {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), silent: false }
    }

    /// One that says nothing, for acts that are played side by side.
    pub(super) fn silent() -> Self {
        Self { silent: true, ..Self::new() }
    }

    pub(super) const fn is_silent(self) -> bool {
        self.silent
    }

    /// A headline.
    pub(super) fn head(self, text: &str) {
        self.write(&format!("\n== {text} ==\n"));
    }

    /// A sentence.
    pub(super) fn say(self, text: &str) {
        let seconds = self.began.elapsed().as_secs();
        self.write(&format!("[{:02}:{:02}] {text}\n", seconds / 60, seconds % 60));
    }

    /// What a command printed.
    pub(super) fn show(self, text: &str) {
        for line in text.lines() {
            self.write(&format!("        {line}\n"));
        }
    }

    /// A closed pipe ends nobody's demo.
    fn write(self, text: &str) {
        if self.silent {
            return;
        }
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text.as_bytes());
        let _ = out.flush();
    }
}
