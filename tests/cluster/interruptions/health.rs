//! What kstatus (Flux, `kubectl` plugins) and Argo CD make of our objects: by their own code, on objects as a controller has written them.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::interruptions::suspended::nrh;
use crate::interruptions::{Stage, kill, start, until};
use crate::plane::folder;

/// Builds the program that asks both. Go may have to download, so this runs outside of a bed, which has no way out.
pub fn tool() -> Result<tempfile::TempDir> {
    let tool = tempfile::tempdir()?;
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(tool.path().join("health")).arg(".").current_dir(folder("testbed/tools/health"));
    go.env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=readonly").env("GOWORK", "off");
    let built = go.output().context("go build")?;
    ensure!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Ok(tool)
}

/// Each kind in each way that it can stand, as the two show it.
pub async fn is_shown(stage: &Stage<'_>, tool: &std::path::Path) -> Result<()> {
    let program = tool.join("health");
    let bed = stage.bed;
    let leader = start(&stage.upstream);
    stage.fleet.sick_node("shown-1").await?;
    bed.kubectl(&["apply", "-f", &folder("config/policies/orphans.yaml")])?;
    stage.fleet.resolved("shown-1").await?;
    // One for which the controller lacks a right: the API server takes it.
    bed.kubectl(&["apply", "-f", &folder("config/samples/drain.yaml")])?;
    bed.kubectl(&["apply", "-f", &folder("config/samples/suspend-all.yaml")])?;
    let expected: BTreeMap<&str, (&str, &str)> = BTreeMap::from([
        ("RemediationPolicy orphans", ("Current", "Healthy")),
        ("RemediationPolicy drain", ("Failed", "Degraded")),
        ("RemediationConfig cluster", ("Current", "Suspended")),
        ("NodeRuntimeHealth shown-1", ("Current", "Healthy")),
        ("NodeRemediation shown-1", ("Current", "Healthy")),
    ]);
    let mut last = BTreeMap::new();
    let shown = until("the health of all", async || {
        last = shown(stage, &program)?;
        let is_so = |(object, (kstatus, argo)): (&&str, &(&str, &str))| {
            last.get(*object).is_some_and(|found| found.0 == *kstatus && found.1 == *argo)
        };
        Ok(expected.iter().all(is_so))
    });
    shown.await.with_context(|| format!("expected {expected:?}, found {last:?}"))?;
    let remove = ["delete", "-f", &folder("config/samples/suspend-all.yaml")];
    let refused = bed.kubectl(&remove).err().context("an object that suspends everything was deleted")?;
    ensure!(format!("{refused:#}").contains("nrh resume --all"), "{refused:#}");
    nrh(stage, &["resume", "--all", "--force"]).await?;
    bed.kubectl(&remove)?;
    kill(&stage.admin, leader).await
}

/// What both say, by kind and name, a remediation by that of its node.
fn shown(stage: &Stage<'_>, program: &std::path::Path) -> Result<BTreeMap<String, (String, String)>> {
    let list = stage.bed.kubectl(&["get", "rmp,rmc,nrem,nrh", "-o", "json"])?;
    let mut command = Command::new(program);
    command.arg(folder("config/gitops/argocd-health.yaml")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    child.stdin.take().context("standard input")?.write_all(list.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout)?;
    let read = |line: &str| -> Result<(String, (String, String))> {
        let line: Value = serde_json::from_str(line)?;
        let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
        let name = text("name");
        let name = if text("kind") == "NodeRemediation" {
            name.splitn(3, '-').take(2).collect::<Vec<_>>().join("-")
        } else {
            name
        };
        Ok((format!("{} {name}", text("kind")), (text("kstatus"), text("argocd"))))
    };
    lines.lines().map(read).collect()
}
