//! `nrh suspend` and `nrh resume`: a person suspends all remediation of one node, or of all nodes, in their own name.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use k8s_openapi::ClusterResourceScope;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api::suspension::suspended_everywhere;
use crate::api::{CONFIG_NAME, NodeRuntimeHealth, RemediationConfig, Suspend, Suspension};
use crate::caller::{client, code, refused, whoami, within};
use crate::cli::{ResumeArgs, SuspendArgs, SuspendTarget};
use crate::terminal::{complain, print};

/// Number of tries when the object changes meanwhile: the probe and the controller write to it, too.
const TRIES: u32 = 5;
/// How long a controller may take to confirm: status writes queue up where many nodes are faulty.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(10);

/// Runs `nrh suspend`.
///
/// # Errors
/// The cluster does not answer, the node has no object, another person has suspended it, or the API server refuses.
pub async fn suspend(args: SuspendArgs) -> anyhow::Result<()> {
    let (on, reason, force) = (args.target, args.reason.as_deref(), args.force);
    let (client, words) = (client(&args.cluster).await?, on.words());
    let by = whoami(client.clone()).await?;
    let decide = |now: Suspension<'_>| {
        if let Some(other) = of_another(now, &by).filter(|_| !force) {
            bail!(
                "{words} is already suspended, {other}; nothing was changed. `nrh suspend {on} --force` replaces that"
            );
        }
        Ok(Some(suspended(&by, reason)))
    };
    if let Some(node) = &on.node {
        change(Api::<NodeRuntimeHealth>::all(client), node, decide).await?;
    } else {
        change_or_create(client.clone(), decide).await?;
        confirmed(client).await?;
    }
    let what = if on.all { "nothing starts on any node".to_owned() } else { format!("nothing starts on {words}") };
    print(&format!("suspended by {by}: {what}; `nrh resume {on}` lifts it\n"))
}

/// Runs `nrh resume`.
///
/// # Errors
/// As [`suspend`].
pub async fn resume(args: ResumeArgs) -> anyhow::Result<()> {
    let (on, force) = (args.target, args.force);
    let (client, words) = (client(&args.cluster).await?, on.words());
    let by = whoami(client.clone()).await?;
    let decide = |now: Suspension<'_>| {
        if let Some(other) = of_another(now, &by).filter(|_| !force) {
            bail!("{words} is suspended {other}; nothing was changed. `nrh resume {on} --force` lifts it anyway");
        }
        Ok(now.suspend.then(resumed))
    };
    let read = client.clone();
    let before = match &on.node {
        Some(node) => change(Api::<NodeRuntimeHealth>::all(client), node, decide).await?,
        None => change_or_create(client, decide).await?,
    };
    let sentence = match before {
        Some(text) => format!("is resumed; it was suspended {text}"),
        None => "is not suspended; nothing was changed".to_owned(),
    };
    print(&format!("{words} {sentence}\n"))?;
    if on.node.is_some()
        && let Some(suspended) = everywhere(read).await?
    {
        complain(&suspended);
    }
    Ok(())
}

/// The suspension of all remediation, if there is one: by whom, why, and what lifts it.
pub(crate) async fn everywhere(client: Client) -> anyhow::Result<Option<String>> {
    let found = within(Api::<RemediationConfig>::all(client).get_opt(CONFIG_NAME)).await?;
    Ok(found.and_then(|config| config.suspended_by_text()).map(|by| suspended_everywhere(&by)))
}

impl SuspendTarget {
    fn words(&self) -> String {
        self.node.as_ref().map_or_else(|| "remediation in the cluster".to_owned(), |node| format!("node {node}"))
    }
}

/// The current suspension with its reason, where it is not the caller's own: another person's, or one without a name, for
/// example of a script.
fn of_another(now: Suspension<'_>, me: &str) -> Option<String> {
    now.suspended_by_text().filter(|_| now.by != Some(me))
}

/// The whole suspension: no part of an earlier one stays under another name.
fn suspended(by: &str, reason: Option<&str>) -> Value {
    json!({"suspend": true, "suspendedBy": by, "reason": reason})
}

/// No suspension.
fn resumed() -> Value {
    json!({"suspend": false, "suspendedBy": null, "reason": null})
}

