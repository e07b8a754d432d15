//! Who may do what: one table of expected answers, which a test puts to a real API server and which is printed into the documentation.
//!
//! ```text
//! tests/cluster/admission/access.yaml ─┬─► the test of admission: a request for each cell
//!                                      └─► `testbed access` ─► docs/reference/permissions.md
//! ```

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::with_section;

/// Where the tables stand in the documentation.
const BEGIN: &str = "<!-- made by `make access`: begin -->\n";
const END: &str = "<!-- made by `make access`: end -->\n";

/// The whole table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// Accounts with the roles as shipped: one column each.
    pub accounts: Vec<Account>,
    /// Accounts that hold the usual verbs on everything, so that admission alone is in their way.
    pub unlimited: Vec<Account>,
    /// The rows, by what they are about.
    pub tables: Vec<Table>,
}

/// A column.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Account {
    /// Its head.
    pub name: String,
    /// Who that is.
    pub about: String,
}

/// Rows that are about one thing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// What they are about.
    pub title: String,
    /// The rows.
    pub rows: Vec<Row>,
}

/// One kind of request, with the answer for each account.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The object, and what is done to it.
    pub what: String,
    /// Verbs as RBAC knows them; each has the same answers.
    pub verbs: Vec<String>,
    /// Path of the object. `{NAME}` stands for what the test has found or made.
    #[serde(default)]
    pub path: String,
    /// Sub-resource, with what follows it in a path.
    #[serde(default)]
    pub sub: Option<String>,
    /// Query of the request.
    #[serde(default)]
    pub query: Option<String>,
    /// What is sent: an object to create, a patch, what an update changes, or the options of a deletion.
    #[serde(default)]
    pub body: Value,
    /// Asks the authorizer in place of a request, which the API server itself does not serve: group, resource and name.
    #[serde(default)]
    pub review: Option<Value>,
    /// Policies that refuse it; one of them answers.
    #[serde(default)]
    pub policies: Vec<String>,
    /// Answers by account, with the roles as shipped.
    pub roles: String,
    /// Answers by account of [`Access::unlimited`].
    #[serde(default)]
    pub unlimited: Option<String>,
}

/// The answer to one account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Allowed,
    /// It is done to the node's own object, and to no other.
    Own,
    /// No role permits it, or a rule of Kubernetes itself refuses it.
    NoRight,
    /// A policy of this project refuses it.
    Refused,
}

impl Answer {
    /// As it stands in a table.
    pub fn sign(self) -> &'static str {
        match self {
            Self::Allowed => "✓",
            Self::Own => "own",
            Self::NoRight => "–",
            Self::Refused => "✗",
        }
    }

    fn of(sign: &str) -> Result<Self> {
        let all = [Self::Allowed, Self::Own, Self::NoRight, Self::Refused];
        let found = all.into_iter().find(|one| one.sign() == sign);
        found.with_context(|| format!("expected one of ✓ own – ✗, found {sign:?}"))
    }
}

/// The answers of a row.
///
/// # Errors
/// When a sign is unknown.
pub fn answers(text: &str) -> Result<Vec<Answer>> {
    text.split_whitespace().map(Answer::of).collect()
}

impl Access {
    /// Reads the table.
    ///
    /// # Errors
    /// When the file cannot be read, a row has not one answer for each account, or names no policy where one refuses.
    pub fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let access: Self = serde_saphyr::from_str(&text).with_context(|| format!("in {}", file.display()))?;
        for row in access.rows() {
            access.check(row).with_context(|| format!("{}: {}, {}", file.display(), row.what, row.verbs.join(" ")))?;
        }
        Ok(access)
    }

    /// All rows.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.tables.iter().flat_map(|table| &table.rows)
    }

    fn check(&self, row: &Row) -> Result<()> {
        let mut all: Vec<Answer> = Vec::new();
        for (given, accounts) in [(Some(&row.roles), &self.accounts), (row.unlimited.as_ref(), &self.unlimited)] {
            let Some(given) = given else { continue };
            let more = answers(given)?;
            ensure!(more.len() == accounts.len(), "expected {} answers, found {}", accounts.len(), more.len());
            all.extend(more);
        }
        let is_refused = all.contains(&Answer::Refused);
        ensure!(is_refused != row.policies.is_empty(), "expected policies where there is a ✗, and nowhere else");
        ensure!(row.path.is_empty() == row.review.is_some(), "expected a path or a review");
        Ok(())
    }

    /// The tables as Markdown.
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        for account in &self.accounts {
            let _ = writeln!(out, "- **{}**: {}", account.name, account.about);
        }
        for table in &self.tables {
            let _ = write!(out, "\n### {}\n", table.title);
            print(&mut out, &self.accounts, table.rows.iter().map(|row| (row, row.roles.as_str())));
        }
        let _ = write!(out, "\n### With every right but the operator's own verbs\n\n");
        for account in &self.unlimited {
            let _ = writeln!(out, "- **{}**: {}", account.name, account.about);
        }
        out.push('\n');
        print(&mut out, &self.unlimited, self.rows().filter_map(|row| Some((row, row.unlimited.as_deref()?))));
        out
    }
}

