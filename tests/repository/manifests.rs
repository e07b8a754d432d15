//! What `kubectl apply -k config/default` installs: the least rights, the least powers, nothing by accident.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test ends at the first surprise")]

use std::path::{Path, PathBuf};
use std::process::Command;

use nrh::controller::own_image;
use nrh::controller::rbac::RBAC;
use nrh::core::node_condition::NodeCondition;
use nrh::node::agent;
use serde_json::{Value, json};

/// kubectl: the machine's, or the test bed's.
fn kubectl() -> PathBuf {
    use nrh_testbed::{assets, packages};
    packages::find("kubectl").unwrap_or_else(|| {
        let folders = assets::ensure(&[assets::KUBECTL]).expect("kubectl of the test bed");
        assets::find(&folders, "kubectl").expect("kubectl of the test bed")
    })
}

/// Renders a folder of `config/` as kubectl does.
fn render(folder: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(folder);
    let output = Command::new(kubectl()).arg("kustomize").arg(&path).output().unwrap();
    assert!(output.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "a warning about {}", path.display());
    let text = String::from_utf8(output.stdout).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    assert!(!documents.is_empty(), "{} is empty", path.display());
    documents
}

fn name(object: &Value) -> String {
    format!("{}/{}", object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap())
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

fn one<'a>(objects: &'a [Value], wanted: &str) -> &'a Value {
    objects.iter().find(|object| name(object) == wanted).unwrap_or_else(|| panic!("no {wanted}"))
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn sorted<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_unstable();
    names
}

#[test]
fn no_role_holds_more_than_it_needs() {
    let objects = render("default");
    let mut rules = 0;
    for role in objects.iter().filter(|object| object["kind"] == "Role" || object["kind"] == "ClusterRole") {
        // One that is put together of others' has none of its own.
        for rule in role["rules"].as_array().into_iter().flatten() {
            rules += 1;
            let what = format!("{}: {rule}", name(role));
            if role["metadata"]["name"] == "nrh:metrics-reader" {
                assert_eq!(*rule, json!({"nonResourceURLs": ["/metrics"], "verbs": ["get"]}));
                continue;
            }
            let (groups, resources, verbs) =
                (texts(&rule["apiGroups"]), texts(&rule["resources"]), texts(&rule["verbs"]));
            for list in [&groups, &resources, &verbs] {
                assert!(!list.contains(&"*"), "a wildcard in {what}");
            }
            for never in [
                "nodes/proxy",
                "secrets",
                "pods/exec",
                "pods/attach",
                "pods/portforward",
                "serviceaccounts/token",
                "pods/ephemeralcontainers",
            ] {
                assert!(!resources.contains(&never), "{never} in {what}");
            }
            for never in ["escalate", "bind", "impersonate", "deletecollection"] {
                assert!(!verbs.contains(&never), "{never} in {what}");
            }
            assert!(rule["nonResourceURLs"].is_null(), "{what}");
            let writes = verbs.iter().any(|verb| !["get", "list", "watch"].contains(verb));
            if writes
                && groups.iter().any(|group| group.starts_with("rbac.") || group.starts_with("admissionregistration."))
            {
                panic!("rights over rights in {what}");
            }
        }
    }
    assert!(rules > 10, "expected the roles of controller and probe, found {rules} rules");
}

