//! The definitions of our kinds: written from the types, bounded everywhere, explained everywhere, and taken by a
//! real API server, which refuses what makes no sense with a sentence.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use nrh::api::{RemediationPolicy, convert, crds};
use nrh::core::fault::FaultType;
use nrh::core::node_condition::NodeCondition;
use nrh::core::policy::ActionType;
use nrh::core::reason::ConditionReason;
use serde_json::{Value, json};

use crate::page::root;

/// All YAML files of a folder, in order.
pub(crate) fn yaml_files(folder: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(root().join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension().is_some_and(|e| e == "yaml") && path.file_stem().is_some_and(|s| s != "kustomization")
        })
        .collect();
    found.sort();
    found
}

#[test]
fn the_files_are_what_the_code_says() {
    let mut expected: Vec<PathBuf> = Vec::new();
    for (file, crd) in crds::all() {
        let path = root().join("crds").join(file);
        let written = fs::read_to_string(&path).unwrap_or_default();
        assert!(written == crds::yaml(&crd).unwrap(), "{} differs from the types: run `make crds`", path.display());
        expected.push(path);
    }
    expected.sort();
    assert_eq!(yaml_files("crds"), expected, "a definition that no type stands behind");
}

#[test]
fn a_folder_for_what_is_generated_is_made() {
    let folder = tempfile::tempdir().unwrap();
    for (what, file) in [("crds", "remediationpolicies.yaml"), ("man", "nrh.1")] {
        let out = folder.path().join("new").join(what);
        let program =
            Command::new(env!("CARGO_BIN_EXE_nrh")).args(["generate", what, "--out"]).arg(&out).output().unwrap();
        assert!(program.status.success() && out.join(file).is_file(), "{program:?}");
    }
}

/// Calls `check` for every schema of every definition, with its path.
pub(crate) fn walk(check: &mut dyn FnMut(&str, &Value)) {
    fn down(path: &str, schema: &Value, check: &mut dyn FnMut(&str, &Value)) {
        check(path, schema);
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            down(&format!("{path}.{name}"), property, check);
        }
        if schema["items"].is_object() {
            down(&format!("{path}[]"), &schema["items"], check);
        }
        if schema["additionalProperties"].is_object() {
            down(&format!("{path}{{}}"), &schema["additionalProperties"], check);
        }
    }
    for (file, crd) in crds::all() {
        for version in &crd.spec.versions {
            let schema = serde_json::to_value(version.schema.as_ref().unwrap()).unwrap();
            down(file.trim_end_matches(".yaml"), &schema["openAPIV3Schema"], check);
        }
    }
}

#[test]
fn everything_has_a_bound() {
    let mut wrong = Vec::new();
    walk(&mut |path, schema| {
        let bounded = match schema["type"].as_str() {
            // The server checks the form of a date, and that bounds it.
            Some("string") => {
                schema["maxLength"].is_number() || schema["enum"].is_array() || schema["format"] == "date-time"
            }
            Some("array") => schema["maxItems"].is_number(),
            Some("object") => schema["additionalProperties"].is_null() || schema["maxProperties"].is_number(),
            Some("integer") => schema["minimum"].is_number() || path.ends_with("Generation"),
            Some("boolean") => true,
            None => schema["x-kubernetes-int-or-string"] == true && schema["maxLength"].is_number(),
            Some(_) => false,
        };
        if !bounded {
            wrong.push(path.to_owned());
        }
    });
    assert!(wrong.is_empty(), "a hostile value of any size would fit here: {wrong:#?}");
}

#[test]
fn every_field_is_explained() {
    let mut wrong = Vec::new();
    let mut fields = 0;
    walk(&mut |path, schema| {
        let field = path.contains('.') && !path.ends_with(']') && !path.ends_with('}');
        let words = schema["description"].as_str().unwrap_or_default().split_whitespace().count();
        fields += usize::from(field);
        if field && words < 3 {
            wrong.push(path.to_owned());
        }
        let text = schema["description"].as_str().unwrap_or_default().to_lowercase();
        if field && path.ends_with("Seconds") && !text.contains("second") {
            wrong.push(format!("{path}: no unit"));
        }
    });
    assert!(fields > 100, "expected all fields of three kinds, found {fields}");
    assert!(wrong.is_empty(), "`kubectl explain` has no answer for: {wrong:#?}");
}

