//! Reads each object separately: an unreadable object hides no other object of its list, and stops no watch.
//!
//! The API server takes times that the types here cannot hold (`9999-12-31T23:59:59Z`). Anyone with the right to write the
//! status of one Node may write one. kube's own guard reads the metadata by the same types, which also hold times
//! (`managedFields`). This guard reads as much of the metadata as it can.

use std::borrow::Cow;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::policy::in_plain_words;
use crate::{NodeCommand, NodeRemediation, NodeRuntimeHealth, RemediationConfig, RemediationPolicy};
use nrh_core::text::bounded;

/// Largest status of a report that is read, in bytes: several times the size of 64 faults. The schema bounds each text, not
/// their sum, and a node that writes megabytes each second would keep the controller from all other work.
const MAX_REPORT: usize = 256 * 1024;
/// Longest reason that is kept for an unreadable object.
const MAX_WHY: usize = 512;

/// An object whose metadata alone is readable.
#[derive(Clone, Debug)]
pub struct UnreadableObject {
    /// The readable part of its metadata, field by field.
    pub metadata: ObjectMeta,
    /// Which field is not readable, and why; bounded.
    pub why: String,
}

/// A kind whose objects are read one by one.
pub trait BoundedStatus: Sized {
    /// Largest status of one that is read, in bytes.
    const MAX_STATUS: usize = usize::MAX;

    /// Reads a whole object; the error names the field that is not readable.
    ///
    /// Each kind implements it by itself: a generic function would be compiled into each crate that reads the kind, which made
    /// `nrh` 1.5 MB larger.
    fn whole(object: &Value) -> Result<Self, String>;
}

fn whole<K: DeserializeOwned>(object: &Value) -> Result<K, String> {
    // The second read finds out which field it is.
    K::deserialize(object)
        .or_else(|_| serde_path_to_error::deserialize(object).map_err(|error| in_plain_words(&error.to_string())))
}

macro_rules! read_one_by_one {
    ($($kind:ty $(, $largest:expr)?;)*) => {$(
        impl BoundedStatus for $kind {
            $(const MAX_STATUS: usize = $largest;)?

            fn whole(object: &Value) -> Result<Self, String> {
                whole(object)
            }
        }
    )*};
}

read_one_by_one! {
    Node;
    Pod;
    DaemonSet;
    Job;
    NodeCommand;
    NodeRuntimeHealth, MAX_REPORT;
    NodeRemediation;
    RemediationPolicy;
    RemediationConfig;
}

/// An object, or its readable part.
#[derive(Clone, Debug)]
pub struct Guarded<K>(pub Result<K, Box<UnreadableObject>>);

impl<K: BoundedStatus> Guarded<K> {
    /// Reads one object.
    pub fn read(object: &Value) -> Self {
        let size = if K::MAX_STATUS == usize::MAX { 0 } else { object.get("status").map_or(0, size) };
        let read = if size > K::MAX_STATUS {
            Err(format!("its status has {size} bytes, expected at most {}", K::MAX_STATUS))
        } else {
            K::whole(object)
        };
        Self(read.map_err(|why| Box::new(UnreadableObject { metadata: metadata(object), why: bounded(&why, MAX_WHY) })))
    }
}

impl<'de, K: BoundedStatus> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::read(&Value::deserialize(deserializer)?))
    }
}

/// Bytes of the texts and names in a value, and an estimate for the rest.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| size(item) + 1).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + 4 + size(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}

/// The metadata of an object, as far as it can be read.
fn metadata(whole: &Value) -> ObjectMeta {
    let mut found = whole.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    // Anyone who may write the object also writes who owns which field.
    found.remove("managedFields");
    ObjectMeta::deserialize(&found).unwrap_or_else(|_| {
        // A time that cannot be read must not remove the object's labels or finalizers.
        found.retain(|field, value| ObjectMeta::deserialize(&json!({field: value})).is_ok());
        ObjectMeta::deserialize(&found).unwrap_or_default()
    })
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(object) => object.meta(),
            Err(bad) => &bad.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(bad) => &mut bad.metadata,
        }
    }
}
