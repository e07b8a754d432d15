//! Which role a process has, proven from its place, executable, arguments, environment and parents.
//!
//! A process outside the node's own namespaces proves nothing. A containerd inside a pod has its own shims and plugins, and the
//! probe must not touch any of them.

use std::io;
use std::path::{Path, PathBuf};

use super::{Handle, RawProcess, ancestors};
use nrh_core::fault::{PodRef, Role};

mod args;
pub(crate) mod init;
pub(crate) mod k3s;

use init::KnownBy;

pub(crate) use args::{client, monitor, pod_name, pod_uid, shim};

/// Maximum number of parents between a plugin or a client and its caller: delegated plugins are children of plugins, and an OCI
/// runtime may be the child of a script.
const MAX_ANCESTORS: usize = 4;

/// Folders in which distributions keep CNI plugins. `*` stands for one name (a revision or a hash), because the path of an
/// executable is shown without links. The last six are of `OpenShift`, k3s and RKE2, and `MicroK8s`.
pub const CNI_FOLDERS: [&str; 10] = [
    "/opt/cni/bin",
    "/usr/lib/cni",
    "/usr/libexec/cni",
    "/home/kubernetes/bin",
    "/var/lib/cni/bin",
    "/var/lib/rancher/k3s/data/cni",
    k3s::PROGRAMS,
    "/var/lib/rancher/rke2/data/*/bin",
    "/var/snap/microk8s/*/opt/cni/bin",
    "/snap/microk8s/*/opt/cni/bin",
];

/// The containerd namespace of the kubelet's containers, where it uses containerd. Shims of other namespaces (`default`) belong
/// to people who use the same containerd. The kubelet's lists do not contain them, and the probe must not touch them.
pub const KUBELET_NAMESPACE: &str = "k8s.io";
/// The containerd namespace of Docker. It contains the kubelet's containers where Docker is the runtime, and people's
/// containers on any node. Only Docker knows which of them are the kubelet's.
pub const DOCKER_NAMESPACE: &str = "moby";

pub(crate) const CONTAINERD: &str = "containerd";
/// Daemons that call CNI plugins and start shims.
const RUNTIMES: [&str; 4] = [CONTAINERD, "dockerd", "crio", "cri-dockerd"];
const KUBELET: &str = "kubelet";
/// The process that CRI-O runs beside each container.
const MONITOR: &str = "conmon";
/// Prefix of the names of containerd's shims.
const SHIM: &str = "containerd-shim";
/// Low-level runtimes (OCI), which do one thing and end. One with another name is recognised by its caller.
const CLIENTS: [&str; 5] = ["runc", "crun", "youki", "runsc", "kata-runtime"];
/// A role with what proves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// A running shim (not the short-lived `start` and `delete` calls of the same binary).
    Shim {
        /// The id it serves: of the sandbox under a CRI runtime, of the container under Docker.
        id: String,
        /// containerd namespace (`k8s.io`, `moby`).
        namespace: String,
        /// Address of the containerd that started it; empty if it does not tell.
        address: String,
    },
    /// A plugin of the CNI directory, called by the runtime or by another plugin.
    NetworkPlugin {
        /// File name of the plugin.
        plugin: String,
        /// `CNI_COMMAND` (`ADD`, `DEL`, `CHECK`); without it, the process must not be touched.
        command: Option<String>,
        /// `CNI_CONTAINERID`: the sandbox it was called for.
        sandbox_id: Option<String>,
        /// `K8S_POD_UID` of `CNI_ARGS`: the pod it was called for, which outlives one sandbox.
        pod_uid: Option<String>,
        /// Namespace and name of that pod, by `CNI_ARGS`.
        pod_name: Option<String>,
    },
    /// `runc` or a similar runtime, or a wrapper around one.
    RuntimeClient {
        /// Its verb.
        verb: String,
        /// The container it works on, from its arguments.
        container_id: Option<String>,
    },
    /// CRI-O's process beside one container, as the shim is containerd's.
    Monitor {
        /// The container's id.
        id: String,
        /// The container's pod, from the name that CRI-O gives to a container. Those of podman look the same and have no such
        /// name.
        pod: Option<PodRef>,
    },
    /// The first process of a container in creation (`runc init`). Only [`Prover::prove_init`] proves it.
    Init {
        /// Why it counts as one.
        known_by: KnownBy,
        /// The proof of the shim or the monitor above it.
        above: Box<Self>,
    },
    /// A runtime daemon.
    Runtime {
        /// File name of the daemon.
        name: String,
    },
    /// The kubelet.
    Kubelet,
}

