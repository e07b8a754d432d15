use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::super::server::tests::made;
use super::*;

const TOKEN: &str = "the-token-of-the-probe";
const METRICS_TEXT: &str = "kubelet_pleg_last_seen_seconds 1.79e+09\nkubelet_pleg_relist_duration_seconds_sum 10\nkubelet_pleg_relist_duration_seconds_count 100\n";

/// A kubelet's port that answers every request with the same bytes, and keeps what it was sent.
struct Stand {
    address: SocketAddr,
    certificate: CertificateDer<'static>,
    sent: Arc<Mutex<Vec<u8>>>,
}

/// `hold` = the connection stays open after the answer.
async fn stand(answer: Vec<u8>, hold: bool) -> Stand {
    let (certificate, key) = made();
    let certificate = certificate.der().clone();
    stand_with(certificate, key.serialize_der(), answer, hold).await
}

async fn stand_with(certificate: CertificateDer<'static>, key: Vec<u8>, answer: Vec<u8>, hold: bool) -> Stand {
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Shows(certificate.clone(), key)));
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let keeps = Arc::clone(&sent);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, answer, keeps) = (acceptor.clone(), answer.clone(), Arc::clone(&keeps));
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut buffer = [0_u8; 4096];
                let read = stream.read(&mut buffer).await.unwrap_or_default();
                keeps.lock().unwrap().extend_from_slice(&buffer[..read]);
                if read > 0 {
                    let _ = stream.write_all(&answer).await;
                    let _ = stream.flush().await;
                }
                if hold {
                    std::future::pending::<()>().await;
                }
                let _ = stream.shutdown().await;
            });
        }
    });
    Stand { address, certificate, sent }
}

/// Shows a certificate whatever its key may be: what whoever has read the file could do.
#[derive(Debug)]
struct Shows(CertificateDer<'static>, Vec<u8>);

impl rustls::server::ResolvesServerCert for Shows {
    fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<rustls::sign::CertifiedKey>> {
        let key = PrivateKeyDer::try_from(self.1.clone()).unwrap();
        let key = rustls::crypto::ring::sign::any_supported_type(&key).unwrap();
        Some(Arc::new(rustls::sign::CertifiedKey::new(vec![self.0.clone()], key)))
    }
}

impl Stand {
    fn door(&self, pins: Vec<CertificateDer<'static>>) -> KubeletEndpoint {
        KubeletEndpoint { of: (60, 6000), address: self.address, pins, token: TOKEN.to_owned() }
    }

    async fn check(&self) -> PortSeen {
        Port::default().check(&self.door(vec![self.certificate.clone()])).await
    }

    fn was_sent(&self) -> String {
        String::from_utf8_lossy(&self.sent.lock().unwrap()).into_owned()
    }
}

fn http(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

#[tokio::test]
async fn a_kubelet_that_proves_itself_is_asked_both_with_the_token() {
    let kubelet = stand(http("200 OK", METRICS_TEXT), false).await;
    let seen = kubelet.check().await;
    let unmoved = Some(Duration::ZERO);
    let relists = RelistsSeen { begun: true, unmoved, ..RelistsSeen::default() };
    assert_eq!(seen, PortSeen { sync_loop: Ok(true), relists: Ok(relists) });
    let sent = kubelet.was_sent();
    assert!(sent.contains("GET /healthz/syncloop ") && sent.contains("GET /metrics "), "{sent}");
    assert_eq!(sent.matches(&format!("Bearer {TOKEN}")).count(), 2, "{sent}");
}

#[tokio::test]
async fn whoever_shows_another_certificate_never_sees_the_token() {
    let other = stand(http("200 OK", METRICS_TEXT), false).await;
    let kubelets = made().0.der().clone();
    let seen = Port::default().check(&other.door(vec![kubelets])).await;
    for said in [seen.sync_loop.unwrap_err(), seen.relists.unwrap_err()] {
        assert!(said.contains("does not show the kubelet's own certificate"), "{said}");
    }
    assert_eq!(other.was_sent(), "");
}

#[tokio::test]
async fn whoever_shows_the_certificate_without_its_key_never_sees_the_token() {
    let (kubelets, key) = made();
    let (kubelets, others) = (kubelets.der().clone(), made().1);
    assert_ne!(key.serialize_der(), others.serialize_der());
    let thief = stand_with(kubelets, others.serialize_der(), http("200 OK", METRICS_TEXT), false).await;
    let seen = thief.check().await;
    assert!(seen.sync_loop.is_err() && seen.relists.is_err(), "{seen:?}");
    assert_eq!(thief.was_sent(), "");
}

#[tokio::test]
async fn without_tls_nothing_is_said() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let plain = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&http("200 OK", "ok")).await.unwrap();
        let mut sent = Vec::new();
        let _ = stream.read_to_end(&mut sent).await;
        sent
    });
    let (certificate, _) = made();
    let door =
        KubeletEndpoint { of: (60, 6000), address, pins: vec![certificate.der().clone()], token: TOKEN.to_owned() };
    assert!(sync_loop(&door).await.is_err());
    let sent = plain.await.unwrap();
    assert!(!String::from_utf8_lossy(&sent).contains(TOKEN));
}

