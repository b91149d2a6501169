//! TLS to a pod: whoever answers is taken for whoever it says it is, because nobody told the node whom to expect
//! (upstream sets `InsecureSkipVerify`).

use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, IpAddr, Ipv4Addr, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{GetError, GetErrorKind};
use crate::dial::Noted;

/// Takes every certificate, and every signature with it: without a name to check they prove nothing, and a pod's key may be
/// of a kind or size that our library cannot check.
#[derive(Debug)]
struct Anybody(Vec<SignatureScheme>);

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
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}

/// Kinds of signatures that a server is told of: those that our library can check, and that of keys on P-521, which Go's client has too
/// and ring has not. It need not be checked.
fn schemes(provider: &CryptoProvider) -> Vec<SignatureScheme> {
    let mut schemes = provider.signature_verification_algorithms.supported_schemes();
    schemes.push(SignatureScheme::ECDSA_NISTP521_SHA512);
    schemes
}

/// Made at the first use: most nodes have no such probe.
fn connector() -> Result<TlsConnector, GetError> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(TlsConnector::from(config.clone()));
    }
    let provider = rustls::crypto::ring::default_provider();
    let schemes = schemes(&provider);
    let builder = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| GetError::other(format!("tls: {error}")))?;
    let mut config =
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(schemes))).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Each probe stands for itself: what one learned must not decide the next one's way.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(TlsConnector::from(CONFIG.get_or_init(|| Arc::new(config)).clone()))
}

/// The handshake. The host's name is sent along, an address is not.
pub(super) async fn connect(stream: TcpStream, host: &str) -> Result<TlsStream<Noted<TcpStream>>, GetError> {
    let nameless = || ServerName::IpAddress(IpAddr::V4(Ipv4Addr::from([0, 0, 0, 0])));
    let name = ServerName::try_from(host.to_owned()).unwrap_or_else(|_| nameless());
    let (stream, first) = Noted::new(stream);
    connector()?.connect(name, stream).await.map_err(|error| {
        if first.get().starts_with(b"HTTP/") {
            let text = "http: server gave HTTP response to HTTPS client".to_owned();
            return GetError { kind: GetErrorKind::PlainAnswer, text };
        }
        GetError::other(words(&error))
    })
}

/// A failed handshake in words that are Go's where Go's are known.
fn words(error: &std::io::Error) -> String {
    if error.kind() == std::io::ErrorKind::UnexpectedEof {
        return "EOF".to_owned();
    }
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(alert)) => format!("remote error: tls: {}", alert_words(*alert)),
        Some(rustls::Error::InvalidMessage(_)) => "tls: first record does not look like a TLS handshake".to_owned(),
        Some(other) => format!("tls: {other}"),
        None if error.raw_os_error().is_some() => crate::dial::words(error),
        None => error.to_string(),
    }
}

fn alert_words(alert: rustls::AlertDescription) -> String {
    match alert {
        rustls::AlertDescription::HandshakeFailure => "handshake failure".to_owned(),
        rustls::AlertDescription::ProtocolVersion => "protocol version not supported".to_owned(),
        rustls::AlertDescription::UnrecognisedName => "unrecognized name".to_owned(),
        rustls::AlertDescription::CertificateRequired => "certificate required".to_owned(),
        rustls::AlertDescription::NoApplicationProtocol => "no application protocol".to_owned(),
        rustls::AlertDescription::InternalError => "internal error".to_owned(),
        other => format!("{other:?}"),
    }
}
