//! The way to a node, seen from a client: paths, refusals, switched connections, against a kubelet that says one thing.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiserver::authority::Authority;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use serde_json::json;

use crate::Cluster;
use crate::cluster::client::Credential;
use crate::https::Https;
use bulkhead_apiserver::identity::{MASTERS, User};
use bulkhead_apiserver::{Config, Grant, StaticToken};

/// A kubelet that gives every connection the same answer, then says back what it hears.
fn kubelet(cluster: &Cluster, answer: &'static str, heads: Arc<Mutex<Vec<String>>>) -> SocketAddr {
    let authority = Authority::new().unwrap();
    let pair = authority.server(&["node"], &[]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(cluster.ca().as_bytes()).unwrap()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap(),
        )
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let session = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut stream = rustls::StreamOwned::new(session, stream);
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
                head.push(byte[0]);
            }
            heads.lock().push(String::from_utf8_lossy(&head).into_owned());
            let _ = stream.write_all(answer.as_bytes());
            let mut heard = [0; 100];
            while answer.contains(" 101 ") {
                match stream.read(&mut heard) {
                    Ok(count) if count > 0 => drop(stream.write_all(&heard[..count])),
                    _ => break,
                }
            }
        }
    });
    address
}

struct Place {
    admin: Https,
    cluster: Cluster,
    heads: Arc<Mutex<Vec<String>>>,
    _folder: tempfile::TempDir,
}

const POD: &str = "/api/v1/namespaces/default/pods/p";

fn world(answer: &'static str, features: &[&str]) -> Place {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::stand_in(folder.path(), Config::default()).unwrap();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let address = kubelet(&cluster, answer, heads.clone());
    cluster.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})).unwrap();
    let status = json!({"status": {
        "addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": address.ip().to_string()}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": address.port()}}, "declaredFeatures": features,
    }});
    cluster.patch_status("nodes", "", "n", &status).unwrap();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
        "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "registry.test/x:1"}]}});
    cluster.create(&pod).unwrap();
    let admin = cluster.client_certificate("admin", MASTERS, Duration::from_secs(86_400)).unwrap();
    let admin = Https::new(cluster.address(), &Credential::Certificate(admin));
    Place { admin, cluster, heads, _folder: folder }
}

#[test]
fn a_log_comes_as_text_and_a_refusal_as_a_status() {
    let place = world("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", &[]);
    let answer = place.admin.get(&format!("{POD}/log?tailLines=1")).unwrap();
    assert_eq!((answer.status, answer.body.as_ref()), (200, &b"hello"[..]));
    assert_eq!(answer.headers["content-type"], "text/plain");
    assert!(place.heads.lock()[0].starts_with("GET /containerLogs/default/p/main?tailLines=1 HTTP/1.1\r\n"));
    let reader = User::new("reader", &[]);
    place.cluster.server().unwrap().add_token(StaticToken { token: "t".into(), user: reader });
    let reader = place.admin.with(&Credential::Token("t".into()));
    assert_eq!(reader.get(&format!("{POD}/log")).unwrap().status, 403);
    place.cluster.server().unwrap().grant(Grant::new("reader", &["get"], &["pods/log", "pods/exec"]));
    assert_eq!(reader.get(&format!("{POD}/log")).unwrap().status, 200);
    let refused = reader.upgrade("GET", &format!("{POD}/exec?command=x"), "websocket", &[]).unwrap().refused().unwrap();
    let message = refused.json()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("cannot create resource \"pods/exec\""), "{message}");

    let refusing = world("HTTP/1.1 400 Bad Request\r\nContent-Length: 4\r\n\r\nwhy?", &[]);
    let refused = refusing.admin.get(&format!("{POD}/log")).unwrap().json();
    assert_eq!((&refused["message"], &refused["reason"]), (&json!("why?"), &json!("BadRequest")));
}

