//! What tests have seen of each fault, on which runtime, and whether that was a real one: collected as they run, and made
//! into a table of the documentation.
//!
//! ```text
//! tests ─► record: one file per fault, runtime and way ─► target/matrix ─► `testbed matrix` ─► docs/reference/faults.md
//! ```

pub mod access;
pub mod support;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// Where the table stands in the documentation.
const BEGIN: &str = "<!-- made by `make matrix`: begin -->\n";
const END: &str = "<!-- made by `make matrix`: end -->\n";
/// Longest record that is read.
const MAX_RECORD: u64 = 4096;

/// The way in which a fault was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Way {
    /// Injected into real components, and seen by the whole probe or by its collectors.
    Real,
    /// What the collectors would see of it was made up.
    MadeUp,
}

/// What one test has seen of one fault. Times are whole seconds from the injection on, those of `gone` from its end on;
/// `None` = not waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Its type.
    pub fault: String,
    /// Name of the runtime: `containerd`, `Docker`.
    pub runtime: String,
    /// How it was made.
    pub way: Way,
    /// Until it was named.
    pub named: Option<u64>,
    /// Until it was confirmed.
    pub confirmed: Option<u64>,
    /// Until it was taken back.
    pub gone: Option<u64>,
}

impl Seen {
    /// Of this fault nothing is known yet.
    pub fn of(fault: &str, runtime: &str, way: Way) -> Self {
        Self { fault: fault.to_owned(), runtime: runtime.to_owned(), way, named: None, confirmed: None, gone: None }
    }

    /// Keeps it for the table, in place of what an earlier run has seen. A test does not fail for want of a table.
    pub fn record(&self) {
        if let Err(error) = self.write(&folder()) {
            eprintln!("matrix: {} is not recorded: {error:#}", self.fault);
        }
    }

    fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        let plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        ensure!(plain(&self.fault) && plain(&self.runtime), "{self:?} is no name of a file");
        let name = format!("{}-{}-{:?}.json", self.fault, self.runtime, self.way);
        let new = folder.join(format!("{name}.new"));
        fs::write(&new, serde_json::to_vec(self)?)?;
        Ok(fs::rename(&new, folder.join(name))?)
    }

    /// `named 43 s, confirmed 129 s, gone 10 s`.
    fn told(&self) -> String {
        let times = [("named", self.named), ("confirmed", self.confirmed), ("gone", self.gone)];
        let times: Vec<String> =
            times.into_iter().filter_map(|(what, seconds)| Some(format!("{what} {} s", seconds?))).collect();
        if times.is_empty() { "seen".to_owned() } else { times.join(", ") }
    }
}

/// Whole seconds.
pub fn seconds(time: Duration) -> Option<u64> {
    Some(time.as_secs())
}

/// Where the records are: in cargo's target folder, which is in that of the workspace if nothing else is said.
fn folder() -> PathBuf {
    let workspace = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(workspace, PathBuf::from).join("matrix")
}

/// All records of earlier tests in a folder.
fn read_records<T: serde::de::DeserializeOwned>(folder: &Path) -> Result<Vec<T>> {
    let mut all = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("no test has recorded anything in {}", folder.display()))?
    {
        let path = entry?.path();
        if path.extension().is_none_or(|end| end != "json") || fs::metadata(&path)?.len() > MAX_RECORD {
            continue;
        }
        let record = serde_json::from_slice(&fs::read(&path)?);
        all.push(record.with_context(|| format!("{} is no record", path.display()))?);
    }
    Ok(all)
}

