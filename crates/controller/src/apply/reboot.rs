//! The preflight before the controller commands a node to reboot, or requests a reboot from another tool. The node must be in the
//! very boot that the command is for, and must carry the controller's own cordon. The cordon is not needed if another tool
//! cordons the node itself.

use nrh_api::NodeRuntimeHealth;
use nrh_core::policy::ActionType;
use nrh_core::remediation::{Remediation, StepRecord};
use nrh_core::snapshot::{NodeView, TriState};

/// Checks that the node, as just read, may be commanded to reboot; if not, says what was expected and what was found. Other steps
/// are not checked.
///
/// # Errors
/// A sentence: why the controller does not give the command.
pub(super) fn still_to_do(
    remediation: &Remediation,
    step: &StepRecord,
    node: &NodeView,
    report: &NodeRuntimeHealth,
) -> Result<(), String> {
    if !step.action.ends_boot() {
        return Ok(());
    }
    let (name, action) = (&remediation.node, step.action.kind().as_str());
    let meant = step
        .boot_id
        .as_deref()
        .filter(|id| !id.is_empty())
        .ok_or_else(|| format!("{action}: the attempt names no boot id"))?;
    if node.boot_id.as_deref() != Some(meant) {
        let found = node.boot_id.as_deref().unwrap_or("none");
        return Err(format!(
            "{action}: Node {name} was to be in boot {meant}, found {found}: it is not rebooted again"
        ));
    }
    let told = report.status.as_ref().and_then(|status| status.probe.as_ref()).map(|probe| probe.boot_id.as_str());
    if told != Some(meant) {
        let told = told.unwrap_or("none");
        return Err(format!("{action}: expected the probe of {name} to report boot {meant}, found {told}"));
    }
    if step.action == ActionType::MarkForReboot {
        if node.ready == TriState::Unknown {
            return Err(format!("{action}: whether Node {name} is Ready is Unknown by now"));
        }
        return Ok(());
    }
    if !node.unschedulable || node.cordoned_by.as_deref() != Some(remediation.name.as_str()) {
        return Err(format!(
            "{action}: Node {name} does not carry the cordon of remediation {} (any more)",
            remediation.name
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nrh_api::{NodeRemediation, convert};
    use nrh_core::action::{Action, MarkForReboot, Notify};
    use serde_json::json;

    fn verdict(change: impl FnOnce(&mut NodeView, &mut NodeRuntimeHealth, &mut Remediation)) -> Result<(), String> {
        let object: NodeRemediation = serde_json::from_value(json!({
            "apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRemediation", "metadata": {"name": "e"},
            "spec": {"nodeName": "w1", "nodeUid": "n1", "policy": "p", "mode": "Enforce"},
            "status": {"phase": "Running", "message": "", "startedAt": "2025-01-01T00:00:00Z", "faults": [],
                "attempts": [{"operationId": "op", "faultId": "f1", "action": "Reboot", "reboot": {}, "bootId": "b1", "stepIndex": 0,
                    "executor": "Probe", "state": "Scheduled", "scheduledAt": "2025-01-01T00:00:00Z"}]}}))
        .unwrap();
        let mut remediation = convert::remediation(&object);
        let mut report: NodeRuntimeHealth = serde_json::from_value(json!({
            "apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRuntimeHealth", "metadata": {"name": "w1"}, "spec": {},
            "status": {"probe": {"version": "1", "mode": "Pod", "bootId": "b1", "sequence": 2,
                "heartbeatAt": "2025-01-01T00:00:15Z", "intervalSeconds": 60, "actionsEnabled": true}}}))
        .unwrap();
        let mut node = NodeView {
            boot_id: Some("b1".into()),
            unschedulable: true,
            cordoned_by: Some("e".into()),
            ..NodeView::default()
        };
        change(&mut node, &mut report, &mut remediation);
        let step = remediation.steps[0].clone();
        still_to_do(&remediation, &step, &node, &report)
    }

    #[test]
    fn only_a_node_in_the_boot_that_was_meant_and_under_our_cordon_is_told() {
        type Case = (fn(&mut NodeView, &mut NodeRuntimeHealth, &mut Remediation), &'static str);
        assert_eq!(verdict(|_, _, _| {}), Ok(()));
        let cases: [Case; 8] = [
            (|n, _, _| n.boot_id = Some("b2".into()), "found b2: it is not rebooted again"),
            (|n, _, _| n.boot_id = None, "found none"),
            (|_, r, _| r.status.as_mut().unwrap().probe.as_mut().unwrap().boot_id = "b2".into(), "probe of w1"),
            (|_, r, _| r.status = None, "probe of w1"),
            (|n, _, _| n.unschedulable = false, "does not carry the cordon"),
            (|n, _, _| n.cordoned_by = None, "does not carry the cordon"),
            (|n, _, _| n.cordoned_by = Some("other".into()), "does not carry the cordon"),
            (|_, _, e| e.steps[0].boot_id = None, "names no boot id"),
        ];
        for (change, said) in cases {
            let found = verdict(change).unwrap_err();
            assert!(found.contains(said), "{said}: {found}");
        }
        assert_eq!(
            verdict(|n, _, e| (n.boot_id, e.steps[0].action) = (None, Action::Notify(Notify::default()))),
            Ok(())
        );
    }

    #[test]
    fn a_node_that_another_tool_is_asked_for_needs_no_cordon_of_ours_and_is_known_to_be_there() {
        let marked = |change: fn(&mut NodeView)| {
            verdict(|n, _, e| {
                e.steps[0].action = Action::MarkForReboot(MarkForReboot::default());
                (n.ready, n.unschedulable, n.cordoned_by) = (TriState::False, false, None);
                change(n);
            })
        };
        assert_eq!(marked(|_| {}), Ok(()));
        assert!(
            marked(|n| n.ready = TriState::Unknown).unwrap_err().contains("whether Node w1 is Ready is Unknown by now")
        );
        assert!(
            marked(|n| n.boot_id = Some("b2".into()))
                .unwrap_err()
                .contains("MarkForReboot: Node w1 was to be in boot b1")
        );
    }
}
