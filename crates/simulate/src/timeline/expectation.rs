//! What is expected of the policies in a timeline.

use anyhow::{bail, ensure};
use serde::{Deserialize, Serialize};

use super::{Nodes, Offset, is_false};
use nrh_core::plan::BlockReason;
use nrh_core::policy::ActionType;
use nrh_core::remediation::Phase;
use nrh_core::text::matches_pattern;

/// Something that must happen in the timeline, or must not.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expectation {
    /// The node: a name that may end with `*`. Default: any node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// A step is executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub does: Option<ActionType>,
    /// A step would be executed, but it or its policy is a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub would: Option<ActionType>,
    /// Something is blocked for this reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<BlockReason>,
    /// A remediation ends with this phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<Phase>,
    /// Our cordon is removed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub uncordons: bool,
    /// Our taint is removed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub untaints: bool,
    /// Not before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Offset>,
    /// Not later than this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Offset>,
    /// Minimum number of times. Default: once, or zero where there is an `atMost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<usize>,
    /// Maximum number of times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<usize>,
    /// Maximum number of remediations that are open at the same time on these nodes. It stands alone or with `node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_at_most: Option<usize>,
}

impl Expectation {
    pub(super) fn check(&self, names: &[(String, &Nodes)], until: Option<Offset>) -> anyhow::Result<()> {
        let kinds = [
            self.does.is_some(),
            self.would.is_some(),
            self.blocked.is_some(),
            self.ends.is_some(),
            self.uncordons,
            self.untaints,
            self.open_at_most.is_some(),
        ];
        let count = kinds.into_iter().filter(|is| *is).count();
        ensure!(
            count == 1,
            "expected one of does, would, blocked, ends, uncordons, untaints and openAtMost, found {count} of them"
        );
        if let (Some(after), Some(by)) = (self.after, self.by) {
            ensure!(after <= by, "expected after <= by, found {after} and {by}");
        }
        for (field, at) in [("after", self.after), ("by", self.by)] {
            if let Some((at, until)) = at.zip(until).filter(|(at, until)| at > until) {
                bail!("{field}: expected a time until the end at {until}, found {at}");
            }
        }
        let (least, most) = (self.at_least.unwrap_or(0), self.at_most.unwrap_or(usize::MAX));
        ensure!(least <= most, "expected atLeast <= atMost, found {least} and {most}");
        let is_told = self.blocked != Some(BlockReason::InProgress);
        ensure!(is_told, "blocked: InProgress is not in the account, since the step itself is");
        if self.open_at_most.is_some() {
            let more = self.after.or(self.by).is_some() || self.at_least.or(self.at_most).is_some();
            ensure!(!more, "openAtMost goes with `node` alone");
        }
        if let Some(pattern) = &self.node {
            ensure!(names.iter().any(|(name, _)| matches_pattern(pattern, name)), "there is no node {pattern:?}");
        }
        Ok(())
    }
}
