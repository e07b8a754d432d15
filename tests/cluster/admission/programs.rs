//! `nrh remediate`, `nrh approve`, `nrh cancel`, `nrh suspend` and `nrh resume`, run as the programs that people run, each with a kubeconfig of one's own: who has
//! the right is done right by and named, who has not is told which right it takes, and nothing is written for them.

use anyhow::{Context, Result, ensure};
use nrh_testbed::Bed;
use serde_json::{Value, json};

use crate::admission::callers::Callers;
use crate::admission::requests::{Cases, create, delete, get, merge, report};
use crate::objects::{POLICIES, REMEDIATIONS, ours, step};
use crate::plane;

const ANN: &str = "system:serviceaccount:default:ann";
const OLGA: &str = "system:serviceaccount:default:olga";
const STAN: &str = "system:serviceaccount:default:stan";
const START: [&str; 6] = ["remediate", "worker-1", "--action", "CleanupOrphans", "--policy", "programs"];

/// Somebody at a terminal.
struct Person<'b> {
    bed: &'b Bed,
    kubeconfig: tempfile::NamedTempFile,
}

impl<'b> Person<'b> {
    fn new(bed: &'b Bed, account: &str) -> Result<Self> {
        let token = bed.kubectl(&["create", "token", account, "-n", "default"])?;
        let config = bed.kubeconfig(json!({"token": token.trim()}))?;
        let kubeconfig = tempfile::NamedTempFile::new()?;
        std::fs::write(kubeconfig.path(), config.to_string())?;
        Ok(Self { bed, kubeconfig })
    }

    /// Whether the program was content, and what it has said.
    fn runs(&self, args: &[&str]) -> Result<(bool, String)> {
        let mut nrh = self.bed.command(env!("CARGO_BIN_EXE_nrh"));
        let output = nrh.args(args).env("KUBECONFIG", self.kubeconfig.path()).output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((output.status.success(), text(&output.stdout) + &text(&output.stderr)))
    }

    /// Waits until the API server knows of the rights that this takes.
    async fn may(&self, args: &[&str]) -> Result<()> {
        plane::soon(async || {
            let (well, said) = self.runs(args)?;
            ensure!(well, "rights are still not known: nrh {}: {said}", args.join(" "));
            Ok(())
        })
        .await
    }

    fn succeeds(&self, cases: &mut Cases, args: &[&str], says: &[&str]) -> Result<()> {
        let (well, said) = self.runs(args)?;
        let is_so = well && says.iter().all(|part| said.contains(part));
        cases.note(&format!("nrh {}: expected {says:?}", args.join(" ")), is_so, &said);
        Ok(())
    }

    fn fails(&self, cases: &mut Cases, args: &[&str], says: &[&str]) -> Result<()> {
        let (well, said) = self.runs(args)?;
        let is_so = !well && says.iter().all(|part| said.contains(part));
        cases.note(&format!("nrh {}: expected to fail with {says:?}", args.join(" ")), is_so, &said);
        Ok(())
    }
}

/// Somebody who reads all that the programs read, and may make and change remediations, but neither approve, nor start, nor cancel.
async fn without_the_verbs(bed: &Bed) -> Result<Person<'_>> {
    bed.kubectl(&["create", "serviceaccount", "rita", "-n", "default"])?;
    bed.kubectl(&["create", "clusterrole", "reads-nodes", "--verb=get", "--resource=nodes"])?;
    for (binding, role) in [("rita-views", "nrh:view"), ("rita-patches", "patcher"), ("rita-reads", "reads-nodes")] {
        let to = ["--clusterrole", role, "--serviceaccount=default:rita"];
        bed.kubectl(&[&["create", "clusterrolebinding", binding], &to[..]].concat())?;
    }
    let rita = Person::new(bed, "rita")?;
    for reads in [["remediate", "worker-1"].as_slice(), &["approve"]] {
        rita.may(reads).await?;
    }
    Ok(rita)
}

/// Somebody with the same rights as olga.
async fn another_operator(bed: &Bed) -> Result<Person<'_>> {
    bed.kubectl(&["create", "serviceaccount", "otto", "-n", "default"])?;
    let to = ["--clusterrole=nrh:operator", "--serviceaccount=default:otto"];
    bed.kubectl(&[&["create", "clusterrolebinding", "otto-operates"], &to[..]].concat())?;
    let otto = Person::new(bed, "otto")?;
    otto.may(&["resume", "worker-2"]).await?;
    Ok(otto)
}

