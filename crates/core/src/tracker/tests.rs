//! The tracker over time: when a thing is confirmed, when it is cleared, and what changes nothing.

use std::time::Duration;

use super::*;
use crate::condition::{ConditionType, of_probe};
use crate::examples::{Node, SANDBOX, check, done};
use crate::observation::{ContainerState, Reading, TaskAnswer};
use crate::restart_safety::restart_safety;
use crate::tri_state::TriState;
use FaultType::{HungContainer as Hung, KubeletDown as Down, OrphanContainer as Orphan};

/// A tracker fed from a node, second by second.
struct Watch {
    node: Node,
    tracker: Tracker,
}

impl Watch {
    fn new(node: Node) -> Self {
        Self { node, tracker: Tracker::default() }
    }

    /// With a shim that is stopped.
    fn frozen() -> Self {
        Self::new(frozen())
    }

    /// The probe begins anew at this second, with what it has saved.
    fn restart(&mut self, second: u64) {
        let saved = serde_json::to_string(&self.tracker).unwrap();
        self.tracker = serde_json::from_str::<Tracker>(&saved).unwrap().restored(Duration::from_secs(second));
    }

    /// In which state the fault is at each of these seconds.
    fn shows(&mut self, kind: FaultType, states: &[(u64, Option<FaultState>)]) {
        for (second, state) in states {
            assert_eq!(self.at(*second, kind), *state, "at {second}");
        }
    }

    /// It is in this state at all of these seconds.
    fn stays(&mut self, kind: FaultType, seconds: impl Iterator<Item = u64>, state: Option<FaultState>) {
        seconds.for_each(|second| assert_eq!(self.at(second, kind), state, "at {second}"));
    }

    /// One check of everything at this second; the state of the fault of this kind, if it is reported.
    fn at(&mut self, second: u64, kind: FaultType) -> Option<FaultState> {
        self.all(second).into_iter().find(|fault| fault.kind == kind).map(|fault| fault.state)
    }

    fn all(&mut self, second: u64) -> Vec<Fault> {
        check(&mut self.tracker, &mut self.node, second).1.faults
    }
}

fn frozen() -> Node {
    Node::with(|node| node.freeze(SANDBOX))
}

const SUSPECTED: Option<FaultState> = Some(FaultState::Suspected);
const CONFIRMED: Option<FaultState> = Some(FaultState::Confirmed);
const CLEARING: Option<FaultState> = Some(FaultState::Clearing);

#[test]
fn a_hung_container_is_confirmed_by_three_checks_and_cleared_by_two() {
    let mut watch = Watch::frozen();
    watch.shows(Hung, &[(1000, SUSPECTED), (1019, SUSPECTED), (1020, SUSPECTED), (1039, SUSPECTED), (1040, CONFIRMED)]);
    watch.node = Node::healthy();
    watch.shows(Hung, &[(1041, CLEARING), (1043, CLEARING), (1044, None)]);
    watch.node = frozen();
    assert_eq!(watch.at(1050, Hung), SUSPECTED, "what is gone starts anew");
}

#[test]
fn a_sighting_while_clearing_confirms_again() {
    let mut watch = Watch::frozen();
    for second in [1000, 1020, 1040] {
        watch.at(second, Hung);
    }
    watch.node = Node::healthy();
    assert_eq!(watch.at(1041, Hung), CLEARING);
    watch.node = frozen();
    assert_eq!(watch.at(1045, Hung), CONFIRMED);
    watch.node = Node::healthy();
    assert_eq!(watch.at(1046, Hung), CLEARING, "the clean look from before does not count any more");
}

#[test]
fn a_moment_without_pressure_confirms_nothing_that_was_counted_under_it() {
    let mut node = Node::healthy();
    for id in node.tasks.keys().cloned().collect::<Vec<_>>() {
        node.tasks.insert(id, done(TaskAnswer::NoAnswer));
    }
    let mut watch = Watch::new(node);
    for (second, cpu, state) in [
        (1000, 96, SUSPECTED),
        (1020, 96, SUSPECTED),
        (1040, 96, SUSPECTED),
        (1045, 94, SUSPECTED),
        (1065, 94, SUSPECTED),
        (1170, 96, SUSPECTED),
        (1180, 94, CONFIRMED),
    ] {
        watch.node.pressure.cpu = cpu;
        assert_eq!(watch.at(second, Hung), state, "at {second}");
    }
}

