//! The kubelet of this node: its process, and `/healthz` where that process's own settings say it serves it.
//!
//! ```text
//! Finder::find (blocking) ─► Found { process, healthz address, runtime endpoint } ─► healthz (async)
//! ```

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::deadline::within;
use crate::proc::place::ProcessNamespaces;
use crate::proc::role::k3s;
use crate::proc::table::Bounds;
use crate::proc::{self, Handle, RawProcess, Table};
use crate::reader::Reader;
use nrh_core::observation::KubeletSettings;
use nrh_core::text::bounded;

pub(crate) mod metrics;
mod peer;
mod pin;
pub mod port;
pub mod server;
pub(crate) mod settings;

use peer::Contact;
pub use settings::Settings;

/// Where a kubelet serves `/healthz` unless it is configured otherwise.
pub const USUAL_HEALTHZ: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 10248));
/// Longest wait for `/healthz`.
const HEALTHZ_DEADLINE: Duration = Duration::from_secs(5);
/// Longest wait for the proof of who answered there.
const PROOF_DEADLINE: Duration = Duration::from_secs(3);

/// One form in which a kubelet runs: alone, or inside the one process of k3s and `MicroK8s`.
struct Kind {
    commands: &'static [&'static str],
    /// File name of its executable.
    file: &'static str,
    /// The default socket of its runtime. Another containerd at the usual place is not its own.
    runtime: Option<&'static str>,
}

const KINDS: [Kind; 3] = [
    Kind { commands: &["kubelet"], file: "kubelet", runtime: None },
    Kind {
        commands: &[k3s::EXECUTABLE, k3s::SERVER, k3s::AGENT],
        file: k3s::EXECUTABLE,
        runtime: Some("/run/k3s/containerd/containerd.sock"),
    },
    Kind { commands: &["kubelite"], file: "kubelite", runtime: Some("/var/snap/microk8s/common/run/containerd.sock") },
];

fn kind(command: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.commands.contains(&command))
}

/// What a process with the name of a kubelet is.
enum Proven {
    Kubelet,
    /// A kubelet in a container: it may be the node's, but the paths that it names are those of its container.
    InContainer,
    Other,
}

/// A running kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Time since its start.
    pub age: Duration,
    /// What its flags and configuration say; an error is a sentence that says why they could not be read.
    pub settings: Result<Settings, String>,
}

/// Finds the kubelet, and remembers the last one. It reads the kubelet's files once, because a running kubelet does not reload
/// them either.
#[derive(Debug)]
pub struct Finder {
    root: PathBuf,
    last: Option<Found>,
}

