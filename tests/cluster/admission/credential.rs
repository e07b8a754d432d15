//! A kubeconfig with a credential plugin, as the kubelets of many clouds have: the unit's way to the API server.

use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nrh::core::observation::ClockSeen;
use nrh::node::report::client::Credentials;
use nrh::node::report::clock::Tell;
use nrh::node::report::command::read;
use nrh_testbed::Bed;
use serde_json::json;

use crate::admission::requests::Cases;

/// Longer than any answer takes.
const SILENCE: Duration = Duration::from_secs(10);

/// The plugin hands out a token of the probe's account: its credential reads the node's command, and an ended one is refused.
pub async fn plugin(bed: &Bed, cases: &mut Cases) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (answer, program) = (folder.path().join("answer"), folder.path().join("plugin"));
    std::fs::write(&program, format!("#!/bin/sh\ncat {}\n", answer.display()))?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    let version = "client.authentication.k8s.io/v1";
    let config = bed.kubeconfig(json!({"exec": {
        "apiVersion": version, "command": program, "interactiveMode": "Never", "provideClusterInfo": true}}))?;
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, config.to_string())?;
    let credentials = Credentials::Kubeconfig(path);
    let gives = |token: &str| {
        let status = json!({"token": token, "expirationTimestamp": "2100-01-01T00:00:00Z"});
        let credential = json!({"apiVersion": version, "kind": "ExecCredential", "status": status});
        std::fs::write(&answer, credential.to_string())
    };

    let token = bed.kubectl(&["create", "token", "nrh-probe", "-n", "nrh-node"])?;
    gives(token.trim())?;
    let clock = Arc::new(Mutex::new(None::<ClockSeen>));
    let told = Arc::clone(&clock);
    let tell: Tell = Arc::new(move |seen| *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen));
    let connection = credentials.connect(&tell, SILENCE).await?;
    ensure!(connection.until.is_some(), "the end of the credential is not known");
    let own = read(&connection.client, "worker-1").await;
    let is_read = own.as_ref().is_ok_and(|standing| standing.command.command.is_some());
    cases.note("a credential plugin's token reads the node's command", is_read, &format!("{own:?}"));

    let clock = *clock.lock().unwrap_or_else(PoisonError::into_inner);
    // Both run on this machine: their clocks are one.
    let near = clock.is_some_and(|seen| (seen.ahead, seen.behind) == <_>::default() && seen.most.as_secs() < 10);
    cases.note("its answer reports of the node's clock", near, &format!("{clock:?}"));

    gives("no-such-token")?;
    let refused = read(&credentials.connect(&tell, SILENCE).await?.client, "worker-1").await;
    let text = refused.err().context("a token that is none was taken")?.to_string();
    cases.note("a token that is none is refused", text.contains("401"), &text);
    Ok(())
}
