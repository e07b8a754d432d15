//! Where the kubelet serves its own port, and the certificates that prove that the kubelet answers there.
//!
//! Any process on the node may have bound the port. So before the probe sends anything, the server has to show the exact
//! certificate that is among the kubelet's own files, and to sign with its key.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::on_this_host;
use crate::proc::{Handle, rooted};
use nrh_core::text::bounded;

/// Largest file of certificates, and largest token, that is read.
const MAX_FILE: usize = 256 << 10;
/// The certificate that a kubelet creates for itself, and the one that it gets from the cluster.
const OWN: [&str; 2] = ["kubelet.crt", "kubelet-server-current.pem"];

/// The kubelet's own port, by its flags and configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Whether the kubelet serves it at all.
    pub enabled: bool,
    /// Address it is bound to.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// Folder of the certificates that it creates or gets for itself.
    pub cert_dir: PathBuf,
    /// Its certificate, where a person has set one.
    pub cert_file: Option<PathBuf>,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            enabled: true,
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            port: 10250,
            cert_dir: PathBuf::from("/var/lib/kubelet/pki"),
            cert_file: None,
        }
    }
}

/// A running kubelet that serves its own port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningServer {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Its port.
    pub server: Server,
}

/// All data needed to ask a kubelet at its own port.
#[derive(Clone)]
pub struct KubeletEndpoint {
    /// The process through which the certificates were found.
    pub of: (i32, u64),
    /// Where it listens.
    pub address: SocketAddr,
    pub(super) pins: Vec<CertificateDer<'static>>,
    pub(super) token: String,
}

impl std::fmt::Debug for KubeletEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never print the token.
        f.debug_struct("Door").field("of", &self.of).field("address", &self.address).finish_non_exhaustive()
    }
}

/// Reads the certificates as this kubelet sees them, and the probe's token. Blocks.
///
/// # Errors
/// A sentence that says what is missing.
pub fn door(proc: &Path, served: &RunningServer, token: Option<&Path>) -> Result<KubeletEndpoint, String> {
    let Some(token) = token else {
        return Err("the kubelet's port takes a token, and a probe outside of a pod has none".to_owned());
    };
    if !served.server.enabled {
        return Err("the kubelet's own port is switched off".to_owned());
    }
    let pins = pins(proc, served)?;
    let token = token_of(token).map_err(|error| bounded(&format!("cannot read the probe's token: {error}"), 200))?;
    Ok(KubeletEndpoint { of: (served.pid, served.start_ticks), address: address(&served.server)?, pins, token })
}

/// The token goes only to addresses of this node.
fn address(server: &Server) -> Result<SocketAddr, String> {
    let address = on_this_host(server.address);
    // A process can bind only to an address of the node.
    if !address.is_loopback() && UdpSocket::bind((address, 0)).is_err() {
        return Err(format!("the kubelet's port is at {address}, which is no address of this node: it is not asked"));
    }
    Ok(SocketAddr::new(address, server.port))
}

/// The token is renewed in place, so it is read for every check.
fn token_of(path: &Path) -> io::Result<String> {
    let text = rooted::text(rustix::fs::open(path, rooted::READ, Mode::empty())?, MAX_FILE)?;
    let token = text.trim();
    if token.is_empty() {
        return Err(io::Error::other("it is empty"));
    }
    Ok(token.to_owned())
}

fn pins(proc: &Path, served: &RunningServer) -> Result<Vec<CertificateDer<'static>>, String> {
    let describe = |error: io::Error| bounded(&format!("the kubelet's certificate cannot be found: {error}"), 200);
    let handle = Handle::open(proc, served.pid).map_err(describe)?;
    if handle.stat().map_err(describe)?.start_ticks != served.start_ticks {
        return Err("the kubelet has ended".to_owned());
    }
    let root = handle.root().map_err(describe)?;
    let Server { cert_dir, cert_file, .. } = &served.server;
    let files =
        cert_file.as_ref().map_or_else(|| OWN.map(|name| cert_dir.join(name)).to_vec(), |file| vec![file.clone()]);
    let (mut pins, mut missing) = (Vec::new(), None);
    for file in files {
        if !file.is_absolute() {
            missing = Some(format!("{} is not an absolute path", file.display()));
            continue;
        }
        match rooted::read(&root, &file, MAX_FILE) {
            Ok(pem) => match CertificateDer::from_pem_slice(pem.as_bytes()) {
                Ok(certificate) => pins.push(certificate),
                Err(_) => missing = Some(format!("{} holds no certificate", file.display())),
            },
            Err(error) => {
                missing.get_or_insert_with(|| format!("{}: {error}", file.display()));
            }
        }
    }
    if pins.is_empty() {
        let why = missing.unwrap_or_default();
        return Err(bounded(&format!("the kubelet's own certificate is not found, so nobody is asked: {why}"), 300));
    }
    Ok(pins)
}

#[cfg(test)]
pub(super) mod tests;
