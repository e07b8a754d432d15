//! Remediations, commands and reports that are there and that this version cannot read, and Nodes that no version can.

use std::time::Duration;

use nrh_core::plan::{BlockReason, Blocked, Effect, Plan, SelfHealing};
use nrh_core::remediation::Marker;
use nrh_core::snapshot::{CommandView, ReportView, Slot, UnreadableRemediation};

use crate::samples::{cont, cordon, hung};
use crate::world::{ClearedBy, World, acts, stored};

const NAME: &str = "n1-of-later";

/// Two nodes that are well.
fn well() -> World {
    World::under(&[cont()], &["n1", "n2"])
}

/// Two sick nodes.
fn two() -> World {
    let mut world = well().ill(hung("log"), ClearedBy::Cont);
    world.inject("n2", hung("log"), ClearedBy::Cont);
    world
}

/// A remediation of the first node that cannot be read.
fn with_unreadable(mut world: World, is_open: bool) -> World {
    let (node, policy) = (Some("n1".to_owned()), Some("p".to_owned()));
    let remediation = UnreadableRemediation { node, policy, is_open, made_at: None, why: "unknown variant".to_owned() };
    world.unreadable.insert(NAME.to_owned(), remediation);
    world
}

fn acted_on(plan: &Plan) -> Vec<String> {
    acts(plan).into_iter().map(|(node, _)| node).collect()
}

#[test]
fn one_with_a_slot_keeps_it_and_its_node_and_others_are_repaired() {
    let mut world = with_unreadable(two(), false);
    let taken_at = world.now - Duration::from_hours(9);
    let slot = Slot { node: "n1".to_owned(), policy: "p".to_owned(), taken_at, kinds: None };
    world.ledger.as_mut().unwrap().slots.insert(NAME.to_owned(), slot);
    let plan = world.plan();
    assert_eq!(acted_on(&plan), ["n2"], "{:?}", plan.blocked);
    assert!(stored(&plan).is_some_and(|ledger| ledger.slots.len() == 2 && ledger.slots.contains_key(NAME)));
    let is_its = |one: &Blocked| one.reason == BlockReason::ActionsDisabled && one.message.contains(NAME);
    assert!(plan.blocked.iter().filter(|blocked| blocked.node == "n1").all(is_its), "{:?}", plan.blocked);
    assert!(is_told(&plan, "n1", NAME), "{:?}", plan.blocked);
    assert!(plan.nodes["n1"].activity.contains(NAME), "{}", plan.nodes["n1"].activity);
    assert_eq!((plan.policies["p"].unhealthy, plan.policies["p"].in_flight), (2, 2));
}

#[test]
fn one_without_a_slot_keeps_its_node_as_long_as_it_is_open() {
    for (is_open, expected) in [(true, vec!["n2"]), (false, vec!["n1", "n2"])] {
        let plan = with_unreadable(two(), is_open).plan();
        assert_eq!(acted_on(&plan), expected, "{:?}", plan.blocked);
        assert!(stored(&plan).is_some_and(|ledger| !ledger.slots.contains_key(NAME)), "no slot is taken for it");
        assert_eq!(plan.blocked.iter().any(|blocked| blocked.message.contains(NAME)), is_open);
    }
}

#[test]
fn where_nobody_can_tell_whether_a_command_stands_nothing_is_begun() {
    let world = two();
    let unreadable = Some("spec.command.action: unknown variant".to_owned());
    let command = CommandView { node_uid: Some("uid-n1".to_owned()), command: None, unreadable };
    let blocked = world.plan_with(|snapshot| drop(snapshot.commands.insert("n1".to_owned(), command)));
    assert_eq!(acted_on(&blocked), ["n2"], "{:?}", blocked.blocked);
    assert!(is_told(&blocked, "n1", "NodeCommand n1 cannot be read"), "{:?}", blocked.blocked);
    let begun = world.plan();
    assert_eq!(acted_on(&begun), ["n1", "n2"], "{:?}", begun.blocked);
}