impl Finder {
    /// Reads the `/proc` at `root`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf(), last: None }
    }

    /// The kubelet in the PID namespace of this `/proc`; `None` when none runs. Blocks: it needs its own thread.
    ///
    /// # Errors
    /// When the process table cannot be read, a permission is missing (`PermissionDenied`), or several kubelets run.
    pub fn find(&mut self) -> io::Result<Option<Found>> {
        let uptime = proc::uptime(&self.root)?;
        let last = self.last.take();
        let mut found = match last {
            Some(last) if self.lives(&last) => Some(last),
            _ => self.search()?,
        };
        if let Some(found) = &mut found {
            found.age = proc::age(found.start_ticks, uptime);
            if found.settings.is_err() {
                found.settings = self.settings(found.pid, found.start_ticks);
            }
        }
        self.last.clone_from(&found);
        Ok(found)
    }

    fn lives(&self, last: &Found) -> bool {
        let stat = Handle::open(&self.root, last.pid).and_then(|handle| handle.stat());
        stat.is_ok_and(|stat| stat.start_ticks == last.start_ticks && !proc::is_dead(stat.state))
    }

    fn search(&self) -> io::Result<Option<Found>> {
        let table = Table::read(&self.root, [], Bounds::USUAL)?;
        let (mut kubelets, mut contained) = (Vec::new(), None);
        for process in table.processes {
            match proc::unless_gone(self.prove(&process))? {
                Some(Proven::Kubelet) => kubelets.push(process),
                Some(Proven::InContainer) => contained = Some(process.pid),
                Some(Proven::Other) | None => {}
            }
        }
        // A child that the kubelet has just started has the same name until it executes its own program.
        let all: Vec<i32> = kubelets.iter().map(|process| process.pid).collect();
        kubelets.retain(|process| !all.contains(&process.parent));
        match kubelets.as_slice() {
            [] if let Some(pid) = contained => Err(io::Error::other(format!(
                "expected a kubelet outside of every container, found process {pid} in one, which is not supported: run the \
                 kubelet as a service of the node"
            ))),
            [] => table.lack.map_or(Ok(None), |lack| Err(io::Error::other(format!("whether a kubelet runs: {lack}")))),
            [process] => Ok(Some(Found {
                pid: process.pid,
                start_ticks: process.start_ticks,
                age: Duration::ZERO,
                settings: Err("not read yet".to_owned()),
            })),
            [one, other, ..] => Err(io::Error::other(format!(
                "expected one kubelet, found processes {} and {}: which one is this node's is not known; end the other",
                one.pid, other.pid
            ))),
        }
    }

    /// A script with the name kubelet, or one in a pod, is not the kubelet of this node. One in another container that has the
    /// node's process ids may be.
    fn prove(&self, process: &RawProcess) -> io::Result<Proven> {
        let Some(kind) = kind(&process.command).filter(|_| !process.is_dead()) else { return Ok(Proven::Other) };
        let place = ProcessNamespaces::of_first(&self.root);
        let handle = Handle::of(&self.root, process.pid, process.start_ticks)?;
        let proven = if place.has(&handle)? {
            Proven::Kubelet
        } else if place.has_in_container(&handle)? {
            Proven::InContainer
        } else {
            return Ok(Proven::Other);
        };
        let exe = handle.exe()?;
        if exe.file_name().and_then(|name| name.to_str()) != Some(kind.file) {
            return Ok(Proven::Other);
        }
        let asks_only = |arg: &String| matches!(arg.as_str(), "--version" | "--help" | "-h");
        let is_at_work = handle.stat()?.state == 'D' || !handle.args()?.iter().any(asks_only);
        Ok(if is_at_work { proven } else { Proven::Other })
    }

    /// Whether a process is in this process's network namespace. Where that cannot be read, it counts as yes.
    fn same_network(&self, pid: i32) -> bool {
        let link = |process: &str| std::fs::read_link(self.root.join(process).join("ns/net")).ok();
        match (link(&pid.to_string()), link("self")) {
            (Some(theirs), Some(ours)) => theirs == ours,
            _ => true,
        }
    }

    fn settings(&self, pid: i32, start_ticks: u64) -> Result<Settings, String> {
        let describe = |error: io::Error| bounded(&format!("cannot read the kubelet's flags: {error}"), 200);
        let handle = Handle::open(&self.root, pid).map_err(describe)?;
        if handle.stat().map_err(describe)?.start_ticks != start_ticks {
            return Err("the kubelet has ended".to_owned());
        }
        let args = handle.args().map_err(describe)?;
        let mut settings = settings::read(&args, &self.root.join(pid.to_string()))?;
        let command = handle.stat().map_err(describe)?.command;
        let kind = kind(&command);
        settings.usual_runtime = kind.and_then(|kind| kind.runtime);
        if kind.is_some_and(|kind| kind.file != "kubelet") {
            // The settings that it passes on to the kubelet inside are in its own flags and files.
            settings.kubelet = KubeletSettings::default();
            settings.server = None;
            settings.healthz_is_guess = true;
        }
        settings.same_network = self.same_network(pid);
        Ok(settings)
    }
}

/// Where `/healthz` is served, for a client on the same host.
///
/// # Errors
/// A sentence that says why it cannot be asked: it is switched off, or served in another network namespace.
pub fn healthz_address(settings: &Settings) -> Result<SocketAddr, String> {
    if settings.healthz_port == 0 {
        return Err("the kubelet's /healthz is switched off (port 0)".to_owned());
    }
    if !settings.same_network {
        return Err("the kubelet is in another network namespace: its /healthz cannot be asked".to_owned());
    }
    Ok(SocketAddr::new(on_this_host(settings.healthz_address), settings.healthz_port))
}