#[test]
fn a_clean_check_between_makes_a_suspicion_start_anew() {
    let mut watch = Watch::frozen();
    watch.at(1000, Hung);
    watch.at(1020, Hung);
    watch.node = Node::healthy();
    assert_eq!(watch.at(1030, Hung), None);
    watch.node = frozen();
    watch.shows(Hung, &[(1040, SUSPECTED), (1060, SUSPECTED), (1080, CONFIRMED)]);
}

#[test]
fn checks_that_could_not_be_made_change_nothing_however_many() {
    let mut watch = Watch::frozen();
    watch.at(1000, Hung);
    watch.node = Node::unavailable();
    watch.stays(Hung, 1001..1500, SUSPECTED);
    watch.node = frozen();
    watch.at(1500, Hung);
    assert_eq!(watch.at(1520, Hung), CONFIRMED);
    watch.node = Node::unavailable();
    assert_eq!(watch.at(9000, Hung), CONFIRMED);
    let age = watch.all(9000).iter().find(|fault| fault.kind == Hung).map(|fault| fault.check_age_seconds);
    assert_eq!(age, Some(9000 - 1520), "its age tells that nobody has looked");
    watch.tracker.was_suspended(Duration::from_mins(10));
    let age = watch.all(9000).iter().find(|fault| fault.kind == Hung).map(|fault| fault.check_age_seconds);
    assert_eq!(age, Some(9000 - 1520 + 600), "and the time for which nobody could look");
}

#[test]
fn one_answer_counts_once_however_often_it_is_read() {
    let mut watch = Watch::new(Node::healthy());
    for second in (1000..1100).step_by(5) {
        // One silent answer of second 1000; the shim is not stopped, so nothing renews it.
        let age = Duration::from_secs(second - 1000);
        let silent = Reading::Done { value: TaskAnswer::NoAnswer, age, took: Duration::ZERO };
        watch.node.tasks.insert("aaaa1".into(), silent);
        assert_eq!(watch.at(second, Hung), SUSPECTED);
    }
    assert_eq!(watch.all(1100)[0].confirmations, 1);
}

#[test]
fn a_new_pid_is_the_same_fault_with_a_new_target() {
    let mut watch = Watch::frozen();
    let before = watch.all(1000).remove(0);
    watch.node.table().iter_mut().filter(|process| process.pid == 100).for_each(|process| process.pid = 777);
    let after = watch.all(1020).remove(0);
    assert_eq!((&before.id, after.confirmations), (&after.id, 2));
    assert_eq!(after.target.process.map(|process| process.pid), Some(777));
}

/// Whatever was suspected before it: the first silent answer counts from its question on, and the next ones are asked in time.
#[test]
fn a_silence_counts_from_its_question_on() {
    let mut watch = Watch::new(Node::healthy());
    watch.node.freeze(SANDBOX);
    watch.node.tasks.clear();
    assert_eq!(watch.at(1000, Hung), SUSPECTED, "a sign, and no answer yet");
    let silent = Reading::Done { value: TaskAnswer::NoAnswer, age: Duration::ZERO, took: Duration::from_secs(2) };
    for (second, state) in
        [(1001, SUSPECTED), (1018, SUSPECTED), (1019, SUSPECTED), (1038, SUSPECTED), (1039, CONFIRMED)]
    {
        watch.node.tasks.insert("aaaa1".into(), silent.clone());
        assert_eq!(watch.at(second, Hung), state, "at {second}");
    }
}

#[test]
fn a_first_sign_alone_is_never_confirmed() {
    let mut watch = Watch::new(Node::healthy());
    for second in (1000..1300).step_by(10) {
        watch.node.freeze(SANDBOX);
        watch.node.tasks.clear();
        assert_eq!(watch.at(second, Hung), SUSPECTED);
    }
}

mod orphan {
    use super::*;

    fn node(state: ContainerState, kubelet: bool) -> Node {
        let mut node = Node::healthy();
        node.orphan(state);
        if !kubelet {
            node.kubelet_gone();
        }
        node
    }

    #[test]
    fn the_dead_instance_that_a_live_kubelet_keeps_is_no_fault() {
        let mut watch = Watch::new(node(ContainerState::Exited, true));
        watch.stays(Orphan, (1000..3000).step_by(30), None);
    }

