//! Which faults a rule names: kinds, groups of them, or all.

use std::borrow::Cow;
use std::collections::BTreeSet;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::unknown_name;
use nrh_core::fault::{FaultGroup, FaultType};

/// Stands for all kinds of fault but `NodeCondition`.
const ALL: &str = "*";

/// A kind of fault, a group of kinds, or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultSelector {
    /// `*`: each kind but `NodeCondition`, for which a policy asks by type and status.
    All,
    /// Each kind of a group.
    Group(FaultGroup),
    /// One kind.
    Kind(FaultType),
}

impl FaultSelector {
    const fn as_str(self) -> &'static str {
        match self {
            Self::All => ALL,
            Self::Group(group) => group.as_str(),
            Self::Kind(kind) => kind.as_str(),
        }
    }

    /// Everything that a rule may name.
    fn every() -> impl Iterator<Item = Self> {
        let groups = FaultGroup::ALL.into_iter().map(Self::Group);
        [Self::All].into_iter().chain(groups).chain(FaultType::ALL.into_iter().map(Self::Kind))
    }

    fn selects(self, kind: FaultType) -> bool {
        match self {
            Self::All => kind.spec().group.is_some(),
            Self::Group(group) => kind.spec().group == Some(group),
            Self::Kind(named) => kind == named,
        }
    }

    /// Every kind of fault that one of these names.
    pub fn kinds(selectors: &[Self]) -> BTreeSet<FaultType> {
        FaultType::ALL.into_iter().filter(|kind| selectors.iter().any(|one| one.selects(*kind))).collect()
    }
}

impl Serialize for FaultSelector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for FaultSelector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let found = Self::every().find(|one| one.as_str() == text);
        found.ok_or_else(|| D::Error::custom(unknown_name(&text, &Self::every().map(Self::as_str).collect::<Vec<_>>())))
    }
}

impl JsonSchema for FaultSelector {
    fn schema_name() -> Cow<'static, str> {
        "FaultSelector".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names: Vec<&str> = Self::every().map(Self::as_str).collect();
        json_schema!({"type": "string", "enum": names})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(names: &[&str]) -> BTreeSet<FaultType> {
        let selectors: Vec<FaultSelector> =
            names.iter().map(|name| serde_json::from_value((*name).into()).unwrap()).collect();
        FaultSelector::kinds(&selectors)
    }

    #[test]
    fn a_name_stands_for_one_kind_for_a_group_or_for_all() {
        assert_eq!(kinds(&["DiskFull"]), BTreeSet::from([FaultType::DiskFull]));
        let groups: Vec<BTreeSet<FaultType>> = FaultGroup::ALL.iter().map(|group| kinds(&[group.as_str()])).collect();
        let all = kinds(&["*"]);
        assert_eq!(groups.iter().flatten().copied().collect::<BTreeSet<_>>(), all);
        assert_eq!(groups.iter().map(BTreeSet::len).sum::<usize>(), all.len(), "a kind is in one group");
        let missing: Vec<FaultType> = FaultType::ALL.into_iter().filter(|kind| !all.contains(kind)).collect();
        assert_eq!(missing, [FaultType::NodeCondition]);
        assert!(kinds(&["Kubelet", "DiskFull"]).contains(&FaultType::PlegSlow));
    }

    #[test]
    fn a_group_of_pods_has_no_fault_that_is_about_none() {
        assert!(kinds(&["Pods"]).into_iter().all(FaultType::can_name_a_pod));
    }

    #[test]
    fn another_name_is_refused_and_the_message_lists_what_there_is() {
        let refused = serde_json::from_value::<FaultSelector>("Disk".into()).unwrap_err().to_string();
        assert!(refused.contains("found \"Disk\", expected one of *, ") && refused.contains("DiskFull"), "{refused}");
    }
}
