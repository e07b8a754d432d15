//! `nrh explain NODE`: evidence, fault, rule, action or block, reason, and when the controller decides again.
//!
//! It decides with the same [`plan`] as the controller, on the objects in the cluster or in a file, and executes nothing.

pub mod args;
pub mod evidence;
mod explanation;
#[cfg(target_os = "linux")]
pub mod local;
pub mod objects;
mod report;
mod text;

use anyhow::bail;
use jiff::Timestamp;

use crate::args::ExplainArgs;
use explanation::Explanation;
use nrh_core::engine::plan;
use nrh_core::plan::PlanSettings;
use nrh_terminal::print_as;
use objects::Objects;

/// Largest number of named nodes where the caller has to choose one.
const MOST_NAMES: usize = 20;

/// Runs `nrh explain`.
pub async fn run(args: ExplainArgs) -> anyhow::Result<()> {
    let (objects, now) = Objects::load(args.file.as_deref(), args.node.as_deref(), &args.cluster).await?;
    let node = match (args.node, objects.node_names().as_slice()) {
        (Some(node), _) => node,
        (None, [only]) => only.clone(),
        (None, names) => bail!("expected the name of a node; the objects are of {}", among(names)),
    };
    explain(&objects, &node, now, |explanation| print_as(args.print.output, explanation, text::text))
}

/// The number of nodes, and the first of their names.
fn among(names: &[String]) -> String {
    let more = if names.len() > MOST_NAMES { ", …" } else { "" };
    format!("{}: {}{more}", names.len(), names.iter().take(MOST_NAMES).cloned().collect::<Vec<_>>().join(", "))
}

