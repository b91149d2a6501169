//! Certificates of every kind of client, against authorities.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::crypto::ring;

use super::*;

struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    der: CertificateDer<'static>,
}

fn ca(name: &str, parent: Option<&Ca>) -> Ca {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate().unwrap();
    let certificate = match parent {
        Some(parent) => params.signed_by(&key, &parent.issuer).unwrap(),
        None => params.self_signed(&key).unwrap(),
    };
    Ca { pem: certificate.pem(), der: certificate.der().clone(), issuer: Issuer::new(params, key) }
}

fn client(ca: &Ca, change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    params.distinguished_name.push(DnType::CommonName, "admin");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    change(&mut params);
    params.signed_by(&KeyPair::generate().unwrap(), &ca.issuer).unwrap().der().clone()
}

fn authority(pem: &str) -> ClientAuthority {
    authority_with(pem, true)
}

fn authority_with(pem: &str, reads_uids: bool) -> ClientAuthority {
    ClientAuthority::from_pem(pem.as_bytes(), &Arc::new(ring::default_provider()), reads_uids).unwrap()
}

#[test]
fn a_certificate_names_its_user_and_groups() {
    let ca = ca("ca", None);
    let certificate = client(&ca, |_| {});
    let identity = authority(&ca.pem).identify(std::slice::from_ref(&certificate)).unwrap().unwrap();
    assert_eq!((identity.name.as_str(), identity.groups.as_slice()), ("admin", &["system:masters".to_owned()][..]));
    assert_eq!(identity.uid, "");
    let id = &identity.extra[CREDENTIAL_ID][0];
    assert!(id.starts_with("X509SHA256=") && id.len() == "X509SHA256=".len() + 64, "{id}");
    let left = seconds_left(&certificate, jiff::Timestamp::now()).unwrap();
    assert!(left > 0.0);
    let uid = rcgen::DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
    let with_uid = client(&ca, |params| params.distinguished_name.push(uid.clone(), "u-1"));
    for (reads_uids, uid) in [(true, "u-1"), (false, "")] {
        let found = authority_with(&ca.pem, reads_uids).identify(std::slice::from_ref(&with_uid)).unwrap().unwrap();
        assert_eq!(found.uid, uid);
    }
    // One that is no uid is none where nobody reads it.
    let empty = client(&ca, |params| params.distinguished_name.push(uid, ""));
    assert!(authority(&ca.pem).identify(std::slice::from_ref(&empty)).is_err());
    assert_eq!(authority_with(&ca.pem, false).identify(&[empty]).unwrap().unwrap().name, "admin");
    let nameless = client(&ca, |params| params.distinguished_name.remove(DnType::CommonName).then_some(()).unwrap());
    assert_eq!(authority(&ca.pem).identify(&[nameless]).unwrap(), None);
    let everyday = client(&ca, |params| params.extended_key_usages.clear());
    assert!(authority(&ca.pem).identify(&[everyday]).unwrap().is_some(), "without a purpose it is for every one");
}

#[test]
fn what_is_not_to_be_believed() {
    let (trusted, other) = (ca("ca", None), ca("ca", None));
    let authority = authority(&trusted.pem);
    let now = SystemTime::now();
    let day = Duration::from_secs(86400);
    let bad = [
        ("another authority of the same name", client(&other, |_| {})),
        ("expired", client(&trusted, |params| params.not_after = (now - day).into())),
        ("not yet valid", client(&trusted, |params| params.not_before = (now + day).into())),
        (
            "for servers",
            client(&trusted, |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]),
        ),
        ("no certificate", CertificateDer::from(vec![0x30, 0x03, 0x02, 0x01, 0x01])),
    ];
    for (what, certificate) in bad {
        let error = authority.identify(&[certificate]).expect_err(what);
        assert!(!bulkhead_types::chain(&error).contains("admin"), "{what}: {error}");
    }
    assert_eq!(authority.identify(&[]).unwrap(), None);
}

#[test]
fn the_clients_own_certificates_in_between_count() {
    let root = ca("root", None);
    let between = ca("between", Some(&root));
    let certificate = client(&between, |_| {});
    let authority = authority(&root.pem);
    assert!(authority.identify(std::slice::from_ref(&certificate)).is_err());
    assert!(authority.identify(&[certificate, between.der.clone()]).unwrap().is_some());
}

#[test]
fn bundles() {
    let (one, two) = (ca("one", None), ca("two", None));
    let both = authority(&format!("{}{}", one.pem, two.pem));
    assert_eq!(both.subjects().len(), 2);
    assert!(both.identify(&[client(&two, |_| {})]).unwrap().is_some());
    let of = |pem: &str| ClientAuthority::from_pem(pem.as_bytes(), &Arc::new(ring::default_provider()), true);
    assert!(matches!(of(""), Err(AuthorityError::Empty)));
    assert!(matches!(of("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"), Err(AuthorityError::Pem)));
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(matches!(of(garbage), Err(AuthorityError::Empty)));
}

#[test]
fn a_certificate_of_the_bundle_vouches_for_itself() {
    let (now, day) = (SystemTime::now(), Duration::from_secs(86400));
    let own = |change: &dyn Fn(&mut CertificateParams)| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "admin");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap()
    };
    let critical = || {
        let mut extension = rcgen::CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 57683, 99], vec![5, 0]);
        extension.set_criticality(true);
        extension
    };
    type Case<'a> = (&'a str, bool, &'a dyn Fn(&mut CertificateParams));
    let cases: [Case<'_>; 8] = [
        ("an authority's", true, &|_| {}),
        ("nobody's authority", true, &|params| params.is_ca = IsCa::ExplicitNoCa),
        ("for clients", true, &|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]),
        ("for everything", true, &|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Any]),
        ("for servers", false, &|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]),
        ("expired", false, &|params| params.not_after = (now - day).into()),
        ("not yet valid", false, &|params| params.not_before = (now + day).into()),
        ("with what nobody knows", false, &|params| params.custom_extensions = vec![critical()]),
    ];
    for (what, believed, change) in cases {
        let certificate = own(change);
        let found = authority(&certificate.pem()).identify(&[certificate.der().clone()]);
        assert_eq!(found.is_ok_and(|who| who.is_some()), believed, "{what}");
        let elsewhere = authority(&ca("ca", None).pem).identify(&[certificate.der().clone()]);
        assert!(elsewhere.is_err(), "{what}, of another bundle");
    }
}
