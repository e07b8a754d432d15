//! Container images for the bed, made without a registry and without a Docker engine.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::paths;
use crate::realm::output;

/// The sandbox image: containerd's `sandbox_image`.
pub const PAUSE_IMAGE: &str = "localhost/nrh-testbed/pause:1";
/// The workload image; its entry point is the workload binary, `args` pick a personality.
pub const WORK_IMAGE: &str = "localhost/nrh-testbed/work:1";
/// An image of programs that are called like those of a node, and do nothing.
pub const FORGED_IMAGE: &str = "localhost/nrh-testbed/forged:1";
/// The programs of [`FORGED_IMAGE`].
pub const FORGED: [&str; 4] = ["kubelet", "containerd-shim-runc-v2", "opt/cni/bin/bridge", "containerd"];

/// Names a folder with static programs that are made already.
const PREBUILT: &str = "NRH_TESTBED_PROGRAMS";

/// The compiler's flags for a static binary, as in the Dockerfile.
///
/// Packed relocations, because every start reads all of them and they stay resident: half a megabyte otherwise. No index of
/// unwind tables (200 kB): a panic ends the process, and without symbols a backtrace shows nothing.
const STATIC_FLAGS: &str = "-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs,--no-eh-frame-hdr";

/// The only file of the bed's own images.
const PROGRAM: &str = "workload";

/// Builds the static workload binary (once; cargo keeps it) and returns its path.
pub fn workload_binary() -> Result<PathBuf> {
    let [program] = static_binaries("nrh-testbed-workload", ["nrh-testbed-workload"])?;
    Ok(program)
}

/// Builds programs of the workspace so that they need nothing in their image.
///
/// The target is named although it is the host's own: only then does cargo keep the flags away from build scripts.
pub fn static_binaries<const N: usize>(package: &str, names: [&str; N]) -> Result<[PathBuf; N]> {
    // For machines without a compiler.
    if let Some(folder) = std::env::var_os(PREBUILT) {
        let made = names.map(|name| Path::new(&folder).join(name));
        for program in &made {
            ensure!(program.is_file(), "{} is not there, but {PREBUILT} says so", program.display());
        }
        return Ok(made);
    }
    let triple = host_triple()?;
    let flags = format!("CARGO_TARGET_{}_RUSTFLAGS", triple.to_uppercase().replace('-', "_"));
    let (target, mut cargo) = (paths::target(), cargo());
    cargo
        .args(["build", "--release", "--locked", "--package", package])
        .args(names.iter().flat_map(|name| ["--bin", name]))
        .args(["--target", &triple])
        .arg("--target-dir")
        .arg(&target)
        .env(flags, STATIC_FLAGS)
        // It would win over the flags above.
        .env_remove("RUSTFLAGS");
    output(&mut cargo)?;
    Ok(names.map(|name| target.join(&triple).join("release").join(name)))
}

/// Folder of the programs of this compilation. `NRH_TESTBED_BUILT` names it where they are compiled already.
pub(crate) fn compiled() -> Result<PathBuf> {
    if let Some(given) = std::env::var_os("NRH_TESTBED_BUILT") {
        return Ok(given.into());
    }
    let own = std::env::current_exe()?;
    if let (Some(folder), true) = (own.parent(), own.ends_with("testbed")) {
        return Ok(folder.to_owned());
    }
    // Cargo compiles the programs of a package for its tests: one test of each package is enough.
    let mut cargo = cargo();
    cargo.args(["test", "--locked", "--workspace", "--no-run", "--test", "repository", "--test", "supervise"]);
    output(&mut cargo).context("compile the programs that run on a bed")?;
    Ok(paths::target().join("debug"))
}

/// A cargo that builds the same thing whoever calls: a shell, `cargo run`, or the test of any package.
fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(paths::workspace());
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_the_caller(name)) {
        cargo.env_remove(name);
    }
    cargo
}

/// Whether cargo has set a variable to tell the running program about its own package.
///
/// Build scripts are told the same about theirs, under the same names. One that has itself run again when they change
/// (ring's does) would compare with ours, and be redone with all that depends on it for each other caller.
fn is_of_the_caller(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let prefixes = ["CARGO_BIN_", "CARGO_MANIFEST_", "CARGO_PKG_"];
    let names = ["CARGO_CRATE_NAME", "CARGO_PRIMARY_PACKAGE", "CARGO_TARGET_TMPDIR", "OUT_DIR"];
    prefixes.iter().any(|prefix| name.starts_with(prefix)) || names.contains(&name.as_ref())
}

fn host_triple() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("run rustc -vV")?;
    let text = String::from_utf8(output.stdout).context("rustc -vV")?;
    let triple = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(triple.context("rustc -vV names no host")?.to_owned())
}

