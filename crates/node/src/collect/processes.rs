//! The processes of interest: shims, CNI plugins, `runc` and similar runtimes, the runtime, the kubelet.
//!
//! Every function here may block in the kernel, so it runs on its own thread. The collector remembers a proven role as long as
//! the process lives: a proof costs reads, and is not available from a process in state D.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::proc::place::ProcessNamespaces;
use crate::proc::role::{self, DOCKER_NAMESPACE, KUBELET_NAMESPACE, Proof, Prover};
use crate::proc::table::Bounds;
use crate::proc::{self, AwakeClock, Handle, Lock, LockedFile, Locks, RawProcess, Table, Waits};
use nrh_core::observation::{
    LeftOut, PossibleRole, ProcessRole, ProcessSeen, ProcessTable, UnprovenProcess, is_unresponsive_state,
};
use nrh_core::text::bounded;

mod elsewhere;
mod inits;

/// Maximum number of processes of interest in one reading, and of processes that may be of interest. Those that stand out are
/// kept first.
const MAX_SEEN: usize = 8192;
/// Maximum number of lock paths kept of one process.
const MAX_HOLDS: usize = 4;
/// A plugin younger than this is not checked for locks.
const YOUNG: Duration = Duration::from_secs(2);

/// A proof, with the values that must not change while it holds. The name changes when a process executes another file. The
/// parent changes when the caller has ended (and then a plugin needs more proof).
#[derive(Debug)]
struct Proven {
    command: String,
    parent: i32,
    proof: Proof,
}

impl Proven {
    fn holds_for(&self, process: &RawProcess) -> bool {
        self.command == process.command && self.parent == process.parent && !process.is_dead()
    }

    /// A plugin that waited uninterruptibly when it was proven did not show for which sandbox it was called.
    const fn is_whole(&self) -> bool {
        !matches!(self.proof, Proof::NetworkPlugin { command: None, .. })
    }
}

enum Tried {
    Proven(Proof),
    No,
    Unproven,
}

/// The state of the process collector.
#[derive(Debug)]
pub struct Processes {
    root: PathBuf,
    prover: Prover,
    clock: AwakeClock,
    /// What was proven, by pid and start time.
    proven: BTreeMap<(i32, u64), Proven>,
    listeners: elsewhere::Listeners,
    /// Processes of containers below those that call OCI runtimes, by pid and start time, with their name and their parent.
    foreign: BTreeMap<(i32, u64), (Box<str>, i32)>,
    waits: Waits,
    /// Processes that make no progress.
    stills: Waits,
    bounds: Bounds,
    most: usize,
}

impl Processes {
    /// Reads the `/proc` at `root`.
    pub fn new(root: &Path) -> Self {
        Self::with(Prover::new(root))
    }

    /// Reads the prover's `/proc` with this prover.
    pub fn with(prover: Prover) -> Self {
        Self {
            root: prover.root().to_path_buf(),
            clock: AwakeClock::new(prover.root()),
            prover,
            proven: BTreeMap::new(),
            listeners: elsewhere::Listeners::default(),
            foreign: BTreeMap::new(),
            waits: Waits::default(),
            stills: Waits::default(),
            bounds: Bounds::USUAL,
            most: MAX_SEEN,
        }
    }

