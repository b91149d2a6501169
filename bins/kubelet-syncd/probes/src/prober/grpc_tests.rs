//! Health checks of real local servers.

use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(10);

/// A server that answers each request with these headers, body and trailers.
async fn server(
    status: u16,
    headers: &'static [(&'static str, &'static str)],
    body: &'static [u8],
    trailers: &'static [(&'static str, &'static str)],
) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| async move {
                assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                assert_eq!(request.headers()["user-agent"], "kube-probe/1.36");
                assert!(request.headers()["grpc-timeout"].to_str().unwrap().ends_with('m'));
                let _ = request.into_body().collect().await;
                let mut response = http::Response::builder().status(status);
                for (name, value) in headers {
                    response = response.header(*name, *value);
                }
                let trailers =
                    trailers.iter().map(|(n, v)| (http::HeaderName::from_static(n), http::HeaderValue::from_static(v)));
                let frames = [
                    Some(hyper::body::Frame::data(Bytes::from_static(body))),
                    (trailers.len() > 0).then(|| hyper::body::Frame::trailers(trailers.collect())),
                ];
                let frames = frames.into_iter().flatten().map(Ok::<_, std::convert::Infallible>);
                response.body(http_body_util::StreamBody::new(futures_util::stream::iter(frames)))
            });
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
        }
    });
    port
}

async fn ask_it(port: u16) -> Result<(), String> {
    check("127.0.0.1", port, "svc", LONG).await
}

const GRPC: &[(&str, &str)] = &[("content-type", "application/grpc")];
const OK: &[(&str, &str)] = &[("grpc-status", "0")];

#[tokio::test]
async fn serving_and_not() {
    assert_eq!(ask_it(server(200, GRPC, &[0, 0, 0, 0, 2, 8, 1], OK).await).await, Ok(()));
    for (body, name) in [
        (&[0, 0, 0, 0, 2, 8, 2][..], "NOT_SERVING"),
        (&[0, 0, 0, 0, 2, 8, 3], "SERVICE_UNKNOWN"),
        (&[0, 0, 0, 0, 0], "UNKNOWN"),
        (&[0, 0, 0, 0, 2, 8, 9], "9"),
    ] {
        let expected = format!("service unhealthy (responded with {name:?})");
        assert_eq!(ask_it(server(200, GRPC, body, OK).await).await, Err(expected));
    }
}

#[tokio::test]
async fn failures_in_upstreams_words() {
    let unimplemented: &[(&str, &str)] =
        &[("content-type", "application/grpc"), ("grpc-status", "12"), ("grpc-message", "unknown service%21")];
    let missing = "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): ";
    assert_eq!(ask_it(server(200, unimplemented, b"", &[]).await).await, Err(format!("{missing}unknown service!")));
    let not_found: &[(&str, &str)] = &[("grpc-status", "5"), ("grpc-message", "unknown service")];
    let expected = "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service";
    assert_eq!(ask_it(server(200, GRPC, b"", not_found).await).await, Err(expected.to_owned()));
    let late: &[(&str, &str)] = &[("grpc-status", "4")];
    let expected = "timeout: health rpc did not complete within 10s";
    assert_eq!(ask_it(server(200, GRPC, b"", late).await).await, Err(expected.to_owned()));
    let expected = "unexpected HTTP status code received from server: 404 (Not Found); transport: received unexpected content-type \"text/plain\"";
    let plain: &[(&str, &str)] = &[("content-type", "text/plain")];
    assert_eq!(ask_it(server(404, plain, b"no", &[]).await).await, Err(format!("{missing}{expected}")));
    let expected = "error: health rpc probe failed: rpc error: code = Internal desc = server closed the stream without sending trailers";
    assert_eq!(ask_it(server(200, GRPC, &[0, 0, 0, 0, 0], &[]).await).await, Err(expected.to_owned()));
}

#[tokio::test]
async fn a_server_of_another_library_is_understood() {
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter.set_service_status("svc", tonic_health::ServingStatus::Serving).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(
        tonic::transport::Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)),
    );
    assert_eq!(ask_it(port).await, Ok(()));
    reporter.set_service_status("svc", tonic_health::ServingStatus::NotServing).await;
    assert_eq!(ask_it(port).await, Err("service unhealthy (responded with \"NOT_SERVING\")".to_owned()));
    let unknown = check("127.0.0.1", port, "other", LONG).await.unwrap_err();
    assert!(unknown.starts_with("error: health rpc probe failed: rpc error: code = NotFound desc = "), "{unknown}");
}

#[tokio::test]
async fn a_refused_connection_or_another_protocol() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let expected = |port: u16| {
        format!("timeout: failed to connect service \"127.0.0.1:{port}\" within 1s: context deadline exceeded")
    };
    assert_eq!(check("127.0.0.1", free, "", SECOND).await, Err(expected(free)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 512]).await;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
        }
    });
    assert_eq!(check("127.0.0.1", port, "", SECOND).await, Err(expected(port)));
}

#[tokio::test]
async fn a_server_that_never_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            // Settings and nothing else.
            let _ = stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await;
            open.push(stream);
        }
    });
    assert_eq!(
        check("127.0.0.1", port, "", SECOND).await,
        Err("timeout: health rpc did not complete within 1s".to_owned())
    );
}

/// It sends its settings and pings, and reads nothing: the answers to the pings fill the connection, so nothing can be written.
#[tokio::test]
async fn a_server_that_reads_nothing_is_left() {
    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    const PING: &[u8] = &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let left = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(SETTINGS).await.unwrap();
        let pings = PING.repeat(1024);
        while stream.write_all(&pings).await.is_ok() {}
    });
    let expected = "timeout: health rpc did not complete within 1s";
    assert_eq!(check("127.0.0.1", port, "", SECOND).await, Err(expected.to_owned()));
    assert!(!left.is_finished(), "it is told first");
    tokio::time::timeout(LONG, left).await.expect("the connection is closed").unwrap();
}
