//! The rights that the controller uses. `config/` is checked against this list.

/// One right, with the reason for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// API group; empty = core.
    pub group: &'static str,
    /// Resource, with its subresource.
    pub resource: &'static str,
    /// Verbs.
    pub verbs: &'static [&'static str],
    /// Namespace; `None` = cluster-wide.
    pub namespace: Option<&'static str>,
    /// Names that the right may be limited to. `create` cannot be limited by name, so it is a separate right.
    pub names: &'static [&'static str],
    /// Why.
    pub why: &'static str,
}

const fn right(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    why: &'static str,
) -> Right {
    Right { group, resource, verbs, namespace: None, names: &[], why }
}

/// Every right, the least first. A test asserts that the controller makes no call beyond them.
pub const RBAC: &[Right] = &[
    right("", "nodes", &["get", "list", "watch"], "which nodes exist, and the preflight of an action"),
    right(
        "",
        "nodes",
        &["patch"],
        "cordon, taint and their cleanup (spec.unschedulable, our taint and our annotations, by admission)",
    ),
    right("", "nodes/status", &["patch"], "conditions of the Node (those that it mirrors, by admission)"),
    right("", "pods", &["get", "list"], "pods of suspects, on demand"),
    right("", "pods", &["delete"], "DeletePod (pods of DaemonSets only, by admission)"),
    right(
        "policy",
        "poddisruptionbudgets",
        &["list"],
        "whether a running pod may be ended by the kill of its shim, asked right before",
    ),
    right("apps", "daemonsets", &["list", "watch"], "which DaemonSets lack pods"),
    right("runtimehealth.io", "noderuntimehealths", &["get", "list", "watch"], "the probes' word"),
    right("runtimehealth.io", "noderuntimehealths", &["create", "delete"], "one per Node; replaced with its Node"),
    right("runtimehealth.io", "noderuntimehealths/status", &["patch"], "the controller's part"),
    right("runtimehealth.io", "nodecommands", &["get", "list", "watch"], "which commands are issued"),
    right(
        "runtimehealth.io",
        "nodecommands",
        &["create", "patch", "delete"],
        "commands, and requests for a fresh check",
    ),
    right("runtimehealth.io", "remediationpolicies", &["get", "list", "watch"], "the rules"),
    right("runtimehealth.io", "remediationpolicies", &["create"], "the dry-run policy, at the very first start"),
    right("runtimehealth.io", "remediationpolicies/status", &["patch"], "how each policy stands"),
    right("runtimehealth.io", "remediationconfigs", &["get", "list", "watch"], "whether all remediation is suspended"),
    right("runtimehealth.io", "remediationconfigs/status", &["patch"], "how that stands"),
    right("runtimehealth.io", "noderemediations", &["get", "list", "watch"], "the remediations"),
    right("runtimehealth.io", "noderemediations", &["create", "delete"], "opened, and removed after their time"),
    right("runtimehealth.io", "noderemediations", &["patch"], "takes our own finalizer off"),
    right("runtimehealth.io", "noderemediations/status", &["patch"], "the timeline, by compare-and-swap"),
    right("authorization.k8s.io", "selfsubjectaccessreviews", &["create"], "whether it may use a remediator's kinds"),
    right("authentication.k8s.io", "tokenreviews", &["create"], "whose the token of a request for the metrics is"),
    right("authorization.k8s.io", "subjectaccessreviews", &["create"], "whether that account may read the metrics"),
    right(
        "admissionregistration.k8s.io",
        "validatingadmissionpolicies",
        &["list"],
        "whether the policies that bound it are there",
    ),
    right(
        "admissionregistration.k8s.io",
        "validatingadmissionpolicybindings",
        &["list"],
        "whether they are bound, and deny",
    ),
    Right {
        namespace: Some(nrh_api::NODE_NAMESPACE),
        ..right("batch", "jobs", &["list", "watch", "create", "delete"], "one Job per command (its shape by admission)")
    },
    Right {
        namespace: Some(nrh_api::NODE_NAMESPACE),
        ..right("", "pods", &["list", "watch"], "the last word of our Jobs' pods")
    },
    Right {
        namespace: Some(nrh_api::SYSTEM_NAMESPACE),
        names: &[nrh_api::LEDGER_NAME],
        ..right("", "configmaps", &["get", "patch"], "the ledger of slots, by compare-and-swap")
    },
    Right {
        namespace: Some(nrh_api::SYSTEM_NAMESPACE),
        ..right("", "configmaps", &["create"], "the ledger, when it is missing")
    },
    Right {
        namespace: Some(nrh_api::SYSTEM_NAMESPACE),
        names: &[nrh_api::LEASE_NAME],
        ..right("coordination.k8s.io", "leases", &["get", "update"], "leader election")
    },
    Right {
        namespace: Some(nrh_api::SYSTEM_NAMESPACE),
        ..right("coordination.k8s.io", "leases", &["create"], "leader election, the first time")
    },
    Right {
        namespace: Some("default"),
        ..right("events.k8s.io", "events", &["create", "patch"], "Events about Nodes, which live in this namespace")
    },
];

/// Whether a right covers a call.
pub fn allows(group: &str, resource: &str, verb: &str, namespace: Option<&str>, name: Option<&str>) -> bool {
    RBAC.iter().any(|right| {
        right.group == group
            && right.resource == resource
            && right.verbs.contains(&verb)
            && right.namespace.is_none_or(|own| namespace == Some(own))
            && (right.names.is_empty() || name.is_some_and(|name| right.names.contains(&name)))
    })
}
