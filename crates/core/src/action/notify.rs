//! Notifies people.

use super::params::{ActionParams, Properties};
use super::traits::{Purpose, RunsOn, Traits};

/// The parameters of the step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notify {
    /// A message that is added to the notification.
    pub message: Option<String>,
}

impl Properties for Notify {
    const TRAITS: Traits = Traits {
        purpose: Purpose::Notify,
        for_node_conditions: true,
        ..Traits::resolves(RunsOn::Controller, |_| Ok(()))
    };

    fn read(params: &ActionParams) -> Option<Self> {
        Some(params.notify.clone().unwrap_or_default())
    }

    fn write(&self, params: &mut ActionParams) {
        params.notify = Some(self.clone());
    }
}
