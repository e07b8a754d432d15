//! A leader that dies at each of its writes, and a way to the API server on which calls are late, refused, cut and lost, and watches
//! tell changes late or not at all: on a real API server, with the controller's own rights and admission as shipped.
//! Nothing is done twice, nothing is left undone, and no budget is passed.
//!
//! On such a server, too: what a dry run writes, how nodes are handed to remediators, a leader that slept past its Lease, two that
//! lead at once, and what is left of a node that was deleted.

mod account;
mod cases;
mod daemons;
mod door;
mod dry_run;
mod fleet;
mod hand_offs;
mod health;
mod hearing;
mod killed;
mod outlives;
mod process;
mod rough;
mod silent;
mod sleeper;
mod stand_in;
mod suspended;
mod two_leaders;
mod untold;
mod watched;
mod way;
mod workload;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams};
use kube::config::AuthInfo;
use kube::{Api, Client, Config};
use nrh::cli::ControllerArgs;
use nrh::controller::calls::Calls;
use nrh::controller::clock::Clock;
use nrh::controller::run::{Controller, Ended};
use nrh::core::plan::PlanSettings;
use nrh_testbed::Bed;
use nrh_testbed::operator::{self, IMAGE};
use nrh_testbed::wait::SOON;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::plane;

use cases::Part;
use fleet::Fleet;

/// The pod to which a controller's token is bound.
const CONTROLLER: &str = "interrupted";
/// Nodes that may be repaired at a time, by the policy.
const AT_A_TIME: usize = 2;

const POLICY: &str = "
apiVersion: runtimehealth.io/v1alpha1
kind: RemediationPolicy
metadata: {name: leftovers}
spec:
  mode: Enforce
  limits: {maxUnhealthy: 100%, maxInFlight: 2, storm: {minNodes: 100000}}
  rules:
    - name: leaked
      match: {faults: [LeakedShim]}
      steps:
        - {action: Taint, taint: {effect: NoSchedule}}
        - {action: Cordon}
        - {action: CleanupOrphans, maxAttempts: 3, cooldown: 1s, verify: {stableFor: 1s}}
";

/// Told in kubereboot/kured #660 and NVIDIA/NVSentinel #1280.
#[test]
#[ignore = "slow: make test-slow; in memory tests/controller shows the same"]
fn wherever_its_leader_is_killed_a_remediation_is_gone_on_with_and_nothing_is_done_twice() {
    killed_at_each_write("killed", Part::Killed);
}

#[test]
#[ignore = "slow: make test-slow; in memory tests/controller shows the same"]
fn wherever_its_leader_is_killed_a_drain_is_gone_on_with_and_no_pod_is_evicted_twice() {
    killed_at_each_write("drained", Part::Drained);
}

#[test]
#[ignore = "slow: make test-slow; in memory tests/controller shows the same"]
fn wherever_its_leader_is_killed_a_hand_off_ends_a_executor_changes_and_a_manual_request_begins_once() {
    killed_at_each_write("handed", Part::Handed);
}

fn killed_at_each_write(name: &str, part: Part) {
    staged(name, None, async |stage| killed::at_each_write(&stage, part).await);
}

#[test]
fn whatever_is_cut_off_nothing_is_done_twice_and_nothing_is_left_undone() {
    staged("interruptions", Some(POLICY), async |stage| rough::way(&stage).await);
}

#[test]
fn a_dry_run_touches_nothing_a_node_is_handed_off_once_and_a_leader_that_slept_does_nothing() {
    staged("proofs", None, async |stage| {
        hand_offs::install(&stage)?;
        dry_run::writes_only_its_account(&stage).await.context("the dry run")?;
        hand_offs::go_on_whatever_happens(&stage).await.context("the hand-offs")?;
        sleeper::does_nothing_when_it_wakes(&stage).await.context("the leader that slept")
    });
}

#[test]
fn what_nobody_tells_harms_nobody_two_leaders_share_one_budget_and_records_outlive_their_node() {
    staged("budgets", Some(POLICY), async |stage| {
        two_leaders::share_one_budget(&stage).await.context("two leaders")?;
        outlives::its_node(&stage).await.context("records of nodes that are gone")?;
        untold::is_seen_later(&stage).await.context("changes that are not told")?;
        silent::connections_are_given_up(&stage).await.context("connections without a word")
    });
}

