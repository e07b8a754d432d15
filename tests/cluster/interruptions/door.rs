//! A door for processes: plain HTTP on the bed's loopback, behind which stands a client of the API server with what it does to
//! calls. So a process is given a kubeconfig without any right of its own, and goes the same way as a task does.

use std::net::SocketAddr;

use anyhow::Result;
use axum::Router;
use axum::body::{Body as Answer, to_bytes};
use http::header::{AUTHORIZATION, CONNECTION, HOST, TRANSFER_ENCODING};
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// More than the controller ever sends.
const LARGEST: usize = 4 << 20;

/// Opens one that leads to that client, for as long as the runtime lives; the kubeconfig of whoever is to go through it.
pub async fn open(client: Client) -> Result<Value> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let through = move |request: Request<Answer>| {
        let client = client.clone();
        async move { pass(&client, request).await }
    };
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(through)).await });
    Ok(kubeconfig(address))
}

fn kubeconfig(door: SocketAddr) -> Value {
    json!({"apiVersion": "v1", "kind": "Config", "current-context": "door",
        "clusters": [{"name": "door", "cluster": {"server": format!("http://{door}")}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "door", "context": {"cluster": "door", "user": "nobody"}}]})
}

/// Hands on a request, and the answer to it. Where there is none, whoever has asked hears nothing, as on any other lost connection:
/// what this door could say itself would be an answer.
async fn pass(client: &Client, request: Request<Answer>) -> Response<Answer> {
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, LARGEST).await else { return std::future::pending().await };
    let mut onwards = Request::new(Body::from(body.to_vec()));
    (*onwards.method_mut(), *onwards.uri_mut(), *onwards.headers_mut()) = (parts.method, parts.uri, parts.headers);
    // They are about the connection to this door.
    for name in [HOST, CONNECTION, TRANSFER_ENCODING, AUTHORIZATION] {
        onwards.headers_mut().remove(name);
    }
    let Ok(mut answer) = client.send(onwards).await else { return std::future::pending().await };
    for name in [CONNECTION, TRANSFER_ENCODING] {
        answer.headers_mut().remove(name);
    }
    answer.map(Answer::new)
}
