//! Connections that fall silent, as behind a router that has forgotten them: no end, no error, no word. What ends them is the
//! client's `read_timeout`: 310 s in the product, which sets it; here a shorter one, for the same clients.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Uri;
use kube::Config;
use nrh::controller::calls::Calls;
use nrh::core::plan::PlanSettings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::interruptions::{Stage, controllers_config, kill, start_set};

/// Longer than a call is waited for.
const READ_TIMEOUT: Duration = Duration::from_secs(7);

/// A way that hands on what comes, byte for byte, until the connections of that moment are forgotten.
struct Router {
    address: SocketAddr,
    forgotten: watch::Sender<usize>,
}

impl Router {
    async fn to(server: String) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (forgotten, seen) = watch::channel(0);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, seen) = (server.clone(), seen.clone());
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(&server).await else { return };
                    let ((from, to), (back, home)) = (client.into_split(), server.into_split());
                    tokio::join!(hand_on(from, home, seen.clone()), hand_on(back, to, seen));
                });
            }
        });
        Ok(Self { address, forgotten })
    }

    /// Nothing more comes through the connections of now; new ones are as good as ever.
    fn forget(&self) {
        self.forgotten.send_modify(|times| *times += 1);
    }
}

async fn hand_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut seen: watch::Receiver<usize>) {
    let mut bytes = vec![0; 16 * 1024];
    seen.mark_unchanged();
    loop {
        tokio::select! {
            biased;
            _ = seen.changed() => std::future::pending().await,
            read = from.read(&mut bytes) => match read {
                Ok(count) if count > 0 && to.write_all(&bytes[..count]).await.is_ok() => {}
                _ => return,
            },
        }
    }
}

/// One node is repaired, all connections fall silent, and another one is repaired.
pub async fn connections_are_given_up(stage: &Stage<'_>) -> Result<()> {
    let mut config: Config = controllers_config(stage.bed).await?;
    let host = config.cluster_url.host().context("the API server's host")?.to_owned();
    let port = config.cluster_url.port_u16().unwrap_or(443);
    let router = Router::to(format!("{host}:{port}")).await?;
    config.tls_server_name = config.tls_server_name.or(Some(host));
    config.cluster_url = format!("https://{}", router.address).parse::<Uri>()?;
    config.read_timeout = Some(READ_TIMEOUT);
    let leader = start_set(Calls::from_config(config)?, "behind-a-router", PlanSettings::default());
    for node in ["before-silence", "after-silence"] {
        stage.fleet.sick_node(node).await?;
        stage.fleet.resolved(node).await?;
        stage.fleet.check(node).await?;
        router.forget();
    }
    ensure!(!leader.is_finished(), "expected it to lead on, {:?}", leader.await);
    println!("a node was healed after all connections had fallen silent");
    kill(&stage.admin, leader).await
}