#[test]
fn one_command_stops_everything_and_git_ops_tools_show_how_each_object_stands() {
    // A bed has no way out to what Go may have to download.
    let tool = rustix::process::geteuid().is_root().then(health::tool).transpose().unwrap();
    staged("suspended", None, async |stage| {
        let tool = tool.context("no bed without root")?;
        suspended::nothing_starts(&stage).await.context("all remediation suspended")?;
        health::is_shown(&stage, tool.path()).await.context("the health of objects")
    });
}

#[test]
fn a_probe_hears_at_once_what_it_is_told_and_a_roll_out_has_its_answer_by_one_command() {
    staged("hearing", None, async |stage| hearing::at_once(&stage).await);
}

struct Stage<'a> {
    bed: &'a Bed,
    admin: Client,
    upstream: Client,
    fleet: Fleet,
}

/// A test on a control plane of its own with the manifests as shipped, and with this policy; none without root.
fn staged(name: &str, policy: Option<&str>, test: impl AsyncFnOnce(Stage<'_>) -> Result<()> + Send) {
    let Some(bed) = plane::up(name) else { return };
    plane::install(&bed).unwrap();
    if let Some(policy) = policy {
        bed.apply(policy).unwrap();
    }
    bed.run(async |admin| {
        let upstream = Client::try_from(controllers_config(&bed).await?)?;
        let fleet = Fleet::new(admin.clone());
        test(Stage { bed: &bed, admin, upstream, fleet }).await
    })
    .unwrap();
    bed.down().unwrap();
}

/// Asks again and again until it is so, up to [`SOON`]: a Job that starts too late is withdrawn, and its node may still
/// execute it for almost six minutes.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    until_some(what, async || Ok(is_so().await?.then_some(()))).await
}

/// The same until there is an answer.
async fn until_some<T>(what: &str, ask: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    until_within(what, SOON, ask).await
}

/// The same with another limit.
async fn until_within<T>(what: &str, limit: Duration, mut ask: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let ends = std::time::Instant::now() + limit;
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        ensure!(std::time::Instant::now() < ends, "{what}: not within {} s", limit.as_secs());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn controllers_config(bed: &Bed) -> Result<Config> {
    let mut config = bed.client_config().await?;
    config.auth_info =
        AuthInfo { token: Some(operator::controllers_token(bed, CONTROLLER, IMAGE)?.into()), ..AuthInfo::default() };
    Ok(config)
}

fn start(client: &Client) -> JoinHandle<Result<(), Ended>> {
    start_as(client, "interrupted")
}

fn start_as(client: &Client, identity: &str) -> JoinHandle<Result<(), Ended>> {
    start_set(Calls::new(client.clone(), client.clone()), identity, PlanSettings::default())
}

fn start_set(calls: Calls, identity: &str, settings: PlanSettings) -> JoinHandle<Result<(), Ended>> {
    let args = ControllerArgs {
        image: Some(IMAGE.into()),
        listen: "127.0.0.1:0".parse().unwrap(),
        health_listen: "127.0.0.1:0".parse().unwrap(),
        metrics_auth: true,
        metrics_audience: None,
        max_in_flight: 10,
        node_conditions: "".parse().unwrap(),
        identity: identity.into(),
    };
    let controller = Controller::new(calls, Clock::system(), &args).with(settings);
    tokio::spawn(controller.run(CancellationToken::new()))
}

/// It dies without a word, and its Lease runs out: that alone is not waited for.
async fn kill(admin: &Client, leader: JoinHandle<Result<(), Ended>>) -> Result<()> {
    leader.abort();
    let _ = leader.await;
    free_lease(admin).await
}

/// Takes the holder out of the Lease, as an operator does who knows that it is dead.
async fn free_lease(admin: &Client) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(admin.clone(), "nrh-system");
    let nobody = Patch::Merge(json!({"spec": {"holderIdentity": null}}));
    match leases.patch("nrh-controller", &PatchParams::default(), &nobody).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error.into()),
    }
}
