//! Requests as they come over HTTP, the runtime's answers as they come over HTTP, and what is counted.

use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use prometheus::{Encoder as _, Registry, TextEncoder};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::super::options::StreamOptions;
use super::super::proxy::Allowance;
use super::super::target::StreamUrl;
use super::{Subresource, TranslateMetrics};

const HANDSHAKE: &str = "Host: node\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// What a client gets for these bytes when the runtime gives that answer; what the runtime was asked; the metrics.
async fn exchange(request: String, runtime_says: &'static str) -> (String, String, String) {
    let runtime = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = StreamUrl::parse(&format!("http://{}/stream/TOKEN", runtime.local_addr().unwrap())).unwrap();
    let asked = tokio::spawn(async move {
        let Ok((mut stream, _)) = runtime.accept().await else { return String::new() };
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            asked.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(runtime_says.as_bytes()).await.unwrap();
        String::from_utf8(asked).unwrap().to_ascii_lowercase()
    });
    let registry = Registry::new();
    let metrics = TranslateMetrics::register(&registry).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let (metrics, target) = (metrics.clone(), target.clone());
            async move {
                let slot = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
                let allowance = Allowance::new(None, slot, None);
                let options = StreamOptions { stdin: false, stdout: true, stderr: false, tty: false };
                Ok::<_, std::convert::Infallible>(match request.uri().path() {
                    "/portForward" => super::port_forward(&metrics, request, target, allowance).await,
                    _ => super::remote_command(&metrics, Subresource::Attach, request, target, options, allowance),
                })
            }
        });
        let server = hyper::server::conn::http1::Builder::new();
        let _ = server.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
    });
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(request.as_bytes()).await.unwrap();
    // A close, masked, for what has become a WebSocket; a half request for what has not.
    client.write_all(b"\x88\x80\0\0\0\0").await.unwrap();
    client.shutdown().await.unwrap();
    let mut got = Vec::new();
    let _ = client.read_to_end(&mut got).await;
    let mut counted = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut counted).unwrap();
    asked.abort();
    let asked = asked.await.unwrap_or_default();
    (String::from_utf8_lossy(&got).into_owned(), asked, String::from_utf8(counted).unwrap())
}

#[tokio::test]
async fn a_tunnel_and_what_the_runtime_refuses() {
    let tunnel = format!(
        "GET /portForward HTTP/1.1\r\n{HANDSHAKE}Authorization: Bearer SECRET\r\n\
         Sec-WebSocket-Protocol: SPDY/3.1+portforward.k8s.io\r\n\r\n"
    );
    let switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
                    X-Stream-Protocol-Version: portforward.k8s.io\r\n\r\n";
    let (got, asked, counted) = exchange(tunnel.clone(), switched).await;
    let head = got.to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{got}");
    for line in [
        "sec-websocket-protocol: spdy/3.1+portforward.k8s.io\r\n",
        "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n",
        "upgrade: websocket\r\n",
    ] {
        assert!(head.contains(line), "{line} in {head}");
    }
    assert!(asked.starts_with("post /stream/token http/1.1\r\n"), "{asked}");
    assert!(asked.contains("x-stream-protocol-version: portforward.k8s.io\r\n"), "{asked}");
    assert!(!asked.contains("secret") && !asked.contains("websocket"), "the client's headers end here: {asked}");
    assert!(counted.contains("apiserver_stream_tunnel_requests_total{code=\"101\"} 1"), "{counted}");
    assert!(counted.contains("kubelet_websocket_streaming_requests_total{subresource=\"portforward\"} 1"));

    let gone = "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nSet-Cookie: x\r\nContent-Length: 5\r\n\r\ngone\n";
    let (got, _, counted) = exchange(tunnel.clone(), gone).await;
    assert!(got.starts_with("HTTP/1.1 404 ") && got.contains("\r\n\r\ngone\n"), "{got}");
    assert!(!got.to_ascii_lowercase().contains("cookie"), "{got}");
    assert!(counted.contains("apiserver_stream_tunnel_requests_total{code=\"404\"} 1"), "{counted}");

    let other = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let (got, ..) = exchange(tunnel.clone(), other).await;
    assert!(got.starts_with("HTTP/1.1 500 ") && got.contains("unable to upgrade: missing upgrade headers"), "{got}");

    let (got, ..) = exchange(tunnel.replace(".k8s.io", ".example"), switched).await;
    assert!(got.starts_with("HTTP/1.1 400 ") && got.contains("no tunneling spdy protocols provided"), "{got}");
}

#[tokio::test]
async fn a_command_that_cannot_become_a_websocket() {
    let (got, asked, counted) = exchange(
        format!("GET /attach HTTP/1.1\r\n{}\r\n", HANDSHAKE.replace("Version: 13", "Version: 8")),
        "never asked",
    )
    .await;
    assert!(got.starts_with("HTTP/1.1 400 ") && got.contains("missing or bad WebSocket Version"), "{got}");
    assert!(got.to_ascii_lowercase().contains("sec-websocket-version: 13\r\n"), "{got}");
    assert!(asked.is_empty(), "{asked}");
    assert!(counted.contains("apiserver_stream_translator_requests_total{code=\"400\"} 1"), "{counted}");
    assert!(counted.contains("kubelet_websocket_streaming_requests_total{subresource=\"attach\"} 1"), "{counted}");
}