#[test]
fn a_node_may_read_commands_and_write_a_status_and_nothing_else() {
    let objects = render("default");
    let role = one(&objects, "ClusterRole/nrh:probe");
    for rule in role["rules"].as_array().unwrap() {
        assert_eq!(texts(&rule["apiGroups"]), ["runtimehealth.io"], "{rule}");
        let verbs: &[&str] = match texts(&rule["resources"])[..] {
            ["nodecommands"] => &["get", "watch"],
            ["noderuntimehealths/status"] => &["patch"],
            _ => panic!("{rule}"),
        };
        assert_eq!(texts(&rule["verbs"]), verbs, "{rule}");
    }
    // The kubelet's own port is the probe's to ask, not that of every node's certificate.
    let port = one(&objects, "ClusterRole/nrh:probe-port");
    let rules = json!([{"apiGroups": [""], "resources": ["nodes/healthz", "nodes/metrics"], "verbs": ["get"]}]);
    assert_eq!(port["rules"], rules);
    let subjects = json!([{"kind": "ServiceAccount", "name": "nrh-probe", "namespace": "nrh-node"}]);
    assert_eq!(one(&objects, "ClusterRoleBinding/nrh:probe-port")["subjects"], subjects);
    // Nothing else is bound to the node's identities.
    for binding in objects.iter().filter(|object| object["kind"].as_str().unwrap().ends_with("RoleBinding")) {
        for subject in binding["subjects"].as_array().unwrap() {
            let of_a_node = subject["namespace"] == "nrh-node" || subject["name"] == "system:nodes";
            let role = binding["roleRef"]["name"].as_str().unwrap();
            let of_the_probe = role == "nrh:probe" || (role == "nrh:probe-port" && subject["kind"] == "ServiceAccount");
            assert!(!of_a_node || of_the_probe, "{binding}");
            assert!(subject["kind"] != "Group" || subject["name"] == "system:nodes", "{binding}");
        }
    }
    assert_eq!(one(&objects, "ServiceAccount/nrh-act")["automountServiceAccountToken"], false);
}

#[test]
fn the_controller_alone_may_write_a_command_to_a_node() {
    let (objects, mut readers) = (render("default"), 0);
    for role in objects.iter().filter(|object| object["kind"].as_str().unwrap().ends_with("Role")) {
        for rule in role["rules"].as_array().into_iter().flatten() {
            let all = texts(&rule["resources"]);
            assert!(!all.contains(&"*"), "{rule}");
            if !all.iter().any(|resource| resource.starts_with("nodecommands")) {
                continue;
            }
            let writes = texts(&rule["verbs"]).iter().any(|verb| !["get", "list", "watch"].contains(verb));
            assert_eq!(writes, name(role) == "ClusterRole/nrh:controller", "{}: {rule}", name(role));
            readers += usize::from(!writes);
        }
    }
    assert!(readers >= 2, "the probe's and people's: {readers}");
}

#[test]
fn no_container_is_privileged() {
    let objects = render("default");
    let mut containers = 0;
    for workload in objects.iter().filter(|object| object["spec"]["template"]["spec"].is_object()) {
        let pod = &workload["spec"]["template"]["spec"];
        assert!(pod["initContainers"].is_null() && pod["hostIPC"].is_null(), "{}", name(workload));
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{}", name(workload));
        for container in pod["containers"].as_array().unwrap() {
            containers += 1;
            let context = &container["securityContext"];
            let what = format!("{}: {context}", name(workload));
            assert_ne!(context["privileged"], true, "{what}");
            assert_eq!(context["allowPrivilegeEscalation"], false, "{what}");
            assert_eq!(context["readOnlyRootFilesystem"], true, "{what}");
            assert_eq!(texts(&context["capabilities"]["drop"]), ["ALL"], "{what}");
            assert!(container["resources"]["limits"]["memory"].is_string(), "{what}");
            assert!(container["resources"]["requests"]["cpu"].is_string(), "{what}");
            assert_eq!(container["imagePullPolicy"], "IfNotPresent", "{what}");
        }
    }
    assert_eq!(containers, 2);
}

#[test]
fn the_controller_fits_the_restricted_level() {
    let objects = render("default");
    let namespace = one(&objects, "Namespace/nrh-system");
    assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
    let spec = &one(&objects, "Deployment/nrh-controller")["spec"];
    let pod = &spec["template"]["spec"];
    assert_eq!(spec["replicas"], 2);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert!(pod["hostPID"].is_null() && pod["hostNetwork"].is_null() && pod["volumes"].is_null());
    let container = &pod["containers"][0];
    assert!(container["securityContext"]["capabilities"]["add"].is_null());
    // The Jobs' image is that of the controller's pod, with which admission compares it, so an overlay changes one thing only.
    assert_eq!(container["name"], own_image::CONTAINER);
    let params = &one(&objects, "ValidatingAdmissionPolicyBinding/nrh-jobs")["spec"]["paramRef"];
    assert_eq!((&params["namespace"], &params["selector"]), (&json!("nrh-system"), &json!({})));
    assert!(container["env"].as_array().unwrap().iter().all(|env| env["name"] != "NRH_IMAGE"));
}

