//! The parts of the status about the probe itself and about the runtime that it uses.

use std::time::Duration;

use nrh_api::health::{CollectorState, CollectorStatus, ProbeMode, ProbeStatus, RuntimeStatus};
use nrh_core::command::Outcome;
use nrh_core::observation::{BusSeen, Observations, ProcessTable, Reading, TaskAnswer};
use nrh_core::text::bounded;

/// Limits of the object's fields.
const MAX_MISSING: usize = 16;
const LINE: usize = 256;
const NO_SYSTEMD: &str = "no systemd, or no system bus: RestartKubelet, RestartRuntime and Reboot are refused";

/// Data that does not come from the collectors.
#[derive(Clone, Debug, Default)]
pub(super) struct About {
    pub mode: ProbeMode,
    pub boot_id: String,
    pub node_uid: Option<String>,
    /// Whether the executor may and can execute actions.
    pub actions_enabled: bool,
    /// What the executor lacks.
    pub missing: Vec<String>,
    /// The runtime's socket in use.
    pub endpoint: Option<String>,
    /// Outcome of the last command.
    pub agent: Option<Outcome>,
}

pub(super) fn probe(seen: &Observations, about: &About) -> ProbeStatus {
    let collectors = collectors(seen);
    let unavailable = collectors.iter().filter(|collector| collector.state == CollectorState::Unavailable);
    let unavailable = unavailable.map(|collector| format!("collector {}: {}", collector.name, collector.message));
    let no_systemd = (seen.bus.value() == Some(&BusSeen::NoBus)).then(|| NO_SYSTEMD.to_owned());
    let missing = unavailable.chain(about.missing.iter().cloned()).chain(no_systemd).map(|line| bounded(&line, LINE));
    ProbeStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        mode: about.mode,
        boot_id: bounded(&about.boot_id, 64),
        node_uid: about.node_uid.as_deref().map(|uid| bounded(uid, 64)),
        sequence: 0,
        heartbeat_at: None,
        interval_seconds: 0,
        actions_enabled: about.actions_enabled,
        check_answered: None,
        missing_capabilities: missing.take(MAX_MISSING).collect(),
        collectors,
    }
}

/// Returns the state of the runtime, or its last state while it answered.
pub(super) fn runtime(
    seen: &Observations,
    endpoint: Option<&str>,
    before: Option<RuntimeStatus>,
) -> Option<RuntimeStatus> {
    let before = before.unwrap_or_default();
    let version = seen
        .runtime
        .value()
        .map_or(before.version, |runtime| bounded(&format!("{}://{}", runtime.name, runtime.version), 128));
    let endpoint = endpoint.map_or(before.endpoint, |endpoint| bounded(endpoint, LINE));
    if version.is_empty() && endpoint.is_empty() {
        return None;
    }
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let (sandboxes, containers) = seen.lists.value().map_or((before.sandboxes, before.containers), |lists| {
        (count(lists.sandboxes.len()), count(lists.containers.len()))
    });
    Some(RuntimeStatus { version, endpoint, sandboxes, containers })
}

/// Returns every collector with the age of its last completed reading.
pub(super) fn collectors(seen: &Observations) -> Vec<CollectorStatus> {
    vec![
        collector("runtime", &seen.runtime),
        collector("lists", &seen.lists),
        collector("status", &seen.status),
        tasks(seen),
        processes(&seen.processes),
        collector("kubelet", &seen.kubelet),
        collector("host", &seen.host),
        collector("disks", &seen.disks),
        collector("port", &seen.port),
        collector("bus", &seen.bus),
    ]
}

fn collector<T>(name: &str, reading: &Reading<T>) -> CollectorStatus {
    let (state, message) = match reading {
        Reading::Never => (CollectorState::Starting, String::new()),
        Reading::Done { .. } => (CollectorState::Ok, String::new()),
        Reading::Hung { out } => (CollectorState::Hung, format!("a call has been out for {} s", out.as_secs())),
        Reading::Failed { error, .. } => (CollectorState::Failed, error.clone()),
        Reading::Unavailable { reason } => (CollectorState::Unavailable, reason.clone()),
    };
    CollectorStatus {
        name: name.to_owned(),
        state,
        age_seconds: age(reading).map(|age| age.as_secs()),
        message: bounded(&message, LINE),
    }
}

