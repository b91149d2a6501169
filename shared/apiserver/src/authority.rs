//! Certificates: one authority for the server's own certificate, for clients and for signing requests.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use base64::Engine as _;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};
use serde_json::Value;
use x509_parser::prelude::{FromDer, ParsedExtension, X509Certificate, X509CertificationRequest};

use super::identity::User;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A certificate and its key, both in PEM.
#[derive(Debug, Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

/// The cluster's certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    der: CertificateDer<'static>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority")
    }
}

impl Authority {
    /// A new authority with a key of its own.
    ///
    /// # Errors
    /// No randomness.
    pub fn new() -> Result<Self> {
        let key = KeyPair::generate().context("generating the authority's key")?;
        let mut params = CertificateParams::default();
        params.distinguished_name = name("kubernetes", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::CrlSign];
        valid_for(&mut params, LONG_AGO, 10 * YEAR);
        let certificate = params.self_signed(&key).context("signing the authority's certificate")?;
        Ok(Self { issuer: Issuer::new(params, key), pem: certificate.pem(), der: certificate.der().clone() })
    }

    /// One that was made before, by its certificate and key in PEM.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn load(pem: &str, key: &str) -> Result<Self> {
        use rustls::pki_types::pem::PemObject as _;
        let key = KeyPair::from_pem(key).context("reading the authority's key")?;
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).context("reading the authority's certificate")?;
        let issuer = Issuer::from_ca_cert_pem(pem, key).context("reading the authority's certificate")?;
        Ok(Self { issuer, pem: pem.to_owned(), der })
    }

    pub fn pem(&self) -> String {
        self.pem.clone()
    }

    pub fn der(&self) -> CertificateDer<'static> {
        self.der.clone()
    }

    /// The key that signs, in PEM: for a real control plane that is to use the same authority.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// A server's certificate.
    ///
    /// # Errors
    /// A name that is none.
    pub fn server(&self, names: &[&str], addresses: &[IpAddr]) -> Result<Pair> {
        let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())?;
        params.subject_alt_names.extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
        params.distinguished_name = name("kube-apiserver", None);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(params, YEAR)
    }

    /// A client's certificate: user name and group (one: rcgen writes each kind of name once; empty for none).
    ///
    /// # Errors
    /// No randomness.
    pub fn client(&self, user: &str, group: &str, lifetime: Duration) -> Result<Pair> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(user, Some(group).filter(|group| !group.is_empty()));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params, lifetime)
    }

    fn issue(&self, mut params: CertificateParams, lifetime: Duration) -> Result<Pair> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.use_authority_key_identifier_extension = true;
        valid_for(&mut params, LONG_AGO, lifetime);
        let key = KeyPair::generate().context("generating a key")?;
        let certificate = params.signed_by(&key, &self.issuer).context("signing a certificate")?;
        Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// Signs a request (`spec.request`: base64 of PEM) for a signer of Kubernetes: the certificate in PEM, valid since
    /// `backdated` before now, against clocks that differ.
    ///
    /// # Errors
    /// The request cannot be read, or the signer would not sign it.
    pub fn sign(&self, spec: &Value, backdated: Duration, lifetime: Duration) -> Result<String> {
        let request = decode_request(spec)?;
        let mut params = CertificateSigningRequestParams::from_der(&request).context("reading the request")?;
        params.params.extended_key_usages = match spec["signerName"].as_str().unwrap_or_default() {
            "kubernetes.io/kubelet-serving" => vec![ExtendedKeyUsagePurpose::ServerAuth],
            _ => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.params.use_authority_key_identifier_extension = true;
        let asked = spec["expirationSeconds"].as_u64().map(Duration::from_secs);
        valid_for(&mut params.params, backdated, asked.map_or(lifetime, |asked| asked.min(lifetime)));
        Ok(params.signed_by(&self.issuer).context("signing the request")?.pem())
    }
}

fn name(common_name: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name.push(DnType::CommonName, common_name);
    name
}

/// For the authority and what the kit gives out: valid as well for a server whose clock a test sets back.
const LONG_AGO: Duration = Duration::from_secs(3600);

fn valid_for(params: &mut CertificateParams, since: Duration, lifetime: Duration) {
    let now = std::time::SystemTime::now();
    params.not_before = (now - since).into();
    params.not_after = (now + lifetime).into();
}

fn decode_request(spec: &Value) -> Result<CertificateSigningRequestDer<'static>> {
    use rustls::pki_types::pem::PemObject as _;
    let text = spec["request"].as_str().context("the request is missing")?;
    let pem = base64::engine::general_purpose::STANDARD.decode(text).context("the request is no base64")?;
    CertificateSigningRequestDer::from_pem_slice(&pem)
        .map_err(|error| anyhow::anyhow!("the request is no PEM: {error}"))
}

