//! What looks at the node itself yield: limits of its kernel, threads that wait, file systems, the kubelet's certificate,
//! its system bus.

use std::fmt;
use std::time::Duration;

/// Whose limit or thread it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The node as a whole.
    Node,
    /// All pods together: the control group in which the kubelet keeps them.
    Pods,
    /// The kubelet.
    Kubelet,
    /// A runtime daemon, by its name.
    Runtime(String),
}

impl Owner {
    /// What faults about it go by.
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
    /// In use; where counting is not worth it, a number that is surely not exceeded.
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

/// For which share of the last ten seconds, in per cent, processes of the node waited for a resource. See the kernel's
/// `Documentation/accounting/psi.rst`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// At least one runnable process waited for a processor.
    pub cpu: u8,
    /// All processes that could have run waited for memory.
    pub memory: u8,
    /// All processes that could have run waited for a disk.
    pub io: u8,
}

impl Pressure {
    /// The resource that the node is short of: what gives no answer may be slow then, and not hung.
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
    /// Whose.
    pub owner: Owner,
    /// How much of it is used, or why that is not known.
    pub usage: Result<Usage, String>,
}

/// The kubelet or a runtime daemon, thread by thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonSeen {
    /// Which.
    pub owner: Owner,
    /// Its process id.
    pub pid: i32,
    /// Its start in clock ticks since boot.
    pub start_ticks: u64,
    /// Of its threads that wait uninterruptibly, the one that has for the longest; an error where its threads could not
    /// be looked at.
    pub waiting: Result<Option<ThreadWaiting>, String>,
}

/// A thread that waits uninterruptibly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadWaiting {
    /// Its id.
    pub thread: i32,
    /// For how long it has been seen so without having run in between.
    pub waited: Duration,
    /// Kernel function it waits in.
    pub wchan: Option<String>,
}

/// The first process of a container that is being made, in a control group that is frozen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenSeen {
    /// Its process id.
    pub pid: i32,
    /// Time since its start.
    pub age: Duration,
    /// The sandbox that its shim serves.
    pub sandbox_id: String,
    /// Its control group.
    pub group: String,
}

/// The control group of a container that no list had when it was looked for, with processes in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntrackedSeen {
    /// Id of the container, from the group's name.
    pub id: String,
    /// Uid of the pod, from the name of the group above.
    pub pod_uid: String,
    /// Its control group.
    pub group: String,
    /// Some of its processes.
    pub pids: Vec<i32>,
}

/// One look at the kernel's limits and at the daemons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSeen {
    /// Threads, or processes and threads where the kernel counts both alike.
    pub pids: Vec<LimitSeen>,
    /// Open files.
    pub files: Vec<LimitSeen>,
    /// The kubelet and the runtime daemons.
    pub daemons: Vec<DaemonSeen>,
    /// Containers that are being made and are frozen; an error where one of them could not be looked at.
    pub frozen: Result<Vec<FrozenSeen>, String>,
    /// Groups of containers below the kubelet's group of pods that the runtime's newest lists did not have; an error where
    /// those groups or those lists could not be looked at.
    pub untracked: Result<Vec<UntrackedSeen>, String>,
    /// How many more of them there are than are told.
    pub untracked_left_out: usize,
    /// Why the kubelet or the runtime was not looked at, where they were not.
    pub unseen: Option<String>,
}

/// A file system with folders of the kubelet or of a runtime in it, as the daemon itself sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesystemSeen {
    /// Number of the device, `major:minor`.
    pub device: String,
    /// Those folders.
    pub folders: Vec<String>,
    /// Bytes: size, and what is left for others than root. Both 0 where it has no size.
    pub bytes: Space,
    /// Inodes: the same. Both 0 where they are not counted.
    pub inodes: Space,
    /// How it is known to take no writes, where it takes none.
    pub read_only: Option<String>,
}

/// Room in a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// All there is.
    pub total: u64,
    /// What is left.
    pub left: u64,
}

/// How the kubelet proves to the API server who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// By a certificate.
    Certificate {
        /// Where it is: a path, or the kubeconfig that holds it.
        place: String,
        /// From its first second to its last.
        lifetime: Duration,
        /// What is left of that by the node's wall clock, which is what counts for the kubelet too; zero once it has
        /// expired.
        left: Duration,
    },
    /// By something that has no end on the node's disk: a plugin, a token, or nothing at all.
    Other,
    /// This could not be looked at, and why.
    Unknown(String),
}

/// One look at what lies on the node's disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisksSeen {
    /// File systems of the kubelet's and the runtime's folders, one entry for each device.
    pub filesystems: Vec<FilesystemSeen>,
    /// Why some of those folders could not be looked at.
    pub unseen: Option<String>,
    /// The kubelet's client certificate.
    pub credential: Credential,
}

/// How far a question to systemd over the system bus got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BusStep {
    /// The bus's socket is there.
    Connect,
    /// The bus has taken the connection.
    Login,
    /// The bus knows who asks.
    Hello,
    /// The bus has answered, and the question is systemd's.
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

/// One question to systemd over the system bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BusSeen {
    /// systemd has answered.
    Answered,
    /// There is nobody to ask: no systemd runs the node, or it has no system bus.
    NoBus,
    /// The bus says that systemd is not on it.
    NotOnIt,
    /// An error in place of an answer, at once: whoever has another way to systemd takes that one.
    Refused {
        /// To what.
        step: BusStep,
        /// What was said.
        how: String,
    },
    /// No answer.
    Silent {
        /// To what.
        step: BusStep,
        /// What was there instead.
        how: String,
    },
}

/// The node's clock beside the API server's, as far as one answer of that proves anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockSeen {
    /// By how much it is ahead at least.
    pub ahead: Duration,
    /// By how much it is behind at least.
    pub behind: Duration,
    /// By how much they are apart at most, in either direction.
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
