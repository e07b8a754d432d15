//! Why a condition stands as it does, in one word.

crate::named! {
    /// Why a condition stands as it does: a closed set.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum ConditionReason {
        /// A clean check.
        NoFault,
        /// A confirmed fault.
        FaultConfirmed,
        /// A fault is suspected, not confirmed.
        FaultSuspected,
        /// A fault stands, and not everything else that the condition speaks of could be checked.
        FaultWithPartialCoverage,
        /// Nobody has checked yet.
        NotYetChecked,
        /// The node lacks what is needed to check.
        CheckFailed,
        /// The last check is too old.
        Stale,
        /// The node is short of CPU, memory or disk I/O, so what gives no answer may be slow and not hung.
        ResourcePressure,
        /// Heartbeats arrive as promised.
        Reporting,
        /// Heartbeats are missing.
        HeartbeatMissed,
        /// The object was accepted.
        Accepted,
        /// The object has errors.
        Invalid,
        /// Something holds new work back.
        Blocked,
        /// A person has suspended it.
        Suspended,
        /// The node is to be left alone.
        Excluded,
        /// Only a dry run is for it.
        DryRun,
        /// Nothing is in the way.
        Allowed,
        /// Work is under way.
        InProgress,
        /// Work has ended.
        Finished,
        /// A person is needed.
        ManualActionRequired,
    }
}
