use super::*;
use crate::examples;
use crate::fault::FaultType as F;

fn pod(name: &str) -> NodePod {
    NodePod::plain(PodRef { namespace: "shop".into(), name: name.into(), uid: format!("uid-{name}") })
}

fn blocked(why: &str) -> EvictionDecision {
    EvictionDecision::Blocked(why.to_owned())
}

type Case = (fn(&mut NodePod), EvictionDecision, EvictionDecision);

#[test]
fn each_pod_has_its_fate() {
    let (plain, none) = (Drain::default(), BTreeMap::new());
    let all = Drain { force: true, delete_empty_dir_data: true, ..Drain::default() };
    let hung = BTreeMap::from([("uid-h".to_owned(), "X".to_owned())]);
    let with = |change: fn(&mut NodePod)| {
        let mut pod = pod("h");
        change(&mut pod);
        pod
    };
    let back = blocked("made after the cordon, which it tolerates: it would come back (excludedNamespaces)");
    let cases: [Case; 9] = [
        (|_| {}, EvictionDecision::Evict, EvictionDecision::Evict),
        (|p| p.recreated_by = RecreatedBy::DaemonSet, EvictionDecision::Stays, EvictionDecision::Stays),
        (|p| p.recreated_by = RecreatedBy::Kubelet, EvictionDecision::Stays, EvictionDecision::Stays),
        (|p| p.state = PodState::Finished, EvictionDecision::Stays, EvictionDecision::Stays),
        (|p| p.is_ours = true, EvictionDecision::Stays, EvictionDecision::Stays),
        (|p| p.state = PodState::Terminating, EvictionDecision::Going, EvictionDecision::Going),
        (|p| p.recreated_after_cordon = true, back.clone(), back),
        (
            |p| p.recreated_by = RecreatedBy::Nobody,
            blocked("no controller recreates it; set drain.force to evict it"),
            EvictionDecision::Evict,
        ),
        (
            |p| p.has_empty_dir = true,
            blocked("it has data in an emptyDir (drain.deleteEmptyDirData)"),
            EvictionDecision::Evict,
        ),
    ];
    for (change, bare, forced) in cases {
        let pod = with(change);
        assert_eq!(plain.eviction_decision(&pod, &none), bare, "{pod:?}");
        assert_eq!(all.eviction_decision(&pod, &none), forced, "{pod:?}");
        // A hung process blocks its pod, whatever the policy allows. It does not block a pod that stays or terminates anyway.
        let expected =
            if matches!(bare, EvictionDecision::Stays | EvictionDecision::Going) { bare } else { blocked("X") };
        assert_eq!(all.eviction_decision(&pod, &hung), expected, "{pod:?}");
    }
    let except = Drain { excluded_namespaces: vec!["sho*".into()], ..Drain::default() };
    assert_eq!(except.eviction_decision(&pod("a"), &none), EvictionDecision::Stays);
}

fn taken(pods: &[NodePod], name: &str, answer: &Answer) -> (Vec<String>, Round) {
    let mut round = Round::begin(&Drain::default(), pods, &BTreeMap::new(), name);
    let mut names = Vec::new();
    while let Some(pod) = round.take() {
        names.push(pod.pod.name.clone());
        round.answered(pod, answer.clone());
    }
    (names, round)
}

#[test]
fn a_round_has_a_bound_and_each_has_its_turn() {
    let pods: Vec<NodePod> = (0..100).map(|i| pod(&format!("web-{i:03}"))).collect();
    let (names, round) = taken(&pods, "op/0", &Answer::Accepted);
    assert_eq!((names.len(), round.left()), (MAX_EVICTIONS, 100));
    let no = Answer::Refused("PodDisruptionBudget web: none may go".into());
    let (names, refused) = taken(&pods, "op/0", &no);
    assert_eq!(names.len(), MAX_TRIES);
    let said = refused.sentence();
    assert!(said.starts_with("100 pod(s) left; not evicted: shop/web-0"), "{said}");
    assert!(said.contains("and 56 more; 40 to be evicted next"), "{said}");
    assert!(said.len() <= crate::fault::MAX_LINE);
    // Also where a slow server lets only one be asked for in each round, and whatever time is between them.
    for every in [10_u64, 20, 40] {
        let firsts: std::collections::BTreeSet<String> =
            (0..1_000).map(|round| taken(&pods, &format!("op/{}", round * every), &no).0[0].clone()).collect();
        assert_eq!(firsts.len(), 100, "every {every}s");
    }
    // Nor do all nodes begin with the same pod.
    let firsts: std::collections::BTreeSet<String> =
        (0..100).map(|node| taken(&pods, &format!("node-{node}/0"), &no).0[0].clone()).collect();
    assert!(firsts.len() > 30, "{firsts:?}");
}

