use tokio::net::TcpListener;

use super::*;

async fn answering(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0_u8; 256];
        let _ = stream.read(&mut request).await.unwrap();
        stream.write_all(answer).await.unwrap();
    });
    address
}

#[tokio::test]
async fn only_200_is_healthy() {
    assert_eq!(healthz(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await).await, Ok(()));
    for answer in [
        &b"HTTP/1.1 500 Internal Server Error\r\n\r\n200"[..],
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH 200\r\n",
        b"\xff\xfe\x00200",
        b"",
    ] {
        let error = healthz(answering(answer).await).await.unwrap_err();
        assert!(error.len() <= 200, "{error}");
    }
}

#[tokio::test]
async fn an_endless_first_line_is_cut() {
    let endless: &'static [u8] = Vec::leak(vec![b'x'; 1 << 16]);
    assert!(healthz(answering(endless).await).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_silent_port_ends_at_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let error = healthz(listener.local_addr().unwrap()).await.unwrap_err();
    assert!(error.contains("within 5 s"), "{error}");
}

#[tokio::test]
async fn a_closed_port_says_refused() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    assert!(healthz(address).await.unwrap_err().contains("refused"));
}

#[test]
fn the_address_is_one_a_client_can_use() {
    let at = |address: &str, port| {
        healthz_address(&Settings {
            healthz_address: address.parse().unwrap(),
            healthz_port: port,
            runtime_endpoint: None,
        })
    };
    assert_eq!(at("0.0.0.0", 10248), Some("127.0.0.1:10248".parse().unwrap()));
    assert_eq!(at("::", 1), Some("[::1]:1".parse().unwrap()));
    assert_eq!(at("10.99.0.11", 10258), Some("10.99.0.11:10258".parse().unwrap()));
    assert_eq!(at("127.0.0.1", 0), None);
}
