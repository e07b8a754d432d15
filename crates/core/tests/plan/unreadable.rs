//! Remediations, commands and reports that are there and that this version cannot read, and Nodes that no version can.

use nrh_core::engine::plan;
use nrh_core::plan::{BlockReason, Effect, Plan, SelfHealing};
use nrh_core::remediation::Marker;
use nrh_core::snapshot::{CommandView, Ledger, ReportView, Slot, Snapshot, UnreadableRemediation};

use crate::samples::{cont, cordon, hung};
use crate::world::{ClearedBy, World, acts};

const NAME: &str = "n1-of-later";

/// Two sick nodes, and a remediation of the first that cannot be read.
fn two(is_open: bool) -> (World, Snapshot) {
    let mut world = World::under(&[cont()], &["n1", "n2"]);
    for node in ["n1", "n2"] {
        world.inject(node, hung("log"), ClearedBy::Cont);
    }
    let mut snapshot = world.snapshot();
    let (node, policy) = (Some("n1".to_owned()), Some("p".to_owned()));
    let remediation = UnreadableRemediation { node, policy, is_open, made_at: None, why: "unknown variant".to_owned() };
    snapshot.unreadable.insert(NAME.to_owned(), remediation);
    (world, snapshot)
}

fn slot(snapshot: &mut Snapshot, node: &str) {
    let taken_at = snapshot.now.checked_sub(std::time::Duration::from_hours(9)).unwrap();
    let slot = Slot { node: node.to_owned(), policy: "p".to_owned(), taken_at, kinds: None };
    snapshot.ledger.get_or_insert_default().slots.insert(NAME.to_owned(), slot);
}

fn stored(plan: &Plan) -> Option<&Ledger> {
    plan.effects.iter().find_map(|effect| if let Effect::StoreLedger(ledger) = effect { Some(ledger) } else { None })
}

fn acted_on(plan: &Plan) -> Vec<String> {
    acts(plan).into_iter().map(|(node, _)| node).collect()
}

#[test]
fn one_with_a_slot_keeps_it_and_its_node_and_others_are_repaired() {
    let (world, mut snapshot) = two(false);
    slot(&mut snapshot, "n1");
    let plan = plan(&snapshot, &world.settings);
    assert_eq!(acted_on(&plan), ["n2"], "{:?}", plan.blocked);
    assert!(stored(&plan).is_some_and(|ledger| ledger.slots.len() == 2 && ledger.slots.contains_key(NAME)));
    let blocked: Vec<_> = plan.blocked.iter().filter(|blocked| blocked.node == "n1").collect();
    assert!(
        blocked.iter().all(|blocked| blocked.reason == BlockReason::ActionsDisabled && blocked.message.contains(NAME)),
        "{blocked:?}"
    );
    assert!(plan.nodes["n1"].activity.contains(NAME), "{}", plan.nodes["n1"].activity);
    assert_eq!((plan.policies["p"].unhealthy, plan.policies["p"].in_flight), (2, 2));
}

#[test]
fn one_without_a_slot_keeps_its_node_as_long_as_it_is_open() {
    for (is_open, expected) in [(true, vec!["n2"]), (false, vec!["n1", "n2"])] {
        let (world, snapshot) = two(is_open);
        let plan = plan(&snapshot, &world.settings);
        assert_eq!(acted_on(&plan), expected, "{:?}", plan.blocked);
        assert!(stored(&plan).is_some_and(|ledger| !ledger.slots.contains_key(NAME)), "no slot is taken for it");
        assert_eq!(plan.blocked.iter().any(|blocked| blocked.message.contains(NAME)), is_open);
    }
}

#[test]
fn where_nobody_can_tell_whether_a_command_stands_nothing_is_begun() {
    let (world, mut snapshot) = two(false);
    snapshot.unreadable.clear();
    let uid = Some("uid-n1".to_owned());
    let unreadable = Some("spec.command.action: unknown variant".to_owned());
    snapshot.commands.insert("n1".to_owned(), CommandView { node_uid: uid, command: None, unreadable });
    let blocked = plan(&snapshot, &world.settings);
    assert_eq!(acted_on(&blocked), ["n2"], "{:?}", blocked.blocked);
    let told = |blocked: &nrh_core::plan::Blocked| {
        blocked.node == "n1"
            && blocked.reason == BlockReason::ActionsDisabled
            && blocked.message.contains("NodeCommand n1 cannot be read")
    };
    assert!(blocked.blocked.iter().any(told), "{:?}", blocked.blocked);
    snapshot.commands.clear();
    let begun = plan(&snapshot, &world.settings);
    assert_eq!(acted_on(&begun), ["n1", "n2"], "{:?}", begun.blocked);
}

