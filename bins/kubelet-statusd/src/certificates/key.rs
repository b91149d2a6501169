//! Keys of the node and what is asked with them: on the curve P-256 as upstream's, in upstream's form on the disk (SEC 1), and
//! the name of a bootstrap request, which is the same for the same key after a restart.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _, SanType,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest as _, Sha512_256};

use super::leaf::Subject;

/// The OID of P-256 (prime256v1), in DER.
const P256: [u8; 10] = [0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
/// What comes before the private number in PKCS #8 with the public key (RFC 5958, RFC 5915).
const PKCS8: [u8; 36] = [
    0x30, 0x81, 0x87, 0x02, 0x01, 0x00, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08,
    0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x04, 0x6d, 0x30, 0x6b, 0x02, 0x01, 0x01, 0x04, 0x20,
];
/// The same in SEC 1, where the curve follows the number.
const SEC1: [u8; 7] = [0x30, 0x77, 0x02, 0x01, 0x01, 0x04, 0x20];
/// Before the public key in both.
const PUBLIC: [u8; 5] = [0xa1, 0x44, 0x03, 0x42, 0x00];

/// Why there is no key or no request.
#[derive(Debug, thiserror::Error)]
#[error("the key or its request cannot be made")]
pub struct KeyError(#[from] rcgen::Error);

/// A private key. It is not printed.
pub struct Key(KeyPair);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(key)")
    }
}

impl Key {
    /// # Errors
    /// No randomness.
    pub fn generate() -> Result<Self, KeyError> {
        Ok(Key(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?))
    }

    /// Reads a key from PEM. None: it is no key of this curve.
    pub fn from_pem(pem: &[u8]) -> Option<Self> {
        let pkcs8 = match PrivateKeyDer::from_pem_slice(pem).ok()? {
            PrivateKeyDer::Pkcs8(der) => der.secret_pkcs8_der().to_vec(),
            PrivateKeyDer::Sec1(der) => to_pkcs8(der.secret_sec1_der())?,
            _ => return None,
        };
        let key = KeyPair::try_from(pkcs8.as_slice()).ok()?;
        (key.algorithm() == &PKCS_ECDSA_P256_SHA256).then_some(Key(key))
    }

    /// In PEM, as it is kept.
    pub fn to_pem(&self) -> String {
        match to_sec1(self.0.serialized_der()) {
            Some(der) => pem("EC PRIVATE KEY", &der),
            None => self.0.serialize_pem(),
        }
    }

    /// The public key as certificates have it, DER.
    pub fn public(&self) -> Vec<u8> {
        self.0.subject_public_key_info()
    }

    /// A signing request in PEM.
    ///
    /// # Errors
    /// A name that cannot stand in a certificate.
    pub fn request(&self, subject: &Subject) -> Result<String, KeyError> {
        let mut params = CertificateParams::default();
        let mut name = DistinguishedName::new();
        // Organisations come before the name; of each kind the library writes one.
        for organization in &subject.organizations {
            name.push(DnType::OrganizationName, organization.as_str());
        }
        name.push(DnType::CommonName, subject.common_name.as_str());
        params.distinguished_name = name;
        for dns_name in &subject.dns_names {
            params.subject_alt_names.push(SanType::DnsName(dns_name.as_str().try_into()?));
        }
        params.subject_alt_names.extend(subject.addresses.iter().map(|address| SanType::IpAddress(*address)));
        Ok(params.serialize_request(&self.0)?.pem()?)
    }

    /// Whether the first certificate of a text in PEM is this key's.
    pub fn fits(&self, certificates: &[u8]) -> bool {
        let Some(Ok(der)) = CertificateDer::pem_slice_iter(certificates).next() else { return false };
        x509_parser::parse_x509_certificate(&der)
            .is_ok_and(|(_, certificate)| certificate.public_key().raw == self.public())
    }
}

/// The name of a bootstrap request (upstream `pkg/kubelet/certificate/bootstrap`, digestedName).
pub fn request_name(key: &Key, subject: &Subject, usages: &[&str]) -> String {
    let mut hash = Sha512_256::new();
    let mut write = |part: &[u8]| {
        hash.update(URL_SAFE_NO_PAD.encode(part));
        hash.update("|");
    };
    write(&key.public());
    write(subject.common_name.as_bytes());
    subject.organizations.iter().for_each(|organization| write(organization.as_bytes()));
    usages.iter().for_each(|usage| write(usage.as_bytes()));
    format!("node-csr-{}", URL_SAFE_NO_PAD.encode(hash.finalize()))
}

