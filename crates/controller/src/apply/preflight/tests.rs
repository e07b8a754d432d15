use serde_json::{Value, json};

use super::*;

/// Objects that all say yes, with changes on top.
pub(super) fn read(change: impl Fn(&mut Value)) -> Read {
    let mut all = json!({
        "node": {"metadata": {"name": "w1", "uid": "n1"}},
        "pod": null,
        "suspended": null,
        "report": {"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRuntimeHealth",
            "metadata": {"name": "w1", "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "w1", "uid": "n1"}]},
            "spec": {},
            "status": {"faults": [{"id": "f1", "type": "HungContainer", "severity": "High", "state": "Confirmed",
                "message": "m", "firstSeen": "2025-01-01T00:00:00Z", "subject": {"kind": "Container"}}]}},
        "policy": {"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy", "metadata": {"name": "p"},
            "spec": {"mode": "Enforce", "rules": [{"name": "r", "match": {"faults": ["HungContainer"]}, "steps": [
                {"action": "ReleaseHungProcess", "releaseHungProcess": {"signal": "SIGKILL"}}]}]}},
        "remediation": {"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRemediation", "metadata": {"name": "e"},
            "spec": {"nodeName": "w1", "nodeUid": "n1", "policy": "p", "mode": "Enforce"},
            "status": {"phase": "Running", "message": "", "startedAt": "2025-01-01T00:00:00Z",
                "faults": [{"id": "f1", "type": "HungContainer", "subject": {"kind": "Container"}, "rule": "r", "stepIndex": 0, "state": "Open"}],
                "attempts": [{"operationId": "op", "faultId": "f1", "action": "ReleaseHungProcess", "releaseHungProcess": {"signal": "SIGKILL"}, "stepIndex": 0, "executor": "Job",
                    "state": "Scheduled", "scheduledAt": "2025-01-01T00:00:00Z"}]}}
    });
    change(&mut all);
    let mut part = |name: &str| all.get_mut(name).map(Value::take).unwrap();
    Read {
        command: None,
        node: serde_json::from_value(part("node")).unwrap(),
        report: serde_json::from_value(part("report")).unwrap(),
        policy: serde_json::from_value(part("policy")).unwrap(),
        is_policy_new: true,
        suspended: serde_json::from_value(part("suspended")).unwrap(),
        remediation: serde_json::from_value(part("remediation")).unwrap(),
        pod: serde_json::from_value::<Option<Pod>>(part("pod"))
            .unwrap()
            .map(|pod| LivePod::There(pods::pod_ref(&pod), Box::new(pod))),
    }
}

fn judged(change: impl Fn(&mut Value)) -> Result<Live, String> {
    judge(read(change), "op", "n1", "p", &[], "2025-01-01T00:05:00Z".parse().unwrap())
}

fn verdict(change: impl Fn(&mut Value)) -> Result<(), String> {
    judged(change).map(|_| ())
}

#[test]
fn a_node_that_the_policy_does_not_select_any_more_is_left_alone() {
    let with = |labels: Value| {
        verdict(move |v| {
            v["policy"]["spec"]["nodeSelector"] = json!({"matchLabels": {"pool": "healed"}});
            v["node"]["metadata"]["labels"] = labels.clone();
        })
    };
    assert_eq!(with(json!({"pool": "healed"})), Ok(()));
    for labels in [json!({"pool": "other"}), json!({})] {
        let no = "RemediationPolicy p does not select Node w1 any more";
        assert_eq!(with(labels), Err(no.to_owned()));
    }
}

#[test]
fn a_window_keeps_what_has_not_begun_from_beginning() {
    // It is five past midnight.
    let with = |kind: &'static str, schedule: &'static str, action: &'static str, state: &'static str| {
        verdict(move |v| {
            v["policy"]["spec"]["windows"] = json!([{"type": kind, "schedule": schedule, "duration": "1h"}]);
            v["policy"]["spec"]["rules"][0]["steps"] =
                json!([{"action": "Cordon"}, {"action": "Drain"}, {"action": "Notify"}]);
            let step_index = ["Cordon", "Drain", "Notify"].iter().position(|one| *one == action).unwrap();
            let drain = if action == "Drain" { json!({}) } else { Value::Null };
            let step = &mut v["remediation"]["status"]["attempts"][0];
            (step["action"], step["releaseHungProcess"], step["stepIndex"]) =
                (json!(action), Value::Null, json!(step_index));
            (step["state"], step["drain"]) = (json!(state), drain);
        })
    };
    let (night, morning) = ("0 0 * * *", "0 5 * * *");
    let no = "RemediationPolicy p: Cordon is not done while the Deny window `0 0 * * *` (UTC) is open until \
              2025-01-01T01:00:00Z";
    assert_eq!(with("Deny", night, "Cordon", "Scheduled"), Err(no.to_owned()));
    assert_eq!(with("Deny", morning, "Cordon", "Scheduled"), Ok(()));
    assert_eq!(with("Allow", night, "Cordon", "Scheduled"), Ok(()));
    let found = with("Allow", morning, "Cordon", "Scheduled").unwrap_err();
    assert!(found.contains("Cordon is only done in an Allow window, and none is open"), "{found}");
    assert!(with("Deny", night, "Drain", "Scheduled").unwrap_err().contains("Drain is not done"));
    assert_eq!(with("Deny", night, "Drain", "Started"), Ok(()), "what has begun goes on");
    assert_eq!(with("Deny", night, "Notify", "Scheduled"), Ok(()), "people are told at any time");
}

#[test]
fn a_step_that_was_made_a_dry_run_is_not_taken() {
    let with = |key: &'static str, value: Value| {
        verdict(move |v| v["policy"]["spec"]["rules"][0]["steps"][0][key] = value.clone())
    };
    assert_eq!(with("mode", json!("Enforce")), Ok(()));
    let of = "ReleaseHungProcess(SIGKILL) of RemediationPolicy p is a dry run now";
    assert_eq!(with("mode", json!("DryRun")), Err(of.to_owned()));
    // Another step in its place is another step.
    let other = "RemediationPolicy p does not name ReleaseHungProcess(SIGKILL) there any more";
    assert_eq!(with("releaseHungProcess", json!({"signal": "SIGCONT"})), Err(other.to_owned()));
    assert_eq!(verdict(|v| v["policy"]["spec"]["rules"] = json!([])), Err(other.to_owned()));
}

