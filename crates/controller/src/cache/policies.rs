//! The policies and the config of the cluster: which policies can be used, and what the controller lacks to carry them out.

use std::collections::BTreeSet;

use tokio::time::Instant;

use super::State;
use super::fold::{Changed, Ingest};
use nrh_api::view::View;
use nrh_api::{RemediationConfig, RemediationConfigStatus, RemediationPolicy, RemediationPolicyStatus};
use nrh_core::hand_off::TemplateRef;
use nrh_core::policy::Policy;
use nrh_core::snapshot::{Snapshot, TriState};

/// Reported as missing for a policy that drains nodes without the right to evict pods.
const NO_EVICTIONS: &str = "drain: the controller may not create pods/eviction: give it ClusterRole nrh:drain (config/samples/drain-rights.yaml)";

/// The template of a hand-off, as last read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateRead {
    /// What the controller lacks to use it, one sentence each; empty = it may use it.
    pub lacks: Vec<String>,
    /// Its uid and generation, where it exists and may be read.
    pub version: Option<String>,
}

/// A policy as it is in the API; the snapshot has its last valid version.
#[derive(Clone, Debug, Default)]
pub struct PolicyRow {
    /// Why it is not valid; empty where it is.
    pub errors: Vec<String>,
    /// The rights and objects that the controller lacks to carry out the policy.
    pub lacks: Vec<String>,
    /// Generation of its spec.
    pub generation: i64,
    /// Its current status.
    pub status: RemediationPolicyStatus,
}

impl PolicyRow {
    /// All reasons why the policy, or some of its steps, cannot be used.
    pub fn flaws(&self) -> &[String] {
        if self.errors.is_empty() { &self.lacks } else { &self.errors }
    }
}

/// The `RemediationConfig` as it is in the API; the snapshot has the part that decisions read.
#[derive(Clone, Debug)]
pub struct ConfigRow {
    /// Generation of its spec.
    pub generation: i64,
    /// Its current status.
    pub status: RemediationConfigStatus,
}

impl State {
    /// The templates that policies name.
    pub fn templates(&self) -> BTreeSet<TemplateRef> {
        self.snapshot.policies.iter().flat_map(templates).collect()
    }

    /// Stores what the controller lacks to use a template. Returns whether that changed.
    pub fn note_rights(&mut self, template: TemplateRef, read: TemplateRead, now: Instant) -> bool {
        let versions = &mut self.snapshot.template_versions;
        let is_same_version = versions.get(&template) == read.version.as_ref();
        if is_same_version && self.rights.get(&template) == Some(&read.lacks) {
            return false;
        }
        match read.version {
            Some(version) => versions.insert(template.clone(), version),
            None => versions.remove(&template),
        };
        self.rights.insert(template, read.lacks);
        self.join_policies(now);
        true
    }

    /// Whether a policy drains nodes.
    pub fn drains(&self) -> bool {
        self.snapshot.policies.iter().any(drains)
    }

    /// Stores whether the controller may evict pods. Returns whether that changed.
    pub fn note_may_evict(&mut self, may: TriState, now: Instant) -> bool {
        let is_news = std::mem::replace(&mut self.may_evict, may) != may;
        if is_news {
            self.join_policies(now);
        }
        is_news
    }

    /// Stores what is not in the snapshot of a policy. `matters` says whether its part in the snapshot has changed.
    pub(super) fn put_policy(&mut self, key: &str, mut row: PolicyRow, matters: bool, now: Instant) -> Changed {
        let old = self.policies.remove(key).unwrap_or_default();
        let matters = matters || old.errors != row.errors;
        row.lacks = old.lacks;
        self.policies.insert(key.to_owned(), row);
        if matters {
            self.join_policies(now);
        }
        Changed::when(matters)
    }

    /// Joins the policies with what the controller lacks for them, and with the conditions of all Nodes.
    pub(super) fn join_policies(&mut self, now: Instant) {
        let named = self.templates();
        self.rights.retain(|template, _| named.contains(template));
        self.snapshot.template_versions.retain(|template, _| named.contains(template));
        // A policy that lacks a right stays: its remediations and its other steps continue.
        for policy in &self.snapshot.policies {
            let Some(row) = self.policies.get_mut(&policy.name) else { continue };
            let its: BTreeSet<TemplateRef> = templates(policy).collect();
            let evict = (drains(policy) && self.may_evict == TriState::False).then(|| NO_EVICTIONS.to_owned());
            row.lacks =
                its.iter().filter_map(|template| self.rights.get(template)).flatten().cloned().chain(evict).collect();
        }
        let is_proven = |template: &TemplateRef| self.rights.get(template).is_some_and(Vec::is_empty);
        let is_known = |template: &&TemplateRef| self.rights.contains_key(*template);
        let unproven: BTreeSet<TemplateRef> = named.into_iter().filter(|template| !is_proven(template)).collect();
        self.snapshot.lacking = unproven.iter().filter(is_known).cloned().collect();
        self.snapshot.unproven = unproven;
        self.snapshot.may_evict = self.may_evict;
        let now = self.since_start(now);
        let Snapshot { nodes, policies, .. } = &self.snapshot;
        for (node, view) in nodes {
            self.notices.note(node, view, policies, now);
        }
    }
}

/// The templates that a policy names.
fn templates(policy: &Policy) -> impl Iterator<Item = TemplateRef> {
    let steps = policy.rules.iter().flat_map(|rule| &rule.steps);
    steps.filter_map(|step| Some(step.action.hand_off()?.remediation_template.clone()))
}

/// Whether a policy drains nodes.
fn drains(policy: &Policy) -> bool {
    policy.rules.iter().flat_map(|rule| &rule.steps).any(|step| step.action.traits().evicts_pods)
}

impl Ingest for RemediationPolicy {
    const KIND: &'static str = "RemediationPolicy";

    fn put(self, key: &str, state: &mut State, now: Instant) -> Changed {
        let matters = self.store(key, &mut state.snapshot);
        let (errors, generation) = (self.errors(), self.metadata.generation.unwrap_or_default());
        let row = PolicyRow { errors, generation, status: self.status.unwrap_or_default(), ..PolicyRow::default() };
        state.put_policy(key, row, matters, now)
    }

    fn forget(key: &str, state: &mut State) -> Changed {
        state.policies.remove(key);
        Self::remove(key, &mut state.snapshot);
        // The remaining policies ask for nothing new, so no duration starts now.
        state.join_policies(Instant::now());
        Changed::Matters
    }
}

/// The API server admits only one.
impl Ingest for RemediationConfig {
    const KIND: &'static str = "RemediationConfig";

    fn put(self, key: &str, state: &mut State, _now: Instant) -> Changed {
        let matters = self.store(key, &mut state.snapshot);
        let generation = self.metadata.generation.unwrap_or_default();
        state.config = Some(ConfigRow { generation, status: self.status.unwrap_or_default() });
        Changed::when(matters)
    }

    fn forget(key: &str, state: &mut State) -> Changed {
        state.config = None;
        Changed::when(Self::remove(key, &mut state.snapshot))
    }
}
