//! The client's side of TLS: what is shown to the server, and what is asked of its certificate.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use bulkhead_apiserver::any_certificate::AnyCertificate;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Credential, Https};

/// Makes the connection one of TLS.
pub(super) async fn connect(client: &Https, stream: TcpStream) -> Result<TlsStream<TcpStream>> {
    let mut name = ServerName::IpAddress(client.address.ip().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(&client.versions)?;
    let builder = match &client.trusted {
        None => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
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