#[test]
fn a_hand_off_to_another_remediator_is_another_step() {
    let to = |name: &str| json!({"remediationTemplate": {"apiVersion": "r.example/v1", "kind": "FixTemplate", "name": name, "namespace": "m"}});
    let with = |name: &'static str| {
        verdict(move |v| {
            let step = &mut v["remediation"]["status"]["attempts"][0];
            (step["action"], step["releaseHungProcess"], step["handOff"]) =
                (json!("HandOff"), Value::Null, to("gentle"));
            v["policy"]["spec"]["rules"][0]["steps"][0] = json!({"action": "HandOff", "handOff": to(name)});
        })
    };
    assert_eq!(with("gentle"), Ok(()));
    assert_eq!(with("harsh"), Err("RemediationPolicy p does not name HandOff(Fix) there any more".to_owned()));
}

#[test]
fn a_taint_with_another_effect_is_another_step() {
    let with = |now: Value| {
        verdict(move |v| {
            let step = &mut v["remediation"]["status"]["attempts"][0];
            (step["action"], step["releaseHungProcess"], step["taint"]) =
                (json!("Taint"), Value::Null, json!({"effect": "NoSchedule"}));
            v["policy"]["spec"]["rules"][0]["steps"] =
                json!([{"action": "Taint", "taint": now.clone()}, {"action": "Notify"}]);
        })
    };
    assert_eq!(with(json!({"effect": "NoSchedule"})), Ok(()));
    let other = "RemediationPolicy p does not name Taint(NoSchedule) there any more".to_owned();
    assert_eq!(with(json!({"effect": "PreferNoSchedule"})), Err(other.clone()));
    assert_eq!(with(json!({})), Err(other), "by default it is PreferNoSchedule");
}

