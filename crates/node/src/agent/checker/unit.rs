//! Finds the systemd unit of a daemon and checks whether it may be restarted. The unit must be named in the policy or
//! clearly belong to the daemon. No person has disabled, masked or stopped it, and systemd has no job in progress for
//! it.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use super::Checker;
use crate::agent::verdict::Refusal;
use crate::bus;
use crate::bus::units::{self, UnitSeen};
use crate::collect::HostPaths;
use crate::cri::CriError;
use crate::cri::endpoint::{Api, Endpoint};
use crate::proc::role::{CONTAINERD, Proof, Prover};
use crate::proc::{Handle, RawProcess, listener};
use nrh_core::action::Restart;
use nrh_core::command::OutcomeReason;
use nrh_core::policy::Daemon;

/// Standard socket paths of runtimes that distributions run as a unit of its own, and those units.
const RUNTIMES: [(&str, &str); 2] =
    [("run/containerd/containerd.sock", "containerd.service"), ("run/crio/crio.sock", "crio.service")];
const KUBELET: &str = "kubelet.service";
const DOCKERD: &str = "dockerd";
const USUAL: [&str; 2] = [RUNTIMES[0].1, RUNTIMES[1].1];
const DOCKER: [&str; 1] = ["docker.service"];
const CRI_DOCKER: [&str; 1] = ["cri-docker.service"];
/// RKE2 has the sockets of k3s.
const K3S: [&str; 4] = ["k3s.service", "k3s-agent.service", "rke2-server.service", "rke2-agent.service"];
const K0S: [&str; 2] = ["k0scontroller.service", "k0sworker.service"];
/// Folders of sockets whose runtime and kubelet are part of a larger program. With each folder: the units that may run the kubelet,
/// and the units that may run the runtime.
const INSIDE: [(&str, &[&str], &[&str]); 3] = [
    ("k3s", &K3S, &K3S),
    ("k0s", &K0S, &K0S),
    ("microk8s", &["snap.microk8s.daemon-kubelite.service"], &["snap.microk8s.daemon-containerd.service"]),
];
/// States of a unit file that somebody wants started. Other units that can be started (`systemd-poweroff.service` is
/// `static`) are not a daemon of a node.
const WANTED: [&str; 4] = ["enabled", "enabled-runtime", "linked", "linked-runtime"];

/// The unit to restart, and the bus to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct Unit {
    pub(in crate::agent) bus: PathBuf,
    pub(in crate::agent) name: String,
    pub(in crate::agent) seen: UnitSeen,
}

#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) pid: i32,
    /// File name of its executable.
    pub(super) command: String,
    pub(super) unit: Option<String>,
    /// Where it listens, if it is a containerd and this is known.
    pub(super) socket: Option<PathBuf>,
    /// Whether the kubelet provably does not use it.
    pub(super) is_others: bool,
    /// The processes that started it, the nearest first.
    parents: Vec<i32>,
}

/// Most parents of a process that are looked at.
const MAX_PARENTS: usize = 4;

impl Process {
    pub(super) fn read(root: &Path, pid: i32, command: &str) -> std::io::Result<Self> {
        let (process, mut parents) = (Handle::open(root, pid)?, Vec::new());
        let mut parent = process.stat()?.parent;
        while parent > 1 && parents.len() < MAX_PARENTS {
            parents.push(parent);
            parent = Handle::open(root, parent).and_then(|process| process.stat()).map_or(0, |stat| stat.parent);
        }
        let socket = (command == CONTAINERD).then(|| listener::path(root, &process).ok().flatten()).flatten();
        let (command, unit) = (command.to_owned(), process.groups()?.service());
        Ok(Self { pid, command, unit, socket, is_others: false, parents })
    }

    pub(super) fn is_in(&self, unit: &str) -> bool {
        self.unit.as_deref() == Some(unit)
    }