impl Proof {
    /// The id that it serves as a shim of one of these containerd namespaces, or as the monitor of a container of CRI-O.
    pub fn serves(&self, namespaces: &[&str]) -> Option<&str> {
        match self {
            Self::Shim { id, namespace, .. } => namespaces.contains(&namespace.as_str()).then_some(id),
            Self::Monitor { id, pod: Some(_) } => Some(id),
            _ => None,
        }
    }

    /// The address of the containerd that started it, if it is a shim of the kubelet's; empty if it does not tell.
    pub fn kubelets_address(&self) -> Option<&str> {
        match self {
            Self::Shim { namespace, address, .. } if namespace == KUBELET_NAMESPACE => Some(address),
            _ => None,
        }
    }

    /// The role, if a command can name it.
    pub const fn role(&self) -> Option<Role> {
        match self {
            Self::Shim { .. } | Self::Monitor { pod: Some(_), .. } => Some(Role::Shim),
            Self::NetworkPlugin { .. } => Some(Role::NetworkPlugin),
            Self::RuntimeClient { .. } => Some(Role::RuntimeClient),
            Self::Init { .. } => Some(Role::ContainerInit),
            Self::Monitor { pod: None, .. } | Self::Runtime { .. } | Self::Kubelet => None,
        }
    }
}

/// The `/proc` to read, and the folders that hold plugins.
#[derive(Clone, Debug)]
pub struct Prover {
    root: PathBuf,
    cni_folders: Vec<PathBuf>,
}

