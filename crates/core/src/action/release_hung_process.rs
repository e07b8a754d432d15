//! Ends the wait of the one hung process.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::params::{ActionParams, Properties};
use super::traits::{RunsOn, Traits};

/// The signal that ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Signal {
    /// SIGCONT: resumes a stopped process. Harmless on any other.
    #[serde(rename = "SIGCONT")]
    Cont,
    /// SIGKILL. Of a shim it ends every container of its pod.
    #[serde(rename = "SIGKILL")]
    Kill,
}

impl Signal {
    /// The name as it stands in objects.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cont => "SIGCONT",
            Self::Kill => "SIGKILL",
        }
    }
}

/// The parameters of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseHungProcess {
    /// The signal that it gets.
    pub signal: Signal,
    /// Whether a shim may be killed under a pod that is not being deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_running_pods: bool,
}

impl Properties for ReleaseHungProcess {
    const TRAITS: Traits = Traits {
        frees_process: true,
        ..Traits::resolves(RunsOn::JobOrProbe, |kind| kind.spec().remedy.hung_process.map(drop))
    };

    fn read(params: &ActionParams) -> Option<Self> {
        params.release_hung_process
    }

    fn write(&self, params: &mut ActionParams) {
        params.release_hung_process = Some(*self);
    }

    fn words(&self) -> Vec<String> {
        vec![self.signal.as_str().to_owned()]
    }
}
