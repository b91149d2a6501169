//! What is shown and spoken.

use std::io::{Read as _, Write as _};

use bulkhead_apiclient::CredentialFile;
use bulkhead_testkit::cluster::client::Credential;
use kubelet_statusd::server::tls::pair::self_signed;
use rustls::version::{TLS12, TLS13};

use crate::https::world::{Plan, eventually, start};

/// A ClientHello of TLS 1.1, for suites that 1.2 has, too.
fn hello_of_tls_1_1() -> Vec<u8> {
    let mut body = vec![3, 2];
    body.extend([7; 32]);
    body.push(0);
    body.extend([0, 4, 0xc0, 0x2f, 0xc0, 0x14]);
    body.extend([1, 0]);
    let length = u8::try_from(body.len()).unwrap();
    let mut record = vec![22, 3, 1, 0, length + 4, 1, 0, 0, length];
    record.extend(body);
    record
}

#[test]
fn versions() {
    let world = start(Plan::default(), |_| {});
    let admin = world.ca.client("admin");
    for version in [&TLS12, &TLS13] {
        assert_eq!(world.with(&admin).with_version(version).get("/x").unwrap().status, 404);
    }
    let mut old = std::net::TcpStream::connect(world.address).unwrap();
    old.write_all(&hello_of_tls_1_1()).unwrap();
    let mut answer = Vec::new();
    old.read_to_end(&mut answer).unwrap();
    assert_eq!((answer[0], answer[5]), (21, 2), "a fatal alert: {answer:?}");

    let newest = start(Plan::default(), |config| config.kubelet.tls_min_version = "VersionTLS13".into());
    let admin = newest.ca.client("admin");
    assert!(newest.with(&admin).with_version(&TLS12).get("/x").is_err());
    assert_eq!(newest.with(&admin).with_version(&TLS13).get("/x").unwrap().status, 404);
}

#[test]
fn cipher_suites() {
    let only_rsa = |suite: &str| {
        let suite = suite.to_owned();
        start(Plan::default(), move |config| config.kubelet.tls_cipher_suites = vec![suite])
    };
    // The certificate's key is of an elliptic curve.
    let world = only_rsa("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256");
    let admin = world.ca.client("admin");
    assert!(world.with(&admin).with_version(&TLS12).get("/x").is_err());
    assert_eq!(world.with(&admin).with_version(&TLS13).get("/x").unwrap().status, 404, "1.3 has its own");
    let world = only_rsa("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256");
    assert_eq!(world.with(&world.ca.client("admin")).with_version(&TLS12).get("/x").unwrap().status, 404);
}

#[test]
fn the_pair_changes_while_it_runs() {
    let world = start(Plan::default(), |_| {});
    let shown = || world.with(&Credential::Nothing).certificates().unwrap()[0].clone();
    let first = shown();
    let pair = self_signed("renewed", &[]).unwrap();
    world.files.put_all([
        (CredentialFile::ServingCertificate, pair.certificates.clone()),
        (CredentialFile::ServingKey, pair.key),
    ]);
    eventually("the new certificate is shown", || shown() != first);
    let trusting = world.with(&world.ca.client("admin")).trusting(&pair.certificates, Some("renewed"));
    assert_eq!(trusting.get("/x").unwrap().status, 404);
}

#[test]
fn a_client_without_tls_gets_a_plain_answer() {
    let world = start(Plan::default(), |_| {});
    let mut plain = std::net::TcpStream::connect(world.address).unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n").unwrap();
    let mut answer = String::new();
    plain.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 400 Bad Request\r\n") && answer.contains("HTTPS server"), "{answer:?}");
}
