//! What a certificate says that decides about its renewal: when it is good, and whose it is.

use std::collections::BTreeSet;
use std::net::IpAddr;

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::X509Certificate;

/// Whose a certificate is, or is to be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subject {
    pub common_name: String,
    pub organizations: BTreeSet<String>,
    pub dns_names: BTreeSet<String>,
    pub addresses: BTreeSet<IpAddr>,
}

/// A node's user name and group, which its certificates carry.
pub fn of_node(name: &str) -> Subject {
    Subject {
        common_name: format!("system:node:{name}"),
        organizations: BTreeSet::from(["system:nodes".to_owned()]),
        ..Subject::default()
    }
}

/// A certificate with those that signed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    pub subject: Subject,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    /// When the first of all of them ends.
    pub first_end: Timestamp,
}

impl Chain {
    /// Reads the certificates of a text in PEM; what else is in it is passed over. None: there is none that can be read.
    pub fn parse(pem: &[u8]) -> Option<Self> {
        let mut chain: Option<Chain> = None;
        for der in CertificateDer::pem_slice_iter(pem) {
            let der = der.ok()?;
            let (_, certificate) = x509_parser::parse_x509_certificate(&der).ok()?;
            let second = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
            let (not_before, not_after) =
                (second(certificate.validity().not_before)?, second(certificate.validity().not_after)?);
            match &mut chain {
                None => {
                    let subject = subject(&certificate);
                    chain = Some(Chain { subject, not_before, not_after, first_end: not_after });
                }
                Some(chain) => chain.first_end = chain.first_end.min(not_after),
            }
        }
        chain
    }
}

fn subject(certificate: &X509Certificate<'_>) -> Subject {
    let name = certificate.subject();
    let mut subject = Subject {
        common_name: name
            .iter_common_name()
            .filter_map(|name| name.as_str().ok())
            .next()
            .unwrap_or_default()
            .to_owned(),
        organizations: name.iter_organization().filter_map(|name| name.as_str().ok()).map(str::to_owned).collect(),
        ..Subject::default()
    };
    if let Ok(Some(names)) = certificate.subject_alternative_name() {
        for name in &names.value.general_names {
            match name {
                GeneralName::DNSName(name) => drop(subject.dns_names.insert((*name).to_owned())),
                GeneralName::IPAddress(bytes) => drop(address(bytes).map(|address| subject.addresses.insert(address))),
                _ => {}
            }
        }
    }
    subject
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::tls::pair;

    #[test]
    fn a_certificate_and_what_signed_it() {
        let addresses = ["192.0.2.7".parse().unwrap(), "fd00::7".parse().unwrap()];
        let made = pair::self_signed("node-a", &addresses).unwrap();
        let chain = Chain::parse(made.certificates.as_bytes()).unwrap();
        assert_eq!(chain.subject.dns_names, BTreeSet::from(["node-a".to_owned()]));
        assert_eq!(chain.subject.addresses, BTreeSet::from(addresses));
        assert!(chain.subject.common_name.starts_with("node-a@") && chain.subject.organizations.is_empty());
        assert_eq!(chain.first_end, chain.not_after);
        assert!(chain.not_before < chain.not_after);
        // The key beside it is passed over; without a certificate there is nothing.
        let both = made.key.clone() + &made.certificates;
        assert_eq!(Chain::parse(both.as_bytes()), Some(chain));
        for nothing in [made.key.as_str(), "", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert_eq!(Chain::parse(nothing.as_bytes()), None);
        }
    }
}
