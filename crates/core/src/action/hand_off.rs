//! Hands the node to a tool that reboots or replaces it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::params::{ActionParams, Properties};
use super::traits::{RunsOn, Traits};
use crate::hand_off::TemplateRef;

/// Parameters of the step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HandOff {
    /// The template of the tool that takes the node: an object of the same kind without `Template`, with the node's name, is
    /// made of it in its namespace.
    pub remediation_template: TemplateRef,
}

impl Properties for HandOff {
    const TRAITS: Traits = Traits {
        for_node_conditions: true,
        ..Traits::resolves(RunsOn::Controller, |kind| kind.spec().remedy.other_machine)
    };

    fn read(params: &ActionParams) -> Option<Self> {
        params.hand_off.clone()
    }

    fn write(&self, params: &mut ActionParams) {
        params.hand_off = Some(self.clone());
    }

    fn words(&self) -> Vec<String> {
        vec![self.remediation_template.object_kind().to_owned()]
    }
}