/// A name of a node may be long; all beside it has to leave room for it in 120 columns.
#[test]
fn what_kubectl_prints_of_each_kind_fits_a_terminal() {
    const NAME: usize = 32;
    for (file, crd) in crds::all() {
        let version = serde_json::to_value(crd).unwrap()["spec"]["versions"][0].clone();
        let columns = version["additionalPrinterColumns"].as_array().unwrap();
        let always = columns.iter().filter(|column| column["priority"].as_i64().unwrap_or_default() == 0);
        let width = |column: &Value| {
            let (name, path) = (column["name"].as_str().unwrap(), column["jsonPath"].as_str().unwrap());
            let value = match column["type"].as_str().unwrap() {
                "string" => widest(&version["schema"]["openAPIV3Schema"], path),
                // A date is shown as an age.
                _ => 5,
            };
            value.max(name.len()) + 3
        };
        let all: Vec<usize> = always.map(width).collect();
        let total = NAME + 3 + all.iter().sum::<usize>();
        assert!(total <= 123, "{file}: {total} columns: {all:?}");
    }
}

fn widest(schema: &Value, path: &str) -> usize {
    // The status of a condition, or its reason.
    if path.contains("[?(") {
        // The longest reason that `SelfHealing` has.
        let reason = ConditionReason::ManualActionRequired.as_str().len();
        return if path.ends_with(".reason") { reason } else { "Unknown".len() };
    }
    let mut at = schema;
    for part in path.trim_start_matches('.').split('.') {
        let name = part.trim_end_matches("[0]");
        at = &at["properties"][name];
        if name != part {
            at = &at["items"];
        }
    }
    let words = at["enum"].as_array().into_iter().flatten().filter_map(|word| word.as_str().map(str::len));
    let bound = || at["maxLength"].as_u64().and_then(|bound| usize::try_from(bound).ok());
    // A name that stands in the first column as well.
    if path == ".spec.nodeName" {
        return 0;
    }
    words.max().or_else(bound).unwrap_or_else(|| panic!("{path}: {at} has no bound"))
}

#[test]
fn nothing_that_the_server_warns_about() {
    let known = ["date-time", "int32", "int64"];
    walk(&mut |path, schema| {
        let format = schema["format"].as_str();
        assert!(format.is_none_or(|format| known.contains(&format)), "{path}: unknown format {format:?}");
        // A null would count as present in CEL and hide a missing value.
        assert!(schema["nullable"].is_null(), "{path}");
    });
}

fn policy(text: &str) -> RemediationPolicy {
    serde_saphyr::from_str(text).unwrap()
}

#[test]
fn every_policy_in_the_repository_is_valid() {
    let mut seen = 0;
    let samples = ["policy", "restart", "hand-off", "drain", "reboot", "mark-for-reboot", "taint"];
    let samples = samples.map(|name| root().join(format!("config/samples/{name}.yaml")));
    for path in ["config/policies", "config/policies/dry-run"].into_iter().flat_map(yaml_files).chain(samples) {
        let read = convert::policy(&policy(&fs::read_to_string(&path).unwrap()));
        assert!(read.is_ok(), "{}: {read:?}", path.display());
        seen += 1;
    }
    assert!(seen >= 6);
}

/// Told in NVIDIA/NVSentinel #1543.
#[test]
fn a_bare_policy_has_finite_limits() {
    let bare = policy(
        "{apiVersion: runtimehealth.io/v1alpha1, kind: RemediationPolicy, metadata: {name: bare},
          spec: {rules: [{name: r, match: {faults: [LeakedShim]}, steps: [{action: CleanupOrphans}]}]}}",
    );
    let read = convert::policy(&bare).unwrap();
    assert_eq!(read.limits.max_in_flight, nrh::core::policy::Amount::Count(1));
    assert_eq!(read.limits.max_unhealthy, nrh::core::policy::Amount::Percent(30));
    assert_eq!(read.limits.storm, nrh::core::policy::StormLimit::default());
    assert_eq!(read.mode, nrh::core::policy::Mode::DryRun);
}

