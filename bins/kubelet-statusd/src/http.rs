//! A small HTTP/1.1 server with bounds: on header size and time, on the number and life of connections, on the time of
//! an answer. Bodies of requests are never read.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::app::App;
use crate::routes::Surface;
use crate::server::answer;

/// Bounds of a server.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once; more wait in the kernel's backlog.
    pub connections: usize,
    /// Request line and headers, bytes.
    pub head_bytes: usize,
    /// From the first byte of a request to the end of its headers.
    pub head_time: Duration,
    /// Of a connection, kept open or not: what limits slow readers and idle ones.
    pub connection_life: Duration,
    /// Of one answer.
    pub answer_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 64,
            head_bytes: 16 * 1024,
            head_time: Duration::from_secs(10),
            connection_life: Duration::from_secs(90),
            answer_time: Duration::from_secs(15),
        }
    }
}

/// Serves the listener until it fails or the future is dropped.
pub async fn serve_http(listener: TcpListener, surface: Surface, app: Arc<App>, limits: Limits) {
    let slots = Arc::new(Semaphore::new(limits.connections));
    // Connections end with the server.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let app = app.clone();
                connections.spawn(async move {
                    connection(stream, surface, app, limits).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, surface: Surface, app: Arc<App>, limits: Limits) {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let app = app.clone();
        async move {
            let answer = app.answer(surface, request);
            let answer = match tokio::time::timeout(limits.answer_time, answer).await {
                Ok(answer) => answer,
                Err(_) => answer::text(StatusCode::SERVICE_UNAVAILABLE, "the node agent did not answer in time\n"),
            };
            Ok::<_, Infallible>(answer)
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_buf_size(limits.head_bytes)
        .serve_connection(TokioIo::new(stream), service);
    let mut served = std::pin::pin!(served);
    let outcome = tokio::select! {
        outcome = &mut served => outcome,
        () = tokio::time::sleep(limits.connection_life) => {
            served.as_mut().graceful_shutdown();
            match tokio::time::timeout(limits.answer_time, served).await {
                Ok(outcome) => outcome,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "connection ended");
    }
}
