//! From Docker's JSON to the core's types: bounded copies of the few fields that are used.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::cri::CriError;
use crate::cri::labels::{LABEL_CONTAINER, LABEL_NAMESPACE, LABEL_POD, LABEL_UID, MAX_ID, MAX_NAME, pod_of};
use crate::cri::wire::{Item, MAX_KEPT};
use nrh_core::fault::PodRef;
use nrh_core::observation::{ContainerSeen, ContainerState, RemovalState, RuntimeSeen, SandboxSeen, TaskAnswer};
use nrh_core::text::bounded;

/// Labels that a kubelet, or the program between it and Docker, puts on its containers.
const LABEL_SANDBOX: &str = "io.kubernetes.sandbox.id";
/// An annotation of the container: it grows with each restart of the container in its sandbox.
const LABEL_RESTARTS: &str = "annotation.io.kubernetes.container.restartCount";
/// All labels of a container that are used.
const USED: [&str; 6] = [LABEL_UID, LABEL_POD, LABEL_NAMESPACE, LABEL_CONTAINER, LABEL_SANDBOX, LABEL_RESTARTS];
/// Longest cause of a failed removal that is kept.
const MAX_CAUSE: usize = 256;

#[derive(Debug, Default, Deserialize)]
pub(crate) struct ErrorBody {
    #[serde(default)]
    pub message: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Version {
    version: String,
    /// Other HTTP servers do not send such a field.
    #[serde(rename = "ApiVersion")]
    _api_version: String,
}

impl Version {
    pub(crate) fn into_seen(self) -> RuntimeSeen {
        // The name that cri-dockerd uses for it.
        RuntimeSeen { name: "docker".to_owned(), version: bounded(&self.version, 64) }
    }
}

/// One entry of a list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Listed {
    id: String,
    state: String,
    names: Option<Vec<String>>,
    labels: Option<Labels>,
}

/// The labels that are used. Docker keeps the labels and annotations of pods there too, and their authors may write any number
/// of them. The parser skips those without a copy.
#[derive(Debug, Default)]
struct Labels(BTreeMap<&'static str, String>);

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct OfMap;
        impl<'de> Visitor<'de> for OfMap {
            type Value = Labels;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("labels")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
                let mut labels = Labels::default();
                while let Some(key) = map.next_key::<Cow<'_, str>>()? {
                    match USED.into_iter().find(|used| *used == key) {
                        Some(used) => drop(labels.0.insert(used, map.next_value()?)),
                        None => drop(map.next_value::<Cow<'_, str>>()?),
                    }
                }
                Ok(labels)
            }
        }
        input.deserialize_map(OfMap)
    }
}

/// A list. The parser reduces each entry to the used fields before it reads the next one.
#[derive(Debug)]
pub(crate) struct List<T> {
    pub items: Vec<T>,
    /// Whether the list needs more memory than [`MAX_KEPT`]: then it is incomplete.
    pub is_too_large: bool,
}

impl<'de, T: Item + From<Listed>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct OfSeq<T>(PhantomData<T>);
        impl<'de, T: Item + From<Listed>> Visitor<'de> for OfSeq<T> {
            type Value = List<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<List<T>, A::Error> {
                let (mut items, mut kept) = (Vec::new(), 0_usize);
                while let Some(entry) = seq.next_element::<Listed>()? {
                    let item = T::from(entry);
                    kept = kept.saturating_add(item.size());
                    items.push(item);
                    if kept > MAX_KEPT {
                        while seq.next_element::<IgnoredAny>()?.is_some() {}
                        return Ok(List { items, is_too_large: true });
                    }
                }
                items.shrink_to_fit();
                Ok(List { items, is_too_large: false })
            }
        }
        input.deserialize_seq(OfSeq(PhantomData))
    }
}

/// A sandbox is never left out, however odd: a missing one would turn its containers into orphans.
impl From<Listed> for SandboxSeen {
    fn from(entry: Listed) -> Self {
        Self {
            id: bounded(&entry.id, MAX_ID),
            ready: state(&entry.state) == ContainerState::Running,
            pod: entry.pod().unwrap_or_else(|| PodRef {
                namespace: String::new(),
                name: String::new(),
                uid: String::new(),
            }),
            attempt: entry.attempt_in_name(),
        }
    }
}