/// Returns the status of the process collector. If there is more than it reads, it continues and reports what it left
/// out.
fn processes(reading: &Reading<ProcessTable>) -> CollectorStatus {
    let left_out = reading.value().map(|table| table.left_out.to_string()).unwrap_or_default();
    let collector = collector("processes", reading);
    if left_out.is_empty() { collector } else { CollectorStatus { message: bounded(&left_out, LINE), ..collector } }
}

/// Returns the status of the task collector: as fresh as its newest answer, and hung only if no query returns.
fn tasks(seen: &Observations) -> CollectorStatus {
    let newest = |wanted: fn(&Reading<TaskAnswer>) -> bool| {
        seen.tasks
            .values()
            .filter(|reading| wanted(reading))
            .min_by_key(|reading| age(reading).unwrap_or(Duration::MAX))
    };
    let best = newest(|reading| matches!(reading, Reading::Done { .. }))
        .or_else(|| newest(|reading| matches!(reading, Reading::Hung { .. })))
        .or_else(|| newest(|_| true));
    best.map_or_else(|| collector::<TaskAnswer>("tasks", &Reading::Never), |reading| collector("tasks", reading))
}

pub(super) fn age<T>(reading: &Reading<T>) -> Option<Duration> {
    match reading {
        Reading::Done { age, .. } | Reading::Failed { age, .. } => Some(*age),
        Reading::Never | Reading::Hung { .. } | Reading::Unavailable { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nrh_core::examples::{Node, done};

    #[test]
    fn what_is_missing_is_named_by_collector_and_bounded() {
        let about = About { missing: vec!["x".repeat(10_000); 100], ..About::default() };
        let probe = probe(&Node::unavailable(), &about);
        assert_eq!(probe.missing_capabilities.len(), MAX_MISSING);
        assert!(probe.missing_capabilities[0].starts_with("collector runtime: "));
        assert!(probe.missing_capabilities.iter().all(|line| line.len() <= LINE));
    }

    #[test]
    fn a_node_without_systemd_says_which_actions_it_lacks() {
        let about = About { actions_enabled: true, ..About::default() };
        let mut node = Node::healthy();
        assert_eq!(probe(&node, &about).missing_capabilities, Vec::<String>::new());
        node.bus = done(BusSeen::NoBus);
        let probe = probe(&node, &about);
        assert_eq!(probe.missing_capabilities, [NO_SYSTEMD]);
        assert!(probe.actions_enabled, "the others are not refused");
    }

    #[test]
    fn a_check_that_has_left_something_out_says_so_and_is_no_failure() {
        let mut node = Node::healthy();
        assert_eq!(processes(&node.processes).message, "");
        let Reading::Done { value, .. } = &mut node.processes else { panic!("no table") };
        value.left_out.locks = Some("more file locks than are read".to_owned());
        let collector = processes(&node.processes);
        assert_eq!(
            (collector.state, collector.message.as_str()),
            (CollectorState::Ok, "more file locks than are read")
        );
    }

    #[test]
    fn one_hung_task_does_not_make_the_collector_hung() {
        let mut node = Node::healthy();
        node.tasks.insert("x".into(), Reading::Hung { out: Duration::from_secs(9) });
        assert_eq!(tasks(&node).state, CollectorState::Ok);
        node.tasks.retain(|id, _| id == "x");
        assert_eq!(tasks(&node).state, CollectorState::Hung);
        node.tasks.clear();
        assert_eq!(tasks(&node).state, CollectorState::Starting);
        node.tasks.insert("y".into(), done(TaskAnswer::NoAnswer));
        assert_eq!(tasks(&node).state, CollectorState::Ok);
    }
}
