//! A suspension, of one node or of everything: whether it stands, by whom, and why.

use nrh_core::text::bounded;

/// Longest text about a suspension, in bytes: a long name and its words.
pub const MAX_SUSPENSION_TEXT: usize = 520;

/// What stands in the spec of an object that can be suspended.
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
        let sentence = match self.by {
            Some(by) if self.reason.is_empty() => format!("by {by}"),
            Some(by) => format!("by {by}: {}", self.reason),
            // It names nobody, whatever it says.
            None if self.reason.starts_with("by ") => format!("{:?}", self.reason),
            None if self.reason.is_empty() => "in nobody's name".to_owned(),
            None => self.reason.to_owned(),
        };
        self.suspend.then(|| bounded(&sentence, MAX_SUSPENSION_TEXT))
    }
}

/// The sentence that all remediation is suspended: `by` says who has suspended it, and why.
pub fn suspended_everywhere(by: &str) -> String {
    format!(
        "remediation is suspended in the whole cluster, {by} (`nrh resume --all` lifts it, with `--force` if that was another person)"
    )
}
