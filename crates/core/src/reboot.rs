//! The steps that reboot a node.
//!
//! `Reboot`: the node executor asks systemd's login manager for it. `MarkForReboot`: the node executor leaves a file on the node
//! that another tool watches (kured). That tool drains and reboots the node when its locks and windows allow it. Until then, the
//! node executor removes the file when it is not wanted any more.
//!
//! Both end every pod of the node, so a step is bound to one boot. The command carries the boot id that the Node had at the last
//! check, and a node executor in another boot has nothing left to do. What else the node executor remembers of its operations is
//! in `/run`, which the reboot erases.

/// Longest accepted boot id. The kernel's has 36 characters.
pub const MAX_BOOT_ID: usize = 64;

/// The file that kured watches by default. `/var/run` is the same folder.
pub const SENTINEL: &str = "/run/reboot-required";

/// Pattern of the path of such a file. It is only below `/run`: that folder is in memory, so the reboot removes the file, and the
/// machine does not come back with a request for another reboot. The name must say what the file is for: other names in that
/// folder (`nologin`, `utmp`) have other meanings.
pub(crate) const SENTINEL_PATTERN: &str = r"^/run/[A-Za-z0-9._-]*reboot[A-Za-z0-9._-]*$";

/// Longest time that a reboot request stays, in seconds: the longest that a step may take.
pub const MARK_STANDS: u32 = 86_400;

/// Longest such path.
pub(crate) const MAX_SENTINEL: usize = 69;

/// The name of such a file in `/run`, where the path is allowed.
pub fn sentinel_name(path: &str) -> Option<&str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let name = path.strip_prefix("/run/").filter(|_| path.len() <= MAX_SENTINEL)?;
    (name.bytes().all(is_plain) && name.contains("reboot")).then_some(name)
}

/// Whether it is a boot id as the kernel writes it, in any of its forms.
pub fn is_boot_id(id: &str) -> bool {
    (1..=MAX_BOOT_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultType;

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