/// Writes the pause and the workload image below `dir`; returns their archives.
pub fn bed_images(binary: &Path, dir: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    let program = fs::read(binary).with_context(|| format!("read {}", binary.display()))?;
    let images: [(&str, &str, &[&str]); 3] =
        [(PAUSE_IMAGE, "pause", &[PROGRAM]), (WORK_IMAGE, "work", &[PROGRAM]), (FORGED_IMAGE, "forged", &FORGED)];
    let write = |(reference, personality, names): &(&str, &str, &[&str])| {
        let archive = dir.join(format!("{personality}.tar"));
        write_archive(&archive, reference, &program, names, personality)?;
        Ok(archive)
    };
    images.iter().map(write).collect()
}

/// Writes a docker-archive with one layer that holds one program under these names; equal input gives equal bytes.
fn write_archive(archive: &Path, reference: &str, program: &[u8], names: &[&str], argument: &str) -> Result<()> {
    let entry = format!("/{}", names.first().context("an image without a program")?);
    let mut layer = tar::Builder::new(Vec::new());
    for name in names {
        append(&mut layer, name, 0o755, program)?;
    }
    let layer = layer.into_inner().context("finish the layer")?;
    let layer_id = sha256(&layer);
    let layer_name = format!("{layer_id}.tar");

    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {"Entrypoint": [entry], "Cmd": [argument]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer_id}")]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "nrh-testbed"}],
    })
    .to_string();
    let config_name = format!("{}.json", sha256(config.as_bytes()));
    let manifest: Value = json!([{"Config": config_name, "RepoTags": [reference], "Layers": [layer_name]}]);

    let file = File::create(archive).with_context(|| format!("create {}", archive.display()))?;
    let mut image = tar::Builder::new(file);
    append(&mut image, &layer_name, 0o644, &layer)?;
    append(&mut image, &config_name, 0o644, config.as_bytes())?;
    append(&mut image, "manifest.json", 0o644, manifest.to_string().as_bytes())?;
    image.finish().with_context(|| format!("finish {}", archive.display()))
}

fn append<W: std::io::Write>(archive: &mut tar::Builder<W>, name: &str, mode: u32, data: &[u8]) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_size(data.len() as u64);
    archive.append_data(&mut header, name, data).with_context(|| format!("archive {name}"))
}

