//! From the objects as the API serves them to the values the core decides on. All errors of a policy are
//! collected; nothing after this handles an optional string.

mod drain;
mod matching;
mod reboot;
mod remediation;
mod signals;
mod step;
mod taint;

use std::collections::BTreeSet;
use std::time::Duration;

use super::policy::{
    FaultSelector, NodeSelector, PolicyMatch, PolicyNodeCondition, PolicyRule, PolicyStep, PolicyWindow,
    RemediationPolicy, SelectorOperator,
};
use nrh_core::external_condition::{self, ConditionMatcher};
use nrh_core::fault::{FaultType, Severity};
use nrh_core::node_condition::NodeCondition;
use nrh_core::policy::{ActionType, Limits, Mode, Namespaces, Policy, Requirement, Rule, Selector};
use nrh_core::window::Window;

pub use remediation::{manual, remediation, remediation_spec, remediation_status};
pub use step::action;

/// Everything wrong with a policy, one sentence each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid(pub Vec<String>);

/// Reads a policy as the API server takes it when it is applied: what one that is stored already may hold without harm is an error, too.
///
/// # Errors
/// Everything wrong with it.
pub fn new_policy(object: &RemediationPolicy) -> Result<Policy, Invalid> {
    let mut errors = Vec::new();
    for rule in &object.spec.rules {
        signals::check(rule, &format!("rules[{}]", rule.name), &mut errors);
    }
    match policy(object) {
        Ok(policy) if errors.is_empty() => Ok(policy),
        Ok(_) => Err(Invalid(errors)),
        Err(more) => Err(Invalid(errors.into_iter().chain(more.0).collect())),
    }
}

/// Reads a policy, with every default filled in.
///
/// # Errors
/// Everything wrong with it. A step that can be left out is no error: a policy that stood before such a step was refused would lose its
/// remediations, and its faults to the next policy.
pub fn policy(object: &RemediationPolicy) -> Result<Policy, Invalid> {
    let (meta, spec) = (&object.metadata, &object.spec);
    let mut errors = Vec::new();
    if spec.rules.is_empty() {
        errors.push("rules: expected at least one rule, found none".to_owned());
    }
    let mut rules = Vec::new();
    for (second, rule) in spec.rules.iter().enumerate() {
        let name = &rule.name;
        if let Some(first) = spec.rules.iter().take(second).position(|other| other.name == *name) {
            errors.push(format!(
                "rules[{name}]: the name is used twice: rules[{first}] and rules[{second}] are both {name:?}, rename one"
            ));
        }
        rules.push(read_rule(rule, &mut errors));
    }
    let mut windows = Vec::new();
    for (i, window) in spec.windows.iter().enumerate() {
        match read_window(window) {
            Ok(window) => windows.push(window),
            Err(error) => errors.push(format!("windows[{i}].{error}")),
        }
    }
    let selector =
        spec.node_selector.as_ref().map_or_else(Selector::default, |s| read_selector(s, "nodeSelector", &mut errors));
    check_limits(&spec.limits, &mut errors);
    if !errors.is_empty() {
        return Err(Invalid(errors));
    }
    Ok(Policy {
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        generation: meta.generation.unwrap_or_default(),
        selector,
        priority: spec.priority,
        mode: spec.mode,
        suspend: spec.suspend,
        pause_requests: spec.pause_requests.clone(),
        is_broken: false,
        windows,
        rules,
        limits: spec.limits.clone(),
        history: spec.history,
    })
}

fn check_limits(limits: &Limits, errors: &mut Vec<String>) {
    for (i, _) in limits.per_fault.iter().enumerate().filter(|(_, limit)| limit.faults.is_empty()) {
        errors.push(format!("limits.perFault[{i}].faults: expected at least one kind of fault, found none"));
    }
    let max_actions = limits.per_node.max_actions;
    if max_actions == 0 || max_actions > 100 {
        errors.push(format!("limits.perNode.maxActions: expected 1 to 100, found {max_actions}"));
    }
}

fn read_window(window: &PolicyWindow) -> Result<Window, String> {
    let actions = window.actions.iter().copied().collect();
    Window::new(window.kind, &window.schedule, window.duration.get(), &window.time_zone, actions)
}

