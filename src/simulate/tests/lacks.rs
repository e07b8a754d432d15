//! What a timeline does not say and a rule asks for is told.

use crate::api::{RemediationPolicy, convert};
use crate::simulate::timeline::Timeline;

fn told(matches: &str, nodes: &str, fault: &str) -> Vec<String> {
    told_of(
        &format!("rules: [{{name: r, match: {{faults: [HungContainer], {matches}}}, steps: [{{action: Notify}}]}}]"),
        nodes,
        fault,
    )
}

fn told_of(spec: &str, nodes: &str, fault: &str) -> Vec<String> {
    let policy = format!(
        "{{apiVersion: runtimehealth.io/v1alpha1, kind: RemediationPolicy, metadata: {{name: p}}, spec: {{nodeSelector: \
         {{matchLabels: {{pool: a}}}}, {spec}}}}}"
    );
    let policy: RemediationPolicy = serde_saphyr::from_str(&policy).unwrap();
    let policy = convert::policy(&policy).unwrap();
    let timeline = format!(
        "{{nodes: [{{name: b, labels: {{pool: b}}}}, {{name: a, count: 3, labels: {{pool: a}}, {nodes}}}], events: [{{at: 1m, nodes: \
         [b, a-1], fault: {{type: HungContainer, {fault}}}}}, {{at: 2m, nodes: ['a-*'], fault: {{type: HungContainer, {fault}}}}}, \
         {{at: 3m, nodes: [a-1], fault: {{type: KubeletDown}}}}]}}"
    );
    let timeline = Timeline::parse(&timeline).unwrap();
    super::super::play(&timeline, &[policy]).notes
}

#[test]
fn what_a_rule_asks_for_and_the_timeline_does_not_say_is_told() {
    assert_eq!(told("", "", ""), Vec::<String>::new());
    let runtimes = "runtimes: [{name: containerd, versions: '>=1.7.0'}]";
    let said = "rule r of policy p asks for match.runtimes, and 3 nodes have, such as a-1, no runtimeVersion in the timeline: faults that \
                it may apply to are blocked";
    assert_eq!(told(runtimes, "", ""), [said]);
    assert_eq!(told(runtimes, "runtimeVersion: 'containerd://1.7.24'", ""), Vec::<String>::new());
    let kubelets = "kubeletVersions: ['>=1.30']";
    assert!(told(kubelets, "", "")[0].contains("match.kubeletVersions"), "{:?}", told(kubelets, "", ""));
    let owners = "ownerKinds: [DaemonSet]";
    let said = "rule r of policy p asks for match.ownerKinds, and 2 faults have, such as that of event 1 (at 0h01m00s), neither \
                podLabels nor podOwner: faults that it may apply to are blocked";
    assert_eq!(told(owners, "", ""), [said]);
    assert_eq!(told(owners, "", "podOwner: DaemonSet"), Vec::<String>::new());
    let labels = "podSelector: {matchLabels: {app: cart}}";
    assert!(told(labels, "", "")[0].contains("match.podSelector"), "{:?}", told(labels, "", ""));
    assert_eq!(told(labels, "", "podLabels: {app: cart}"), Vec::<String>::new());
}

#[test]
fn a_policy_for_no_node_is_told_as_that_alone() {
    let told = told("runtimes: [{name: containerd}]", "", "").len();
    assert_eq!(told, 1);
}

#[test]
fn what_is_allowed_and_has_no_use_is_told() {
    let rule =
        |faults: &str, steps: &str| format!("rules: [{{name: r, match: {{faults: [{faults}]}}, steps: [{steps}]}}]");
    let steps = "{action: DeletePod}, {action: RestartKubelet}, {action: Notify}";
    let said = [
        "step 1 DeletePod of rule r of policy p is skipped for each fault of the rule (HungContainer: it is not about a DaemonSet's \
         pod)",
        "step 2 RestartKubelet of rule r of policy p is skipped for each fault of the rule (HungContainer: a restart of the kubelet \
         does not end it)",
    ];
    assert_eq!(told_of(&rule("HungContainer", steps), "", ""), said);
    assert_eq!(told_of(&rule("HungContainer, KubeletDown, StuckDaemonSetPod", steps), "", ""), Vec::<String>::new());
    // Such a fault may be the kubelet's own.
    assert_eq!(told_of(&rule("FdExhaustion", "{action: RestartKubelet}"), "", ""), Vec::<String>::new());
    let said = "limits.maxUnhealthy of policy p is 0: nothing starts while a node is unhealthy";
    for none in ["0", "0%"] {
        let limits = format!("limits: {{maxUnhealthy: {none}}}, {}", rule("DiskFull", "{action: Notify}"));
        assert_eq!(told_of(&limits, "", ""), [said]);
    }
}
