//! The template of a hand-off, as last read.

/// Result of reading a template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateRead {
    /// What the controller lacks to use it, one sentence each; empty = it may use it.
    pub lacks: Vec<String>,
    /// Its uid and generation, where it exists and may be read.
    pub version: Option<String>,
}
