//! Admission, as far as dry runs ask for it: each policy of `config/admission` that is bound refuses what it is tried with.

use serde_json::{Value, json};

use super::path::of_object;
use super::serve::Reply;
use super::{Call, FakeApi, Store};
use nrh::controller::admission::POLICIES;

const API: &str = "admissionregistration.k8s.io/v1";

impl FakeApi {
    /// Puts all policies and their bindings there.
    pub fn install_admission(&self) {
        for name in POLICIES {
            let metadata = json!({"name": name, "labels": {"app.kubernetes.io/part-of": "nrh"}});
            self.put(json!({"apiVersion": API, "kind": "ValidatingAdmissionPolicy", "metadata": metadata,
                "spec": {"failurePolicy": "Fail"}}));
            self.put(json!({"apiVersion": API, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata,
                "spec": {"policyName": name, "validationActions": ["Deny"],
                    "paramRef": {"namespace": "nrh-system", "selector": {}}}}));
        }
    }
}

impl Store {
    /// What a dry run is answered; nothing is done.
    pub(super) fn admit_dry_run(&self, call: &Call) -> Reply {
        let policy = match call.target.plural.as_str() {
            "nodes" => "nrh-node-changes",
            "jobs" => "nrh-jobs",
            "configmaps" => "nrh-names",
            "pods" => "nrh-pod-deletion",
            other => panic!("a dry run on {other}"),
        };
        let binding =
            json!({"apiVersion": API, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": policy}});
        if self.objects.contains_key(&of_object(&binding)) {
            let said = format!("ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: no");
            return Err((403, "Forbidden", said));
        }
        let taken =
            if call.verb == "delete" || call.verb == "patch" { self.found(&call.target)? } else { call.body.clone() };
        Ok((if call.verb == "create" { 201 } else { 200 }, Value::clone(&taken)))
    }
}
