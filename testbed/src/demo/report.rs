//! The demo's result, for people and for machines.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// All of it: `target/demo/report.json`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Report {
    /// Whether everything held.
    pub ok: bool,
    /// Where it was played.
    #[serde(default)]
    pub stage: StageKind,
    /// Each act.
    pub acts: Vec<ActReport>,
    /// What must not change.
    pub untouched: Untouched,
    /// The operator's shipped default thresholds, in seconds.
    pub thresholds: BTreeMap<String, u64>,
    /// Every failed check, one line each.
    pub objections: Vec<String>,
}

/// Where a demo is played.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StageKind {
    /// Real kubelets, real containerds.
    #[default]
    RealNode,
    /// Stand-ins play both; control plane, operator and processes are real.
    FakeRuntime,
}

/// One act.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ActReport {
    /// Its name.
    pub act: String,
    /// Whether the enforced run resolved it in time, its control stayed sick and nothing else was touched.
    pub ok: bool,
    /// Seconds from the injection.
    pub seconds: Seconds,
    /// The same injection under the dry run.
    pub control: Control,
}

/// Seconds from the injecting system call, by the bed's clock.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Seconds {
    /// Until the node's object names the fault as confirmed.
    pub detected: Option<f64>,
    /// Until the target was touched, by kernel, runtime or API server.
    pub executed: Option<f64>,
    /// Until the pods run again, by the API *and* the runtime.
    pub healed: Option<f64>,
}

/// A control.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Control {
    /// Whether it stayed sick for the act's threshold and 60 s more.
    pub ok: bool,
    /// Seconds it was watched.
    pub watched_seconds: f64,
}

/// What was compared before and after, over all acts.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Untouched {
    /// Whether nothing differs outside the faults.
    pub ok: bool,
    /// Pods compared.
    pub pods: usize,
    /// Containers compared.
    pub containers: usize,
    /// Processes compared.
    pub processes: usize,
}
