//! What a watch tells, disturbed: changes that never come, or come after later ones, lines that are cut within, a server that
//! cannot go on from there, a connection without a word.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body as Answer, Bytes};
use futures::stream;
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::timeout;
use tower::BoxError;

use crate::interruptions::way::{Judge, cut, failure, silence};

/// How often it is asked whether a watch that tells nothing has expired.
const ASK: Duration = Duration::from_millis(100);

/// A change as a watch tells it.
#[derive(Clone, Debug)]
pub struct Change {
    pub resource: String,
    /// The object, by its namespace and name.
    pub object: String,
}

impl Change {
    /// The change of that line; none in a bookmark, or where the server refuses.
    fn of(resource: &str, line: &[u8]) -> Option<Self> {
        let said: Value = serde_json::from_slice(line).ok()?;
        if !["ADDED", "MODIFIED", "DELETED"].contains(&said["type"].as_str()?) {
            return None;
        }
        let of = |key: &str| said["object"]["metadata"][key].as_str().unwrap_or_default();
        Some(Self { resource: resource.to_owned(), object: format!("{}/{}", of("namespace"), of("name")) })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    Told,
    /// It is never told; all after it are.
    Dropped,
    /// It is told after the next one, whichever object that is of.
    AfterNext,
    /// It is told after a newer one of the same object.
    AfterNewer,
    /// The connection breaks within its line.
    Torn,
    /// The answer ends within its line, as if it were whole.
    Ended,
    /// In its place the server says that it cannot go on from there.
    Expired,
    /// From here on nothing is heard any more.
    Silent,
}

pub const DROPPED: &str = "change dropped";
pub const REORDERED: &str = "change told after a later one of another object";
/// An object was told in an older version after it had been told in a newer one.
pub const OLDER: &str = "change told after a newer one of its object";
pub const TORN: &str = "watch cut within a line";
pub const ENDED: &str = "watch ended within a line";
pub const EXPIRED: &str = "watch expired in the stream";
pub const SILENT: &str = "watch without a word";
pub const ALL: [&str; 7] = [DROPPED, REORDERED, OLDER, TORN, ENDED, EXPIRED, SILENT];

/// How a watch ends once what is ready is told.
#[derive(Clone, Copy)]
enum End {
    Closed,
    Broken,
    Silent,
}

struct Blocked {
    line: Vec<u8>,
    object: String,
    until_newer: bool,
}

struct Watched<J> {
    judge: Arc<Mutex<J>>,
    resource: String,
    body: Body,
    /// What has come of a line that is not whole.
    rest: Vec<u8>,
    ready: VecDeque<Vec<u8>>,
    blocked: Option<Blocked>,
    end: Option<End>,
}

/// What a watch of that resource tells, as the judge lets it.
pub fn watched<J: Judge>(body: Body, judge: Arc<Mutex<J>>, resource: String) -> Answer {
    let (rest, ready) = Default::default();
    let watch = Watched { judge, resource, body, rest, ready, blocked: None, end: None };
    Answer::from_stream(stream::unfold(watch, |mut watch| async move {
        let told = watch.next().await?;
        Some((told, watch))
    }))
}

impl<J: Judge> Watched<J> {
    async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(Ok(line.into()));
            }
            match self.end.take() {
                None => {}
                Some(End::Closed) => return None,
                Some(end) => {
                    self.end = Some(End::Closed);
                    let is_silent = matches!(end, End::Silent);
                    return Some(Err(if is_silent { silence().await } else { cut() }));
                }
            }
            let has_expired = self.judge.lock().unwrap().expires(&self.resource);
            if has_expired {
                self.expire();
                continue;
            }
            match timeout(ASK, self.line()).await {
                Err(_) => {}
                Ok(Some(Ok(line))) => self.take(line),
                Ok(Some(Err(error))) => return Some(Err(error)),
                Ok(None) => return None,
            }
        }
    }

    /// The next line, with its end.
    async fn line(&mut self) -> Option<Result<Vec<u8>, BoxError>> {
        loop {
            if let Some(at) = self.rest.iter().position(|byte| *byte == b'\n') {
                return Some(Ok(self.rest.drain(..=at).collect()));
            }
            match self.body.frame().await? {
                Ok(frame) => self.rest.extend(frame.into_data().unwrap_or_default()),
                Err(error) => return Some(Err(error.into())),
            }
        }
    }

    fn take(&mut self, mut line: Vec<u8>) {
        let Some(change) = Change::of(&self.resource, &line) else { return self.ready.push_back(line) };
        let telling = self.judge.lock().unwrap().change(&change);
        match telling {
            Telling::AfterNext | Telling::AfterNewer if self.blocked.is_none() => {
                let until_newer = telling == Telling::AfterNewer;
                self.blocked = Some(Blocked { line, object: change.object, until_newer });
            }
            Telling::Told | Telling::AfterNext | Telling::AfterNewer => self.tell(line, &change),
            Telling::Dropped => self.met(DROPPED),
            Telling::Torn | Telling::Ended => {
                line.truncate(line.len() / 2);
                self.ready.push_back(line);
                let is_torn = telling == Telling::Torn;
                self.end = Some(if is_torn { End::Broken } else { End::Closed });
                self.met(if is_torn { TORN } else { ENDED });
            }
            Telling::Expired => self.expire(),
            Telling::Silent => {
                self.end = Some(End::Silent);
                self.met(SILENT);
            }
        }
    }

    /// Tells it, and what was held back for it.
    fn tell(&mut self, line: Vec<u8>, change: &Change) {
        self.ready.push_back(line);
        let is_due = |blocked: &mut Blocked| !blocked.until_newer || blocked.object == change.object;
        if let Some(blocked) = self.blocked.take_if(is_due) {
            self.met(if blocked.object == change.object { OLDER } else { REORDERED });
            self.ready.push_back(blocked.line);
        }
    }

    fn expire(&mut self) {
        let line = format!("{}\n", json!({"type": "ERROR", "object": failure(410)}));
        self.ready.push_back(line.into_bytes());
        self.end = Some(End::Closed);
        self.met(EXPIRED);
    }

    fn met(&self, what: &'static str) {
        self.judge.lock().unwrap().met(what);
    }
}
