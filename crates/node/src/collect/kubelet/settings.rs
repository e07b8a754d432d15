//! The settings of a running kubelet: its flags, and the files they name, read as that process sees them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{Dir, FileType, OFlags};
use serde::Deserialize;

use crate::collect::host::PodGroups;
use crate::proc::rooted;
use crate::yaml;
use nrh_core::go_duration;
use nrh_core::observation::{KubeletSettings, RUNTIME_REQUEST_TIMEOUT, SettingsSource};
use nrh_core::text::bounded;

use super::USUAL_HEALTHZ;
use super::server::Server;

/// Largest configuration file that is read.
const MAX_FILE: usize = 1 << 20;
/// Maximum number of drop-in files that are read.
const MAX_DROP_INS: usize = 64;

/// The few settings that matter here, with the kubelet's own defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Port of `/healthz`; 0 switches it off.
    pub healthz_port: u16,
    /// Address `/healthz` is bound to.
    pub healthz_address: IpAddr,
    /// Whether these two are the kubelet's defaults because the settings of a kubelet inside a larger program cannot be read.
    pub healthz_is_guess: bool,
    /// Endpoint of the runtime, as written.
    pub runtime_endpoint: Option<String>,
    /// Socket of the runtime that a kubelet of this kind brings. It may use another one.
    pub usual_runtime: Option<&'static str>,
    /// Whether the kubelet is in this process's network namespace.
    pub same_network: bool,
    /// The kubelet's own port; `None` = its place is not known.
    pub server: Option<Server>,
    /// Where the kubelet keeps the control groups of pods.
    pub pod_groups: PodGroups,
    /// The settings that thresholds depend on.
    pub kubelet: KubeletSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            healthz_port: USUAL_HEALTHZ.port(),
            healthz_address: USUAL_HEALTHZ.ip(),
            healthz_is_guess: false,
            runtime_endpoint: None,
            usual_runtime: None,
            same_network: true,
            server: Some(Server::default()),
            pod_groups: PodGroups::default(),
            kubelet: KubeletSettings { source: SettingsSource::Default, ..KubeletSettings::default() },
        }
    }
}

/// The part of a `KubeletConfiguration` that is read. YAML or JSON, as the kubelet takes both.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ConfigFile {
    healthz_port: Option<u16>,
    healthz_bind_address: Option<String>,
    container_runtime_endpoint: Option<String>,
    #[serde(rename = "cgroupsPerQOS")]
    cgroups_per_qos: Option<bool>,
    cgroup_root: Option<String>,
    runtime_request_timeout: Option<String>,
    feature_gates: Option<BTreeMap<String, bool>>,
    address: Option<String>,
    port: Option<u16>,
    enable_server: Option<bool>,
    tls_cert_file: Option<String>,
}

/// Reads the settings of the process whose `/proc` folder is `process`: its file, its drop-ins, then its flags.
///
/// # Errors
/// A sentence that names the file or flag. A wrong guess would ask another process's port.
pub(super) fn read(args: &[String], process: &Path) -> Result<Settings, String> {
    let mut settings = Settings::default();
    if let Some(path) = flag(args, "config").filter(|path| !path.is_empty()) {
        config(process, Path::new(path), &mut settings)?;
    }
    if let Some(folder) = flag(args, "config-dir").filter(|path| !path.is_empty()) {
        for path in drop_ins(process, Path::new(folder))? {
            config(process, &path, &mut settings)?;
        }
    }
    apply_flags(&mut settings, args)?;
    Ok(settings)
}

pub(crate) fn apply_flags(settings: &mut Settings, args: &[String]) -> Result<(), String> {
    set(&mut settings.healthz_port, args, "healthz-port")?;
    set(&mut settings.healthz_address, args, "healthz-bind-address")?;
    if let Some(endpoint) = flag(args, "container-runtime-endpoint").filter(|text| !text.is_empty()) {
        settings.runtime_endpoint = Some(bounded(endpoint, 512));
    }
    if let Some(server) = &mut settings.server {
        set(&mut server.address, args, "address")?;
        set(&mut server.port, args, "port")?;
        if let Some(on) = flag(args, "enable-server") {
            server.enabled = on != "false";
        }
        if let Some(file) = flag(args, "tls-cert-file") {
            server.cert_file = path(file);
        }
        if let Some(folder) = flag(args, "cert-dir").and_then(path) {
            server.cert_dir = folder;
        }
    }
    if let Some(on) = flag(args, "cgroups-per-qos") {
        settings.pod_groups.none = on == "false";
    }
    if let Some(root) = flag(args, "cgroup-root") {
        settings.pod_groups.root = bounded(root, 256);
    }
    if let Some(timeout) = flag(args, "runtime-request-timeout") {
        time_out(&mut settings.kubelet, timeout, SettingsSource::Flags);
    }
    // Each one adds to the previous ones.
    for (name, on) in flags(args, "feature-gates").flat_map(|gates| gates.split(',')).filter_map(gate) {
        open_gate(settings, name, on, SettingsSource::Flags);
    }
    Ok(())
}

/// `Name=true`, in the kubelet's syntax. A value with which the kubelet would not start is ignored.
fn gate(text: &str) -> Option<(&str, bool)> {
    let (name, on) = text.split_once('=')?;
    Some((name.trim(), matches!(on.trim(), "1" | "t" | "T" | "true" | "True" | "TRUE")))
}

fn open_gate(settings: &mut Settings, name: &str, on: bool, source: SettingsSource) {
    if name == "EventedPLEG" {
        (settings.kubelet.evented_pleg, settings.kubelet.source) = (on, settings.kubelet.source.max(source));
    }
}