    #[test]
    fn a_running_one_has_five_minutes_while_a_kubelet_lives() {
        let mut watch = Watch::new(node(ContainerState::Running, true));
        watch.stays(Orphan, (1000..1300).step_by(30), SUSPECTED);
        assert_eq!(watch.at(1300, Orphan), CONFIRMED);
    }

    #[test]
    fn without_a_kubelet_three_checks_confirm_it_once_the_kubelet_is_confirmed_down() {
        for state in [ContainerState::Exited, ContainerState::Running] {
            let mut watch = Watch::new(node(state, false));
            for second in (1000..1080).step_by(10) {
                assert_ne!(watch.at(second, Orphan), CONFIRMED, "{state:?} at {second}");
            }
            assert_eq!(watch.at(1079, Down), CONFIRMED);
            assert_eq!(watch.at(1080, Orphan), CONFIRMED, "{state:?}");
        }
    }

    #[test]
    fn an_exited_one_is_no_fault_once_a_kubelet_has_completed_its_start_since() {
        let mut watch = Watch::new(node(ContainerState::Exited, false));
        for second in (1000..=1080).step_by(10) {
            watch.at(second, Orphan);
        }
        assert_eq!(watch.at(1080, Orphan), CONFIRMED);
        // A new kubelet starts at 1085 and completes its start.
        watch.node = node(ContainerState::Exited, true);
        watch.node.kubelet().process = Some((61, 108_500, Duration::from_secs(25)));
        watch.shows(Orphan, &[(1110, CLEARING), (1120, None)]);
        // It goes down again: it was up once since, so the leftover is not what keeps it from starting.
        watch.node = node(ContainerState::Exited, false);
        watch.stays(Orphan, (1130..1400).step_by(10), None);
        assert_eq!(watch.at(1400, Down), CONFIRMED);
    }

    #[test]
    fn a_kubelet_that_works_no_more_and_still_runs_may_go_on_at_any_moment() {
        let mut watch = Watch::new(node(ContainerState::Exited, true));
        watch.node.kubelet().process = Some((60, 6000, Duration::from_mins(10)));
        watch.node.list().orphan_checks.clear();
        watch.at(1000, Orphan);
        // It is stopped: its health check hangs. Then its pod loses the sandbox.
        watch.node = node(ContainerState::Exited, true);
        watch.node.kubelet().healthz = Some(false);
        for second in (1010..1400).step_by(10) {
            watch.node.kubelet().process = Some((60, 6000, Duration::from_secs(second - 400)));
            assert_eq!(watch.at(second, Orphan), None, "at {second}");
        }
        assert_eq!(watch.at(1399, Down), CONFIRMED);
        // It is killed: now nobody makes or removes containers.
        watch.node = node(ContainerState::Exited, false);
        let states: Vec<_> = (1400..=1440).step_by(10).map(|second| watch.at(second, Orphan)).collect();
        assert_eq!(states.last(), Some(&CONFIRMED), "{states:?}");
    }

    #[test]
    fn a_kubelet_that_was_up_before_it_was_seen_does_not_count() {
        let mut watch = Watch::new(node(ContainerState::Exited, true));
        watch.at(1000, Orphan);
        watch.node = node(ContainerState::Exited, false);
        let states: Vec<_> = (1010..=1100).step_by(10).map(|second| watch.at(second, Orphan)).collect();
        assert_eq!(states.last(), Some(&CONFIRMED), "{states:?}");
    }
}

#[test]
fn a_kubelet_that_dies_at_every_start_is_down_one_that_comes_up_is_not() {
    let mut watch = Watch::new(Node::healthy());
    watch.node.kubelet().process = Some((60, 1, Duration::from_secs(3)));
    watch.stays(Down, (1000..1120).step_by(10), SUSPECTED);
    assert_eq!(watch.at(1120, Down), CONFIRMED);

    let mut watch = Watch::new(Node::healthy());
    watch.node.kubelet_gone();
    for second in (1000..1050).step_by(10) {
        watch.at(second, Down);
    }
    watch.node = Node::healthy();
    watch.node.kubelet().process = Some((60, 1, Duration::from_secs(12)));
    assert_eq!(watch.at(1062, Down), SUSPECTED, "one that has just begun gets the time to complete its start");
    watch.node.kubelet().process = Some((60, 1, Duration::from_secs(22)));
    assert_eq!(watch.at(1072, Down), None);
}