/// One table: the object, the verbs, an answer for each account, and the policies that refuse.
fn print<'r>(out: &mut String, accounts: &[Account], rows: impl Iterator<Item = (&'r Row, &'r str)>) {
    let names: Vec<&str> = accounts.iter().map(|account| account.name.as_str()).collect();
    let _ = write!(
        out,
        "| object | verbs | {} | refused by |\n|---|---|{}---|\n",
        names.join(" | "),
        ":-:|".repeat(names.len())
    );
    for (row, answers) in rows {
        let cells: Vec<&str> = answers.split_whitespace().collect();
        let is_refused = cells.contains(&Answer::Refused.sign());
        let policies = row.policies.iter().filter(|_| is_refused);
        let policies: Vec<String> = policies.map(|name| format!("`{name}`")).collect();
        let verbs = row.verbs.join(", ");
        let _ = writeln!(out, "| {} | {verbs} | {} | {} |", row.what, cells.join(" | "), policies.join(", "));
    }
}

/// The document with the tables in it.
///
/// # Errors
/// When it has no place for them.
pub fn with_tables(text: &str, access: &Access) -> Result<String> {
    with_section(text, BEGIN, END, &access.markdown())
}

/// Writes the tables of `file` into the documentation.
///
/// # Errors
/// When a file cannot be read or written, or the document has no place for the tables.
pub fn write_into(document: &Path, file: &Path) -> Result<()> {
    let text = fs::read_to_string(document).with_context(|| format!("read {}", document.display()))?;
    let new = with_tables(&text, &Access::read(file)?).with_context(|| format!("in {}", document.display()))?;
    ensure!(!new.contains('\t'), "{}: expected no tabs", file.display());
    fs::write(document, new).with_context(|| format!("write {}", document.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "
accounts: [{name: a, about: first}, {name: b, about: second}]
unlimited: [{name: c, about: third}]
tables:
- title: T
  rows:
  - {what: pods, verbs: [get, list], path: /x, roles: ✓ –}
  - {what: jobs, verbs: [create], path: /y, roles: own ✗, unlimited: ✗, policies: [p]}
";

    fn read(text: &str) -> Result<Access> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        Access::read(file.path())
    }

    #[test]
    fn each_row_has_an_answer_for_each_account_and_names_who_refuses() {
        let document = with_tables(&format!("a\n{BEGIN}old\n{END}b\n"), &read(TABLE).unwrap()).unwrap();
        assert!(document.contains("| pods | get, list | ✓ | – |  |\n"), "{document}");
        assert!(document.contains("| jobs | create | own | ✗ | `p` |\n"), "{document}");
        assert!(document.contains("| jobs | create | ✗ | `p` |\n"), "{document}");
        assert!(document.starts_with("a\n") && document.ends_with("b\n") && !document.contains("old"));
    }

    #[test]
    fn a_table_with_a_hole_is_refused() {
        for (from, to, found) in [
            ("✓ –", "✓", "expected 2 answers, found 1"),
            ("✓ –", "✓ x", "expected one of"),
            ("unlimited: ✗", "unlimited: ✗ ✗", "expected 1 answers, found 2"),
            (", policies: [p]", "", "expected policies where there is a ✗"),
            ("path: /x", "what2: /x", "what2"),
            ("path: /x, ", "", "expected a path or a review"),
        ] {
            let error = format!("{:#}", read(&TABLE.replace(from, to)).unwrap_err());
            assert!(error.contains(found), "{error}");
        }
    }
}
