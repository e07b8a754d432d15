//! The list of actions. What an action is stands in its file below `action/`; how it proceeds, in `procedure.rs`, or in its file
//! below `procedure/`.

mod cleanup_orphans;
mod cordon;
mod delete_pod;
mod drain;
mod hand_off;
mod mark_for_reboot;
mod notify;
mod params;
mod reboot;
mod release_hung_process;
mod restart;
mod taint;
mod thaw_cgroup;
mod traits;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use cleanup_orphans::CleanupOrphans;
pub use cordon::{Cordon, Quarantine};
pub use delete_pod::DeletePod;
pub use drain::Drain;
pub use hand_off::HandOff;
pub use mark_for_reboot::MarkForReboot;
pub use notify::Notify;
pub use params::ActionParams;
pub use reboot::Reboot;
pub use release_hung_process::{ReleaseHungProcess, Signal};
pub use restart::{Restart, RestartKubelet, RestartRuntime, is_service};
pub use taint::Taint;
pub use thaw_cgroup::ThawCgroup;
pub use traits::{Purpose, RunsOn, Traits};

use params::Properties;

macro_rules! actions {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        crate::named! {
            /// The kinds of step, as they stand in policies and records.
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
            pub enum ActionType {
                $($(#[$doc])+ $name,)+
            }
        }

        impl ActionType {
            /// What is true of the action, whatever its parameters are.
            pub const fn traits(self) -> &'static Traits {
                match self {
                    $(Self::$name => &$name::TRAITS,)+
                }
            }

            /// The action with these parameters. `None` if it has no default, and its parameters are missing.
            pub fn with(self, params: &ActionParams) -> Option<Action> {
                match self {
                    $(Self::$name => $name::read(params).map(Action::$name),)+
                }
            }
        }

        /// A step's action with its parameters.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = "params::Union", into = "params::Union")]
        #[schemars(with = "params::Union")]
        pub enum Action {
            $($(#[$doc])+ $name($name),)+
        }

        impl Action {
            /// Its kind.
            pub const fn kind(&self) -> ActionType {
                match self {
                    $(Self::$name(_) => ActionType::$name,)+
                }
            }

            /// Its parameters, each in its field.
            pub fn params(&self) -> ActionParams {
                let mut params = ActionParams::default();
                match self {
                    $(Self::$name(action) => action.write(&mut params),)+
                }
                params
            }

            fn words(&self) -> Vec<String> {
                match self {
                    $(Self::$name(action) => action.words(),)+
                }
            }
        }
    };
}

actions! {
    /// Marks the node unschedulable. The controller undoes it when the remediation ends, or later where the policy quarantines the node.
    Cordon,
    /// Puts the controller's taint on the node. The controller undoes it when the remediation ends.
    Taint,
    /// Evicts the pods of the node that the remediation has cordoned, as their disruption budgets allow.
    Drain,
    /// Deletes the stuck DaemonSet pod.
    DeletePod,
    /// Removes the confirmed leftover.
    CleanupOrphans,
    /// Thaws the frozen control group of a container in creation.
    ThawCgroup,
    /// Ends the wait of the one hung process.
    ReleaseHungProcess,
    /// Has systemd restart the unit of the kubelet.
    RestartKubelet,
    /// Has systemd restart the unit of the container runtime.
    RestartRuntime,
    /// Has the node's agent reboot the machine, once the node is cordoned.
    Reboot,
    /// Has the node's agent ask another tool of the node for a reboot, by the file that kured watches.
    MarkForReboot,
    /// Hands the node to a tool that reboots or replaces it.
    HandOff,
    /// Notifies people. It is the last step.
    Notify,
}

impl Action {
    /// How long the node stays cordoned after a remediation that has not resolved its faults, if the action cordons it and says so.
    pub const fn quarantine(&self) -> Option<&Quarantine> {
        match self {
            Self::Cordon(params) => params.quarantine.as_ref(),
            _ => None,
        }
    }

    /// The external remediator that it hands the node to, if it does.
    pub const fn hand_off(&self) -> Option<&HandOff> {
        match self {
            Self::HandOff(params) => Some(params),
            _ => None,
        }
    }

    /// What is true of the action.
    pub const fn traits(&self) -> &'static Traits {
        self.kind().traits()
    }

    /// The action as an attempt records it: without the parameters that other decisions read from the policy.
    #[must_use]
    pub fn recorded(&self) -> Self {
        let params = ActionParams { cordon: None, notify: None, ..self.params() };
        self.kind().with(&params).unwrap_or_else(|| self.clone())
    }

    /// Whether an attempt that recorded `record` was made for this action.
    pub fn is_recorded_as(&self, record: &Self) -> bool {
        self == record || self.kind() == record.kind() && self.recorded() == *record
    }

    /// The action and what its parameters say about it: `ReleaseHungProcess(SIGCONT)`, `HandOff(SelfNodeRemediation)`, `Drain(force)`.
    pub fn phrase(&self) -> String {
        let (name, words) = (self.kind().as_str(), self.words());
        if words.is_empty() { name.to_owned() } else { format!("{name}({})", words.join(", ")) }
    }
}

impl PartialEq<ActionType> for Action {
    fn eq(&self, kind: &ActionType) -> bool {
        self.kind() == *kind
    }
}