#[test]
fn the_checks_of_the_controller_have_a_port_of_their_own() {
    let objects = render("default");
    let container = &one(&objects, "Deployment/nrh-controller")["spec"]["template"]["spec"]["containers"][0];
    let ports = json!([{"name": "metrics", "containerPort": 8080}, {"name": "health", "containerPort": 8081}]);
    assert_eq!(container["ports"], ports);
    for (check, path) in [("livenessProbe", "/livez"), ("readinessProbe", "/readyz")] {
        assert_eq!(container[check]["httpGet"], json!({"path": path, "port": "health"}), "{check}");
    }
}

#[test]
fn the_probe_has_what_it_needs_and_is_everywhere() {
    let objects = render("default");
    let pod = &one(&objects, "DaemonSet/nrh-probe")["spec"]["template"]["spec"];
    assert_eq!(pod["hostPID"], true);
    assert_eq!(pod["hostNetwork"], true);
    assert_eq!(pod["priorityClassName"], "system-node-critical");
    assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}]));
    assert_eq!(pod["nodeSelector"], json!({"kubernetes.io/os": "linux"}));
    let container = &pod["containers"][0];
    let added = sorted(texts(&container["securityContext"]["capabilities"]["add"]));
    let needed = sorted(agent::CAPABILITIES.iter().map(|(name, _)| *name));
    assert_eq!(added, needed, "what the code says it needs");
    let volumes = pod["volumes"].as_array().unwrap();
    let mounted = sorted(volumes.iter().filter_map(|volume| volume["hostPath"]["path"].as_str()));
    let needed = sorted(agent::MOUNTS.iter().map(|(path, _, _)| *path));
    assert_eq!(mounted, needed, "what the code says it needs");
    for (path, writable, _) in agent::MOUNTS {
        let mount =
            container["volumeMounts"].as_array().unwrap().iter().find(|mount| mount["mountPath"] == *path).unwrap();
        assert_eq!(mount["readOnly"] != true, *writable, "{mount}");
    }
    // Jobs are allowed the same, and no more.
    let jobs = one(&objects, "ValidatingAdmissionPolicy/nrh-jobs").to_string();
    for name in agent::CAPABILITIES.iter().map(|(name, _)| name).chain(agent::MOUNTS.iter().map(|(path, _, _)| path)) {
        assert!(jobs.contains(&format!("'{name}'")), "{name} is not allowed to Jobs");
    }
    let quota = of_kind(&objects, "ResourceQuota")
        .into_iter()
        .find(|quota| quota["metadata"]["namespace"] == "nrh-node")
        .unwrap();
    let classes = &quota["spec"]["scopeSelector"]["matchExpressions"][0]["values"];
    assert_eq!(*classes, json!(["system-node-critical"]));
}

#[test]
fn network_policies_open_the_port_for_metrics_and_keep_nothing_in() {
    let objects = render("default");
    let policies = of_kind(&objects, "NetworkPolicy");
    let namespaces: Vec<&str> =
        policies.iter().map(|policy| policy["metadata"]["namespace"].as_str().unwrap()).collect();
    assert_eq!(namespaces, ["nrh-node", "nrh-system"]);
    for policy in policies {
        // Nobody knows where the API server is.
        assert_eq!(texts(&policy["spec"]["policyTypes"]), ["Ingress"], "{policy}");
        let from = json!([{"namespaceSelector": {"matchLabels": {"metrics": "enabled"}}}]);
        assert_eq!(policy["spec"]["ingress"][0]["from"], from, "{policy}");
    }
    let (policy, deployment) =
        (one(&objects, "NetworkPolicy/nrh-controller"), one(&objects, "Deployment/nrh-controller"));
    let template = &deployment["spec"]["template"];
    let selected = policy["spec"]["podSelector"]["matchLabels"].as_object().unwrap();
    assert!(selected.iter().all(|(key, value)| template["metadata"]["labels"][key] == *value), "{selected:?}");
    let port = &template["spec"]["containers"][0]["ports"][0]["containerPort"];
    assert_eq!(policy["spec"]["ingress"][0]["ports"], json!([{"protocol": "TCP", "port": port}]));
}