    /// Whether the process belongs to the unit; if not, why nothing is restarted.
    pub(super) fn is_of(&self, unit: &str, what: &str) -> Result<(), Refusal> {
        let pid = self.pid;
        let message = match &self.unit {
            Some(own) if own == unit => return Ok(()),
            Some(own) => format!(
                "the {what} (process {pid}) is part of {own}, not of {unit}: to have all of {own} restarted, name it in \
                 the step (restart.unit)"
            ),
            None => {
                format!("the {what} (process {pid}) runs in no unit of systemd: a restart would start a second one")
            }
        };
        Err(Refusal::new(OutcomeReason::Protected, message))
    }
}

pub(super) fn find_in<'a>(processes: &'a [Process], unit: &str) -> Option<&'a Process> {
    processes.iter().find(|process| process.is_in(unit))
}

/// Returns the expected unit of the daemon: the named one, else the default one if the runtime's socket is at its
/// standard path.
pub(super) fn expected(daemon: Daemon, params: &Restart, endpoint: &Endpoint) -> Result<String, Refusal> {
    if let Some(named) = &params.unit {
        return Ok(named.clone());
    }
    let no = |why: String| {
        Err(Refusal::new(OutcomeReason::Protected, format!("{why}: name its unit in the step (restart.unit)")))
    };
    let socket = endpoint.socket.as_path();
    match daemon {
        Daemon::Kubelet if units_inside(daemon, socket).is_some() => {
            no(format!("by its runtime's socket ({}) the kubelet is inside something larger", socket.display()))
        }
        Daemon::Kubelet => Ok(KUBELET.to_owned()),
        Daemon::Runtime if is_docker(endpoint) => {
            no("the runtime is Docker, whose restart may end every container".to_owned())
        }
        Daemon::Runtime => match RUNTIMES.iter().find(|(usual, _)| socket.ends_with(usual)) {
            Some((_, unit)) => Ok((*unit).to_owned()),
            None => no(format!("the runtime's socket ({}) is at no usual place", socket.display())),
        },
    }
}

/// The units of a larger program with the daemon in it, by the folder of the runtime's socket.
fn units_inside(daemon: Daemon, socket: &Path) -> Option<&'static [&'static str]> {
    let is_in = |folder: &str| socket.iter().any(|part| part == folder);
    let (_, kubelet, runtime) = INSIDE.iter().find(|(folder, ..)| is_in(folder))?;
    Some(match daemon {
        Daemon::Kubelet => kubelet,
        Daemon::Runtime => runtime,
    })
}

/// Known units of a daemon for which no unit is [`expected`]. The daemon needs one unit of each list.
fn possible(daemon: Daemon, endpoint: &Endpoint) -> Vec<&'static [&'static str]> {
    let inside = units_inside(daemon, &endpoint.socket);
    if daemon == Daemon::Kubelet || !is_docker(endpoint) {
        return vec![inside.unwrap_or(&USUAL)];
    }
    let in_front = (endpoint.api == Api::Cri).then(|| inside.unwrap_or(&CRI_DOCKER));
    [Some(&DOCKER[..]), in_front].into_iter().flatten().collect()
}

/// Whether this error of the runtime's socket means that the runtime does not answer. A missing socket means so only if
/// systemd reports that the runtime's unit is not running: this process may look at the wrong path.
pub(super) fn is_silence(error: &CriError, unit: Option<&UnitSeen>) -> bool {
    error.is_silence() || (matches!(error, CriError::Missing(_)) && unit.is_some_and(UnitSeen::is_down))
}

/// Whether the kubelet's runtime is Docker, determined without an answer of the runtime.
pub(super) fn is_docker(endpoint: &Endpoint) -> bool {
    let name = endpoint.socket.file_name().and_then(|name| name.to_str());
    endpoint.api == Api::Docker || name.is_some_and(|name| name.starts_with("cri-dockerd"))
}

impl Checker {
    pub(super) async fn system_bus(&self) -> Result<PathBuf, Refusal> {
        if let Some(bus) = &self.bus {
            return Ok(bus.clone());
        }
        let paths = HostPaths { proc: self.prover.root().to_owned(), ..HostPaths::default() };
        let found = self.reader.run(self.bounds.processes, move || bus::socket(&paths)).await?;
        let no_bus = "systemd does not run this node, or has no system bus: nothing can be restarted";
        found.map_err(Refusal::cannot_check)?.ok_or_else(|| Refusal::cannot_check(no_bus))
    }