#[test]
fn no_pod_is_deleted_that_would_have_no_successor() {
    let with = |taint: Value| {
        verdict(move |v| {
            v["node"]["spec"] = json!({"taints": [taint.clone()]});
            let status = &mut v["remediation"]["status"];
            (status["attempts"][0]["action"], status["attempts"][0]["releaseHungProcess"]) =
                (json!("DeletePod"), Value::Null);
            status["faults"][0]["type"] = json!("StuckDaemonSetPod");
            v["policy"]["spec"]["rules"][0] = json!({"name": "r", "match": {"faults": ["StuckDaemonSetPod"]},
                "steps": [{"action": "DeletePod"}]});
        })
    };
    let ours = |effect: &str| json!({"key": "runtimehealth.io/unhealthy", "effect": effect});
    assert_eq!(with(ours("PreferNoSchedule")), Ok(()));
    assert_eq!(with(json!({"key": "dedicated", "value": "gpu", "effect": "NoSchedule"})), Ok(()), "not our key");
    let block =
        "DeletePod: its pod would have no successor under the node's taint runtimehealth.io/unhealthy:NoSchedule";
    assert_eq!(with(ours("NoSchedule")), Err(block.to_owned()));
}

#[test]
fn what_a_person_has_cancelled_meanwhile_is_not_done() {
    let cancelled = verdict(|v| v["remediation"]["spec"]["cancel"] = json!({"cancelledBy": "ann", "reason": "no"}));
    assert_eq!(cancelled, Err("remediation e was cancelled by ann: no".to_owned()));
}

#[test]
fn the_first_step_of_a_start_by_hand_is_approved_with_it() {
    let with = |by: &'static str| {
        verdict(move |v| {
            v["policy"]["spec"]["rules"][0]["steps"][0]["approval"] = json!("Manual");
            v["remediation"]["spec"]["manual"] =
                json!({"requestedBy": "ann", "fault": "HungContainer", "action": "ReleaseHungProcess"});
            v["remediation"]["status"]["attempts"][0]["approvedBy"] = json!(by);
        })
    };
    assert_eq!(with("ann"), Ok(()));
    assert!(with("bob").unwrap_err().contains("is not approved"));
}

#[test]
fn a_step_that_asks_is_not_taken_without_a_yes_to_it() {
    let with = |operation: Option<&'static str>| {
        verdict(move |v| {
            v["policy"]["spec"]["rules"][0]["steps"][0]["approval"] = json!("Manual");
            if let Some(operation) = operation {
                v["remediation"]["spec"]["approval"] = json!({"approvedBy": "ann", "operationId": operation});
            }
        })
    };
    assert_eq!(with(Some("op")), Ok(()));
    for other in [None, Some("op-2")] {
        assert!(with(other).unwrap_err().contains("is not approved"), "{other:?}");
    }
}

#[test]
fn that_nobody_can_look_keeps_nobody_from_being_told() {
    let tells = |v: &mut Value| {
        v["policy"]["spec"]["rules"][0]["steps"][0] = json!({"action": "Notify"});
        let step = &mut v["remediation"]["status"]["attempts"][0];
        (step["action"], step["releaseHungProcess"]) = (json!("Notify"), Value::Null);
    };
    let live = |change: &dyn Fn(&mut Value)| judged(change).unwrap();
    assert_eq!(fresh(&live(&tells), "op", &ReportArrivals::default(), Instant::now()), Ok(()));
    assert!(fresh(&live(&|_| {}), "op", &ReportArrivals::default(), Instant::now()).is_err());
}

#[test]
fn evidence_that_has_grown_old_since_the_decision_stops_the_act() {
    let live = |look: u64| {
        let of = |v: &mut Value| {
            v["report"]["status"]["faults"][0]["checkAgeSeconds"] = json!(look);
            v["report"]["status"]["probe"] = json!({"version": "1", "mode": "Pod", "bootId": "b", "sequence": 2,
                "heartbeatAt": "2025-01-01T00:00:15Z", "intervalSeconds": 60, "actionsEnabled": true});
        };
        judged(of).unwrap()
    };
    let seconds = Duration::from_secs;
    let start = Instant::now();
    let mut arrivals = ReportArrivals::default();
    let beat = |sequence: u64, at: &str| nrh_api::health::ProbeStatus {
        sequence,
        heartbeat_at: Some(at.parse().unwrap()),
        ..Default::default()
    };
    arrivals.note(&beat(1, "2025-01-01T00:00:00Z"), start, seconds(0));
    let second = start + seconds(15);
    arrivals.note(&beat(2, "2025-01-01T00:00:15Z"), second, seconds(15));
    let verdict = |look: u64, after: u64| fresh(&live(look), "op", &arrivals, second + seconds(after));
    assert_eq!(verdict(5, 40), Ok(()));
    assert!(verdict(5, 41).unwrap_err().contains("older than 45s"));
    assert!(verdict(0, 91).unwrap_err().contains("missed the heartbeat"));
    let never = fresh(&live(0), "op", &ReportArrivals::default(), second);
    assert!(never.unwrap_err().contains("missed"), "nobody knows when a report came that no watch has brought");
}

