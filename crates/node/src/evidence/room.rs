//! The space for text in a bundle: every part is bounded.

use nrh_api::evidence::Section;
use nrh_core::text::bounded;

/// Maximum length of a line.
const MAX_LINE: usize = 256;

/// Space for text, in bytes of JSON.
#[derive(Debug)]
pub(super) struct Room(pub(super) usize);

impl Room {
    /// Returns as many of these lines as fit; control characters, and blanks at the ends, are removed.
    pub(super) fn lines<'t>(&mut self, text: impl Iterator<Item = &'t str>) -> Section {
        let mut section = Section::default();
        for line in text.map(|line| bounded(line.trim(), MAX_LINE)).filter(|line| !line.is_empty()) {
            if !self.take(cost(&line)) {
                "cut: there is no room for more".clone_into(&mut section.note);
                break;
            }
            section.lines.push(line);
        }
        section
    }

    /// Takes this much space; if less is left, takes nothing and returns false.
    pub(super) fn take(&mut self, cost: usize) -> bool {
        let left = self.0.checked_sub(cost);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }
}

/// Returns the size of a line in JSON, with its quotes and comma, and with escapes for quotes and backslashes inside
/// it.
pub(super) fn cost(line: &str) -> usize {
    line.len() + line.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count() + 4
}