/// Passes the explanation of one node on.
fn explain<T>(
    objects: &Objects,
    node: &str,
    now: Timestamp,
    then: impl FnOnce(&Explanation<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let (snapshot, invalid) = objects.snapshot(now);
    if !snapshot.nodes.contains_key(node) && !snapshot.reports.contains_key(node) {
        let broken = if invalid.is_empty() { String::new() } else { format!("; {}", invalid.join("; ")) };
        bail!(
            "there is no Node and no NodeRuntimeHealth {node:?} that can be read; `kubectl get nrh` lists what there is{broken}"
        );
    }
    let decided = plan(&snapshot, &PlanSettings::default());
    then(&Explanation::new(node, &snapshot, &decided, objects.status(node), &invalid))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = include_str!("saved.yaml");

    fn explained(change: impl Fn(String) -> String) -> String {
        let objects = Objects::parse(&change(SAVED.to_owned())).unwrap();
        let now = objects.newest().unwrap();
        explain(&objects, "worker-1", now, |explanation| Ok(text::text(explanation))).unwrap()
    }

    /// The same objects with this instead of the faults.
    fn without_faults(saved: &str, instead: &str) -> String {
        let (start, rest) = saved.split_once("    faults:\n").unwrap();
        let (_, end) = rest.split_once("\n    conditions: []").unwrap();
        format!("{start}    faults: []{instead}\n    conditions: []{end}")
    }

    #[test]
    fn a_dry_run_is_said_to_be_why_nothing_is_done() {
        let text = explained(|saved| saved);
        for part in [
            "worker-1",
            "HungContainer",
            "kube-system/log-shipper-x7k2p",
            "state T",
            "policy default, rule release",
            "dry run",
        ] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
    }

    #[test]
    fn a_text_of_a_node_is_neither_obeyed_nor_taken_for_a_line_of_ours() {
        const HOSTILE: &str = r#""\e]52;c;eA==\a\r\nnode worker-1: Healthy\n\u009b2J\u202Eforged\u2066\u2028\x7f""#;
        let text = explained(|saved| {
            let saved = saved
                .replace("/run/containerd/containerd.sock", HOSTILE)
                .replace("\"Tasks/Get: no answer within 4s\"", HOSTILE);
            let saved = saved.replace(
                "container main of kube-system/log-shipper-x7k2p does not answer, its shim is stopped",
                HOSTILE,
            );
            let saved = saved.replace("command: containerd-shim", &format!("command: {HOSTILE}"));
            let collector = format!(
                "collectors: [{{name: lists, state: Failed, message: {HOSTILE}}}], missingCapabilities: [{HOSTILE}], version"
            );
            saved.replace("probe: {version", &format!("probe: {{{collector}"))
        });
        assert!(text.matches("forged").count() >= 5, "{text}");
        assert!(!text.contains(|c: char| nrh_core::text::is_obeyed(c) && c != '\n'), "{text:?}");
        let ours = text.lines().filter(|line| line.starts_with("node worker-1")).collect::<Vec<_>>();
        assert_eq!(ours, ["node worker-1: Unhealthy"], "{text}");
    }

    #[test]
    fn an_enforcing_policy_is_said_to_act() {
        let enforcing = |saved: String| saved.replace("mode: DryRun", "mode: Enforce");
        let text = explained(enforcing);
        assert!(text.contains("starts now: ReleaseHungProcess"), "{text}");
        // The controller knows more: here that its admission policies are missing.
        let text = explained(|saved| {
            let blocked = "remediation: {blocked: ['AdmissionNotEnforced: nrh-jobs is missing']}, conditions: []";
            enforcing(saved).replace("conditions: []", &blocked.replace("}, ", "}\n    "))
        });
        assert!(text.contains("would start now, by these objects: ReleaseHungProcess"), "{text}");
        assert!(
            text.contains("what the controller last wrote:\n    AdmissionNotEnforced: nrh-jobs is missing"),
            "{text}"
        );
    }

    #[test]
    fn a_suspended_node_says_who_said_no() {
        let text = explained(|saved| {
            saved
                .replace("suspend: false", "suspend: true\n    reason: disk swap\n    suspendedBy: ann")
                .replace("mode: DryRun", "mode: Enforce")
        });
        assert!(text.contains("(spec.suspend of its NodeRuntimeHealth): by ann: disk swap"), "{text}");
        assert!(
            text.contains(
                "\n  remediation of node worker-1 is suspended (spec.suspend of its NodeRuntimeHealth): by ann"
            ),
            "{text}"
        );
        // An object from before the name was required.
        let before = explained(|saved| saved.replace("suspend: false", "suspend: true\n    reason: disk swap"));
        assert!(before.contains("(spec.suspend of its NodeRuntimeHealth): in nobody's name: disk swap"), "{before}");
        let bare = explained(|saved| saved.replace("suspend: false", "suspend: true"));
        assert!(bare.contains("(spec.suspend of its NodeRuntimeHealth): in nobody's name\n"), "{bare}");
    }

    #[test]
    fn a_cluster_that_is_suspended_is_told_also_of_a_node_that_is_well() {
        let config = "- {apiVersion: runtimehealth.io/v1alpha1, kind: RemediationConfig, metadata: {name: cluster}, \
                      spec: {suspend: true, suspendedBy: ann, reason: move}}\n";
        let text = explained(|saved| format!("{}\n{config}", without_faults(&saved, "").trim_end()));
        assert!(text.contains("suspended in the whole cluster, by ann: move (`nrh resume --all`"), "{text}");
        assert!(text.contains("  no fault"), "{text}");
    }

    #[test]
    fn a_suspicion_is_blocked_with_its_reason() {
        let text = explained(|saved| saved.replace("state: Confirmed", "state: Suspected"));
        assert!(text.contains("blocked (NotConfirmed): it is not confirmed yet"), "{text}");
    }

    #[test]
    fn a_broken_policy_is_named_with_its_error() {
        let text = explained(|saved| saved.replace("signal: SIGCONT", "signal: Hup"));
        assert!(text.contains("policy default cannot be used"), "{text}");
        assert!(text.contains("blocked (NoPolicy): no policy selects node worker-1"), "{text}");
        assert!(text.contains("not considered, since not valid: default\n"), "{text}");
    }

    #[test]
    fn an_old_report_is_told_by_what_else_was_saved() {
        let text = explained(|saved| {
            let later = saved.replace("mode: DryRun", "mode: Enforce");
            later.replace(
                r#"status: "True", lastHeartbeatTime: "2026-03-01T03:00:00Z""#,
                r#"status: "True", lastHeartbeatTime: "2026-03-01T08:00:00Z""#,
            )
        });
        assert!(text.contains("last report 5h ago") && !text.contains("starts now: Release"), "{text}");
        let found = text.split("fault ProbeNotReporting").nth(1).unwrap_or_default();
        assert!(found.contains("found by the controller, last report 5h ago\n"), "{text}");
        assert!(!found.contains("present for") && !found.contains("checks in a row"), "{text}");
    }

    #[test]
    fn a_step_that_is_passed_over_is_told_with_the_reason_and_what_follows_it() {
        let text = explained(|saved| {
            let notify = "releaseHungProcess: {signal: SIGCONT}\n      - action: Notify";
            let enforcing =
                saved.replace("mode: DryRun", "mode: Enforce").replace("actionsEnabled: true", "actionsEnabled: false");
            enforcing.replace("releaseHungProcess: {signal: SIGCONT}", notify)
        });
        let (before, after) = text.split_once("  starts now: Notify").unwrap();
        assert!(before.contains("  passed over: ReleaseHungProcess(SIGCONT): "), "{text}");
        assert!(!after.contains("passed over"), "{text}");
    }

    #[test]
    fn a_report_that_is_not_about_the_node_is_said_to_be_unused() {
        let text = explained(|saved| {
            saved.replace("name: worker-1, uid: 0b6c1f0e-1111-4a4a-9d9d-000000000001}]", "name: worker-1, uid: other}]")
        });
        assert!(text.contains("is not about this Node") && !text.contains("no policy has a rule"), "{text}");
        let text = explained(|saved| saved.replace("kind: Node\n", "kind: Other\n"));
        assert!(text.contains("Node worker-1 is not among the objects"), "{text}");
    }

    #[test]
    fn what_the_controller_alone_can_see_is_passed_on() {
        let found = "
    clusterFaults:
    - {id: stuckdaemonsetpod-1, type: StuckDaemonSetPod, severity: Medium, state: Confirmed, subject: {kind: Pod, name: agent},
       message: pod x of DaemonSet agent waits, firstSeen: '2026-03-01T02:58:50Z'}
    remediation: {blocked: ['MinDurationNotReached: rule pod waits']}";
        let text = explained(|saved| without_faults(&saved, found));
        for part in [
            "StuckDaemonSetPod",
            "pod x of DaemonSet agent waits",
            "MinDurationNotReached: rule pod waits",
            "Unhealthy",
        ] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
        assert!(!text.contains("  no fault"), "{text}");
    }

    #[test]
    fn a_probe_that_cannot_check_everywhere_calls_nothing_clean() {
        let unavailable =
            "actionsEnabled: false, missingCapabilities: [the kernel's log cannot be opened], collectors: [
      {name: port, state: Unavailable, message: no right}, {name: lists, state: Ok, ageSeconds: 3, message: ''}]}";
        let with = |saved: String| without_faults(&saved, "").replace("actionsEnabled: true}", unavailable);
        let text = explained(with);
        for part in [
            "actions are disabled",
            "missing: the kernel's log cannot be opened",
            "collector port       Unavailable  checked never     no right",
            "no fault, as far as the probe can check",
        ] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
        assert!(!text.contains("collector lists"), "{text}");
    }

    #[test]
    fn a_report_that_cannot_be_read_is_named_and_holds_the_node() {
        let text = explained(|saved| {
            let broken = saved.replace("severity: High", "severity: Dreadful");
            broken.replace("mode: DryRun", "mode: Enforce")
        });
        assert!(text.contains("NodeRuntimeHealth worker-1 cannot be used: ") && text.contains("Dreadful"), "{text}");
        assert!(text.contains("\n  NodeRuntimeHealth worker-1 cannot be read (status.faults[0]"), "{text}");
        for absent in ["starts now: ", "suspend", "no fault"] {
            assert!(!text.contains(absent), "{absent:?} is in:\n{text}");
        }
        // The object of another node does not affect this one.
        let other = "- {apiVersion: runtimehealth.io/v1alpha1, kind: NodeRuntimeHealth, metadata: {name: w2}, spec: 7, status: {}}\n";
        let text = explained(|saved| format!("{}\n{other}", saved.trim_end()).replace("mode: DryRun", "mode: Enforce"));
        assert!(
            text.contains("NodeRuntimeHealth w2 cannot be used: ") && text.contains("starts now: Release"),
            "{text}"
        );
    }

    #[test]
    fn a_node_that_flaps_is_told_by_what_the_controller_has_written() {
        let with = |flap: &str| {
            let flap = format!("    conditions: []\n    flapping: {flap}\n");
            explained(|saved| saved.replacen("    conditions: []\n", &flap, 1))
        };
        let record = "{readyTransitions: 20, recurrences: 0, trackedSince: '2026-03-01T02:00:00Z', lastChangeAt: '2026-03-01T02:58:00Z', \
            penalty: 9000, flappingSince: '2026-03-01T02:10:00Z', ready: 'True', readySince: '2026-02-01T03:00:00Z'}";
        let text = with(record);
        for part in [
            "the node flaps: Ready changed 20 times in 58m",
            "fault NodeFlapping (Confirmed, medium)",
            "MinDurationNotReached",
        ] {
            assert!(text.to_lowercase().contains(&part.to_lowercase()), "{part:?} is missing in:\n{text}");
        }
        for bad in [
            "often",
            "{readyTransitions: -1}",
            &record.replace("9000", "99000"),
            &record.replace("2026-03-01T02:58", "2031-03-01T02:58"),
        ] {
            let text = with(bad);
            let expected = "status.flapping of NodeRuntimeHealth worker-1 is not used: expected ";
            assert!(text.contains(expected) && text.contains("HungContainer"), "{bad}: {text}");
            assert!(!text.contains("the node flaps"), "{text}");
        }
    }

    #[test]
    fn of_a_node_that_nobody_has_checked_nothing_is_called_well() {
        let text = explained(|saved| saved.replace("kind: NodeRuntimeHealth", "kind: Other"));
        assert!(text.contains("has never reported") && text.contains("no fault is known\n"), "{text}");
        let objects = Objects::parse(&SAVED.replace("kind: NodeRuntimeHealth", "kind: Other")).unwrap();
        assert_eq!(among(&objects.node_names()), "1: worker-1");
    }

    #[test]
    fn an_unknown_node_is_refused() {
        let objects = Objects::parse(SAVED).unwrap();
        let error = explain(&objects, "worker-9", Timestamp::UNIX_EPOCH, |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("worker-9"), "{error}");
        assert!(Objects::parse("kind: Pod\napiVersion: v1").is_err());
    }
}
