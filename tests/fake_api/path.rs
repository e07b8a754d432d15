//! Paths of the API, both ways.

use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    pub group: String,
    pub plural: String,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub subresource: Option<String>,
}

impl Target {
    /// The resource as rights name it.
    pub fn resource(&self) -> String {
        self.subresource.as_ref().map_or_else(|| self.plural.clone(), |sub| format!("{}/{sub}", self.plural))
    }

    /// The object, whatever subresource was named.
    pub fn object(&self) -> Self {
        Self { subresource: None, ..self.clone() }
    }

    pub fn holds(&self, other: &Self) -> bool {
        self.group == other.group
            && self.plural == other.plural
            && self.namespace.as_ref().is_none_or(|namespace| other.namespace.as_ref() == Some(namespace))
    }
}

pub fn of_path(path: &str) -> Option<Target> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, rest) = match parts.as_slice() {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => return None,
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some((*namespace).to_owned()), rest),
        rest => (None, rest),
    };
    let mut rest = rest.iter().map(|part| (*part).to_owned());
    let (group, plural) = (group.to_owned(), rest.next()?);
    Some(Target { group, plural, namespace, name: rest.next(), subresource: rest.next() })
}

pub fn of_object(object: &Value) -> Target {
    let version = object["apiVersion"].as_str().unwrap_or_else(|| panic!("no apiVersion in {object}"));
    let group = version.split_once('/').map_or("", |(group, _)| group).to_owned();
    let kind = object["kind"].as_str().unwrap().to_lowercase();
    let plural = match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{kind}s"),
    };
    let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
    let name = object["metadata"]["name"].as_str().map(str::to_owned);
    Target { group, plural, namespace, name, subresource: None }
}
