//! What a rule asks of the pod and the node of a fault. What could never be met is refused: who writes it believes that something
//! is resolved, or left alone, and it is not.

use super::read_selector;
use crate::policy::{FaultSelector, PolicyMatch};
use nrh_core::fault::FaultType;
use nrh_core::matching::{Matching, Runtime};
use nrh_core::text::bounded;
use nrh_core::version::Range;

/// Longest name that is shown.
const SHOWN: usize = 63;

/// Kinds that own no pod, with the kind that controls their pods. `metadata.ownerReferences` of a pod names its controller, and no
/// owner of that.
const OWN_NO_POD: [(&str, &str); 2] = [("Deployment", "ReplicaSet"), ("CronJob", "Job")];
/// Names that no Node tells, with the one that it tells.
const NO_RUNTIMES: [(&str, &str); 4] =
    [("crio", "cri-o"), ("dockerd", "docker"), ("cri-dockerd", "docker"), ("moby", "docker")];

/// Reads it; `at` is the path of the `match`.
pub(super) fn read(matches: &PolicyMatch, at: &str, errors: &mut Vec<String>) -> Matching {
    check_subjects(matches, at, errors);
    for (i, kind) in matches.owner_kinds.iter().enumerate() {
        if let Err(error) = owner(kind) {
            errors.push(format!("{at}.ownerKinds[{i}]: {error}"));
        }
    }
    let mut range =
        |text: &String, at: String| Range::parse(text).map_err(|error| errors.push(format!("{at}: {error}"))).ok();
    let kubelets = matches.kubelet_versions.iter().enumerate();
    let kubelets = kubelets.filter_map(|(i, text)| range(text, format!("{at}.kubeletVersions[{i}]"))).collect();
    let mut runtimes = Vec::new();
    for (i, one) in matches.runtimes.iter().enumerate() {
        let versions = one.versions.as_ref().map(|text| range(text, format!("{at}.runtimes[{i}].versions")));
        runtimes.push(Runtime { name: bounded(&one.name, SHOWN), versions: versions.flatten() });
    }
    for (i, one) in matches.runtimes.iter().enumerate() {
        if let Err(error) = runtime(&one.name) {
            errors.push(format!("{at}.runtimes[{i}].name: {error}"));
        }
    }
    let pods = matches.pod_selector.as_ref().map(|pods| read_selector(pods, &format!("{at}.podSelector"), errors));
    Matching { pods, owner_kinds: matches.owner_kinds.iter().cloned().collect(), runtimes, kubelets }
}

/// Whether there can be a pod for which it asks.
fn check_subjects(matches: &PolicyMatch, at: &str, errors: &mut Vec<String>) {
    let asked = [("podSelector", matches.pod_selector.is_some()), ("ownerKinds", !matches.owner_kinds.is_empty())];
    for (field, _) in asked.into_iter().filter(|(_, is_asked)| *is_asked) {
        if !matches.node_conditions.is_empty() {
            errors.push(format!(
                "{at}.{field}: a condition of a Node is about no pod, so none would ever match; expected a rule without them for \
                 nodeConditions"
            ));
        }
        // A NodeCondition in faults is refused for what it is.
        let is_podless = |kind: &FaultType| !kind.can_name_a_pod() && *kind != FaultType::NodeCondition;
        let named = FaultSelector::kinds(&matches.faults);
        let podless: Vec<&str> = named.into_iter().filter(is_podless).map(FaultType::as_str).collect();
        if !podless.is_empty() {
            errors.push(format!(
                "{at}.{field}: expected faults that can be about a pod, found {}, which never are, so none would ever match; name \
                 them in a rule without {field}",
                podless.join(", ")
            ));
        }
    }
}

fn owner(kind: &str) -> Result<(), String> {
    let begins = kind.starts_with(|c: char| c.is_ascii_uppercase());
    if !begins || kind.len() > SHOWN || !kind.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        let found = bounded(kind, SHOWN);
        return Err(format!("expected the kind of an owner such as DaemonSet, or None, found {found:?}"));
    }
    match OWN_NO_POD.iter().find(|(of, _)| *of == kind) {
        Some((_, instead)) => Err(format!(
            "expected what controls the pod itself, found {kind}, which controls none: its pods are controlled by a {instead}, \
             write {instead}"
        )),
        None => Ok(()),
    }
}

fn runtime(name: &str) -> Result<(), String> {
    let expected = "expected the name before the :// in status.nodeInfo.containerRuntimeVersion of the Node, such as containerd, \
                    cri-o or docker";
    let found = bounded(name, SHOWN);
    let is_edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_name = name.len() <= SHOWN
        && name.starts_with(is_edge)
        && name.ends_with(is_edge)
        && name.chars().all(|c| is_edge(c) || matches!(c, '-' | '.'));
    if let Some((bare, _)) = name.split_once("://") {
        return Err(format!(
            "{expected}, found {found:?}: write {:?}, and its versions in versions",
            bounded(bare, SHOWN)
        ));
    }
    if !is_name {
        let lower = found.to_ascii_lowercase();
        let hint = if lower == found { String::new() } else { format!(": write {lower:?}") };
        return Err(format!("{expected}, found {found:?}{hint}"));
    }
    match NO_RUNTIMES.iter().find(|(of, _)| *of == name) {
        Some((_, instead)) => Err(format!("{expected}, found {name:?}, which no Node reports: write {instead:?}")),
        None => Ok(()),
    }
}
