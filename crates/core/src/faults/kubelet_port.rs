//! `SyncLoopStalled` and `PlegSlow`: a kubelet that runs, is called Ready, and makes no progress with its pods. Both faults
//! appear only at the kubelet's own port.
//!
//! ```text
//! runtime fails ──► relists fail or hang ──► "PLEG is not healthy" ──► the sync loop waits: its check fails, 5 min later
//! ```
//! So each of the two is a fault of its own only if nothing to its left explains it. A fault that something else explains is
//! undecided: neither suspected nor clean.

use std::time::Duration;

use super::kubelet::KUBELET;
use super::spec::{ByDaemon, FaultSpec, Helps, NO_RESTART, Remedy};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, Severity, Subject, SubjectKind};
use crate::finding::{Check, Coverage, Detected, Findings, PORT_STALE, STALE, Sighting, Verdict, answer, lists};
use crate::observation::{Observations, PortSeen};
use crate::thresholds::{Bound, Confirm, Thresholds};

/// The kubelet's own check already waits five minutes, and uses the monotonic clock.
const CONFIRM_SYNC_LOOP: Confirm = Confirm::new("syncLoopStalled", 3, 45, 120);

/// One call of the kubelet to its runtime may take two minutes. The next relist is then fast again.
const CONFIRM_PLEG: Confirm = Confirm::new("plegSlow", 5, 45, 300);

/// Duration from which one relist of the kubelet is slow. Ordinary relists take well under a second, every second. With many
/// hundred containers, relists of tens of seconds were observed.
const SLOW_RELIST: Bound = Bound::new("slowRelist", 30);

pub(super) const SYNC_LOOP: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM_SYNC_LOOP],
    condition: Some(ConditionType::SyncLoopRunning),
    lasting: true,
    pods_cannot_end: true,
    remedy: Remedy {
        restart: |_| ByDaemon { kubelet: Err("what its loop waits for outlives a restart"), ..NO_RESTART },
        ..Remedy::USUAL
    },
    ..FaultSpec::new(FaultGroup::Kubelet, Severity::High, SubjectKind::Kubelet)
};

/// The kubelet checks its pods again at each start.
pub(super) const SAME_CONTAINER: fn(&Subject) -> ByDaemon<Helps> =
    |_| ByDaemon { kubelet: Err("it would wait for the same container at its start; release that one"), ..NO_RESTART };

pub(super) const PLEG: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM_PLEG],
    bounds: &[&SLOW_RELIST],
    condition: Some(ConditionType::PlegHealthy),
    lasting: true,
    time_to_confirm: Some(|of| of.bound(&SLOW_RELIST).saturating_add(of.confirm(&CONFIRM_PLEG).usual_time())),
    remedy: Remedy { restart: SAME_CONTAINER, ..Remedy::USUAL },
    ..FaultSpec::new(FaultGroup::Kubelet, Severity::High, SubjectKind::Kubelet)
};

/// The newest check of the port, if it is no older than `stale`.
fn asked(seen: &Observations, stale: Duration) -> Result<(&PortSeen, Duration), Verdict> {
    answer(&seen.port, seen.now, "the kubelet's own port", stale)
}

pub(super) fn sync_loop(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (port, checked) = asked(seen, PORT_STALE)?;
    match &port.sync_loop {
        // The kubelet's check also passes while the loop has not begun. Relists begin with the loop.
        Ok(true) if port.relists.as_ref().is_ok_and(|relists| relists.begun) => {
            return Ok(Coverage::new(Verdict::Clean { checked }));
        }
        Ok(true) => {
            let detail =
                "it is not known whether the kubelet's sync loop has started: no relist of its pods has ended yet";
            return Err(Verdict::undecided(detail));
        }
        Err(why) => return Err(Verdict::failed(why)),
        Ok(false) => {}
    }
    // The probe checks a faulty port again within a minute. An old answer proves nothing about the runtime now.
    asked(seen, STALE)?;
    let held =
        |why: &str| Verdict::failed(&format!("the kubelet's sync loop stands still, and {why}: that may be why"));
    if let Some(why) = of_the_runtime(seen).or_else(|| no_network(seen)) {
        return Err(held(why));
    }
    match slow_relists(seen, port, thresholds) {
        Ok(evidence) if evidence.is_empty() => {}
        Ok(_) => return Err(held("it relists its pods slowly")),
        Err(_) => return Err(held("it is not known how fast it relists its pods")),
    }
    findings.sight(Sighting {
        message: "the kubelet's sync loop stands still, by its own check, although the runtime answers".to_owned(),
        impact: "no pod of this node is started, stopped or changed, although the node is Ready. Seen to do this: a \
                 mount that does not answer, left below the folder of a pod that is gone",
        evidence: vec![
            "/healthz/syncloop: its sync loop took longer than expected, which it says after 5 min".to_owned(),
            "it goes on relisting its pods, and the runtime answers".to_owned(),
        ],
        ..Sighting::new(FaultType::SyncLoopStalled, KUBELET, checked, thresholds.confirm(&CONFIRM_SYNC_LOOP))
    });
    Ok(Coverage::undecided(KUBELET, checked, "the sync loop stands still"))
}

