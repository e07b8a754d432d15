//! `nrh check` and `nrh get` on a real API server: before the installation, after it, and while a report changes.

use std::io::{BufRead, BufReader, Read};
use std::process::{Output, Stdio};

use anyhow::{Context, Result, ensure};
use nrh_testbed::Bed;
use nrh_testbed::wait::{LONGEST_PAUSE, SOON, poll};
use serde_json::{Value, json};

use crate::objects::ours;
use crate::plane;

fn nrh(bed: &Bed, args: &[&str]) -> Result<Output> {
    Ok(bed.command(env!("CARGO_BIN_EXE_nrh")).args(args).output()?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Subject, verdict and message.
type Finding = (String, String, String);

/// What `nrh check -o json` finds, and its exit code.
fn checked(bed: &Bed) -> Result<(Vec<Finding>, Option<i32>)> {
    let output = nrh(bed, &["check", "-o", "json"])?;
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).with_context(|| text(&output.stderr))?;
    let field = |one: &Value, name: &str| one[name].as_str().unwrap_or_default().to_owned();
    let findings =
        findings.iter().map(|one| (field(one, "subject"), field(one, "verdict"), field(one, "message"))).collect();
    Ok((findings, output.status.code()))
}

fn has(found: &[Finding], subject: &str, verdict: &str, part: &str) -> Result<()> {
    let is = found.iter().any(|one| one.0 == subject && one.1 == verdict && one.2.contains(part));
    ensure!(is, "expected {subject} to be {verdict}: {part:?}; found {found:#?}");
    Ok(())
}

/// Waits for such a finding: admission takes a moment to learn of a change.
fn until(bed: &Bed, subject: &str, verdict: &str, part: &str) -> Result<()> {
    let found = || has(&checked(bed)?.0, subject, verdict, part);
    poll(SOON, LONGEST_PAUSE, found, Result::is_ok).unwrap_or_else(|last| last)
}

pub fn before(bed: &Bed) -> Result<()> {
    let (found, code) = checked(bed)?;
    has(&found, "API server", "Ok", "Kubernetes v1.")?;
    has(&found, "installation", "Ok", "not installed yet")?;
    has(&found, "your rights", "Ok", "create definitions")?;
    ensure!(code == Some(0), "exit code {code:?}: {found:#?}");
    Ok(())
}

/// With everything applied, and neither a controller nor a probe that runs.
pub fn after(bed: &Bed) -> Result<()> {
    let (found, code) = checked(bed)?;
    has(&found, "definitions", "Ok", "all 5, of this version")?;
    until(bed, "admission policies", "Ok", "in place")?;
    has(&found, "controller", "Failed", "none leads")?;
    has(&found, "probe", "Warning", "0 of 2 pods ready")?;
    has(&found, "policies", "Warning", "none")?;
    has(&found, "nodes worker-1, worker-2", "Failed", "no NodeRuntimeHealth")?;
    has(&found, "your rights", "Ok", "approve steps")?;
    ensure!(code == Some(1), "exit code {code:?}: {found:#?}");
    let people = nrh(bed, &["check"])?;
    ensure!(text(&people.stdout).starts_with("RESULT "), "{people:?}");

    // Nobody runs its pods here, so nobody ends them.
    bed.kubectl(&["delete", "deployment", "-n", "nrh-system", "nrh-controller", "--cascade=background"])?;
    bed.kubectl(&["delete", "pod", "--all", "--force", "--grace-period=0", "-n", "nrh-system"])?;
    until(bed, "admission policies", "Failed", "the API server sees no pod in nrh-system")?;
    plane::install(bed)?;
    until(bed, "admission policies", "Ok", "in place")?;

    for name in ["get-1", "get-2"] {
        bed.apply(&ours("NodeRuntimeHealth", name, json!({})))?;
    }
    let health = |name: &str, health: &str| {
        let patch = json!({"status": {"summary": {"health": health, "topFault": "", "activity": "as told"}}});
        bed.kubectl(&["patch", "nrh", name, "--subresource=status", "--type=merge", "-p", &patch.to_string()])
    };
    health("get-1", "Healthy")?;
    health("get-2", "Unhealthy")?;
    let listed = text(&nrh(bed, &["get"])?.stdout);
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    ensure!(names == ["NODE", "get-2", "get-1"], "{listed}");
    let yaml = text(&nrh(bed, &["get", "get-1", "-o", "yaml"])?.stdout);
    ensure!(yaml.contains("health: Healthy") && !yaml.contains("get-2"), "{yaml}");
    let lacking = nrh(bed, &["get", "get-9"])?;
    ensure!(!lacking.status.success() && text(&lacking.stderr).contains("get-9"), "{lacking:?}");

    let mut watch = bed.command(env!("CARGO_BIN_EXE_nrh"));
    let mut watch = watch.args(["get", "-w"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(watch.stdout.take().context("its output")?).lines();
    let mut next = || lines.next().context("the watch has ended")?.map_err(anyhow::Error::from);
    for starts in ["NODE ", "get-2 ", "get-1 "] {
        let line = next()?;
        ensure!(line.starts_with(starts), "expected {starts}: {line}");
    }
    health("get-1", "Degraded")?;
    let line = next()?;
    watch.kill()?;
    let mut said = String::new();
    watch.stderr.take().context("its complaints")?.read_to_string(&mut said)?;
    watch.wait()?;
    ensure!(line.starts_with("get-1 ") && line.contains("Degraded"), "{line}; {said}");
    for name in ["get-1", "get-2"] {
        bed.kubectl(&["delete", "nrh", name])?;
    }
    Ok(())
}