/// Applies the timeout of a call to the runtime; an empty value means the kubelet's default. A value that cannot be parsed does
/// not stop the check of the kubelet's health: only a longer wait depends on it.
fn time_out(kubelet: &mut KubeletSettings, text: &str, source: SettingsSource) {
    let Some(limit) = go_duration::parse(text) else {
        kubelet.source = SettingsSource::Assumed;
        return;
    };
    kubelet.request_timeout = if limit.is_zero() { RUNTIME_REQUEST_TIMEOUT } else { limit };
    kubelet.source = kubelet.source.max(source);
}

pub(crate) fn apply(settings: &mut Settings, file: &ConfigFile) -> Result<(), String> {
    if let Some(port) = file.healthz_port {
        settings.healthz_port = port;
    }
    if let Some(address) = file.healthz_bind_address.as_deref().filter(|text| !text.is_empty()) {
        settings.healthz_address = address.parse().map_err(|_| no_address("healthzBindAddress"))?;
    }
    if let Some(endpoint) = file.container_runtime_endpoint.as_deref().filter(|text| !text.is_empty()) {
        settings.runtime_endpoint = Some(bounded(endpoint, 512));
    }
    if let Some(on) = file.cgroups_per_qos {
        settings.pod_groups.none = !on;
    }
    if let Some(root) = &file.cgroup_root {
        settings.pod_groups.root = bounded(root, 256);
    }
    if let Some(server) = &mut settings.server {
        if let Some(address) = file.address.as_deref().filter(|text| !text.is_empty()) {
            server.address = address.parse().map_err(|_| no_address("address"))?;
        }
        // An empty value means the default, also where it is written out.
        server.port = file.port.filter(|port| *port != 0).unwrap_or(server.port);
        server.enabled = file.enable_server.unwrap_or(server.enabled);
        if let Some(file) = &file.tls_cert_file {
            server.cert_file = path(file);
        }
    }
    if let Some(timeout) = file.runtime_request_timeout.as_deref().filter(|text| !text.is_empty()) {
        time_out(&mut settings.kubelet, timeout, SettingsSource::File);
    }
    for (name, on) in file.feature_gates.iter().flatten() {
        open_gate(settings, name, *on, SettingsSource::File);
    }
    Ok(())
}

fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| PathBuf::from(text))
}

/// The error for a key of a file; it does not repeat the value.
fn no_address(key: &str) -> String {
    format!("{key} of the kubelet's configuration is not an IP address")
}

/// Sets the value to that of a flag, where the flag is given. The error shows the flag's text, which every process of the node can read
/// anyway.
fn set<T: FromStr>(value: &mut T, args: &[String], name: &str) -> Result<(), String> {
    if let Some(text) = flag(args, name) {
        *value = text
            .parse()
            .map_err(|_| bounded(&format!("the kubelet's --{name} is {text:?}, which is not understood"), 200))?;
    }
    Ok(())
}

fn config(process: &Path, path: &Path, settings: &mut Settings) -> Result<(), String> {
    let describe = |error: &dyn std::fmt::Display| {
        bounded(&format!("cannot read the kubelet's configuration {}: {error}", path.display()), 300)
    };
    let text = rooted::of_process(process, path).and_then(|(root, path)| rooted::read(root, &path, MAX_FILE));
    let text = text.map_err(|error| describe(&error))?;
    let file = yaml::read(&text).map_err(|error| describe(&error))?;
    apply(settings, &file)
}

/// The drop-in files, in the order in which the kubelet applies them: `*.conf`, by path, in sub-folders too.
fn drop_ins(process: &Path, folder: &Path) -> Result<Vec<PathBuf>, String> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        let describe =
            |error: io::Error| bounded(&format!("cannot list the kubelet's {}: {error}", folder.display()), 300);
        for entry in listed(process, &folder).map_err(describe)? {
            let entry = entry.map_err(|error| describe(error.into()))?;
            let path = folder.join(OsStr::from_bytes(entry.file_name().to_bytes()));
            match entry.file_type() {
                FileType::Directory if !matches!(entry.file_name().to_bytes(), b"." | b"..") => folders.push(path),
                FileType::Directory => {}
                _ if path.extension().is_some_and(|extension| extension == "conf") => files.push(path),
                _ => {}
            }
        }
        if files.len() + folders.len() > MAX_DROP_INS {
            return Err(format!("the kubelet's {} holds more than {MAX_DROP_INS} files", folder.display()));
        }
    }
    files.sort();
    Ok(files)
}

/// The contents of a folder, as the process sees it.
fn listed(process: &Path, folder: &Path) -> io::Result<Dir> {
    let (root, folder) = rooted::of_process(process, folder)?;
    Ok(Dir::new(rooted::open(root, &folder, rooted::READ | OFlags::DIRECTORY)?)?)
}

/// The last value of a flag, which is the one in force.
pub(crate) fn flag<'a>(args: &'a [String], name: &str) -> Option<&'a str> {
    flags(args, name).last()
}

/// The values of every `--name value` and `--name=value`, as the kubelet's flag parser takes them.
fn flags<'a>(args: &'a [String], name: &str) -> impl Iterator<Item = &'a str> {
    let mut rest = args.iter().skip(1);
    std::iter::from_fn(move || {
        loop {
            let Some(bare) = rest.next()?.strip_prefix("--") else { continue };
            if bare == name {
                return rest.next().map(String::as_str);
            }
            if let Some(given) = bare.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')) {
                return Some(given);
            }
        }
    })
}

#[cfg(test)]
mod tests;
