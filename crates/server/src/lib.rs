//! The HTTP server of controller and probe: a slow or a greedy client takes neither memory nor the place of others.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Longest time until a request's head is there.
const HEAD: Duration = Duration::from_secs(10);
/// Longest time of a whole connection, which carries one request: from its start to the last byte of the answer.
const WHOLE: Duration = Duration::from_secs(15);
/// Most connections of one listener at a time; one more closes the oldest.
const CONNECTIONS: usize = 64;
/// Most bytes of a request's head, which is also what is buffered of an answer.
const HEAD_BYTES: usize = 16 * 1024;
/// Wait after a connection that could not be accepted: out of descriptors, mostly, and no loop mends that.
const NOT_ACCEPTED: Duration = Duration::from_secs(1);
/// How long requests that are under way may take at the end.
const DRAIN: Duration = Duration::from_secs(2);

/// Serves until `end`, then lets what is under way finish, for a moment.
pub async fn serve(listener: TcpListener, router: Router, end: CancellationToken) {
    let mut connections = Connections::default();
    loop {
        let accepted = tokio::select! {
            () = end.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => connections.add(exchange(stream, router.clone(), end.clone())),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(NOT_ACCEPTED).await;
            }
        }
    }
    drop(listener);
    // What is left after that is dropped with its tasks.
    let _ = timeout(DRAIN, connections.ended()).await;
}

/// The connections that are open. Dropped, it closes them.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    oldest_first: VecDeque<AbortHandle>,
}

impl Connections {
    /// One more; where there are enough, the oldest goes. A good client is done within milliseconds, so the oldest is the slowest.
    fn add(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.oldest_first.retain(|task| !task.is_finished());
        if self.oldest_first.len() >= CONNECTIONS
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            oldest.abort();
        }
        self.oldest_first.push_back(self.tasks.spawn(connection));
    }

    async fn ended(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

/// One connection: one request and its answer. Whoever wants more connects anew, so nobody is idle here.
async fn exchange(stream: TcpStream, router: Router, end: CancellationToken) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let served = async {
        let mut connection = pin!(connection);
        tokio::select! {
            result = connection.as_mut() => return result,
            () = end.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        connection.await
    };
    match timeout(WHOLE, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection has failed"),
        Err(_) => tracing::debug!("a connection was cut after {} s", WHOLE.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    use super::*;

    const FINE: &[u8] = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n";
    const HALF: &[u8] = b"GET /livez HTTP/1.1\r\nHost: ";

    /// Answers `/livez` at once, `/slow` after a second, `/never` not at all.
    async fn start() -> (SocketAddr, CancellationToken, JoinHandle<()>) {
        let router = Router::new()
            .route("/livez", get(|| async { "ok" }))
            .route("/slow", get(|| async { tokio::time::sleep(Duration::from_secs(1)).await }))
            .route("/never", get(|| async { std::future::pending::<()>().await }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, end) = (listener.local_addr().unwrap(), CancellationToken::new());
        (address, end.clone(), tokio::spawn(serve(listener, router, end)))
    }

    async fn send(address: SocketAddr, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream
    }

    /// What comes until the end of the connection, however it ends.
    async fn rest(mut stream: TcpStream) -> String {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        String::from_utf8(bytes).unwrap()
    }

    async fn ask(address: SocketAddr, bytes: &[u8]) -> String {
        rest(send(address, bytes).await).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_half_a_request_is_cut() {
        let (address, _end, _server) = start().await;
        let began = Instant::now();
        let answer = ask(address, HALF).await;
        assert!(!answer.contains("200 OK"), "{answer}");
        assert!((HEAD..WHOLE).contains(&began.elapsed()), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_a_byte_now_and_then_is_cut_as_well() {
        let (address, _end, _server) = start().await;
        let (began, mut stream) = (Instant::now(), send(address, HALF).await);
        while stream.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(began.elapsed() < HEAD + Duration::from_secs(5), "it is still open");
        }
        assert!(began.elapsed() >= HEAD, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_does_not_come_ends_the_connection() {
        let (address, _end, _server) = start().await;
        let began = Instant::now();
        assert_eq!(ask(address, b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n").await, "");
        assert!((WHOLE..WHOLE * 2).contains(&began.elapsed()), "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn half_open_connections_keep_nobody_out_and_are_bounded() {
        let (address, _end, _server) = start().await;
        let mut slow = Vec::new();
        for _ in 0..100 {
            slow.push(send(address, HALF).await);
        }
        let answer = timeout(Duration::from_secs(2), ask(address, FINE)).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok"), "{answer}");
        // The oldest were closed for it, the newest are open.
        let closed = 100 + 1 - CONNECTIONS;
        let newest = slow.split_off(closed);
        for stream in slow {
            timeout(Duration::from_secs(2), rest(stream)).await.expect("one of the oldest is open");
        }
        for stream in newest {
            assert!(stream.try_read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
        }
    }

    #[tokio::test]
    async fn a_head_of_any_length_is_not_taken() {
        let (address, _end, _server) = start().await;
        let long = format!("GET /livez HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n", "x".repeat(2 * HEAD_BYTES));
        let answer = ask(address, long.as_bytes()).await;
        assert!(!answer.contains("200 OK"), "{answer}");
    }

    #[tokio::test]
    async fn one_connection_carries_one_request() {
        let (address, _end, _server) = start().await;
        let answer = ask(address, &[FINE, FINE].concat()).await;
        assert_eq!(answer.matches("200 OK").count(), 1, "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }

    #[tokio::test]
    async fn at_the_end_what_is_under_way_is_answered_and_nothing_new() {
        let (address, end, server) = start().await;
        let (idle, slow) = (send(address, HALF).await, send(address, b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await);
        // Both have been accepted, since a later one was answered.
        ask(address, FINE).await;
        end.cancel();
        let answer = rest(slow).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        timeout(DRAIN * 2, server).await.expect("a half request holds the end up").unwrap();
        assert!(TcpStream::connect(address).await.is_err(), "it still listens");
        rest(idle).await;
    }
}