#[test]
fn a_saved_check_that_is_still_to_come_is_dropped_with_all_that_hangs_on_it() {
    let mut watch = Watch::frozen();
    watch.at(1000, Hung);
    let saved = serde_json::to_string(&watch.tracker).unwrap();
    let now = Duration::from_secs(1030);
    let restored = |text: &str| serde_json::from_str::<Tracker>(text).unwrap().restored(now).suspects().count();
    assert_eq!(restored(&saved), 1);
    let counted = r#""checks":1,"last":{"secs":999,"#;
    assert!(saved.contains(counted), "{saved}");
    assert_eq!(restored(&saved.replace(counted, r#""checks":1,"last":{"secs":9999,"#)), 0);
}

#[test]
fn the_state_survives_a_restart_of_the_probe() {
    let mut watch = Watch::frozen();
    watch.at(1000, Hung);
    watch.at(1020, Hung);
    watch.restart(1030);
    assert_eq!(watch.at(1040, Hung), CONFIRMED);
    watch.restart(1050);
    let node = std::mem::replace(&mut watch.node, Node::unavailable());
    assert_eq!(watch.at(1050, Hung), CONFIRMED, "a start without a look neither clears nor repeats");
    watch.tracker = watch.tracker.clone().restored(Duration::from_secs(10));
    watch.node = node;
    assert_eq!(watch.at(1060, Hung), SUSPECTED, "looks from the future are dropped");
}

#[test]
fn a_suspicion_from_long_ago_does_not_add_up() {
    let mut watch = Watch::frozen();
    watch.at(1000, Hung);
    watch.at(1020, Hung);
    assert_eq!(watch.at(1921, Hung), SUSPECTED);
    assert_eq!(watch.all(1921)[0].confirmations, 1);
}

#[test]
fn a_flood_is_bounded_and_counted() {
    let mut node = Node::healthy();
    for pid in 0..1000 {
        let shim = crate::observation::ProcessRole::Shim { id: format!("{pid:064x}"), living_children: 0 };
        let one = node.table()[1].clone();
        node.table().push(crate::observation::ProcessSeen { pid: 10_000 + pid, state: 'T', role: shim, ..one });
    }
    let mut tracker = Tracker::default();
    let (findings, now) = check(&mut tracker, &mut node, 1000);
    assert_eq!((now.faults.len(), now.left_out), (MAX_TRACKED, 1000 - u32::try_from(MAX_TRACKED).unwrap()));
    let judged = of_probe(&now, &findings, &restart_safety(&now.faults, now.left_out, &findings));
    assert!(
        judged.iter().all(|one| one.status != TriState::True),
        "those that are not tracked may be of any kind: {judged:?}"
    );
    let (reported, left_out) = now.reported();
    assert_eq!((reported.len(), left_out), (MAX_FAULTS, 1000 - u32::try_from(MAX_FAULTS).unwrap()));

    // What is worse takes the place of a suspicion.
    node.kubelet_gone();
    let (_, now) = check(&mut tracker, &mut node, 1000);
    assert_eq!((now.faults[0].kind, tracker.entries.len()), (Down, MAX_TRACKED));
}

#[test]
fn nothing_is_said_of_containers_before_each_has_answered() {
    let mut watch = Watch::new(Node::healthy());
    let responsive = |watch: &mut Watch, second| {
        let (findings, seen) = check(&mut watch.tracker, &mut watch.node, second);
        let judged = of_probe(&seen, &findings, &restart_safety(&seen.faults, 0, &findings));
        judged.into_iter().find(|one| one.kind == ConditionType::ContainersResponsive).map(|one| one.status)
    };
    let asked = watch.node.tasks.clone();
    watch.node.tasks.remove("aaaa1");
    assert_eq!(responsive(&mut watch, 1000), Some(TriState::Unknown));
    watch.node.tasks = asked;
    assert_eq!(responsive(&mut watch, 1010), Some(TriState::True));
    // Nor of one that has just come.
    watch.node.tasks.remove("aaaa1");
    watch.restart(1021);
    assert_eq!(responsive(&mut watch, 1021), Some(TriState::Unknown));
}
