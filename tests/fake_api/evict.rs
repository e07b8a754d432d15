//! Evictions: a pod goes as its disruption budgets allow, and only the very pod that is named by its uid.

use serde_json::{Value, json};

use super::path::Target;
use super::serve::Reply;
use super::{Call, Store};

impl Store {
    /// Sets the pod on its way out. One with a finalizer stays there until somebody removes it, as above a kubelet that takes its
    /// time.
    pub(super) fn evict(&mut self, call: &Call) -> Reply {
        let (target, pod) = (call.target.object(), self.found(&call.target.object())?);
        let is_denied = |(verb, denied): &(String, String)| verb == "create" && denied == "pods/eviction";
        if self.denied.iter().any(is_denied) {
            let name = target.name.as_deref().unwrap_or_default();
            let why = "User \"controller\" cannot create resource \"pods/eviction\" in API group \"\"";
            return Err((403, "Forbidden", format!("pods \"{name}\" is forbidden: {why}")));
        }
        let options = &call.body["deleteOptions"];
        let uid = &options["preconditions"]["uid"];
        if !uid.is_null() && *uid != pod["metadata"]["uid"] {
            return Err((409, "Conflict", format!("uid is {}, not {uid}", pod["metadata"]["uid"])));
        }
        if let Some((target, mut budget)) = self.budget_of(&target, &pod) {
            let allowed = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0);
            if allowed <= 0 {
                let name = budget["metadata"]["name"].as_str().unwrap_or_default();
                return Err((
                    429,
                    "TooManyRequests",
                    format!("The disruption budget {name} needs 1 healthy pods and has 1 currently"),
                ));
            }
            let old = budget.clone();
            budget["status"]["disruptionsAllowed"] = json!(allowed - 1);
            self.write(&target, Some(&old), budget);
        }
        let (_, done) = self.delete(&Call { body: options.clone(), ..call.clone() })?;
        Ok((201, done))
    }

    /// The disruption budget of a pod, by the labels that it selects.
    fn budget_of(&self, target: &Target, pod: &Value) -> Option<(Target, Value)> {
        let is_its = |(of, budget): &(&Target, &Value)| {
            let wanted = budget["spec"]["selector"]["matchLabels"].as_object();
            let labels = &pod["metadata"]["labels"];
            of.plural == "poddisruptionbudgets"
                && of.namespace == target.namespace
                && wanted.is_some_and(|wanted| wanted.iter().all(|(key, value)| labels[key] == *value))
        };
        let mut objects = self.objects.iter().map(|(of, object)| (of, &**object));
        objects.find(is_its).map(|(of, budget)| (of.clone(), budget.clone()))
    }
}
