//! What the documents list is what the code has.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::path::Path;

use nrh::core::fault::FaultType;

fn document(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// First cells of all tables that are names in backticks.
fn rows(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once("` |")?.0)).collect()
}

#[test]
fn each_fault_has_a_row_in_the_table_of_faults_and_one_in_the_matrix() {
    let text = document("docs/faults.md");
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
