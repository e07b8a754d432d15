//! Golden scenarios: a readable timeline in, decisions and holds with their reasons out. `nrh simulate` runs the same files.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};

use nrh::simulate::{expect, of_files, text};

/// All timelines, in order.
fn timelines() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_timeline = |path: &PathBuf| {
        path.extension().is_some_and(|end| end == "yaml") && !path.to_string_lossy().ends_with(".policy.yaml")
    };
    let mut found: Vec<PathBuf> = files.filter(is_timeline).collect();
    found.sort();
    found
}

#[test]
fn every_scenario_is_as_expected_and_as_before() {
    let all = timelines();
    assert!(all.len() >= 15, "{}", all.len());
    for path in all {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let (timeline, account) = of_files(&path, &[], false).unwrap();
        let table = text::table(&account);
        assert!(!timeline.description.is_empty() && !timeline.expect.is_empty(), "{name} says nothing");
        let unmet = expect::unmet(&timeline.expect, &account);
        assert!(unmet.is_empty(), "{name}:\n{}\n{table}", unmet.join("\n"));
        insta::with_settings!({ snapshot_path => "scenarios/accounts", prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!(name, table);
        });
    }
}

#[test]
fn a_scenario_is_the_same_each_time() {
    for path in timelines().into_iter().take(5) {
        let play = || of_files(&path, &[], false).unwrap().1.lines;
        assert_eq!(play(), play());
    }
}
