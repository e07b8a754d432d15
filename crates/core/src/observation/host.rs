//! What the checks of the node itself yield: kernel limits, waiting threads, file systems, the kubelet's certificate, the bus.

use std::fmt;
use std::time::Duration;

use crate::fault::ProcessRef;

/// The owner of a limit or a thread.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The node as a whole.
    Node,
    /// All pods together: the control group that the kubelet keeps them in.
    Pods,
    /// The kubelet.
    Kubelet,
    /// A runtime daemon, by name.
    Runtime(String),
}

impl Owner {
    /// The key of faults about this owner.
    pub fn key(&self) -> &str {
        match self {
            Self::Node => "node",
            Self::Pods => "pods",
            Self::Kubelet => "kubelet",
            Self::Runtime(name) => name,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("the node"),
            Self::Pods => f.write_str("the pods together"),
            Self::Kubelet => f.write_str("the kubelet"),
            Self::Runtime(name) => f.write_str(name),
        }
    }
}

/// How much of a limit is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// How much is in use. Where an exact count is too expensive, an upper bound.
    pub used: u64,
    /// The limit.
    pub limit: u64,
}

impl Usage {
    /// Whether at least this share of the limit is used.
    pub fn is_at_least(self, percent: u8) -> bool {
        u128::from(self.used).saturating_mul(100) >= u128::from(self.limit).saturating_mul(u128::from(percent))
    }
}

/// The percentage of the last ten seconds in which processes of the node waited for a resource. See the kernel's
/// `Documentation/accounting/psi.rst`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// At least one runnable process waited for a CPU.
    pub cpu: u8,
    /// All processes that could have run waited for memory.
    pub memory: u8,
    /// All processes that could have run waited for a disk.
    pub io: u8,
}

impl Pressure {
    /// The resource that the node is short of. A call without an answer may then be slow and not hung.
    pub const fn shortage(self) -> Option<&'static str> {
        match self {
            Self { memory: 20.., .. } => Some("memory"),
            Self { io: 40.., .. } => Some("disk I/O"),
            Self { cpu: 95.., .. } => Some("CPU"),
            _ => None,
        }
    }
}

/// One limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSeen {
    /// Its owner.
    pub owner: Owner,
    /// How much of it is used, or why that is unknown.
    pub usage: Result<Usage, String>,
}

/// The kubelet or a runtime daemon, with its threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonSeen {
    /// Which daemon.
    pub owner: Owner,
    /// Its process id.
    pub pid: i32,
    /// Its start in clock ticks since boot.
    pub start_ticks: u64,
    /// The thread that has waited uninterruptibly for the longest time. An error where the threads could not be checked.
    pub waiting: Result<Option<ThreadWaiting>, String>,
}

/// A thread that waits uninterruptibly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadWaiting {
    /// Its id.
    pub thread: i32,
    /// How long it has been seen in this state without running in between.
    pub waited: Duration,
    /// Kernel function that it waits in.
    pub wchan: Option<String>,
}

/// The first process of a container in creation, in a frozen control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenSeen {
    /// The process.
    pub process: ProcessRef,
    /// Time since its start.
    pub age: Duration,
    /// What its shim or its conmon serves: a sandbox with containerd, one container or sandbox with Docker and CRI-O.
    pub serves: String,
    /// Its control group.
    pub group: String,
}

/// The control group of a container that no list contained at the check, with processes in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntrackedSeen {
    /// Id of the container, from the name of the group.
    pub id: String,
    /// Uid of the pod, from the name of the parent group.
    pub pod_uid: String,
    /// Its control group.
    pub group: String,
    /// Some of its processes.
    pub pids: Vec<i32>,
}

/// One check of the kernel limits and the daemons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSeen {
    /// Threads, or processes and threads where the kernel counts both the same way.
    pub pids: Vec<LimitSeen>,
    /// Open files.
    pub files: Vec<LimitSeen>,
    /// The kubelet and the runtime daemons.
    pub daemons: Vec<DaemonSeen>,
    /// Frozen containers in creation. An error where one of them could not be checked.
    pub frozen: Result<Vec<FrozenSeen>, String>,
    /// Container groups below the kubelet's pod group that the runtime's newest lists did not contain. An error where those
    /// groups or lists could not be checked.
    pub untracked: Result<Vec<UntrackedSeen>, String>,
    /// How many more there are than are reported.
    pub untracked_left_out: usize,
    /// Why the kubelet or the runtime was not checked, where it was not.
    pub unseen: Option<String>,
}

/// A file system with folders of the kubelet or of a runtime, as the daemon itself sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesystemSeen {
    /// Device number, `major:minor`.
    pub device: String,
    /// Those folders.
    pub folders: Vec<String>,
    /// Bytes: the size, and what is free for users other than root. Both are 0 where it has no size.
    pub bytes: Space,
    /// Inodes: the same. Both are 0 where the file system does not count them.
    pub inodes: Space,
    /// The proof that it accepts no writes, where it accepts none.
    pub read_only: Option<String>,
}

/// Space in a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// The total.
    pub total: u64,
    /// What is free.
    pub left: u64,
}

/// How the kubelet authenticates to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// With a certificate.
    Certificate {
        /// Its location: a path, or the kubeconfig that contains it.
        place: String,
        /// Time from the start of its validity to the end.
        lifetime: Duration,
        /// Remaining validity by the node's wall clock, which the kubelet uses too. Zero once it has expired.
        left: Duration,
    },
    /// With something that has no expiry on the node's disk: a plugin, a token, or nothing at all.
    Other,
    /// The credential could not be checked, and why.
    Unknown(String),
}

/// One check of the node's disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisksSeen {
    /// File systems of the kubelet's and the runtime's folders, one entry for each device.
    pub filesystems: Vec<FilesystemSeen>,
    /// Why some of those folders could not be checked.
    pub unseen: Option<String>,
    /// The kubelet's client certificate.
    pub credential: Credential,
}

/// How far a query to systemd over the system bus got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BusStep {
    /// The socket of the bus exists.
    Connect,
    /// The bus has accepted the connection.
    Login,
    /// The bus has identified the client.
    Hello,
    /// The bus has answered, and systemd has the query.
    Ping,
}

impl fmt::Display for BusStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connect",
            Self::Login => "login",
            Self::Hello => "Hello",
            Self::Ping => "Ping",
        })
    }
}

/// The result of one query to systemd over the system bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BusSeen {
    /// systemd has answered.
    Answered,
    /// There is no bus to query: the node does not run systemd, or has no system bus.
    NoBus,
    /// The bus reports that systemd is not connected to it.
    NotOnIt,
    /// An immediate error in place of an answer. A client with another way to systemd uses that way.
    Refused {
        /// The step that failed.
        step: BusStep,
        /// The error.
        how: String,
    },
    /// No answer.
    Silent {
        /// The step without an answer.
        step: BusStep,
        /// What happened instead.
        how: String,
    },
}

/// The node's clock compared to the API server's, as far as one answer of the API server proves anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockSeen {
    /// How far the node's clock is ahead, at least.
    pub ahead: Duration,
    /// How far it is behind, at least.
    pub behind: Duration,
    /// How far they differ at most, in either direction.
    pub most: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_hold_at_the_edges_of_numbers() {
        let usage = |used, limit| Usage { used, limit };
        assert!(usage(90, 100).is_at_least(90) && !usage(89, 100).is_at_least(90));
        assert!(usage(u64::MAX, u64::MAX).is_at_least(90));
        assert!(!usage(16_000_000, i64::MAX.unsigned_abs()).is_at_least(1));
    }
}
