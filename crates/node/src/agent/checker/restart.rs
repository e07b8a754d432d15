//! The preflight of a daemon restart: the daemon is still faulty as reported, and nothing exists that the restart would
//! break or that would break the restart.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use super::unit::{Process, Unit, expected, find_in, is_silence};
use super::{Checker, asked, recovered};
use crate::agent::verdict::Refusal;
use crate::bus::units::UnitSeen;
use crate::collect::kubelet::{self, Found};
use crate::cri::CriError;
use crate::proc::role::{Proof, Prover, is_monitor_name, is_shim_name};
use crate::proc::{self, Handle, listener};
use crate::runtime::Client;
use nrh_core::action::Restart;
use nrh_core::command::OutcomeReason;
use nrh_core::fault::FaultType;
use nrh_core::faults::exhaustion::EXHAUSTED_PERCENT;
use nrh_core::faults::orphan_container::may_block_start;
use nrh_core::faults::runtime_client_hung::ENDING;
use nrh_core::policy::Daemon;
use nrh_core::text::bounded;
use nrh_core::tri_state::TriState;

/// Daemons that serve CRI themselves.
const SPEAKERS: [&str; 2] = ["containerd", "crio"];

/// Age from which the probe's judgement proves nothing. It judges every 15 s and more often.
const MAX_JUDGEMENT_AGE: Duration = Duration::from_mins(1);

#[derive(Default)]
struct Table {
    runtimes: Vec<Process>,
    /// Stopped shims, and running calls of the runtime, each as a phrase.
    stopped: Vec<String>,
    at_work: Vec<String>,
    unproven: Vec<Unproven>,
    /// Addresses that the kubelet's shims have for their containerd.
    addresses: Vec<String>,
}

impl Table {
    /// Notes which containerds the kubelet does not use. A process that cannot be proven may be a shim of the kubelet's.
    fn note_others(&mut self, endpoint: Option<&Path>) {
        let shims: Vec<&str> = self.addresses.iter().map(String::as_str).collect();
        let endpoint = endpoint.filter(|_| self.unproven.is_empty());
        for process in &mut self.runtimes {
            let known = process.socket.as_deref().zip(endpoint);
            process.is_others = known.is_some_and(|(path, endpoint)| listener::is_elsewhere(path, endpoint, &shims));
        }
    }
}

/// A process that may have a role, and cannot be read: it waits uninterruptibly, as a rule.
struct Unproven {
    phrase: String,
    why: String,
    /// Whether it has the name of a shim or a conmon.
    may_be_shim: bool,
}

impl Checker {
    /// Returns the unit to restart, if all checks allow it. Slow checks come first: the daemon's own state is checked
    /// last. At the restart the unit must be in the same state as before that check.
    pub(in crate::agent) async fn still_to_restart(
        &self,
        kind: FaultType,
        daemon: Daemon,
        params: &Restart,
    ) -> Result<Unit, Refusal> {
        let name = expected(daemon, params, &self.endpoint)?;
        let mut table = self.daemons().await?;
        for process in &mut table.runtimes {
            self.note_main_process(process, &name).await?;
        }
        if !params.skip_safety_check {
            self.harmless(daemon, &name, &table).await?;
        }
        match daemon {
            Daemon::Kubelet => self.kubelet_to_restart(name, kind, params, &table.runtimes).await,
            Daemon::Runtime => {
                let process = of_the_runtime(&table.runtimes, &name, params)?;
                let unit = self.unit_in_service(name, daemon, process, params, &table.runtimes).await?;
                match (kind, process) {
                    (FaultType::FdExhaustion, Some(process)) => self.files_still_scarce(process.pid).await?,
                    (FaultType::FdExhaustion, None) => {
                        return Err(Refusal::new(OutcomeReason::TargetGone, "the runtime does not run any more"));
                    }
                    _ => self.runtime_still_faulty(kind, Some(&unit.seen)).await?,
                }
                Ok(unit)
            }
        }
    }

    async fn kubelet_to_restart(
        &self,
        name: String,
        kind: FaultType,
        params: &Restart,
        runtimes: &[Process],
    ) -> Result<Unit, Refusal> {
        let found = self.kubelet(&name).await?;
        let process = found.as_ref().map(|(_, process)| process);
        if let Some(process) = process {
            process.is_of(&name, "kubelet")?;
        }
        let unit = self.unit_in_service(name, Daemon::Kubelet, process, params, runtimes).await?;
        match (kind, &found) {
            (FaultType::FdExhaustion, Some((found, _))) => self.files_still_scarce(found.pid).await?,
            (FaultType::FdExhaustion, None) => {
                return Err(Refusal::new(OutcomeReason::TargetGone, "no kubelet runs any more"));
            }
            (_, Some((found, _))) => self.kubelet_still_down(found).await?,
            (_, None) => {}
        }
        Ok(unit)
    }

