//! Why a condition stands as it does, in one word.

/// Why a condition stands as it does: a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionReason {
    /// A clean look.
    Clean,
    /// A confirmed fault.
    FaultConfirmed,
    /// A fault is suspected, not confirmed.
    FaultSuspected,
    /// A fault stands, and not everything else that the condition speaks of could be looked at.
    FaultBesideGap,
    /// Nobody has looked yet.
    NotYetLooked,
    /// The node lacks what is needed to look.
    CannotLook,
    /// The last look is too old.
    Stale,
    /// The node is short of CPU, memory or disk I/O, so what gives no answer may be slow and not hung.
    ResourcePressure,
    /// Heartbeats arrive as promised.
    Heartbeat,
    /// Heartbeats are missing.
    HeartbeatMissed,
    /// The object was accepted.
    Accepted,
    /// The object has errors.
    Invalid,
    /// Something holds new work back.
    Held,
    /// Nothing is in the way.
    Allowed,
    /// Work is under way.
    UnderWay,
    /// Work has ended.
    Finished,
    /// A person is needed.
    NeedsPerson,
}

impl ConditionReason {
    /// The reason as it stands in the object.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Clean => "Clean",
            Self::FaultConfirmed => "FaultConfirmed",
            Self::FaultSuspected => "FaultSuspected",
            Self::FaultBesideGap => "FaultBesideGap",
            Self::NotYetLooked => "NotYetLooked",
            Self::CannotLook => "CannotLook",
            Self::Stale => "Stale",
            Self::ResourcePressure => "ResourcePressure",
            Self::Heartbeat => "Heartbeat",
            Self::HeartbeatMissed => "HeartbeatMissed",
            Self::Accepted => "Accepted",
            Self::Invalid => "Invalid",
            Self::Held => "Held",
            Self::Allowed => "Allowed",
            Self::UnderWay => "UnderWay",
            Self::Finished => "Finished",
            Self::NeedsPerson => "NeedsPerson",
        }
    }
}
