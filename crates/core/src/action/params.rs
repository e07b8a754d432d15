//! The parameters of the actions as one union: the field `action` names the kind, and at most the field of that kind is set.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Action, ActionType, Cordon, Drain, HandOff, MarkForReboot, Notify, Reboot, ReleaseHungProcess, Restart, Taint,
    Traits,
};

/// What the file of each action says about it.
pub(super) trait Properties: Sized {
    /// What is true of the action, whatever its parameters are.
    const TRAITS: Traits;

    /// Its parameters, from their field; its defaults where the field is absent. `None` where there is no default.
    fn read(params: &ActionParams) -> Option<Self>;

    /// Puts its parameters into their field.
    fn write(&self, _: &mut ActionParams) {}

    /// What its parameters say about what is done, in words.
    fn words(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The parameters of a step, each in the field of its action.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActionParams {
    /// The parameters of `Cordon`. An attempt does not record them.
    #[serde(skip)]
    pub cordon: Option<Cordon>,
    /// The parameters of `Notify`. An attempt does not record them.
    #[serde(skip)]
    pub notify: Option<Notify>,
    /// The parameters of `ReleaseHungProcess`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_hung_process: Option<ReleaseHungProcess>,
    /// The parameters of `RestartKubelet` and `RestartRuntime`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// The parameters of `HandOff`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hand_off: Option<HandOff>,
    /// The parameters of `Taint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taint: Option<Taint>,
    /// The parameters of `Drain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// The parameters of `Reboot`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot: Option<Reboot>,
    /// The parameters of `MarkForReboot`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark_for_reboot: Option<MarkForReboot>,
}

/// An action as an attempt records it.
#[derive(Serialize, Deserialize, JsonSchema)]
pub(super) struct Union {
    /// Kind of the action.
    action: ActionType,
    #[serde(flatten)]
    params: ActionParams,
}

impl From<Action> for Union {
    fn from(action: Action) -> Self {
        Self { action: action.kind(), params: action.params() }
    }
}

impl TryFrom<Union> for Action {
    type Error = String;

    fn try_from(union: Union) -> Result<Self, String> {
        let Union { action, params } = union;
        action.with(&params).ok_or_else(|| format!("the parameters of {} are missing", action.as_str()))
    }
}
