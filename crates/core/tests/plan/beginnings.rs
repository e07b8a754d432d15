//! Worlds to begin with.

use nrh_core::fault::{Fault, FaultType};
use nrh_core::policy::{Rule, Step};
use nrh_core::snapshot::SuspectPod;

use crate::samples::{policy, rule, secs, workload};
use crate::world::{ClearedBy, World};

impl World {
    /// Nodes under one policy with one rule for all kinds of fault.
    pub fn under(steps: &[Step], nodes: &[impl AsRef<str>]) -> Self {
        Self::new(&[policy("p", &[rule("r", &FaultType::ALL, steps)])], nodes)
    }

    /// One node under one policy with these rules.
    pub fn with_rules(rules: &[Rule]) -> Self {
        Self::new(&[policy("p", rules)], &["n1"])
    }

    /// One node with one fault, under one rule for all kinds of fault.
    pub fn sick(fault: Fault, by: impl Into<Option<ClearedBy>>, steps: &[Step]) -> Self {
        Self::under(steps, &["n1"]).ill(fault, by)
    }

    /// The same under a rule for this kind of fault alone: none is for a probe that is silent.
    pub fn alone(fault: Fault, by: impl Into<Option<ClearedBy>>, steps: &[Step]) -> Self {
        Self::with_rules(&[rule("r", &[fault.kind], steps)]).ill(fault, by)
    }

    /// n1 has this fault.
    pub fn ill(mut self, fault: Fault, by: impl Into<Option<ClearedBy>>) -> Self {
        self.inject("n1", fault, by);
        self
    }

    /// A DaemonSet has this pod on n1.
    pub fn with_pod(mut self, pod: SuspectPod) -> Self {
        self.node("n1").pods.push(pod);
        self
    }

    /// So many pods run on n1 that a drain may evict.
    pub fn with_pods(mut self, count: usize) -> Self {
        self.node("n1").workloads = (0..count).map(|number| workload(&format!("web-{number}"))).collect();
        self
    }

    /// No Job starts on n1.
    pub fn without_jobs(mut self) -> Self {
        self.node("n1").job_starts = false;
        self
    }

    /// The same world after [`World::schedule`].
    pub fn scheduled(mut self) -> Self {
        self.schedule();
        self
    }

    /// The same world after so many passes at one moment.
    pub fn passed(mut self, count: usize) -> Self {
        self.passes(count);
        self
    }

    /// The same world after [`World::run`] for so many seconds.
    pub fn ran(mut self, seconds: u64) -> Self {
        self.run(secs(seconds));
        self
    }
}
