//! Rules that ask for pods and nodes of some kind: what is not known is held, whatever the order of rules and policies.

use std::collections::{BTreeMap, BTreeSet};

use nrh_core::fault::FaultType;
use nrh_core::matching::{Matching, Runtime};
use nrh_core::plan::{BlockReason, SelfHealing};
use nrh_core::policy::{Amount, Mode, Namespaces, Policy, Requirement, Rule, Selector, Step};
use nrh_core::remediation::{Phase, StepState};
use nrh_core::version::Range;
use nrh_simulate::world::PodLike;

use crate::samples::{asked, clean_up, cont, fault, hung, kill, notify, plugin, pod, policy, rule};
use crate::world::{ClearedBy, JOB_CONT, JOB_KILL, World, acts, reasons, says, secs};

fn narrowed(name: &str, requirement: Requirement, steps: &[Step]) -> Rule {
    let matching = Matching { pods: Some(Selector(vec![requirement])), ..Matching::default() };
    Rule { matching, ..rule(name, &FaultType::ALL, steps) }
}

fn is(value: &str) -> Requirement {
    Requirement::In("app".into(), BTreeSet::from([value.to_owned()]))
}

fn is_not(value: &str) -> Requirement {
    Requirement::NotIn("app".into(), BTreeSet::from([value.to_owned()]))
}

fn all_rules(name: &str, steps: &[Step]) -> Rule {
    rule(name, &FaultType::ALL, steps)
}

/// The pod has this label, and a `ReplicaSet` owns it.
fn label(world: &mut World, value: &str) {
    let labels = BTreeMap::from([("app".to_owned(), value.to_owned())]);
    world.pods.insert(pod("log"), PodLike::There { labels, owner: Some("ReplicaSet".into()) });
}

/// A hung container of pod `log` on one node.
fn ill(policies: &[Policy]) -> World {
    World::new(policies, &["n1"]).ill(hung("log"), ClearedBy::Kill)
}

fn labelled(policies: &[Policy], value: &str) -> World {
    let mut world = ill(policies);
    label(&mut world, value);
    world
}

#[test]
fn the_rule_that_is_for_the_pod_is_taken_and_no_other() {
    let rules = [narrowed("databases", is("db"), &[notify()]), all_rules("others", &[cont()])];
    for (value, expected, name) in [("db", "notify", "databases"), ("web", JOB_CONT, "others")] {
        let world = labelled(&[policy("p", &rules)], value);
        let plan = world.plan();
        assert_eq!(acts(&plan), [("n1".to_owned(), expected.to_owned())], "{value}");
        let remedy = plan.nodes["n1"].assigned_rules.values().next().unwrap();
        assert_eq!(remedy.rule.as_deref(), Some(name));
    }
}

#[test]
fn what_nobody_has_read_is_held_and_goes_to_no_later_rule_and_no_other_policy() {
    for requirement in
        [is("db"), is_not("db"), Requirement::Exists("app".into()), Requirement::DoesNotExist("x".into())]
    {
        let first = narrowed("first", requirement, &[kill(true)]);
        let together = [policy("p", &[first.clone(), all_rules("later", &[cont()])])];
        let apart = [policy("a", &[first]), policy("b", &[all_rules("later", &[cont()])])];
        for policies in [&together[..], &apart[..]] {
            let world = ill(policies);
            let plan = world.plan();
            assert_eq!((acts(&plan).len(), reasons(&plan)), (0, vec![BlockReason::PodUnknown]));
            let said = &plan.blocked[0].message;
            assert!(said.contains("rule first") && said.contains("kube-system/log are not known yet"), "{said}");
            assert_eq!(plan.nodes["n1"].self_healing, SelfHealing::Unknown, "nothing heals it now");
            assert_eq!(plan.nodes["n1"].assigned_rules.values().next().unwrap().rule, None);
        }
    }
}