    /// One reading. `with_docker` means that the kubelet's shims are Docker's. A containerd that provably serves another socket than
    /// `endpoint`, the kubelet's, is not in it. If there are too many processes, it is partial and says what it has left out.
    ///
    /// # Errors
    /// When a process of the table cannot be read, or a permission is missing (`PermissionDenied`). Processes that end
    /// meanwhile are left out.
    pub fn check(&mut self, with_docker: bool, endpoint: Option<&Path>) -> io::Result<ProcessTable> {
        let namespace = if with_docker { DOCKER_NAMESPACE } else { KUBELET_NAMESPACE };
        self.clock.read(&self.root)?;
        let known = self.proven.keys().map(|(pid, _)| *pid);
        let Table { processes: table, left_out, lack } = Table::read(&self.root, known, self.bounds)?;
        let node = ProcessNamespaces::of_first(&self.root);
        let mut still = BTreeMap::new();
        let (mut processes, mut unproven) = (Vec::new(), Vec::new());
        for process in &table {
            let tried = self.prove(&node, &table, process)?;
            let process = if matches!(tried, Tried::No) { process } else { &self.with_state(process) };
            let proof = match tried {
                _ if process.is_dead() => continue,
                Tried::Proven(proof) => proof,
                Tried::No => continue,
                Tried::Unproven => {
                    unproven.push(self.unproven(&table, process));
                    continue;
                }
            };
            if let Some(seen) = self.seen(process, &proof, namespace) {
                let is_followed =
                    matches!(seen.role, ProcessRole::RuntimeClient { .. } | ProcessRole::NetworkPlugin { .. });
                let still = is_followed && lack.is_none();
                let still = still.then(|| self.still(&table, process));
                processes.push(ProcessSeen { waited: self.waited(process), still, ..seen });
            }
            let proven = Proven { command: process.command.clone(), parent: process.parent, proof };
            still.insert((process.pid, process.start_ticks), proven);
        }
        // A process that is missing may be a shim of the kubelet's.
        let endpoint = endpoint.filter(|_| lack.is_none() && unproven.is_empty());
        self.listeners.leave_out(&mut processes, &still, endpoint, &self.root);
        self.proven = still;
        self.foreign.retain(|(pid, start_ticks), _| {
            proc::find(&table, *pid).is_some_and(|process| process.start_ticks == *start_ticks)
        });
        self.waits.over();
        self.stills.over();
        let dropped = self.keep_most(&mut processes, &mut unproven);
        let (inits, more) = inits::find(&self.proven, namespace, &table, &self.clock);
        let beyond = (left_out > 0).then(|| {
            let kept = self.bounds.kept;
            format!("beyond {kept} processes, {left_out} of containers or of other users than root are not checked")
        });
        let left_out =
            LeftOut { locks: self.lock_facts(&mut processes), processes: lack.or(dropped), inits: more.or(beyond) };
        // The collector counts the rounds: another thread may have made the one before.
        Ok(ProcessTable { processes, unproven, inits, left_out, round: 0 })
    }

    /// Keeps as many as there is room for: daemons, then unresponsive processes, then the oldest. Returns a text on what it has
    /// left out.
    fn keep_most(&self, processes: &mut Vec<ProcessSeen>, unproven: &mut Vec<UnprovenProcess>) -> Option<String> {
        let most = self.most;
        let beyond = processes.len().saturating_sub(most) + unproven.len().saturating_sub(most);
        if beyond == 0 {
            return None;
        }
        processes.sort_by_key(|seen| {
            let is_daemon = matches!(seen.role, ProcessRole::Runtime | ProcessRole::Kubelet);
            (!is_daemon, !is_unresponsive_state(seen.state), seen.start_ticks, seen.pid)
        });
        unproven.sort_by_key(|one| (!is_unresponsive_state(one.state), one.start_ticks, one.pid));
        processes.truncate(most);
        unproven.truncate(most);
        Some(format!("{beyond} processes of the runtime are not kept beyond {most}"))
    }

    /// How long a process in state D has been seen in it. Where its context switches cannot be read, the wait has just begun.
    fn waited(&mut self, process: &RawProcess) -> Option<Duration> {
        if process.state != 'D' {
            return None;
        }
        let counted = self.handle(process).and_then(|handle| Some((handle.thread(), handle.switches().ok()?)));
        Some(counted.map_or(Duration::ZERO, |(thread, switches)| {
            self.waits.saw((thread, process.start_ticks), switches, 0, self.clock.now())
        }))
    }

    fn unproven(&mut self, table: &[RawProcess], process: &RawProcess) -> UnprovenProcess {
        UnprovenProcess {
            pid: process.pid,
            start_ticks: process.start_ticks,
            age: self.clock.age(process.start_ticks),
            state: process.state,
            waited: self.waited(process),
            command: bounded(&process.command, 64),
            possible_role: possible_role(table, process),
        }
    }

