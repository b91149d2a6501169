//! Credentials that come late, change, break, expire, or come from a program.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bulkhead_apiclient::source::SourceError;
use bulkhead_apiclient::{ApiClient, CallError, CredentialFile, CredentialSource, Lane, MemorySource};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::Node;
use kube::Api;

use crate::world::{self, Answer, Pki, Seen, Server, Speak, answer, client, client_with, kubeconfig, soon, status};

fn node(_: Seen) -> Answer {
    answer(200, r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}"#)
}

fn nodes(api: &ApiClient) -> Api<Node> {
    Api::all(api.client(Lane::Main))
}

/// Asks until the server has seen a request that is as it should be.
async fn until(api: &ApiClient, server: &Server, good: impl Fn(&Seen) -> bool) {
    soon(async {
        loop {
            let _ = nodes(api).get("n").await;
            if server.seen().last().is_some_and(&good) {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_kubeconfig_that_comes_later() {
    let (server, cluster) = Server::tls(node).await;
    let source = MemorySource::new("");
    source.remove(CredentialFile::Kubeconfig);
    let api = client(&source);
    let error = soon(nodes(&api).get("n")).await.unwrap_err();
    assert!(!CallError::is_lost_connection(&error), "{error:?}");
    let kube::Error::Service(error) = error else { panic!("{error:?}") };
    assert!(matches!(error.downcast_ref(), Some(CallError::NoCredentials)), "{error:?}");
    source.put(CredentialFile::Kubeconfig, kubeconfig(&cluster, "token: t"));
    assert_eq!(soon(api.ready()).await, format!("https://{}", server.address));
    soon(nodes(&api).get("n")).await.unwrap();
    assert_eq!(server.seen()[0].header("authorization"), "Bearer t");
}

#[tokio::test]
async fn a_replaced_token_is_sent_on_the_same_connection() {
    let (server, cluster) = Server::tls(node).await;
    let source = MemorySource::new(&kubeconfig(&cluster, "tokenFile: /t"));
    source.put(CredentialFile::Token, "one\n");
    let api = client(&source);
    soon(api.ready()).await;
    until(&api, &server, |seen| seen.header("authorization") == "Bearer one").await;
    source.put(CredentialFile::Token, "two\n");
    until(&api, &server, |seen| seen.header("authorization") == "Bearer two").await;
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn what_breaks_later_leaves_the_old_in_force() {
    let secure = world::Secure::start(&["h2"], node).await;
    let source = Counted { source: secure.source.clone(), looks: Arc::default() };
    let api = ApiClient::start_with("kubelet-statusd", world::config().into(), Arc::new(source.clone()));
    soon(api.ready()).await;
    let good = kubeconfig(
        &format!("server: \"https://{}\", certificate-authority: ca", secure.server.address),
        "client-certificate: c, client-key: k",
    );
    let server = format!("server: \"https://{}\"", secure.server.address);
    let broken = [
        "".to_owned(),
        "[".to_owned(),
        "{}".to_owned(),
        good.replace("current-context: c", "current-context: d"),
        kubeconfig("server: \"gopher://x\"", ""),
        kubeconfig(&format!("{server}, proxy-url: \"http://p\""), ""),
        kubeconfig(&format!("{server}, certificate-authority-data: eA=="), ""),
        kubeconfig(&format!("{server}, certificate-authority: ca, tls-server-name: \"a b\""), ""),
        kubeconfig(&server, "tokenFile: nowhere"),
        kubeconfig(&server, "client-certificate-data: eA==, client-key: k"),
        kubeconfig(&server, "client-certificate: c, client-key-data: eA=="),
        kubeconfig(&server, "exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: x}"),
    ];
    for text in broken {
        let looks = source.looks.load(Ordering::SeqCst);
        secure.source.put(CredentialFile::Kubeconfig, &text);
        soon(async {
            while source.looks.load(Ordering::SeqCst) == looks {
                soon(nodes(&api).get("n")).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
            }
        })
        .await;
        // The one before was dealt with by now, and this one is.
        soon(nodes(&api).get("n")).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    }
    // A key that does not belong to the certificate.
    secure.source.put(CredentialFile::Kubeconfig, &good);
    let other = secure.pki.issue("node-9", &[]);
    secure.source.put(CredentialFile::ClientKey, other.1);
    soon(nodes(&api).get("n")).await.unwrap();
    secure.issue("node-7");
    until(&api, &secure.server, |seen| seen.client.as_deref() == Some("node-7")).await;
}

/// Credentials with the number of looks at the kubeconfig.
#[derive(Clone)]
struct Counted {
    source: MemorySource,
    looks: Arc<AtomicUsize>,
}

impl CredentialSource for Counted {
    fn read(&self, file: CredentialFile) -> BoxFuture<'_, Result<Vec<u8>, SourceError>> {
        if file == CredentialFile::Kubeconfig {
            self.looks.fetch_add(1, Ordering::SeqCst);
        }
        self.source.read(file)
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        self.source.changes()
    }
}

/// Credentials whose changes nobody tells.
#[derive(Clone)]
struct Untold(MemorySource);

impl CredentialSource for Untold {
    fn read(&self, file: CredentialFile) -> BoxFuture<'_, Result<Vec<u8>, SourceError>> {
        self.0.read(file)
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        futures_util::stream::pending().boxed()
    }
}

#[tokio::test]
async fn a_refused_credential_is_looked_at_anew() {
    let (server, cluster) = Server::tls(|seen| match seen.header("authorization") {
        "Bearer new" => node(seen),
        _ => answer(401, status(401, "Unauthorized").to_string()),
    })
    .await;
    let source = MemorySource::new(&kubeconfig(&cluster, "tokenFile: /t"));
    source.put(CredentialFile::Token, "old");
    let api = ApiClient::start_with("kubelet-syncd", world::config().into(), Arc::new(Untold(source.clone())));
    soon(api.ready()).await;
    source.put(CredentialFile::Token, "new");
    let error = soon(nodes(&api).get("n")).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 401), "{error:?}");
    until(&api, &server, |seen| seen.header("authorization") == "Bearer new").await;
}

#[tokio::test(start_paused = true)]
async fn a_change_without_an_announcement_is_found_within_a_minute() {
    let source = MemorySource::for_server("http://127.0.0.1:1");
    let api = ApiClient::start_with("kubelet-syncd", world::config().into(), Arc::new(Untold(source.clone())));
    assert_eq!(api.ready().await, "http://127.0.0.1:1");
    let text = kubeconfig("server: \"http://127.0.0.1:2\"", "");
    source.put(CredentialFile::Kubeconfig, text);
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!(api.ready().await, "http://127.0.0.1:1");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(api.ready().await, "http://127.0.0.1:2");
}

#[tokio::test]
async fn a_program_gives_a_certificate_and_a_token() {
    let pki = Pki::new("ca");
    let speak = Speak::Tls {
        certificate: pki.issue("server", &["127.0.0.1"]),
        clients: Some(pki.ca.clone()),
        alpn: vec!["h2"],
    };
    let server = Server::start(speak, |seen| Box::pin(std::future::ready(node(seen)))).await;
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = pki.issue("from-program", &[]);
    let credential = serde_json::json!({"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1",
        "status": {"token": "t0p", "clientCertificateData": certificate, "clientKeyData": key,
        "expirationTimestamp": "2999-01-01T00:00:00Z"}});
    std::fs::write(folder.path().join("answer.json"), credential.to_string()).unwrap();
    let program = folder.path().join("helper");
    std::fs::write(&program, "#!/bin/sh\nexec cat \"$ANSWER\"\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let source = MemorySource::new(&kubeconfig(
        &format!("server: \"https://{}\", certificate-authority: ca", server.address),
        &format!(
            "exec: {{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: ./helper, \
             env: [{{name: ANSWER, value: \"{}/answer.json\"}}]}}",
            folder.path().display()
        ),
    ));
    source.put(CredentialFile::ClusterCa, &pki.ca);
    let start = |may: bool| {
        client_with(&source, |config| {
            config.kubeconfig_runs_program = may;
            config.flags.kubeconfig = folder.path().join("kubelet.conf").display().to_string();
        })
    };
    let api = start(true);
    soon(api.ready()).await;
    soon(nodes(&api).get("n")).await.unwrap();
    let seen = &server.seen()[0];
    assert_eq!((seen.client.as_deref(), seen.header("authorization")), (Some("from-program"), "Bearer t0p"));
    // Without leave to start a program there is no credential.
    let api = start(false);
    let error = soon(nodes(&api).get("n")).await.unwrap_err();
    assert!(matches!(error, kube::Error::Service(_)), "{error:?}");
}
