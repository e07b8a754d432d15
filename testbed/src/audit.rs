//! The API server's audit log: every request, by whom, on what, and how it ended.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use anyhow::{Context, Result};
use serde::Deserialize;

/// Records each request once it has been answered, and long-running ones also when their answer begins.
pub(crate) const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
";

/// One request to the API server.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditEntry {
    /// Identity of the request.
    #[serde(rename = "auditID")]
    pub id: String,
    /// `ResponseComplete`, or `ResponseStarted` for a watch that still runs.
    pub stage: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, …
    pub verb: String,
    /// Who asked.
    pub user: User,
    /// The client's name for itself.
    #[serde(default)]
    pub user_agent: String,
    /// Path and query.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// What it was about; none for `/version` and the like.
    pub object_ref: Option<ObjectRef>,
    /// The answer.
    pub response_status: Option<Status>,
    /// When it arrived.
    pub request_received_timestamp: jiff::Timestamp,
    /// When this stage was reached.
    pub stage_timestamp: jiff::Timestamp,
}

/// A user of the API.
#[derive(Debug, Clone, Deserialize)]
pub struct User {
    /// Name, such as `system:node:real-1`.
    #[serde(default)]
    pub username: String,
}

/// What a request was about.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectRef {
    /// Plural of the kind.
    pub resource: String,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    /// Name, empty for lists and for names the server makes.
    pub name: String,
    /// Group, empty for the core group.
    pub api_group: String,
    /// `status`, `eviction`, …
    pub subresource: String,
}

/// How a request was answered.
#[derive(Debug, Clone, Deserialize)]
pub struct Status {
    /// HTTP status code.
    #[serde(default)]
    pub code: u16,
}

impl AuditEntry {
    /// Whether the request asks for a change. A dry run does not: the controller tries by some what its admission policies must refuse.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch") && !self.request_uri.contains("dryRun=All")
    }

    /// HTTP status code of the answer, 0 if there is none.
    pub fn code(&self) -> u16 {
        self.response_status.as_ref().map_or(0, |s| s.code)
    }
}

/// Reads a log; each request once, at the last stage it has reached, in the order of arrival.
pub(crate) fn read(path: &Path) -> Result<Vec<AuditEntry>> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut entries: Vec<AuditEntry> = Vec::new();
    for line in BufReader::new(file).lines() {
        // The server may be in the midst of writing the last line.
        let Ok(entry) = serde_json::from_str::<AuditEntry>(&line?) else { continue };
        if let Some(&index) = seen.get(&entry.id) {
            entries[index] = entry;
        } else {
            seen.insert(entry.id.clone(), entries.len());
            entries.push(entry);
        }
    }
    entries.sort_by_key(|e| e.request_received_timestamp);
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_counts_once_and_a_torn_line_does_not_count() -> Result<()> {
        let entry = |stage: &str| {
            format!(
                r#"{{"kind":"Event","level":"Metadata","auditID":"a","stage":"{stage}","requestURI":"/api/v1/pods?watch=true",
"verb":"watch","user":{{"username":"u","groups":["g"]}},"sourceIPs":["10.99.0.1"],"userAgent":"x","objectRef":{{"resource":"pods",
"apiVersion":"v1"}},"responseStatus":{{"metadata":{{}},"code":200}},"requestReceivedTimestamp":"2026-01-01T00:00:00.000000Z",
"stageTimestamp":"2026-01-01T00:00:01.000000Z"}}"#
            )
            .replace('\n', "")
        };
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("audit.log");
        std::fs::write(&path, format!("{}\n{}\n{{\"kind\":", entry("ResponseStarted"), entry("ResponseComplete")))?;
        let entries = read(&path)?;
        assert_eq!(entries.len(), 1);
        assert_eq!(
            (entries[0].stage.as_str(), entries[0].code(), entries[0].is_write()),
            ("ResponseComplete", 200, false)
        );
        Ok(())
    }
}
