//! The steps that have a node boot anew.
//!
//! `Reboot`: the node's own agent asks systemd's login manager for it. `MarkForReboot`: the agent leaves a file on the node for which another
//! tool looks (kured), and that tool drains and reboots the node when its locks and windows let it; as long as it has not, the file is
//! taken away again where it is not wanted any more.
//!
//! Either ends every pod of the node, so it is bound to one boot: the order carries the boot id that the Node showed at the last look,
//! and an agent that runs in another boot has nothing to do any more. What else an agent remembers of its operations is in
//! `/run`, and is lost by the very act.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fault::FaultType;

/// Longest boot id that is taken: the kernel's has 36 characters.
pub const MAX_BOOT_ID: usize = 64;

/// Parameters of the step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reboot {
    /// Reboot only a node that a Drain of this remediation has emptied. `false` reboots it with its pods: every pod ends with the
    /// machine, whatever its disruption budget says. Default true; then the rule needs a Drain before the Reboot.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub require_drain: bool,
}

const fn yes() -> bool {
    true
}

impl Default for Reboot {
    fn default() -> Self {
        Self { require_drain: yes() }
    }
}

/// Where kured looks as shipped; `/var/run` is the same folder.
pub const SENTINEL: &str = "/run/reboot-required";

/// What the path of such a file has to look like. Below `/run` and nowhere else: that folder is in memory, so the boot takes the file
/// away, and a machine that comes back finds no order to reboot once more. The name has to say what it is for: other names in that
/// folder (`nologin`, `utmp`) mean something to others.
const SENTINEL_PATTERN: &str = r"^/run/[A-Za-z0-9._-]*reboot[A-Za-z0-9._-]*$";

/// Longest time that a mark stands, in seconds: the longest that a step may take.
pub const MARK_STANDS: u32 = 86_400;

/// Longest such path.
const MAX_SENTINEL: usize = 69;

/// Parameters of the step `MarkForReboot`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MarkForReboot {
    /// Path on the node of the file that requests the reboot (kured: `--reboot-sentinel`): directly in /run, and its name contains
    /// `reboot`. Default /run/reboot-required, which kured calls /var/run/reboot-required.
    #[serde(default = "default_sentinel")]
    #[schemars(length(max = MAX_SENTINEL), regex(pattern = SENTINEL_PATTERN))]
    pub path: String,
}

fn default_sentinel() -> String {
    SENTINEL.to_owned()
}

impl Default for MarkForReboot {
    fn default() -> Self {
        Self { path: default_sentinel() }
    }
}

/// What an agent is told of a mark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MarkOrder {
    /// The file, as the node itself has it: directly in /run, with reboot in its name.
    #[schemars(length(max = MAX_SENTINEL), regex(pattern = SENTINEL_PATTERN))]
    pub path: String,
    /// Seconds after which the node takes it away by itself, whoever may have forgotten it.
    #[schemars(range(min = 1, max = MARK_STANDS))]
    pub expires_after_seconds: u32,
}

/// The name of such a file in `/run`, where the path is one that may be taken.
pub fn sentinel_name(path: &str) -> Option<&str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let name = path.strip_prefix("/run/").filter(|_| path.len() <= MAX_SENTINEL)?;
    (name.bytes().all(is_plain) && name.contains("reboot")).then_some(name)
}

/// Whether it is the id of a boot as the kernel writes it, in any of its forms.
pub fn is_boot_id(id: &str) -> bool {
    (1..=MAX_BOOT_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Whether a reboot by another tool, which drains the node first, can do anything about such a fault; if not, why.
pub const fn marking_helps(kind: FaultType) -> Result<(), &'static str> {
    match kind {
        FaultType::KubeletDown => {
            Err("who reboots a marked node drains it first, and no pod of it ends while its kubelet is down")
        }
        other => other.spec().remedy.new_boot,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_of_run_that_says_what_it_is_for_is_taken() {
        for (path, name) in [
            (SENTINEL, "reboot-required"),
            ("/run/kured.reboot_needed", "kured.reboot_needed"),
            ("/run/reboot", "reboot"),
        ] {
            assert_eq!(sentinel_name(path), Some(name));
        }
        for path in [
            "",
            "reboot-required",
            "/var/run/reboot-required",
            "/run",
            "/run/",
            "/run/.",
            "/run/..",
            "/run/nologin",
            "/run/../etc/reboot-required",
            "/run/x/reboot-required",
            "/run//reboot-required",
            "/run/reboot-required/",
            "/run/reboot required",
            "/run/reboot\0",
            "/run/réboot-reboot",
            &format!("/run/reboot{}", "x".repeat(60)),
        ] {
            assert_eq!(sentinel_name(path), None, "{path:?}");
        }
    }

    #[test]
    fn nobody_is_marked_for_what_merits_no_reboot() {
        for kind in FaultType::ALL {
            assert!(marking_helps(kind).is_err() || kind.spec().remedy.new_boot.is_ok(), "{kind}");
        }
    }

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
            assert!(kind.spec().remedy.new_boot.is_err() || kind.spec().remedy.other_machine.is_ok(), "{kind}");
        }
    }
}
