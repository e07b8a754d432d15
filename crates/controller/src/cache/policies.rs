//! The policies and the config of the cluster: which policies can be used, and what the controller lacks to carry them out.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::time::Instant;

use super::State;
use super::fold::{Changed, Ingest};
use super::template::TemplateRead;
use super::versions::Versions;
use nrh_api::{
    RemediationConfig, RemediationConfigStatus, RemediationPolicy, RemediationPolicyStatus, Suspend, convert,
};
use nrh_core::hand_off::TemplateRef;
use nrh_core::policy::{Mode, Policy};
use nrh_core::snapshot::TriState;

/// Reported as missing for a policy that drains nodes without the right to evict pods.
const NO_EVICTIONS: &str = "drain: the controller may not create pods/eviction: give it ClusterRole nrh:drain (config/samples/drain-rights.yaml)";

/// A policy as it is in the API: valid, or with all its errors.
#[derive(Clone, Debug)]
pub struct PolicyRow {
    /// The policy, or its errors.
    pub read: Result<Policy, Vec<String>>,
    /// The last valid version, where the policy has become unreadable. An editing mistake must not end a running remediation,
    /// nor give the faults of the policy to another policy.
    pub kept: Option<Policy>,
    /// The rights and objects that the controller lacks to carry out the policy.
    pub lacks: Vec<String>,
    /// Generation of its spec.
    pub generation: i64,
    /// Its current status.
    pub status: RemediationPolicyStatus,
    /// Uid of the object.
    pub uid: String,
}

impl PolicyRow {
    /// The policy that decisions use.
    pub fn usable(&self) -> Option<&Policy> {
        self.read.as_ref().ok().or(self.kept.as_ref())
    }

    /// The policy, or all reasons why the policy, or some of its steps, cannot be used.
    pub fn valid(&self) -> Result<&Policy, &[String]> {
        match &self.read {
            Ok(policy) if self.lacks.is_empty() => Ok(policy),
            Ok(_) => Err(&self.lacks),
            Err(errors) => Err(errors),
        }
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
        self.policies.values().filter_map(PolicyRow::usable).flat_map(templates).collect()
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
        self.list_policies(now);
        true
    }

    /// Whether a policy drains nodes.
    pub fn drains(&self) -> bool {
        self.policies.values().filter_map(PolicyRow::usable).any(drains)
    }

    /// Stores whether the controller may evict pods. Returns whether that changed.
    pub fn note_may_evict(&mut self, may: TriState, now: Instant) -> bool {
        let is_news = self.may_evict != may;
        self.may_evict = may;
        if is_news {
            self.list_policies(now);
        }
        is_news
    }

