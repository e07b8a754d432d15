//! Names of remediations and operations. They are the same for the same occurrence of a fault, however often it is decided on. So
//! a second decision from a stale cache meets the object of the first one, instead of creating a second object.

use jiff::Timestamp;

use crate::fault::Fault;
use crate::text::{short_hash, short_name};

/// Longest part of the node's name in a remediation's name.
const NODE_PART: usize = 32;

/// Name of the remediation that `fault` on the node opens, for the `ordinal`-th time (from 1).
///
/// A DNS-1123 label of at most 50 characters, so that an operation id fits a label value.
pub fn remediation_name(node: &str, node_uid: &str, fault: &Fault, ordinal: u32) -> String {
    // A fault that the controller finds gets a new time with each read. The uid of the pod identifies it.
    let occurrence = if fault.kind.is_cluster_fault() { 0 } else { fault.first_seen.as_second() };
    let hash = short_hash(&format!("{node_uid}/{}/{occurrence}", fault.id));
    let plain: String = short_name(node, NODE_PART)
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .collect();
    let plain = plain.trim_matches('-');
    let plain = if plain.is_empty() { "node" } else { plain };
    format!("{plain}-{}-{}", hash.get(..12).unwrap_or(&hash), ordinal.min(9_999))
}

/// Identity of the `attempt`-th attempt (from 1) of the remediation that was opened then.
///
/// The time is part of it: a remediation that was deleted and opened again has its old name, and the node would take its
/// operations for those that it has already executed.
pub fn operation_id(remediation: &str, started_at: Timestamp, attempt: usize) -> String {
    let hash = short_hash(&started_at.as_millisecond().to_string());
    format!("{}-{}-{attempt}", short_name(remediation, 50), hash.get(..8).unwrap_or(&hash))
}

/// Name of the remediation that an operation belongs to.
pub fn remediation_of(operation_id: &str) -> &str {
    operation_id.rsplitn(3, '-').nth(2).unwrap_or(operation_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultType;

    fn fault(first_seen: i64) -> Fault {
        Fault {
            id: "hungcontainer-1".into(),
            first_seen: jiff::Timestamp::from_second(first_seen).unwrap(),
            ..crate::examples::fault(FaultType::HungContainer)
        }
    }

    fn is_label(text: &str) -> bool {
        text.len() <= 63
            && text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && text.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    }

    #[test]
    fn names_are_labels_whatever_the_node_is_called() {
        for node in ["worker-1", "ip-10-0-0-1.eu-central-1.compute.internal", "", "-.-", "Ünïcode", &"x.".repeat(126)]
        {
            let name = remediation_name(node, "uid", &fault(1), 9_999_999);
            assert!(is_label(&name), "{name}");
            let operation = operation_id(&name, Timestamp::MAX, 64);
            assert!(is_label(&operation), "{operation}");
            assert_eq!(remediation_of(&operation), name);
        }
    }

    #[test]
    fn a_remediation_that_is_opened_again_has_other_operations() {
        let at = |second| jiff::Timestamp::from_second(second).unwrap();
        assert_eq!(operation_id("e", at(1), 1), operation_id("e", at(1), 1));
        assert_ne!(operation_id("e", at(1), 1), operation_id("e", at(2), 1));
        assert_ne!(operation_id("e", at(1), 1), operation_id("e", at(1), 2));
    }

    #[test]
    fn another_occurrence_node_or_turn_has_another_name() {
        let name = remediation_name("n", "uid", &fault(1), 1);
        assert_eq!(name, remediation_name("n", "uid", &fault(1), 1));
        assert_ne!(name, remediation_name("n", "uid", &fault(2), 1));
        assert_ne!(name, remediation_name("n", "other", &fault(1), 1));
        assert_ne!(name, remediation_name("n", "uid", &fault(1), 2));
    }
}
