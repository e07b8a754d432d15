//! The operator's parts made wrong on purpose, from outside: to show that the demo's judge notices.
//!
//! The operator's program stays unchanged. A second server of the same runtime, asked by the operator alone, shows and
//! does something else than there is; and a program in front of `nrh run-command` puts something else in its place.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use clap::ValueEnum;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::table::{Config, Object, Standing, Table};
use super::{ROOT, settings::Image};
use crate::process::Identity;
use crate::programs::Programs;

/// Where the second server listens, inside the node.
pub const SOCKET: &str = "/run/containerd/mutant.sock";
/// Name of the second server's program.
pub const RUNTIME: &str = "mutant-runtime";
/// Name of the program in front of the executor.
pub const EXECUTOR: &str = "mutant-executor";

/// What is made wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mutation {
    /// The probe is shown no sick object
    Blinded,
    /// The executor does nothing and says that it has acted
    NoOp,
    /// The executor is handed the id of a healthy neighbour
    WrongId,
}

impl Mutation {
    /// Its name on a command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The operator's image under this mutation; `folder` holds the stand-ins.
    pub(crate) fn image(self, programs: &Programs, folder: &Path) -> Image {
        let words = [folder.join(EXECUTOR).display().to_string(), self.name(), programs.nrh.display().to_string()];
        let mut image = Image {
            entrypoint: words.into(),
            env: [("NRH_RUNTIME_ENDPOINT".to_owned(), SOCKET.to_owned())].into(),
            ..Image::programs(programs)
        };
        // A Job's command names this one.
        image.files.remove("/nrh");
        image
    }
}

/// What a server does differently.
#[derive(Debug, Default)]
pub(super) struct Lens {
    mutation: Option<Mutation>,
    /// What the executor believes to have removed.
    gone: Mutex<BTreeSet<String>>,
    /// Which neighbour was handed over for which id.
    handed: Mutex<BTreeMap<String, String>>,
}

impl Lens {
    pub(super) fn new(mutation: Option<Mutation>) -> Self {
        Self { mutation, ..Self::default() }
    }

    /// Whether this container is shown. Sandboxes are told as they are.
    pub(super) fn shows(&self, table: &Table, object: &Object) -> bool {
        match self.mutation {
            Some(Mutation::Blinded) => table.find(&object.sandbox).is_some(),
            _ => !self.gone.lock().unwrap_or_else(PoisonError::into_inner).contains(&object.id),
        }
    }

    /// Whether every task is said to run.
    pub(super) fn tasks_answer(&self) -> bool {
        self.mutation == Some(Mutation::Blinded)
    }

    /// The id that a container's stop or removal reaches; `None` = none, though it is said to be done.
    pub(super) fn reached(&self, table: &Table, id: &str) -> Option<String> {
        match self.mutation {
            Some(Mutation::NoOp) => {
                self.gone.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned());
                None
            }
            Some(Mutation::WrongId) => {
                let mut handed = self.handed.lock().unwrap_or_else(PoisonError::into_inner);
                // The same one for each call of an act, also when it runs no more.
                let other = || neighbour(table, id).map_or_else(|| id.to_owned(), |healthy| healthy.id);
                Some(handed.entry(id.to_owned()).or_insert_with(other).clone())
            }
            Some(Mutation::Blinded) | None => Some(id.to_owned()),
        }
    }
}

/// A workload's container that runs in its sandbox, in another pod than that of `id`.
fn neighbour(table: &Table, id: &str) -> Option<Object> {
    let pod = |object: &Object| match &object.config {
        Config::Container(config) => config.labels.get("io.kubernetes.pod.uid").cloned(),
        Config::Sandbox(config) => config.metadata.as_ref().map(|metadata| metadata.uid.clone()),
    };
    let of_demo = |object: &Object| match &object.config {
        Config::Container(config) => {
            config.labels.get("io.kubernetes.pod.namespace").is_some_and(|name| name == crate::demo::NAMESPACE)
        }
        Config::Sandbox(_) => false,
    };
    let sick = table.find(id).as_ref().and_then(pod);
    let runs = |object: &Object| matches!(table.standing(object), Ok(Standing::Running(_)));
    table
        .containers()
        .into_iter()
        .find(|other| of_demo(other) && pod(other) != sick && table.find(&other.sandbox).is_some() && runs(other))
}

