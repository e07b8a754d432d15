//! What the controller has written, by the API server's audit log.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::Result;
use jiff::Timestamp;
use nrh_testbed::{AuditEntry, Bed};

const USER: &str = "system:serviceaccount:nrh-system:nrh-controller";

/// One write, whatever became of it.
#[derive(Clone, Debug)]
pub struct Write {
    /// `create`, `patch`, `update`, `delete`, …
    pub verb: String,
    /// Resource and subresource, with its group: `noderemediations/status.runtimehealth.io`.
    pub resource: String,
    pub namespace: String,
    pub name: String,
    pub code: u16,
    pub client: String,
    pub at: Timestamp,
}

impl Write {
    fn of(entry: AuditEntry) -> Self {
        let object = entry.object_ref.clone().unwrap_or_default();
        let mut resource = object.resource;
        for (by, part) in
            [("/", &object.subresource), (".", &object.api_group)].into_iter().filter(|(_, p)| !p.is_empty())
        {
            resource.push_str(by);
            resource.push_str(part);
        }
        let code = entry.code();
        let (namespace, name, at) = (object.namespace, object.name, entry.request_received_timestamp);
        Self { verb: entry.verb, resource, namespace, name, code, client: entry.user_agent, at }
    }

    pub fn kind(&self) -> String {
        format!("{} {}", self.verb, self.resource)
    }

    pub fn is_done(&self) -> bool {
        (200..300).contains(&self.code)
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{} → {}", self.kind(), self.namespace, self.name, self.code)
    }
}

/// The controller's writes since a moment, in the order of arrival, those that were refused too: nobody should try.
pub fn since(bed: &Bed, since: Timestamp) -> Result<Vec<Write>> {
    let is_ours = |entry: &AuditEntry| entry.user.username == USER && entry.is_write();
    let entries = bed.audit()?.into_iter().filter(is_ours);
    Ok(entries.filter(|entry| entry.request_received_timestamp >= since).map(Write::of).collect())
}

/// The kinds among some writes.
pub fn kinds<'w>(writes: impl IntoIterator<Item = &'w Write>) -> BTreeSet<String> {
    writes.into_iter().map(Write::kind).collect()
}

/// Jobs that were made, and how often each.
pub fn jobs<'w>(writes: impl IntoIterator<Item = &'w Write>) -> BTreeMap<String, usize> {
    let mut made = BTreeMap::new();
    for write in writes.into_iter().filter(|write| write.kind() == "create jobs.batch" && write.is_done()) {
        *made.entry(write.name.clone()).or_default() += 1;
    }
    made
}

/// How many of these nodes were in work at the same time at most, by what was written to them: from the first write that took hold
/// of a node to the last that let go of it.
pub fn most_at_a_time(writes: &[Write], nodes: &[String]) -> usize {
    let is_of = |write: &&Write, node: &str| match write.kind().as_str() {
        "patch nodes" => write.name == node,
        "create jobs.batch" => write.name.strip_prefix(node).is_some_and(|rest| rest.starts_with('-')),
        _ => false,
    };
    let span = |node: &String| {
        let mut of_node = writes.iter().filter(|write| write.is_done() && is_of(write, node)).map(|write| write.at);
        let first = of_node.next()?;
        Some(first..=of_node.next_back().unwrap_or(first))
    };
    let spans: Vec<_> = nodes.iter().filter_map(span).collect();
    // More are in work only from where one begins.
    let at = |moment: &Timestamp| spans.iter().filter(|span| span.contains(moment)).count();
    spans.iter().map(|span| at(span.start())).max().unwrap_or(0)
}
