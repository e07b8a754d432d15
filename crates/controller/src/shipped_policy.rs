//! The dry-run policy that comes with the program.
//!
//! It cannot be part of `config/default`: kubectl looks up all kinds before it applies the first object, so the very
//! first apply would fail on it. The controller creates it instead, once in the life of a cluster; who deletes or
//! changes it is not overruled.

use std::time::Duration;

use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};

use super::calls::post_params;
use nrh_api::RemediationPolicy;

/// The policy as it stands in `config/policies/dry-run`.
pub const YAML: &str = include_str!("../../../config/policies/dry-run/policy.yaml");

/// Longest wait for the API server, over all calls.
const DEADLINE: Duration = Duration::from_secs(15);

/// Why it was not created.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server said no.
    #[error("cannot create the shipped dry-run policy: {0}; apply config/policies/dry-run")]
    Api(#[from] kube::Error),
    /// No answer in time.
    #[error("cannot create the shipped dry-run policy: no answer from the API server in {DEADLINE:?}")]
    Timeout,
    /// The text in the program is no YAML.
    #[error("the shipped dry-run policy is no YAML: {0}")]
    Text(#[from] serde_saphyr::Error),
    /// The text in the program says something else.
    #[error("the shipped dry-run policy is no policy: {0}")]
    Policy(#[from] serde_json::Error),
}

/// Creates the policy if this is the first start in this cluster: there is no policy of any name. Returns its name where it was
/// created.
///
/// To be called by the leader where there is no ledger yet, before it makes one. Nothing depends on its success.
pub async fn create_at_first_start(client: Client) -> Result<Option<String>, Error> {
    tokio::time::timeout(DEADLINE, create(client)).await.map_err(|_| Error::Timeout)?
}

async fn create(client: Client) -> Result<Option<String>, Error> {
    let policies: Api<RemediationPolicy> = Api::all(client);
    if !policies.list_metadata(&ListParams::default().limit(1)).await?.items.is_empty() {
        return Ok(None);
    }
    let policy = shipped()?;
    match policies.create(&post_params(), &policy).await {
        Ok(made) => Ok(Some(made.name_any())),
        // Somebody applied it in this very moment.
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The policy in the program. Read by way of a plain value: a reader of YAML for the type itself would be a good part
/// of the binary.
pub fn shipped() -> Result<RemediationPolicy, Error> {
    let value: serde_json::Value = serde_saphyr::from_str(YAML)?;
    Ok(serde_json::from_value(value)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nrh_core::fault::FaultType;
    use nrh_core::policy::Mode;

    #[test]
    fn the_shipped_policy_is_valid_touches_nothing_and_has_a_rule_for_every_fault() {
        let policy = nrh_api::convert::policy(&shipped().unwrap()).unwrap();
        assert_eq!(policy.mode, Mode::DryRun);
        assert!(policy.priority < 0, "any policy of a user goes before it");
        // A condition of a Node is a fault only where a policy asks for it, which is its rule then.
        let own = |kind: &FaultType| *kind != FaultType::NodeCondition;
        for fault in FaultType::ALL.into_iter().filter(own) {
            assert!(policy.rules.iter().any(|rule| rule.faults.contains(&fault)), "{fault}");
        }
    }
}
