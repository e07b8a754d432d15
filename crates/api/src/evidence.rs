//! The evidence bundle of one confirmed fault, as the probe keeps it on the node and `nrh evidence` prints it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::health::{CollectorStatus, KubeletStatus, RuntimeStatus};
use nrh_core::fault::Fault;

/// Largest bundle, as JSON.
pub const LARGEST: usize = 128 << 10;

/// Everything that was collected of one confirmed fault, at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bundle {
    /// Its name: the fault's id and when that was first seen.
    pub name: String,
    /// Name of the node.
    pub node: String,
    /// The boot it was collected in: start ticks are of this boot.
    pub boot_id: String,
    /// When it was begun.
    pub collected_at: Timestamp,
    /// Version of the probe.
    pub probe_version: String,
    /// The fault as it was reported then.
    pub fault: Fault,
    /// The runtime, as last seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeStatus>,
    /// The kubelet, as last seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<KubeletStatus>,
    /// How each collector was.
    #[serde(default)]
    pub collectors: Vec<CollectorStatus>,
    /// The probe's calls: in flight, abandoned, stalled.
    #[serde(flatten)]
    pub calls: CallCounts,
    /// The processes involved.
    #[serde(default)]
    pub processes: Vec<ProcessEvidence>,
    /// The kernel's last lines.
    #[serde(default)]
    pub kernel_log: Section,
    /// The journals of the runtime and the kubelet.
    #[serde(default)]
    pub journal: Section,
    /// The stacks of the runtime's goroutines.
    #[serde(default)]
    pub goroutines: Section,
}

/// Lines that were read; or why they were not, and what a person can do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Section {
    /// What was read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<String>,
    /// What is missing, and why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Section {
    /// Nothing was read, for this reason.
    pub fn missing(why: impl Into<String>) -> Self {
        Self { lines: Vec::new(), note: why.into() }
    }
}

/// One process, as the kernel tells of it. Neither arguments nor environment nor open files are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessEvidence {
    /// What it has to do with the fault: `target`, `runtime`, `kubelet`, `shim`.
    pub part: String,
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Command name.
    #[serde(default)]
    pub command: String,
    /// Scheduler state letter; empty where it could not be read.
    #[serde(default)]
    pub state: String,
    /// Kernel function it waits in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wchan: Option<String>,
    /// The signals for which it has a handler, in hexadecimal as the kernel writes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caught_signals: Option<String>,
    /// Kernel functions in which its first thread is.
    #[serde(default)]
    pub stack: Section,
    /// How many of its threads are in which state.
    #[serde(default)]
    pub thread_states: BTreeMap<String, u32>,
    /// Its threads, those that neither sleep nor idle first.
    #[serde(default)]
    pub threads: Vec<ThreadEvidence>,
    /// Its limits.
    #[serde(default)]
    pub limits: Section,
    /// Its control groups.
    #[serde(default)]
    pub groups: Section,
    /// Why the evidence of this process is incomplete. Empty if it is complete.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// One thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThreadEvidence {
    /// Its id.
    pub id: i32,
    /// Scheduler state letter.
    pub state: String,
    /// Kernel function it waits in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wchan: Option<String>,
    /// Kernel functions in which it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
}

/// What became of the collectors' calls, by collector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CallCounts {
    /// Calls out now.
    #[serde(rename = "callsOut")]
    pub out: BTreeMap<String, usize>,
    /// Calls dropped without an answer since the probe began.
    #[serde(rename = "callsAbandoned")]
    pub abandoned: BTreeMap<String, u64>,
    /// Seconds since the probe started in which calls were out and the probe itself could not run. The probe does not count them
    /// as time without an answer.
    pub stalled_seconds: BTreeMap<String, f64>,
}

impl Bundle {
    /// Serializes the bundle as JSON, within the maximum size. It drops the least useful parts first and notes each dropped part.
    pub fn into_json(mut self) -> serde_json::Result<Vec<u8>> {
        const CUT: &str = "left out: the bundle would be larger than 128 KiB";
        loop {
            let json = serde_json::to_vec(&self)?;
            if json.len() <= LARGEST {
                return Ok(json);
            }
            if !self.kernel_log.lines.is_empty() {
                self.kernel_log = Section::missing(CUT);
            } else if let Some(process) = self.processes.iter_mut().rev().find(|process| process.note != CUT) {
                let ProcessEvidence { part, pid, start_ticks, command, state, .. } = std::mem::take(process);
                let note = CUT.to_owned();
                *process =
                    ProcessEvidence { part, pid, start_ticks, command, state, note, ..ProcessEvidence::default() };
            } else {
                // Nothing else grows: the fault and the collectors are bounded far below it.
                return Ok(json);
            }
        }
    }
}
