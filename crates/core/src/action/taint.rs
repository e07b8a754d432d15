//! Puts the controller's taint on the node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::params::{ActionParams, Properties};
use super::traits::Traits;
use crate::taint::TaintEffect;

/// The parameters of the step. Like a cordon it keeps pods away. It never outlasts the remediation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Taint {
    /// What the taint does to pods that do not tolerate it.
    #[serde(default)]
    pub effect: TaintEffect,
}

impl Properties for Taint {
    const TRAITS: Traits = Traits { marks_node: true, ..Traits::contains() };

    fn read(params: &ActionParams) -> Option<Self> {
        Some(params.taint.unwrap_or_default())
    }

    fn write(&self, params: &mut ActionParams) {
        params.taint = Some(*self);
    }

    fn words(&self) -> Vec<String> {
        vec![self.effect.as_str().to_owned()]
    }
}
