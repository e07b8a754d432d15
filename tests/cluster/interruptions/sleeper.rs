//! A leader whose process stands still for longer than its Lease holds: another one takes over, and the first does nothing more
//! when it wakes, although it knows of work. Together they never work on more nodes than may be worked on at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use nrh_testbed::operator::{self, IMAGE};
use rustix::process::Signal;
use serde_json::json;

use crate::interruptions::account::{self, Write};
use crate::interruptions::process::Process;
use crate::interruptions::way::named;
use crate::interruptions::{CONTROLLER, POLICY, Stage, kill, start_as, until};

/// What the second leader is called, in the Lease and in the audit log.
const SECOND: &str = "second";
/// Time between two nodes that become sick.
const BETWEEN: Duration = Duration::from_millis(150);
/// How many are sick before the first leader stands still, while it does, and when it wakes.
const FAULTY: [usize; 3] = [6, 2, 4];
/// How many of them it has acted on by then.
const ACTED: usize = 3;

/// The leader that will sleep: a process, since only such a one can stand still.
fn first(stage: &Stage<'_>) -> Result<Process> {
    let bed = stage.bed;
    let token = operator::controllers_token(bed, CONTROLLER, IMAGE)?;
    Process::start(bed, "first", &bed.kubeconfig(json!({"token": token}))?)
}

async fn holder(stage: &Stage<'_>) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(stage.admin.clone(), "nrh-system");
    let lease = leases.get_opt("nrh-controller").await?;
    Ok(lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default())
}

async fn leads(stage: &Stage<'_>, who: &str) -> Result<()> {
    until(&format!("{who} leads"), async || Ok(holder(stage).await?.starts_with(who))).await
}

/// What is done, or goes before it. That the answer to an act of before is recorded is none, nor is the Lease: either is refused
/// if anybody has written since. Nor is an Event, which tells of an act of before.
fn is_act(write: &Write) -> bool {
    let others = ["leases.coordination.k8s.io", "noderemediations/status.runtimehealth.io", "events.events.k8s.io"];
    !others.contains(&write.resource.as_str())
}

/// The first leader stands still in the midst of many remediations and wakes in the midst of the second's.
pub async fn does_nothing_when_it_wakes(stage: &Stage<'_>) -> Result<()> {
    let (bed, fleet, begun) = (stage.bed, &stage.fleet, Timestamp::now());
    bed.apply(POLICY)?;
    let first = first(stage)?;
    leads(stage, "first").await.with_context(|| first.log())?;
    let client = named(stage.upstream.clone(), SECOND);
    let second = start_as(&client, SECOND);
    let [before, during, after] = FAULTY;
    let names: Vec<String> = (1..=before + during + after).map(|number| format!("asleep-{number:02}")).collect();
    let sick = async |from: usize, to: usize| -> Result<()> {
        for node in names.get(from..to).unwrap_or_default() {
            fleet.sick_node(node).await?;
            tokio::time::sleep(BETWEEN).await;
        }
        Ok(())
    };
    sick(0, before).await?;
    until("some acts of the first leader", async || Ok(account::jobs(&account::since(bed, begun)?).len() >= ACTED))
        .await?;
    first.signal(Signal::STOP)?;
    let asleep = Timestamp::now();
    sick(before, before + during).await?;
    leads(stage, SECOND).await?;
    // While the second has begun with what it found.
    sick(before + during, names.len()).await?;
    let woken = Timestamp::now();
    first.signal(Signal::CONT)?;
    ensure!(first.is_gone(), "the first goes on beside the second: {}", first.log());
    ensure!(first.log().contains("stands down"), "expected the first to say why it ends: {}", first.log());
    fleet.all_resolved(&names).await?;

    let writes = account::since(bed, begun)?;
    let (seconds, firsts): (Vec<&Write>, Vec<&Write>) = writes.iter().partition(|write| write.client == SECOND);
    let jobs_of = [account::jobs(firsts.iter().copied()), account::jobs(seconds.iter().copied())];
    let [of_first, of_second] = jobs_of.each_ref().map(BTreeMap::len);
    ensure!(of_first >= ACTED && of_second >= after, "the first made {of_first} Jobs, the second {of_second}");
    let all = account::jobs(&writes);
    let once_each = all.len() == names.len() && all.values().all(|count| *count == 1);
    ensure!(once_each, "expected a Job per node, found {all:?}");
    let late: Vec<String> =
        firsts.iter().filter(|write| write.at >= woken && is_act(write)).map(ToString::to_string).collect();
    ensure!(late.is_empty(), "after it woke the first leader wrote: {late:#?}");
    let early = seconds.iter().find(|write| write.at < asleep && is_act(write));
    ensure!(early.is_none(), "the second wrote while the first led: {early:?}");
    // Whoever counts by what it knew before it slept takes a node more.
    let most = fleet.budget_is_kept(&writes, &names).await?;
    println!(
        "the first leader made {of_first} Jobs, slept, and did nothing when it woke; the second made {of_second}; {most} nodes \
         at a time"
    );
    kill(&stage.admin, second).await
}