#[test]
fn a_condition_that_the_node_does_not_show_any_more_is_not_acted_on() {
    let with = |kind: &'static str, status: &'static str, reason: &'static str| {
        verdict(move |v| {
            v["node"]["status"]["conditions"] = json!([{"type": kind, "status": status, "reason": reason}]);
            let asked = json!([{"type": "KernelDeadlock", "status": "True", "reasons": ["DockerHung", "TaskHung"]},
                {"type": "KernelDeadlock", "status": "Unknown"}]);
            v["policy"]["spec"]["rules"][0] = json!({"name": "r", "match": {"nodeConditions": asked}, "steps": [{"action": "Cordon"}, {"action": "Notify"}]});
            v["report"]["status"]["faults"] = json!([]);
            let status = &mut v["remediation"]["status"];
            status["faults"][0]["type"] = json!("NodeCondition");
            status["faults"][0]["subject"] = json!({"kind": "Condition", "name": "KernelDeadlock",
                "condition": {"status": "True", "reason": "DockerHung"}});
            (status["attempts"][0]["action"], status["attempts"][0]["releaseHungProcess"]) =
                (json!("Cordon"), Value::Null);
        })
    };
    assert_eq!(with("KernelDeadlock", "True", "DockerHung"), Ok(()));
    assert_eq!(with("KernelDeadlock", "True", "TaskHung"), Ok(()), "another reason that the rule names");
    assert_eq!(with("KernelDeadlock", "Unknown", "Silent"), Ok(()), "another status that the rule names");
    for (kind, status, reason) in [
        ("KernelDeadlock", "False", "DockerHung"),
        ("KernelDeadlock", "True", "Other"),
        ("ReadonlyFilesystem", "True", "DockerHung"),
    ] {
        let found = with(kind, status, reason).unwrap_err();
        let expected = "NodeCondition (condition KernelDeadlock=True): the Node does not show it any more";
        assert_eq!(found, expected, "{kind} {status} {reason}");
    }
}

/// What the controller finds itself is not in the probe's list: whether it has recovered stands in the objects.
fn own(kind: &'static str, action: &'static str, change: impl Fn(&mut Value)) -> Result<(), String> {
    verdict(move |v| {
        let fault = json!({"kind": "Pod", "name": "d/a", "pod": {"namespace": "d", "name": "a", "uid": "u"}});
        let subject = if kind == "StuckDaemonSetPod" { fault } else { json!({"kind": "Kubelet", "name": "kubelet"}) };
        let deletes = (kind == "StuckDaemonSetPod").then_some("DeletePod");
        let actions: Vec<&str> = ["Cordon"].into_iter().chain(deletes).chain(["Notify"]).collect();
        let steps: Vec<Value> = actions.iter().map(|action| json!({"action": action})).collect();
        v["policy"]["spec"]["rules"] = json!([{"name": "r", "match": {"faults": [kind]}, "steps": steps}]);
        v["report"]["status"]["faults"] = json!([]);
        let status = &mut v["remediation"]["status"];
        (status["faults"][0]["type"], status["faults"][0]["subject"]) = (json!(kind), subject);
        (status["attempts"][0]["action"], status["attempts"][0]["releaseHungProcess"]) = (json!(action), Value::Null);
        status["attempts"][0]["stepIndex"] = json!(actions.iter().position(|one| *one == action));
        change(v);
    })
}

#[test]
fn a_kubelet_that_looks_at_its_pods_again_is_left_alone() {
    let with = |status: &'static str, message: &'static str, action| {
        own("PlegStalled", action, move |v| {
            v["node"]["status"]["conditions"] =
                json!([{"type": "Ready", "status": status, "reason": "KubeletNotReady", "message": message}]);
        })
    };
    let stalled = "PLEG is not healthy: pleg was last seen active 3m1s ago";
    assert_eq!(with("False", stalled, "Cordon"), Ok(()));
    for (status, message) in [("True", ""), ("Unknown", stalled), ("False", "container runtime is down")] {
        let found = with(status, message, "Cordon").unwrap_err();
        let expected = format!("PlegStalled (kubelet kubelet): Ready is {status} by now, and not for its PLEG");
        assert_eq!(found, expected);
        assert_eq!(with(status, message, "Notify"), Ok(()), "people are told what was decided");
    }
}

