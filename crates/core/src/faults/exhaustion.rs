//! `PidExhaustion` and `FdExhaustion`: a limited resource of the kernel is about to run out.

use super::spec::{ByDaemon, FaultSpec, NO_RESTART, Remedy};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, Severity, Subject, SubjectKind};
use crate::finding::{Check, Coverage, Detected, Findings, STALE, Sighting, Verdict, answer};
use crate::observation::{HostSeen, LimitSeen, Observations, Owner, Usage};
use crate::thresholds::{Confirm, Confirmation};

/// A fork storm that was aborted, or a burst of starts, is over within a minute.
const CONFIRM_PIDS: Confirm = Confirm::new("pidExhaustion", 3, 30, 120);

/// The same for open files.
const CONFIRM_FILES: Confirm = Confirm::new("fdExhaustion", 3, 30, 120);

pub(super) const PIDS: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM_PIDS],
    condition: Some(ConditionType::HostHealthy),
    lasting: true,
    // Neither the kubelet nor the runtime starts where the kernel refuses threads during the start.
    restart_harms: |_| ByDaemon { kubelet: true, runtime: true },
    ..FaultSpec::new(FaultGroup::Node, Severity::High, SubjectKind::Host)
};

/// The spec of `FdExhaustion`. A restart frees the open files that a daemon leaks. Where the node has none left, the daemon does
/// not start.
pub(super) const FILES: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM_FILES],
    condition: Some(ConditionType::HostHealthy),
    lasting: true,
    restart_harms: |fault| {
        let of_node = matches!(fault.subject.kind, SubjectKind::Host);
        ByDaemon { kubelet: of_node, runtime: of_node }
    },
    remedy: Remedy {
        restart: |subject| match subject.kind {
            SubjectKind::Kubelet => ByDaemon { kubelet: Ok(()), ..NO_RESTART },
            SubjectKind::Runtime => ByDaemon { runtime: Ok(()), ..NO_RESTART },
            _ => NO_RESTART,
        },
        ..Remedy::USUAL
    },
    ..FaultSpec::new(FaultGroup::Node, Severity::High, SubjectKind::Host)
};

/// Share of a limit, in percent, from which it is about to run out. By then the kernel refuses some requests for several at once.
/// Each start of a container needs dozens of threads.
pub const EXHAUSTED_PERCENT: u8 = 90;
/// Share below which the resource is healthy. In between nothing is reported. Otherwise a number at the edge would be
/// reported again and again.
const HEALTHY_PERCENT: u8 = 80;

/// Detects the exhaustion of process ids. Processes and threads count alike.
pub(super) fn pids(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let subject = Limit {
        kind: FaultType::PidExhaustion,
        what: "processes and threads",
        impact: "no container starts, no probe of a pod is run and no runtime comes back once a thread is refused; a Go \
                 program that is refused one ends at once",
        of: |host| &host.pids,
        confirm: thresholds.confirm(&CONFIRM_PIDS),
    };
    limit(&subject, seen, findings)
}

pub(super) fn files(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let subject = Limit {
        kind: FaultType::FdExhaustion,
        what: "open files",
        impact: "once a file is refused no container starts or ends there, connections are dropped, and logs stop",
        of: |host| &host.files,
        confirm: thresholds.confirm(&CONFIRM_FILES),
    };
    limit(&subject, seen, findings)
}

struct Limit {
    kind: FaultType,
    what: &'static str,
    impact: &'static str,
    of: fn(&HostSeen) -> &[LimitSeen],
    confirm: Confirmation,
}

fn limit(limit: &Limit, seen: &Observations, findings: &mut Findings) -> Detected {
    let (host, checked) = answer(&seen.host, seen.now, "the kernel's limits", STALE)?;
    let clean = Verdict::Clean { checked };
    let mut coverage = Coverage::new(Verdict::clean_unless(host.unseen.as_deref(), checked));
    for LimitSeen { owner, usage } in (limit.of)(host) {
        let verdict = match usage {
            Ok(usage) if usage.is_at_least(EXHAUSTED_PERCENT) => {
                findings.sight(sighting(limit, owner, *usage, checked));
                Verdict::undecided("it is about to run out")
            }
            Ok(usage) if usage.is_at_least(HEALTHY_PERCENT) => {
                Verdict::undecided(&format!("{} of {owner} are between plenty and scarce", limit.what))
            }
            Ok(_) => clean.clone(),
            Err(why) => Verdict::failed(&format!("the {} of {owner} are not known: {why}", limit.what)),
        };
        // Two daemons may have one name. A clean verdict on one must not hide the verdict on the other.
        let is_clean = matches!(verdict, Verdict::Clean { .. });
        if !is_clean || !coverage.named.contains_key(owner.key()) {
            coverage.note(owner.key(), verdict);
        }
    }
    Ok(coverage)
}

fn sighting(limit: &Limit, owner: &Owner, usage: Usage, checked: std::time::Duration) -> Sighting {
    let of = match owner {
        Owner::Node | Owner::Pods => SubjectKind::Host,
        Owner::Kubelet => SubjectKind::Kubelet,
        Owner::Runtime(_) => SubjectKind::Runtime,
    };
    let name = (*owner != Owner::Node).then(|| owner.key().to_owned());
    Sighting {
        subject: Subject { name, ..Subject::of(of) },
        message: format!("more than {EXHAUSTED_PERCENT}% of the {} that {owner} may have are in use", limit.what),
        impact: limit.impact,
        evidence: vec![format!("{owner}: {} of {} in use, {} at most", usage.used, limit.what, usage.limit)],
        ..Sighting::new(limit.kind, owner.key(), checked, limit.confirm)
    }
}