impl Prover {
    /// For the `/proc` at `root` and the usual plugin folders.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), cni_folders: CNI_FOLDERS.iter().map(PathBuf::from).collect() }
    }

    /// Uses these plugin folders instead.
    #[must_use]
    pub fn with_cni_folders(mut self, folders: Vec<PathBuf>) -> Self {
        self.cni_folders = folders;
        self
    }

    /// The `/proc` it reads.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The role of `process` in `table`; `None` when it has none. An error means that it may have one, but the proof could not
    /// be read (the process ended, it waits uninterruptibly, or a right is missing).
    ///
    /// Cheap for most processes: it examines only processes whose name or parents make them candidates.
    pub fn prove(&self, table: &[RawProcess], process: &RawProcess) -> io::Result<Option<Proof>> {
        if process.is_dead() || process.parent == 0 && process.pid == 1 {
            return Ok(None);
        }
        let named = is_named_part(&process.command);
        let called = is_below_plugin_caller(table, process);
        if !named && !called && !is_below_client_caller(table, process) {
            return if process.parent == 1 { self.left_alone(process) } else { Ok(None) };
        }
        let handle = Handle::open(&self.root, process.pid)?;
        self.prove_handle(table, process, &handle)
    }

    /// As [`Prover::left_plugin`], for any child of process 1. Most of these are daemons, which their executable shows.
    fn left_alone(&self, process: &RawProcess) -> io::Result<Option<Proof>> {
        let exe = Handle::open(&self.root, process.pid).and_then(|handle| Ok((handle.exe()?, handle)));
        let Ok((exe, handle)) = exe else { return Ok(None) };
        if !self.in_cni_folder(&exe)
            || handle.stat()?.start_ticks != process.start_ticks
            || !handle.is_of_node(&self.root)?
        {
            return Ok(None);
        }
        self.left_plugin(&handle, &exe)
    }

    /// A plugin whose caller has ended: a child of process 1 with no runtime above it. Its executable alone proves little then,
    /// so its environment must hold all variables of a call.
    fn left_plugin(&self, handle: &Handle, exe: &Path) -> io::Result<Option<Proof>> {
        if !self.in_cni_folder(exe) {
            return Ok(None);
        }
        let environ = handle.environ(["CNI_COMMAND", "CNI_CONTAINERID", "CNI_ARGS", "CNI_NETNS"])?;
        let [Some(command), Some(sandbox_id), args, Some(_)] = environ else { return Ok(None) };
        if has_arguments(handle)? {
            return Ok(None);
        }
        Ok(Some(args::plugin_call(exe, Some(command), Some(sandbox_id), args.as_deref())))
    }

    /// As [`Prover::prove`], through a handle that is open already, and for any name of the process.
    pub fn prove_handle(
        &self,
        table: &[RawProcess],
        process: &RawProcess,
        handle: &Handle,
    ) -> io::Result<Option<Proof>> {
        if handle.stat()?.start_ticks != process.start_ticks {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("process {} is another one than in the table", process.pid),
            ));
        }
        if !handle.is_of_node(&self.root)? {
            return Ok(None);
        }
        let exe = handle.exe()?;
        Ok(match program(&exe, process) {
            name if name.starts_with(SHIM) => shim(&handle.args()?),
            MONITOR => monitor(&handle.args()?),
            KUBELET => Some(Proof::Kubelet),
            name if RUNTIMES.contains(&name) => Some(Proof::Runtime { name: name.to_owned() }),
            name if CLIENTS.contains(&name) => client(&handle.args()?),
            _ => match self.plugin(table, process, handle, &exe)? {
                None => self.wrapper(table, process, handle)?,
                plugin => plugin,
            },
        })
    }

    /// An OCI runtime under another name, or a script around one. Its caller is one that calls OCI runtimes, and its arguments
    /// hold a verb and a container's id. What a container starts on its node, such as a mount, is none.
    fn wrapper(&self, table: &[RawProcess], process: &RawProcess, handle: &Handle) -> io::Result<Option<Proof>> {
        let Some(caller) = client_caller(table, process) else { return Ok(None) };
        let is_one = self.is_caller(caller, calls_clients)? && !handle.is_started_by_container(&self.root)?;
        Ok(if is_one { args::wrapper(&handle.args()?) } else { None })
    }

    /// A plugin may be a script: then the executable is the interpreter, and the arguments name the plugin.
    fn plugin(
        &self,
        table: &[RawProcess],
        process: &RawProcess,
        handle: &Handle,
        exe: &Path,
    ) -> io::Result<Option<Proof>> {
        let called = ancestors(table, process, MAX_ANCESTORS).find(|parent| is_caller_name(&parent.command));
        let Some(runtime) = called else {
            return if process.parent == 1 { self.left_plugin(handle, exe) } else { Ok(None) };
        };
        let by_exe = self.in_cni_folder(exe) && !(k3s::is_daemon(&runtime.command) && k3s::is_other_program(exe));
        // A kubelet starts many other programs, among them mounts that hang. This code does not read from those.
        if !by_exe && !is_runtime_name(&runtime.command) {
            return Ok(None);
        }
        let path = if by_exe {
            exe.to_owned()
        } else {
            let args = handle.args()?;
            match args.iter().take(2).map(PathBuf::from).find(|path| self.in_cni_folder(path)) {
                Some(path) => path,
                // In a folder that is not on the list, the environment shows a call of the runtime itself.
                None if process.parent == runtime.pid => PathBuf::from(&process.command),
                None => return Ok(None),
            }
        };
        let is_daemon = || by_exe && process.parent != runtime.pid && has_arguments(handle).unwrap_or_default();
        if !self.is_caller(runtime, is_caller_name)? || is_daemon() {
            return Ok(None);
        }
        let (command, sandbox_id, args) = match handle.environ(["CNI_COMMAND", "CNI_CONTAINERID", "CNI_ARGS"]) {
            // Some distributions keep other programs of the runtime in the same folder.
            Ok([None, ..]) => return Ok(None),
            Ok([command, id, args]) => (command, id, args),
            // The executable proves the role without the environment, but then the process must not be touched.
            Err(error) if by_exe && !super::is_gone(&error) => (None, None, None),
            Err(error) => return Err(error),
        };
        Ok(Some(args::plugin_call(&path, command, sandbox_id, args.as_deref())))
    }

    fn in_cni_folder(&self, path: &Path) -> bool {
        path.parent().is_some_and(|folder| self.cni_folders.iter().any(|known| is_like(known, folder)))
    }

    /// Whether one of the node's own processes executes a file with such a name.
    fn is_caller(&self, process: &RawProcess, is_named: fn(&str) -> bool) -> io::Result<bool> {
        let handle = Handle::open(&self.root, process.pid)?;
        if handle.stat()?.start_ticks != process.start_ticks || !handle.is_of_node(&self.root)? {
            return Ok(false);
        }
        Ok(is_named(program(&handle.exe()?, process)))
    }
}