    /// The process with the state of the worst of its threads, where the first one has ended.
    fn with_state<'a>(&self, process: &'a RawProcess) -> Cow<'a, RawProcess> {
        let lacks_first = proc::is_dead(process.state);
        match lacks_first.then(|| self.handle(process)?.stat().ok()).flatten() {
            Some(stat) => Cow::Owned(RawProcess { state: stat.state, threads: stat.threads, ..process.clone() }),
            None => Cow::Borrowed(process),
        }
    }

    /// How long a process and those below it have made no progress.
    fn still(&mut self, table: &[RawProcess], process: &RawProcess) -> Duration {
        let id = (process.pid, process.start_ticks);
        self.stills.saw(id, proc::progress(table, process), proc::NO_PROGRESS, self.clock.now())
    }

    /// The role of this process, from memory or proven anew.
    fn prove(&mut self, node: &ProcessNamespaces, table: &[RawProcess], process: &RawProcess) -> io::Result<Tried> {
        let is_foreign = self.is_foreign(node, table, process);
        let known = self.proven.get(&(process.pid, process.start_ticks)).filter(|known| known.holds_for(process));
        if let Some(known) = known
            && known.is_whole()
        {
            return Ok(Tried::Proven(known.proof.clone()));
        }
        match is_foreign.and_then(|is_foreign| if is_foreign { Ok(None) } else { self.prover.prove(table, process) }) {
            Ok(proof) => Ok(proof.map_or(Tried::No, Tried::Proven)),
            // Without permission to read, every answer would be a guess. So the whole reading fails and names the process.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(io::Error::new(
                error.kind(),
                format!("cannot check process {} ({}): {error}", process.pid, bounded(&process.command, 15)),
            )),
            Err(error) if proc::is_gone(&error) => Ok(Tried::No),
            Err(_) => Ok(known.map_or(Tried::Unproven, |known| Tried::Proven(known.proof.clone()))),
        }
    }

    /// Whether a process that may be an OCI runtime, by its parents alone, belongs to a container. This is remembered: there
    /// are many of them, and none of them becomes one of the node's.
    fn is_foreign(&mut self, node: &ProcessNamespaces, table: &[RawProcess], process: &RawProcess) -> io::Result<bool> {
        let id = (process.pid, process.start_ticks);
        if let Some((command, parent)) = self.foreign.get(&id)
            && **command == *process.command
            && *parent == process.parent
        {
            return Ok(true);
        }
        if process.is_dead()
            || role::is_named_part(&process.command)
            || self.proven.contains_key(&id)
            || !role::is_below_client_caller(table, process)
        {
            return Ok(false);
        }
        let is_foreign = !node.has(&Handle::open(&self.root, process.pid)?)?;
        if is_foreign {
            self.foreign.insert(id, (process.command.as_str().into(), process.parent));
        }
        Ok(is_foreign)
    }

    fn seen(&self, process: &RawProcess, proof: &Proof, namespace: &str) -> Option<ProcessSeen> {
        let role = role(process, proof, namespace)?;
        // The wait channel of a healthy shim or monitor gives no information. That of all others does, and of those that are
        // stopped or in state D.
        let wants_wchan = !matches!(role, ProcessRole::Shim { .. } | ProcessRole::Monitor { .. })
            || is_unresponsive_state(process.state);
        let wchan = wants_wchan.then(|| self.handle(process)?.wchan().ok().flatten()).flatten();
        Some(ProcessSeen {
            pid: process.pid,
            parent: process.parent,
            start_ticks: process.start_ticks,
            age: self.clock.age(process.start_ticks),
            state: process.state,
            command: bounded(&process.command, 64),
            wchan,
            waited: None,
            still: None,
            role,
        })
    }

    /// Names the locks that plugins hold while others wait, and the plugins that wait. Returns the reason why it may not know
    /// all of them: any process on the node can make the lock table too long, and that must not hide the plugins themselves.
    fn lock_facts(&self, processes: &mut [ProcessSeen]) -> Option<String> {
        let is_old = |seen: &ProcessSeen| matches!(seen.role, ProcessRole::NetworkPlugin { .. }) && seen.age >= YOUNG;
        let mut old: Vec<(Vec<LockedFile>, &mut ProcessSeen)> =
            processes.iter_mut().filter(|seen| is_old(seen)).map(|seen| (self.locked_files(seen), seen)).collect();
        if old.is_empty() {
            return None;
        }
        let plugins: BTreeSet<i32> = old.iter().map(|(_, seen)| seen.pid).collect();
        let files: BTreeSet<_> = old.iter().flat_map(|(files, _)| files).map(|file| (file.kind, file.file)).collect();
        let is_asked = |lock: &Lock| {
            files.contains(&(lock.kind, lock.file)) || lock.waiters.iter().any(|waiter| plugins.contains(waiter))
        };
        let (locks, lack) = match proc::locks(&self.root, is_asked) {
            Ok(Locks { locks, is_cut: false }) => (locks, None),
            Ok(Locks { locks, is_cut: true }) => (
                locks,
                Some("the node has more file locks than are read: who waits for a lock is known in part".to_owned()),
            ),
            Err(error) => {
                (Vec::new(), Some(format!("the file locks cannot be read: {}", bounded(&error.to_string(), 128))))
            }
        };
        for (files, seen) in &mut old {
            let held = held(seen.pid, files, &locks);
            let in_lock = seen.wchan.as_deref().is_some_and(proc::waits_for_lock);
            let queued = locks.iter().any(|lock| lock.waiters.contains(&seen.pid));
            // A plugin that may wait itself is not counted as the one that the others wait for.
            let may_wait = lack.is_some() && seen.wchan.is_none() && seen.state != 'R';
            if let ProcessRole::NetworkPlugin { holds, waits, waiters, .. } = &mut seen.role {
                *waits = in_lock || queued || may_wait;
                *waiters = u32::try_from(held.waiters.len()).unwrap_or(u32::MAX);
                *holds = held.paths;
            }
        }
        lack
    }

    fn locked_files(&self, seen: &ProcessSeen) -> Vec<LockedFile> {
        let handle = Handle::of(&self.root, seen.pid, seen.start_ticks);
        handle.and_then(|handle| handle.locked_files()).unwrap_or_default()
    }

    fn handle(&self, process: &RawProcess) -> Option<Handle> {
        Handle::of(&self.root, process.pid, process.start_ticks).ok()
    }
}

