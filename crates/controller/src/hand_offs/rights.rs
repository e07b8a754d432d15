//! Checks whether the controller may use the remediators that policies name. A missing right makes a policy invalid before
//! anything depends on it. While this is unknown, such a step is blocked.

use std::collections::BTreeMap;

use kube::api::DynamicObject;
use kube::core::ApiResource;
use tokio::time::Instant;

use super::{among, machine, may, no_right, objects, served};
use crate::cache::State;
use crate::cache::policies::TemplateRead;
use crate::calls::{CallError, Calls, bounded_opt};
use crate::handles::Handles;
use crate::permissions::{POLL_INTERVAL, again};
use nrh_core::hand_off::TemplateRef;
use nrh_core::snapshot::TriState;

/// The verbs that the controller uses on the remediator's objects.
const VERBS: [&str; 4] = ["create", "get", "patch", "delete"];

/// Uid and generation of a template. Its content cannot change while both stay the same.
pub fn version(template: &DynamicObject) -> String {
    let meta = &template.metadata;
    // A kind without generations has a resource version that rises with each write.
    let generation = meta.generation.map(|number| number.to_string()).or_else(|| meta.resource_version.clone());
    format!("{}/{}", meta.uid.as_deref().unwrap_or_default(), generation.unwrap_or_default())
}

/// Checks every template that a policy names, repeatedly, for as long as the process runs.
pub async fn run(Handles { calls, cache, .. }: Handles) {
    let mut tried: BTreeMap<TemplateRef, Instant> = BTreeMap::new();
    loop {
        let now = Instant::now();
        let due = due(&cache.lock(), &mut tried, now);
        for template in due {
            tried.insert(template.clone(), now);
            match read(&calls, &template).await {
                Ok(read) => {
                    if cache.lock().note_rights(template, read, Instant::now()) {
                        cache.wake();
                    }
                }
                // The last result remains. Without one the steps of the template are blocked.
                Err(error) => {
                    tracing::warn!(template = %template, error = error.line(), "rights of a hand-off are not known");
                }
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn due(state: &State, tried: &mut BTreeMap<TemplateRef, Instant>, now: Instant) -> Vec<TemplateRef> {
    let named = state.templates();
    tried.retain(|template, _| named.contains(template));
    let is_due = |template: &TemplateRef| {
        let has_all = match state.rights.get(template) {
            Some(lacks) if lacks.is_empty() => TriState::True,
            Some(_) => TriState::False,
            None => TriState::Unknown,
        };
        tried.get(template).is_none_or(|at| now.saturating_duration_since(*at) >= again(has_all))
    };
    named.into_iter().filter(is_due).collect()
}

/// The state of a template; an error if it cannot be known now.
pub async fn read(calls: &Calls, template: &TemplateRef) -> Result<TemplateRead, CallError> {
    let served = served(calls, &template.api_version).await?;
    let find = |kind: &str| among(&served, &template.api_version, kind).ok_or_else(|| no_kind(template, kind));
    let (kinds, missing): (Vec<_>, Vec<_>) =
        [template.kind.as_str(), template.object_kind()].map(find).into_iter().partition(Result::is_ok);
    let kinds: Vec<ApiResource> = kinds.into_iter().flatten().collect();
    let [of_template, of_object] = kinds.as_slice() else {
        return Ok(TemplateRead { lacks: missing.into_iter().filter_map(Result::err).collect(), version: None });
    };
    let (mut lacks, mut found) = (Vec::new(), None);
    if may(calls, of_template, "get", &template.namespace, Some(&template.name)).await? {
        let api = objects(calls, of_template, &template.namespace);
        found = bounded_opt(|| format!("reading {template}"), api.get(&template.name)).await?;
        if found.is_none() {
            lacks.push(format!(
                "handOff to {template}: there is no such template: name an existing template, or create it"
            ));
        }
    } else {
        lacks.push(no_right(template, of_template, &["get"]));
    }
    let mut denied = Vec::new();
    for verb in VERBS {
        if !may(calls, of_object, verb, &template.namespace, None).await? {
            denied.push(verb);
        }
    }
    if !denied.is_empty() {
        lacks.push(no_right(template, of_object, &denied));
    }
    if template.needs_machine() {
        lacks.extend(machine::lacking(calls, template).await?);
    }
    Ok(TemplateRead { lacks, version: found.as_ref().map(version) })
}

fn no_kind(template: &TemplateRef, kind: &str) -> String {
    format!(
        "handOff to {template}: expected a kind {kind} with a namespace in {}, found none: install its remediator, or name \
         another template",
        template.api_version
    )
}
