//! What the kubelet reports about itself on its own port (10250), and nowhere else.

use std::time::Duration;

/// One check of the kubelet's own port. Either value may be missing, because permissions and versions differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSeen {
    /// Whether its sync loop runs, by its own check. A sentence says why this was not reported.
    pub sync_loop: Result<bool, String>,
    /// How its checks of its pods went. A sentence says why this was not reported.
    pub relists: Result<RelistsSeen, String>,
}

/// How the kubelet's recent checks of its pods (the relists of its PLEG) went, by the monotonic clocks of probe and kubelet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelistsSeen {
    /// Whether any has ended since the kubelet started.
    pub begun: bool,
    /// Mean time of those that have ended since the previous check. `None`: none has ended, or there was no previous check.
    pub mean: Option<Duration>,
    /// How long none has ended, at least.
    pub idle: Duration,
    /// How long the time of its last successful list has not changed, at least. `None`: not reported.
    pub unmoved: Option<Duration>,
}
