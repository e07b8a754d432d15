//! How much text a bundle takes: every part of it is bounded.

use crate::api::evidence::Section;
use crate::core::text::bounded;

/// Longest line kept.
const MAX_LINE: usize = 256;

/// Room for text, in bytes of JSON.
#[derive(Debug)]
pub(super) struct Room(pub(super) usize);

impl Room {
    /// These lines, as many as there is room for; controls and blanks at the ends removed.
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

    /// Takes so much of it; false, and takes nothing, where there is less.
    pub(super) fn take(&mut self, cost: usize) -> bool {
        let left = self.0.checked_sub(cost);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }
}

/// What a line takes as JSON: quotes and a comma around it, and marks before its own quotes and backslashes.
pub(super) fn cost(line: &str) -> usize {
    line.len() + line.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count() + 4
}