/// `mutant-executor MUTATION NRH ARGS…`: `nrh run-command` made wrong, everything else as it is.
pub(super) fn run() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [mutation, nrh, rest @ ..] = args.as_slice() else { anyhow::bail!("no mutation, or no program") };
    let mut command = Command::new(nrh);
    command.args(rest);
    if rest.first().is_some_and(|verb| verb == "run-command") {
        let order: Value = serde_json::from_str(&std::env::var("NRH_COMMAND")?).context("the order")?;
        match Mutation::from_str(mutation, true).map_err(anyhow::Error::msg)? {
            Mutation::NoOp => return lie(&order),
            Mutation::WrongId => drop(command.env("NRH_COMMAND", swapped(order)?.to_string())),
            Mutation::Blinded => {}
        }
    }
    Err(command.exec()).with_context(|| format!("run {nrh}"))
}

/// Says what an executor says that has done as ordered.
fn lie(order: &Value) -> Result<()> {
    let outcome = json!({
        "operationId": order["operationId"], "state": "Done", "reason": "Executed",
        "message": "a mutant: nothing was done", "at": Timestamp::now(),
    });
    std::fs::write("/dev/termination-log", outcome.to_string()).context("the last words")
}

/// The same order, about a healthy neighbour.
fn swapped(mut order: Value) -> Result<Value> {
    let table = Table::open(Path::new(ROOT))?;
    let sick = order["target"]["containerId"].as_str().unwrap_or_default();
    let other = neighbour(&table, sick).context("no healthy neighbour")?;
    let Identity { pid, started } = table.shim_of(&other.sandbox)?.context("the neighbour has no shim")?;
    let target = &mut order["target"];
    target["containerId"] = json!(other.id);
    target["sandboxId"] = json!(other.sandbox);
    target["process"]["pid"] = json!(pid);
    target["process"]["startTicks"] = json!(started);
    Ok(order)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use k8s_cri::v1 as cri;

    use super::super::table::tests::object;
    use super::*;

    fn add(table: &Table, id: &str, sandbox: &str, config: Config) -> Object {
        let object = object(id, sandbox, config);
        table.add(&object).unwrap();
        object
    }

    #[test]
    fn each_lens_is_wrong_in_its_own_way() {
        let folder = tempfile::tempdir().unwrap();
        let table = Table::open(folder.path()).unwrap();
        let orphan = add(&table, "orphan", "lost", Config::Container(Box::default()));
        let clear = Lens::default();
        assert!(clear.shows(&table, &orphan) && clear.reached(&table, "orphan").as_deref() == Some("orphan"));
        let blinded = Lens::new(Some(Mutation::Blinded));
        assert!(!blinded.shows(&table, &orphan) && blinded.tasks_answer());
        let idle = Lens::new(Some(Mutation::NoOp));
        assert!(idle.shows(&table, &orphan));
        assert_eq!(idle.reached(&table, "orphan"), None);
        assert!(!idle.shows(&table, &orphan) && table.find("orphan").is_some());

        add(&table, "s2", "s2", Config::Sandbox(Box::default()));
        let labels = [("io.kubernetes.pod.namespace", crate::demo::NAMESPACE), ("io.kubernetes.pod.uid", "u2")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let config = cri::ContainerConfig { labels, ..Default::default() };
        add(&table, "healthy", "s2", Config::Container(Box::new(config)));
        let me = Identity::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        table.started("healthy", me).unwrap();
        super::super::table::write(&table.shim_identity("s2"), &me).unwrap();
        let wrong = Lens::new(Some(Mutation::WrongId));
        assert_eq!(wrong.reached(&table, "orphan").as_deref(), Some("healthy"));
    }
}
