//! The template of a hand-off, as it was read last.

/// How a template stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateRead {
    /// What the controller lacks to use it, one sentence each; nothing = it may.
    pub lacks: Vec<String>,
    /// Its uid and generation, where it is there and may be read.
    pub version: Option<String>,
}