impl From<Listed> for String {
    fn from(entry: Listed) -> Self {
        SandboxSeen::from(entry).id
    }
}

impl From<Listed> for ContainerSeen {
    fn from(entry: Listed) -> Self {
        let restarts = entry.label(LABEL_RESTARTS).and_then(|count| count.parse().ok());
        Self {
            id: bounded(&entry.id, MAX_ID),
            sandbox_id: bounded(entry.label(LABEL_SANDBOX).unwrap_or_default(), MAX_ID),
            name: bounded(entry.label(LABEL_CONTAINER).unwrap_or_default(), MAX_NAME),
            pod: entry.pod(),
            state: state(&entry.state),
            attempt: restarts.unwrap_or_else(|| entry.attempt_in_name()),
        }
    }
}

impl Listed {
    fn label(&self, key: &str) -> Option<&str> {
        self.labels.as_ref()?.0.get(key).map(String::as_str)
    }

    fn pod(&self) -> Option<PodRef> {
        pod_of(|key| self.label(key))
    }

    /// The last part of `/k8s_NAME_POD_NAMESPACE_UID_ATTEMPT`.
    fn attempt_in_name(&self) -> u32 {
        let attempt = |name: &String| name.strip_prefix("/k8s_")?.rsplit('_').next()?.parse().ok();
        self.names.iter().flatten().find_map(attempt).unwrap_or_default()
    }
}

/// Maps Docker's word for a state as cri-dockerd does. A paused container counts as running.
fn state(word: &str) -> ContainerState {
    match word {
        "created" => ContainerState::Created,
        "running" | "paused" => ContainerState::Running,
        "exited" => ContainerState::Exited,
        // `restarting`, `removing`, `dead`, and unknown words.
        _ => ContainerState::Unknown,
    }
}

/// One container, asked for by its id.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Inspection {
    id: String,
    state: Inspected,
}

impl Inspection {
    pub(crate) fn into_inspected(self, asked: &str) -> Result<Inspected, CriError> {
        if self.id == asked {
            return Ok(self.state);
        }
        let id = bounded(&self.id, MAX_ID);
        Err(CriError::Other(format!("asked for {asked}, Docker answered for {id}")))
    }
}

/// Docker's report on one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Inspected {
    status: String,
    running: bool,
    dead: bool,
    pid: i64,
    exit_code: i64,
    error: String,
}

impl Inspected {
    /// Its first process, while Docker says that it runs.
    pub fn pid(&self) -> Option<i32> {
        i32::try_from(self.pid).ok().filter(|pid| self.running && *pid > 1)
    }

    /// What the report means for its task. `gone` = its process does not exist.
    pub fn answer(&self, gone: bool) -> TaskAnswer {
        // Docker still calls a container created whose start has failed. cri-dockerd calls it exited, by the same sign.
        let waits = self.status == "restarting" || self.status == "created" && self.exit_code == 0;
        match (self.running, waits) {
            (true, _) if gone => TaskAnswer::ProcessGone,
            (true, _) | (false, true) => TaskAnswer::DaemonAnswered,
            (false, false) => TaskAnswer::Ended,
        }
    }

