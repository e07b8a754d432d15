//! TLS to whoever holds the key of one of these very certificates, and to nobody else.

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

use crate::core::text::bounded;

/// Takes one of a few certificates, by every byte. Names and dates are not looked at: these are the kubelet's own files,
/// and one that it has made for itself is signed by nobody.
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

/// Connects, and returns once the other side has proven that it holds the key of one of these certificates.
pub(super) async fn connect(
    address: SocketAddr,
    pins: &[CertificateDer<'static>],
) -> Result<TlsStream<TcpStream>, String> {
    let said = |error: &dyn std::fmt::Display| bounded(&format!("{address}: {error}"), 200);
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let verifier = Pinned { pins: pins.to_vec(), algorithms: provider.signature_verification_algorithms };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| said(&error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    // The next look is minutes away: nothing is kept for it, and it proves everything anew.
    config.resumption = Resumption::disabled();
    let stream = TcpStream::connect(address).await.map_err(|error| said(&error))?;
    let name = ServerName::IpAddress(address.ip().into());
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|error| {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        match inner {
            Some(Error::InvalidCertificate(_)) => {
                format!("what answers at {address} does not show the kubelet's own certificate: it is sent nothing")
            }
            _ => said(&error),
        }
    })
}
