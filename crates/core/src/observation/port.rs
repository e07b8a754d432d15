//! What the kubelet says of itself at its own port (10250), and nowhere else.

use std::time::Duration;

/// One look at the kubelet's own port. Each of the two may be told or not: rights and versions differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSeen {
    /// Whether its sync loop goes round, by its own check; a sentence = not told, and why.
    pub sync_loop: Result<bool, String>,
    /// How its looks at its pods went; a sentence = not told, and why.
    pub relists: Result<RelistsSeen, String>,
}

/// How the kubelet's looks at its pods (the relists of its PLEG) went lately. All times are of monotonic clocks: ours, and
/// its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelistsSeen {
    /// Whether any has ended since the kubelet began.
    pub begun: bool,
    /// Mean time of those that have ended since we looked before; `None` = none has, or we had not looked before.
    pub mean: Option<Duration>,
    /// For how long, at least, none has ended.
    pub idle: Duration,
    /// For how long, at least, the moment of its last good list has not moved; `None` = not told.
    pub unmoved: Option<Duration>,
}