/// Policies that the API server refuses, each with what the controller says of it where it slips past.
#[test]
fn what_the_server_refuses_the_controller_refuses_too() {
    let mut seen = 0;
    let texts =
        yaml_files("tests/cluster/definitions/refused").into_iter().map(|path| fs::read_to_string(path).unwrap());
    for row in texts.flat_map(|text| serde_saphyr::from_str::<Vec<Value>>(&text).unwrap()) {
        let sentence = row["controller"].as_str();
        let policy = json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "RemediationPolicy",
            "metadata": {"name": row["name"]}, "spec": row["spec"]});
        // A value that is none of an enumeration is not even read.
        let read =
            serde_saphyr::from_str::<RemediationPolicy>(&policy.to_string()).map(|policy| convert::policy(&policy));
        match (read, sentence) {
            (Ok(Err(errors)), Some(sentence)) if errors.0.iter().any(|error| error.contains(sentence)) => seen += 1,
            (Err(_) | Ok(Ok(_)), None) => {}
            (read, _) => panic!("{}: expected {sentence:?}, found {read:?}", row["name"]),
        }
    }
    assert!(seen >= 50, "{seen}");
}

#[test]
fn the_sample_of_a_drain_empties_no_node_whose_pods_would_never_end() {
    let text = fs::read_to_string(root().join("config/samples/drain.yaml")).unwrap();
    let read = convert::policy(&policy(&text)).unwrap();
    let with = read.rules[0].steps[2].action.params().drain.unwrap();
    assert_eq!(with.excluded_namespaces, ["monitoring"]);
    assert!(!with.force && !with.delete_empty_dir_data && with.grace_period_seconds.is_none());
    let never = |kind: &FaultType| kind.spec().runtime_unresponsive || kind.as_str().starts_with("Kubelet");
    assert!(!with.ignore_runtime_hang && !read.rules[0].faults.iter().any(never), "{:?}", read.rules[0].faults);
}

#[test]
fn a_soft_taint_may_stand_before_the_deletion_of_a_pod_and_two_of_one_effect_beside_each_other() {
    let with = |steps: &str| {
        let text = format!(
            "{{apiVersion: runtimehealth.io/v1alpha1, kind: RemediationPolicy, metadata: {{name: p}},
              spec: {{rules: [{{name: r, match: {{faults: [StuckDaemonSetPod]}}, steps: [{steps}, {{action: Notify}}]}}]}}}}"
        );
        convert::policy(&policy(&text)).map(|_| ()).map_err(|errors| errors.0.join("; "))
    };
    let (soft, hard) = ("{action: Taint}", "{action: Taint, taint: {effect: NoSchedule}}");
    let delete = "{action: DeletePod}";
    assert_eq!(with(&format!("{soft}, {delete}")), Ok(()), "by default it is PreferNoSchedule");
    assert_eq!(with(&format!("{hard}, {hard}")), Ok(()));
}

#[test]
fn the_sample_of_a_reboot_waits_for_its_drain_unless_the_policy_says_otherwise() {
    let text = fs::read_to_string(root().join("config/samples/reboot.yaml")).unwrap();
    // Its faults keep a node from ending pods: they are not waited for, and what a budget keeps there keeps the machine up.
    let read = convert::policy(&policy(&text)).unwrap();
    let (drain, reboot) = (&read.rules[0].steps[3].action, &read.rules[0].steps[4].action);
    assert!(drain.params().drain.unwrap().ignore_runtime_hang && reboot.params().reboot.unwrap().require_drain);
    let mut without = policy(&text);
    without.spec.rules[0].steps.remove(3);
    without.spec.rules[0].steps[3].reboot = Some(nrh::core::action::Reboot { require_drain: false });
    convert::policy(&without).unwrap();
}

#[test]
fn a_mark_without_a_file_is_the_usual_one() {
    use nrh::core::action::MarkForReboot;
    let text = fs::read_to_string(root().join("config/samples/mark-for-reboot.yaml")).unwrap();
    let read = convert::policy(&policy(&text)).unwrap();
    assert_eq!(read.rules[0].steps[1].action.params().mark_for_reboot, Some(MarkForReboot::default()));
    // As if it named no file.
    let mut usual = policy(&text);
    usual.spec.rules[0].steps[1].mark_for_reboot = None;
    assert_eq!(convert::policy(&usual).unwrap(), read);
}

