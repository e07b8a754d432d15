//! What an event of a timeline changes on a node.

use crate::remediator::Remediator;
use crate::timeline::{ConditionEvent, Event, KubeletState, ProbeState};
use crate::world::{Kured, WorldNode, marks};
use nrh_core::snapshot::TriState;

/// Changes the node. Returns one sentence for each change.
pub(super) fn change(node: &mut WorldNode, event: &Event) -> Vec<String> {
    let changes = [
        event.condition.as_ref().map(|change| condition(node, change)),
        event.pods.as_ref().map(|pods| {
            let name = node.view.labels.get("kubernetes.io/hostname").cloned().unwrap_or_default();
            pods.happen(&name, &mut node.workloads)
        }),
        event.probe.map(|state| probe(node, state).to_owned()),
        event.remediator.map(|behaviour| remediator(node, behaviour).to_owned()),
        event.kured.map(|behaviour| kured(node, behaviour).to_owned()),
        event.kubelet.map(|state| kubelet(node, state).to_owned()),
        event.ready.map(|is_ready| {
            node.view.ready = answer(is_ready);
            format!("the node is {}Ready", if is_ready { "" } else { "not " })
        }),
        event.cordoned.map(|is_cordoned| {
            node.view.unschedulable = is_cordoned;
            format!("somebody else {} the node", if is_cordoned { "cordons" } else { "uncordons" })
        }),
        event.tainted.map(|is_tainted| marks::tainted_by_others(node, is_tainted)),
        event.excluded.as_deref().map(|reason| excluded(node, reason)),
        event.suspended.as_deref().map(|reason| suspended(node, reason)),
    ];
    changes.into_iter().flatten().collect()
}

const fn answer(is_true: bool) -> TriState {
    if is_true { TriState::True } else { TriState::False }
}

fn condition(node: &mut WorldNode, change: &ConditionEvent) -> String {
    let cures = change.cleared_by.iter().copied().collect();
    node.set_restorable_condition(&change.kind, change.condition(), cures);
    let Some(status) = change.status else { return format!("condition {} of the Node is taken away", change.kind) };
    let why = if change.reason.is_empty() { String::new() } else { format!(" ({})", change.reason) };
    format!("another tool writes condition {}={}{why} on the Node", change.kind, status.as_str())
}

fn probe(node: &mut WorldNode, state: ProbeState) -> &'static str {
    node.probe_runs = state != ProbeState::Silent;
    // A silent probe does not report whether it may act.
    if let Some(heartbeat) = node.report.heartbeat.as_mut().filter(|_| node.probe_runs) {
        heartbeat.actions_enabled = state == ProbeState::ActionsEnabled;
    }
    match state {
        ProbeState::ActionsEnabled => "the probe reports, and actions are enabled",
        ProbeState::ActionsDisabled => "the probe reports, and actions are disabled",
        ProbeState::Silent => "the probe falls silent",
    }
}

fn remediator(node: &mut WorldNode, behaviour: Remediator) -> &'static str {
    node.remediator = behaviour;
    match behaviour {
        Remediator::Works => "its remediator works",
        Remediator::Fails => "its remediator fails",
        Remediator::Silent => "its remediator does not answer",
        Remediator::Taken => "somebody else has handed the node to the remediator",
    }
}

fn kured(node: &mut WorldNode, behaviour: Kured) -> &'static str {
    node.boots.kured = behaviour;
    match behaviour {
        Kured::Works => "kured may reboot the node",
        Kured::Waits => "kured waits, or there is none",
    }
}

fn kubelet(node: &mut WorldNode, state: KubeletState) -> &'static str {
    let works = state == KubeletState::Works;
    node.job_starts = works;
    node.view.ready = answer(works);
    if let Some(heartbeat) = &mut node.report.heartbeat {
        heartbeat.kubelet_works = answer(works);
    }
    if works { "the kubelet works, the node is Ready" } else { "the kubelet is down, the node is not Ready" }
}

fn excluded(node: &mut WorldNode, reason: &str) -> String {
    if reason.is_empty() {
        node.view.exclusions.clear();
        return "nobody excludes the node any more".to_owned();
    }
    node.view.exclusions = vec![reason.to_owned()];
    format!("another tool excludes the node: {reason}")
}

fn suspended(node: &mut WorldNode, reason: &str) -> String {
    if reason.is_empty() {
        node.report.suspended = None;
        return "the node is not suspended any more".to_owned();
    }
    node.report.suspended = Some(reason.to_owned());
    format!("a person suspends the node: {reason}")
}
