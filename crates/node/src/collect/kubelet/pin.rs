//! TLS to a server that holds the key of one of these exact certificates, and to no other server.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use nrh_core::text::bounded;

/// Accepts one of a few certificates, compared byte by byte. It ignores names and dates: these are the kubelet's own files, and
/// a certificate that the kubelet has created for itself has no issuer.
#[derive(Debug)]
struct Pinned {
    pins: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.pins.iter().any(|pin| pin == end_entity) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Connects. Returns once the server has proven that it holds the key of one of these certificates.
pub(super) async fn connect(
    address: SocketAddr,
    pins: &[CertificateDer<'static>],
) -> Result<TlsStream<TcpStream>, String> {
    let describe = |error: &dyn std::fmt::Display| bounded(&format!("{address}: {error}"), 200);
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let verifier = Pinned { pins: pins.to_vec(), algorithms: provider.signature_verification_algorithms };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| describe(&error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    // The next check is minutes away. The session is not kept, and the next one proves everything again.
    config.resumption = Resumption::disabled();
    let stream = TcpStream::connect(address).await.map_err(|error| describe(&error))?;
    let name = ServerName::IpAddress(address.ip().into());
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|error| {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        match inner {
            Some(Error::InvalidCertificate(_)) => {
                format!("what answers at {address} does not show the kubelet's own certificate: it is sent nothing")
            }
            _ => describe(&error),
        }
    })
}