    /// Returns the running kubelet, if there is one; it may be the main process of this unit.
    async fn kubelet(&self, unit: &str) -> Result<Option<(Found, Process)>, Refusal> {
        let Some(found) = self.running_kubelet().await? else { return Ok(None) };
        let pid = found.pid;
        let read = move |prover: &Prover| Process::read(prover.root(), pid, "kubelet");
        let mut process = self.read(&format!("cannot read kubelet {pid}"), read).await?;
        self.note_main_process(&mut process, unit).await?;
        Ok(Some((found, process)))
    }

    /// Checks that the kubelet's health check fails. A kubelet that has just started is given its time.
    pub(super) async fn kubelet_still_down(&self, found: &Found) -> Result<(), Refusal> {
        let (pid, age, bound) =
            (found.pid, found.age.as_secs(), self.thresholds.bound(&nrh_core::faults::kubelet::START_AGE));
        if found.age < bound {
            let message = format!("kubelet {pid} began {age}s ago, and has {}s to complete its start", bound.as_secs());
            return Err(Refusal::new(OutcomeReason::KubeletBusy, message));
        }
        match kubelet::health(found, self.prover.root(), &self.reader).await.map_err(Refusal::cannot_check)? {
            Ok(()) => Err(recovered(format!("kubelet {pid} runs, and its health check is good"))),
            Err(_) => Ok(()),
        }
    }

    /// Checks that the runtime is still faulty. `unit` is the runtime's unit, if it is known.
    pub(super) async fn runtime_still_faulty(&self, kind: FaultType, unit: Option<&UnitSeen>) -> Result<(), Refusal> {
        let answer = match Client::connect(&self.endpoint).await {
            Ok(client) => client.version(self.bounds.call).await.map(|_| client),
            Err(error) => Err(error),
        };
        match (kind, answer) {
            // What is only slow comes back within the time that the fault itself waits for.
            (FaultType::RuntimeListHung, Ok(client)) => match client.sandboxes(self.list_deadline()).await {
                Err(CriError::Deadline(_)) => Ok(()),
                Ok(_) => Err(recovered("the runtime lists its sandboxes".to_owned())),
                Err(error) => Err(asked("the list of sandboxes", &error)),
            },
            (_, Ok(_)) => Err(recovered("the runtime answers a version call".to_owned())),
            (FaultType::RuntimeUnreachable, Err(error)) if is_silence(&error, unit) => Ok(()),
            (FaultType::RuntimeUnreachable, Err(CriError::Other(_))) if self.docker_is_silent().await => Ok(()),
            // The cause can be something that this process lacks.
            (_, Err(error)) => Err(asked("its version", &error)),
        }
    }

    async fn files_still_scarce(&self, pid: i32) -> Result<(), Refusal> {
        let read = move |prover: &Prover| Handle::open(prover.root(), pid).and_then(|handle| handle.open_files());
        let usage = self.read(&format!("cannot count the open files of process {pid}"), read).await?;
        if usage.is_at_least(EXHAUSTED_PERCENT) {
            return Ok(());
        }
        Err(recovered(format!("process {pid} does not use {EXHAUSTED_PERCENT}% of the files it may have open")))
    }

    /// Checks that nothing exists that the daemon would wait for at its start, or that its end would interrupt. Where the unit
    /// holds the other daemon too (k3s), a restart is one of both.
    async fn harmless(&self, daemon: Daemon, unit: &str, table: &Table) -> Result<(), Refusal> {
        if let Some(shim) = table.stopped.first() {
            let message =
                format!("{shim} is stopped: the {} would wait for it at its start; release it first", daemon.as_str());
            return Err(Refusal::new(OutcomeReason::Protected, message));
        }
        let restarts_runtime = daemon == Daemon::Runtime || find_in(&table.runtimes, unit).is_some();
        if let Some(call) = table.at_work.first()
            && restarts_runtime
        {
            let message = format!("{call} is at work: a restart of the runtime would cut it off");
            return Err(Refusal::new(OutcomeReason::KubeletBusy, message));
        }
        if let Some(one) = table.unproven.iter().find(|one| restarts_runtime || one.may_be_shim) {
            return Err(Refusal::cannot_check(format!("cannot prove what {} is: {}", one.phrase, one.why)));
        }
        let restarts_kubelet =
            daemon == Daemon::Kubelet || self.kubelet(unit).await?.is_some_and(|(_, process)| process.is_in(unit));
        if restarts_kubelet {
            self.kubelet_would_start().await?;
        }
        let other = match daemon {
            Daemon::Kubelet => restarts_runtime.then_some(Daemon::Runtime),
            Daemon::Runtime => restarts_kubelet.then_some(Daemon::Kubelet),
        };
        self.require_judged_safe(daemon, other)
    }