pub(crate) fn sha256(data: &[u8]) -> String {
    use std::fmt::Write;
    let digest = ring::digest::digest(&ring::digest::SHA256, data);
    digest.as_ref().iter().fold(String::new(), |mut text, byte| {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The machine's architecture in the words of container images.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Puts locally built programs into the final stage of the shipped Dockerfile and saves it as a docker-archive.
///
/// So what runs in the bed has the user, labels and entry point that users get; only the compiler stage, which wants
/// a registry, is replaced by `programs`, each with its path in the image, and the libraries of those that are not static.
pub fn operator_image(workspace: &Path, programs: &[(&str, &Path)], reference: &str, archive: &Path) -> Result<()> {
    let path = workspace.join("Dockerfile");
    let dockerfile = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let stage = final_stage(&dockerfile).with_context(|| format!("in {}", path.display()))?;

    let scratch = tempfile::tempdir().context("make a scratch folder")?;
    let out = scratch.path().join("build/out");
    let place = |path: &str| -> Result<PathBuf> {
        let to = out.join(path.trim_start_matches('/'));
        let folder = to.parent().unwrap_or(&out);
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        Ok(to)
    };
    for (path, program) in programs {
        for library in libraries(program)? {
            fs::copy(&library, place(&library)?).with_context(|| format!("copy {library}"))?;
        }
        // Each node unpacks the image, so it holds no debug information.
        output(Command::new("strip").arg("-o").arg(place(path)?).arg(program))?;
    }
    let own = scratch.path().join("Dockerfile");
    fs::write(&own, stage).with_context(|| format!("write {}", own.display()))?;

    let mut context = std::ffi::OsString::from("build=");
    context.push(scratch.path().join("build"));
    let mut build = buildah(scratch.path());
    build.args(["bud", "--isolation", "chroot", "--pull-never", "--tag", reference]);
    build.arg("--build-context").arg(context).arg("--file").arg(&own).arg(workspace);
    output(&mut build)?;

    // buildah does not replace an archive.
    if archive.exists() {
        fs::remove_file(archive).with_context(|| format!("remove {}", archive.display()))?;
    }
    let mut push = buildah(scratch.path());
    push.args(["push", reference, &format!("docker-archive:{}:{reference}", archive.display())]);
    output(&mut push).map(drop)
}

/// What the dynamic linker loads for a program, itself included; nothing for a static one.
fn libraries(program: &Path) -> Result<Vec<String>> {
    // It fails for static programs.
    let output = Command::new("ldd").arg(program).output().context("run ldd")?;
    let text = String::from_utf8(output.stdout).context("ldd")?;
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(str::to_owned);
    Ok(text.lines().filter_map(path).collect())
}

/// buildah with a store of its own that goes with the scratch folder: nothing of the machine's images is touched.
fn buildah(scratch: &Path) -> Command {
    let mut command = Command::new("buildah");
    command.arg("--root").arg(scratch.join("root")).arg("--runroot").arg(scratch.join("run"));
    command.args(["--storage-driver", "vfs"]);
    command
}

/// The last stage of a Dockerfile with the arguments declared before the first one.
fn final_stage(dockerfile: &str) -> Result<String> {
    let lines: Vec<&str> = dockerfile.lines().collect();
    let word = |line: &str| line.split_whitespace().next().unwrap_or_default().to_uppercase();
    let starts: Vec<usize> = (0..lines.len()).filter(|at| word(lines[*at]) == "FROM").collect();
    let (Some(first), Some(last)) = (starts.first(), starts.last()) else { bail!("no FROM line") };
    let base = lines[*last].split_whitespace().nth(1).unwrap_or_default();
    ensure!(base == "scratch", "the final stage is FROM {base}, which needs a registry, not FROM scratch");
    ensure!(
        lines[*last..].iter().any(|line| line.contains("--from=build ") && line.contains(" /out/ ")),
        "the final stage does not COPY --from=build /out/"
    );
    let arguments = lines[..*first].iter().filter(|line| word(line) == "ARG");
    let mut stage: Vec<&str> = arguments.chain(&lines[*last..]).copied().collect();
    stage.push("");
    Ok(stage.join("\n"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;

    use super::*;

    fn entries(archive: &[u8]) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut found = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            let mode = entry.header().mode().unwrap();
            found.insert(entry.path().unwrap().display().to_string(), (mode, data));
        }
        found
    }

    #[test]
    fn an_archive_is_what_its_manifest_says() {
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("program");
        fs::write(&binary, "not really").unwrap();
        let archives = bed_images(&binary, dir.path()).unwrap();
        let bytes = fs::read(&archives[0]).unwrap();
        let image = entries(&bytes);
        let manifest: Value = serde_json::from_slice(&image["manifest.json"].1).unwrap();
        assert_eq!(manifest[0]["RepoTags"], json!([PAUSE_IMAGE]));
        let config = &image[manifest[0]["Config"].as_str().unwrap()].1;
        let config: Value = serde_json::from_slice(config).unwrap();
        let layer = &image[manifest[0]["Layers"][0].as_str().unwrap()].1;
        assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", sha256(layer)));
        assert_eq!(config["config"], json!({"Entrypoint": ["/workload"], "Cmd": ["pause"]}));
        assert_eq!(entries(layer)["workload"], (0o755, b"not really".to_vec()));

        // Equal input, equal bytes: an import that is repeated changes nothing.
        bed_images(&binary, dir.path()).unwrap();
        assert_eq!(fs::read(&archives[0]).unwrap(), bytes);
    }

    #[test]
    fn sha256_is_the_known_one() {
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn the_dockerfile_builds_with_the_same_flags() {
        let dockerfile = fs::read_to_string(paths::workspace().join("Dockerfile")).unwrap();
        assert!(dockerfile.contains(&format!("RUSTFLAGS={STATIC_FLAGS}\"")), "{STATIC_FLAGS}");
    }

    #[test]
    fn the_final_stage_is_cut_out() {
        let stage = final_stage(
            "# x\nARG V=1\nFROM rust:1 AS build\nARG W\nRUN cargo build\n\nfrom scratch\nARG V\nCOPY --from=build /out/ /\n",
        )
        .unwrap();
        assert_eq!(stage, "ARG V=1\nfrom scratch\nARG V\nCOPY --from=build /out/ /\n");
        let refused = |text| final_stage(text).unwrap_err().to_string();
        assert_eq!(refused("RUN x"), "no FROM line");
        assert!(refused("FROM debian\nCOPY --from=build /out/ /").contains("FROM debian"));
        assert!(refused("FROM scratch\nCOPY nrh /nrh").contains("does not COPY"));
    }

    #[test]
    fn the_operator_image_keeps_the_shipped_final_stage() {
        if Command::new("buildah").arg("--version").output().is_err() || !rustix::process::geteuid().is_root() {
            println!("SKIPPED: needs buildah and root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let dockerfile = "FROM rust:1 AS build\nRUN x\nFROM scratch\nCOPY --from=build /out/ /\nUSER 65532:65532\nENTRYPOINT [\"/nrh\"]\n";
        fs::write(dir.path().join("Dockerfile"), dockerfile).unwrap();
        let archive = dir.path().join("nrh.tar");
        for _ in 0..2 {
            operator_image(dir.path(), &[("/nrh", Path::new("/bin/sh"))], "runtimehealth.io/nrh:dev", &archive)
                .unwrap();
        }
        let image = entries(&fs::read(&archive).unwrap());
        let manifest: Value = serde_json::from_slice(&image["manifest.json"].1).unwrap();
        assert_eq!(manifest[0]["RepoTags"], json!(["runtimehealth.io/nrh:dev"]));
        let config: Value = serde_json::from_slice(&image[manifest[0]["Config"].as_str().unwrap()].1).unwrap();
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["config"]["Entrypoint"], json!(["/nrh"]));
        // What it is linked with is in the image, too.
        let layer = entries(&image[manifest[0]["Layers"][0].as_str().unwrap()].1);
        let file = |name: &str| layer.keys().any(|path| path.ends_with(name));
        assert!(file("nrh") && file("/libc.so.6"), "{:?}", layer.keys());
    }
}
