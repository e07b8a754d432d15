//! Thaws the frozen control group of a container in creation.

use super::params::{ActionParams, Properties};
use super::traits::{RunsOn, Traits};

/// The action has no parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThawCgroup;

impl Properties for ThawCgroup {
    const TRAITS: Traits = Traits::resolves(RunsOn::JobOrProbe, |kind| kind.spec().remedy.thaw);

    fn read(_: &ActionParams) -> Option<Self> {
        Some(Self)
    }
}