#[test]
fn a_kubelet_whose_start_is_over_is_left_alone() {
    let with = |written: &'static str| {
        own("KubeletStartBlocked", "Cordon", move |v| {
            v["node"]["status"]["conditions"] = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady",
                "message": "", "lastHeartbeatTime": written}]);
            v["report"]["status"]["kubelet"] = json!({"started": true, "startedAt": "2025-01-01T00:00:00Z"});
        })
    };
    assert_eq!(with("2024-12-31T23:59:00Z"), Ok(()), "it has not written its status since it began");
    let found = with("2025-01-01T00:00:30Z").unwrap_err();
    assert!(found.ends_with("the kubelet's start does not show as unfinished any more"), "{found}");
}

#[test]
fn no_node_is_cordoned_for_a_pod_that_is_well_by_now() {
    let with = |ready: &'static str, action| {
        own("StuckDaemonSetPod", action, move |v| {
            v["pod"] = json!({"metadata": {"namespace": "d", "name": "a", "uid": "u"}, "spec": {"nodeName": "w1", "containers": []},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}});
        })
    };
    assert_eq!(with("False", "Cordon"), Ok(()));
    let found = with("True", "Cordon").unwrap_err();
    assert!(found.ends_with("Pod d/a is Ready by now"), "{found}");
    assert_eq!(with("True", "Notify"), Ok(()));
    assert_eq!(with("True", "DeletePod"), Ok(()), "the act itself refuses, and its step says so");
    assert_eq!(own("StuckDaemonSetPod", "Cordon", |_| {}), Ok(()), "its successor is another pod");
}

#[test]
fn when_nothing_says_no_the_act_goes_on() {
    assert_eq!(verdict(|_| {}), Ok(()));
}

#[test]
fn each_single_no_stops_the_act_and_says_which() {
    type Case = (&'static str, fn(&mut Value), &'static str);
    let cases: [Case; 15] = [
        ("node gone", |v| v["node"] = Value::Null, "Node w1 is gone"),
        ("node replaced", |v| v["node"]["metadata"]["uid"] = json!("n2"), "was replaced"),
        (
            "node leaves",
            |v| v["node"]["metadata"]["deletionTimestamp"] = json!("2025-01-01T00:00:00Z"),
            "being deleted",
        ),
        (
            "excluded",
            |v| v["node"]["metadata"]["labels"] = json!({nrh_api::EXCLUDE_LABEL: ""}),
            "excluded from remediation",
        ),
        ("policy gone", |v| v["policy"] = Value::Null, "RemediationPolicy p is gone"),
        (
            "all suspended",
            |v| v["suspended"] = json!("by ann: upgrade"),
            "RemediationConfig cluster suspends all remediation: by ann: upgrade",
        ),
        ("policy suspended", |v| v["policy"]["spec"]["suspend"] = json!(true), "is suspended or a dry run"),
        ("policy dry", |v| v["policy"]["spec"]["mode"] = json!("DryRun"), "is suspended or a dry run"),
        ("report gone", |v| v["report"] = Value::Null, "NodeRuntimeHealth w1 is gone"),
        ("node suspended", |v| v["report"]["spec"]["suspend"] = json!(true), "suspended"),
        ("other owner", |v| v["report"]["metadata"]["ownerReferences"][0]["uid"] = json!("n0"), "another node"),
        ("clearing", |v| v["report"]["status"]["faults"][0]["state"] = json!("Clearing"), "not confirmed"),
        ("no fault", |v| v["report"]["status"]["faults"] = json!([]), "not confirmed"),
        ("remediation ended", |v| v["remediation"]["status"]["phase"] = json!("Cancelled"), "at an end"),
        ("step ended", |v| v["remediation"]["status"]["attempts"][0]["state"] = json!("Cancelled"), "no open step"),
    ];
    for (name, change, expected) in cases {
        let found = verdict(change).unwrap_err();
        assert!(found.contains(expected), "{name}: {found}");
    }
}
