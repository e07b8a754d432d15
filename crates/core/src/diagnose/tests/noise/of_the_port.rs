//! What a kubelet's own port says on days on which nothing is wrong with the kubelet.

use super::*;
use crate::fault::FaultType as F;

/// The runtime does not answer.
fn no_runtime(node: &mut Node) {
    (node.runtime, node.lists) = (failed("connection refused"), failed("connection refused"));
    node.status = failed("connection refused");
    node.table().retain(|process| process.role != ProcessRole::Runtime);
    node.tasks.clear();
}

fn untold(node: &mut Node, why: &str) {
    node.port = done(PortSeen { sync_loop: Err(why.into()), relists: Err(why.into()) });
}

/// While anything is wrong a check of the port is made once a minute, and judged more often.
fn a_minute_ago(node: &mut Node, t: u64) {
    aged(&mut node.port, Duration::from_secs(t % 60));
}

/// Over these nothing is confirmed.
pub(super) fn timelines() -> Vec<Timeline> {
    vec![
        timeline("the kubelet restarts, and its counters begin anew", 600, &[F::KubeletDown], |node, t| {
            kubelet(node, t.checked_sub(5));
            match t {
                0..60 => untold(node, "no kubelet has completed its start"),
                60..120 => node.relists(None, 0),
                _ => {}
            }
            a_minute_ago(node, t);
        }),
        // The last check was made before the runtime came back, and is judged after.
        timeline(
            "the runtime is away for ten minutes, and the sync loop waits for it",
            1200,
            // Away for so long it is a fault; that is not what is told here.
            &[F::SyncLoopStalled],
            |node, t| {
                let since = t - t % 60;
                if (300..=600).contains(&since) {
                    node.port().sync_loop = Ok(false);
                }
                if since <= 600 {
                    node.relists(None, since);
                }
                a_minute_ago(node, t);
                if t < 630 {
                    // Its lists are out, and not yet for long: RuntimeListHung has its own timelines.
                    node.lists = failed("connection reset");
                } else if since <= 600 {
                    node.relists(Some(1), 0);
                }
            },
        ),
        timeline("a call to the runtime takes two minutes, once", 900, &[F::PlegSlow], |node, t| {
            match t {
                60..120 => node.relists(None, 60),
                120..180 => node.relists(Some(120), 0),
                _ => {}
            }
            a_minute_ago(node, t);
        }),
        timeline("a storm of starts: looks of forty seconds for four minutes", 900, &[F::PlegSlow], |node, t| {
            if t < 240 {
                node.relists(Some(40), 10);
            }
            a_minute_ago(node, t);
        }),
        // While all is well a check comes every ten minutes only, and what stands still between two of them is passed.
        timeline("a calm kubelet is asked every ten minutes", 3600, &[], |node, t| {
            aged(&mut node.port, Duration::from_secs(t % 720));
        }),
        timeline("the wall clock jumps by a day", 600, &[], |node, t| {
            // The moment of the last list has moved, whereto does not matter.
            a_minute_ago(node, t);
        }),
        timeline("the API server is away, and the kubelet knows nobody any more", 1800, &[], |node, t| {
            if t < 1500 {
                untold(node, "the kubelet does not take the probe's token (401)");
            }
            a_minute_ago(node, t);
        }),
        timeline("the port is not granted to the probe", 3600, &[], |node, _| {
            untold(node, "the kubelet refuses (403)");
        }),
        timeline("the sync loop waits for a network for four minutes", 600, &[F::NetworkNotReady], |node, t| {
            if t < 240 {
                no_network(node);
                node.port().sync_loop = Ok(false);
            }
        }),
        timeline("the runtime restarts while the sync loop is red", 300, &[F::RuntimeUnreachable], |node, t| {
            if t < 25 {
                no_runtime(node);
                node.port().sync_loop = Ok(false);
            }
        }),
    ]
}

/// The same signs, had they stayed.
pub(super) fn staying() -> Vec<(FaultType, u64, Change)> {
    vec![
        (F::SyncLoopStalled, 200, |node, t| {
            node.port().sync_loop = Ok(false);
            a_minute_ago(node, t);
        }),
        // One relist after another of two minutes: now none has ended, now one has.
        (F::PlegSlow, 600, |node, t| {
            match t / 60 {
                0 => {}
                minute if minute % 2 == 1 => node.relists(None, 60),
                _ => node.relists(Some(120), 0),
            }
            a_minute_ago(node, t);
        }),
        (F::PlegSlow, 600, |node, t| {
            node.relists(None, t - t % 60);
            a_minute_ago(node, t);
        }),
    ]
}
