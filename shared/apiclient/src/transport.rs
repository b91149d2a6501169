//! Connections: how they are made, how they are shared, and when they are given up.
//!
//! Each lane has a connection for its calls, and as many for its watches as it needs: a server allows a limited number
//! of streams on one HTTP/2 connection, and a call that waits for a stream to end would wait for a watch. With HTTP/1.1
//! each watch has a connection of its own anyway.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http_body_util::Full;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::{Mutex, MutexGuard};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use crate::Lane;
use crate::material::Wire;
use crate::tls::{self, TlsError, Trust};

/// TCP alone; names that have several addresses share it.
const CONNECT: Duration = Duration::from_secs(10);
/// Name, TCP and TLS together.
const ESTABLISH: Duration = Duration::from_secs(20);
/// A connection on which nothing came for so long is asked whether it lives (Go `http2.Transport` as client-go sets it).
const PING_AFTER: Duration = Duration::from_secs(30);
/// How long the answer may take.
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// Unused connections.
const IDLE: Duration = Duration::from_secs(90);
/// Watches on one connection. Load balancers allow 100 or 128 streams, the API server more.
pub const STREAMS: usize = 90;
/// What the other side may send ahead on one stream, bytes, and on all of a connection.
const WINDOWS: (u32, u32) = (512 << 10, 4 << 20);

pub type HyperClient = Client<Deadline<HttpsConnector<HttpConnector>>, Full<Bytes>>;
type Error = Box<dyn std::error::Error + Send + Sync>;

/// A connector that gives up.
#[derive(Debug, Clone)]
pub struct Deadline<C>(C);

impl<C> Service<Uri> for Deadline<C>
where
    C: Service<Uri, Error = Error>,
    C::Future: Send + 'static,
    C::Response: Send + 'static,
{
    type Response = C::Response;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.0.call(uri);
        Box::pin(async move {
            match tokio::time::timeout(ESTABLISH, connecting).await {
                Ok(connected) => connected,
                Err(_) => Err(format!("no connection within {} s", ESTABLISH.as_secs()).into()),
            }
        })
    }
}

/// One HTTP/2 connection, or a handful of HTTP/1.1.
#[derive(Debug)]
pub struct Slot {
    client: HyperClient,
    streams: AtomicUsize,
    abandoned: CancellationToken,
}

impl Slot {
    pub fn client(&self) -> &HyperClient {
        &self.client
    }

    /// Resolves when nothing should be expected of this connection any more.
    pub fn abandoned(&self) -> CancellationToken {
        self.abandoned.clone()
    }

    pub fn is_abandoned(&self) -> bool {
        self.abandoned.is_cancelled()
    }

    /// No new request goes here, and its watches end.
    pub fn abandon(&self) {
        self.abandoned.cancel();
    }
}

/// A place on a slot; leaves it when dropped.
#[derive(Debug)]
pub struct Place(Arc<Slot>);

impl Place {
    fn take(slot: &Arc<Slot>) -> Self {
        slot.streams.fetch_add(1, Ordering::Relaxed);
        Place(slot.clone())
    }

    pub fn slot(&self) -> &Arc<Slot> {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Slots {
    calls: Arc<Slot>,
    watches: Vec<Arc<Slot>>,
}

/// All connections that one set of credentials made.
#[derive(Debug)]
pub struct Connections {
    tls: ClientConfig,
    server_name: Option<ServerName<'static>>,
    lanes: [Mutex<Slots>; Lane::ALL.len()],
}

impl Connections {
    /// Prepares; nothing is connected yet.
    ///
    /// # Errors
    /// Certificates that cannot be used.
    pub fn new(wire: &Wire) -> Result<Self, TlsError> {
        let certificate =
            wire.certificate.as_ref().map(|(chain, key)| (chain.expose().as_bytes(), key.expose().as_bytes()));
        // Without TLS nobody is to be trusted, and the machine's roots need not be read.
        let trust = if wire.server.is_tls() { &wire.trust } else { &Trust::Anyone };
        let tls = tls::client_config(trust, certificate)?;
        let server_name = match &wire.server_name {
            None => None,
            Some(name) => Some(ServerName::try_from(name.clone()).map_err(|_| TlsError::ServerName(name.clone()))?),
        };
        let lanes = Lane::ALL.map(|_| {
            let calls = Arc::new(slot(&tls, server_name.as_ref()));
            Mutex::new(Slots { calls, watches: Vec::new() })
        });
        Ok(Connections { tls, server_name, lanes })
    }

    fn lane(&self, lane: Lane) -> MutexGuard<'_, Slots> {
        self.lanes[lane as usize].lock()
    }

    fn slot(&self) -> Arc<Slot> {
        Arc::new(slot(&self.tls, self.server_name.as_ref()))
    }

    /// Where a call goes.
    pub fn for_call(&self, lane: Lane) -> Place {
        let mut slots = self.lane(lane);
        if slots.calls.abandoned.is_cancelled() {
            slots.calls = self.slot();
        }
        Place::take(&slots.calls)
    }

    /// Where a watch goes.
    pub fn for_watch(&self, lane: Lane) -> Place {
        let mut slots = self.lane(lane);
        slots.watches.retain(|slot| !slot.abandoned.is_cancelled());
        if let Some(slot) = slots.watches.iter().find(|slot| slot.streams.load(Ordering::Relaxed) < STREAMS) {
            let place = Place::take(slot);
            // The emptied ones behind it are not needed any more.
            slots.watches.retain(|slot| slot.streams.load(Ordering::Relaxed) > 0);
            return place;
        }
        let slot = self.slot();
        let place = Place::take(&slot);
        slots.watches.push(slot);
        place
    }

    /// Gives up the lane's connections. Calls under way end by themselves, watches at once.
    pub fn close_lane(&self, lane: Lane) {
        let mut slots = self.lane(lane);
        slots.calls.abandon();
        slots.watches.drain(..).for_each(|slot| slot.abandon());
    }

    /// Gives up all of them.
    pub fn close(&self) {
        Lane::ALL.into_iter().for_each(|lane| self.close_lane(lane));
    }
}

fn slot(tls: &ClientConfig, server_name: Option<&ServerName<'static>>) -> Slot {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT));
    // For HTTP/1.1, which has no pings.
    http.set_keepalive(Some(PING_AFTER));
    http.set_keepalive_interval(Some(PING_TIMEOUT / 3));
    http.set_keepalive_retries(Some(3));
    http.set_tcp_user_timeout(Some(PING_AFTER + PING_TIMEOUT));
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http();
    let builder = match server_name {
        Some(name) => builder.with_server_name_resolver(FixedServerNameResolver::new(name.clone())),
        None => builder,
    };
    let connector = Deadline(builder.enable_all_versions().wrap_connector(http));
    let client = Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(4)
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .http2_initial_stream_window_size(WINDOWS.0)
        .http2_initial_connection_window_size(WINDOWS.1)
        .build(connector);
    Slot { client, streams: AtomicUsize::new(0), abandoned: CancellationToken::new() }
}