/// The address at which a client on this host reaches a server that listens at `address`.
fn on_this_host(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) if address.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(address) if address.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        address => address,
    }
}

/// Why `/healthz` did not answer 200.
#[derive(Debug)]
struct Unhealthy {
    contact: Contact,
    /// Kept open until it is known who has the other end.
    _stream: Option<TcpStream>,
    /// Connection refused, no answer, or the first line of another answer, as a sentence.
    message: String,
}

/// Asks `/healthz`: `Ok` when the answer is 200. Ends within `HEALTHZ_DEADLINE`.
async fn healthz(address: SocketAddr) -> Result<(), Unhealthy> {
    let mut stream = None;
    let call = async {
        let stream = stream.insert(TcpStream::connect(address).await?);
        status_line(stream, address).await
    };
    let answer = within(HEALTHZ_DEADLINE, call).await;
    let own = stream.as_ref().and_then(|stream| stream.local_addr().ok());
    let contact = match (own, &answer) {
        (Some(own), _) => Contact::Connected(own.port()),
        (None, Err(_)) => Contact::Waiting,
        (None, Ok(Err(error))) if error.kind() == io::ErrorKind::TimedOut => Contact::Waiting,
        (None, Ok(Err(error))) if error.kind() == io::ErrorKind::ConnectionRefused => Contact::Refused,
        (None, Ok(_)) => Contact::NotConnected,
    };
    let message = match answer {
        Err(_) => format!("no answer from {address} within {} s", HEALTHZ_DEADLINE.as_secs()),
        Ok(Err(error)) => format!("{address}: {error}"),
        Ok(Ok(line)) if is_ok(&line) => return Ok(()),
        Ok(Ok(line)) => format!("{address} answered {line:?}"),
    };
    Err(Unhealthy { contact, _stream: stream, message: bounded(&message, 200) })
}

/// Asks the `/healthz` of a running kubelet: whether it is healthy, or why not. Another answer than 200 counts only if it is proven
/// that the kubelet gave it.
///
/// # Errors
/// A sentence that says why that is not known.
pub async fn health(found: &Found, proc: &Path, reader: &Reader) -> Result<Result<(), String>, String> {
    let settings = found.settings.as_ref().map_err(Clone::clone)?;
    let address = healthz_address(settings)?;
    let Err(unhealthy) = healthz(address).await else { return Ok(Ok(())) };
    let Unhealthy { contact, message, .. } = &unhealthy;
    if *contact == Contact::Refused && settings.healthz_is_guess {
        return Err(format!("{message}, and a kubelet inside a larger program can have its health check elsewhere"));
    }
    let (proc, pid, contact) = (proc.to_owned(), found.pid, *contact);
    let proof = reader.run(PROOF_DEADLINE, move || peer::prove(&proc, pid, address.port(), contact)).await;
    let proven = proof.map_err(|error| error.to_string()).flatten();
    proven.map_err(|why| format!("{message}; {why}"))?;
    Ok(Err(unhealthy.message))
}

/// Refuses "no kubelet runs" if a kubelet's health check answers at this address: its process has a name that is not known.
pub async fn none_answers(address: SocketAddr) -> Result<(), String> {
    match healthz(address).await {
        Ok(()) => Err(format!(
            "expected a kubelet's process, found none, but a kubelet's health check answers at {address}: a kubelet inside a \
             program of this kind is not supported"
        )),
        Err(_) => Ok(()),
    }
}

fn is_ok(line: &str) -> bool {
    let mut words = line.split(' ');
    words.next().is_some_and(|version| version.starts_with("HTTP/1.")) && words.next() == Some("200")
}

async fn status_line(stream: &mut TcpStream, address: SocketAddr) -> io::Result<String> {
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut line = Vec::with_capacity(128);
    // The read is limited: a server that never ends its first line is cut here.
    let mut head = stream.take(512);
    let mut buffer = [0_u8; 128];
    loop {
        let read = head.read(&mut buffer).await?;
        line.extend_from_slice(buffer.get(..read).unwrap_or_default());
        if read == 0 || line.contains(&b'\n') {
            break;
        }
    }
    let first = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(first).trim_end().to_owned())
}

#[cfg(test)]
mod tests;
