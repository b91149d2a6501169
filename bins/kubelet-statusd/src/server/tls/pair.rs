//! A certificate and its key: read from PEM, or made by the node for itself.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, ServerSessionMemoryCache, WantsServerCert};
use rustls::sign::{CertifiedKey, SigningKey, SingleCertAndKey};
use rustls::{ConfigBuilder, InconsistentKeys, ServerConfig};

use super::anyone::Anyone;
use super::policy::Policy;
use crate::server::authn::x509::ClientAuthority;

/// How long the pair is good; it is used beyond that, as upstream does.
const VALID: Duration = Duration::from_secs(365 * 24 * 3600);
/// Against clocks that differ (client-go `util/cert`).
const BACKDATED: Duration = Duration::from_secs(3600);
/// Sessions that may be taken up again: a scraper or two and the API server.
const SESSIONS: usize = 64;

/// Why there is no configuration to serve with.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    #[error("the certificate file has no certificate in PEM")]
    NoCertificate,
    #[error("the key file has no private key in PEM that can be used")]
    NoKey,
    #[error("certificate and key cannot be used together")]
    Unfit(#[source] rustls::Error),
    #[error("TLS cannot be set up")]
    Setup(#[source] rustls::Error),
    #[error("a certificate cannot be made")]
    Make(#[from] rcgen::Error),
}

/// What new connections are served with.
///
/// # Errors
/// The two are no pair.
pub fn server_config(
    policy: &Policy,
    certificates: &[u8],
    key: &[u8],
    authority: Option<&ClientAuthority>,
) -> Result<ServerConfig, PairError> {
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(certificates).collect::<Result<_, _>>().map_err(|_| PairError::NoCertificate)?;
    if chain.is_empty() {
        return Err(PairError::NoCertificate);
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| PairError::NoKey)?;
    let key = policy.provider.key_provider.load_private_key(key).map_err(PairError::Unfit)?;
    are_a_pair(&chain[0], &*key).map_err(PairError::Unfit)?;
    let pair = SingleCertAndKey::from(CertifiedKey::new(chain, key));
    let mut config = builder(policy, authority)?.with_cert_resolver(Arc::new(pair));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.session_storage = ServerSessionMemoryCache::new(SESSIONS);
    Ok(config)
}

/// Whether the certificate is of that key. Compared here because rustls reads certificates of X.509 version 3 alone, and one of
/// version 1 can be served as well (Go's `tls.X509KeyPair`).
fn are_a_pair(certificate: &CertificateDer<'_>, key: &dyn SigningKey) -> Result<(), rustls::Error> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate)
        .map_err(|_| rustls::Error::InvalidCertificate(rustls::CertificateError::BadEncoding))?;
    match key.public_key() {
        Some(public) if public.as_ref() != certificate.public_key().raw => Err(InconsistentKeys::KeyMismatch.into()),
        _ => Ok(()),
    }
}

/// What new connections get while there is no certificate for them: a handshake that fails at once.
///
/// # Errors
/// TLS cannot be set up.
pub fn none_yet(policy: &Policy) -> Result<ServerConfig, PairError> {
    Ok(builder(policy, None)?.with_cert_resolver(Arc::new(NoneYet)))
}

fn builder(
    policy: &Policy,
    authority: Option<&ClientAuthority>,
) -> Result<ConfigBuilder<ServerConfig, WantsServerCert>, PairError> {
    let anyone = Anyone {
        hints: authority.map(|authority| authority.subjects().to_vec()).unwrap_or_default(),
        algorithms: policy.provider.signature_verification_algorithms,
    };
    Ok(ServerConfig::builder_with_provider(policy.provider.clone())
        .with_protocol_versions(&policy.versions)
        .map_err(PairError::Setup)?
        .with_client_cert_verifier(Arc::new(anyone)))
}

#[derive(Debug)]
struct NoneYet;

impl ResolvesServerCert for NoneYet {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        tracing::debug!("no serving certificate available for the kubelet");
        None
    }
}

/// When the first certificate ends.
pub fn not_after(certificates: &[u8]) -> Option<jiff::Timestamp> {
    let der = CertificateDer::pem_slice_iter(certificates).next()?.ok()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&der).ok()?;
    jiff::Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

/// The node's own pair, both in PEM.
#[derive(Debug)]
pub struct OwnPair {
    pub certificates: String,
    pub key: String,
}

/// Makes a pair for a node that has none: a certificate for its name and addresses, signed by an authority that exists
/// for this one signature and is shown beside it (client-go `util/cert`, GenerateSelfSignedCertKey).
///
/// # Errors
/// No random numbers, or the name cannot stand in a certificate.
pub fn self_signed(name: &str, addresses: &[IpAddr]) -> Result<OwnPair, PairError> {
    let now = std::time::SystemTime::now();
    let seconds = now.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let params = |common_name: String| {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.not_before = (now - BACKDATED).into();
        params.not_after = (now - BACKDATED + VALID).into();
        params
    };
    let mut ca = params(format!("{name}-ca@{seconds}"));
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages =
        vec![KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign];
    let ca_key = KeyPair::generate()?;
    let ca_certificate = ca.self_signed(&ca_key)?;
    let issuer = Issuer::new(ca, ca_key);

    let mut own = params(format!("{name}@{seconds}"));
    own.key_usages = vec![KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::DigitalSignature];
    own.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    own.use_authority_key_identifier_extension = true;
    own.subject_alt_names = vec![match name.parse() {
        Ok(address) => SanType::IpAddress(address),
        Err(_) => SanType::DnsName(name.try_into()?),
    }];
    own.subject_alt_names.extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
    let key = KeyPair::generate()?;
    let certificate = own.signed_by(&key, &issuer)?;
    Ok(OwnPair { certificates: certificate.pem() + &ca_certificate.pem(), key: key.serialize_pem() })
}

#[cfg(test)]
mod tests {
    use bulkhead_config::KubeletConfiguration;

    use super::*;

    #[test]
    fn a_pair_of_its_own_names_the_node_and_can_be_served() {
        let pair = self_signed("node-a", &["192.0.2.7".parse().unwrap()]).unwrap();
        let ders: Vec<_> =
            CertificateDer::pem_slice_iter(pair.certificates.as_bytes()).collect::<Result<_, _>>().unwrap();
        let (_, own) = x509_parser::parse_x509_certificate(&ders[0]).unwrap();
        let (_, ca) = x509_parser::parse_x509_certificate(&ders[1]).unwrap();
        assert_eq!(own.issuer(), ca.subject());
        let names = format!("{:?}", own.subject_alternative_name().unwrap().unwrap().value.general_names);
        assert!(
            names.contains("node-a") && names.contains("192, 0, 2, 7") || names.contains("[c0, 00, 02, 07]"),
            "{names}"
        );
        let policy = Policy::of(&KubeletConfiguration::default());
        server_config(&policy, pair.certificates.as_bytes(), pair.key.as_bytes(), None).unwrap();
        assert!(not_after(pair.certificates.as_bytes()).unwrap() > jiff::Timestamp::now());
        // An address is no name.
        self_signed("192.0.2.8", &[]).unwrap();

        let other = self_signed("node-b", &[]).unwrap();
        let of = |certificates: &str, key: &str| server_config(&policy, certificates.as_bytes(), key.as_bytes(), None);
        assert!(matches!(of(&pair.certificates, &other.key), Err(PairError::Unfit(_))));
        assert!(matches!(of("", &other.key), Err(PairError::NoCertificate)));
        assert!(matches!(of(&pair.certificates, "x"), Err(PairError::NoKey)));
        let broken = pair.certificates.replacen("MII", "!!!", 1);
        assert!(of(&broken, &pair.key).is_err());
    }
}
