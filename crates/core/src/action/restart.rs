//! Restarts the unit of the kubelet or of the container runtime.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::params::{ActionParams, Properties};
use super::traits::{RunsOn, Traits};
use crate::fault::{Daemon, Subject, SubjectKind};

/// How a daemon is restarted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Restart {
    /// Name of its unit. Absent = kubelet.service; of the runtime containerd.service or crio.service, if its socket is
    /// at the usual place of one of these. Any other must be named, because more may depend on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 9, max = 128), regex(pattern = r"^[A-Za-z0-9:_.\\@-]+\.service$"))]
    pub unit: Option<String>,
    /// Restart also if that would do harm or the harm is unknown: while a container hangs, a shim is unresponsive, or a
    /// start or stop is running. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_safety_check: bool,
    /// Start also a unit that somebody has stopped (systemd calls it inactive, not failed). Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub start_if_stopped: bool,
}

/// Whether it is the name of a service's unit as systemd takes it: no path, no pattern, no other kind of unit.
pub fn is_service(unit: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ":_.\\@-".contains(c);
    unit.strip_suffix(".service").is_some_and(|name| !name.is_empty())
        && unit.len() <= 128
        && unit.chars().all(is_plain)
}

impl Restart {
    fn words(&self) -> Vec<String> {
        let flags = [(self.skip_safety_check, "skipSafetyCheck"), (self.start_if_stopped, "startIfStopped")];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, word)| word.to_owned());
        self.unit.iter().cloned().chain(flags).collect()
    }
}

/// Restarts the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestartKubelet(pub Restart);

/// Restarts the container runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestartRuntime(pub Restart);

macro_rules! restarts {
    ($daemon:ident, by $action:ident) => {
        impl Properties for $action {
            // Where it depends on the subject, a restart helps the daemon that the fault is about.
            const TRAITS: Traits = Traits {
                restarts: Some(Daemon::$daemon),
                ..Traits::resolves(RunsOn::Probe, |kind| {
                    (kind.spec().remedy.restart)(&Subject::of(SubjectKind::$daemon)).of(Daemon::$daemon)
                })
            };

            fn read(params: &ActionParams) -> Option<Self> {
                Some(Self(params.restart.clone().unwrap_or_default()))
            }

            fn write(&self, params: &mut ActionParams) {
                params.restart = Some(self.0.clone());
            }

            fn words(&self) -> Vec<String> {
                self.0.words()
            }
        }
    };
}

restarts!(Kubelet, by RestartKubelet);
restarts!(Runtime, by RestartRuntime);
