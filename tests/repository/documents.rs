//! What the documents list is what the code has.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use nrh::api::{RemediationPolicy, convert};
use nrh::core::action::Notify;
use nrh::core::blocked::BlockReason;
use nrh::core::fault::{FaultGroup, FaultType};
use nrh::core::policy::{Action, Mode, Policy, Step};
use nrh_testbed::matrix::access::{Access, with_tables};

use crate::crds::yaml_files;
use crate::page::{page, root};

fn document(path: &str) -> String {
    page(path).text
}

/// First cells of all tables that are names in backticks.
fn rows(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once("` |")?.0)).collect()
}

#[test]
fn each_fault_has_a_row_in_the_table_of_faults_and_one_in_the_matrix() {
    let text = document("docs/reference/faults.md");
    let (before, matrix) = text.split_once("<!-- made by `make matrix`: begin -->").unwrap();
    let (matrix, _) = matrix.split_once("<!-- made by `make matrix`: end -->").unwrap();
    let first_table = before.split("\n\n").find(|part| part.starts_with("| fault |")).unwrap();
    let known: BTreeSet<&str> = FaultType::ALL.into_iter().map(FaultType::as_str).collect();
    for table in [first_table, matrix] {
        let rows = rows(table);
        assert_eq!(rows.iter().copied().collect::<BTreeSet<_>>(), known);
        assert_eq!(rows.len(), known.len(), "a fault twice: {rows:?}");
    }
}

#[test]
fn each_group_of_faults_has_its_kinds() {
    let text = document("docs/reference/faults.md");
    for kind in FaultType::ALL {
        let named = text.lines().filter(|line| {
            let cells: Vec<&str> = line.split(" | ").collect();
            cells.len() == 2 && cells[1].contains(&format!("`{kind}`"))
        });
        let groups: Vec<&str> = named.filter_map(|line| line.split('`').nth(1)).collect();
        let group: Vec<&str> = kind.spec().group.into_iter().map(FaultGroup::as_str).collect();
        assert_eq!(groups, group, "{kind}");
    }
}

#[test]
fn the_runbook_has_a_page_for_each_fault() {
    let overview = document("docs/runbook/README.md");
    for kind in FaultType::ALL {
        let page = document(&format!("docs/runbook/{kind}.md"));
        for part in [&format!("# {kind}\n"), "**Symptom**", "**Meaning**", "**The operator**", "**You**"] {
            assert!(page.contains(part), "{kind} lacks {part}");
        }
        assert_eq!(overview.matches(&format!("[{kind}]({kind}.md)")).count(), 1, "{kind}");
    }
}

#[test]
fn each_block_reason_has_a_row() {
    let text = document("docs/reference/block-reasons.md");
    let cells = text.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.split('|').nth(1));
    let named: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let schema = serde_json::to_value(schemars::schema_for!(BlockReason)).unwrap();
    let known: BTreeSet<&str> =
        schema["oneOf"].as_array().unwrap().iter().filter_map(|one| one["const"].as_str()).collect();
    assert!(known.len() > 30, "{schema}");
    assert_eq!(named.iter().copied().collect::<BTreeSet<_>>(), known);
    assert_eq!(named.len(), known.len(), "a reason twice: {named:?}");
}