/// A new key and a signing request of a node: `spec.request` (base64 of PEM) and the key in PEM. With addresses it is
/// one for serving.
///
/// # Errors
/// No randomness.
pub fn node_request(node: &str, addresses: &[IpAddr]) -> Result<(String, String)> {
    let key = KeyPair::generate().context("generating a key")?;
    let mut params = CertificateParams::default();
    params.distinguished_name = name(&format!("system:node:{node}"), Some("system:nodes"));
    params.subject_alt_names.extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
    let pem = params.serialize_request(&key).context("signing the request")?.pem()?;
    Ok((base64::engine::general_purpose::STANDARD.encode(pem), key.serialize_pem()))
}

/// The certificate of a signed request, in PEM.
///
/// # Errors
/// There is none.
pub fn decode_certificate(status: &Value) -> Result<String> {
    let text = status["certificate"].as_str().context("there is no certificate")?;
    let pem = base64::engine::general_purpose::STANDARD.decode(text).context("the certificate is no base64")?;
    String::from_utf8(pem).context("the certificate is no PEM")
}

/// Subject and names of a signing request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Requested {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub dns_names: Vec<String>,
    pub addresses: usize,
}

/// What a signing request asks for.
///
/// # Errors
/// It cannot be read.
pub fn requested(spec: &Value) -> Result<Requested> {
    let der = decode_request(spec)?;
    let (_, request) = X509CertificationRequest::from_der(&der).context("reading the request")?;
    let subject = &request.certification_request_info.subject;
    let mut seen = Requested {
        common_name: subject.iter_common_name().filter_map(|name| name.as_str().ok()).collect(),
        organizations: subject.iter_organization().filter_map(|name| name.as_str().ok()).map(str::to_owned).collect(),
        ..Requested::default()
    };
    for extension in request.requested_extensions().into_iter().flatten() {
        if let ParsedExtension::SubjectAlternativeName(names) = extension {
            for name in &names.general_names {
                match name {
                    x509_parser::extensions::GeneralName::DNSName(name) => seen.dns_names.push((*name).to_owned()),
                    x509_parser::extensions::GeneralName::IPAddress(_) => seen.addresses += 1,
                    _ => {}
                }
            }
        }
    }
    Ok(seen)
}

/// The user that a (verified) client certificate names: common name and organizations.
pub fn user_of(certificate: &CertificateDer<'_>) -> Option<User> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let subject = parsed.subject();
    let common_name: String = subject.iter_common_name().filter_map(|name| name.as_str().ok()).next()?.to_owned();
    let groups: Vec<&str> = subject.iter_organization().filter_map(|name| name.as_str().ok()).collect();
    Some(User::new(&common_name, &groups))
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject as _;
    use serde_json::json;

    use super::*;

    fn user(pem: &str) -> User {
        user_of(&CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn a_client_certificate_names_its_user() {
        let authority = Authority::new().unwrap();
        let pair = authority.client("system:node:a", "system:nodes", YEAR).unwrap();
        let user = user(&pair.certificate);
        assert_eq!(user.as_node(), Some("a"));
    }

    #[test]
    fn an_authority_that_is_read_again_is_the_same() {
        let authority = Authority::new().unwrap();
        let again = Authority::load(&authority.pem(), &authority.key_pem()).unwrap();
        assert_eq!((again.pem(), again.der()), (authority.pem(), authority.der()));
        let pair = again.client("system:node:a", "system:nodes", YEAR).unwrap();
        let der = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
        let (_, issued) = X509Certificate::from_der(&der).unwrap();
        let (_, own) = X509Certificate::from_der(authority.der.as_ref()).unwrap();
        assert_eq!(issued.issuer(), own.subject());
        assert!(Authority::load("nothing", &authority.key_pem()).is_err());
    }

    #[test]
    fn requests_are_read_and_signed() {
        let authority = Authority::new().unwrap();
        let (request, _) = node_request("a", &["10.0.0.1".parse().unwrap()]).unwrap();
        let spec = json!({"request": request, "signerName": "kubernetes.io/kube-apiserver-client-kubelet"});
        let seen = requested(&spec).unwrap();
        assert_eq!((seen.common_name.as_str(), seen.addresses), ("system:node:a", 1));
        assert_eq!(user(&authority.sign(&spec, LONG_AGO, YEAR).unwrap()).as_node(), Some("a"));
        assert!(authority.sign(&json!({"request": "AAAA"}), LONG_AGO, YEAR).is_err());
    }
}
