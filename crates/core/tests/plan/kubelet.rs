//! A kubelet whose start is blocked: named, waited for, and no Job is sent to it.

use jiff::Timestamp;
use nrh_core::fault::FaultType;
use nrh_core::kubelet::Complaint;
use nrh_core::plan::Health;
use nrh_core::snapshot::{KubeletView, TriState};
use nrh_testbed_matrix::{Seen, Way};

use crate::samples::{cont, hung, notify, rule, secs};
use crate::world::{COMMAND_CONT, ClearedBy, JOB_CONT, World};

const BEGAN: i64 = 1_767_225_600;

fn at(second: i64) -> Option<Timestamp> {
    Timestamp::from_second(second).ok()
}

/// A kubelet of this age in a node that is Ready, whose status was written before it began.
pub fn block(world: &mut World, age: u64) {
    let node = world.node("n1");
    (node.view.status_at, node.view.ready) = (at(BEGAN - 100), TriState::True);
    let unfinished = Some(secs(age));
    node.report.kubelet = KubeletView { began: at(BEGAN), age: secs(age), unfinished, ..KubeletView::default() };
}

fn world() -> World {
    World::with_rules(&[
        rule("blocked", &[FaultType::KubeletStartBlocked, FaultType::PlegStalled], &[notify()]),
        rule("hung", &[FaultType::HungContainer], &[cont(), notify()]),
    ])
}

#[test]
fn a_blocked_start_is_named_with_its_cause_and_nothing_vouches_for_a_restart() {
    let mut world = world();
    block(&mut world, 89);
    let plan = world.plan();
    assert_eq!((plan.nodes["n1"].health, plan.nodes["n1"].cluster_faults.len()), (Health::Healthy, 0));
    assert!(plan.next.is_some_and(|next| next <= secs(1)), "it looks again when it would be blocked: {:?}", plan.next);
    block(&mut world, 90);
    world.inject("n1", hung("c"), ClearedBy::Cont);
    let plan = world.plan();
    let status_view = &plan.nodes["n1"];
    assert_eq!(status_view.cluster_faults[0].kind, FaultType::KubeletStartBlocked);
    assert!(status_view.cluster_faults[0].message.contains("likely cause: HungContainer"), "{status_view:?}");
    assert_eq!((status_view.health, status_view.pods_progressing), (Health::Unhealthy, TriState::False));
    assert!(!status_view.restart_safe_known);
}

#[test]
fn while_the_start_is_blocked_the_probe_itself_acts_and_then_jobs_do_again() {
    for (age, executor) in [(Some(5), COMMAND_CONT), (Some(600), COMMAND_CONT), (None, JOB_CONT)] {
        let mut world = world();
        if let Some(age) = age {
            block(&mut world, age);
        }
        world.inject("n1", hung("c"), ClearedBy::Cont);
        world.live(8, 1);
        assert!(world.did().contains(&executor), "{age:?}: {:?}", world.did());
    }
}

#[test]
fn it_is_resolved_when_the_kubelet_has_written_its_status_and_not_before() {
    let mut world = world();
    block(&mut world, 120);
    world.inject("n1", hung("c"), ClearedBy::Cont);
    let plans = world.run(secs(60));
    assert!(world.did().contains(&"notify"), "{:?}", world.did());
    assert!(plans.last().is_some_and(|plan| plan.nodes["n1"].health == Health::Unhealthy), "it is blocked still");
    world.node("n1").view.status_at = at(BEGAN + 130);
    world.node("n1").report.kubelet.unfinished = None;
    world.run(secs(120));
    let plan = world.plan();
    assert_eq!((plan.nodes["n1"].health, plan.nodes["n1"].pods_progressing), (Health::Healthy, TriState::True));
}

#[test]
fn a_probe_that_has_fallen_silent_blames_no_kubelet() {
    let mut world = world();
    block(&mut world, 600);
    world.node("n1").probe_runs = false;
    world.tick(secs(30));
    assert_eq!(world.cluster_faults(), [FaultType::KubeletStartBlocked], "one missed heartbeat");
    world.tick(secs(30));
    assert_eq!(world.cluster_faults(), [FaultType::ProbeNotReporting]);
    Seen::of("ProbeNotReporting", "containerd", Way::MadeUp).record();
}

#[test]
fn a_stalled_pleg_is_told_and_gone_with_the_condition() {
    let mut world = world();
    let view = &mut world.node("n1").view;
    (view.ready, view.complaint, view.ready_since) = (TriState::False, Some(Complaint::PlegStalled), at(BEGAN));
    world.run(secs(30));
    assert_eq!(world.did(), ["notify"]);
    assert_eq!(world.plan().nodes["n1"].cluster_faults[0].kind, FaultType::PlegStalled);
    Seen::of("PlegStalled", "containerd", Way::MadeUp).record();
    let view = &mut world.node("n1").view;
    (view.ready, view.complaint) = (TriState::True, None);
    world.run(secs(60));
    assert_eq!(world.plan().nodes["n1"].health, Health::Healthy);
}

#[test]
fn a_stalled_pleg_lasts_as_long_as_the_controller_has_seen_it_whatever_the_clock_of_the_node_says() {
    let mut world = world();
    world.policies[0].rules[0].min_duration = secs(600);
    let view = &mut world.node("n1").view;
    (view.ready, view.complaint, view.ready_since) = (TriState::False, Some(Complaint::PlegStalled), at(BEGAN - 3_600));
    world.live(119, 5);
    assert_eq!(world.did(), [""; 0]);
    world.live(4, 5);
    assert_eq!(world.did(), ["notify"]);
}