#[test]
fn the_timeline_of_the_document_is_one_and_comes_as_it_says() {
    use nrh::simulate::{expect, of_files, text};

    let document = document("docs/how-to/simulate-a-policy.md");
    let blocks = document.split("```yaml\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let example = blocks.map(|(block, _)| block).find(|block| block.starts_with("description:")).unwrap();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("timeline.yaml");
    std::fs::write(&path, example).unwrap();
    let policies = root().join("tests/scenarios/wide-limits.policy.yaml");
    let (timeline, account) = of_files(&path, &[policies], false).unwrap();
    let unmet = expect::unmet(&timeline.expect, &account);
    assert!(unmet.is_empty(), "{}\n{}", unmet.join("\n"), text::table(&account));
}

/// Names that a timeline with a wrong field at this place may have, by the reader's own words.
fn known_fields(timeline: &str) -> Vec<String> {
    let read: Result<nrh::simulate::timeline::Timeline, _> = serde_saphyr::from_str(timeline);
    let refusal = read.err().unwrap().to_string();
    let (_, names) = refusal.split_once("expected ").unwrap_or_else(|| panic!("{refusal}"));
    let names = names.lines().next().unwrap().trim_start_matches("one of ").replace(" or ", ", ");
    let names = names.split(" at line").next().unwrap();
    names.split(", ").map(|name| name.trim_matches('`').to_owned()).collect()
}

#[test]
fn the_page_of_timelines_names_every_field() {
    let text = document("docs/reference/timelines.md");
    let words: BTreeSet<&str> = text.split(|c: char| !c.is_alphanumeric()).collect();
    for wrong in [
        "zzz: 1",
        "nodes: [{zzz: 1}]",
        "events: [{zzz: 1}]",
        "events: [{fault: {zzz: 1}}]",
        "events: [{condition: {zzz: 1}}]",
        "events: [{pods: {zzz: 1}}]",
        "events: [{policy: {zzz: 1}}]",
        "events: [{manual: {zzz: 1}}]",
        "events: [{cancel: {zzz: 1}}]",
        "events: [{flaps: {zzz: 1}}]",
        "expect: [{zzz: 1}]",
    ] {
        let known = known_fields(wrong);
        assert!(known.len() > 1, "{wrong}: {known:?}");
        let lacking: Vec<&String> = known.iter().filter(|name| !words.contains(name.as_str())).collect();
        assert!(lacking.is_empty(), "{wrong}: {lacking:?}");
    }
}

/// Who applies the folder is notified of everything, also on nodes that the policies which change something leave out.
#[test]
fn the_notifying_policy_has_a_rule_for_each_fault() {
    let policies = shipped("config/policies");
    assert!(policies.iter().all(|policy| policy.mode == Mode::Enforce));
    let guide = document("docs/how-to/enforce-after-a-dry-run.md");
    let names: BTreeSet<&str> = policies.iter().map(|policy| policy.name.as_str()).collect();
    assert_eq!(rows(&guide).into_iter().collect::<BTreeSet<_>>(), names);
    let notifying: Vec<Policy> = policies.into_iter().filter(|policy| policy.name == "notify").collect();
    // A condition of a Node is a fault only where a policy asks for it, which is its rule then.
    let kinds = FaultType::ALL.into_iter().filter(|kind| *kind != FaultType::NodeCondition);
    let lacking: Vec<FaultType> = kinds.filter(|kind| decided(&notifying, *kind).is_none()).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
}

/// The shipped policies of a folder, the one that applies first at the beginning.
fn shipped(folder: &str) -> Vec<Policy> {
    let read = |path: PathBuf| {
        let object: RemediationPolicy = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        convert::policy(&object).unwrap_or_else(|error| panic!("{}: {error:?}", path.display()))
    };
    let mut policies: Vec<Policy> = yaml_files(folder).into_iter().map(read).collect();
    policies.sort_by(|a, b| b.priority.cmp(&a.priority).then_with(|| a.name.cmp(&b.name)));
    policies
}

/// What the first rule for a kind of fault does: pods' namespaces, nodes, steps without the text that people read.
fn decided(policies: &[Policy], kind: FaultType) -> Option<(Vec<String>, Vec<Step>)> {
    let rules = policies.iter().flat_map(|policy| &policy.rules);
    let rule = rules.into_iter().find(|rule| rule.faults.contains(&kind))?;
    let without_text = |step: &Step| {
        let action = match &step.action {
            Action::Notify(_) => Action::Notify(Notify::default()),
            action => action.clone(),
        };
        Step { action, ..step.clone() }
    };
    Some((rule.namespaces.only.clone(), rule.steps.iter().map(without_text).collect()))
}

#[test]
fn the_dry_run_decides_as_the_enforcing_policies_do() {
    let (enforcing, dry) = (shipped("config/policies"), shipped("config/policies/dry-run"));
    for kind in FaultType::ALL.into_iter().filter(|kind| *kind != FaultType::NodeCondition) {
        let (acts, would) = (decided(&enforcing, kind), decided(&dry, kind));
        assert!(would.is_some(), "{kind}: the dry run has no rule");
        assert_eq!(acts, would, "{kind}");
    }
    let of_nodes = |policy: &&Policy| policy.name != "notify";
    for policy in enforcing.iter().filter(of_nodes) {
        assert_eq!(policy.selector, dry[0].selector, "{}", policy.name);
    }
}

/// File of a test that docs/explanation/lessons.md names, and its function where it is one.
fn test_file(name: &str) -> (String, Option<&str>) {
    let Some((file, function)) = name.split_once("::") else { return (format!("tests/{name}.yaml"), None) };
    let file = if ["src/", "crates/", "testbed/"].iter().any(|folder| file.starts_with(folder)) {
        file.to_owned()
    } else {
        format!("tests/{file}")
    };
    (format!("{file}.rs"), Some(function))
}

/// What a test says of itself: the description of a timeline, or the comment before a function.
fn says_of_itself(name: &str) -> String {
    let (file, function) = test_file(name);
    let text = document(&file);
    let Some(function) = function else {
        let read: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        return read["description"].as_str().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let head =
        lines.iter().position(|line| line.contains(&format!("fn {function}("))).unwrap_or_else(|| panic!("no {name}"));
    let own: Vec<&str> =
        lines[..head].iter().rev().copied().take_while(|l| l.starts_with("///") || l.starts_with("#[")).collect();
    assert!(own.iter().any(|line| line.ends_with("test]") || line.contains("::test(")), "{name} is no test: {own:?}");
    own.join(" ")
}

#[test]
fn each_story_from_elsewhere_has_tests_that_name_it() {
    let text = document("docs/explanation/lessons.md");
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| [")).collect();
    assert_eq!(rows.len(), 45, "the text says forty-five");
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let [stories, happened, lesson, tests] = cells[..] else { panic!("not four cells: {row}") };
        assert!(!happened.trim().is_empty() && !lesson.trim().is_empty(), "{row}");
        let stories: Vec<&str> = stories.split('[').skip(1).filter_map(|link| Some(link.split_once(']')?.0)).collect();
        let tests: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "nothing holds {stories:?}");
        for (story, test) in stories.iter().flat_map(|story| tests.iter().map(move |test| (story, test))) {
            let said = says_of_itself(test);
            assert!(said.contains(story), "{test} does not name {story}: {said}");
        }
    }
}

#[test]
fn each_claim_of_the_threat_model_names_tests_that_there_are() {
    let text = document("SECURITY.md");
    let attackers: Vec<&str> = text.split("\n### ").skip(1).collect();
    // Tenant, privileged workload, node, operator, administrator of a namespace, stolen token.
    assert_eq!(attackers.len(), 6);
    for attacker in attackers {
        assert!(attacker.contains("Can"), "what can they do? {attacker}");
        let rows: Vec<&str> = attacker.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
        assert!(!rows.is_empty(), "what can they not do? {attacker}");
        for row in rows {
            let (_, proof) = row.trim_matches('|').rsplit_once(" | ").unwrap();
            let tests: Vec<&str> = proof.split('`').skip(1).step_by(2).collect();
            assert!(!tests.is_empty(), "nothing proves it: {row}");
            for test in tests {
                says_of_itself(test);
            }
        }
    }
}

/// Who may do what: the tables, and the document that has them.
fn access() -> (Access, String) {
    let tables = Access::read(&root().join("tests/cluster/admission/access.yaml")).unwrap();
    (tables, document("docs/reference/permissions.md"))
}

#[test]
fn the_document_has_the_tables_that_the_api_server_is_held_to() {
    let (access, text) = access();
    assert_eq!(with_tables(&text, &access).unwrap(), text, "run make access");
}

/// A policy that is in no row could be taken out, and the table would say the same.
#[test]
fn each_admission_policy_refuses_somebody_in_the_tables() {
    let (access, text) = access();
    let named: BTreeSet<&str> = access.rows().flat_map(|row| &row.policies).map(String::as_str).collect();
    let mut shipped = BTreeSet::new();
    for file in yaml_files("config/admission") {
        let text = std::fs::read_to_string(file).unwrap();
        let policies = text.split("kind: ValidatingAdmissionPolicy\nmetadata:\n  name: ").skip(1);
        shipped.extend(policies.map(|rest| rest.lines().next().unwrap().to_owned()));
    }
    assert!(shipped.len() > 15, "{shipped:?}");
    assert_eq!(named, shipped.iter().map(String::as_str).collect());
    let (overview, _) = text.split_once("<!-- made by").unwrap();
    let unsaid: Vec<&&str> = named.iter().filter(|name| !overview.contains(&format!("`{name}`"))).collect();
    assert!(unsaid.is_empty(), "{unsaid:?}");
}
