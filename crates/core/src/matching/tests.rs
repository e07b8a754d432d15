use proptest::prelude::*;

use super::*;
use crate::examples::pod;

fn labels(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn set(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(|one| (*one).to_owned()).collect()
}

fn seen(of: &[(&str, &str)], owner: Option<&str>, keys: &[&str]) -> BTreeMap<PodRef, PodSeen> {
    BTreeMap::from([(pod("cart"), PodSeen::Read(PodTraits::of(&labels(of), owner, &set(keys))))])
}

fn selects(requirement: Requirement) -> Matching {
    Matching { pods: Some(Selector(vec![requirement])), ..Matching::default() }
}

fn all_requirements() -> [Requirement; 4] {
    let key = || "app".to_owned();
    [
        Requirement::In(key(), set(&["web"])),
        Requirement::NotIn(key(), set(&["web"])),
        Requirement::Exists(key()),
        Requirement::DoesNotExist(key()),
    ]
}

fn ask(matching: &Matching, about: Option<&PodRef>, pods: &BTreeMap<PodRef, PodSeen>) -> Match {
    matching.holds(
        about.map_or(PodOfFault::NoPod, PodOfFault::Pod),
        &MatchContext { pods: Some(pods), ..MatchContext::default() },
    )
}

#[test]
fn every_requirement_is_answered_by_the_label_that_was_read_and_by_nothing_else() {
    let cart = pod("cart");
    let read = |of: &[(&str, &str)]| seen(of, None, &["app"]);
    for (of, expected) in [
        (&[("app", "web")][..], [true, false, true, false]),
        (&[("app", "db")], [false, true, true, false]),
        (&[("other", "web")], [false, true, false, true]),
    ] {
        let pods = read(of);
        let found = all_requirements().map(|one| ask(&selects(one), Some(&cart), &pods));
        assert_eq!(found, expected.map(Match::from), "{of:?}");
    }
    let lacks = |pods: &BTreeMap<PodRef, PodSeen>| {
        all_requirements().map(|one| match ask(&selects(one), Some(&cart), pods) {
            Match::Unknown(lack) => Some(lack.passes),
            _ => None,
        })
    };
    // Not read, read before the policy asked for that label, read too long ago: it is read (again) by itself.
    assert_eq!(lacks(&BTreeMap::new()), [Some(true); 4]);
    assert_eq!(lacks(&seen(&[("app", "web")], None, &["tier"])), [Some(true); 4]);
    let mut old = read(&[("app", "web")]);
    for one in old.values_mut() {
        if let PodSeen::Read(traits) = one {
            traits.read = COUNTS_FOR + Duration::from_secs(1);
        }
    }
    assert_eq!(lacks(&old), [Some(true); 4]);
    // Another pod of that name, or none any more: that nobody will ever know.
    assert_eq!(lacks(&BTreeMap::from([(cart.clone(), PodSeen::Gone)])), [Some(false); 4]);
    let successor = PodRef { uid: "another".into(), ..cart.clone() };
    let one = read(&[("app", "web")]).into_values().next().unwrap_or(PodSeen::Gone);
    assert_eq!(lacks(&BTreeMap::from([(successor, one)])), [Some(true); 4]);
    // A value that no API server lets be is not known.
    assert_eq!(lacks(&read(&[("app", &"x".repeat(64))])), [Some(true); 4]);
}

#[test]
fn a_fault_about_no_pod_is_not_one_about_a_pod_without_such_a_label() {
    let none = BTreeMap::new();
    for one in all_requirements() {
        assert_eq!(ask(&selects(one), None, &none), Match::No);
    }
    let any = Matching { pods: Some(Selector::default()), ..Matching::default() };
    assert_eq!((ask(&any, None, &none), ask(&any, Some(&pod("cart")), &none)), (Match::No, Match::Yes));
    let bare = Matching { owner_kinds: set(&[NO_OWNER]), ..Matching::default() };
    assert_eq!(ask(&bare, None, &none), Match::No, "a pod without an owner is a pod");
    assert_eq!(ask(&Matching::default(), None, &none), Match::Yes);
    assert!(!any.asks_of_pods() && bare.asks_of_pods());
}

#[test]
fn owners_are_compared_by_their_kind() {
    let kinds = Matching { owner_kinds: set(&["DaemonSet", NO_OWNER]), ..Matching::default() };
    let cart = pod("cart");
    for (owner, expected) in
        [(Some("DaemonSet"), true), (None, true), (Some("ReplicaSet"), false), (Some("Node"), false)]
    {
        assert_eq!(ask(&kinds, Some(&cart), &seen(&[], owner, &[])), expected.into(), "{owner:?}");
    }
    assert!(matches!(ask(&kinds, Some(&cart), &BTreeMap::new()), Match::Unknown(_)));
}

#[test]
fn runtimes_and_kubelets_are_compared_by_what_the_node_tells() {
    let range = |text: &str| Range::parse(text).unwrap();
    let runtime = |name: &str, versions: Option<&str>| Runtime { name: name.into(), versions: versions.map(range) };
    let asks = |runtimes: &[Runtime]| Matching { runtimes: runtimes.to_vec(), ..Matching::default() };
    let told = |matching: &Matching, runtime: Option<&str>| {
        matching.holds(PodOfFault::NoPod, &MatchContext { runtime, ..MatchContext::default() })
    };
    let old = asks(&[runtime("containerd", Some(">=1.7.0 <1.7.24")), runtime("docker", None)]);
    for (told_as, expected) in [
        ("containerd://1.7.23", true),
        ("containerd://1.7.2-0ubuntu1~22.04.1", true),
        ("containerd://1.7.24", false),
        ("containerd://2.0.0-rc.1", false),
        ("docker://28.0.1", true),
        ("docker://Unknown", true),
        ("cri-o://1.29.1", false),
        ("cri-o://Unknown", false),
    ] {
        assert_eq!(told(&old, Some(told_as)), expected.into(), "{told_as}");
    }
    for unknown in [None, Some(""), Some("1.7.3"), Some("containerd://Unknown"), Some("containerd://")] {
        let Match::Unknown(lack) = told(&old, unknown) else { panic!("{unknown:?}") };
        assert!(!lack.passes && lack.what.contains("container runtime"), "{lack:?}");
    }
    // Either of two ranges of one runtime.
    let both = asks(&[runtime("containerd", Some("<1.7")), runtime("containerd", Some(">=2"))]);
    assert_eq!(
        ["1.6.9", "1.7.0", "2.1.0"].map(|v| told(&both, Some(&format!("containerd://{v}")))),
        [Match::Yes, Match::No, Match::Yes]
    );
    let kubelets = Matching { kubelets: vec![range("=1.29"), range(">=1.31.2")], ..Matching::default() };
    let of =
        |kubelet: Option<&str>| kubelets.holds(PodOfFault::NoPod, &MatchContext { kubelet, ..MatchContext::default() });
    assert_eq!(
        ["v1.29.3-eks-ae9a62a", "v1.30.0", "v1.31.2+k3s1"].map(|v| of(Some(v))),
        [Match::Yes, Match::No, Match::Yes]
    );
    assert!(
        matches!(of(None), Match::Unknown(_)) && matches!(of(Some("v0.0.0-master+$Format:%H$")), Match::Unknown(_))
    );
}

#[test]
fn a_no_is_a_no_whatever_is_not_known() {
    let matching =
        Matching { kubelets: vec![Range::parse(">=1.31").unwrap()], ..selects(Requirement::Exists("app".into())) };
    let answer =
        |kubelet| matching.holds(PodOfFault::Pod(&pod("cart")), &MatchContext { kubelet, ..MatchContext::default() });
    assert_eq!(answer(Some("v1.30.0")), Match::No);
    let passes = |answer| match answer {
        Match::Unknown(MissingFact { passes, .. }) => Some(passes),
        _ => None,
    };
    assert_eq!(passes(answer(Some("v1.31.0"))), Some(true));
    assert_eq!(passes(answer(None)), Some(false), "what a person has to see is told first");
}

#[test]
fn a_pod_that_is_gone_stays_as_it_was_and_what_was_not_read_of_it_is_never_known() {
    let cart = pod("cart");
    let mut pods = seen(&[("app", "web")], Some("Job"), &["app"]);
    for one in pods.values_mut() {
        if let PodSeen::Read(traits) = one {
            (traits.gone, traits.read) = (true, Duration::from_hours(1));
        }
    }
    let found = all_requirements().map(|one| ask(&selects(one), Some(&cart), &pods));
    assert_eq!(found, [true, false, true, false].map(Match::from));
    let other = ask(&selects(Requirement::DoesNotExist("tier".into())), Some(&cart), &pods);
    let Match::Unknown(lack) = other else { panic!("{other:?}") };
    assert!(!lack.passes && lack.what.contains("label tier was not read while"), "{lack:?}");
}

proptest! {
    /// What is read later only turns uncertainty into an answer: no answer that was given is taken back.
    #[test]
    fn more_knowledge_never_turns_a_yes_into_a_no(
        of in prop::collection::btree_map("[ab]", "[xy]", 0..3),
        asked in prop::collection::vec(("[abc]", 0_usize..4, "[xy]"), 0..4),
        owner in prop::option::of(prop::sample::select(vec!["DaemonSet", "Job"])),
        kinds in prop::collection::btree_set(prop::sample::select(vec!["DaemonSet", "Job", NO_OWNER]), 0..3),
        read in prop::collection::btree_set("[abc]", 0..3),
        is_read in any::<bool>(),
    ) {
        let requirement = |(key, how, value): &(String, usize, String)| {
            let (key, values) = (key.clone(), BTreeSet::from([value.clone()]));
            match how {
                0 => Requirement::In(key, values),
                1 => Requirement::NotIn(key, values),
                2 => Requirement::Exists(key),
                _ => Requirement::DoesNotExist(key),
            }
        };
        let owner_kinds = kinds.iter().map(|kind| (*kind).to_owned()).collect();
        let selector = Selector(asked.iter().map(requirement).collect());
        let matching = Matching { pods: Some(selector.clone()), owner_kinds, ..Matching::default() };
        let cart = pod("cart");
        let with = |keys: &BTreeSet<String>| {
            BTreeMap::from([(cart.clone(), PodSeen::Read(PodTraits::of(&of, owner, keys)))])
        };
        let all: BTreeSet<String> = ["a", "b", "c"].map(str::to_owned).into();
        let truth = ask(&matching, Some(&cart), &with(&all));
        let is_owner = matching.owner_kinds.is_empty() || matching.owner_kinds.contains(owner.unwrap_or(NO_OWNER));
        prop_assert_eq!(&truth, &Match::from(is_owner && selector.matches(&of)));
        let partly = ask(&matching, Some(&cart), &if is_read { with(&read) } else { BTreeMap::new() });
        prop_assert!(partly == truth || matches!(partly, Match::Unknown(_)), "{:?} {:?}", partly, truth);
    }
}