    /// Lists the policies that can be used.
    pub(super) fn list_policies(&mut self, now: Instant) {
        let named = self.templates();
        self.rights.retain(|template, _| named.contains(template));
        self.snapshot.template_versions.retain(|template, _| named.contains(template));
        for row in self.policies.values_mut() {
            let asked: BTreeSet<TemplateRef> =
                row.usable().map(|policy| templates(policy).collect()).unwrap_or_default();
            let evict = row.usable().is_some_and(drains) && self.may_evict == TriState::False;
            let evict = evict.then(|| NO_EVICTIONS.to_owned());
            row.lacks =
                asked.iter().filter_map(|template| self.rights.get(template)).flatten().cloned().chain(evict).collect();
        }
        // A policy that lacks a right stays: its remediations and its other steps continue.
        self.snapshot.policies = self.policies.values().filter_map(PolicyRow::usable).cloned().collect();
        let unusable = self.policies.iter().filter(|(_, row)| row.usable().is_none());
        self.snapshot.unusable_policies = unusable.map(|(name, _)| name.clone()).collect();
        let is_proven = |template: &TemplateRef| self.rights.get(template).is_some_and(Vec::is_empty);
        let is_known = |template: &&TemplateRef| self.rights.contains_key(*template);
        let unproven: BTreeSet<TemplateRef> = named.into_iter().filter(|template| !is_proven(template)).collect();
        self.snapshot.lacking = unproven.iter().filter(is_known).cloned().collect();
        self.snapshot.unproven = unproven;
        self.snapshot.may_evict = self.may_evict;
        self.note_all_conditions(now);
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

/// The last valid version of a policy that has become unusable. A suspension or a mode without actions applies at once,
/// wherever it can be read.
fn kept(row: Option<&PolicyRow>, object: Option<&RemediationPolicy>, uid: &str) -> Option<Policy> {
    let last = row.filter(|row| row.uid == uid)?.usable()?;
    let spec = object.map(|object| &object.spec);
    Some(Policy {
        is_broken: true,
        suspend: last.suspend || spec.is_some_and(|spec| spec.suspend),
        mode: spec.map_or(last.mode, |spec| if spec.mode == Mode::Enforce { last.mode } else { spec.mode }),
        ..last.clone()
    })
}

impl Ingest for RemediationPolicy {
    const KIND: &'static str = "RemediationPolicy";

    fn versions(state: &mut State) -> &mut Versions {
        &mut state.versions.policies
    }

    fn put(self, key: &str, state: &mut State, now: Instant) -> Changed {
        state.unread.forget(Self::KIND, key);
        put_policy(key, &self.metadata, Ok(&self), state, now)
    }

    fn forget(key: &str, state: &mut State) -> Changed {
        state.unread.forget(Self::KIND, key);
        state.policies.remove(key);
        // The remaining policies ask for nothing new, so no duration starts now.
        state.list_policies(Instant::now());
        Changed::Matters
    }
}

/// Stores a policy, or that it cannot be read and why.
pub(super) fn put_policy(
    key: &str,
    meta: &ObjectMeta,
    object: Result<&RemediationPolicy, &str>,
    state: &mut State,
    now: Instant,
) -> Changed {
    let (generation, uid) = (meta.generation.unwrap_or_default(), meta.uid.clone().unwrap_or_default());
    let (read, status) = match object {
        Ok(object) => (convert::policy(object).map_err(|bad| bad.0), object.status.clone().unwrap_or_default()),
        Err(why) => {
            let old = state.policies.get(key).map(|row| row.status.clone()).unwrap_or_default();
            (Err(vec![why.to_owned()]), old)
        }
    };
    let kept = read.is_err().then(|| kept(state.policies.get(key), object.ok(), &uid)).flatten();
    let row = PolicyRow { read, kept, lacks: Vec::new(), generation, status, uid };
    let old = state.policies.insert(key.to_owned(), row);
    let new = state.policies.get(key).map(|row| (&row.read, &row.kept));
    let matters = old.as_ref().map(|row| (&row.read, &row.kept)) != new;
    if matters {
        state.list_policies(now);
    } else if let (Some(old), Some(row)) = (old, state.policies.get_mut(key)) {
        row.lacks = old.lacks;
    }
    Changed::when(matters)
}

/// The API server admits only one.
impl Ingest for RemediationConfig {
    const KIND: &'static str = "RemediationConfig";

    fn versions(state: &mut State) -> &mut Versions {
        &mut state.versions.configs
    }

    fn put(self, key: &str, state: &mut State, _now: Instant) -> Changed {
        state.unread.forget(Self::KIND, key);
        let generation = self.metadata.generation.unwrap_or_default();
        state.config = Some(ConfigRow { generation, status: self.status.clone().unwrap_or_default() });
        suspend(state, self.veto())
    }

    fn forget(key: &str, state: &mut State) -> Changed {
        state.unread.forget(Self::KIND, key);
        state.config = None;
        suspend(state, None)
    }
}

/// Stores whether all remediation is suspended.
pub(super) fn suspend(state: &mut State, by: Option<String>) -> Changed {
    let by = by.map(|by| if by.is_empty() { "nobody is named".to_owned() } else { by });
    let was = std::mem::replace(&mut state.snapshot.suspended, by);
    Changed::when(was != state.snapshot.suspended)
}