/// Suspended in one's own name, and lifted by others only where they say that they mean it.
async fn suspended(all: &Callers, cases: &mut Cases, [ann, olga, otto]: [&Person<'_>; 3]) -> Result<()> {
    let suspension = async || anyhow::Ok(all.admin.must(&get(report("worker-2"))).await?["spec"].clone());
    let right = ["cannot change NodeRuntimeHealth worker-2", "ClusterRole nrh:operator"];
    ann.fails(cases, &["suspend", "worker-2"], &right)?;
    let hers = json!({"suspend": true, "suspendedBy": OLGA, "reason": "disk swap"});
    olga.succeeds(cases, &["suspend", "worker-2", "--reason", "disk swap"], &[&format!("suspended by {OLGA}")])?;
    let found = suspension().await?;
    cases.note("olga's exclusion, as it stands in the API", found == hers, &found.to_string());
    let whose = format!("by {OLGA}: disk swap");
    otto.fails(cases, &["suspend", "worker-2", "--reason", "mine"], &["is already suspended", &whose, "--force"])?;
    otto.fails(cases, &["resume", "worker-2"], &[&whose, "nrh resume worker-2 --force"])?;
    let found = suspension().await?;
    cases.note("it still stands", found == hers, &found.to_string());
    otto.succeeds(cases, &["resume", "worker-2", "--force"], &["is resumed; it was suspended", &whose])?;
    let found = suspension().await?;
    cases.note("it is lifted, with its words", found == json!({"suspend": false}), &found.to_string());
    olga.succeeds(cases, &["resume", "worker-2"], &["is not suspended; nothing was changed"])?;
    olga.fails(cases, &["suspend", "worker-9"], &["cannot read NodeRuntimeHealth worker-9"])
}

/// Starts, approves and cancels.
pub async fn of_people(all: &Callers, bed: &Bed, cases: &mut Cases) -> Result<()> {
    let rule = json!({"name": "r", "match": {"faults": ["OrphanContainer"]},
        "steps": [{"action": "CleanupOrphans"}, {"action": "Notify"}]});
    let policy = ours("RemediationPolicy", "programs", json!({"mode": "Enforce", "rules": [rule]}));
    all.admin.must(&create(POLICIES, policy)).await?;
    let fault = json!({"id": "orphancontainer-cart", "type": "OrphanContainer", "severity": "High", "state": "Confirmed",
        "subject": {"kind": "Container", "name": "cart"}, "message": "its sandbox is gone", "firstSeen": "2026-01-01T00:00:00Z"});
    all.pod.must(&merge(format!("{}/status", report("worker-1")), json!({"status": {"faults": [fault]}}))).await?;
    let (ann, stan, rita) = (Person::new(bed, "ann")?, Person::new(bed, "stan")?, without_the_verbs(bed).await?);
    started(all, cases, [&ann, &stan, &rita]).await?;
    approved(all, cases, [&ann, &rita]).await?;
    suspended(all, cases, [&ann, &Person::new(bed, "olga")?, &another_operator(bed).await?]).await?;
    for gone in [REMEDIATIONS.to_owned(), format!("{POLICIES}/programs")] {
        all.admin.must(&delete(gone, Value::Null)).await?;
    }
    Ok(())
}

/// Started, and then cancelled, by right and in one's own name.
async fn started(all: &Callers, cases: &mut Cases, [ann, stan, rita]: [&Person<'_>; 3]) -> Result<()> {
    let offered = "nrh remediate worker-1 --fault orphancontainer-cart --action CleanupOrphans --policy programs";
    stan.succeeds(cases, &["remediate", "worker-1"], &["OrphanContainer", offered])?;
    let rights = [
        "cannot start it",
        "ClusterRole nrh:manual-remediation",
        "needs the verbs remediate and approve on noderemediations",
    ];
    rita.fails(cases, &START, &rights)?;
    ann.fails(cases, &START, &["cannot read node worker-1"])?;
    let remediations = async || anyhow::Ok(all.admin.must(&get(REMEDIATIONS)).await?["items"].as_array().cloned());
    let made = remediations().await?.unwrap_or_default();
    cases.note("started by nobody who may", made.is_empty(), &format!("{made:?}"));

    let reason = [&START[..], &["--reason", "seen manually", "--output", "json"]].concat();
    stan.succeeds(cases, &reason, &[&format!("\"requestedBy\": \"{STAN}\"")])?;
    let made = remediations().await?.unwrap_or_default();
    let [manual] = &made[..] else {
        cases.note("one manual request", false, &format!("{made:?}"));
        return Ok(());
    };
    let wanted = json!({"requestedBy": STAN, "fault": "OrphanContainer", "faultId": "orphancontainer-cart", "action": "CleanupOrphans",
        "policyGeneration": 1, "reason": "seen manually"});
    let spec = &manual["spec"];
    let is_it = spec["manual"] == wanted && spec["nodeName"] == "worker-1" && spec["policy"] == "programs";
    cases.note("what stan wants, as it stands in the API", is_it, &manual.to_string());

    let name = manual["metadata"]["name"].as_str().context("a name")?;
    let path = format!("{REMEDIATIONS}/{name}");
    let right = ["cannot cancel", "ClusterRole nrh:approver", "needs the verb cancel on noderemediations"];
    rita.fails(cases, &["cancel", name], &right)?;
    let cancel = async || anyhow::Ok(all.admin.must(&get(&path)).await?["spec"]["cancel"].clone());
    let found = cancel().await?;
    cases.note("cancelled by nobody who may", found.is_null(), &found.to_string());
    ann.succeeds(cases, &["cancel", "worker-1", "--reason", "no need"], &[&format!("by {ANN}"), name])?;
    let (found, hers) = (cancel().await?, json!({"cancelledBy": ANN, "reason": "no need"}));
    cases.note("ann's no, as it stands in the API", found == hers, &found.to_string());
    ann.fails(cases, &["cancel", name], &["no remediation of that name"])
}

/// Approved by right, in one's own name, and only what waits now.
async fn approved(all: &Callers, cases: &mut Cases, [ann, rita]: [&Person<'_>; 2]) -> Result<()> {
    let (path, status) = (format!("{REMEDIATIONS}/asks"), format!("{REMEDIATIONS}/asks/status"));
    let spec = json!({"nodeName": "worker-2", "nodeUid": "u", "policy": "programs", "mode": "Enforce"});
    all.controller.must(&create(REMEDIATIONS, ours("NodeRemediation", "asks", spec))).await?;
    let waits = |steps: Value| {
        json!({"status": {"phase": "AwaitingApproval", "startedAt": "2026-01-01T00:00:00Z", "attempts": steps,
            "faults": [{"id": "f", "type": "OrphanContainer", "subject": {"kind": "Container", "name": "cart"}, "rule": "r",
                "stepIndex": 0, "state": "Open"}]}})
    };
    all.controller.must(&merge(&status, waits(json!([step("op-1", "AwaitingApproval")])))).await?;
    let approval = async || anyhow::Ok(all.admin.must(&get(&path)).await?["spec"]["approval"].clone());
    let (first, second) =
        (["approve", "worker-2", "--operation", "op-1"], ["approve", "worker-2", "--operation", "op-2"]);
    let waiting = ["CleanupOrphans for OrphanContainer", "nrh approve worker-2 --operation op-1"];
    ann.succeeds(cases, &["approve"], &waiting)?;
    let right = ["cannot approve op-1", "ClusterRole nrh:approver", "needs the verb approve on noderemediations"];
    rita.fails(cases, &first, &right)?;

    // What ann has seen is over by now, and another attempt waits.
    let steps = json!([step("op-1", "TimedOut"), step("op-2", "AwaitingApproval")]);
    all.controller.must(&merge(&status, waits(steps))).await?;
    ann.fails(cases, &first, &["operation op-1 does not wait for approval", "--operation op-2"])?;
    let found = approval().await?;
    cases.note("nothing approved yet", found.is_null(), &found.to_string());
    ann.succeeds(cases, &second, &[&format!("approved by {ANN}: CleanupOrphans for OrphanContainer")])?;
    let (found, hers) = (approval().await?, json!({"approvedBy": ANN, "operationId": "op-2"}));
    cases.note("ann's yes, as it stands in the API", found == hers, &found.to_string());
    ann.fails(cases, &second, &["waits for approval"])
}