fn read_rule(rule: &PolicyRule, errors: &mut Vec<String>) -> Rule {
    let at = format!("rules[{}]", rule.name);
    check_match(&rule.matches, &at, errors);
    let lists = [("namespaces", &rule.matches.namespaces), ("excludedNamespaces", &rule.matches.excluded_namespaces)];
    for (field, names) in lists {
        for (i, name) in names.iter().enumerate().filter(|(_, name)| !is_namespace(name)) {
            errors.push(format!(
                "{at}.match.{field}[{i}]: expected the name of a namespace, with `*` at its end at most, found {name:?}"
            ));
        }
    }
    if rule.steps.is_empty() {
        errors.push(format!("{at}.steps: expected at least one step, found none"));
    }
    let steps = rule
        .steps
        .iter()
        .enumerate()
        .filter_map(|(i, step)| step::read(step, &format!("{at}.steps[{i}]"), errors))
        .collect();
    if !rule.steps.is_empty() && rule.steps.iter().all(|step| step.mode == Mode::DryRun) {
        errors.push(format!(
            "{at}.steps: expected at least one step of mode Enforce; for a dry run of a whole policy use spec.mode"
        ));
    }
    let is_bare = |step: &PolicyStep| step.action.contains() && step.cordon.is_none();
    if !rule.steps.is_empty() && rule.steps.iter().all(is_bare) {
        let found: BTreeSet<&str> = rule.steps.iter().map(|step| step.action.as_str()).collect();
        let found = found.into_iter().collect::<Vec<_>>().join(" and ");
        let alone = if rule.steps.iter().any(|step| step.action == ActionType::Cordon) {
            "; a Cordon with quarantineFor has an effect alone"
        } else {
            ""
        };
        errors.push(format!(
            "{at}.steps: expected a step that remediates, or Notify, found only {found}, which has no effect alone{alone}"
        ));
    }
    drain::check_place(&rule.steps, &at, errors);
    reboot::check_place(&rule.steps, &at, errors);
    taint::check_beside(&rule.steps, &at, errors);
    let before_last = rule.steps.iter().rev().skip(1);
    if before_last.filter(|step| step.action.notifies()).count() > 0 {
        errors.push(format!("{at}.steps: expected Notify last and once"));
    }
    Rule {
        name: rule.name.clone(),
        faults: FaultSelector::kinds(&rule.matches.faults),
        conditions: rule.matches.node_conditions.iter().map(asked).collect(),
        min_severity: rule.matches.min_severity,
        namespaces: Namespaces {
            only: rule.matches.namespaces.clone(),
            except: rule.matches.excluded_namespaces.clone(),
        },
        matching: matching::read(&rule.matches, &format!("{at}.match"), errors),
        min_duration: rule.matches.min_duration.map_or(Duration::ZERO, super::HumanDuration::get),
        steps,
    }
}

/// What a rule asks for of a Node's conditions.
fn asked(condition: &PolicyNodeCondition) -> ConditionMatcher {
    ConditionMatcher {
        kind: condition.kind.clone(),
        status: condition.status,
        reasons: condition.reasons.iter().cloned().collect(),
    }
}

fn check_match(matches: &PolicyMatch, at: &str, errors: &mut Vec<String>) {
    if matches.faults.is_empty() && matches.node_conditions.is_empty() {
        errors.push(format!("{at}.match: expected at least one of faults and nodeConditions, found neither"));
    }
    if matches.faults.contains(&FaultSelector::Kind(FaultType::NodeCondition)) {
        errors.push(format!(
            "{at}.match.faults: a NodeCondition is asked for by its type and status, expected it in nodeConditions"
        ));
    }
    for condition in &matches.node_conditions {
        let kind = nrh_core::text::bounded(&condition.kind, external_condition::MAX_TYPE);
        if NodeCondition::named(&condition.kind).is_some() {
            errors.push(format!(
                "{at}.match.nodeConditions: {kind} is written on the Node by this controller itself (--node-conditions), which would be a loop: expected the type of another tool; name the fault in faults instead"
            ));
        } else if !external_condition::can_be_asked_for(&condition.kind) {
            errors.push(format!(
                "{at}.match.nodeConditions: expected a type of 1 to {} bytes, found {:?} of {}",
                external_condition::MAX_TYPE,
                kind,
                condition.kind.len()
            ));
        }
        if let Some(reason) =
            condition.reasons.iter().find(|one| one.is_empty() || one.len() > external_condition::MAX_REASON)
        {
            errors.push(format!(
                "{at}.match.nodeConditions[{kind}].reasons: expected 1 to {} bytes each, found {}",
                external_condition::MAX_REASON,
                reason.len()
            ));
        }
    }
    if !matches.node_conditions.is_empty() {
        if matches.min_severity > Severity::Medium {
            errors.push(format!(
                "{at}.match.minSeverity: a condition of a Node is of severity Medium, expected that at most beside \
                 nodeConditions, found {}",
                matches.min_severity.as_str()
            ));
        }
        if !matches.namespaces.is_empty() {
            errors.push(format!(
                "{at}.match.namespaces: a condition of a Node is about no pod, so none would ever match; expected a rule of \
                 its own for nodeConditions"
            ));
        }
    }
}

/// Whether it is the name of a namespace, or the beginning of one with a `*`.
fn is_namespace(pattern: &str) -> bool {
    let name = pattern.strip_suffix('*').unwrap_or(pattern);
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain)
}

fn read_selector(selector: &NodeSelector, at: &str, errors: &mut Vec<String>) -> Selector {
    let mut requirements: Vec<Requirement> = selector
        .match_labels
        .iter()
        .map(|(key, value)| Requirement::In(key.clone(), BTreeSet::from([value.clone()])))
        .collect();
    for expression in &selector.match_expressions {
        let (key, values) = (expression.key.clone(), expression.values.iter().cloned().collect::<BTreeSet<_>>());
        let needs_values = matches!(expression.operator, SelectorOperator::In | SelectorOperator::NotIn);
        if needs_values == values.is_empty() {
            errors.push(format!(
                "{at}.matchExpressions[{key}]: In and NotIn need values; Exists and DoesNotExist take none"
            ));
        }
        requirements.push(match expression.operator {
            SelectorOperator::In => Requirement::In(key, values),
            SelectorOperator::NotIn => Requirement::NotIn(key, values),
            SelectorOperator::Exists => Requirement::Exists(key),
            SelectorOperator::DoesNotExist => Requirement::DoesNotExist(key),
        });
    }
    Selector(requirements)
}