#[tokio::test]
async fn only_the_checks_own_words_say_that_the_loop_stands_still() {
    let said = "internal server error: sync Loop took longer than expected\n";
    assert_eq!(stand(http("500 Internal Server Error", said), false).await.check().await.sync_loop, Ok(false));
    // Kubelets of long ago.
    let said = "internal server error: Sync Loop took longer than expected.\n";
    assert_eq!(stand(http("500 Internal Server Error", said), false).await.check().await.sync_loop, Ok(false));
    for (status, body, expected) in [
        // The API server is away, and the kubelet cannot ask it.
        (
            "500 Internal Server Error",
            "Authorization error (user=u, verb=get, resource=nodes, subresource=healthz)",
            "500",
        ),
        ("500 Internal Server Error", "", "500"),
        ("401 Unauthorized", "Unauthorized", "401"),
        ("403 Forbidden", "Forbidden (user=u, verb=get, resource=nodes, subresource=proxy)", "403"),
        ("404 Not Found", "404 page not found", "404"),
        ("503 Service Unavailable", said, "503"),
        ("301 Moved", "", "301"),
    ] {
        let seen = stand(http(status, body), false).await.check().await;
        for why in [seen.sync_loop.unwrap_err(), seen.relists.unwrap_err()] {
            assert!(why.contains(expected) && why.len() <= 300, "{status}: {why}");
        }
    }
}

#[tokio::test]
async fn answers_that_are_cut_too_large_or_none_tell_nothing() {
    let cut = format!("HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{}", &METRICS_TEXT[..80]);
    let mut large = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 6 << 20).into_bytes();
    large.resize(large.len() + (6 << 20), b'\n');
    let endless = format!("HTTP/1.1 200 OK\r\nX: {}\r\n", "x".repeat(100_000));
    for answer in
        [cut.into_bytes(), large, endless.into_bytes(), b"SSH-2.0-x\r\n".to_vec(), Vec::new(), http("200 OK", "ok")]
    {
        let shown = String::from_utf8_lossy(&answer[..answer.len().min(60)]).into_owned();
        let said = stand(answer, false).await.check().await.relists.unwrap_err();
        assert!(said.len() <= 300, "{shown}: {said}");
    }
}

#[tokio::test]
async fn what_is_wanted_is_taken_before_the_rest_has_come() {
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{METRICS_TEXT}");
    assert!(stand(answer.into_bytes(), true).await.check().await.relists.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_port_that_gives_no_answer_ends_at_the_deadline() {
    for answer in [Vec::new(), b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nok".to_vec()] {
        let silent = stand(answer, true).await;
        let began = Instant::now();
        let said = silent.check().await.relists.unwrap_err();
        assert!(said.contains("within 5 s"), "{said}");
        assert!(began.elapsed() <= 2 * DEADLINE + Duration::from_secs(1));
    }
    // One that accepts, and does not even shake hands.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let door = KubeletEndpoint { of: (60, 6000), address, pins: Vec::new(), token: TOKEN.to_owned() };
    assert!(Port::default().check(&door).await.sync_loop.unwrap_err().contains("within 5 s"));
}
