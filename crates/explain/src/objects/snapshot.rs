//! The snapshot that the objects make.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;

use super::{Objects, heartbeat};
use nrh_api::convert::{self, Invalid};
use nrh_api::view::{node, pods, report};
use nrh_api::{NodeRuntimeHealth, Suspend, WrittenFlap};
use nrh_core::condition_history::ConditionHistory;
use nrh_core::external_condition::ObservedCondition;
use nrh_core::fault::PodRef;
use nrh_core::flap::{Flap, FlapView};
use nrh_core::matching::PodSeen;
use nrh_core::policy::{Policy, asked_keys};
use nrh_core::snapshot::{Ledger, Slot, Snapshot, TriState};

impl Objects {
    /// The snapshot as of `now`, and the errors of objects that cannot be used.
    pub fn snapshot(&self, now: Timestamp) -> (Snapshot, Vec<String>) {
        let mut invalid = self.unreadable.clone();
        // The rights of the controller are not checked here, as with hand-offs.
        let mut snapshot = Snapshot { now, ceiling: u32::MAX, may_evict: TriState::True, ..Snapshot::default() };
        snapshot.suspended = self.suspended.clone().or_else(|| self.configs.iter().find_map(Suspend::veto));
        for object in &self.nodes {
            snapshot.nodes.insert(object.name_any(), node::view(object));
        }
        self.add_reports(&mut snapshot, &mut invalid);
        snapshot.commands.clone_from(&self.commands);
        for object in &self.policies {
            match convert::policy(object) {
                Ok(policy) => snapshot.policies.push(policy),
                Err(Invalid(errors)) => {
                    invalid.push(format!("policy {} cannot be used: {}", object.name_any(), errors.join("; ")));
                }
            }
        }
        self.add_remediations(&mut snapshot);
        snapshot.unreadable = self.lost.clone();
        snapshot.noticed = self.noticed(&snapshot);
        snapshot.pods_seen = self.pods_seen(&snapshot.policies);
        (snapshot, invalid)
    }

    fn add_reports(&self, snapshot: &mut Snapshot, invalid: &mut Vec<String>) {
        for object in &self.healths {
            let mut view = report::view(object);
            // The controller measures arrival by its own clock; the caller has only the times in the object.
            let age = heartbeat(object)
                .and_then(|at| snapshot.now.duration_since(at).try_into().ok())
                .unwrap_or(Duration::ZERO);
            if let Some(beat) = view.heartbeat.as_mut() {
                beat.arrived = age;
            }
            for reported in &mut view.faults {
                reported.looked = reported.looked.saturating_add(age);
            }
            snapshot.reports.insert(object.name_any(), view);
            match flap(object, snapshot) {
                Ok(Some(flap)) => drop(snapshot.flaps.insert(object.name_any(), flap)),
                Ok(None) => {}
                Err(why) => {
                    let name = object.name_any();
                    invalid.push(format!("status.flapping of NodeRuntimeHealth {name} is not used: {why}"));
                }
            }
        }
        for (metadata, error) in &self.broken {
            let view = report::unreadable(metadata, error);
            snapshot.reports.insert(metadata.name.clone().unwrap_or_default(), view);
        }
    }

    /// Adds the remediations and manual requests, with the slots that the open ones hold.
    fn add_remediations(&self, snapshot: &mut Snapshot) {
        let mut ledger = Ledger::default();
        for object in &self.remediations {
            if let Some(manual) = convert::manual(object) {
                snapshot.manual_requests.insert(manual.name.clone(), manual);
                continue;
            }
            let remediation = convert::remediation(object);
            if remediation.is_open() {
                let slot = Slot {
                    node: remediation.node.clone(),
                    policy: remediation.policy.clone(),
                    taken_at: remediation.started_at,
                    kinds: None,
                };
                ledger.slots.insert(remediation.name.clone(), slot);
            }
            snapshot.remediations.insert(remediation.name.clone(), remediation);
        }
        snapshot.ledger = Some(ledger);
    }

    /// Conditions that policies ask for. Only the controller knows how long they have been there: one that it has not written
    /// down yet counts as new.
    fn noticed(&self, snapshot: &Snapshot) -> BTreeMap<String, Vec<ObservedCondition>> {
        let mut notices = ConditionHistory::default();
        for (node, view) in &snapshot.nodes {
            notices.note(node, view, &snapshot.policies, Duration::ZERO);
        }
        let mut all = notices.noticed(Duration::ZERO, snapshot.now);
        for (node, noticed) in &mut all {
            let told = self.told(node).faults;
            for one in noticed {
                let id = one.id(node);
                let Some(known) = told.iter().find(|fault| fault.id == id) else { continue };
                one.first_seen = known.first_seen;
                let lasted = Duration::try_from(snapshot.now.duration_since(known.first_seen)).unwrap_or_default();
                for of in one.lasted.values_mut() {
                    (of.unbroken, of.all_in_all) = (lasted, lasted);
                }
            }
        }
        all
    }

    /// What is known of the pods that were read: all their labels, and which labels that policies ask for they lack.
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

/// How the node flaps, as the controller has last written it. The rest of the history only the controller knows.
fn flap(object: &NodeRuntimeHealth, snapshot: &Snapshot) -> Result<Option<FlapView>, String> {
    let written = object.status.as_ref().and_then(|status| status.flapping.as_ref()).map(WrittenFlap::read);
    let Some(record) = written else { return Ok(None) };
    let record = record.map_err(ToOwned::to_owned)?;
    let view = snapshot.nodes.get(&object.name_any());
    let Some(view) = view.filter(|view| report::owner(&object.metadata).as_ref() == Some(&view.uid)) else {
        return Ok(None);
    };
    let stands = (view.ready, view.ready_since);
    let flap = Flap::restored(record, None, (stands, stands), 0, snapshot.now)?;
    Ok(flap.settled(0).map(|flap| FlapView {
        record: record.clone(),
        flapping: flap.is_flapping().then(|| flap.lasted(0)),
        unchanged: Duration::from_secs(u64::try_from(flap.unchanged_for(0)).unwrap_or(0)),
        stayed: Vec::new(),
    }))
}
