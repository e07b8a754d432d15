//! The stand-in of the kubelet: keeps the Node Ready, runs its pods through CRI, answers `/healthz`.
//!
//! It speaks with a kubelet's credentials, so the API server's node authorizer and admission hold for it too.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use jiff::Timestamp;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{interval, sleep};

use super::pods::Pass;
use super::{pod_spec, runtime};
use crate::{assets, client, view};

/// Name of the program.
pub const NAME: &str = "kubelet";
/// How often the node says that it is well.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How often pods are checked.
const PODS: Duration = Duration::from_secs(1);
/// Pause after something that did not work.
const AGAIN: Duration = Duration::from_secs(1);

/// The real one's flags, as far as the bed gives them.
#[derive(Debug, Parser)]
#[command(name = NAME)]
struct Args {
    /// Configuration file; its health port is used
    #[arg(long)]
    config: PathBuf,
    /// Credentials
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Address of the node
    #[arg(long)]
    node_ip: Ipv4Addr,
    /// Name of the node
    #[arg(long)]
    hostname_override: String,
}

pub(super) fn run() -> Result<()> {
    let args = Args::parse();
    let server = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    server.block_on(async {
        let config: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&args.config)?)?;
        let port = config["healthzPort"].as_u64().context("healthzPort")?;
        let health = TcpListener::bind((Ipv4Addr::LOCALHOST, u16::try_from(port)?)).await.context("/healthz")?;
        let mut told = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            () = answer(health) => Ok(()),
            ended = keep(&args) => ended,
            _ = told.recv() => Ok(()),
        }
    })
}

/// Says `ok` to everybody.
async fn answer(health: TcpListener) {
    loop {
        let Ok((mut stream, _)) = health.accept().await else { continue };
        tokio::spawn(async move {
            let mut request = [0; 1024];
            // Whatever was asked: a client that has gone needs no answer.
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok").await;
        });
    }
}

async fn keep(args: &Args) -> Result<()> {
    let client = Client::try_from(client::config(&args.kubeconfig).await?)?;
    tokio::try_join!(heartbeats(args, client.clone()), run_pods(args, client))?;
    Ok(())
}

async fn heartbeats(args: &Args, client: Client) -> Result<()> {
    let mut beat = interval(HEARTBEAT);
    loop {
        beat.tick().await;
        while let Err(error) = heartbeat(args, &client).await {
            eprintln!("heartbeat: {error:#}");
            sleep(AGAIN).await;
        }
    }
}

async fn heartbeat(args: &Args, client: &Client) -> Result<()> {
    let name = args.hostname_override.as_str();
    let nodes: Api<Node> = Api::all(client.clone());
    let node = match nodes.get_opt(name).await? {
        Some(node) => node,
        None => nodes.create(&PostParams::default(), &serde_json::from_value(new_node(name))?).await?,
    };
    nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(status(args))).await.context("node status")?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let renew = json!({"spec": {
        "holderIdentity": name, "leaseDurationSeconds": 40,
        "renewTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
    }});
    if leases.get_opt(name).await?.is_some() {
        leases.patch(name, &PatchParams::default(), &Patch::Merge(renew)).await.context("lease")?;
        return Ok(());
    }
    let mut lease = renew;
    lease["metadata"] = json!({"name": name, "ownerReferences": [
        {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.uid().unwrap_or_default()},
    ]});
    leases.create(&PostParams::default(), &serde_json::from_value(lease)?).await.context("lease")?;
    Ok(())
}

fn new_node(name: &str) -> serde_json::Value {
    json!({"metadata": {"name": name, "labels": {
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": std::env::consts::ARCH,
    }}})
}

fn status(args: &Args) -> serde_json::Value {
    let room = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = |name: &str, value: &str, reason: &str| json!({"type": name, "status": value, "reason": reason, "message": "", "lastHeartbeatTime": now});
    json!({"status": {
        "capacity": room, "allocatable": room,
        "addresses": [
            {"type": "InternalIP", "address": args.node_ip.to_string()},
            {"type": "Hostname", "address": args.hostname_override},
        ],
        "conditions": [
            condition("Ready", "True", "KubeletReady"),
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID"),
        ],
        "nodeInfo": {
            "kubeletVersion": format!("v{}-stand-in", assets::kubernetes_version()),
            "containerRuntimeVersion": format!("{}://stand-in", runtime::NAME),
            "operatingSystem": "linux", "architecture": std::env::consts::ARCH, "osImage": "", "kernelVersion": "",
            "kubeProxyVersion": "", "machineID": "", "systemUUID": "", "bootID": "",
        },
    }})
}

/// One pass at a time for each pod; a pod that hangs holds up no other.
async fn run_pods(args: &Args, client: Client) -> Result<()> {
    let pods: Api<Pod> = Api::all(client.clone());
    let mine = ListParams::default().fields(&format!("spec.nodeName={}", args.hostname_override));
    let mut passes: BTreeMap<String, JoinHandle<()>> = BTreeMap::new();
    let mut turn = interval(PODS);
    loop {
        turn.tick().await;
        passes.retain(|_, pass| !pass.is_finished());
        let channel = match view::connect(view::SOCKET.as_ref()).await {
            Ok(channel) => channel,
            Err(error) => {
                eprintln!("runtime: {error:#}");
                continue;
            }
        };
        let found = match pods.list(&mine).await {
            Ok(found) => found,
            Err(error) => {
                eprintln!("pods: {error}");
                continue;
            }
        };
        for pod in found.items {
            let uid = pod_spec::uid(&pod).to_owned();
            if passes.contains_key(&uid) {
                continue;
            }
            let runtime = RuntimeServiceClient::new(channel.clone());
            let pass = Pass { client: client.clone(), runtime, node_ip: args.node_ip };
            passes.insert(
                uid,
                tokio::spawn(async move {
                    let name = pod_spec::name(&pod).to_owned();
                    if let Err(error) = Box::pin(pass.sync(pod)).await {
                        eprintln!("{} pod {name}: {error:#}", Timestamp::now());
                    }
                }),
            );
        }
    }
}
