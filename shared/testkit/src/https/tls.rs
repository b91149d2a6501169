//! The client's side of TLS: what is shown to the server, and what is asked of its certificate.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Credential, Https};

/// Takes any certificate whose key the server has.
#[derive(Debug)]
pub(crate) struct Anybody(pub(crate) Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Makes the connection one of TLS.
pub(super) async fn connect(client: &Https, stream: TcpStream) -> Result<TlsStream<TcpStream>> {
    let mut name = ServerName::IpAddress(client.address.ip().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(&client.versions)?;
    let builder = match &client.trusted {
        None => builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider))),
        Some(trusted) => {
            if let Some(wanted) = &trusted.name {
                name = ServerName::try_from(wanted.clone()).context("the server's name")?;
            }
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(trusted.ca.as_bytes()) {
                roots.add(certificate.context("reading the authority's certificate")?)?;
            }
            builder.with_root_certificates(roots)
        }
    };
    let mut config = match &client.credential {
        Credential::Certificate(pair) => {
            let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).collect::<Result<Vec<_>, _>>()?;
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(pair.key.as_bytes())?)?
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![if client.http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
}