#[test]
fn it_is_told_of_a_node_without_a_fault_and_its_marks_and_its_command_stay() {
    // Without a slot, too.
    let mut world = with_unreadable(well(), true);
    world.node("n1").view.cordoned_by = Some(NAME.to_owned());
    world.node("n1").command = Some(nrh_core::examples::command(&format!("{NAME}-0-1")));
    let told = world.plan();
    assert_eq!(told.effects, []);
    assert_eq!(told.blocked.len(), 1, "{:?}", told.blocked);
    world.unreadable.clear();
    let gone = world.plan();
    let is_both = matches!(
        gone.effects.as_slice(),
        [Effect::WithdrawCommand { .. }, Effect::Remove { marker: Marker::Cordon, .. }]
            | [Effect::Remove { marker: Marker::Cordon, .. }, Effect::WithdrawCommand { .. }]
    );
    assert!(is_both, "{:?}", gone.effects);
}

const WHY: &str = "status.conditions[0].lastHeartbeatTime: out of range";

fn unread(world: &mut World) {
    world.node("n1").view.unreadable = Some(WHY.to_owned());
}

fn is_told(plan: &Plan, node: &str, why: &str) -> bool {
    let is_it = |one: &Blocked| one.reason == BlockReason::ActionsDisabled && one.message.contains(why);
    plan.blocked.iter().filter(|blocked| blocked.node == node).any(is_it)
}

#[test]
fn on_a_node_that_cannot_be_read_nothing_is_begun_and_others_are_repaired() {
    let mut world = two();
    unread(&mut world);
    let plan = world.plan();
    assert_eq!(acted_on(&plan), ["n2"], "{:?}", plan.blocked);
    assert!(is_told(&plan, "n1", WHY), "{:?}", plan.blocked);
    assert_eq!(plan.policies["p"].unhealthy, 2);
}

#[test]
fn on_a_node_that_cannot_be_read_what_is_open_waits_whatever_its_last_view_says() {
    let mut world = World::sick(hung("log"), None, &[cordon(), cont()]).passed(3);
    let node = &mut world.node("n1").view;
    // A view of before the cordon would be taken for a person's uncordon, and other marks end the remediation.
    (node.unschedulable, node.exclusions) = (false, vec!["drain in progress".to_owned()]);
    unread(&mut world);
    let waits = world.plan();
    assert_eq!(waits.effects, []);
    assert!(is_told(&waits, "n1", WHY), "{:?}", waits.blocked);
    world.node("n1").view.unreadable = None;
    assert_ne!(world.plan().effects, []);
}

#[test]
fn marks_on_a_node_that_cannot_be_read_are_not_taken_for_left_over() {
    let mut world = well();
    world.node("n1").view.cordoned_by = Some(NAME.to_owned());
    assert!(matches!(world.plan().effects.as_slice(), [Effect::Remove { marker: Marker::Cordon, .. }]));
    unread(&mut world);
    let told = world.plan();
    assert_eq!(told.effects, []);
    assert!(is_told(&told, "n1", WHY), "{:?}", told.blocked);
}

#[test]
fn a_report_that_cannot_be_read_is_no_suspension_and_blocks_its_node_alone() {
    let mut world = two();
    let report = &mut world.node("n1").report;
    let (node_uid, unreadable) = (report.node_uid.take(), Some(WHY.to_owned()));
    *report = ReportView { node_uid, unreadable, ..ReportView::default() };
    let plan = world.plan();
    assert_eq!(acted_on(&plan), ["n2"], "{:?}", plan.blocked);
    assert!(is_told(&plan, "n1", WHY), "{:?}", plan.blocked);
    let view = &plan.nodes["n1"];
    let told = format!("NodeRuntimeHealth n1 cannot be read ({WHY}), so nothing is done on the node");
    assert_eq!((view.excluded.as_ref(), view.self_healing), (Some(&told), SelfHealing::ManualActionRequired));
}