    /// Returns the daemon's default unit in its current state; `None` if the daemon is part of a larger program.
    pub(super) async fn usual_unit(&self, daemon: Daemon) -> Result<Option<Unit>, Refusal> {
        let Ok(name) = expected(daemon, &Restart::default(), &self.endpoint) else { return Ok(None) };
        self.unit(name).await.map(Some)
    }

    pub(super) async fn possible_units(&self, daemon: Daemon) -> Result<Vec<Vec<Unit>>, Refusal> {
        let mut lists = Vec::new();
        for names in possible(daemon, &self.endpoint) {
            let mut units = Vec::new();
            for name in names {
                units.push(self.unit((*name).to_owned()).await?);
            }
            lists.push(units);
        }
        Ok(lists)
    }

    /// Notes that a process is the main process of this unit, or was started by it: a daemon may move itself into another group, as a
    /// kubelet does with `kubeletCgroups`. That of k0s moves to the group of a `containerd.service`, which the node may not have.
    pub(super) async fn note_main_process(&self, process: &mut Process, unit: &str) -> Result<(), Refusal> {
        if process.is_in(unit) {
            return Ok(());
        }
        let main = self.unit(unit.to_owned()).await?.seen.main_pid;
        let is_main = |pid: &i32| main > 1 && u32::try_from(*pid) == Ok(main);
        if is_main(&process.pid) || process.parents.iter().any(is_main) {
            process.unit = Some(unit.to_owned());
        }
        Ok(())
    }

    async fn unit(&self, name: String) -> Result<Unit, Refusal> {
        let bus = self.system_bus().await?;
        let seen = units::check(&bus, &name, self.bounds.call).await;
        let seen = seen.map_err(|error| Refusal::cannot_check(format!("{name}: {error}")))?;
        Ok(Unit { bus, name, seen })
    }

    /// Returns the unit in its current state, if it may be restarted. `process` is the daemon's process, which belongs
    /// to the unit.
    pub(super) async fn unit_in_service(
        &self,
        name: String,
        daemon: Daemon,
        process: Option<&Process>,
        params: &Restart,
        runtimes: &[Process],
    ) -> Result<Unit, Refusal> {
        let holds_runtime = find_in(runtimes, &name).is_some();
        let unit = self.unit(name).await?;
        let restarted_with = |one: &&Process| unit.seen.restarted_with.iter().any(|other| one.is_in(other));
        let stops_docker =
            runtimes.iter().any(|one| one.command == DOCKERD && (one.is_in(&unit.name) || restarted_with(&one)));
        unit.in_service()?;
        unit.stands_as_seen(daemon, process, params)?;
        // A kubelet's restart must not end containers at all: its policy needs no right to evict pods.
        let may_end_containers = params.skip_safety_check && daemon == Daemon::Runtime;
        if stops_docker && !may_end_containers {
            let message = format!(
                "{DOCKERD} stops with {}: without live-restore it ends every container of the node then; only RestartRuntime with \
                 restart.skipSafetyCheck stops it",
                unit.name
            );
            return Err(Refusal::new(OutcomeReason::Protected, message));
        }
        if daemon == Daemon::Kubelet
            && let Some(Process { pid, command, .. }) = runtimes.iter().find(restarted_with)
        {
            let message = format!("systemd restarts {command} (process {pid}) together with {}", unit.name);
            return Err(Refusal::new(OutcomeReason::Protected, message));
        }
        if unit.seen.active == "active" && unit.seen.kill != "process" && !may_end_containers {
            self.ends_daemons_only(&unit, holds_runtime).await?;
        }
        Ok(unit)
    }