    /// The state of its removal.
    pub fn removal(&self) -> RemovalState {
        let error = bounded(&self.error, MAX_CAUSE);
        if self.dead && !error.is_empty() { RemovalState::Failed(error) } else { RemovalState::NotFailed }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ID: &str = "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc";

    fn listed(state: &str, labels: &serde_json::Value) -> Listed {
        let entry = json!({
            "Id": ID, "State": state, "Status": "Up 3 days", "Names": ["/alias", "/k8s_app_web-0_shop_u1_4"],
            "Labels": labels, "Mounts": [], "Created": 1_700_000_000,
        });
        serde_json::from_value(entry).unwrap()
    }

    fn labels() -> serde_json::Value {
        json!({
            "io.kubernetes.pod.uid": "u1", "io.kubernetes.pod.name": "web-0", "io.kubernetes.pod.namespace": "shop",
            "io.kubernetes.container.name": "app", "io.kubernetes.sandbox.id": "s1",
            "annotation.io.kubernetes.container.restartCount": "7",
        })
    }

    #[test]
    fn the_kubelets_labels_name_pod_container_sandbox_and_attempt() {
        let seen = ContainerSeen::from(listed("running", &labels()));
        let pod = PodRef { namespace: "shop".to_owned(), name: "web-0".to_owned(), uid: "u1".to_owned() };
        assert_eq!((seen.pod, seen.name.as_str(), seen.sandbox_id.as_str()), (Some(pod.clone()), "app", "s1"));
        assert_eq!((seen.attempt, seen.state), (7, ContainerState::Running));
        let seen = SandboxSeen::from(listed("running", &labels()));
        assert_eq!((seen.pod, seen.ready, seen.attempt), (pod, true, 4));
    }

    #[test]
    fn every_word_for_a_state_is_known() {
        use ContainerState as S;
        for (word, expected) in [
            ("created", S::Created),
            ("running", S::Running),
            ("paused", S::Running),
            ("exited", S::Exited),
            ("restarting", S::Unknown),
            ("removing", S::Unknown),
            ("dead", S::Unknown),
            ("on holiday", S::Unknown),
        ] {
            assert_eq!(ContainerSeen::from(listed(word, &labels())).state, expected, "{word}");
            assert_eq!(SandboxSeen::from(listed(word, &labels())).ready, expected == S::Running, "{word}");
        }
    }

    #[test]
    fn what_is_missing_or_hostile_is_bounded() {
        let bare: Listed = serde_json::from_value(json!({"Id": "x", "State": "running"})).unwrap();
        let seen = ContainerSeen::from(bare);
        assert_eq!((seen.pod, seen.name.as_str(), seen.sandbox_id.as_str(), seen.attempt), (None, "", "", 0));
        let long = "x\n".repeat(5000);
        let hostile = json!({"io.kubernetes.pod.uid": long, "io.kubernetes.pod.name": long});
        let pod = ContainerSeen::from(listed("running", &hostile)).pod.unwrap();
        assert!(pod.uid.len() <= 64 && pod.name.len() <= 253 && !pod.name.contains('\n'));
        assert!(serde_json::from_value::<Listed>(json!({"State": "running"})).is_err(), "no id: no list");
    }

    fn inspected(state: &serde_json::Value) -> Inspected {
        let inspection: Inspection = serde_json::from_value(json!({"Id": ID, "State": state})).unwrap();
        inspection.into_inspected(ID).unwrap()
    }

    #[test]
    fn an_inspection_says_how_the_task_is() {
        let running = inspected(&json!({"Status": "running", "Running": true, "Pid": 4711}));
        assert_eq!(running.pid(), Some(4711));
        assert_eq!(running.answer(false), TaskAnswer::DaemonAnswered);
        assert_eq!(running.answer(true), TaskAnswer::ProcessGone);
        let paused = inspected(&json!({"Status": "paused", "Running": true, "Paused": true, "Pid": 4711}));
        assert_eq!(paused.answer(false), TaskAnswer::DaemonAnswered);
        let created = inspected(&json!({"Status": "created", "Running": false, "Pid": 0}));
        assert_eq!((created.pid(), created.answer(false)), (None, TaskAnswer::DaemonAnswered));
        let failed =
            inspected(&json!({"Status": "created", "Running": false, "ExitCode": 127, "Error": "no such file"}));
        assert_eq!(failed.answer(false), TaskAnswer::Ended);
        for word in ["exited", "dead", "removing"] {
            assert_eq!(inspected(&json!({"Status": word, "Running": false})).answer(false), TaskAnswer::Ended);
        }
    }

    #[test]
    fn a_removal_has_failed_only_with_a_cause() {
        let failed = inspected(&json!({"Status": "dead", "Dead": true, "Error": "unlinkat /x: busy"}));
        assert_eq!(failed.removal(), RemovalState::Failed("unlinkat /x: busy".to_owned()));
        for state in [json!({"Status": "dead", "Dead": true}), json!({"Status": "removing", "Error": "an old one"})] {
            assert_eq!(inspected(&state).removal(), RemovalState::NotFailed, "{state}");
        }
    }

    #[test]
    fn an_answer_for_another_container_is_none() {
        let other: Inspection = serde_json::from_value(json!({"Id": "d", "State": {}})).unwrap();
        assert!(matches!(other.into_inspected(ID), Err(CriError::Other(_))));
    }
}
