//! What an effect of a plan changes in the simulated cluster.

use jiff::Timestamp;

use super::{World, marks};
use crate::workload;
use nrh_core::command::{ActionCommand, OutcomeReason};
use nrh_core::moment::since;
use nrh_core::plan::{Effect, Operation};
use nrh_core::remediation::{ActionResult, Marker, Remediation, executed, removed, timed_out};
use nrh_core::snapshot::JobView;

impl World {
    /// Executes one effect. `may_record`: the result of an action is written before anything else happens. Returns false when it
    /// failed.
    pub fn apply(&mut self, effect: &Effect, may_record: bool) -> bool {
        match effect {
            Effect::StoreLedger(ledger) => self.ledger = Some(ledger.clone()),
            Effect::WriteRemediation(remediation) | Effect::BeginManualRequest(remediation) => {
                return self.write(remediation);
            }
            Effect::UpdateManualRequest { name, identity, message, .. } => {
                self.version += 1;
                let version = self.version.to_string();
                let Some(manual) = self.manual_requests.get_mut(name).filter(|manual| manual.identity == *identity)
                else {
                    return false;
                };
                message.clone_into(&mut manual.message);
                manual.identity.1 = version;
            }
            Effect::Act { remediation, operation_id, node, node_uid, operation } => {
                // The preflight of the action.
                if self.remediations.get(remediation).is_none_or(|remediation| remediation.cancel.is_some()) {
                    return false;
                }
                let Some(result) = self.act(node, node_uid, remediation, operation_id, operation) else { return false };
                let next = |known: &Remediation, now| executed(known, operation_id, result, now);
                return !may_record || self.record(remediation, next);
            }
            Effect::Remove { remediation, node, marker, successor } => {
                match marker {
                    Marker::Cordon => self.uncordon(remediation, node, successor.as_ref()),
                    Marker::Taint => self.untaint(remediation, node),
                    Marker::HandOff(handed) => {
                        self.remediators.delete(handed);
                        self.log.push((handed.name.clone(), "take back".into()));
                    }
                }
                return !may_record || self.record(remediation, |known, now| removed(known, marker, now));
            }
            Effect::TimeOutHandOff { remediation, handed, why, .. } => {
                self.remediators.tell(handed);
                self.log.push((handed.name.clone(), "time out".into()));
                let next = |known: &Remediation, now| timed_out(known, &handed.operation_id, why, now);
                return !may_record || self.record(remediation, next);
            }
            Effect::WithdrawCommand { node, .. } => {
                if let Some(node) = self.nodes.get_mut(node) {
                    node.command = None;
                }
            }
            Effect::DeleteJob { operation_id } => drop(self.jobs.remove(operation_id)),
            Effect::DeleteRemediation { name } => drop(self.remediations.remove(name)),
        }
        true
    }

    fn record(&mut self, remediation: &str, next: impl FnOnce(&Remediation, Timestamp) -> Remediation) -> bool {
        let Some(known) = self.remediations.get(remediation).cloned() else { return true };
        let next = next(&known, self.now);
        next == known || self.write(&next)
    }

    fn write(&mut self, remediation: &Remediation) -> bool {
        let manual = self.manual_requests.get(&remediation.name).map(|manual| &manual.identity);
        let stored = self.remediations.get(&remediation.name).and_then(|stored| stored.identity.as_ref()).or(manual);
        if stored != remediation.identity.as_ref() {
            return false;
        }
        self.manual_requests.remove(&remediation.name);
        self.version += 1;
        let mut stored = remediation.clone();
        stored.identity = Some((format!("uid-{}", remediation.name), self.version.to_string()));
        self.remediations.insert(remediation.name.clone(), stored);
        true
    }

    fn act(&mut self, node: &str, uid: &str, name: &str, id: &str, operation: &Operation) -> Option<ActionResult> {
        let now = self.now;
        let world_node = self.nodes.get_mut(node)?;
        if world_node.view.uid != uid {
            let message = "another node".to_owned();
            return Some(ActionResult::Refused { reason: OutcomeReason::WrongNode, message });
        }
        if self.refuses && !matches!(operation, Operation::Notify(_)) {
            self.log.push((node.to_owned(), format!("refused {}", describe(operation))));
            return Some(ActionResult::Failed { message: format!("creating Job {id} failed: not allowed here (403)") });
        }
        self.log.push((node.to_owned(), describe(operation)));
        let done = || Some(ActionResult::Done { message: "done".to_owned() });
        match operation {
            Operation::Cordon => {
                let this = self.state.remediations.get(name);
                let kept = world_node.view.cordoned_by.as_ref().and_then(|mark| self.state.remediations.get(mark));
                let is_left = kept.zip(this).is_some_and(|(kept, this)| this.shares_cordon_of(kept));
                Some(marks::cordon(world_node, name, is_left))
            }
            Operation::Taint(effect) => marks::taint(world_node, name, *effect),
            Operation::Drain(with) => {
                let is_ours = world_node.view.unschedulable && world_node.view.cordoned_by.as_deref() == Some(name);
                let known = self.state.remediations.get(name)?;
                let step = known.current_step().filter(|step| is_ours && step.operation_id == id)?;
                let began = step.started_at.unwrap_or(now);
                let faults = world_node.sick.iter().map(|sick| &sick.fault);
                Some(workload::drain(&mut world_node.workloads, with, faults, now, id, since(now, began)))
            }
            Operation::DeletePod(pod) => {
                let Some(at) = world_node.pods.iter().position(|p| p.pod == *pod) else {
                    return Some(ActionResult::Gone { message: "gone".to_owned() });
                };
                *self.acts.entry(id.to_owned()).or_default() += 1;
                world_node.deleted.push(world_node.pods.remove(at));
                done()
            }
            Operation::Notify(_) => done(),
            Operation::HandOff(with) => {
                // The preflight of the action: a finished step creates nothing.
                self.remediations.get(name)?.current_step().filter(|step| step.operation_id == id)?;
                Some(self.remediators.make(self.nodes.get(node)?.remediator, node, id, with, now))
            }
            Operation::RunJob(command) => {
                let job = JobView { operation_id: id.to_owned(), ..JobView::default() };
                self.jobs.entry(id.to_owned()).or_insert_with(|| (command.clone(), job));
                Some(ActionResult::Started)
            }
            Operation::GiveCommand(command) => {
                debug_assert!(command.issued_at <= now, "a command of the future");
                let answered = world_node.report.agent.as_ref().map(|agent| &agent.operation_id);
                let standing = world_node.command.as_ref().map(|command| &command.operation_id);
                if standing.is_some_and(|standing| standing != id && answered != Some(standing)) {
                    return None; // not now: another command waits for its answer
                }
                world_node.command = Some(command.clone());
                Some(ActionResult::Started)
            }
        }
    }
}

/// The operation in two words.
pub fn describe(operation: &Operation) -> String {
    match operation {
        Operation::Cordon => "cordon".into(),
        Operation::Taint(_) => "taint".into(),
        Operation::Drain(_) => "drain".into(),
        Operation::DeletePod(pod) => format!("delete {}", pod.name),
        Operation::RunJob(command) => format!("job {}", name(command)),
        Operation::GiveCommand(command) => format!("command {}", name(command)),
        Operation::HandOff(with) => format!("hand off by {}", with.remediation_template.object_kind()),
        Operation::Notify(_) => "notify".into(),
    }
}

/// The action of a command, with its signal.
fn name(command: &ActionCommand) -> String {
    let action = command.action.kind().as_str();
    command.signal().map_or_else(|| action.to_owned(), |signal| format!("{action}({})", signal.as_str()))
}