#[test]
fn accounts_of_nodes_have_a_bounded_share_of_the_api_server() {
    let objects = render("default");
    let (flow, level) = (one(&objects, "FlowSchema/nrh-node"), one(&objects, "PriorityLevelConfiguration/nrh-node"));
    assert_eq!(flow["spec"]["priorityLevelConfiguration"]["name"], level["metadata"]["name"]);
    let subjects = json!([{"kind": "Group", "group": {"name": "system:serviceaccounts:nrh-node"}}]);
    assert_eq!(flow["spec"]["rules"][0]["subjects"], subjects);
    // The cluster's own for all accounts has 9000; the first that matches counts.
    assert!(flow["spec"]["matchingPrecedence"].as_i64().unwrap() < 9000);
    assert_eq!(level["spec"]["limited"]["borrowingLimitPercent"], 0);
}

#[test]
fn admission_fails_closed_and_every_policy_is_bound() {
    let objects = render("default");
    let policies = of_kind(&objects, "ValidatingAdmissionPolicy");
    assert!(policies.len() >= 7);
    for policy in policies {
        assert_eq!(policy["spec"]["failurePolicy"], "Fail", "{}", name(policy));
        for validation in policy["spec"]["validations"].as_array().unwrap() {
            assert!(validation["message"].as_str().is_some_and(|message| message.len() > 20), "{validation}");
        }
        let bound = of_kind(&objects, "ValidatingAdmissionPolicyBinding").into_iter().any(|binding| {
            binding["spec"]["policyName"] == policy["metadata"]["name"]
                && texts(&binding["spec"]["validationActions"]) == ["Deny"]
        });
        assert!(bound, "{} is not bound", name(policy));
    }
}

/// One that the controller does not know of could go without a word.
#[test]
fn the_controller_checks_for_every_admission_policy_that_is_shipped() {
    let objects = render("default");
    let policies = of_kind(&objects, "ValidatingAdmissionPolicy").into_iter();
    let shipped = sorted(policies.map(|policy| policy["metadata"]["name"].as_str().unwrap()));
    assert_eq!(shipped, nrh::controller::admission::POLICIES);
}

#[test]
fn everything_carries_our_label_and_nothing_needs_its_kind_first() {
    for object in render("default") {
        assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/part-of"], "nrh", "{}", name(&object));
        // kubectl looks up all kinds before it applies the first object: an object of a kind of ours would make the
        // first `kubectl apply -k` of a cluster fail.
        assert_ne!(object["apiVersion"], "runtimehealth.io/v1alpha1", "{}", name(&object));
    }
}

#[test]
fn conditions_of_nodes_and_the_service_of_the_metrics_are_on() {
    let objects = render("default");
    let container = &one(&objects, "Deployment/nrh-controller")["spec"]["template"]["spec"]["containers"][0];
    let env = container["env"].as_array().unwrap();
    assert!(env.contains(&json!({"name": "NRH_NODE_CONDITIONS", "value": "all"})), "{env:?}");
    let service = &one(&objects, "Service/nrh-controller-metrics")["spec"];
    let pods = &one(&objects, "Deployment/nrh-controller")["spec"]["selector"]["matchLabels"];
    assert_eq!(service["selector"], *pods);
    let port = |name: &Value| container["ports"].as_array().unwrap().iter().find(|port| port["name"] == *name).cloned();
    assert_eq!(port(&service["ports"][0]["targetPort"]).unwrap()["containerPort"], service["ports"][0]["port"]);
}

/// What an overlay with one component renders, and the names of what the component adds.
fn with_component(component: &str, more: &str) -> (Vec<Value>, Vec<String>) {
    let folder = tempfile::tempdir_in(Path::new(env!("CARGO_MANIFEST_DIR")).join("target")).unwrap();
    let overlay = format!("resources: [../../config/default]\ncomponents: [../../config/{component}]\n{more}\n");
    std::fs::write(folder.path().join("kustomization.yaml"), overlay).unwrap();
    let (plain, with) = (render("default"), render(folder.path().to_str().unwrap()));
    let added = with.iter().map(name).filter(|new| plain.iter().all(|old| name(old) != *new)).collect();
    (with, added)
}