/// Whether the program of a plugin's folder has arguments. A runtime calls a plugin without any, and so does a plugin that delegates. What
/// has some is a daemon that a plugin has started, with the environment of the call (`azure-vnet-telemetry -d …`).
fn has_arguments(handle: &Handle) -> io::Result<bool> {
    Ok(handle.args()?.len() > 1)
}

/// The name of a program: that of its executable. One executable contains all of k3s, and the name of the process shows which part
/// of it runs.
fn program<'a>(exe: &'a Path, process: &'a RawProcess) -> &'a str {
    match exe.file_name().and_then(|name| name.to_str()).unwrap_or_default() {
        k3s::EXECUTABLE if k3s::names_its_part(process) => &process.command,
        name => name,
    }
}

/// Whether `folder` is `pattern`, in which `*` stands for any one name.
fn is_like(pattern: &Path, folder: &Path) -> bool {
    let (mut pattern, mut folder) = (pattern.components(), folder.components());
    loop {
        match (pattern.next(), folder.next()) {
            (None, None) => return true,
            (Some(wanted), Some(found)) if wanted == found || wanted.as_os_str() == "*" => {}
            _ => return false,
        }
    }
}

/// Whether this is the name of a low-level runtime.
pub fn is_client_name(command: &str) -> bool {
    CLIENTS.iter().any(|client| command.starts_with(client))
}

/// Whether this is the name of a shim, a conmon, a daemon, a low-level runtime or the kubelet: not that of a plugin. A name is at most
/// 15 bytes long, so `containerd-shim-runc-v2` is cut.
pub fn is_named_part(command: &str) -> bool {
    is_shim_name(command)
        || is_monitor_name(command)
        || command == KUBELET
        || is_runtime_name(command)
        || is_client_name(command)
}

fn is_runtime_name(command: &str) -> bool {
    RUNTIMES.contains(&command)
}

/// Whether this is the name of a shim.
pub fn is_shim_name(command: &str) -> bool {
    command.starts_with(SHIM)
}

/// Whether this is the name of CRI-O's process beside a container.
pub fn is_monitor_name(command: &str) -> bool {
    command == MONITOR
}

/// Whether a process is below one whose name is that of a caller of network plugins.
pub fn is_below_plugin_caller(table: &[RawProcess], process: &RawProcess) -> bool {
    ancestors(table, process, MAX_ANCESTORS).any(|parent| is_caller_name(&parent.command))
}

/// Whether a process is below one whose name is that of a caller of OCI runtimes: it may be an OCI runtime, or a wrapper around
/// one.
pub fn is_below_client_caller(table: &[RawProcess], process: &RawProcess) -> bool {
    client_caller(table, process).is_some()
}

fn client_caller<'a>(table: &'a [RawProcess], process: &RawProcess) -> Option<&'a RawProcess> {
    ancestors(table, process, MAX_ANCESTORS).find(|parent| calls_clients(&parent.command))
}

/// Whether this is the name of a caller of OCI runtimes.
fn calls_clients(command: &str) -> bool {
    is_shim_name(command) || is_runtime_name(command) || is_monitor_name(command)
}

/// Whether this is the name of a caller of network plugins. With Docker, the kubelet itself called them up to 1.23, and k3s's own
/// process still does.
fn is_caller_name(command: &str) -> bool {
    is_runtime_name(command) || command == KUBELET || k3s::is_daemon(command)
}

#[cfg(test)]
mod tests;
