//! Budgets, retries, deadlines, and what is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bulkhead_apiclient::{CallError, Lane, MemorySource, Reachability};
use bulkhead_types::GoDuration;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::Api;
use kube::api::PostParams;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::world::{self, Answer, Dialogue, Server, answer, client, client_with, soon, status};

const NODE: &str = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}"#;

fn busy(retry_after: Option<&str>) -> Answer {
    let mut busy = answer(429, status(429, "TooManyRequests").to_string());
    if let Some(value) = retry_after {
        busy.headers_mut().insert("retry-after", value.parse().unwrap());
    }
    busy
}

fn call_error(error: &kube::Error) -> Option<&CallError> {
    match error {
        kube::Error::Service(error) => error.downcast_ref(),
        _ => None,
    }
}

#[tokio::test]
async fn a_busy_servers_wish_is_followed() {
    let count = AtomicUsize::new(0);
    let server = Server::plain(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => busy(Some("0")),
        _ => answer(201, NODE),
    })
    .await;
    let registry = prometheus::Registry::new();
    let api = client(&MemorySource::for_server(&server.url())).with_metrics(&registry).unwrap();
    soon(api.ready()).await;
    let node: Node = serde_json::from_str(NODE).unwrap();
    soon(Api::all(api.client(Lane::Main)).create(&PostParams::default(), &node)).await.unwrap();
    let seen = server.seen();
    assert_eq!(seen.len(), 3);
    assert!(!seen[0].body.is_empty() && seen.iter().all(|one| one.body == seen[0].body), "the same request");
    let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    for line in [
        format!("rest_client_requests_total{{code=\"429\",host=\"{}\",method=\"POST\"}} 2", server.address),
        format!("rest_client_requests_total{{code=\"201\",host=\"{}\",method=\"POST\"}} 1", server.address),
        format!("rest_client_request_retries_total{{code=\"429\",host=\"{}\",verb=\"POST\"}} 2", server.address),
        format!("rest_client_request_duration_seconds_count{{host=\"{}\",verb=\"POST\"}} 3", server.address),
    ] {
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
    assert!(api.with_metrics(&registry).is_err(), "one registry counts one client");
}

#[tokio::test]
async fn without_the_wish_or_after_ten_times_the_answer_is_final() {
    for (retry_after, requests) in [(None, 1), (Some("0"), 11), (Some("100000"), 1)] {
        let server = Server::plain(move |_| busy(retry_after)).await;
        let api = client(&MemorySource::for_server(&server.url()));
        soon(api.ready()).await;
        let error = soon(Api::<Node>::all(api.client(Lane::Main)).get("n")).await.unwrap_err();
        assert!(matches!(&error, kube::Error::Api(status) if status.code == 429), "{error:?}");
        assert_eq!(server.seen().len(), requests);
        // An answer is an answer.
        assert!(api.reachability().borrow().is_reachable());
    }
}

#[tokio::test]
async fn each_lane_has_its_limit() {
    let server = Server::plain(|_| answer(200, NODE)).await;
    let registry = prometheus::Registry::new();
    let api = client_with(&MemorySource::for_server(&server.url()), |config| {
        config.kubelet.kube_api_qps = Some(5);
        config.kubelet.kube_api_burst = 1;
    })
    .with_metrics(&registry)
    .unwrap();
    soon(api.ready()).await;
    let waited = || {
        let families = registry.gather();
        let family = families.iter().find(|family| family.name() == "rest_client_rate_limiter_duration_seconds");
        family.map_or(0.0, |family| family.get_metric()[0].get_histogram().get_sample_sum())
    };
    for lane in [Lane::Heartbeat, Lane::Events] {
        let nodes: Api<Node> = Api::all(api.client(lane));
        soon(futures_util::future::join_all((0..3).map(|_| nodes.get("n")))).await;
        assert_eq!(waited(), 0.0, "{lane:?}");
    }
    let nodes: Api<Node> = Api::all(api.client(Lane::Main));
    soon(futures_util::future::join_all((0..3).map(|_| nodes.get("n")))).await;
    assert!(waited() > 0.0);
}