#[test]
fn the_component_for_production_wants_digests_and_adds_nothing_else() {
    let digest = format!("sha256:{}", "0a".repeat(32));
    let images = format!("images: [{{name: runtimehealth.io/nrh, newName: registry.example/nrh, digest: '{digest}'}}]");
    let (with, added) = with_component("digests", &images);
    assert_eq!(added, ["ValidatingAdmissionPolicy/nrh-digests", "ValidatingAdmissionPolicyBinding/nrh-digests"]);
    let policy = one(&with, "ValidatingAdmissionPolicy/nrh-digests");
    assert_eq!(policy["spec"]["failurePolicy"], "Fail");
    let binding = one(&with, "ValidatingAdmissionPolicyBinding/nrh-digests");
    assert_eq!(texts(&binding["spec"]["validationActions"]), ["Deny"]);
    for workload in ["Deployment/nrh-controller", "DaemonSet/nrh-probe"] {
        let image = &one(&with, workload)["spec"]["template"]["spec"]["containers"][0]["image"];
        assert_eq!(*image, format!("registry.example/nrh@{digest}"), "{workload}");
    }
}

#[test]
fn the_component_for_openshift_allows_what_the_pods_ask_for_and_nothing_else() {
    let (with, added) = with_component("openshift", "");
    assert_eq!(added, ["RoleBinding/nrh-controller-user", "SecurityContextConstraints/nrh-node"]);
    let allowed = one(&with, "SecurityContextConstraints/nrh-node");
    let pod = &one(&with, "DaemonSet/nrh-probe")["spec"]["template"]["spec"];
    let security = &pod["containers"][0]["securityContext"];
    for (host, asked) in [("allowHostPID", "hostPID"), ("allowHostNetwork", "hostNetwork"), ("allowHostIPC", "hostIPC")]
    {
        assert_eq!(allowed[host], pod[asked] == true, "{host}");
    }
    assert_eq!(allowed["allowHostPorts"], pod["containers"][0]["ports"].is_array());
    assert_eq!(allowed["allowHostDirVolumePlugin"], true);
    assert_eq!(allowed["runAsUser"], json!({"type": "MustRunAs", "uid": pod["securityContext"]["runAsUser"]}));
    assert_eq!(pod["securityContext"]["seccompProfile"], json!({"type": "RuntimeDefault"}));
    assert_eq!(texts(&allowed["seccompProfiles"]), ["runtime/default"]);
    assert_eq!(one(&with, "Namespace/nrh-node")["metadata"]["annotations"]["openshift.io/node-selector"], "");
    let same = [
        ("allowPrivilegedContainer", "privileged"),
        ("allowPrivilegeEscalation", "allowPrivilegeEscalation"),
        ("readOnlyRootFilesystem", "readOnlyRootFilesystem"),
    ];
    for (key, asked) in same {
        assert_eq!(allowed[key], security[asked], "{key}");
    }
    let capabilities = sorted(texts(&security["capabilities"]["add"]));
    assert_eq!(sorted(texts(&allowed["allowedCapabilities"])), capabilities);
    assert_eq!(allowed["requiredDropCapabilities"], security["capabilities"]["drop"]);
    // A type alone fits no other strategy: MustRunAs compares the level too.
    assert_eq!(allowed["seLinuxContext"], json!({"type": "RunAsAny"}));
    assert_eq!(security["seLinuxOptions"], json!({"type": "spc_t"}));
    let accounts = ["nrh-probe", "nrh-act"].map(|name| format!("system:serviceaccount:nrh-node:{name}"));
    assert_eq!(texts(&allowed["users"]), accounts);
    for account in ["nrh-probe", "nrh-act", "nrh-controller"] {
        one(&with, &format!("ServiceAccount/{account}"));
    }
    // The token of the account is a projected volume, which the API server adds.
    let kinds = pod["volumes"].as_array().unwrap().iter().flat_map(|volume| volume.as_object().unwrap().keys());
    let mut kinds: Vec<&str> = kinds.map(String::as_str).filter(|kind| *kind != "name").chain(["projected"]).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(texts(&allowed["volumes"]), kinds);
}

#[test]
fn admission_lets_the_controller_mirror_what_it_can_mirror() {
    let objects = render("default");
    let policy = one(&objects, "ValidatingAdmissionPolicy/nrh-node-changes");
    let variables = policy["spec"]["variables"].as_array().unwrap();
    let mirrored = variables.iter().find(|variable| variable["name"] == "mirrored").unwrap();
    let named: Vec<&str> = mirrored["expression"].as_str().unwrap().split('\'').skip(1).step_by(2).collect();
    assert_eq!(named, NodeCondition::ALL.map(NodeCondition::as_str));
}