#[test]
fn a_pod_that_is_gone_unseen_is_held_for_a_person() {
    let mut world = ill(&[policy("p", &[narrowed("r", is_not("db"), &[cont()])])]);
    world.pods.insert(pod("log"), PodLike::Gone);
    let plan = world.plan();
    assert_eq!((acts(&plan).len(), reasons(&plan)), (0, vec![BlockReason::RuleAmbiguous]));
    let said = &plan.blocked[0].message;
    for part in ["rule r of policy p", "match.podSelector", "has no pod kube-system/log", "resolve it manually"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(plan.nodes["n1"].self_healing, SelfHealing::ManualActionRequired);
}

#[test]
fn a_fault_about_no_pod_is_for_the_rule_that_asks_for_none() {
    let rules = [narrowed("pods", is_not("db"), &[notify()]), all_rules("others", &[clean_up()])];
    let world = World::with_rules(&rules).ill(fault(FaultType::LeakedShim, "s"), ClearedBy::CleanupOrphans);
    assert_eq!(acts(&world.plan()), [("n1".to_owned(), "job CleanupOrphans".to_owned())]);
}

#[test]
fn a_dry_run_that_cannot_tell_keeps_no_fault_from_a_policy_that_acts() {
    let mut trial = policy("a", &[narrowed("r", is("db"), &[kill(true)])]);
    (trial.mode, trial.priority) = (Mode::DryRun, 10);
    let mut world = ill(&[trial, policy("b", &[all_rules("r", &[cont()])])]);
    world.node("n1").sick[0].cleared_by = [ClearedBy::Cont].into();
    world.run(secs(60));
    assert_eq!(world.did(), [JOB_CONT]);
    assert_eq!(world.remediations.len(), 1, "nothing is recorded that would perhaps be done");
}

#[test]
fn only_nodes_with_such_a_runtime_and_kubelet_are_acted_on() {
    let matching = Matching {
        runtimes: vec![Runtime { name: "containerd".into(), versions: Range::parse(">=1.7.0 <1.7.24").ok() }],
        kubelets: vec![Range::parse(">=1.29 <1.31").unwrap()],
        ..Matching::default()
    };
    let policy = policy("p", &[Rule { matching, ..all_rules("r", &[cont()]) }]);
    for (runtime, kubelet, blocked) in [
        (Some("containerd://1.7.23"), Some("v1.30.2-eks-1"), None),
        (Some("containerd://1.7.24"), Some("v1.30.2"), Some("has no rule")),
        (Some("containerd://1.7.23"), Some("v1.31.0"), Some("has no rule")),
        (Some("containerd://Unknown"), Some("v1.30.2"), Some("the node's container runtime cannot be read")),
        (Some("containerd://1.7.23"), None, Some("the node's kubelet cannot be read")),
        // What is surely another kubelet is no matter of the runtime.
        (None, Some("v1.31.0"), Some("has no rule")),
    ] {
        let mut world = ill(std::slice::from_ref(&policy));
        let view = &mut world.node("n1").view;
        view.runtime_version = runtime.map(str::to_owned);
        view.kubelet_version = kubelet.map(str::to_owned);
        let plan = world.plan();
        match blocked {
            None => assert_eq!(acts(&plan).len(), 1, "{runtime:?} {kubelet:?} {:?}", plan.blocked),
            Some(words) => {
                let is_ambiguous = words.contains("cannot be read");
                let reason = if is_ambiguous { BlockReason::RuleAmbiguous } else { BlockReason::NoRule };
                assert_eq!((acts(&plan).len(), reasons(&plan)), (0, vec![reason]));
                assert!(plan.blocked[0].message.contains(words), "{}", plan.blocked[0].message);
            }
        }
    }
}

#[test]
fn labels_that_change_stop_the_next_step_and_uncertainty_does_not_end_a_remediation() {
    let steps = [cont(), kill(true), notify()];
    let low = policy("low", &[narrowed("r", is("web"), &steps)]);
    let mut high = policy("high", &[narrowed("r", is("db"), &[notify()])]);
    high.priority = 10;
    let begun = || {
        let world = labelled(&[low.clone(), high.clone()], "web").passed(1);
        assert_eq!(world.did(), [JOB_CONT]);
        world
    };
    // The pod's labels are not known for a while, as after a start of the controller: nothing is done, nothing is lost.
    let mut world = begun();
    let known = std::mem::take(&mut world.pods);
    let mut plans = world.run(secs(170));
    plans.extend(world.run(secs(60)));
    assert_eq!(world.did(), [JOB_CONT]);
    assert!(plans.iter().any(|plan| reasons(plan) == [BlockReason::PodUnknown]));
    assert_eq!(world.phase(), Phase::Running, "{}", world.only_remediation().message);
    world.pods = known;
    world.run(secs(60));
    assert_eq!((world.did(), world.phase()), (vec![JOB_CONT, JOB_KILL], Phase::Succeeded));

    // With other labels it is for the other policy.
    let mut world = begun();
    label(&mut world, "db");
    world.run(secs(400));
    let did = world.did();
    assert!(!did.contains(&JOB_KILL) && did.contains(&"notify"), "{did:?}");
    assert!(world.remediations.values().any(|remediation| remediation.message.contains("policy high has taken over")));

    // Labels that no rule asks for: the step is held, and no harsher one is taken in the end.
    let mut world = begun();
    label(&mut world, "cache");
    world.run(secs(1_200));
    assert!(!world.did().contains(&JOB_KILL), "{:?}", world.did());

    // Never known again: people are told all the same.
    let mut world = begun();
    world.pods.insert(pod("log"), PodLike::Gone);
    world.run(secs(1_200));
    assert_eq!(world.did(), [JOB_CONT, "notify"]);
    let refused = |step: &nrh_core::remediation::StepRecord| step.state == StepState::Refused;
    let steps = world.remediations.values().flat_map(|remediation| &remediation.steps);
    assert!(steps.filter(|step| refused(step)).any(|step| step.message.contains("it is not known whether")));
}

#[test]
fn a_dry_run_takes_nothing_over_that_has_begun() {
    let acts = policy("p", &[narrowed("r", is("web"), &[cont(), kill(true), notify()])]);
    let mut trial = policy("a-trial", &[all_rules("r", &[kill(true)])]);
    trial.mode = Mode::DryRun;
    let did = |policies: &[Policy]| {
        let mut world = labelled(policies, "web").passed(1);
        label(&mut world, "db");
        world.run(secs(60));
        assert!(world.remediations.values().any(|remediation| remediation.is_open() && remediation.policy == "p"));
        world.run(secs(1_200));
        world.did().iter().map(|one| (*one).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(did(std::slice::from_ref(&acts)), did(&[acts.clone(), trial]));
}

#[test]
fn a_node_with_a_fault_that_may_be_for_a_rule_counts_as_unhealthy() {
    let mut p = policy("p", &[narrowed("r", is("db"), &[cont()])]);
    p.limits.max_unhealthy = Amount::Count(0);
    let mut world = ill(std::slice::from_ref(&p));
    assert_eq!(world.plan().policies["p"].unhealthy, 1);
    label(&mut world, "web");
    assert_eq!(world.plan().policies["p"].unhealthy, 0);
}

/// The states of the steps of all remediations, and what each was.
fn steps(world: &World) -> Vec<(String, StepState)> {
    let steps = world.remediations.values().flat_map(|remediation| &remediation.steps);
    steps.map(|step| (step.phrase(), step.state)).collect()
}

#[test]
fn a_pod_that_is_known_by_now_to_be_for_an_earlier_rule_is_resolved_by_no_later_one() {
    // Databases are for people: neither a label that was put on meanwhile, nor a rule that was, may be passed by.
    let others = all_rules("others", &[cont(), kill(true)]);
    let rules = [narrowed("databases", is("db"), &[notify()]), others.clone()];
    let by_label = {
        let mut world = labelled(&[policy("p", &rules)], "web").passed(1);
        label(&mut world, "db");
        world
    };
    let by_policy = {
        let mut world = labelled(&[policy("p", std::slice::from_ref(&others))], "db").passed(1);
        world.policies[0].rules = rules.to_vec();
        world
    };
    for mut world in [by_label, by_policy] {
        assert_eq!(world.did(), [JOB_CONT]);
        world.run(secs(900));
        assert_eq!(world.did(), [JOB_CONT, "notify"], "{:?}", steps(&world));
        let ended = world.remediations.values().find(|remediation| remediation.phase == Phase::Cancelled).unwrap();
        assert!(ended.message.contains("is for rule databases of policy p by now"), "{}", ended.message);
    }
}

#[test]
fn a_rule_that_asks_for_nothing_and_is_put_before_another_leaves_what_has_begun() {
    let low = all_rules("old", &[cont(), kill(true)]);
    let mut world = ill(&[policy("p", std::slice::from_ref(&low))]).passed(1);
    world.policies[0].rules = vec![all_rules("new", &[notify()]), low];
    world.run(secs(900));
    assert_eq!(world.did(), [JOB_CONT, JOB_KILL]);
}

#[test]
fn uncertainty_never_passes_over_gentle_steps() {
    let rule = narrowed("r", is("web"), &[cont(), cont(), kill(true), notify()]);
    let mut world = labelled(&[policy("p", &[rule])], "web").passed(1);
    let known = std::mem::take(&mut world.pods);
    let is_refused = |world: &World| steps(world).iter().any(|(_, state)| *state == StepState::Refused);
    world.until(secs(5_000), "refused", is_refused);
    world.pods = known;
    world.run(secs(900));
    assert_eq!(world.did(), [JOB_CONT, "notify"], "people are told instead: {:?}", steps(&world));
}

#[test]
fn an_approved_step_that_waits_for_knowledge_has_not_timed_out() {
    let asked = asked(cont());
    let rule = narrowed("r", is("web"), &[asked.clone(), kill(true), notify()]);
    let mut world = labelled(&[policy("p", std::slice::from_ref(&rule))], "web").passed(1);
    let known = std::mem::take(&mut world.pods);
    world.approve("n1", "ann").unwrap();
    let is_over = |world: &World| steps(world).iter().any(|(_, state)| *state != StepState::AwaitingApproval);
    world.until(asked.approval_timeout + secs(70), "over", is_over);
    assert_eq!(steps(&world)[0].1, StepState::Cancelled);
    assert!(world.did().is_empty());
    // It is known again: a person is asked again, and nothing harsher is done.
    world.pods = known;
    world.until(secs(500), "asked for again", |world| world.phase() == Phase::AwaitingApproval);
    world.approve("n1", "ann").unwrap();
    world.node("n1").sick[0].cleared_by = [ClearedBy::Cont].into();
    world.run(secs(120));
    assert_eq!(world.did(), [JOB_CONT]);
}

#[test]
fn a_fault_whose_pod_nobody_could_tell_goes_to_no_later_rule() {
    // A plugin that hangs works for some pod, and its environment could not be read.
    let unnamed = || {
        let fault = plugin();
        assert_eq!((&fault.subject.pod, &fault.target.pod), (&None, &None));
        fault
    };
    let only = Namespaces { only: vec!["shop".into()], except: Vec::new() };
    let except = Namespaces { only: Vec::new(), except: vec!["shop".into()] };
    let owners = Matching { owner_kinds: ["Job".to_owned()].into(), ..Matching::default() };
    let all = || all_rules("first", &[notify()]);
    for (first, field) in [
        (Rule { namespaces: only, ..all() }, "match.namespaces"),
        (Rule { namespaces: except, ..all() }, "match.excludedNamespaces"),
        (Rule { matching: owners, ..all() }, "match.ownerKinds"),
        (narrowed("first", is_not("db"), &[notify()]), "match.podSelector"),
    ] {
        let rules = [first, all_rules("later", &[kill(true)])];
        let plan = World::with_rules(&rules).ill(unnamed(), ClearedBy::Kill).plan();
        assert_eq!((acts(&plan).len(), reasons(&plan)), (0, vec![BlockReason::RuleAmbiguous]), "{field}");
        let said = &plan.blocked[0].message;
        assert!(said.contains(field) && said.contains("the probe does not know which"), "{said}");
    }
    // That it is about some pod is known.
    let any = Matching { pods: Some(Selector::default()), ..Matching::default() };
    let rules = [Rule { matching: any, ..all() }, all_rules("later", &[kill(true)])];
    let world = World::with_rules(&rules).ill(unnamed(), ClearedBy::Kill);
    assert_eq!(acts(&world.plan()), [("n1".to_owned(), "notify".to_owned())]);
}

#[test]
fn what_no_rule_is_for_is_told_with_the_rule_that_comes_nearest_and_why_it_is_not() {
    let matching = Matching {
        owner_kinds: ["DaemonSet".to_owned()].into(),
        runtimes: vec![Runtime { name: "containerd".into(), versions: Range::parse(">=1.7.0 <1.7.24").ok() }],
        kubelets: vec![Range::parse(">=1.29").unwrap()],
        ..Matching::default()
    };
    let rules = [
        Rule { faults: [FaultType::DiskFull].into(), ..all_rules("disks", &[notify()]) },
        Rule {
            namespaces: Namespaces { only: vec!["shop".into()], except: Vec::new() },
            ..all_rules("shops", &[cont()])
        },
        Rule { matching, ..all_rules("near", &[cont()]) },
    ];
    for (runtime, kubelet, expected) in [
        (
            "containerd://1.7.23",
            "v1.30.2",
            "rule near is not for it: match.ownerKinds asks for DaemonSet, and the owner of pod kube-system/log is ReplicaSet, \
             as it was read",
        ),
        (
            "containerd://1.7.23",
            "v1.28.1",
            "rule near is not for it: match.kubeletVersions asks for >=1.29, and the node's is v1.28.1",
        ),
        (
            "cri-o://1.30.0",
            "v1.30.2",
            "rule near is not for it: match.runtimes asks for containerd >=1.7.0 <1.7.24, and the node's is cri-o://1.30.0",
        ),
    ] {
        let mut world = labelled(&[policy("p", &rules)], "web");
        let view = &mut world.node("n1").view;
        (view.runtime_version, view.kubelet_version) = (Some(runtime.to_owned()), Some(kubelet.to_owned()));
        let plan = world.plan();
        assert_eq!(reasons(&plan), [BlockReason::NoRule]);
        assert!(plan.blocked[0].message.ends_with(expected), "{}", plan.blocked[0].message);
    }
    let dbs = narrowed("dbs", is("db"), &[cont()]);
    for (rules, expected) in [
        (
            [rules[1].clone(), dbs],
            "rule dbs is not for it: match.podSelector asks for app=db, and pod kube-system/log has app=web",
        ),
        (
            [rules[0].clone(), rules[1].clone()],
            "rule shops is not for it: match.namespaces is shop, and its pod is kube-system/log",
        ),
    ] {
        let world = labelled(&[policy("p", &rules)], "web");
        says(&world.plan().blocked[0].message, expected);
    }
}
