//! How long the kubelet waits before it starts a failed container again.

use std::time::Duration;

use anyhow::Result;
use jiff::SignedDuration;

use crate::node::Node;

/// The newest back-off of a pod, from the kubelet's own log, where alone its length is said.
pub fn back_off(node: &Node, pod_uid: &str) -> Result<Option<Duration>> {
    Ok(parse(&node.read("/var/log/kubelet.log")?, pod_uid))
}

/// `… back-off 2m40s restarting failed container=NAME pod=POD_NAMESPACE(UID) …`
fn parse(log: &str, pod_uid: &str) -> Option<Duration> {
    let uid = format!("({pod_uid})");
    log.lines().rev().find_map(|line| {
        let (_, rest) = line.split_once("back-off ")?;
        let (length, rest) = rest.split_once(" restarting failed container=")?;
        rest.contains(&uid).then(|| length.parse::<SignedDuration>().ok()?.try_into().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_back_off_of_the_pod_counts() {
        let line = |length: &str, uid: &str| {
            format!(
                r#"E1121 10:05:29.716452 111 pod_workers.go:1338] "Error syncing pod, skipping" err="failed to \"StartContainer\" for \"work\" with CrashLoopBackOff: \"back-off {length} restarting failed container=work pod=agent_default({uid})\"" "#
            )
        };
        let log = [line("2m40s", "a"), line("5m0s", "a"), line("10s", "b"), "other".into()].join("\n");
        assert_eq!(parse(&log, "a"), Some(Duration::from_mins(5)));
        assert_eq!(parse(&log, "b"), Some(Duration::from_secs(10)));
        assert_eq!(parse(&log, "c"), None);
    }
}
