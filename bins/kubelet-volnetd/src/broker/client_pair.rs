//! Whether a pair that is to become the node's credential is this node's: `docs/decisions/0054-where-x-509-is-parsed.md`.
//!
//! No chain is checked: which authority may sign is the API server's matter, and another one than the configured client CA may.
//! What nobody but itself has signed is refused, because no server takes that.

use bulkhead_types::NodeName;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;
use x509_parser::time::ASN1Time;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// The group of all nodes (upstream `user.NodesGroup`).
const NODES: &str = "system:nodes";

/// What is wrong with a pair. No message shows what it holds but its subject.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientPairError {
    #[error("certificates: the first block is no X.509 certificate")]
    NoCertificate,
    #[error("private_key is no key of a known kind (ECDSA, Ed25519, RSA)")]
    NoKey,
    #[error("private_key is not the key of the certificate")]
    OtherKey,
    #[error("certificates: the subject is {found}, it may be CN=system:node:{node} with O={NODES} alone")]
    OtherSubject { found: String, node: NodeName },
    #[error("certificates: the certificate names itself as its issuer, and no authority")]
    SelfSigned,
    #[error("certificates: the certificate is not for client authentication (extended key usage clientAuth)")]
    NotForClients,
    #[error("certificates: the certificate is valid from {from} to {until} only, which is not now")]
    NotValidNow { from: String, until: String },
}

/// Checks the first of `certificates` (PEM, the leaf comes first) and the key (PEM) against the node's name and a time, which is
/// in seconds since 1970.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(certificates: &[u8], private_key: &[u8], node: &NodeName, now: i64) -> Result<(), ClientPairError> {
    let leaf = CertificateDer::pem_slice_iter(certificates).next().and_then(Result::ok);
    let leaf = leaf.ok_or(ClientPairError::NoCertificate)?;
    let (_, leaf) = X509Certificate::from_der(&leaf).map_err(|_| ClientPairError::NoCertificate)?;
    let key = PrivateKeyDer::from_pem_slice(private_key).map_err(|_| ClientPairError::NoKey)?;
    let key = any_supported_type(&key).map_err(|_| ClientPairError::NoKey)?;
    let public_key = key.public_key().ok_or(ClientPairError::NoKey)?;
    if public_key.as_ref() != leaf.public_key().raw {
        return Err(ClientPairError::OtherKey);
    }
    if !is_of(leaf.subject(), node) {
        return Err(ClientPairError::OtherSubject {
            found: format!("{:?}", leaf.subject().to_string()),
            node: node.clone(),
        });
    }
    if leaf.issuer() == leaf.subject() {
        return Err(ClientPairError::SelfSigned);
    }
    let usages = leaf.extended_key_usage().ok().flatten();
    if !usages.is_some_and(|usages| usages.value.client_auth) {
        return Err(ClientPairError::NotForClients);
    }
    let valid = leaf.validity();
    let is_valid = ASN1Time::from_timestamp(now).is_ok_and(|now| valid.is_valid_at(now));
    if !is_valid {
        let (from, until) = (valid.not_before.to_string(), valid.not_after.to_string());
        return Err(ClientPairError::NotValidNow { from, until });
    }
    Ok(())
}