#[test]
fn it_is_told_of_a_node_without_a_fault_and_its_marks_and_its_command_stay() {
    let (world, mut snapshot) = two(true);
    for report in snapshot.reports.values_mut() {
        report.faults.clear();
    }
    let node = snapshot.nodes.get_mut("n1").unwrap();
    node.cordoned_by = Some(NAME.to_owned());
    let command = Some(nrh_core::examples::command(&format!("{NAME}-0-1")));
    let node_uid = Some("uid-n1".to_owned());
    snapshot.commands.insert("n1".to_owned(), CommandView { node_uid, command, unreadable: None });
    // Without a slot, too.
    snapshot.ledger = Some(Ledger::default());
    let told = plan(&snapshot, &world.settings);
    assert_eq!(told.effects, []);
    assert_eq!(told.blocked.len(), 1, "{:?}", told.blocked);
    snapshot.unreadable.clear();
    let gone = plan(&snapshot, &world.settings);
    let is_both = matches!(
        gone.effects.as_slice(),
        [Effect::WithdrawCommand { .. }, Effect::Remove { marker: Marker::Cordon, .. }]
            | [Effect::Remove { marker: Marker::Cordon, .. }, Effect::WithdrawCommand { .. }]
    );
    assert!(is_both, "{:?}", gone.effects);
}

const WHY: &str = "status.conditions[0].lastHeartbeatTime: out of range";

fn unread(snapshot: &mut Snapshot, node: &str) {
    snapshot.nodes.get_mut(node).unwrap().unreadable = Some(WHY.to_owned());
}

fn is_told(plan: &Plan, node: &str) -> bool {
    let is_reason = |blocked: &&nrh_core::plan::Blocked| blocked.reason == BlockReason::ActionsDisabled;
    plan.blocked.iter().filter(is_reason).any(|blocked| blocked.node == node && blocked.message.contains(WHY))
}

#[test]
fn on_a_node_that_cannot_be_read_nothing_is_begun_and_others_are_repaired() {
    let (world, mut snapshot) = two(false);
    snapshot.unreadable.clear();
    unread(&mut snapshot, "n1");
    let plan = plan(&snapshot, &world.settings);
    assert_eq!(acted_on(&plan), ["n2"], "{:?}", plan.blocked);
    assert!(is_told(&plan, "n1"), "{:?}", plan.blocked);
    assert_eq!(plan.policies["p"].unhealthy, 2);
}

#[test]
fn on_a_node_that_cannot_be_read_what_is_open_waits_whatever_its_last_view_says() {
    let mut world = World::sick(hung("log"), None, &[cordon(), cont()]);
    world.passes(3);
    let mut snapshot = world.snapshot();
    let node = snapshot.nodes.get_mut("n1").unwrap();
    // A view of before the cordon would be taken for a person's uncordon, and other marks end the remediation.
    (node.unschedulable, node.exclusions) = (false, vec!["drain in progress".to_owned()]);
    unread(&mut snapshot, "n1");
    let waits = plan(&snapshot, &world.settings);
    assert_eq!(waits.effects, []);
    assert!(is_told(&waits, "n1"), "{:?}", waits.blocked);
    snapshot.nodes.get_mut("n1").unwrap().unreadable = None;
    assert_ne!(plan(&snapshot, &world.settings).effects, []);
}

#[test]
fn marks_on_a_node_that_cannot_be_read_are_not_taken_for_left_over() {
    let (world, mut snapshot) = two(false);
    snapshot.unreadable.clear();
    snapshot.reports.values_mut().for_each(|report| report.faults.clear());
    snapshot.ledger = Some(Ledger::default());
    snapshot.nodes.get_mut("n1").unwrap().cordoned_by = Some(NAME.to_owned());
    assert!(matches!(
        plan(&snapshot, &world.settings).effects.as_slice(),
        [Effect::Remove { marker: Marker::Cordon, .. }]
    ));
    unread(&mut snapshot, "n1");
    let told = plan(&snapshot, &world.settings);
    assert_eq!(told.effects, []);
    assert!(is_told(&told, "n1"), "{:?}", told.blocked);
}

#[test]
fn a_report_that_cannot_be_read_is_no_suspension_and_blocks_its_node_alone() {
    let (world, mut snapshot) = two(false);
    snapshot.unreadable.clear();
    let report = snapshot.reports.get_mut("n1").unwrap();
    *report =
        ReportView { node_uid: report.node_uid.clone(), unreadable: Some(WHY.to_owned()), ..ReportView::default() };
    let plan = plan(&snapshot, &world.settings);
    assert_eq!(acted_on(&plan), ["n2"], "{:?}", plan.blocked);
    assert!(is_told(&plan, "n1"), "{:?}", plan.blocked);
    let view = &plan.nodes["n1"];
    let told = format!("NodeRuntimeHealth n1 cannot be read ({WHY}), so nothing is done on the node");
    assert_eq!((view.excluded.as_ref(), view.self_healing), (Some(&told), SelfHealing::ManualActionRequired));
}