/// Changes the suspension as decided on the version that was read. A change that another person makes meanwhile is read first.
/// Returns the previous suspension.
async fn change<K>(
    api: Api<K>,
    name: &str,
    decide: impl Fn(Suspension<'_>) -> anyhow::Result<Option<Value>>,
) -> anyhow::Result<Option<String>>
where
    K: Suspend
        + Resource<DynamicType = (), Scope = ClusterResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned,
{
    let (kind, resource) = (K::kind(&()), K::plural(&()));
    for _ in 0..TRIES {
        let found = within(api.get(name)).await.with_context(|| format!("cannot read {kind} {name}"))?;
        let Some(spec) = decide(found.suspension())? else { return Ok(found.suspended_by_text()) };
        let patch = json!({"metadata": {"resourceVersion": found.resource_version()}, "spec": spec});
        match within(api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))).await {
            Ok(_) => return Ok(found.suspended_by_text()),
            Err(error) if code(&error) == Some(409) => {}
            Err(error) => {
                let right = format!("the verb patch on {resource}: ClusterRole nrh:operator");
                return Err(refused(error, &format!("cannot change {kind} {name}"), &right));
            }
        }
    }
    bail!("{kind} {name} has changed {TRIES} times while it was being changed; nothing was changed, try again")
}

/// The same for the object that applies to all nodes. It is created at first use.
async fn change_or_create(
    client: Client,
    decide: impl Fn(Suspension<'_>) -> anyhow::Result<Option<Value>>,
) -> anyhow::Result<Option<String>> {
    let api: Api<RemediationConfig> = Api::all(client);
    if within(api.get_opt(CONFIG_NAME)).await.with_context(|| format!("cannot read {}", what()))?.is_none() {
        let Some(spec) = decide(Suspension { suspend: false, by: None, reason: "" })? else { return Ok(None) };
        let object = RemediationConfig::new(CONFIG_NAME, serde_json::from_value(without_nulls(spec))?);
        match within(api.create(&PostParams::default(), &object)).await {
            Ok(_) => return Ok(None),
            // Another person has created it meanwhile.
            Err(error) if code(&error) == Some(409) => {}
            Err(error) => {
                let right = "the verb create on remediationconfigs: ClusterRole nrh:operator";
                return Err(refused(error, &format!("cannot create {}", what()), right));
            }
        }
    }
    change(api, CONFIG_NAME, decide).await
}

/// Waits until a controller confirms the current suspension.
async fn confirmed(client: Client) -> anyhow::Result<()> {
    let api: Api<RemediationConfig> = Api::all(client);
    let ends = Instant::now() + CONFIRMED_WITHIN;
    loop {
        let found = within(api.get(CONFIG_NAME)).await.with_context(|| format!("cannot read {}", what()))?;
        let observed = found.status.as_ref().and_then(|status| status.observed_generation);
        if observed.is_some() && observed >= found.metadata.generation {
            return Ok(());
        }
        if Instant::now() >= ends {
            bail!(
                "{} is written, but no controller has confirmed it within {} s: none leads, or one of an older version, which does not read \
                 it (kubectl -n nrh-system get pods)",
                what(),
                CONFIRMED_WITHIN.as_secs()
            );
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn what() -> String {
    format!("RemediationConfig {CONFIG_NAME}")
}

fn without_nulls(mut spec: Value) -> Value {
    spec.as_object_mut().into_iter().for_each(|fields| fields.retain(|_, value| !value.is_null()));
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(spec: &Value, patch: &Value) -> NodeRuntimeHealth {
        let mut object = json!({"apiVersion": "runtimehealth.io/v1alpha1", "kind": "NodeRuntimeHealth", "metadata": {"name": "w1"},
            "spec": spec});
        let fields = patch.as_object().unwrap();
        let spec = object["spec"].as_object_mut().unwrap();
        for (field, value) in fields {
            if value.is_null() {
                spec.remove(field);
            } else {
                spec.insert(field.clone(), value.clone());
            }
        }
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_suspension_is_whole_and_in_ones_own_name() {
        let before = json!({"suspend": true, "suspendedBy": "bob", "reason": "his"});
        let by_ann = |reason| after(&before, &suspended("ann", reason)).suspended_by_text().unwrap();
        assert_eq!(by_ann(None), "by ann", "not his words under her name");
        assert_eq!(by_ann(Some("hers")), "by ann: hers");
        let lifted = after(&before, &resumed());
        assert_eq!((lifted.suspended_by_text(), lifted.spec.suspended_by), (None, None));
    }

    #[test]
    fn another_s_suspension_is_not_lifted_or_replaced_in_passing() {
        let of = |spec: Value, me: &str| of_another(after(&spec, &json!({})).suspension(), me);
        let his = json!({"suspend": true, "suspendedBy": "bob", "reason": "disk swap"});
        assert_eq!(of(his.clone(), "ann").unwrap(), "by bob: disk swap");
        assert_eq!(of(his, "bob"), None);
        let unsigned = json!({"suspend": true, "reason": "by bob: disk swap"});
        assert_eq!(of(unsigned, "ann").unwrap(), "in nobody's name: by bob: disk swap");
        assert_eq!(of(json!({"suspend": true}), "ann").unwrap(), "in nobody's name");
        assert_eq!(of(json!({"suspend": false, "suspendedBy": "bob"}), "ann"), None, "it is lifted");
    }
}
