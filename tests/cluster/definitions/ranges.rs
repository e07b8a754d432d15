//! Ranges of versions on a real API server: one in which there is a version is taken, and one that holds nothing is refused where its
//! two bounds say so. What is refused when a policy is applied must not be narrower than what the controller reads.

use kube::Client;
use nrh::core::version::Range;
use nrh_testbed::Bed;
use serde_json::json;

use super::fields::answer;
use crate::objects::ours;

/// Bounds to either side, and in between.
const LOWER: [&str; 8] = [">=1.29", ">=1", ">=v2", ">=1.7.24", ">1.29", ">1.28.999", ">1.7.24", ">=999999.1"];
const UPPER: [&str; 9] = ["<1.29", "<2", "<v1.7", "<1.7.24", "<1.30.0", "<=1.29", "<=1.7.24", "<=1", "<1.1000"];

/// What no two bounds tell, and the controller finds.
const LEFT_TO_THE_CONTROLLER: [&str; 3] = ["=1.7 >=1.8", "<2 <1 >=1.5", ">=1234 <2"];

async fn is_taken(client: &Client, range: &str, by_runtime: bool) -> Result<(), String> {
    let mut matches = json!({"faults": ["DiskFull"]});
    if by_runtime {
        matches["runtimes"] = json!([{"name": "containerd", "versions": range}]);
    } else {
        matches["kubeletVersions"] = json!([">=1", range]);
    }
    let rule = json!({"name": "r", "match": matches, "steps": [{"action": "Notify"}]});
    answer(client, &ours("RemediationPolicy", "range", json!({"rules": [rule]}))).await
}

/// Each pair of bounds, in both orders.
pub fn that_hold_nothing_are_refused(bed: &Bed) {
    let pairs = LOWER.iter().flat_map(|lower| UPPER.iter().map(move |upper| (*lower, *upper)));
    let mut ranges: Vec<String> = pairs.flat_map(|(a, b)| [format!("{a} {b}"), format!("  {b}   {a} ")]).collect();
    ranges.extend(LOWER.iter().chain(&UPPER).map(|one| (*one).to_owned()));
    let empty = ranges.iter().filter(|range| Range::parse(range).is_err()).count();
    assert!(empty > 30 && ranges.len() - empty > 30, "{empty} of {}", ranges.len());
    let wrong = bed
        .run(async |client| {
            let mut wrong = Vec::new();
            for (i, range) in ranges.iter().enumerate() {
                let answer = is_taken(&client, range, i % 2 == 0).await;
                match (Range::parse(range), answer) {
                    (Ok(_), Ok(())) => {}
                    (Err(_), Err(said)) if said.contains("expected a range with a version in it") => {}
                    // More digits than durations have room for.
                    (Err(_), Ok(())) if range.contains("999999") => {}
                    (read, answer) => wrong.push(format!("{range:?}: read as {read:?}, the API server: {answer:?}")),
                }
            }
            for range in LEFT_TO_THE_CONTROLLER {
                let answer = is_taken(&client, range, true).await;
                if Range::parse(range).is_ok() || answer.is_err() {
                    wrong.push(format!("{range:?}: {answer:?}"));
                }
            }
            Ok(wrong)
        })
        .unwrap();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), ranges.len(), wrong.join("\n"));
}
