//! The client against the stand-in API server, which speaks TLS of both HTTP versions.

use std::io::{Read as _, Write as _};

use super::*;
use crate::Cluster;
use bulkhead_apiserver::Config;
use bulkhead_apiserver::identity::MASTERS;

const DAY: Duration = Duration::from_secs(24 * 3600);

#[test]
fn certificates_tokens_versions_and_bare_connections() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::stand_in(folder.path(), Config::default()).unwrap();
    let nobody = Https::new(cluster.address(), &Credential::Nothing);
    assert_eq!(nobody.get("/healthz").unwrap().body.as_ref(), b"ok");
    assert_eq!(nobody.get("/api/v1/nodes").unwrap().status, 403);
    assert_eq!(nobody.with(&Credential::Token("x".into())).get("/api/v1/nodes").unwrap().status, 401);
    let admin = cluster.client_certificate("admin", MASTERS, DAY).unwrap();
    let admin = nobody.with(&Credential::Certificate(admin));
    for client in [admin.clone(), admin.clone().over_http2(), admin.clone().with_version(&rustls::version::TLS12)] {
        assert_eq!(client.get("/api/v1/nodes").unwrap().json()["kind"], "NodeList");
    }
    assert!(admin.clone().trusting(&cluster.ca(), None).get("/healthz").is_ok());
    assert!(admin.clone().trusting(&cluster.ca(), Some("localhost")).get("/healthz").is_ok());
    assert!(admin.clone().trusting(&cluster.ca(), Some("other")).get("/healthz").is_err());
    assert_eq!(admin.certificates().unwrap().len(), 1);

    let mut connection = nobody.connect().unwrap();
    connection.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    let _ = connection.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok"), "{answer}");

    let mut events = admin.open("GET", "/api/v1/namespaces?watch=true", &[]).unwrap();
    assert_eq!(events.status, 200);
    assert!(events.read_until("\"kube-system\"").unwrap().contains("ADDED"));
    assert_eq!(admin.upgrade("GET", "/healthz", "SPDY/3.1", &[]).unwrap().refused().unwrap().status, 200);
}
