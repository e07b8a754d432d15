//! Removes the confirmed leftover: an orphan container or a leaked shim.

use super::params::{ActionParams, Properties};
use super::traits::{RunsOn, Traits};

/// The action has no parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanupOrphans;

impl Properties for CleanupOrphans {
    const TRAITS: Traits = Traits::resolves(RunsOn::JobOrProbe, |kind| kind.spec().remedy.leftover);

    fn read(_: &ActionParams) -> Option<Self> {
        Some(Self)
    }
}
