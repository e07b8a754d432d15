//! A real control plane and real nodes on one Linux machine.
//!
//! A [`Bed`] has etcd, API server, controller manager and scheduler, and any number of nodes with a real kubelet and a real
//! containerd, or simulated ones. All of it lives in the namespaces of one init process, so that nothing can leak and two
//! beds cannot meet; it ends with its owner, however the owner ends.

pub mod assets;
pub mod audit;
pub mod bed;
mod cgroup;
mod client;
mod control_plane;
pub mod demo;
pub mod docker;
pub mod faults;
pub mod images;
pub mod kwok;
mod layout;
pub mod machine;
pub mod network;
pub mod node;
pub mod node_config;
mod node_runtime;
pub mod on_node;
pub mod operator;
pub mod packages;
mod paths;
mod pki;
pub mod platform;
pub mod process;
mod programs;
mod reach;
pub mod realm;
pub mod stand_in;
pub mod start_check;
mod state;
pub mod supervise;
pub mod systemd;
pub mod unprivileged;
mod up;
pub mod view;
pub mod wait;
mod watches;
pub mod work;

pub use audit::AuditEntry;
pub use bed::Bed;
pub use node::{KubeletStart, Node};
pub use nrh_testbed_matrix as matrix;
pub use platform::Platform;
pub use state::{tidy, workspace};
pub use up::BedOptions;
