//! Two controllers that both lead, for as long as it takes: as where a leader was cut off and does not know it yet. What keeps them
//! from doing a thing twice, or too many at a time, is that every write names the version that it was decided on.

use anyhow::{Result, ensure};
use jiff::Timestamp;

use crate::interruptions::account::{self, Write};
use crate::interruptions::way::{named, own_lease};
use crate::interruptions::{Stage, kill, start_as};

const FAULTY: usize = 8;
/// What they are called in the audit log, and how many terms each has behind it: the later leader has more.
const LEADERS: [(&str, i32); 2] = [("one", 0), ("two", 1_000_000_000)];

pub async fn share_one_budget(stage: &Stage<'_>) -> Result<()> {
    let (bed, fleet, begun) = (stage.bed, &stage.fleet, Timestamp::now());
    let names: Vec<String> = (1..=FAULTY).map(|number| format!("both-{number}")).collect();
    let leaders = LEADERS.map(|(name, terms)| {
        let client = own_lease(named(stage.upstream.clone(), name), terms);
        start_as(&client, name)
    });
    for node in &names {
        fleet.sick_node(node).await?;
    }
    fleet.all_resolved(&names).await?;
    for leader in leaders {
        ensure!(!leader.is_finished(), "expected both to lead until the end, {:?}", leader.await);
        kill(&stage.admin, leader).await?;
    }

    let writes = account::since(bed, begun)?;
    let made = account::jobs(&writes);
    ensure!(made.len() == FAULTY && made.values().all(|count| *count == 1), "expected a Job per node, found {made:?}");
    let most = fleet.budget_is_kept(&writes, &names).await?;
    let is_try =
        |write: &&Write| write.resource == "configmaps" || write.resource == "noderemediations.runtimehealth.io";
    let [one, two] = LEADERS.map(|(name, _)| writes.iter().filter(is_try).filter(|write| write.client == name).count());
    let lost = writes.iter().filter(is_try).filter(|write| write.code == 409).count();
    let met = one > 0 && two > 0 && lost > 0;
    ensure!(met, "they never met: {one} and {two} writes of slots and remediations, {lost} too late");
    println!(
        "two leaders healed {FAULTY} nodes, {most} at a time; slots and remediations: {one} and {two} writes, {lost} too late"
    );
    Ok(())
}
