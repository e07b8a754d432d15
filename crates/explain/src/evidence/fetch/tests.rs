//! The way into a probe's pod, over a real connection to a made-up API server.

use std::sync::{Arc, Mutex};

use futures::SinkExt;
use http::HeaderValue;
use kube::Config;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request as Asked, Response as Answer};

use super::*;

/// What the server does when a command is to be run.
#[derive(Clone)]
enum Exec {
    /// It prints this, this on standard error, and ends so.
    Runs(Vec<u8>, &'static str, &'static str),
    /// Its kubelet never answers.
    Silent,
    Refused(u16, &'static str),
}

/// An API server with these pods, or with the refusal to list them. Tells what it was asked for.
async fn server(pods: Value, exec: Exec) -> (Client, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, pods.clone(), exec.clone(), Arc::clone(&log)));
        }
    });
    (Client::try_from(Config::new(format!("http://{address}").parse().unwrap())).unwrap(), asked)
}

/// One connection, one request.
async fn serve(mut stream: TcpStream, pods: Value, exec: Exec, log: Arc<Mutex<Vec<String>>>) {
    let mut seen = vec![0; 8192];
    let length = stream.peek(&mut seen).await.unwrap();
    let first = String::from_utf8_lossy(&seen[..length]).lines().next().unwrap_or_default().to_owned();
    log.lock().unwrap().push(first.clone());
    if !first.contains("/exec?") {
        let code = pods["code"].as_u64().unwrap_or(200);
        return answer(&mut stream, u16::try_from(code).unwrap(), &pods).await;
    }
    let (out, complaint, end) = match exec {
        Exec::Silent => std::future::pending().await,
        Exec::Refused(code, message) => {
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
                "reason": "X", "message": message});
            return answer(&mut stream, code, &status).await;
        }
        Exec::Runs(out, complaint, end) => (out, complaint, end),
    };
    #[expect(clippy::result_large_err, reason = "the form that is asked for")]
    let protocol = |_: &Asked, mut answer: Answer| -> Result<Answer, ErrorResponse> {
        answer.headers_mut().insert("Sec-WebSocket-Protocol", HeaderValue::from_static("v4.channel.k8s.io"));
        Ok(answer)
    };
    let mut channel = tokio_tungstenite::accept_hdr_async(stream, protocol).await.unwrap();
    for (number, part) in out.chunks(60_000).map(|part| (1, part)).chain([(2, complaint.as_bytes())]) {
        if channel.send(Message::binary([&[number], part].concat())).await.is_err() {
            return;
        }
    }
    let status = json!({"metadata": {}, "status": end, "message": "command terminated with exit code 1"});
    let _ = channel.send(Message::binary([&[3], status.to_string().as_bytes()].concat())).await;
    let _ = channel.close(None).await;
}

async fn answer(stream: &mut TcpStream, code: u16, body: &Value) {
    // All of the request is taken in, or what is answered would be lost with the connection.
    let mut rest = vec![0; 8192];
    let _ = tokio::io::AsyncReadExt::read(stream, &mut rest).await;
    let body = body.to_string();
    let head = format!("HTTP/1.1 {code} X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length:");
    stream.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
    let _ = stream.shutdown().await;
}

fn pods(phase: &str) -> Value {
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {},
        "items": [{"metadata": {"name": "nrh-probe-x"}, "status": {"phase": phase}}]})
}

/// The sentence with all its causes.
async fn wrong(pods: Value, exec: Exec) -> String {
    let (client, _) = server(pods, exec).await;
    format!("{:#}", fetch(client, "worker-1", Some("f")).await.unwrap_err())
}

#[tokio::test]
async fn the_command_runs_in_the_probes_pod_of_that_node() {
    let text = json!([{"name": "a".repeat(200_000)}]).to_string().into_bytes();
    let (client, asked) = server(pods("Running"), Exec::Runs(text, "", "Success")).await;
    let bundles = fetch(client, "worker-1", Some("f-1")).await.unwrap();
    assert_eq!(bundles[0].as_ref().unwrap()["name"].as_str().unwrap().len(), 200_000);
    let asked = asked.lock().unwrap();
    assert!(
        asked[0].contains("/namespaces/nrh-node/pods?") && asked[0].contains("spec.nodeName%3Dworker-1"),
        "{asked:?}"
    );
    let command =
        "command=%2Fnrh&command=evidence&command=--local&command=--output&command=json&command=--fault&command=f-1";
    let exec = "/namespaces/nrh-node/pods/nrh-probe-x/exec?";
    assert!(asked[1].contains(exec) && asked[1].contains(command) && asked[1].contains("container=probe"), "{asked:?}");
}

#[tokio::test]
async fn what_could_be_read_is_passed_on_with_what_could_not() {
    let exec = Exec::Runs(br#"[{"name": "a-1"}]"#.to_vec(), "1 bundle(s) could not be read", "Failure");
    let (client, _) = server(pods("Running"), exec).await;
    let bundles = fetch(client, "worker-1", None).await.unwrap();
    assert_eq!(bundles[0].as_ref().unwrap()["name"], "a-1");
    let failure = bundles[1].as_ref().unwrap_err().to_string();
    assert!(bundles.len() == 2 && failure.ends_with("failed there: 1 bundle(s) could not be read"), "{failure}");
}

#[tokio::test]
async fn what_is_wrong_is_said_with_what_helps() {
    let none = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []});
    let forbidden = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 403,
        "reason": "Forbidden", "message": "no"});
    let fine = || Exec::Runs(b"[]".to_vec(), "", "Success");
    for (pods, exec, parts) in [
        (forbidden, fine(), ["may not find the probe's pod", "`list` on pods in namespace nrh-node"]),
        (none, fine(), ["no probe's pod", "nrh evidence --local` as root on worker-1"]),
        (pods("Pending"), fine(), ["does not run (Pending)", "--local"]),
        (pods("Running"), Exec::Refused(403, "no"), ["pods/exec in namespace nrh-node", "verb `debug`"]),
        (pods("Running"), Exec::Refused(500, "error dialing backend"), ["dialing backend", "--local"]),
        (pods("Running"), Exec::Refused(404, "pods not found"), ["the pod is gone", "pods not found"]),
        (pods("Running"), fine(), ["node worker-1 keeps no bundle", "\"f\""]),
        (pods("Running"), Exec::Runs(b"[{".to_vec(), "", "Success"), ["not whole", ""]),
        (
            pods("Running"),
            Exec::Runs(vec![], "error: \u{1b}[1m no such command", "Failure"),
            ["error:  [1m no", "failed"],
        ),
    ] {
        let error = wrong(pods, exec).await;
        assert!(parts.iter().all(|part| error.contains(part)) && !error.contains('\u{1b}'), "{parts:?}: {error}");
    }
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off() {
    let exec = Exec::Runs(vec![b' '; usize::try_from(LARGEST).unwrap() + 200_000], "", "Success");
    let error = wrong(pods("Running"), exec).await;
    assert!(error.contains("printed more than"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_does_not_answer_is_not_waited_for() {
    let (client, _) = server(pods("Running"), Exec::Silent).await;
    let pods = Api::namespaced(client, NAMESPACE);
    let error = run_in_pod(&pods, "nrh-probe-x", "worker-1", vec!["/nrh"]).await.unwrap_err();
    assert!(error.to_string().contains("gave no answer within 20 s"), "{error}");
}
