//! When a policy may act.

use std::time::Duration;

use nrh_core::fault::FaultType;
use nrh_core::plan::BlockReason;
use nrh_core::policy::{ActionType, Step};
use nrh_core::remediation::{Phase, StepState};
use nrh_core::window::{Window, WindowType};

use crate::samples::{clean_up, cont, cordon, delete_pod, hung, kill, notify, policy, rule, today, tomorrow};
use crate::world::{ClearedBy, JOB_CONT, World, acts, reasons, secs};

/// These worlds begin at one o'clock.
fn from_two(kind: WindowType, actions: &[ActionType]) -> Window {
    Window::new(kind, "0 2 * * *", Duration::from_hours(1), "UTC", actions.iter().copied().collect()).unwrap()
}

#[test]
fn the_first_step_waits_for_its_window_and_is_taken_as_it_opens() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont()]);
    world.policies[0].windows = vec![from_two(WindowType::Allow, &[])];
    let plan = world.pass();
    assert_eq!(reasons(&plan), [BlockReason::OutsideWindow]);
    let (reason, told) = plan.policies["p"].blocked.clone().unwrap();
    assert!(reason == BlockReason::OutsideWindow && told.contains("opens 2026-01-01T02:00:00Z"), "{told}");
    assert!(plan.blocked[0].message.contains("opens 2026-01-01T02:00:00Z"), "{}", plan.blocked[0].message);
    assert!(plan.next.is_some_and(|next| next <= secs(3600)), "nobody has to ask");
    assert!(world.remediations.is_empty(), "what waits holds no slot");
    assert!(acts(&world.pass_after(3599)).is_empty());
    assert_eq!(acts(&world.pass_after(1)).len(), 1);
}

#[test]
fn what_is_under_way_when_a_window_shuts_is_finished_and_put_back() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cordon(), cont()]).ran(5);
    assert!(world.is_cordoned() && world.only_remediation().current_step().is_some());
    world.policies[0].windows = vec![today(WindowType::Deny)];
    world.run(secs(300));
    assert_eq!((world.phase(), world.is_cordoned()), (Phase::Succeeded, false), "undo knows no window");
}

#[test]
fn a_harsher_step_may_have_a_window_of_its_own() {
    let mut world = World::sick(hung("log"), ClearedBy::Kill, &[cont(), kill(true), notify()]);
    world.policies[0].windows = vec![from_two(WindowType::Allow, &[ActionType::DeletePod])];
    world.run(secs(600));
    assert_eq!(world.did().len(), 2, "neither of the two is a DeletePod: {:?}", world.did());

    world.policies[0].windows = vec![from_two(WindowType::Deny, &[ActionType::ReleaseHungProcess])];
    world.inject("n1", hung("other"), ClearedBy::Cont);
    assert_eq!(acts(&world.plan()).len(), 1);
    world.tick(secs(3600));
    assert_eq!(reasons(&world.plan()), [BlockReason::OutsideWindow]);
}

#[test]
fn one_policy_outside_of_its_windows_keeps_no_other_from_the_node() {
    let hung_only = policy("hung", &[rule("r", &[FaultType::HungContainer], &[cont()])]);
    let mut others = policy("net", &[rule("r", &[FaultType::NetworkPluginHung], &[cont()])]);
    others.windows = vec![tomorrow(WindowType::Allow)];
    let mut world = World::new(&[hung_only, others], &["n1"]).ill(crate::samples::plugin(), ClearedBy::Cont);
    world.inject("n1", hung("log"), ClearedBy::Cont);
    let plan = world.plan();
    assert_eq!((acts(&plan).len(), reasons(&plan)), (1, vec![BlockReason::OutsideWindow]));
}

#[test]
fn people_are_told_at_any_time() {
    let resolves = rule("heals", &[FaultType::LeakedShim], &[clean_up()]);
    let mut world = World::with_rules(&[resolves, rule("tells", &FaultType::ALL, &[notify()])]).ill(hung("log"), None);
    world.policies[0].windows = vec![today(WindowType::Deny)];
    assert_eq!(acts(&world.pass()), [("n1".to_owned(), "notify".to_owned())]);
}

#[test]
fn no_harsher_step_replaces_one_that_waits_for_its_hour() {
    let first = Step { timeout: secs(30), ..cont() };
    let mut world = World::sick(hung("log"), None, &[cordon(), first, kill(true), delete_pod(), notify()]);
    world.policies[0].windows = vec![from_two(WindowType::Deny, &[ActionType::ReleaseHungProcess])];
    world.tick(secs(3570));
    world.run(secs(1800));
    let did = world.did();
    assert_eq!(did, ["cordon", JOB_CONT, "notify", "uncordon"], "and the node is not kept cordoned for it");
    assert_eq!(world.phase(), Phase::Failed);
    let blocked =
        world.only_remediation().steps.iter().find(|step| step.message.contains("blocked for too long")).unwrap();
    assert!(blocked.message.contains("ReleaseHungProcess is not done while the Deny window"), "{}", blocked.message);
}

#[test]
fn what_was_reserved_when_its_window_shut_was_not_tried() {
    let mut world = World::sick(hung("log"), ClearedBy::Cont, &[cont(), kill(true), notify()]).scheduled();
    assert_eq!((world.did().len(), world.only_remediation().steps.len()), (0, 1), "reserved, and not done");
    world.policies[0].windows = vec![from_two(WindowType::Allow, &[])];
    world.pass_after(240);
    assert_eq!(world.step(0).state, StepState::Cancelled, "{}", world.step(0).message);
    world.run(secs(900));
    assert_eq!(world.did(), ["notify"], "people are told, and nothing harsher is done");
}