    /// Checks that a unit whose stop ends all of its processes has none that hold containers, and no others than daemons if a runtime is
    /// in it. containerd's shims are in its unit, and end their containers; CRI-O's monitors are in units of their own.
    async fn ends_daemons_only(&self, unit: &Unit, holds_runtime: bool) -> Result<(), Refusal> {
        let name = unit.name.clone();
        let other = move |prover: &Prover, table: &[RawProcess], one: &RawProcess| {
            if !Process::read(prover.root(), one.pid, "")?.is_in(&name) {
                return Ok(None);
            }
            let is_other = match prover.prove(table, one)? {
                Some(Proof::Runtime { .. } | Proof::Kubelet) => false,
                Some(Proof::Shim { .. } | Proof::Monitor { .. }) => true,
                _ => holds_runtime,
            };
            Ok(is_other.then(|| one.clone()))
        };
        let found = self.find_process(&format!("cannot read the processes of {}", unit.name), other).await?;
        let Some(RawProcess { pid, command, .. }) = found else { return Ok(()) };
        let (name, kill) = (&unit.name, &unit.seen.kill);
        let message =
            format!("{name} ends all of its processes when it stops (KillMode={kill}), {command} ({pid}) among them");
        Err(Refusal::new(OutcomeReason::Protected, message))
    }
}

impl Unit {
    /// Checks that the unit is in service. A unit that a person has masked or disabled is out of service; a unit in
    /// transition is left to systemd.
    fn in_service(&self) -> Result<(), Refusal> {
        use OutcomeReason as R;
        let seen = &self.seen;
        match (seen.load.as_str(), seen.file.as_str()) {
            ("masked", _) | (_, "masked" | "masked-runtime") => {
                return self.refuse(R::Protected, "is masked: a person has taken it out of service");
            }
            ("loaded", "disabled") if seen.active != "active" => {
                return self.refuse(R::Protected, "is disabled and does not run: a person has taken it out of service");
            }
            ("loaded", _) => {}
            ("not-found", _) => return self.refuse(R::CheckFailed, "is not known to systemd"),
            (load, _) => return self.refuse(R::CheckFailed, format!("cannot be loaded by systemd: {load}")),
        }
        if seen.active == "activating" && seen.sub == "auto-restart" {
            return self.refuse(R::Protected, "is already in a systemd restart loop");
        }
        if seen.job != 0 || !["active", "failed", "inactive"].contains(&seen.active.as_str()) {
            return self.refuse(R::KubeletBusy, format!("is {}: systemd is changing it", seen.phrase()));
        }
        Ok(())
    }

    /// Checks that systemd and the process table agree. A unit that a person has stopped stays stopped.
    fn stands_as_seen(&self, daemon: Daemon, process: Option<&Process>, params: &Restart) -> Result<(), Refusal> {
        use OutcomeReason as R;
        let (what, runs) = (daemon.as_str(), self.seen.active == "active");
        let stands = format!("is {} in systemd", self.seen.phrase());
        let Some(Process { pid, .. }) = process else {
            if runs {
                return self.refuse(R::CheckFailed, format!("{stands}, but no process of the {what} runs"));
            }
            return self.may_be_started(params);
        };
        if !runs {
            return self.refuse(R::CheckFailed, format!("{stands}, but process {pid} of the {what} runs"));
        }
        Ok(())
    }

    /// Checks whether a unit that does not run may be started: it must have failed, or the command allows
    /// starting a stopped unit. A named unit must also be one that is started with the node.
    fn may_be_started(&self, params: &Restart) -> Result<(), Refusal> {
        if self.seen.active == "inactive" && !params.start_if_stopped {
            return self.refuse(
                OutcomeReason::Protected,
                "was stopped, by a person or with a unit that it is bound to; set restart.startIfStopped in the step to start it anyway",
            );
        }
        let file = &self.seen.file;
        if params.unit.is_some() && !WANTED.contains(&file.as_str()) {
            return self.refuse(OutcomeReason::Protected, format!("does not start at boot: its unit file is {file:?}"));
        }
        Ok(())
    }

    /// `why` continues the name of the unit to a sentence.
    fn refuse(&self, reason: OutcomeReason, why: impl Display) -> Result<(), Refusal> {
        Err(Refusal::new(reason, format!("{} {why}", self.name)))
    }
}