#[tokio::test]
async fn a_connection_that_takes_and_never_answers_is_not_used_again() {
    let mut dialogue = Dialogue::start().await;
    let api = client_with(&MemorySource::for_server(&dialogue.server.url()), |config| {
        config.kubelet.node_status_update_frequency = GoDuration::from_secs(1);
    });
    soon(api.ready()).await;
    let nodes: Api<Node> = Api::all(api.client(Lane::Heartbeat));
    let error = soon(nodes.get("n")).await.unwrap_err();
    assert!(matches!(call_error(&error), Some(CallError::Deadline { .. })), "{error:?}");
    assert!(CallError::is_lost_connection(&error), "another connection may be better");
    assert!(matches!(&*api.reachability().borrow(), Reachability::Unreachable { .. }));
    drop(dialogue.next().await);
    let (node, seen) = tokio::join!(soon(nodes.get("n")), dialogue.reply(answer(200, NODE)));
    node.unwrap();
    assert_eq!(seen.connection, 2);
    assert!(api.reachability().borrow().is_reachable());
}

#[tokio::test]
async fn a_body_that_does_not_end_is_a_call_that_does_not_end() {
    let mut dialogue = Dialogue::start().await;
    let api = client_with(&MemorySource::for_server(&dialogue.server.url()), |config| {
        config.kubelet.node_status_update_frequency = GoDuration::from_secs(1);
    });
    soon(api.ready()).await;
    let nodes: Api<Node> = Api::all(api.client(Lane::Heartbeat));
    let (error, (_, sender)) = tokio::join!(soon(nodes.get("n")), async {
        let (seen, sender) = dialogue.stream().await;
        sender.send(NODE[..20].to_owned()).unwrap();
        (seen, sender)
    });
    let error = format!("{:?}", error.unwrap_err());
    assert!(error.contains("Deadline"), "{error}");
    drop(sender);
}

/// Serves connections by hand: the first one breaks after the request, the others answer.
async fn breaks_once() -> (String, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = [0; 4096];
            if stream.read(&mut buffer).await.unwrap_or(0) == 0 {
                continue;
            }
            if counted.fetch_add(1, Ordering::SeqCst) > 0 {
                let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length";
                let _ = stream.write_all(format!("{head}: {}\r\n\r\n{NODE}", NODE.len()).as_bytes()).await;
            }
        }
    });
    (url, requests)
}

#[tokio::test]
async fn a_broken_connection_costs_a_read_one_more_try_and_a_write_its_answer() {
    let (url, requests) = breaks_once().await;
    let api = client(&MemorySource::for_server(&url));
    soon(api.ready()).await;
    soon(Api::<Node>::all(api.client(Lane::Main)).get("n")).await.unwrap();
    assert_eq!(requests.load(Ordering::SeqCst), 2);
    let (url, requests) = breaks_once().await;
    let api = client(&MemorySource::for_server(&url));
    soon(api.ready()).await;
    let events: Api<Event> = Api::namespaced(api.client(Lane::Events), "ns");
    let error = soon(events.create(&PostParams::default(), &Event::default())).await.unwrap_err();
    assert!(matches!(call_error(&error), Some(CallError::Transport { .. })), "{error:?}");
    assert!(CallError::is_lost_connection(&error), "{error:?}");
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_refused_connection_is_an_error_at_once() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let source = MemorySource::for_server(&format!("http://{}", listener.local_addr().unwrap()));
    drop(listener);
    let api = client(&source);
    assert_eq!(*api.reachability().borrow(), Reachability::Unknown);
    soon(api.ready()).await;
    let error = soon(Api::<Pod>::all(api.client(Lane::Main)).get("p")).await.unwrap_err();
    let text = world::chain(&error);
    assert!(text.contains("refused"), "{text}");
    assert!(!CallError::is_lost_connection(&error), "{error:?}");
    assert!(
        matches!(&*api.reachability().borrow(), Reachability::Unreachable { reason, .. } if reason.contains("refused"))
    );
}
