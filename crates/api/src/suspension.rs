//! The suspension of one node or of the cluster: whether, by whom and why.

use nrh_core::text::bounded;

/// Longest text about a suspension, in bytes: a name and a reason of 256 characters each.
pub const MAX_SUSPENSION_TEXT: usize = 520;

/// The suspension in the spec of an object.
#[derive(Clone, Copy, Debug)]
pub struct Suspension<'a> {
    /// `suspend`.
    pub suspend: bool,
    /// `suspendedBy`.
    pub by: Option<&'a str>,
    /// `reason`.
    pub reason: &'a str,
}

/// An object that can be suspended.
pub trait Suspend {
    /// What its spec says.
    fn suspension(&self) -> Suspension<'_>;

    /// Who has suspended it and why, if anybody has.
    fn suspended_by_text(&self) -> Option<String> {
        self.suspension().suspended_by_text()
    }
}

impl Suspension<'_> {
    /// Who has suspended it and why, if anybody has.
    pub fn suspended_by_text(&self) -> Option<String> {
        if !self.suspend {
            return None;
        }
        let who = self.by.map_or_else(|| "in nobody's name".to_owned(), |by| format!("by {by}"));
        let text = if self.reason.is_empty() { who } else { format!("{who}: {}", self.reason) };
        Some(bounded(&text, MAX_SUSPENSION_TEXT))
    }
}

/// The sentence that all remediation is suspended: `by` says who has suspended it, and why.
pub fn suspended_everywhere(by: &str) -> String {
    format!(
        "remediation is suspended in the whole cluster, {by} (`nrh resume --all` lifts it, with `--force` if another person suspended it)"
    )
}