#[test]
fn the_controller_has_no_right_to_hand_a_node_off_but_what_others_give_it() {
    let objects = render("default");
    let role = one(&objects, "ClusterRole/nrh:hand-off");
    assert!(role["rules"].is_null(), "{role}");
    // The label of the medik8s family is an opt-in: installing one of its operators gives the controller nothing.
    let selectors = json!([{"matchLabels": {nrh::api::HAND_OFF_LABEL: "true"}}]);
    assert_eq!(role["aggregationRule"]["clusterRoleSelectors"], selectors);
    let subjects = json!([{"kind": "ServiceAccount", "name": "nrh-controller", "namespace": "nrh-system"}]);
    assert_eq!(one(&objects, "ClusterRoleBinding/nrh:hand-off")["subjects"], subjects);
    for given in of_kind(&objects, "ClusterRole") {
        assert!(given["metadata"]["labels"][nrh::api::HAND_OFF_LABEL].is_null(), "{}", name(given));
    }
}

#[test]
fn the_enforcing_policies_are_one_per_incident_and_one_that_tells() {
    let names: Vec<String> = render("policies").iter().map(name).collect();
    let expected = ["hung-container", "notify", "orphans", "stuck-daemonset"];
    assert_eq!(names, expected.map(|name| format!("RemediationPolicy/{name}")));
}

/// A tenant's DaemonSet that crashes must not have nodes cordoned.
#[test]
fn stuck_pods_are_deleted_in_namespaces_of_the_system_alone() {
    let policies = ["policies", "policies/dry-run"].into_iter().flat_map(render);
    let rules: Vec<_> = policies.flat_map(|policy| policy["spec"]["rules"].as_array().unwrap().clone()).collect();
    let is_of_pods = |rule: &&Value| texts(&rule["match"]["faults"]).contains(&"StuckDaemonSetPod");
    let of_pods: Vec<_> = rules.iter().filter(is_of_pods).collect();
    assert_eq!(of_pods.len(), 3, "stuck-daemonset, notify, dry-run");
    for rule in of_pods {
        assert!(texts(&rule["match"]["namespaces"]).contains(&"kube-system"), "{rule}");
    }
}

/// One verb on one resource, where, and on which name.
type Grant = (String, String, String, String, String);

fn grants(group: &str, resource: &str, verb: &str, namespace: &str, names: &[&str]) -> Vec<Grant> {
    let of = |name: &str| (namespace.into(), group.into(), resource.into(), verb.into(), name.into());
    if names.is_empty() { vec![of("")] } else { names.iter().map(|name| of(name)).collect() }
}

/// Told in medik8s/poison-pill #65.
#[test]
fn the_controller_has_the_rights_its_calls_need_and_no_other() {
    let objects = render("default");
    let mut granted: Vec<Grant> = Vec::new();
    for role in objects.iter().filter(|object| object["kind"] == "Role" || object["kind"] == "ClusterRole") {
        if !role["metadata"]["name"].as_str().unwrap().starts_with("nrh:controller") {
            continue;
        }
        let namespace = role["metadata"]["namespace"].as_str().unwrap_or_default();
        for rule in role["rules"].as_array().unwrap() {
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    for verb in texts(&rule["verbs"]) {
                        granted.extend(grants(group, resource, verb, namespace, &texts(&rule["resourceNames"])));
                    }
                }
            }
        }
    }
    let mut needed: Vec<Grant> = RBAC
        .iter()
        .flat_map(|right| {
            let namespace = right.namespace.unwrap_or_default();
            right.verbs.iter().flat_map(move |verb| grants(right.group, right.resource, verb, namespace, right.names))
        })
        .collect();
    granted.sort();
    needed.sort();
    needed.dedup();
    let missing: Vec<_> = needed.iter().filter(|grant| !granted.contains(grant)).collect();
    let spare: Vec<_> = granted.iter().filter(|grant| !needed.contains(grant)).collect();
    assert!(missing.is_empty() && spare.is_empty(), "missing in config/rbac: {missing:#?}\nno call needs: {spare:#?}");
}
