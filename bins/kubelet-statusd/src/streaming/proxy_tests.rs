//! The pass-through between a client that writes its own bytes and streaming servers of all kinds.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::*;

const UPGRADE: &str = "POST /exec/ns/p/c?command=x&output=1 HTTP/1.1\r\nHost: node:10250\r\nConnection: Upgrade\r\n\
                       Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\
                       Authorization: Bearer CLIENT-SECRET\r\nContent-Length: 0\r\n\r\n";

/// A client's connection to a server that passes everything through to `runtime`, which serves one connection.
async fn between<F>(runtime: impl FnOnce(TcpStream) -> F + Send + 'static) -> (DuplexStream, Arc<Semaphore>)
where
    F: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        drop(listener);
        runtime(stream).await;
    });
    let slots = Arc::new(Semaphore::new(1));
    let (client, server) = duplex(1 << 10);
    let held = slots.clone();
    tokio::spawn(async move {
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            let slots = held.clone();
            async move {
                request.extensions_mut().insert(SocketAddr::from(([10, 0, 0, 7], 5)));
                let target = StreamUrl::parse(&format!("http://{address}/exec/TOKEN")).unwrap();
                let allowance = Allowance::new(None, slots.acquire_owned().await.unwrap(), None);
                Ok::<_, Infallible>(pass_through(request, &target, allowance).await)
            }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.keep_alive(false);
        builder.serve_connection(TokioIo::new(server), service).with_upgrades().await.unwrap();
    });
    (client, slots)
}

/// Reads up to the end of a head.
async fn head(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") {
        seen.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(seen).unwrap()
}

/// All that the client gets for its request, from a runtime that says `answer` and closes.
async fn refused(request: &'static str, answer: &'static str) -> String {
    let (mut client, _) = between(move |mut runtime| async move {
        head(&mut runtime).await;
        runtime.write_all(answer.as_bytes()).await.unwrap();
    })
    .await;
    client.write_all(request.as_bytes()).await.unwrap();
    let mut seen = String::new();
    client.read_to_string(&mut seen).await.unwrap();
    seen
}

#[tokio::test]
async fn the_request_is_made_again_and_bytes_go_both_ways() {
    let (mut client, slots) = between(|mut runtime| async move {
        let seen = head(&mut runtime).await;
        assert!(seen.starts_with("POST /exec/TOKEN HTTP/1.1\r\n"), "{seen}");
        for line in [
            "Host: node:10250",
            "Connection: Upgrade",
            "Upgrade: SPDY/3.1",
            "X-Stream-Protocol-Version: v4.channel.k8s.io",
            "X-Forwarded-For: 10.0.0.7",
        ] {
            assert!(seen.contains(&format!("{line}\r\n")), "{line}: {seen}");
        }
        assert!(!seen.contains("SECRET") && !seen.contains("command"), "{seen}");
        // The first bytes of the stream come with the head.
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
                      X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\nearly";
        runtime.write_all(answer.as_bytes()).await.unwrap();
        let mut input = Vec::new();
        runtime.read_to_end(&mut input).await.unwrap();
        assert_eq!(input, b"input");
        runtime.write_all(b" and late").await.unwrap();
    })
    .await;
    client.write_all(UPGRADE.as_bytes()).await.unwrap();
    let answer = head(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    assert!(answer.to_lowercase().contains("x-stream-protocol-version: v4.channel.k8s.io\r\n"), "{answer}");
    client.write_all(b"input").await.unwrap();
    client.shutdown().await.unwrap();
    let mut output = String::new();
    client.read_to_string(&mut output).await.unwrap();
    assert_eq!(output, "early and late");
    assert!(slots.acquire().await.is_ok(), "the place of the stream is free again");
}

#[tokio::test]
async fn a_refusal_is_the_clients() {
    let answer = "HTTP/1.1 403 Forbidden\r\nX-Accepted-Stream-Protocol-Versions: v4.channel.k8s.io\r\n\
                  Content-Length: 4\r\nConnection: close\r\n\r\nno\r\n";
    let seen = refused(UPGRADE, answer).await.to_lowercase();
    assert!(seen.starts_with("http/1.1 403 "), "{seen}");
    assert!(seen.contains("x-accepted-stream-protocol-versions: v4.channel.k8s.io\r\n"), "{seen}");
    assert!(seen.ends_with("\r\n\r\nno\r\n"), "{seen}");
    let seen =
        refused(UPGRADE, "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nno!\r\n0\r\n\r\n").await;
    assert!(seen.starts_with("HTTP/1.1 404 ") && seen.ends_with("no!"), "{seen}");
}

#[tokio::test]
async fn what_is_no_upgrade_is_an_error() {
    for (answer, why) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "invalid upgrade response: status code 200"),
        (
            "HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/SECRET\r\nContent-Length: 0\r\n\r\n",
            "invalid upgrade response: status code 302",
        ),
        ("SSH-2.0-x\r\n\r\n", "the runtime's streaming server broke off"),
        ("", "the runtime's streaming server broke off"),
    ] {
        let seen = refused(UPGRADE, answer).await;
        assert!(seen.starts_with("HTTP/1.1 500 "), "{answer}: {seen}");
        assert!(seen.ends_with(&format!("\r\n\r\n{why}\n")), "{answer}: {seen}");
        assert!(!seen.contains("TOKEN") && !seen.contains("SECRET"), "{seen}");
    }
}

#[tokio::test]
async fn a_request_that_is_no_upgrade_is_refused() {
    let seen = refused("GET /exec/ns/p/c?output=1 HTTP/1.1\r\nHost: n\r\n\r\n", "").await;
    assert!(seen.starts_with("HTTP/1.1 500 ") && seen.ends_with("\r\n\r\nUpgrade request required\n"), "{seen}");
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_never_answers_is_given_up() {
    let (mut client, slots) = between(|runtime| async move {
        std::future::pending::<()>().await;
        drop(runtime);
    })
    .await;
    client.write_all(UPGRADE.as_bytes()).await.unwrap();
    let answer = head(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    assert!(slots.acquire().await.is_ok());
}
