//! Kubernetes' own programs, built from their published Go modules when the machine does not have them.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, bail};

use crate::packages;
use crate::realm::output;

/// The module whose `tool` lines name what is built; its version lines are the bed's versions.
const GO_MOD: &str = include_str!("../tools/go.mod");
const GO_SUM: &str = include_str!("../tools/go.sum");

const KUBERNETES: &str = "k8s.io/kubernetes";

/// A program of the bed: its file name, and its Go package.
pub type Tool = (&'static str, &'static str);

/// What renders manifests.
pub const KUBECTL: &[Tool] = &[("kubectl", "k8s.io/kubernetes/cmd/kubectl")];
/// What a control plane needs.
pub const CONTROL_PLANE: &[Tool] = &[
    ("etcd", "go.etcd.io/etcd/server/v3"),
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
];
/// What a real node needs on top.
pub const NODE: &[Tool] = &[("kubelet", "k8s.io/kubernetes/cmd/kubelet")];
/// What simulated nodes need.
pub const KWOK: &[Tool] = &[("kwok", "sigs.k8s.io/kwok/cmd/kwok")];

/// Folders that hold the programs, to be searched in this order.
pub fn ensure(tools: &[&[Tool]]) -> Result<Vec<PathBuf>> {
    let cache = cache_dir()?;
    let given = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let folders: Vec<PathBuf> = given.into_iter().chain([cache.join("bin")]).collect();
    let missing = || -> Vec<Tool> {
        let wanted = tools.iter().flat_map(|group| group.iter().copied());
        wanted.filter(|(name, _)| !folders.iter().any(|f| f.join(name).is_file())).collect()
    };
    if missing().is_empty() {
        return Ok(folders);
    }
    fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    let lock = File::create(cache.join("lock"))?;
    // Another run may be building the same: wait for it, then check again.
    lock.lock().context("lock the cache of programs")?;
    build(&cache, &missing())?;
    Ok(folders)
}

/// The first program of this name in the folders.
///
/// # Errors
/// When none of them has it.
pub fn find(folders: &[PathBuf], name: &str) -> Result<PathBuf> {
    let found = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    found.with_context(|| format!("no {name} in {folders:?}"))
}

/// `NRH_TESTBED_CACHE`, or a folder of the user's cache.
pub(crate) fn cache_root() -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    variable("NRH_TESTBED_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|d| d.join("nrh-testbed")))
        .or_else(|| variable("HOME").map(|d| d.join(".cache/nrh-testbed")))
        .context("none of NRH_TESTBED_CACHE, XDG_CACHE_HOME and HOME is set")
}

/// One folder per set of versions.
fn cache_dir() -> Result<PathBuf> {
    let name = format!(
        "k8s-{}-etcd-{}-kwok-{}",
        kubernetes_version(),
        version("go.etcd.io/etcd/server/v3"),
        version("sigs.k8s.io/kwok")
    );
    Ok(cache_root()?.join(name))
}

/// Kubernetes' version without the leading `v`.
pub fn kubernetes_version() -> &'static str {
    version(KUBERNETES)
}

fn version(module: &str) -> &'static str {
    let line = GO_MOD.lines().find_map(|l| l.trim().strip_prefix(module)?.strip_prefix(" v"));
    line.and_then(|l| l.split_ascii_whitespace().next()).unwrap_or("unknown")
}

fn build(cache: &Path, tools: &[Tool]) -> Result<()> {
    if tools.is_empty() {
        return Ok(());
    }
    if output(Command::new("go").arg("version")).is_err() {
        let names: Vec<_> = tools.iter().map(|(name, _)| *name).collect();
        bail!(
            "{} not found in KUBEBUILDER_ASSETS or {}, and there is no Go to build them",
            names.join(", "),
            cache.display()
        );
    }
    let source = tempfile::tempdir_in(cache)?;
    fs::write(source.path().join("go.mod"), GO_MOD)?;
    fs::write(source.path().join("go.sum"), GO_SUM)?;
    fs::create_dir_all(cache.join("bin"))?;
    for (name, package) in tools {
        let started = Instant::now();
        eprintln!("testbed: building {name} {} (once; the first takes minutes)", module_version(package));
        let target = source.path().join(name);
        let (out, flags) = (target.display().to_string(), link_flags(kubernetes_version()));
        let arguments = ["build", "-trimpath", "-ldflags", &flags, "-o", &out, package];
        output(go_command(source.path(), &arguments).env("GOFLAGS", "-mod=readonly"))
            .with_context(|| format!("build {name}"))?;
        // By rename: whoever finds the file finds all of it.
        fs::rename(&target, cache.join("bin").join(name))?;
        eprintln!("testbed: built {name} in {:.0?}", started.elapsed());
    }
    Ok(())
}