/// The table: a row per fault, in this order, and a column per runtime.
fn table(faults: &[String], seen: &[Seen]) -> String {
    let runtimes: BTreeSet<&str> = seen.iter().map(|one| one.runtime.as_str()).collect();
    let mut out = String::from("| fault |");
    // Writing to a string cannot fail.
    for runtime in &runtimes {
        let _ = write!(out, " {runtime} |");
    }
    let _ = write!(out, "\n|---|{}\n", "---|".repeat(runtimes.len()));
    for fault in faults {
        let _ = write!(out, "| `{fault}` |");
        for runtime in &runtimes {
            let of = seen.iter().filter(|one| one.fault == *fault && one.runtime == *runtime);
            // What was seen for real says more than what was made up.
            let cell = match of.min_by_key(|one| one.way) {
                Some(one) if one.way == Way::Real => format!("**real**: {}", one.told()),
                Some(one) => format!("made up: {}", one.told()),
                None => "–".to_owned(),
            };
            let _ = write!(out, " {cell} |");
        }
        out.push('\n');
    }
    out
}

/// Writes the table of what tests have recorded into the documentation.
///
/// # Errors
/// When nothing is recorded, or the document has no place for it.
pub fn write_into(document: &Path) -> Result<()> {
    let text = fs::read_to_string(document).with_context(|| format!("read {}", document.display()))?;
    let new = with_table(&text, &read_records(&folder())?).with_context(|| format!("in {}", document.display()))?;
    fs::write(document, new).with_context(|| format!("write {}", document.display()))
}

/// The document with a new table in it. Its rows are the faults of the document's first table.
fn with_table(text: &str, seen: &[Seen]) -> Result<String> {
    let (before, _) = text.split_once(BEGIN).context("no place for the table begins")?;
    let rows = before.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let name = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    let faults: Vec<String> = rows.map_while(name).collect();
    ensure!(!faults.is_empty(), "no table of faults stands before it");
    let unknown: Vec<&str> =
        seen.iter().map(|one| one.fault.as_str()).filter(|fault| !faults.iter().any(|known| known == fault)).collect();
    ensure!(unknown.is_empty(), "seen, and not in the table of faults: {unknown:?}");
    with_section(text, BEGIN, END, &table(&faults, seen))
}

/// The text with another section between two lines.
fn with_section(text: &str, begin: &str, end: &str, section: &str) -> Result<String> {
    let (before, rest) = text.split_once(begin).context("no place for the table begins")?;
    let (_, after) = rest.split_once(end).context("no place for the table ends")?;
    Ok(format!("{before}{begin}{section}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(table: &str) -> String {
        format!(
            "# F\n| fault | x |\n|---|---|\n| `DiskFull` | y |\n| `KubeletDown` | z |\n\n## M\n{BEGIN}{table}{END}rest\n"
        )
    }

    #[test]
    fn what_was_seen_for_real_stands_before_what_was_made_up() {
        let real = Seen { named: Some(3), gone: Some(9), ..Seen::of("DiskFull", "containerd", Way::Real) };
        let made_up = Seen { confirmed: Some(600), ..Seen::of("DiskFull", "containerd", Way::MadeUp) };
        let docker = Seen { confirmed: Some(60), ..Seen::of("KubeletDown", "Docker", Way::MadeUp) };
        let text = with_table(&document("old\n"), &[made_up, docker, real]).unwrap();
        let table = "| fault | Docker | containerd |\n|---|---|---|\n\
                     | `DiskFull` | – | **real**: named 3 s, gone 9 s |\n\
                     | `KubeletDown` | made up: confirmed 60 s | – |\n";
        assert_eq!(text, document(table));
    }

    #[test]
    fn what_is_in_no_table_of_faults_and_a_document_without_a_place_are_refused() {
        let seen = [Seen::of("Nothing", "containerd", Way::Real)];
        assert!(with_table(&document(""), &seen).unwrap_err().to_string().contains("Nothing"));
        assert!(with_table("# F\n", &[]).is_err());
    }

    #[test]
    fn a_record_takes_the_place_of_an_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let of = |named| Seen { named, ..Seen::of("DiskFull", "containerd", Way::Real) };
        of(Some(7)).write(folder.path()).unwrap();
        of(Some(8)).write(folder.path()).unwrap();
        assert_eq!(read_records::<Seen>(folder.path()).unwrap(), [of(Some(8))]);
        assert!(Seen::of("../x", "containerd", Way::Real).write(folder.path()).is_err());
    }
}
