//! Who a client certificate says that its bearer is, and whether it is to be believed (upstream
//! `apiserver/pkg/authentication/request/x509`).

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{DistinguishedName, RootCertStore};
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer as _, ParsedExtension, X509Certificate, X509Name};

use super::identity::Identity;

/// Under this name the certificate that proved who somebody is travels with them.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// The part of a subject that is a user's uid (`apimachinery/pkg/apis/asn1`).
const UID: &str = "1.3.6.1.4.1.57683.2";

/// Why a bundle cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("has a block that is no PEM")]
    Pem,
    #[error("has no certificate in PEM that can be used")]
    Empty,
    #[error("cannot be used")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// Why a certificate proves nothing.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("verifying certificate SN={serial} failed")]
    Unverified { serial: String, source: rustls::Error },
    #[error("the certificate cannot be read")]
    Malformed,
    #[error("the certificate's subject has not exactly one uid that is text")]
    Uid,
}

/// The authorities whose clients are believed.
#[derive(Debug)]
pub struct ClientAuthority {
    verifier: Arc<dyn ClientCertVerifier>,
    certificates: Vec<CertificateDer<'static>>,
    subjects: Vec<DistinguishedName>,
    reads_uids: bool,
}

impl ClientAuthority {
    /// `pem`: one or more certificates. `reads_uids`: gate AllowParsingUserUIDFromCertAuth; without it nobody has a uid.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn from_pem(pem: &[u8], provider: &Arc<CryptoProvider>, reads_uids: bool) -> Result<Self, AuthorityError> {
        let all: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|_| AuthorityError::Pem)?;
        let mut roots = RootCertStore::empty();
        let (_, unusable) = roots.add_parsable_certificates(all.iter().cloned());
        if unusable > 0 {
            tracing::warn!(unusable, "certificates of clientCAFile are left out: they cannot be used");
        }
        if roots.is_empty() {
            return Err(AuthorityError::Empty);
        }
        let subjects = roots.subjects();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
        Ok(ClientAuthority { verifier, certificates: all, subjects, reads_uids })
    }

    /// Names of the authorities, for the handshake's hint.
    pub fn subjects(&self) -> &[DistinguishedName] {
        &self.subjects
    }

    /// Whom the certificate names: the common name and the organizations. None: nobody (no common name). `chain`: what
    /// the client sent, its own first.
    ///
    /// # Errors
    /// It does not lead to one of the authorities, is not valid now, or is not for clients.
    pub fn identify(&self, chain: &[CertificateDer<'_>]) -> Result<Option<Identity>, CertificateError> {
        let Some((own, between)) = chain.split_first() else { return Ok(None) };
        let (_, parsed) = X509Certificate::from_der(own).map_err(|_| CertificateError::Malformed)?;
        let now = UnixTime::now();
        let verified = if self.certificates.contains(own) {
            of_the_bundle(&parsed, now).map_err(rustls::Error::from)
        } else {
            self.verifier.verify_client_cert(own, between, now).map(drop)
        };
        verified.map_err(|source| CertificateError::Unverified { serial: parsed.raw_serial_as_string(), source })?;
        identity(own, &parsed, self.reads_uids)
    }
}

/// A certificate that is itself in the bundle needs no other to vouch for it, be it an authority's or not (Go's
/// `Certificate.Verify`; webpki takes no authority's for a client's).
fn of_the_bundle(certificate: &X509Certificate<'_>, now: UnixTime) -> Result<(), rustls::CertificateError> {
    let unread = |extension: &ParsedExtension<'_>| {
        matches!(
            extension,
            ParsedExtension::UnsupportedExtension { .. }
                | ParsedExtension::ParseError { .. }
                | ParsedExtension::Unparsed
        )
    };
    if certificate.extensions().iter().any(|extension| extension.critical && unread(extension.parsed_extension())) {
        return Err(rustls::CertificateError::UnhandledCriticalExtension);
    }
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now < certificate.validity().not_before.timestamp() {
        return Err(rustls::CertificateError::NotValidYet);
    }
    if now > certificate.validity().not_after.timestamp() {
        return Err(rustls::CertificateError::Expired);
    }
    match certificate.extended_key_usage() {
        Ok(None) => Ok(()),
        Ok(Some(usage)) if usage.value.any || usage.value.client_auth => Ok(()),
        Ok(Some(_)) => Err(rustls::CertificateError::InvalidPurpose),
        Err(_) => Err(rustls::CertificateError::BadEncoding),
    }
}

fn identity(
    der: &CertificateDer<'_>,
    parsed: &X509Certificate<'_>,
    reads_uids: bool,
) -> Result<Option<Identity>, CertificateError> {
    let subject = parsed.subject();
    // Go keeps the last of several.
    let name = subject.iter_common_name().last().and_then(|name| name.as_str().ok()).unwrap_or_default();
    if name.is_empty() {
        return Ok(None);
    }
    let uid = if reads_uids { uid(subject)? } else { "" };
    let digest: String = Sha256::digest(der).iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Some(Identity {
        name: name.to_owned(),
        uid: uid.to_owned(),
        groups: subject.iter_organization().filter_map(|part| part.as_str().ok()).map(str::to_owned).collect(),
        extra: BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={digest}")])]),
    }))
}

/// Empty: the subject names none.
fn uid<'s>(subject: &'s X509Name<'_>) -> Result<&'s str, CertificateError> {
    let mut uids = subject.iter_attributes().filter(|part| part.attr_type().to_id_string() == UID);
    match (uids.next(), uids.next()) {
        (None, _) => Ok(""),
        (Some(one), None) => one.as_str().ok().filter(|uid| !uid.is_empty()).ok_or(CertificateError::Uid),
        (Some(_), Some(_)) => Err(CertificateError::Uid),
    }
}

/// Seconds until the certificate ends; negative when it has.
pub fn seconds_left(certificate: &CertificateDer<'_>, now: jiff::Timestamp) -> Option<f64> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let ends = jiff::Timestamp::from_second(parsed.validity().not_after.timestamp()).ok()?;
    Some(ends.duration_since(now).as_secs_f64())
}

#[cfg(test)]
#[path = "x509_tests.rs"]
mod tests;