fn matching(matches: &str) -> RemediationPolicy {
    policy(&format!(
        "{{apiVersion: runtimehealth.io/v1alpha1, kind: RemediationPolicy, metadata: {{name: m}},
          spec: {{rules: [{{name: r, match: {matches}, steps: [{{action: Notify}}]}}]}}}}"
    ))
}

#[test]
fn conditions_of_nodes_may_stand_beside_faults_or_instead_of_them() {
    for (matches, count) in [
        ("{nodeConditions: [{type: KernelDeadlock, status: 'True'}]}", 1),
        ("{faults: [], nodeConditions: [{type: A, status: 'False', reasons: [B, C]}, {type: A, status: Unknown}]}", 2),
        ("{faults: [DiskFull], minSeverity: Medium, nodeConditions: [{type: A, status: 'True'}]}", 1),
    ] {
        let read = convert::policy(&matching(matches)).unwrap();
        assert_eq!(read.rules[0].conditions.len(), count, "{matches}");
    }
    // What nobody asks for is not written, so that a controller of before can read the policy.
    let bare = serde_json::to_value(matching("{faults: [DiskFull]}")).unwrap()["spec"]["rules"][0].clone();
    assert_eq!(bare["match"], json!({"faults": ["DiskFull"], "minSeverity": "Low"}));
    assert!(bare["steps"][0].get("handOff").is_none() && bare["steps"][0].get("drain").is_none());
}

#[test]
fn pods_and_nodes_may_be_asked_for() {
    let all = "{faults: [HungContainer], podSelector: {matchLabels: {app: db}, matchExpressions: [{key: t, operator: Exists}]},
        ownerKinds: [StatefulSet, None], runtimes: [{name: containerd, versions: '>=1.7.0 <1.7.24'}, {name: cri-o}],
        kubeletVersions: ['>=1.29 <1.31', '=1.32.1']}";
    let found = convert::policy(&matching(all)).unwrap().rules[0].matching.clone();
    assert_eq!((found.pods.unwrap().0.len(), found.owner_kinds.len()), (2, 2));
    assert_eq!((found.runtimes.len(), found.kubelets.len()), (2, 2));
    assert!(found.runtimes[0].versions.is_some() && found.runtimes[1].versions.is_none());
    // What the API server lets be is read, and what it refuses is refused here as well.
    let any = "{faults: [HungContainer], podSelector: {}}";
    let pods = convert::policy(&matching(any)).unwrap().rules[0].matching.pods.clone();
    assert_eq!(pods.map(|pods| pods.0.len()), Some(0));
}

#[test]
fn a_match_that_can_never_be_or_would_be_a_loop_is_refused() {
    let long = "{nodeConditions: [{type: TYPE, status: 'True'}]}".replace("TYPE", &"x".repeat(317));
    for (matches, sentence) in [
        ("{nodeConditions: [{type: '', status: 'True'}]}", "expected a type of 1 to 316 bytes"),
        (&long, "expected a type of 1 to 316 bytes"),
        ("{nodeConditions: [{type: A, status: 'True', reasons: ['']}]}", "expected 1 to 256 bytes each, found 0"),
        ("{namespaces: [a], nodeConditions: [{type: A, status: 'True'}]}", "about no pod"),
        ("{ownerKinds: [Job], nodeConditions: [{type: A, status: 'True'}]}", "expected a rule without them"),
        (
            "{faults: [HungContainer], ownerKinds: [Job, daemonset]}",
            "ownerKinds[1]: expected the kind of an owner such as DaemonSet",
        ),
        ("{faults: [HungContainer], ownerKinds: ['']}", "expected the kind of an owner such as DaemonSet"),
        ("{faults: [HungContainer], ownerKinds: [CronJob]}", "write Job"),
        (
            "{faults: [HungContainer, RuntimeListHung, DiskFull], ownerKinds: [Job]}",
            "rules[r].match.ownerKinds: expected faults that can be about a pod, found RuntimeListHung, DiskFull, which never are",
        ),
        (
            "{faults: [DiskFull], runtimes: [{name: cri-o}, {name: containerd, versions: '1.7'}]}",
            "rules[r].match.runtimes[1].versions: expected a range such as `>=1.7.0 <1.7.24`, found \"1.7\": a version needs a comparison, write `=1.7`",
        ),
        (
            "{faults: [DiskFull], runtimes: [{name: 'containerd://1.7'}]}",
            "rules[r].match.runtimes[0].name: expected the name before the :// in status.nodeInfo.containerRuntimeVersion of the Node, such as containerd, cri-o or docker, found \"containerd://1.7\": write \"containerd\"",
        ),
        ("{faults: [DiskFull], runtimes: [{name: Containerd}]}", "found \"Containerd\": write \"containerd\""),
        ("{faults: [DiskFull], runtimes: [{name: ''}]}", "expected the name before"),
        (
            "{faults: [DiskFull], kubeletVersions: ['>=1', '> 1.29']}",
            "kubeletVersions[1]: expected a range such as `>=1.7.0 <1.7.24`, found \"> 1.29\": no space between",
        ),
    ] {
        let errors = convert::policy(&matching(matches)).unwrap_err().0;
        assert!(errors.iter().any(|error| error.contains(sentence)), "{matches}: {errors:#?}");
    }
    let definition = fs::read_to_string(root().join("crds/remediationpolicies.yaml")).unwrap();
    for own in NodeCondition::ALL.map(NodeCondition::as_str) {
        let matches = format!("{{nodeConditions: [{{type: {own}, status: 'True'}}]}}");
        let errors = convert::policy(&matching(&matches)).unwrap_err().0;
        assert!(errors[0].contains(&format!("{own} is written on the Node by this controller itself")), "{errors:?}");
        assert!(definition.contains(&format!("'{own}'")), "{own}: the API server lets it be");
    }
}

