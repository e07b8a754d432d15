//! gRPC on a unix socket: each path to the function that answers it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::body::Body;
use clap::Parser;
use http::{Request, Response};
use k8s_cri::v1;
use prost::Message;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;
use tonic_prost::ProstCodec;

use super::mutant::Mutation;
use super::runtime::{NAME, Runtime};

#[derive(Debug, Parser)]
#[command(name = NAME)]
struct Args {
    /// Where it listens
    #[arg(long, default_value = crate::view::SOCKET)]
    socket: PathBuf,
    /// What it shows and does differently
    #[arg(long)]
    mutation: Option<Mutation>,
}

pub(super) fn run() -> Result<()> {
    let Args { socket, mutation } = Args::parse();
    let threads = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    threads.block_on(async {
        let runtime = Arc::new(Runtime::start(mutation).await?);
        let mut told = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            served = serve(runtime, &socket) => served,
            _ = told.recv() => Ok(()),
        }
    })
}

/// Serves until the process ends.
async fn serve(runtime: Arc<Runtime>, socket: &Path) -> Result<()> {
    let _ = fs::remove_file(socket);
    let listener = UnixListener::bind(socket).with_context(|| socket.display().to_string())?;
    let router = axum::Router::new().fallback(move |request: Request<Body>| answer(Arc::clone(&runtime), request));
    tonic::transport::Server::builder()
        .add_routes(tonic::service::Routes::from(router))
        .serve_with_incoming(UnixListenerStream::new(listener))
        .await
        .context("serve")
}

/// The calls that the probe, the kubelet's stand-in and the judge make; all others are unimplemented.
async fn answer(runtime: Arc<Runtime>, request: Request<Body>) -> Response<Body> {
    let runtime = &*runtime;
    let path = request.uri().path().to_owned();
    let Some(method) = path.strip_prefix("/runtime.v1.RuntimeService/") else {
        return match path.as_str() {
            "/containerd.services.tasks.v1.Tasks/Get" => unary(request, |r| async move { runtime.task(r).await }).await,
            _ => unimplemented(&path),
        };
    };
    match method {
        "Version" => unary(request, |_: v1::VersionRequest| async move { Ok(Runtime::version()) }).await,
        "Status" => unary(request, |_: v1::StatusRequest| async move { Ok(Runtime::status()) }).await,
        "ListPodSandbox" => unary(request, |r| async move { runtime.list_sandboxes(&r) }).await,
        "ListContainers" => unary(request, |r| async move { runtime.list_containers(&r) }).await,
        "PodSandboxStatus" => unary(request, |r| async move { runtime.sandbox_status(&r) }).await,
        "ContainerStatus" => unary(request, |r| async move { runtime.container_status(&r) }).await,
        "RunPodSandbox" => unary(request, |r| async move { runtime.run_sandbox(r).await }).await,
        "StopPodSandbox" => unary(request, |r| async move { runtime.stop_sandbox(r).await }).await,
        "RemovePodSandbox" => unary(request, |r| async move { runtime.remove_sandbox(r).await }).await,
        "CreateContainer" => unary(request, |r| async move { runtime.create_container(r) }).await,
        "StartContainer" => unary(request, |r| async move { runtime.start_container(r).await }).await,
        "StopContainer" => unary(request, |r| async move { runtime.stop_container(r).await }).await,
        "RemoveContainer" => unary(request, |r| async move { runtime.remove_container(r).await }).await,
        _ => unimplemented(&path),
    }
}

fn unimplemented(path: &str) -> Response<Body> {
    Status::unimplemented(format!("{path} is not part of this stand-in"))
        .into_http::<tonic::body::Body>()
        .map(Body::new)
}

async fn unary<Q, R, Fut>(request: Request<Body>, work: impl Fn(Q) -> Fut) -> Response<Body>
where
    Q: Message + Default + 'static,
    R: Message + Default + 'static,
    Fut: Future<Output = Result<R, Status>>,
{
    let service = tower::service_fn(|asked: tonic::Request<Q>| {
        let done = work(asked.into_inner());
        async move { done.await.map(tonic::Response::new) }
    });
    let answer = tonic::server::Grpc::new(ProstCodec::<R, Q>::default()).unary(service, request).await;
    answer.map(Body::new)
}
