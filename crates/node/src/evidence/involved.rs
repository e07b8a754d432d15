//! Finds the processes involved in a fault, from the last reading of the process table; it reads nothing itself.

use nrh_api::evidence::ProcessEvidence;
use nrh_core::fault::Fault;
use nrh_core::observation::{Observations, ProcessRole, ProcessSeen};

/// Maximum number of processes per bundle.
const MAX_INVOLVED: usize = 6;

/// Returns the fault's own process first, then the daemons, then its shim, then any other process that is stopped or
/// stuck. Each has what is known before anything is read.
pub(super) fn involved(fault: &Fault, seen: &Observations) -> Vec<ProcessEvidence> {
    let mut found: Vec<ProcessEvidence> = Vec::new();
    let mut add = |part: &str, pid: i32, start_ticks: u64, command: &str| {
        let known = found.iter().any(|one| (one.pid, one.start_ticks) == (pid, start_ticks));
        if !known && found.len() < MAX_INVOLVED {
            let (part, command) = (part.to_owned(), command.to_owned());
            found.push(ProcessEvidence { part, pid, start_ticks, command, ..ProcessEvidence::default() });
        }
    };
    if let Some(target) = &fault.target.process {
        add("target", target.pid, target.start_ticks, &target.command);
    }
    let table = seen.processes.value();
    let processes: &[ProcessSeen] = table.map_or(&[], |table| &table.processes);
    let mut add_all = |part, wanted: &dyn Fn(&ProcessSeen) -> bool| {
        for process in processes.iter().filter(|process| wanted(process)) {
            add(part, process.pid, process.start_ticks, &process.command);
        }
    };
    add_all("runtime", &|process| process.role == ProcessRole::Runtime);
    add_all("kubelet", &|process| process.role == ProcessRole::Kubelet);
    add_all("shim", &|process| process.role.serves().is_some_and(|(id, _)| is_of(fault, id)));
    add_all("stuck", &|process| is_stuck(process.state));
    for process in table.iter().flat_map(|table| &table.unproven).filter(|process| is_stuck(process.state)) {
        add("stuck", process.pid, process.start_ticks, &process.command);
    }
    found
}

fn is_of(fault: &Fault, id: &str) -> bool {
    let (subject, target) = (&fault.subject, &fault.target);
    let ids = [&subject.id, &subject.sandbox_id, &target.container_id, &target.sandbox_id];
    ids.into_iter().flatten().any(|known| known == id)
}

/// Whether the process is stopped, or in an uninterruptible wait.
const fn is_stuck(state: char) -> bool {
    matches!(state, 'D' | 'T' | 't')
}

#[cfg(test)]
mod tests {
    use super::*;
    use nrh_core::examples::{Node, SANDBOX, fault};
    use nrh_core::fault::{FaultType, ProcessRef};

    #[test]
    fn the_target_comes_first_and_nobody_twice() {
        let mut node = Node::healthy();
        node.freeze(SANDBOX);
        let mut fault = fault(FaultType::HungContainer);
        fault.subject.sandbox_id = Some(SANDBOX.into());
        let found = involved(&fault, &node);
        let parts: Vec<&str> = found.iter().map(|one| one.part.as_str()).collect();
        assert!(parts.contains(&"shim") && parts.contains(&"runtime") && !parts.contains(&"target"), "{parts:?}");
        let shim = found.iter().find(|one| one.part == "shim").unwrap().clone();
        let process = nrh_core::examples::shim("").1.process.unwrap();
        let (pid, start_ticks, command) = (shim.pid, shim.start_ticks, shim.command.clone());
        fault.target.process = Some(ProcessRef { pid, start_ticks, command, ..process });
        let again = involved(&fault, &node);
        assert_eq!((again.len(), again[0].part.as_str(), again[0].pid), (found.len(), "target", shim.pid));
    }

    #[test]
    fn a_stopped_shim_is_told_also_where_the_fault_names_none() {
        let mut node = Node::healthy();
        node.freeze(SANDBOX);
        let found = involved(&fault(FaultType::RuntimeUpdateBlocked), &node);
        assert!(found.iter().any(|one| one.part == "stuck"), "{found:?}");
        assert!(found.len() <= MAX_INVOLVED);
        assert!(involved(&fault(FaultType::RuntimeUpdateBlocked), &Node::unavailable()).is_empty());
    }
}
