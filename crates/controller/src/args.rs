//! Flags and environment of the controller.

use std::net::SocketAddr;

use clap::{ArgAction, Args};
use nrh_core::node_condition::NodeConditions;

/// Flags of `nrh controller`.
#[derive(Debug, Args)]
pub struct ControllerArgs {
    /// Image of the Jobs; by default that of the controller's own pod, which admission compares it with.
    #[arg(long, env = "NRH_IMAGE")]
    pub image: Option<String>,
    /// Where `/metrics` is served.
    #[arg(long, env = "NRH_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Authenticate each request for `/metrics` (`TokenReview`), and authorize it (`SubjectAccessReview`: `get` on the non-resource URL
    /// `/metrics`). With `false`, every client may read the metrics.
    #[arg(long, env = "NRH_METRICS_AUTH", default_value_t = true, action = ArgAction::Set)]
    pub metrics_auth: bool,
    /// Audience for which a token for `/metrics` has to be made; by default that of the API server itself.
    #[arg(long, env = "NRH_METRICS_AUDIENCE")]
    pub metrics_audience: Option<String>,
    /// Where `/livez` and `/readyz` are served: apart from the metrics, so that a flood of metrics requests does not fail the checks.
    #[arg(long, env = "NRH_HEALTH_LISTEN", default_value = "0.0.0.0:8081")]
    pub health_listen: SocketAddr,
    /// Most remediations in flight in the whole cluster, over all policies (0 to 1000; with 0 nothing starts).
    #[arg(long, env = "NRH_MAX_IN_FLIGHT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub max_in_flight: u32,
    /// Conditions to write to Node objects for other tools: `all`, names with commas between them, or an empty text for none.
    #[arg(long, env = "NRH_NODE_CONDITIONS", default_value = "")]
    pub node_conditions: NodeConditions,
    /// Name of this replica, unique per process; the pod's name by default.
    #[arg(long, env = "POD_NAME", default_value = "nrh-controller")]
    pub identity: String,
}