/// The folder with the programs of another version of Kubernetes, built from its Go module.
pub fn kubernetes(wanted: &str) -> Result<PathBuf> {
    let minor = wanted.split_once('.').map_or(wanted, |(_, minor)| minor);
    cached(&format!("kubernetes-{wanted}"), "about ten minutes", |scratch, made| {
        // Not required yet: with what it names as its own modules, Go can load no graph.
        go(scratch, &["mod", "init", "nrh-testbed"])?;
        let known: serde_json::Value =
            serde_json::from_str(&go(scratch, &["mod", "download", "-json", &format!("{KUBERNETES}@v{wanted}")])?)?;
        let module = known["GoMod"].as_str().context("the module has no go.mod")?;
        // Its own modules are folders beside it there, and are published with a version of their own.
        let text = fs::read_to_string(module).with_context(|| module.to_owned())?;
        let own = text.lines().filter_map(|line| line.split_once(" => ./staging/")?.0.split_whitespace().last());
        let own: Vec<String> = own.map(|name| format!("-replace={name}={name}@v0.{minor}")).collect();
        let require = format!("-require={KUBERNETES}@v{wanted}");
        go(
            scratch,
            &[&["mod", "edit", &require], own.iter().map(String::as_str).collect::<Vec<_>>().as_slice()].concat(),
        )?;
        let all = CONTROL_PLANE.iter().chain(NODE).map(|(_, package)| *package);
        let packages: Vec<&str> = all.filter(|package| package.starts_with(KUBERNETES)).collect();
        let (out, flags) = (made.display().to_string(), link_flags(wanted));
        go(scratch, &[&["build", "-trimpath", "-ldflags", &flags, "-o", &out], &packages[..]].concat()).map(drop)
    })
}

/// Runs Go in a folder, whose module it may change; the checksum database vouches for what is fetched.
fn go(folder: &Path, arguments: &[&str]) -> Result<String> {
    output(&mut go_command(folder, arguments)).with_context(|| format!("go {}", arguments.join(" ")))
}

/// A static program runs in any mount namespace; flags of the surroundings must not change what is built.
fn go_command(folder: &Path, arguments: &[&str]) -> Command {
    let mut go = Command::new("go");
    go.args(arguments).current_dir(folder);
    go.env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=mod").env("GOWORK", "off");
    go
}

/// containerd's module, and its programs that a node needs.
const CONTAINERD: &str = "github.com/containerd/containerd/v2";
const RUNC: &str = "github.com/opencontainers/runc";
const CONTAINERD_PROGRAMS: [&str; 3] = ["containerd", "containerd-shim-runc-v2", "ctr"];

/// The programs of a version of containerd, built from its Go module.
pub fn containerd(wanted: &str) -> Result<Vec<PathBuf>> {
    let folder = cached(&format!("containerd-{wanted}"), "about three minutes", |scratch, made| {
        let packages = CONTAINERD_PROGRAMS.map(|name| format!("{CONTAINERD}/cmd/{name}"));
        let flags = format!("-s -w -X {CONTAINERD}/version.Version={wanted}");
        let out = made.display().to_string();
        let build = ["build", "-trimpath", "-ldflags", &flags, "-o", &out];
        go(scratch, &["mod", "init", "nrh-testbed"])?;
        go(scratch, &["get", &format!("{CONTAINERD}@v{wanted}")])?;
        go(scratch, &[&build[..], &packages.each_ref().map(String::as_str)].concat()).map(drop)
    })?;
    Ok(CONTAINERD_PROGRAMS.map(|name| folder.join(name)).to_vec())
}

/// The program of a version of runc, built from its Go module. It is static: a machine has another libc than this one.
pub fn runc(wanted: &str) -> Result<PathBuf> {
    packages::ensure(packages::RUNC)?;
    let folder = cached(&format!("runc-{wanted}"), "about a minute", |scratch, made| {
        go(scratch, &["mod", "init", "nrh-testbed"])?;
        go(scratch, &["get", &format!("{RUNC}@v{wanted}")])?;
        let flags = format!("-s -w -extldflags -static -X main.version={wanted}");
        let out = made.join("runc").display().to_string();
        let build = ["build", "-trimpath", "-tags", "seccomp,netgo,osusergo", "-ldflags", &flags, "-o", &out, RUNC];
        output(go_command(scratch, &build).env("CGO_ENABLED", "1")).context("go build runc").map(drop)
    })?;
    Ok(folder.join("runc"))
}

/// A folder of the cache. Where it is not there, it is filled, with a scratch folder beside it.
pub(crate) fn cached(name: &str, takes: &str, fill: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<PathBuf> {
    let root = cache_root()?;
    let folder = root.join(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    fs::create_dir_all(&root).with_context(|| root.display().to_string())?;
    let lock = File::create(root.join(format!("{name}.lock")))?;
    // Another run may be making the same: wait for it, then check again.
    lock.lock().with_context(|| format!("lock {name} of the cache"))?;
    if folder.is_dir() {
        return Ok(folder);
    }
    let started = Instant::now();
    eprintln!("testbed: making {name} (once; {takes})");
    let scratch = tempfile::tempdir_in(&root)?;
    let made = scratch.path().join("made");
    fs::create_dir(&made)?;
    fill(scratch.path(), &made)?;
    // By rename: who finds the folder finds all of it.
    fs::rename(&made, &folder).with_context(|| folder.display().to_string())?;
    eprintln!("testbed: made {name} in {:.0?}", started.elapsed());
    Ok(folder)
}

fn module_version(package: &str) -> &'static str {
    if package.starts_with(KUBERNETES) {
        kubernetes_version()
    } else {
        version(package.split("/cmd/").next().unwrap_or(package))
    }
}

/// Without these the server calls itself v0.0.0, and clients complain.
fn link_flags(version: &str) -> String {
    let mut parts = version.split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let base = "-X k8s.io/component-base/version";
    format!(
        "-s -w {base}.gitVersion=v{version} {base}.gitMajor={major} {base}.gitMinor={minor} {base}.gitTreeState=clean"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_the_module_file_and_every_tool_is_in_it() {
        for group in [CONTROL_PLANE, NODE, KWOK] {
            for (name, package) in group {
                assert!(GO_MOD.contains(&format!("\t{package}\n")), "{name}");
                assert_ne!(module_version(package), "unknown", "{name}");
            }
        }
    }
}
