//! The three CustomResourceDefinitions as YAML: what `nrh crd` prints and `crds/` holds.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use super::{NodeRemediation, NodeRuntimeHealth, RemediationPolicy};

/// All definitions, with the file name each has in `crds/`.
pub fn all() -> Vec<(String, CustomResourceDefinition)> {
    [NodeRuntimeHealth::crd(), RemediationPolicy::crd(), NodeRemediation::crd()]
        .into_iter()
        .map(|crd| (format!("{}.yaml", crd.spec.names.plural), crd))
        .collect()
}

/// One definition as YAML.
pub fn yaml(crd: &CustomResourceDefinition) -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(crd)
}
