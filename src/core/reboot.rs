//! The step Reboot: the node's own agent asks systemd's login manager to boot the machine anew.
//!
//! It ends every pod of the node, so it is bound to one boot: the order carries the boot id that the Node showed at the last look,
//! and an agent that runs in another boot has nothing to do any more. What else an agent remembers of its operations is in
//! `/run`, and is lost by the very act.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fault::FaultType;

/// Longest boot id that is taken: the kernel's has 36 characters.
pub const MAX_BOOT_ID: usize = 64;

/// Parameters of the step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reboot {
    /// Whether the node is rebooted although no Drain of the episode has emptied it: every pod ends with the machine, whatever its
    /// disruption budget says. Default false, and then the ladder needs a Drain before it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub even_if_not_drained: bool,
}

/// Whether it is the id of a boot as the kernel writes it, in any of its forms.
pub fn is_boot_id(id: &str) -> bool {
    (1..=MAX_BOOT_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Whether a reboot can do anything about such a fault, is not out of all proportion, and the node itself can look once more whether
/// it is still there; if not, why.
pub const fn helps(kind: FaultType) -> Result<(), &'static str> {
    use FaultType as F;
    match kind {
        F::RuntimeUnreachable
        | F::RuntimeListHung
        | F::KubeletDown
        | F::HungContainer
        | F::NetworkPluginHung
        | F::RuntimeClientHung => Ok(()),
        F::ProbeSilent => Err("nothing is done to a node that nobody can look at"),
        _ => Err("the node has no look of its own at such a fault right before a reboot, so it is not rebooted for it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_a_boot_id_is_one() {
        for id in ["3f1c7f6e-1d3a-4e0c-9b6c-0a8b1c2d3e4f", "boot", &"a".repeat(64)] {
            assert!(is_boot_id(id), "{id}");
        }
        for id in ["", "a b", "a\n", "ä", &"a".repeat(65)] {
            assert!(!is_boot_id(id), "{id:?}");
        }
    }

    #[test]
    fn nobody_is_rebooted_for_what_merits_no_reboot_by_others_either() {
        for kind in FaultType::ALL {
            assert!(helps(kind).is_err() || crate::core::hand_off::helps(kind).is_ok(), "{kind}");
        }
    }
}