/// One common name, that of the node, and one organization, the group of nodes: a user's names and groups are made of these.
fn is_of(subject: &X509Name<'_>, node: &NodeName) -> bool {
    fn only<'a>(mut values: impl Iterator<Item = &'a AttributeTypeAndValue<'a>>) -> Option<&'a str> {
        let value = values.next()?.as_str().ok();
        if values.next().is_some() { None } else { value }
    }
    only(subject.iter_common_name()).and_then(|name| name.strip_prefix("system:node:")) == Some(node.as_str())
        && only(subject.iter_organization()) == Some(NODES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{
        Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, PKCS_ED25519, date_time_ymd,
    };

    use super::*;

    const YEAR: i64 = 365 * 24 * 3600;
    /// 2026-06-01.
    const NOW: i64 = 1_780_272_000;

    fn node() -> NodeName {
        NodeName::parse("a.example").unwrap()
    }

    fn params(names: &[&str], groups: &[&str]) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        names.iter().for_each(|name| params.distinguished_name.push(DnType::CommonName, *name));
        groups.iter().for_each(|group| params.distinguished_name.push(DnType::OrganizationName, *group));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2027, 1, 1));
        params
    }

    fn good() -> CertificateParams {
        params(&["system:node:a.example"], &[NODES])
    }

    fn signed(params: &CertificateParams, key: &KeyPair) -> Certificate {
        let authority = Issuer::new(self::params(&["an authority"], &[]), KeyPair::generate().unwrap());
        params.signed_by(key, &authority).unwrap()
    }

    fn checked(params: &CertificateParams, key: &KeyPair, shown: &KeyPair, now: i64) -> Result<(), ClientPairError> {
        let certificate = signed(params, key).pem();
        check(certificate.as_bytes(), shown.serialize_pem().as_bytes(), &node(), now)
    }

    #[test]
    fn a_nodes_own_pair_is_taken() {
        for key in [KeyPair::generate().unwrap(), KeyPair::generate_for(&PKCS_ED25519).unwrap()] {
            assert_eq!(checked(&good(), &key, &key, NOW), Ok(()));
        }
        // Whatever follows the leaf is the server's to judge.
        let key = KeyPair::generate().unwrap();
        let leaf = signed(&good(), &key).pem();
        let other = params(&["ca"], &[]).self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
        let key = key.serialize_pem();
        assert_eq!(check([&*leaf, &*other].concat().as_bytes(), key.as_bytes(), &node(), NOW), Ok(()));
        let swapped = check([&*other, &*leaf].concat().as_bytes(), key.as_bytes(), &node(), NOW);
        assert_eq!(swapped, Err(ClientPairError::OtherKey), "the leaf comes first");
    }

    #[test]
    fn anything_else_is_refused() {
        let key = KeyPair::generate().unwrap();
        assert_eq!(checked(&good(), &key, &KeyPair::generate().unwrap(), NOW), Err(ClientPairError::OtherKey));
        for (names, groups) in [
            (&["system:node:b"][..], &[NODES][..]),
            (&["system:node:a.example.com"], &[NODES]),
            (&["a.example"], &[NODES]),
            (&["system:admin"], &[NODES]),
            (&["system:node:a.example"], &[]),
            (&["system:node:a.example"], &["system:masters"]),
            (&[], &[NODES]),
        ] {
            let found = checked(&params(names, groups), &key, &key, NOW);
            assert!(matches!(found, Err(ClientPairError::OtherSubject { .. })), "{names:?} {groups:?}: {found:?}");
        }
        for usages in [vec![], vec![ExtendedKeyUsagePurpose::ServerAuth]] {
            let mut params = good();
            params.extended_key_usages = usages;
            assert_eq!(checked(&params, &key, &key, NOW), Err(ClientPairError::NotForClients));
        }
        for then in [NOW - YEAR, NOW + YEAR, i64::MIN, i64::MAX] {
            assert!(matches!(checked(&good(), &key, &key, then), Err(ClientPairError::NotValidNow { .. })), "{then}");
        }
        let own = good().self_signed(&key).unwrap().pem();
        let (certificate, key) = (signed(&good(), &key).pem(), key.serialize_pem());
        let block = |label: &str| format!("-----BEGIN {label}-----\nTUlJ\n-----END {label}-----\n");
        let at = |certificate: &str, key: &str| check(certificate.as_bytes(), key.as_bytes(), &node(), NOW);
        assert_eq!(at(&own, &key), Err(ClientPairError::SelfSigned));
        assert_eq!(at(&block("CERTIFICATE"), &key), Err(ClientPairError::NoCertificate));
        assert_eq!(at("", &key), Err(ClientPairError::NoCertificate));
        assert_eq!(at(&certificate, &block("EC PRIVATE KEY")), Err(ClientPairError::NoKey));
        assert_eq!(at(&certificate, ""), Err(ClientPairError::NoKey));
    }

    proptest! {
        #[test]
        fn changed_bytes_never_make_another_subject(at in 0usize..600, value: u8) {
            let key = KeyPair::generate().unwrap();
            let mut der = signed(&params(&["system:node:b.example"], &[NODES]), &key).der().to_vec();
            let at = at % der.len();
            // `b` into `a` is what makes the name ours.
            prop_assume!(!(der[at] == b'b' && value == b'a'));
            der[at] = value;
            let pem = pem_of(&der);
            prop_assert!(check(pem.as_bytes(), key.serialize_pem().as_bytes(), &node(), NOW).is_err());
        }
    }

    fn pem_of(der: &[u8]) -> String {
        use base64::Engine as _;
        let body = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
    }
}
