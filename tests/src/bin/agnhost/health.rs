//! gRPC's health protocol: one method, two fields.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use http::{HeaderMap, HeaderValue};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};

const CHECK: &str = "/grpc.health.v1.Health/Check";
const SERVING: u8 = 1;
const NOT_SERVING: u8 = 2;

/// What is said of which service.
#[derive(Clone)]
pub struct Health {
    service: String,
    started: Instant,
    /// Seconds from the start after which it serves no more; negative: never.
    unhealthy_after: i64,
    forced: Arc<AtomicBool>,
}

impl Health {
    pub fn new(service: &str, unhealthy_after: i64, forced: Arc<AtomicBool>) -> Self {
        Self { service: service.to_owned(), started: Instant::now(), unhealthy_after, forced }
    }

    /// The status, or the code and text of a refusal.
    fn check(&self, path: &str, request: &[u8]) -> Result<u8, (&'static str, &'static str)> {
        if path != CHECK {
            return Err(("12", "unimplemented"));
        }
        // Five bytes of gRPC; then field 1, the service: its key, its length (below 128), its text.
        let asked = request.get(7..).unwrap_or_default();
        if asked != self.service.as_bytes() {
            return Err(("5", "unknown service"));
        }
        let late = u64::try_from(self.unhealthy_after).is_ok_and(|limit| self.started.elapsed().as_secs() >= limit);
        let well = !self.forced.load(Ordering::Relaxed) && !late;
        Ok(if well { SERVING } else { NOT_SERVING })
    }
}

/// Answers on all addresses of the pod.
pub async fn serve(port: u16, health: Health) -> Result<()> {
    let listener = super::listen(port).await?;
    loop {
        let (stream, client) = listener.accept().await.context("taking a connection")?;
        let health = health.clone();
        tokio::spawn(async move {
            let service = hyper::service::service_fn(|request| answer(health.clone(), request));
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
                println!("connection of {client}: {error:#}");
            }
        });
    }
}

type Body = StreamBody<futures_util::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

async fn answer(health: Health, request: Request<Incoming>) -> Result<Response<Body>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    println!("{} {}", head.uri.path(), serde_json::json!(agent(&head.headers)));
    let mut trailers = HeaderMap::new();
    let mut frames = Vec::new();
    match health.check(head.uri.path(), &body) {
        Ok(status) => {
            // Uncompressed, two bytes long: field 1, the status.
            frames.push(Frame::data(Bytes::copy_from_slice(&[0, 0, 0, 0, 2, 8, status])));
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
        }
        Err((code, text)) => {
            trailers.insert("grpc-status", HeaderValue::from_static(code));
            trailers.insert("grpc-message", HeaderValue::from_static(text));
        }
    }
    frames.push(Frame::trailers(trailers));
    let frames: Vec<Result<Frame<Bytes>, Infallible>> = frames.into_iter().map(Ok).collect();
    let mut response = Response::new(StreamBody::new(futures_util::stream::iter(frames)));
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    Ok(response)
}

fn agent(headers: &HeaderMap) -> String {
    headers.get("user-agent").map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_known_by_its_name() {
        let health = |name: &str, after| Health::new(name, after, Arc::default());
        let asks = |name: &str| [&[0, 0, 0, 0, 0, 10, name.len() as u8], name.as_bytes()].concat();
        assert_eq!(health("", -1).check(CHECK, &[0; 5]), Ok(SERVING));
        assert_eq!(health("", 0).check(CHECK, &[0; 5]), Ok(NOT_SERVING));
        assert_eq!(health("a", -1).check(CHECK, &asks("a")), Ok(SERVING));
        assert_eq!(health("", -1).check(CHECK, &asks("a")), Err(("5", "unknown service")));
        assert_eq!(health("", -1).check("/x", &[0; 5]), Err(("12", "unimplemented")));
        let forced = Health { forced: Arc::new(AtomicBool::new(true)), ..health("", -1) };
        assert_eq!(forced.check(CHECK, &[0; 5]), Ok(NOT_SERVING));
    }
}