#[test]
fn what_puts_off_one_pod_is_no_server_that_is_busy_until_it_is_several() {
    let pods: Vec<NodePod> = (0..9).map(|i| pod(&format!("vm-{i}"))).collect();
    let (names, round) = taken(&pods, "op/0", &Answer::Busy("wait".into()));
    assert_eq!(names.len(), MAX_BUSY);
    assert!(round.sentence().ends_with("6 to be evicted next (wait)"), "{}", round.sentence());
    let mut mixed = Round::begin(&Drain::default(), &pods, &BTreeMap::new(), "op/0");
    let mut count = 0;
    while let Some(pod) = mixed.take() {
        count += 1;
        mixed.answered(pod, if count < MAX_BUSY { Answer::Busy("wait".into()) } else { Answer::Accepted });
    }
    assert_eq!((count, mixed.left()), (9, 9), "the others go all the same");
}

#[test]
fn the_time_that_a_person_asks_for_is_sent_and_no_pod_goes_without_any() {
    let asked = Drain { grace_period_seconds: Some(45), ..Drain::default() };
    let (own, mut none) = (pod("a"), pod("b"));
    none.has_no_grace = true;
    assert_eq!((asked.grace_for(&own), asked.grace_for(&none)), (Some(45), Some(45)));
    assert_eq!(Drain::default().grace_for(&own), None, "what it has of its own is not made shorter");
    assert_eq!(Drain::default().grace_for(&none), Some(1));
}

#[test]
fn a_node_of_which_something_says_that_it_cannot_end_pods_is_known_as_one() {
    let subject = crate::fault::Subject::of(crate::fault::SubjectKind::Runtime);
    let fault = |kind, state| Fault { state, subject: subject.clone(), ..examples::fault(kind) };
    let by = |faults: &[Fault]| cannot_end(TriState::True, TriState::True, faults);
    assert_eq!(by(&[]), None);
    assert_eq!(by(&[fault(F::DiskFull, FaultState::Confirmed), fault(F::HungContainer, FaultState::Confirmed)]), None);
    let kinds = [
        F::RuntimeUnreachable,
        F::RuntimeListHung,
        F::RuntimeUpdateBlocked,
        F::KubeletDown,
        F::KubeletStartBlocked,
        F::KubeletCrashLoop,
        F::PlegStalled,
        F::SyncLoopStalled,
    ];
    for kind in kinds {
        let known = by(&[fault(F::DiskFull, FaultState::Confirmed), fault(kind, FaultState::Confirmed)]);
        assert_eq!(known, Some(CannotEnd::Known(format!("{kind} (runtime) is confirmed"))));
        for state in [FaultState::Suspected, FaultState::Clearing] {
            assert!(matches!(by(&[fault(kind, state)]), Some(CannotEnd::Uncertain(_))), "{kind} {state:?}");
        }
    }
    let judged = |ready, works| cannot_end(ready, works, &[]);
    assert!(matches!(judged(TriState::Unknown, TriState::True), Some(CannotEnd::Uncertain(_))));
    assert!(matches!(judged(TriState::True, TriState::False), Some(CannotEnd::Uncertain(_))));
    assert!(matches!(judged(TriState::True, TriState::Unknown), Some(CannotEnd::Uncertain(_))));
    assert_eq!(judged(TriState::False, TriState::True), None, "a kubelet that works and complains ends pods");
}

#[test]
fn what_a_node_cannot_end_is_not_waited_for_and_what_was_not_evicted_is() {
    let mut going = pod("b");
    going.state = PodState::Terminating;
    let begin =
        |pods: &[NodePod], is_endless| Round::begin(&Drain::default(), pods, &BTreeMap::new(), "x").endless(is_endless);
    let only_going = begin(std::slice::from_ref(&going), true);
    assert!(only_going.is_quiet() && !begin(std::slice::from_ref(&going), false).is_quiet());
    assert_eq!(
        only_going.sentence(),
        "1 pod(s) left; on their way out, not waited for since the node cannot end them: shop/b"
    );
    let mut blocked = begin(&[pod("a"), going], true);
    assert!(!blocked.is_quiet(), "one is to be evicted");
    let first = blocked.take().unwrap();
    blocked.answered(first, Answer::Refused("PodDisruptionBudget db".into()));
    assert!(!blocked.is_quiet(), "a budget says no");
}

#[test]
fn it_is_done_when_nothing_is_left_and_says_what_is() {
    let mut going = pod("b");
    going.state = PodState::Terminating;
    let pods = [pod("a"), going];
    let (_, round) = taken(&pods, "op/0", &Answer::Gone);
    assert_eq!(round.sentence(), "1 pod(s) left; on their way out: shop/b");
    let (_, stopped) = taken(&pods, "op/0", &Answer::Stop("no answer".into()));
    assert_eq!(stopped.left(), 2);
    assert!(stopped.sentence().ends_with("1 to be evicted next (no answer)"), "{}", stopped.sentence());
    let (_, empty) = taken(&[], "op/0", &Answer::Accepted);
    assert_eq!((empty.left(), empty.sentence().as_str()), (0, QUIET));
}