fn to_pkcs8(sec1: &[u8]) -> Option<Vec<u8>> {
    let (number, rest) = sec1.strip_prefix(&SEC1)?.split_at_checked(32)?;
    let public = rest.strip_prefix(&[0xa0, 0x0a])?.strip_prefix(&P256)?;
    (public.starts_with(&PUBLIC) && public.len() == 70).then(|| [&PKCS8, number, public].concat())
}

fn to_sec1(pkcs8: &[u8]) -> Option<Vec<u8>> {
    let (number, public) = pkcs8.strip_prefix(&PKCS8)?.split_at_checked(32)?;
    (public.starts_with(&PUBLIC) && public.len() == 70)
        .then(|| [&SEC1, number, &[0xa0, 0x0a], P256.as_slice(), public].concat())
}

fn pem(label: &str, der: &[u8]) -> String {
    let base64 = STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    let mut rest = base64.as_str();
    while let Some((line, after)) = rest.split_at_checked(64) {
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    if !rest.is_empty() {
        text.push_str(rest);
        text.push('\n');
    }
    text + &format!("-----END {label}-----\n")
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateSigningRequestDer;
    use x509_parser::prelude::{FromDer as _, X509CertificationRequest};

    use super::*;
    use crate::certificates::leaf;

    /// `openssl ecparam -name prime256v1 -genkey -noout`, a key of nothing.
    const OPENSSL: &str = "-----BEGIN EC PRIVATE KEY-----\n\
        MHcCAQEEIAkzf1K60D9PZ7dFgIJm2H0JhE9dLIIJm0oTqs7tpt6YoAoGCCqGSM49\n\
        AwEHoUQDQgAEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n\
        AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==\n-----END EC PRIVATE KEY-----\n";

    #[test]
    fn a_key_is_kept_in_upstreams_form_and_read_in_both() {
        let key = Key::generate().unwrap();
        let kept = key.to_pem();
        assert!(kept.starts_with("-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEI"), "SEC 1 with its curve");
        assert!(kept.lines().all(|line| line.len() <= 64));
        let read = Key::from_pem(kept.as_bytes()).unwrap();
        assert_eq!((read.public(), read.to_pem()), (key.public(), kept));
        let other = Key::from_pem(key.0.serialize_pem().as_bytes()).unwrap();
        assert_eq!(other.public(), key.public());
        assert!(Key::from_pem(OPENSSL.as_bytes()).is_none(), "a number and a point that do not belong together");
        assert!(Key::from_pem(b"").is_none() && Key::from_pem(b"-----BEGIN EC PRIVATE KEY-----\nAAAA\n").is_none());
    }

    #[test]
    fn a_request_asks_for_the_node() {
        let key = Key::generate().unwrap();
        let mut subject = leaf::of_node("a");
        subject.dns_names.insert("a.example".to_owned());
        subject.addresses.insert("192.0.2.1".parse().unwrap());
        let pem = key.request(&subject).unwrap();
        let der = CertificateSigningRequestDer::from_pem_slice(pem.as_bytes()).unwrap();
        let (_, request) = X509CertificationRequest::from_der(&der).unwrap();
        let info = &request.certification_request_info;
        assert_eq!(info.subject.to_string(), "O=system:nodes, CN=system:node:a");
        assert_eq!(info.subject_pki.raw, key.public());
        assert!(request.requested_extensions().unwrap().next().is_some());
        let plain = key.request(&leaf::of_node("a")).unwrap();
        let der = CertificateSigningRequestDer::from_pem_slice(plain.as_bytes()).unwrap();
        let (_, request) = X509CertificationRequest::from_der(&der).unwrap();
        assert!(request.requested_extensions().is_none_or(|mut extensions| extensions.next().is_none()));
    }

    #[test]
    fn a_name_belongs_to_the_key_and_what_is_asked() {
        let (key, subject) = (Key::generate().unwrap(), leaf::of_node("a"));
        let usages = ["digital signature", "client auth"];
        let name = request_name(&key, &subject, &usages);
        assert_eq!(name, request_name(&Key::from_pem(key.to_pem().as_bytes()).unwrap(), &subject, &usages));
        assert_eq!((name.len(), &name[..9]), (9 + 43, "node-csr-"));
        assert_ne!(name, request_name(&Key::generate().unwrap(), &subject, &usages));
        assert_ne!(name, request_name(&key, &leaf::of_node("b"), &usages));
        assert_ne!(name, request_name(&key, &subject, &usages[..1]));
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(0_u8.., 0..200)) {
            let _ = Key::from_pem(&bytes);
            let _ = to_pkcs8(&bytes);
            let _ = to_sec1(&bytes);
        }
    }
}