pub(super) fn pleg(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (port, checked) = asked(seen, PORT_STALE)?;
    let evidence = slow_relists(seen, port, thresholds)?;
    if evidence.is_empty() {
        return Ok(Coverage::new(Verdict::Clean { checked }));
    }
    asked(seen, STALE)?;
    if let Some(why) = of_the_runtime(seen) {
        return Err(Verdict::failed(&format!("the kubelet relists its pods slowly, and {why}: that may be the cause")));
    }
    findings.sight(Sighting {
        message: format!(
            "the kubelet takes {} s or more for each relist of its pods, and the runtime answers",
            thresholds.bound(&SLOW_RELIST).as_secs()
        ),
        impact: "what becomes of the pods of this node is noticed late, although the node is Ready: the kubelet waits for \
                 single objects one after another, and up to its limit for each",
        evidence,
        ..Sighting::new(FaultType::PlegSlow, KUBELET, checked, thresholds.confirm(&CONFIRM_PLEG))
    });
    Ok(Coverage::undecided(KUBELET, checked, "it relists its pods slowly"))
}

/// What shows that relists are slow; nothing where they are fine. An error where they are neither, or where that is not known.
fn slow_relists(seen: &Observations, port: &PortSeen, thresholds: &Thresholds) -> Result<Vec<String>, Verdict> {
    let relists = port.relists.as_ref().map_err(|why| Verdict::failed(why))?;
    // With evented PLEG the kubelet relists every five minutes, and sets the moment of its last list to now whenever it is asked.
    let evented =
        seen.kubelet.value().and_then(|kubelet| kubelet.settings).is_some_and(|settings| settings.evented_pleg);
    let slow = thresholds.bound(&SLOW_RELIST);
    let mut evidence = Vec::new();
    if let Some(mean) = relists.mean.filter(|mean| *mean >= slow) {
        evidence.push(format!("those that have ended lately took more than {} s", steps(mean, slow)));
    }
    if !evented && relists.idle >= slow {
        evidence.push(format!("none has ended for more than {} s", steps(relists.idle, slow)));
    }
    // The sync loop itself reports that moment. A loop that stands still does not change it.
    let unmoved = relists.unmoved.filter(|unmoved| *unmoved >= slow && port.sync_loop == Ok(true) && !evented);
    if let Some(unmoved) = unmoved {
        evidence.push(format!("its last good list was begun more than {} s ago", steps(unmoved, slow)));
    }
    match relists.mean {
        mean if !evidence.is_empty() || mean.is_some_and(|mean| mean < slow / 2) => Ok(evidence),
        Some(_) => Err(Verdict::undecided("the kubelet relists its pods neither slowly nor quickly")),
        None => Err(Verdict::undecided("no relist of the kubelet's pods has ended yet")),
    }
}

/// A duration in whole steps, so that a report does not change with each check.
fn steps(time: Duration, step: Duration) -> u64 {
    let step = step.as_secs().max(1);
    time.as_secs() / step * step
}

/// What in the runtime explains the fault, if anything may.
fn of_the_runtime(seen: &Observations) -> Option<&'static str> {
    if answer(&seen.runtime, seen.now, "the runtime", STALE).is_err() {
        return Some("the runtime does not answer, or nobody could ask it");
    }
    lists(seen).is_err().then_some("the runtime's lists do not come back, or nobody could ask for them")
}

fn no_network(seen: &Observations) -> Option<&'static str> {
    match answer(&seen.status, seen.now, "the runtime's status", STALE) {
        Err(_) => Some("what the runtime says of itself is not known"),
        Ok((status, _)) if status.network.as_ref().is_some_and(|network| !network.ready) => {
            Some("the runtime says that its network is not ready")
        }
        Ok(_) => None,
    }
}
