//! What a kubelet says of itself in the Ready condition of its Node.

/// What a kubelet says in its Ready condition, of all that it may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Complaint {
    /// It has not completed its start.
    StartIncomplete,
    /// It has not been able to list its pods for minutes (`PLEG is not healthy`).
    PlegStalled,
}

/// Reads the reason and message of a Ready condition that is False. The sentences stand in the kubelet since 1.5.
pub fn complaint(reason: &str, message: &str) -> Option<Complaint> {
    let starting = ["container runtime status check may not have completed yet", "pleg has yet to be successful"];
    if reason != "KubeletNotReady" {
        None
    } else if starting.iter().any(|sentence| message.contains(sentence)) {
        Some(Complaint::StartIncomplete)
    } else {
        message.contains("PLEG is not healthy: pleg was last seen active").then_some(Complaint::PlegStalled)
    }
}