#[test]
fn a_step_that_no_signal_of_another_tool_ever_leads_to_is_refused() {
    let read = |matches: &str, action: ActionType| {
        let mut policy = matching(matches);
        policy.spec.rules[0].steps.insert(0, serde_json::from_value(json!({"action": action})).unwrap());
        let stored = convert::policy(&policy).err().map(|bad| bad.0.join("; ")).unwrap_or_default();
        assert!(!stored.contains("nodeConditions alone"), "one that is stored is read as before");
        convert::new_policy(&policy).err().map(|bad| bad.0.join("; ")).unwrap_or_default()
    };
    let sentence = |action: ActionType| {
        format!(
            "rules[r].steps: for nodeConditions alone expected only Cordon, Taint, Drain, HandOff and Notify, found {}",
            action.as_str()
        )
    };
    let definition = fs::read_to_string(root().join("crds/remediationpolicies.yaml")).unwrap();
    let flat = definition.split_whitespace().collect::<Vec<_>>().join(" ");
    let rule = flat.split("self.steps.all(s, s.action in [").nth(1).and_then(|rest| rest.split(']').next()).unwrap();
    let mut refused = 0;
    for action in ActionType::ALL {
        let alone = read("{nodeConditions: [{type: A, status: 'True'}]}", action);
        let is_refused = alone.contains(&sentence(action));
        assert_eq!(is_refused, !action.traits().for_node_conditions, "{action:?}: {alone}");
        assert_eq!(is_refused, !rule.contains(&format!("'{}'", action.as_str())), "{action:?}: the API server: {rule}");
        let beside = read("{faults: [KubeletDown], nodeConditions: [{type: A, status: 'True'}]}", action);
        assert!(!beside.contains(&sentence(action)), "it may be for the fault: {beside}");
        refused += u32::from(is_refused);
    }
    assert_eq!(refused, 8);
}

#[test]
fn the_api_server_knows_which_faults_can_be_about_a_pod() {
    let definition = fs::read_to_string(root().join("crds/remediationpolicies.yaml")).unwrap();
    let flat = definition.split_whitespace().collect::<Vec<_>>().join(" ");
    let can = FaultType::ALL.into_iter().filter(|kind| kind.can_name_a_pod()).map(FaultType::as_str);
    let mut all: Vec<&str> = can.collect();
    let rule = flat.split("self.faults.all(f, f in [").nth(1).and_then(|rest| rest.split(']').next()).unwrap();
    let mut listed: Vec<&str> = rule.split(',').map(|one| one.trim().trim_matches('\'')).collect();
    listed.retain(|one| !["NodeCondition", "Pods"].contains(one));
    listed.sort_unstable();
    all.sort_unstable();
    assert_eq!(listed, all);
}
