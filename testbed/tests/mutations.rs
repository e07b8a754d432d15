//! Mutation checks on the demo's own judge: with the probe blinded, the executor idle or a wrong id in its hand it says
//! not ok, each time for the right reason; with the operator unchanged it says ok.

use std::time::Duration;

use nrh_testbed::demo::mutations::{Incident, Variant, play};
use nrh_testbed::demo::report::Report;
use nrh_testbed::stand_in::mutant::Mutation;
use nrh_testbed::unprivileged;

/// For a mutant: as shipped it takes a little over a minute. What a mutant does see and do has to have happened by then, and what it
/// does not, it would not do later either.
const LIMIT: Duration = Duration::from_mins(6);
/// As shipped, on a machine so busy that hangs need minutes until they are confirmed.
const SHIPPED_LIMIT: Duration = Duration::from_mins(20);

fn says(report: &Report, what: &str) -> bool {
    report.objections.iter().any(|objection| objection.contains(what))
}

/// Alone in its file: without root the whole program starts again, as root of a user namespace.
#[test]
fn the_judge_finds_fault_with_every_mutant_and_none_with_the_operator_unchanged() {
    if let Err(why) = unprivileged::become_root() {
        eprintln!("SKIP: {why:#}");
        return;
    }
    let incidents = [Incident::Orphan, Incident::HungContainer];
    let mutations = [None, Some(Mutation::Blinded), Some(Mutation::NoOp), Some(Mutation::WrongId)];
    let variants: Vec<Variant> = incidents
        .iter()
        .flat_map(|&incident| mutations.map(|mutation| (incident, mutation)))
        .map(|(incident, mutation)| {
            let limit = if mutation.is_some() { LIMIT } else { SHIPPED_LIMIT };
            Variant { incident, mutation, limit }
        })
        .collect();
    let reports = play(&variants).unwrap();
    for (variant, report) in variants.iter().zip(&reports) {
        eprintln!("{:?} {:?}: ok {}, {:?}", variant.incident, variant.mutation, report.ok, report.acts[0].seconds);
        report.objections.iter().for_each(|objection| eprintln!("    {objection}"));
    }
    for (variant, report) in variants.iter().zip(&reports) {
        check(variant, report);
    }
}

fn check(variant: &Variant, report: &Report) {
    let told = format!("{variant:?}: {report:#?}");
    let compared = &report.untouched;
    assert!(compared.pods > 0 && compared.containers > 0 && compared.processes > 0, "{told}");
    let Some(mutation) = variant.mutation else {
        assert!(report.ok && report.objections.is_empty(), "{told}");
        return;
    };
    assert!(!report.ok && says(report, "was never resolved"), "{told}");
    assert_eq!(report.acts[0].seconds.detected.is_none(), mutation == Mutation::Blinded, "{told}");
    assert_eq!(says(report, "was never detected"), mutation == Mutation::Blinded, "{told}");
    assert!(says(report, "was never executed"), "{told}");
    // Given below the executor's own checks, the wrong id costs a neighbour its container. Given to the executor itself, it
    // is refused: nothing is touched, and nothing resolved.
    let hits = mutation == Mutation::WrongId && variant.incident == Incident::Orphan;
    assert_eq!(says(report, "what: Container") && says(report, "what: Process"), hits, "{told}");
}
