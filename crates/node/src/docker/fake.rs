//! A Docker for tests, on a real socket. It gives the answers that a test sets, also broken ones. It writes HTTP by hand,
//! because no server would send what some of these tests need.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;

/// What the fake does with one call.
#[derive(Clone, Debug)]
pub(crate) enum Say {
    /// Answers 200 with this.
    Json(Value),
    /// Answers with this status and Docker's form of an error.
    Error(u16, String),
    /// Answers with this status and text.
    Text(u16, String),
    Never,
    /// Begins an answer and never ends it.
    Endless,
    /// Announces a longer answer than it sends, then closes.
    Short,
    /// Announces no length, and closes in the middle of the JSON.
    Half,
    /// Announces this many bytes.
    Announced(usize),
    /// Sends this many bytes in pieces, without having announced them.
    Pieces(usize),
    /// Sends bytes that are not HTTP.
    Garbage,
}

#[derive(Debug, Default)]
struct State {
    /// By call (`Version`, `Sandboxes`, `Containers`, `Removals`, `Inspect`), or `Inspect:ID` for one container.
    says: Mutex<BTreeMap<String, Say>>,
    calls: Mutex<BTreeMap<String, usize>>,
    /// Connections that wait for an answer.
    out: Mutex<BTreeMap<String, usize>>,
}

/// The running fake. It ends, and its socket with it, when this is dropped.
#[derive(Debug)]
pub(crate) struct Fake {
    state: Arc<State>,
    folder: tempfile::TempDir,
    server: Option<Runtime>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown_background();
        }
    }
}

/// A full id made of one digit.
pub(crate) fn id(digit: char) -> String {
    digit.to_string().repeat(64)
}

impl Fake {
    /// A healthy Docker without pods.
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let state = Arc::new(State::default());
        let entered = server.enter();
        let listener = UnixListener::bind(folder.path().join("docker.sock")).unwrap();
        drop(entered);
        let serving = Arc::clone(&state);
        server.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(Arc::clone(&serving), stream));
            }
        });
        let fake = Self { state, folder, server: Some(server) };
        fake.say("Version", Say::Json(json!({"Version": "20.10.24", "ApiVersion": "1.41", "Os": "linux"})));
        fake.say("Removals", Say::Json(json!([])));
        fake.lists(&[], &[]);
        fake
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("docker.sock")
    }

    /// Sets the answer to `what` from now on: a call, or `Inspect:ID` for one container.
    pub(crate) fn say(&self, what: &str, say: Say) {
        self.state.says.lock().unwrap().insert(what.to_owned(), say);
    }

    /// Running sandboxes by id, and running containers by id and sandbox, all of them known by id.
    pub(crate) fn lists(&self, sandboxes: &[&str], containers: &[(&str, &str)]) {
        let own = std::process::id();
        self.say("Sandboxes", Say::Json(sandboxes.iter().map(|id| listed(id, "podsandbox", id, "running")).collect()));
        let running = containers.iter().map(|(id, sandbox)| listed(id, "container", sandbox, "running"));
        self.say("Containers", Say::Json(running.collect()));
        for id in sandboxes.iter().chain(containers.iter().map(|(id, _)| id)) {
            let state = json!({"Status": "running", "Running": true, "Pid": own});
            self.say(&format!("Inspect:{id}"), Say::Json(json!({"Id": id, "State": state})));
        }
    }

    pub(crate) fn calls(&self, what: &str) -> usize {
        self.state.calls.lock().unwrap().get(what).copied().unwrap_or(0)
    }

    pub(crate) fn out(&self, what: &str) -> usize {
        self.state.out.lock().unwrap().get(what).copied().unwrap_or(0)
    }
}

/// An entry of a list with a kubelet's labels.
pub(crate) fn listed(id: &str, kind: &str, sandbox: &str, state: &str) -> Value {
    let digit = sandbox.get(..1).unwrap_or_default();
    json!({
        "Id": id, "State": state, "Status": "Up 2 minutes", "Image": "app", "ImageID": "sha256:0",
        "Names": [format!("/k8s_app_pod-{digit}_shop_uid-{digit}_0")], "Created": 1_700_000_000, "Ports": [],
        "Labels": {
            "io.kubernetes.docker.type": kind, "io.kubernetes.pod.uid": format!("uid-{digit}"),
            "io.kubernetes.pod.name": format!("pod-{digit}"), "io.kubernetes.pod.namespace": "shop",
            "io.kubernetes.container.name": "app", "io.kubernetes.sandbox.id": sandbox,
        },
    })
}

/// The names under which an answer for a request may be set, the most exact first.
fn names(path: &str) -> Vec<String> {
    let by_id = path.strip_prefix("/containers/").and_then(|rest| rest.strip_suffix("/json"));
    match path {
        "/version" => vec!["Version".to_owned()],
        _ if path.contains("dead") => vec!["Removals".to_owned()],
        _ if path.contains("podsandbox") => vec!["Sandboxes".to_owned()],
        _ if path.contains("container%22") => vec!["Containers".to_owned()],
        _ => by_id.map_or_else(Vec::new, |id| vec![format!("Inspect:{id}"), "Inspect".to_owned()]),
    }
}

async fn serve(state: Arc<State>, mut stream: UnixStream) {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer).await {
            Ok(read @ 1..) => head.extend_from_slice(&buffer[..read]),
            _ => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let mut words = head.split(' ');
    assert_eq!(words.next(), Some("GET"), "the probe only reads");
    let path = words.next().unwrap();
    assert!(!path.contains("size"), "sizes walk the file system");
    let names = names(path);
    for name in &names {
        *state.calls.lock().unwrap().entry(name.clone()).or_default() += 1;
        *state.out.lock().unwrap().entry(name.clone()).or_default() += 1;
    }
    let say = {
        let says = state.says.lock().unwrap();
        names.iter().find_map(|name| says.get(name)).cloned()
    };
    let unknown = || match path.strip_prefix("/containers/").and_then(|rest| rest.strip_suffix("/json")) {
        Some(id) => Say::Error(404, format!("No such container: {id}")),
        None => Say::Error(404, "page not found".to_owned()),
    };
    answer(&mut stream, say.unwrap_or_else(unknown)).await;
    for name in &names {
        *state.out.lock().unwrap().entry(name.clone()).or_default() -= 1;
    }
}

async fn answer(stream: &mut UnixStream, say: Say) {
    let whole = |status: u16, body: &str| {
        let length = body.len();
        format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
    };
    let text = match &say {
        Say::Json(value) => whole(200, &value.to_string()),
        Say::Error(status, message) => whole(*status, &json!({"message": message}).to_string()),
        Say::Text(status, text) => whole(*status, text),
        Say::Endless | Say::Short => "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n[{\"Id\":".to_owned(),
        Say::Half => "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n[{\"Id\":".to_owned(),
        Say::Announced(bytes) => format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n["),
        Say::Pieces(_) => "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n[".to_owned(),
        Say::Garbage => "\0\u{1}\u{2} this is no HTTP\r\n\r\n".to_owned(),
        Say::Never => String::new(),
    };
    // A caller that has gone does not read it.
    let _ = stream.write_all(text.as_bytes()).await;
    if let Say::Pieces(bytes) = say {
        let piece = vec![b' '; 64 << 10];
        for _ in 0..bytes / piece.len() {
            if stream.write_all(&piece).await.is_err() {
                return;
            }
        }
    }
    if matches!(say, Say::Never | Say::Endless) {
        // Waits until the caller goes away.
        let _ = stream.read(&mut [0; 16]).await;
    }
}
