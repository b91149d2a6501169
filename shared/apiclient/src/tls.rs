//! Whom we trust and what we show: a rustls configuration from PEM. TLS 1.2 is the least, as in upstream's client.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// Bundles of the machine's trusted roots, the first that is there counts (Go `crypto/x509/root_linux.go`).
const SYSTEM_ROOTS: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Why no TLS configuration can be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("certificate-authority has no certificate in PEM that can be used")]
    NoAuthority,
    #[error("the kubeconfig names no certificate authority, and none of the machine's bundles can be read")]
    NoSystemRoots,
    #[error("client-certificate has no certificate in PEM")]
    NoCertificate,
    #[error("client-key has no private key in PEM that can be used")]
    NoKey,
    #[error("client-certificate and client-key cannot be used together")]
    Pair(#[source] rustls::Error),
    #[error("tls-server-name {0:?} is neither a DNS name nor an IP address")]
    ServerName(String),
    #[error("TLS cannot be set up")]
    Setup(#[from] rustls::Error),
}

/// Whose server certificates are believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// These, PEM.
    Authority(Vec<u8>),
    /// The machine's.
    System,
    /// Everybody's.
    Anyone,
}

/// Makes the configuration. `certificate`: chain and key, PEM; both may be one text.
///
/// # Errors
/// See [`TlsError`].
pub fn client_config(trust: &Trust, certificate: Option<(&[u8], &[u8])>) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match trust {
        Trust::Anyone => {
            let verifier = Anyone { algorithms: provider.signature_verification_algorithms };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
        Trust::Authority(pem) => builder.with_root_certificates(roots(pem).ok_or(TlsError::NoAuthority)?),
        Trust::System => builder.with_root_certificates(system_roots().ok_or(TlsError::NoSystemRoots)?),
    };
    let mut config = match certificate {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let chain: Vec<_> = CertificateDer::pem_slice_iter(chain).flatten().collect();
            if chain.is_empty() {
                return Err(TlsError::NoCertificate);
            }
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsError::NoKey)?;
            builder.with_client_auth_cert(chain, key).map_err(TlsError::Pair)?
        }
    };
    // One server: the default of 256 is for browsers.
    config.resumption = rustls::client::Resumption::in_memory_sessions(4);
    Ok(config)
}

/// None when there is not one certificate; what cannot be used beside others is passed over, as Go does.
fn roots(pem: &[u8]) -> Option<RootCertStore> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).flatten());
    (!store.is_empty()).then_some(store)
}

/// Whom the machine trusts; none when no bundle can be read.
pub fn system_roots() -> Option<RootCertStore> {
    SYSTEM_ROOTS.iter().find_map(|path| roots(&std::fs::read(Path::new(path)).ok()?))
}

/// When the first certificate of a chain ends.
pub fn not_after(chain: &[u8]) -> Option<jiff::Timestamp> {
    let der = CertificateDer::pem_slice_iter(chain).next()?.ok()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&der).ok()?;
    jiff::Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

/// Whether a text in PEM has certificates and the key of the first of them.
pub fn is_pair(pem: &[u8]) -> bool {
    client_config(&Trust::Anyone, Some((pem, pem))).is_ok()
}

/// `insecure-skip-tls-verify`: the name and the chain are not looked at, the handshake's signature is.
#[derive(Debug)]
struct Anyone {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Anyone {
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
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
