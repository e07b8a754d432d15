//! What may be done for what other tools say of a node.

use crate::policy::{PolicyRule, PolicyStep};

/// Whether each step can be done for what the rule is for. What another tool says of a node nobody there can check once more, so
/// nothing is done on the node for it.
pub(super) fn check(rule: &PolicyRule, at: &str, errors: &mut Vec<String>) {
    if rule.matches.node_conditions.is_empty() || !rule.matches.faults.is_empty() {
        return;
    }
    let checks_on_node = |step: &&PolicyStep| !step.action.traits().for_node_conditions;
    let names: Vec<&str> = rule.steps.iter().filter(checks_on_node).map(|step| step.action.as_str()).collect();
    if !names.is_empty() {
        errors.push(format!(
            "{at}.steps: for nodeConditions alone expected only Cordon, Taint, Drain, HandOff and Notify, found {}, which would never be executed: no probe can check whether a condition of the Node is true; remove it, or name its faults in match.faults",
            names.join(", ")
        ));
    }
}
