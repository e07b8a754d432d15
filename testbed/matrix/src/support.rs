//! What a test has seen hold on each platform: the support matrix of the documentation.
//!
//! ```text
//! tests/platform ─► one file per platform and promise ─► target/matrix/platforms ─► `testbed support` ─► docs/reference/support.md
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::{folder, read_records, with_section};

/// Where the table stands in the documentation.
const BEGIN: &str = "<!-- made by `make support`: begin -->\n";
const END: &str = "<!-- made by `make support`: end -->\n";

/// The cell of what was not tried, or failed.
const NOTHING: &str = "–";

/// One thing that was seen on one platform.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// Name of the platform: a column.
    pub platform: String,
    /// Where the row stands among the rows: the same for each platform.
    pub order: u8,
    /// What is promised: a row.
    pub promise: String,
    /// What was seen, for the cell.
    pub seen: String,
}

impl Proof {
    /// Keeps it for the table, in place of what an earlier run has seen. A test does not fail for want of a table.
    pub fn record(&self) {
        if let Err(error) = self.write(&folder().join("platforms")) {
            eprintln!("matrix: {self:?} is not recorded: {error:#}");
        }
    }

    /// Records that nothing was seen, in place of what an earlier run has seen: what fails today does not hold.
    pub fn record_nothing(&self) {
        Self { seen: NOTHING.into(), ..self.clone() }.record();
    }

    fn file_name(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        format!("{}-{}.json", self.platform, self.promise.chars().map(plain).collect::<String>().trim_matches('-'))
    }

    fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        let plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.');
        ensure!(plain(&self.platform), "{self:?} is no name of a file");
        fs::write(folder.join(self.file_name()), serde_json::to_vec(self)?).context("write it")
    }
}

/// The table: a row per promise, and a column per platform that was tried.
fn table(proofs: &[Proof]) -> String {
    let mut rows: Vec<(u8, &str, BTreeMap<&str, &str>)> = Vec::new();
    let mut platforms: Vec<&str> = proofs.iter().map(|proof| proof.platform.as_str()).collect();
    platforms.sort_unstable();
    platforms.dedup();
    for proof in proofs {
        let row = rows.iter_mut().find(|(_, promise, _)| *promise == proof.promise);
        match row {
            Some((.., cells)) => drop(cells.insert(&proof.platform, &proof.seen)),
            None => rows.push((proof.order, &proof.promise, [(&*proof.platform, &*proof.seen)].into())),
        }
    }
    rows.sort_by_key(|(order, ..)| *order);
    let mut out = format!("| | {} |\n|---|{}\n", platforms.join(" | "), "---|".repeat(platforms.len()));
    for (_, promise, cells) in rows {
        let cells: Vec<&str> =
            platforms.iter().map(|platform| cells.get(platform).copied().unwrap_or(NOTHING)).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(out, "| {promise} | {} |", cells.join(" | "));
    }
    out
}

/// What the table in the documentation says and no record here contradicts: another run has seen it.
fn kept(table: &str, proofs: &[Proof]) -> Vec<Proof> {
    let cells = |line: &str| -> Vec<String> {
        line.trim().trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let mut lines = table.lines();
    let platforms = lines.next().map(cells).unwrap_or_default();
    let (mut kept, mut last) = (Vec::new(), 0);
    for row in lines.skip(1).map(cells) {
        let Some(promise) = row.first() else { continue };
        // A row that is not recorded here follows the one before it.
        let order = proofs.iter().find(|proof| proof.promise == *promise).map_or(last, |proof| proof.order);
        last = order;
        for (platform, seen) in platforms.iter().zip(&row).skip(1) {
            let same = |proof: &Proof| proof.platform == *platform && proof.promise == *promise;
            if seen != NOTHING && !proofs.iter().any(same) {
                let (platform, promise, seen) = (platform.clone(), promise.clone(), seen.clone());
                kept.push(Proof { platform, order, promise, seen });
            }
        }
    }
    kept
}

/// Writes the table of what tests have recorded into the documentation. Cells without a record stay.
///
/// # Errors
/// When nothing is recorded, or the document has no place for it.
pub fn write_into(document: &Path) -> Result<()> {
    let text = fs::read_to_string(document).with_context(|| format!("read {}", document.display()))?;
    let mut proofs: Vec<Proof> = read_records(&folder().join("platforms"))?;
    let known = text.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END));
    proofs.extend(known.map_or_else(Vec::new, |(table, _)| kept(table, &proofs)));
    let new = with_section(&text, BEGIN, END, &table(&proofs)).with_context(|| format!("in {}", document.display()))?;
    fs::write(document, new).with_context(|| format!("write {}", document.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_tried_on_a_platform_has_a_dash() -> Result<()> {
        let proof = |platform: &str, order, promise: &str, seen: &str| Proof {
            platform: platform.into(),
            order,
            promise: promise.into(),
            seen: seen.into(),
        };
        let proofs = [
            proof("two", 1, "heals", "in 9 s"),
            proof("one", 2, "reboots", "once"),
            proof("one", 1, "heals", "in 8 s"),
            proof("three", 2, "reboots", "once"),
        ];
        let expected = "| | one | three | two |\n|---|---|---|---|\n| heals | in 8 s | – | in 9 s |\n| reboots | once | once | – |\n";
        assert_eq!(table(&proofs), expected);
        // Another machine has run one of them only, and sees something else.
        let mut here = vec![proof("two", 1, "heals", "in 7 s"), proof("two", 3, "a panic", NOTHING)];
        let before = expected.to_owned() + "| a panic | – | twice | once |\n| an upgrade | once | – | – |\n";
        here.extend(kept(&before, &here));
        let after = before.replace("in 9 s", "in 7 s").replace("| twice | once |", "| twice | – |");
        assert_eq!(table(&here), after);
        let folder = tempfile::tempdir()?;
        proofs.iter().try_for_each(|proof| proof.write(folder.path()))?;
        assert_eq!(table(&read_records(folder.path())?), expected);
        assert!(proof("../x", 1, "", "").write(folder.path()).is_err());
        Ok(())
    }
}
