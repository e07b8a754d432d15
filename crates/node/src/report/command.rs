//! The node's command: its own `NodeCommand`, read and watched.

use std::time::Duration;

use futures::{Stream, StreamExt};
use http::Request;
use kube::api::{GetParams, WatchEvent};
use kube::{Client, Resource};
use serde::Deserialize;
use serde_json::Value;

use super::client::{CallError, call, in_time, request};
use nrh_api::{NodeCommand, is_check_name};
use nrh_core::command::ActionCommand;

/// Annotation of the bookmark that follows the initial events of a watch.
const INITIAL: &str = "k8s.io/initial-events-end";

/// The content of the node's `NodeCommand`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Command {
    /// Whether the object was ever read: before that, a missing command means nothing.
    pub is_known: bool,
    /// The current command, if there is one and it can be read.
    pub command: Option<ActionCommand>,
    /// The controller's newest request for a fresh check; 0 = none.
    pub check_sequence: u64,
    /// The newest request for a fresh check by a person or a roll-out, by its name.
    pub check_requested: Option<String>,
}

impl Command {
    /// There is no such object, so there is no command.
    pub const NONE: Self = Self { is_known: true, command: None, check_sequence: 0, check_requested: None };

    /// Whether this operation is not withdrawn, as far as the probe knows.
    pub fn is_current(&self, command: &ActionCommand) -> bool {
        !self.is_known || self.command.as_ref().is_some_and(|now| now.operation_id == command.operation_id)
    }
}

/// The fields of a `NodeCommand` that the probe reads. All other fields are skipped.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct OwnCommand {
    #[serde(default)]
    metadata: OwnMeta,
    spec: Option<OwnSpec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OwnMeta {
    resource_version: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OwnSpec {
    command: Option<Value>,
    check_sequence: Option<u64>,
    check_requested: Option<String>,
}

impl From<OwnCommand> for Command {
    fn from(object: OwnCommand) -> Self {
        let spec = object.spec.unwrap_or_default();
        let command = spec.command.and_then(|raw| match serde_json::from_value(raw) {
            Ok(command) => Some(command),
            Err(error) => {
                // A command that cannot be read completely is not executed in part.
                tracing::warn!(%error, "the command in this node's NodeCommand is not readable: it is ignored");
                None
            }
        });
        Self {
            is_known: true,
            command,
            check_sequence: spec.check_sequence.unwrap_or_default(),
            check_requested: spec.check_requested.filter(|name| is_check_name(name)),
        }
    }
}

/// The content of the object, and the version from which a watch continues.
#[derive(Clone, Debug)]
pub struct VersionedCommand {
    /// The content.
    pub command: Command,
    /// The version. `None` = there is no object: a watch without a version starts with the state at that time.
    pub version: Option<String>,
}

impl From<OwnCommand> for VersionedCommand {
    fn from(object: OwnCommand) -> Self {
        let version = object.metadata.resource_version.clone();
        Self { command: object.into(), version: version.filter(|text| text.bytes().all(|b| b.is_ascii_alphanumeric())) }
    }
}

/// Reads the node's command from the API server's store, not from a cache. If there is no object, there is no command.
pub async fn read(client: &Client, name: &str) -> Result<VersionedCommand, CallError> {
    match call::<OwnCommand, _>(client, request::<NodeCommand>().get(name, &GetParams::default())).await {
        Err(CallError::Missing) => Ok(VersionedCommand { command: Command::NONE, version: None }),
        answer => answer,
    }
}

/// Watches the node's command, for at most `length`. An item without a command is a bookmark, which shows that the
/// watch works.
///
/// The request is built by hand, because `kube` permits no watch longer than five minutes.
pub(super) async fn watch(
    client: &Client,
    name: &str,
    version: Option<&str>,
    length: Duration,
) -> Result<impl Stream<Item = Result<Option<Command>, CallError>> + use<>, CallError> {
    let (path, seconds) = (NodeCommand::url_path(&(), None), length.as_secs());
    let since = version.map(|version| format!("&resourceVersion={version}")).unwrap_or_default();
    let uri = format!(
        "{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&fieldSelector=metadata.name%3D{name}{since}"
    );
    let request = Request::get(uri).body(Vec::new()).map_err(kube::Error::HttpError)?;
    let events = in_time(client.request_events::<OwnCommand>(request)).await?;
    Ok(events.filter_map(|event| {
        std::future::ready(match event {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => Some(Ok(Some(object.into()))),
            Ok(WatchEvent::Deleted(_)) => Some(Ok(Some(Command::NONE))),
            // The initial bookmark says nothing about later ones, which come once the version has risen.
            Ok(WatchEvent::Bookmark(mark)) if mark.metadata.annotations.contains_key(INITIAL) => None,
            Ok(WatchEvent::Bookmark(_)) => Some(Ok(None)),
            Ok(WatchEvent::Error(status)) => Some(Err(kube::Error::Api(status).into())),
            Err(error) => Some(Err(error.into())),
        })
    }))
}
