//! TLS, protocols, and which connection a request takes.

use std::sync::atomic::Ordering;

use bulkhead_apiclient::{CredentialFile, Lane, MemorySource};
use http::Version;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;

use crate::world::{self, Secure, Seen, answer, kubeconfig, list, soon};

fn node(_: Seen) -> world::Answer {
    answer(200, r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}"#)
}

#[tokio::test]
async fn client_certificates_over_both_protocols() {
    for (alpn, version) in
        [(&["h2", "http/1.1"][..], Version::HTTP_2), (&["http/1.1"], Version::HTTP_11), (&[], Version::HTTP_11)]
    {
        let secure = Secure::start(alpn, node).await;
        let api = world::client(&secure.source);
        assert_eq!(soon(api.ready()).await, format!("https://{}", secure.server.address));
        let node: Node = soon(Api::all(api.client(Lane::Main)).get("n")).await.unwrap();
        assert_eq!(node.metadata.name.as_deref(), Some("n"));
        let seen = secure.server.seen();
        assert_eq!((seen[0].version, seen[0].client.as_deref()), (version, Some("node-1")));
        assert!(seen[0].header("user-agent").starts_with("kubelet/v1."), "{seen:?}");
        assert!(seen[0].header("user-agent").ends_with(" kubelet-statusd"));
        assert_eq!(seen[0].header("accept"), "application/json");
        assert!(api.certificate_expires().is_some());
        assert!(api.reachability().borrow().is_reachable());
    }
}

#[tokio::test]
async fn lanes_have_connections_of_their_own_and_calls_share_one() {
    let secure = Secure::start(&["h2"], node).await;
    let api = world::client(&secure.source);
    let get = async |lane| soon(Api::<Node>::all(api.client(lane)).get("n")).await.unwrap();
    for lane in [Lane::Main, Lane::Heartbeat, Lane::Events, Lane::Main, Lane::Heartbeat] {
        get(lane).await;
    }
    let on: Vec<usize> = secure.server.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(on, [1, 2, 3, 1, 2]);
    api.reconnect(Lane::Heartbeat);
    get(Lane::Heartbeat).await;
    get(Lane::Main).await;
    let on: Vec<usize> = secure.server.seen().iter().skip(5).map(|seen| seen.connection).collect();
    assert_eq!(on, [4, 1]);
}

#[tokio::test]
async fn a_replaced_certificate_is_used_on_a_new_connection() {
    let secure = Secure::start(&["h2"], node).await;
    let api = world::client(&secure.source);
    let nodes: Api<Node> = Api::all(api.client(Lane::Main));
    soon(nodes.get("n")).await.unwrap();
    let before = api.certificate_expires();
    secure.issue("node-2");
    soon(async {
        loop {
            nodes.get("n").await.unwrap();
            if secure.server.seen().last().unwrap().client.as_deref() == Some("node-2") {
                break;
            }
        }
    })
    .await;
    assert!(before.is_some());
    // One for each certificate; and a call that had taken the credentials of before may have dialed with them once more.
    let connections = secure.server.connections.load(Ordering::SeqCst);
    assert!((2..=3).contains(&connections), "{connections}");
    soon(nodes.get("n")).await.unwrap();
    assert_eq!(secure.server.connections.load(Ordering::SeqCst), connections, "the new one stays");
}

#[tokio::test]
async fn a_server_of_another_authority_is_not_believed() {
    let secure = Secure::start(&["h2"], node).await;
    let other = world::Pki::new("other");
    secure.source.put(CredentialFile::ClusterCa, &other.ca);
    let api = world::client(&secure.source);
    let nodes: Api<Node> = Api::all(api.client(Lane::Main));
    let error = soon(nodes.get("n")).await.unwrap_err();
    assert!(format!("{error:?}").contains("UnknownIssuer"), "{error:?}");
    assert!(secure.server.seen().is_empty());
    assert!(!api.reachability().borrow().is_reachable());
    // And is once the right one is there.
    secure.source.put(CredentialFile::ClusterCa, &secure.pki.ca);
    soon(async { while nodes.get("n").await.is_err() {} }).await;
}

#[tokio::test]
async fn names_and_trust_as_the_kubeconfig_says() {
    let secure = Secure::start(&["h2"], node).await;
    let server = format!("server: \"https://localhost:{}\"", secure.server.address.port());
    let user = "client-certificate: a, client-key: b";
    // The certificate is for 127.0.0.1 and "kubernetes".
    for (cluster, works) in [
        (format!("{server}, certificate-authority: ca"), false),
        (format!("{server}, certificate-authority: ca, tls-server-name: kubernetes"), true),
        (format!("{server}, insecure-skip-tls-verify: true"), true),
    ] {
        secure.source.put(CredentialFile::Kubeconfig, kubeconfig(&cluster, user));
        let api = world::client(&secure.source);
        soon(api.ready()).await;
        let got = soon(Api::<Node>::all(api.client(Lane::Main)).get("n")).await;
        assert_eq!(got.is_ok(), works, "{cluster}: {got:?}");
    }
}

#[tokio::test]
async fn many_watches_do_not_keep_calls_from_the_server() {
    let open = parking_lot::Mutex::new(Vec::new());
    let secure = Secure::start(&["h2"], move |seen| {
        if seen.is_watch() {
            let (sender, response) = world::stream();
            sender.send(world::bookmark(1, true)).unwrap();
            open.lock().push(sender);
            response
        } else {
            list(1, &[], "")
        }
    })
    .await;
    let api = world::client_with(&secure.source, |config| config.kubelet.kube_api_burst = 1000);
    let mut watches = Vec::new();
    for index in 0..200 {
        let scope =
            bulkhead_apiclient::watch::Scope { field_selector: format!("metadata.name={index}"), ..Default::default() };
        let mut watch = bulkhead_apiclient::watch::watch::<Pod>(&api, Lane::Main, scope);
        let first = soon(futures_util::StreamExt::next(&mut watch)).await.unwrap();
        assert!(matches!(first, bulkhead_apiclient::watch::Change::Restarted(_)), "{first:?}");
        watches.push(watch);
    }
    soon(Api::<Pod>::all(api.client(Lane::Main)).list(&Default::default())).await.unwrap();
    let seen = secure.server.seen();
    let most = (1..10).map(|n| seen.iter().filter(|seen| seen.connection == n).count()).max();
    assert!(most <= Some(90), "{most:?} streams on one connection");
    assert_eq!(secure.server.connections.load(Ordering::SeqCst), 4, "three for watches, one for calls");
}

#[tokio::test]
async fn plain_http_and_a_path_below_the_server() {
    let server = world::Server::plain(node).await;
    let api = world::client(&MemorySource::for_server(&format!("{}/below/", server.url())));
    soon(api.ready()).await;
    soon(Api::<Node>::all(api.client(Lane::Main)).get("n")).await.unwrap();
    assert_eq!(server.seen()[0].uri.path(), "/below/api/v1/nodes/n");
}