    /// Refuses unless the probe's last judgement is that the restart is safe. The probe asks every container and reads the disks;
    /// this check does not. A refusal costs no attempt: the controller sees the same judgement with the next report.
    fn require_judged_safe(&self, daemon: Daemon, other: Option<Daemon>) -> Result<(), Refusal> {
        let Some(last) = &self.restart_safety else { return Ok(()) };
        match &*last.borrow() {
            None => Err(Refusal::cannot_check("the probe has not checked yet whether a restart is safe")),
            Some((at, _)) if at.elapsed() > MAX_JUDGEMENT_AGE => Err(Refusal::cannot_check(format!(
                "the probe's last check of whether a restart is safe is {} s old",
                at.elapsed().as_secs()
            ))),
            Some((_, safety)) if safety.of(daemon).safe != TriState::True => {
                Err(Refusal::cannot_check(safety.message_of(daemon)))
            }
            // What is not known about the other daemon of the unit does not keep this one down.
            Some((_, safety)) => match other.filter(|other| safety.of(*other).safe == TriState::False) {
                Some(other) => Err(Refusal::cannot_check(safety.message_of(other))),
                None => Ok(()),
            },
        }
    }

    /// Checks that the runtime answers and that no container without its sandbox keeps the kubelet from starting.
    async fn kubelet_would_start(&self) -> Result<(), Refusal> {
        let client = Client::connect(&self.endpoint).await.map_err(|error| asked("a connection", &error))?;
        let lists = self.lists(&client).await?;
        let version = self.kubelet_version.as_deref();
        let without = lists.without_sandbox()?;
        let Some(orphan) = without.iter().find(|seen| may_block_start(seen.state, version)) else { return Ok(()) };
        let message = format!(
            "the sandbox of container {} ({:?}) is gone: a kubelet ({}) may die of it at its start; clean it up first",
            orphan.id,
            orphan.state,
            bounded(version.unwrap_or("its version is not known"), 64)
        );
        Err(Refusal::new(OutcomeReason::Protected, message))
    }

    async fn daemons(&self) -> Result<Table, Refusal> {
        let endpoint = self.endpoint.named().map(Path::to_owned);
        let read = move |prover: &Prover| {
            let table = proc::table(prover.root())?;
            let mut found = Table::default();
            for process in &table {
                let phrase = || format!("process {} ({})", process.pid, bounded(&process.command, 64));
                match prover.prove(&table, process) {
                    Ok(Some(Proof::Runtime { name })) => match Process::read(prover.root(), process.pid, &name) {
                        Ok(seen) => found.runtimes.push(seen),
                        Err(error) if proc::is_gone(&error) => {}
                        Err(error) => return Err(error),
                    },
                    Ok(Some(proof @ Proof::Shim { .. })) => {
                        found.addresses.extend(proof.kubelets_address().map(str::to_owned));
                        if process.state == 'T' {
                            found.stopped.push(phrase());
                        }
                    }
                    Ok(Some(Proof::RuntimeClient { verb, .. })) if ENDING.contains(&verb.as_str()) => {
                        found.at_work.push(phrase());
                    }
                    Ok(Some(Proof::NetworkPlugin { .. })) => found.at_work.push(phrase()),
                    // Without permission to read, nothing would be proven.
                    Err(error) if error.kind() == ErrorKind::PermissionDenied => return Err(error),
                    Err(error) if !proc::is_gone(&error) => found.unproven.push(Unproven {
                        phrase: phrase(),
                        why: error.to_string(),
                        may_be_shim: is_shim_name(&process.command) || is_monitor_name(&process.command),
                    }),
                    _ => {}
                }
            }
            found.note_others(endpoint.as_deref());
            Ok(found)
        };
        self.read("cannot read the process table", read).await
    }
}

/// Returns the runtime's process in this unit. If no unit was named, no other process may be the one that the kubelet
/// uses.
fn of_the_runtime<'a>(runtimes: &'a [Process], unit: &str, params: &Restart) -> Result<Option<&'a Process>, Refusal> {
    let possible = || runtimes.iter().filter(|process| !process.is_others);
    if let Some(process) = possible().find(|process| process.is_in(unit)) {
        return Ok(Some(process));
    }
    if let Some(Process { pid, socket: Some(path), .. }) = find_in(runtimes, unit) {
        let message = format!("{unit} is not the kubelet's runtime: its process {pid} listens at {}", path.display());
        return Err(Refusal::new(OutcomeReason::Protected, message));
    }
    let mut speakers = possible().filter(|process| SPEAKERS.contains(&process.command.as_str()));
    match speakers.find(|process| params.unit.is_none() || process.unit.is_none()) {
        Some(other) => other.is_of(unit, "runtime").map(|()| None),
        None => Ok(None),
    }
}