#[derive(Debug, Default)]
struct ContendedLocks {
    paths: Vec<String>,
    waiters: BTreeSet<i32>,
}

/// Of the files that a process has locked, those that other processes wait for.
fn held(pid: i32, files: &[LockedFile], locks: &[Lock]) -> ContendedLocks {
    let mut held = ContendedLocks::default();
    for file in files {
        let waiting: BTreeSet<i32> = locks
            .iter()
            .filter(|lock| lock.kind == file.kind && lock.file == file.file)
            .flat_map(|lock| lock.waiters.iter().copied())
            .filter(|waiter| *waiter != pid)
            .collect();
        if waiting.is_empty() {
            continue;
        }
        if held.paths.len() < MAX_HOLDS && !held.paths.contains(&file.path) {
            held.paths.push(file.path.clone());
        }
        held.waiters.extend(waiting);
    }
    held
}

/// Why a process that could not be proven is a candidate.
fn possible_role(table: &[RawProcess], process: &RawProcess) -> PossibleRole {
    if role::is_shim_name(&process.command) {
        PossibleRole::Shim
    } else if role::is_monitor_name(&process.command) {
        PossibleRole::Monitor
    } else if role::is_client_name(&process.command) {
        PossibleRole::RuntimeClient
    } else if role::is_named_part(&process.command) {
        PossibleRole::Other
    } else if role::is_below_client_caller(table, process) && !role::is_below_plugin_caller(table, process) {
        PossibleRole::RuntimeClient
    } else {
        PossibleRole::NetworkPlugin
    }
}

fn role(process: &RawProcess, proof: &Proof, ours: &str) -> Option<ProcessRole> {
    Some(match proof {
        Proof::Shim { id, namespace, .. } if namespace == ours => {
            ProcessRole::Shim { id: bounded(id, 128), living_children: process.living_children }
        }
        Proof::Shim { .. } | Proof::Init { .. } => return None,
        Proof::NetworkPlugin { plugin, sandbox_id, pod_uid, pod_name, .. } => ProcessRole::NetworkPlugin {
            plugin: bounded(plugin, 64),
            sandbox_id: sandbox_id.as_deref().map(|id| bounded(id, 128)),
            pod_uid: pod_uid.as_deref().map(|uid| bounded(uid, 64)),
            pod_name: pod_name.clone(),
            holds: Vec::new(),
            waits: false,
            waiters: 0,
        },
        Proof::RuntimeClient { verb, container_id } => ProcessRole::RuntimeClient {
            verb: bounded(verb, 16),
            container_id: container_id.as_deref().map(|id| bounded(id, 128)),
        },
        Proof::Monitor { id, pod } => {
            ProcessRole::Monitor { id: id.clone(), pod: pod.clone(), living_children: process.living_children }
        }
        Proof::Runtime { .. } => ProcessRole::Runtime,
        Proof::Kubelet => ProcessRole::Kubelet,
    })
}

#[cfg(test)]
mod tests;
