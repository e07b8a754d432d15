//! The five definitions of custom resources as YAML: what `nrh generate crds` prints and `crds/` holds.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::{CustomResourceExt, Resource};
use serde_json::json;

use super::{NodeCommand, NodeRemediation, NodeRuntimeHealth, RemediationConfig, RemediationPolicy};

/// All definitions, with the file name each has in `crds/`.
pub fn all() -> Vec<(String, CustomResourceDefinition)> {
    [
        NodeRuntimeHealth::crd(),
        NodeCommand::crd(),
        RemediationPolicy::crd(),
        RemediationConfig::crd(),
        NodeRemediation::crd(),
    ]
    .into_iter()
    .map(|mut crd| {
        let is_of_node = crd.spec.names.kind == NodeRuntimeHealth::kind(&());
        for version in &mut crd.spec.versions {
            if let Some(schema) = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut()) {
                tighten(schema);
                if is_of_node {
                    for field in OF_PROBE {
                        status_field(schema, field).into_iter().for_each(plain);
                    }
                }
            }
        }
        (format!("{}.yaml", crd.spec.names.plural), crd)
    })
    .collect()
}

/// What a probe writes of the status of a `NodeRuntimeHealth`.
const OF_PROBE: [&str; 6] = ["probe", "runtime", "kubelet", "faults", "commandResult", "conditions"];
/// Texts without control characters, of which terminals obey some.
const PLAIN: &str = r"^[^\x00-\x1f\x7f-\x9f]*$";

fn status_field<'s>(schema: &'s mut JSONSchemaProps, field: &str) -> Option<&'s mut JSONSchemaProps> {
    schema.properties.as_mut()?.get_mut("status")?.properties.as_mut()?.get_mut(field)
}

/// Gives every free text the pattern of plain ones.
fn plain(schema: &mut JSONSchemaProps) {
    let is_free = schema.enum_.is_none() && schema.format.is_none() && schema.pattern.is_none();
    if schema.type_.as_deref() == Some("string") && is_free {
        schema.pattern = Some(PLAIN.to_owned());
    }
    schema.properties.iter_mut().flat_map(|fields| fields.values_mut()).for_each(plain);
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        plain(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        plain(values);
    }
}

/// One definition as YAML.
pub fn yaml(crd: &CustomResourceDefinition) -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(crd)
}

/// Makes of a derived schema one that the API server takes without a warning and that bounds everything.
fn tighten(schema: &mut JSONSchemaProps) {
    // A null then means "absent" and is dropped on arrival; with `nullable` it would count as present in CEL.
    schema.nullable = None;
    // The server knows no unsigned formats and warns about them; the bounds say the same.
    match schema.format.as_deref() {
        Some("uint32") => {
            schema.format = Some("int64".to_owned());
            schema.minimum.get_or_insert(0.0);
            schema.maximum.get_or_insert(f64::from(u32::MAX));
        }
        Some("uint64") => {
            schema.format = Some("int64".to_owned());
            schema.minimum.get_or_insert(0.0);
        }
        _ => {}
    }
    // A doc comment is wrapped for the source; `kubectl explain` wraps for itself.
    if let Some(text) = &mut schema.description {
        *text = text.replace('\n', " ");
    }
    for (name, property) in schema.properties.iter_mut().flatten() {
        tighten(property);
        if name == "conditions" {
            bound_conditions(property);
        }
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        tighten(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        tighten(values);
    }
}

/// The type for conditions comes without bounds; these are Kubernetes' own, and a shorter one for the message.
fn bound_conditions(list: &mut JSONSchemaProps) {
    let Some(JSONSchemaPropsOrArray::Schema(item)) = &mut list.items else { return };
    let Some(properties) = &mut item.properties else { return };
    for (name, longest) in [("type", 316), ("reason", 128), ("message", 1024)] {
        if let Some(property) = properties.get_mut(name) {
            property.max_length = Some(longest);
        }
    }
    if let Some(status) = properties.get_mut("status") {
        status.enum_ = Some(["True", "False", "Unknown"].map(|status| JSON(json!(status))).to_vec());
    }
    if let Some(generation) = properties.get_mut("observedGeneration") {
        generation.minimum = Some(0.0);
    }
}
