//! Deletes the stuck DaemonSet pod.

use super::params::{ActionParams, Properties};
use super::traits::{RunsOn, Traits};

/// The action has no parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeletePod;

impl Properties for DeletePod {
    const TRAITS: Traits = Traits::resolves(RunsOn::Controller, |kind| kind.spec().remedy.new_pod);

    fn read(_: &ActionParams) -> Option<Self> {
        Some(Self)
    }
}
