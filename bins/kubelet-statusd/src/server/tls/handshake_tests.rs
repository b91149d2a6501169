//! Handshakes in memory: whose key a client has to show, and that the version of a certificate is no matter.

use std::io::Read;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bulkhead_config::KubeletConfiguration;
use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, ServerConnection, SignatureScheme, version,
};
use x509_parser::asn1_rs::{Any, FromDer as _, Sequence, ToDer as _};

use super::pair::server_config;
use super::policy::Policy;
use super::*;

/// A client that believes every server.
#[derive(Debug)]
struct Trusting(Vec<SignatureScheme>);

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}

fn certificate(key: &KeyPair) -> CertificateDer<'static> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "c");
    params.self_signed(key).unwrap().der().clone()
}

/// The same as X.509 version 1: without that field and without extensions. Its signature, which nobody looks at, is not right.
fn as_version_1(certificate: &CertificateDer<'_>) -> CertificateDer<'static> {
    let parts = |mut content: &[u8]| {
        let mut parts = Vec::new();
        while !content.is_empty() {
            let (rest, _) = Any::from_der(content).unwrap();
            parts.push(content[..content.len() - rest.len()].to_vec());
            content = rest;
        }
        parts
    };
    let sequence = |parts: Vec<Vec<u8>>| Sequence::new(parts.concat().into()).to_der_vec().unwrap();
    let (_, whole) = Sequence::from_der(certificate).unwrap();
    let mut whole = parts(&whole.content);
    let (_, signed) = Sequence::from_der(&whole[0]).unwrap();
    let (version, extensions) = (0xa0, 0xa3);
    let kept = parts(&signed.content).into_iter().filter(|part| part[0] != version && part[0] != extensions);
    whole[0] = sequence(kept.collect());
    CertificateDer::from(sequence(whole))
}

fn policy() -> Policy {
    Policy::of(&KubeletConfiguration::default())
}

/// What a server with the pair finds out of a client that shows `shown` and signs with `signs`.
fn handshake(
    served: (&CertificateDer<'_>, &KeyPair),
    shown: &CertificateDer<'static>,
    signs: &KeyPair,
    version: &'static rustls::SupportedProtocolVersion,
) -> Result<Vec<CertificateDer<'static>>, Error> {
    let policy = policy();
    let pem = format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", STANDARD.encode(served.0));
    let server = server_config(&policy, pem.as_bytes(), served.1.serialize_pem().as_bytes(), None).unwrap();
    let key = PrivateKeyDer::try_from(signs.serialize_der()).unwrap();
    let key = policy.provider.key_provider.load_private_key(key).unwrap();
    let schemes = policy.provider.signature_verification_algorithms.supported_schemes();
    let client = ClientConfig::builder_with_provider(policy.provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trusting(schemes)))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(CertifiedKey::new(vec![shown.clone()], key))));
    let mut client = ClientConnection::new(Arc::new(client), "node".try_into().unwrap()).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        let mut sent = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut sent).unwrap();
        }
        let mut sent = &sent[..];
        while !sent.is_empty() {
            server.read_tls(&mut sent.by_ref()).unwrap();
            server.process_new_packets()?;
        }
        let mut answered = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut answered).unwrap();
        }
        let mut answered = &answered[..];
        while !answered.is_empty() {
            client.read_tls(&mut answered.by_ref()).unwrap();
            client.process_new_packets()?;
        }
    }
    Ok(server.peer_certificates().unwrap_or_default().to_vec())
}

#[test]
fn certificates_of_version_1_are_served_and_break_no_handshake() {
    let key = KeyPair::generate().unwrap();
    let old = as_version_1(&certificate(&key));
    let (_, parsed) = x509_parser::parse_x509_certificate(&old).unwrap();
    assert_eq!(parsed.version().0, 0);
    for version in [&version::TLS12, &version::TLS13] {
        assert_eq!(handshake((&old, &key), &old, &key, version).unwrap(), std::slice::from_ref(&old));
    }
}

#[test]
fn whoever_shows_a_certificate_has_its_key() {
    let served = KeyPair::generate().unwrap();
    let served = (&certificate(&served), &served);
    for algorithm in [&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ED25519] {
        let generate = || KeyPair::generate_for(algorithm).unwrap();
        let (key, other) = (generate(), generate());
        let shown = certificate(&key);
        for version in [&version::TLS12, &version::TLS13] {
            assert_eq!(handshake(served, &shown, &key, version).unwrap().len(), 1, "{algorithm:?}");
            for shown in [&shown, &as_version_1(&shown)] {
                handshake(served, shown, &other, version).expect_err("another key");
                let of_another_kind =
                    if algorithm == &PKCS_ED25519 { served.1 } else { &KeyPair::generate_for(&PKCS_ED25519).unwrap() };
                handshake(served, shown, of_another_kind, version).expect_err("a key of another kind");
            }
        }
    }
}