#[test]
fn a_log_that_breaks_off_looks_like_one_that_ends() {
    let place = world("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", &[]);
    let answer = place.admin.get(&format!("{POD}/log")).unwrap();
    assert_eq!(answer.body.as_ref(), b"hello");
    assert!(place.admin.get("/api/v1/nodes/n/proxy/x").is_err(), "but not what comes through the proxy");
}

#[test]
fn streams_are_passed_on() {
    let switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
    let place = world(switching, &[]);
    let exec = format!("{POD}/exec?command=x&stdin=true");
    let (headers, mut connection) = place.admin.upgrade("POST", &exec, "SPDY/3.1", &[]).unwrap().switched().unwrap();
    assert_eq!(headers["upgrade"], "SPDY/3.1");
    connection.write_all(b"ping").unwrap();
    let mut heard = [0; 4];
    connection.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"ping");
    let head = place.heads.lock()[0].to_lowercase();
    assert!(head.starts_with("post /exec/default/p/main?command=x&input=1 http/1.1\r\n"), "{head}");
    assert!(head.contains("x-forwarded-for: 127.0.0.1") && head.contains("upgrade: spdy/3.1"), "{head}");
    place.cluster.stop().unwrap();
    assert_eq!(connection.read(&mut heard).unwrap_or_default(), 0, "streams end with the server");
    place.cluster.resume().unwrap();

    assert_eq!(place.admin.post(&exec, b"").unwrap().json()["message"], "Upgrade request required");
    let v5 = [("sec-websocket-protocol", "v5.channel.k8s.io")];
    assert!(place.admin.upgrade("GET", &exec, "websocket", &v5).unwrap().refused().is_ok());
    let declared = json!({"status": {"declaredFeatures": ["ExtendWebSocketsToKubelet"]}});
    place.cluster.patch_status("nodes", "", "n", &declared).unwrap();
    assert!(place.admin.upgrade("GET", &exec, "websocket", &v5).unwrap().switched().is_ok());
}

#[test]
fn whatever_a_kubelet_serves_comes_through_the_proxy() {
    let place = world("HTTP/1.1 418 No\r\nX-Own: 1\r\nLocation: /logs/\r\nContent-Length: 3\r\n\r\ntea", &[]);
    for name in ["n", &format!("n:{}", place_port(&place)), &format!("https:n:{}", place_port(&place))] {
        let answer = place.admin.get(&format!("/api/v1/nodes/{name}/proxy/logs?a=b%20c")).unwrap();
        assert_eq!((answer.status, answer.body.as_ref()), (418, &b"tea"[..]));
        assert_eq!(answer.headers["x-own"], "1");
        assert_eq!(answer.headers["location"], format!("/api/v1/nodes/{name}/proxy/logs/"));
        assert!(place.heads.lock().pop().unwrap().starts_with("GET /logs?a=b%20c HTTP/1.1\r\n"));
    }
    assert_eq!(place.admin.get("/api/v1/nodes/n:1/proxy/x").unwrap().status, 400);
    assert_eq!(place.admin.get("/api/v1/nodes/other/proxy/x").unwrap().status, 404);
    assert_eq!(place.admin.get("/api/v1/nodes/n/proxy").unwrap().status, 301);
    let away = json!({"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}});
    place.cluster.patch_status("nodes", "", "n", &away).unwrap();
    let gone = place.admin.get("/api/v1/nodes/n/proxy/x").unwrap().json();
    let message = gone["message"].as_str().unwrap();
    assert!(gone["code"] == 503 && message.starts_with("error trying to reach service: dial tcp"), "{message}");
    let gone = place.admin.get(&format!("{POD}/log")).unwrap().json();
    assert!(gone["code"] == 500 && gone["message"].as_str().unwrap().contains("connection refused"), "{gone}");
}

fn place_port(place: &Place) -> u64 {
    let node = place.cluster.get("nodes", "", "n").unwrap();
    node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64().unwrap()
}
