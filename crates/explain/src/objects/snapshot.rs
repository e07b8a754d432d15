//! The snapshot that the objects make.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::Objects;
use nrh_api::WrittenFlap;
use nrh_api::view::{pods, report};
use nrh_core::condition_history::ConditionHistory;
use nrh_core::fault::PodRef;
use nrh_core::flaps::Flaps;
use nrh_core::kubelet::says_pleg_stalled;
use nrh_core::matching::PodSeen;
use nrh_core::moment::since;
use nrh_core::policy::{Policy, asked_keys};
use nrh_core::remediation::Remediation;
use nrh_core::snapshot::{Ledger, NodeView, Slot, Snapshot, TriState};

impl Objects {
    /// The snapshot as of `now`, and the errors of objects that cannot be used.
    pub fn snapshot(&self, now: Timestamp) -> (Snapshot, Vec<String>) {
        let mut unusable = self.unusable.clone();
        // The rights of the controller are not checked here, as with hand-offs.
        let mut snapshot = Snapshot { now, ceiling: u32::MAX, may_evict: TriState::True, ..self.read.clone() };
        // Few people may read the ledger. What is open holds a slot.
        let open = snapshot.remediations.values().filter(|remediation| remediation.is_open());
        snapshot.ledger = Some(Ledger { slots: open.map(|open| (open.name.clone(), slot(open))).collect() });
        snapshot.pods_seen = self.pods_seen(&snapshot.policies);
        // The controller measures arrival by its own clock; the caller has only the times in the objects.
        for (node, view) in &mut snapshot.reports {
            let probe = self.status(node).and_then(|status| status.probe.as_ref());
            let made = probe.and_then(|probe| probe.heartbeat_at);
            report::age(view, made.map_or(Duration::ZERO, |made| since(now, made)), true);
        }
        self.fill_histories(&mut snapshot, &mut unusable);
        (snapshot, unusable)
    }

    /// Fills how nodes flap and since when conditions match what policies ask for, as the controller has last written it. The rest
    /// of the histories only the controller knows: a condition that it has not written down yet counts as new.
    fn fill_histories(&self, snapshot: &mut Snapshot, unusable: &mut Vec<String>) {
        let (mut conditions, mut flaps, begin) = (ConditionHistory::default(), Flaps::default(), Duration::ZERO);
        for (node, view) in &snapshot.nodes {
            conditions.note(node, view, &snapshot.policies, begin);
            flaps.note_ready(node, view, begin);
        }
        let written = |node: &str| {
            let (owner, status) = self.statuses.get(node)?;
            owner.as_deref().zip(status.flapping.as_ref().map(WrittenFlap::read))
        };
        for (node, why) in flaps.restore(begin, snapshot.now, written) {
            unusable.push(format!("status.flapping of NodeRuntimeHealth {node} is not used: {why}"));
        }
        snapshot.flaps = flaps.views(begin, snapshot.now);
        let stalled = snapshot.nodes.iter().filter(|(_, view)| says_pleg_stalled(view));
        let said = |(node, view): (&String, &NodeView)| Some((node.clone(), since(snapshot.now, view.ready_since?)));
        snapshot.stalls = stalled.filter_map(said).collect();
        snapshot.matched_conditions = conditions.matched_conditions(begin, snapshot.now);
        for (node, matched_conditions) in &mut snapshot.matched_conditions {
            let reported = self.status(node).map(|status| status.cluster_faults.as_slice()).unwrap_or_default();
            for one in matched_conditions {
                let id = one.id(node);
                let Some(known) = reported.iter().find(|fault| fault.id == id) else { continue };
                one.first_seen = known.first_seen;
                let lasted = since(snapshot.now, known.first_seen);
                for of in one.lasted.values_mut() {
                    (of.unbroken, of.all_in_all) = (lasted, lasted);
                }
            }
        }
    }

    /// What is known of the pods that were read: all their labels, since a recording keeps them, and which labels that policies
    /// ask for they lack.
    fn pods_seen(&self, policies: &[Policy]) -> BTreeMap<PodRef, PodSeen> {
        let asked = asked_keys(policies);
        let gone = self.gone.iter().map(|pod| (pod.clone(), PodSeen::Gone));
        let read = self.pods.iter().flat_map(|pod| {
            let labels = pod.metadata.labels.iter().flatten().map(|(key, _)| key.clone());
            let seen = PodSeen::Read(pods::traits(pod, &asked.iter().cloned().chain(labels).collect()));
            pods::names(pod).map(move |name| (name, seen.clone()))
        });
        gone.chain(read).collect()
    }
}

fn slot(remediation: &Remediation) -> Slot {
    Slot {
        node: remediation.node.clone(),
        policy: remediation.policy.clone(),
        taken_at: remediation.started_at,
        kinds: None,
    }
}
