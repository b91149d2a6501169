//! A channel to another process.
//!
//! Connected does not mean alive: the launcher (or systemd) holds the sockets open, so a connection to a dead process
//! succeeds and then stays silent. Hence [`Link`]: a task that says `Hello`, keeps a health stream open to notice at once
//! when the process goes, and publishes what it knows as [`PeerState`]. "Unknown" is a state of its own; nobody may read
//! it as "gone".

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::{BackOff, Epoch, Process};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};

use crate::common::HelloRequest;
use crate::common::process_client::ProcessClient;

/// After so long without an answer to `Hello` nothing is known of a peer; the deadline of the other calls of `Process`.
pub const HELLO_DEADLINE: Duration = Duration::from_secs(1);
/// After so long a `Hello` is taken for lost, and another one said. Each that is given up stays with the connection for as long as
/// the other end reads nothing, so it must not be said again and again.
const HELLO_LOST: Duration = Duration::from_secs(120);
/// A connection with calls on it on which nothing has come for so long is asked whether anybody reads: later than the other end asks
/// the same ([`crate::limits::Limits::keepalive`]), so that nothing is sent where it does.
const SILENCE: Duration = Duration::from_secs(40);
/// Without an answer for so long the connection goes, and with it what piled up there.
const SILENCE_PATIENCE: Duration = Duration::from_secs(20);
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// What may wait unread of one answer.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// What may wait unread of all answers of a connection: more than the few streams together whose readers rest for as long as the API
/// server is away, so that these hold up no other call.
const CONNECTION_WINDOW_BYTES: u32 = 512 * 1024;

/// What is known of the process at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerState {
    /// Starting, restarting, or too busy to answer. Never "gone".
    Unknown,
    /// It answered; `ready` says whether it can do its job yet.
    Known { epoch: Epoch, ready: bool },
}

impl PeerState {
    /// The epoch of a peer that is ready.
    pub fn ready_epoch(self) -> Option<Epoch> {
        match self {
            PeerState::Known { epoch, ready: true } => Some(epoch),
            _ => None,
        }
    }
}

fn endpoint() -> Endpoint {
    // The authority is never resolved: the connector decides where to go.
    Endpoint::from_static("http://localhost")
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(SILENCE)
        .keep_alive_timeout(SILENCE_PATIENCE)
}

/// A lazily connected channel to a Unix socket. Reconnects by itself; a call on a broken connection fails once with
/// UNAVAILABLE, and so does one whose other end reads nothing for a minute.
pub fn channel(socket: &Path) -> Channel {
    let socket: Arc<Path> = Arc::from(PathBuf::from(socket));
    endpoint().connect_with_connector_lazy(tower::service_fn(move |_: http::Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(&*socket).await.map(TokioIo::new) }
    }))
}

/// A lazily connected channel to a port of a machine over vsock, for who looks in from outside; as [`channel`].
pub fn vsock_channel(cid: u32, port: u32) -> Channel {
    endpoint().connect_with_connector_lazy(tower::service_fn(move |_: http::Uri| async move {
        // The kernel may wait for the other machine.
        let fd = tokio::task::spawn_blocking(move || bulkhead_sys::vsock::connect(cid, port)).await??;
        let stream = std::os::unix::net::UnixStream::from(fd);
        stream.set_nonblocking(true)?;
        UnixStream::from_std(stream).map(TokioIo::new)
    }))
}

/// A channel to one of our processes, with knowledge of its life.
#[derive(Debug, Clone)]
pub struct Link {
    process: Process,
    socket: Arc<Path>,
    channel: Channel,
    state: watch::Receiver<PeerState>,
}

impl Link {
    /// Opens the link and starts the task that watches the other process; the task ends when every clone is dropped.
    /// Must be called within a tokio runtime.
    pub fn open(me: &'static str, process: Process, socket: &Path) -> Self {
        let channel = channel(socket);
        let (sender, state) = watch::channel(PeerState::Unknown);
        tokio::spawn(follow(me, process, channel.clone(), sender));
        Link { process, socket: Arc::from(socket), channel, state }
    }

    pub fn process(&self) -> Process {
        self.process
    }

    /// For generated clients: `VolumesClient::new(link.channel())`.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// A channel of its own to the same process, for an answer that is read as fast as somebody outside takes it: what waits unread
    /// there counts in no window but its own. The other end allows a process [`crate::limits::Limits::connections`] of them.
    pub fn separate_channel(&self) -> Channel {
        channel(&self.socket)
    }

    pub fn state(&self) -> PeerState {
        *self.state.borrow()
    }

    /// A receiver that sees every change of the state (restart, readiness).
    pub fn watch(&self) -> watch::Receiver<PeerState> {
        self.state.clone()
    }

    /// Waits until the process is ready and gives its epoch. Waits for ever: wrap it in a timeout where that matters.
    pub async fn ready(&self) -> Epoch {
        let mut state = self.state.clone();
        loop {
            if let Some(epoch) = state.borrow_and_update().ready_epoch() {
                return epoch;
            }
            if state.changed().await.is_err() {
                // The follower lives as long as this link does, so this is unreachable; waiting is the safe answer.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Says Hello until it is answered, then sits on the health stream until that breaks, and again.
async fn follow(me: &'static str, process: Process, channel: Channel, state: watch::Sender<PeerState>) {
    let mut retry = BackOff::new(RETRY_MIN, RETRY_MAX);
    let mut last_epoch = None;
    loop {
        let mut answer = std::pin::pin!(hello(me, &channel));
        let known = tokio::select! {
            known = &mut answer => known,
            () = tokio::time::sleep(HELLO_DEADLINE) => {
                publish(&state, PeerState::Unknown);
                tracing::debug!(peer = process.name(), "peer does not answer: it has not within 1 s");
                // It does once it runs again: what was said waits in its socket.
                tokio::select! {
                    known = answer => known,
                    () = state.closed() => return,
                }
            }
            () = state.closed() => return,
        };
        match known {
            Ok((epoch, ready)) => {
                if last_epoch != Some(epoch) {
                    tracing::info!(peer = process.name(), %epoch, restarted = last_epoch.is_some(), "peer answers");
                    last_epoch = Some(epoch);
                }
                publish(&state, PeerState::Known { epoch, ready });
                if ready {
                    retry.reset();
                    tokio::select! {
                        () = until_gone(&channel) => {}
                        () = state.closed() => return,
                    }
                    publish(&state, PeerState::Unknown);
                    tracing::info!(peer = process.name(), "peer went away, waiting for it");
                    continue;
                }
            }
            Err(status) => {
                publish(&state, PeerState::Unknown);
                tracing::debug!(peer = process.name(), code = ?status.code(), "peer does not answer: {}", status.message());
            }
        }
        tokio::select! {
            () = tokio::time::sleep(retry.pause()) => {}
            () = state.closed() => return,
        }
    }
}

fn publish(state: &watch::Sender<PeerState>, now: PeerState) {
    state.send_if_modified(|old| std::mem::replace(old, now) != now);
}

async fn hello(me: &'static str, channel: &Channel) -> Result<(Epoch, bool), tonic::Status> {
    let mut request =
        tonic::Request::new(HelloRequest { process: me.into(), version: env!("CARGO_PKG_VERSION").into() });
    request.set_timeout(HELLO_LOST);
    // The server's own deadline does not help when nobody serves: the timeout here is what ends the wait.
    let reply = tokio::time::timeout(HELLO_LOST, ProcessClient::new(channel.clone()).hello(request))
        .await
        .map_err(|_| tonic::Status::deadline_exceeded("Hello was not answered within two minutes"))??
        .into_inner();
    let epoch = Epoch::from_wire(reply.epoch).ok_or_else(|| tonic::Status::internal("peer sent epoch 0"))?;
    Ok((epoch, reply.ready))
}

/// Resolves when the health stream ends or says "not serving": the process stopped, was killed, or drains.
async fn until_gone(channel: &Channel) {
    let request = tonic_health::pb::HealthCheckRequest { service: String::new() };
    let mut client = tonic_health::pb::health_client::HealthClient::new(channel.clone());
    let Ok(Ok(stream)) = tokio::time::timeout(HELLO_DEADLINE, client.watch(request)).await else { return };
    let mut stream = stream.into_inner();
    while let Ok(Some(reply)) = stream.message().await {
        if reply.status() == tonic_health::pb::health_check_response::ServingStatus::NotServing {
            return;
        }
    }
}

/// All mean that nothing is known of the effect of a call: the other side restarts or is stuck.
pub fn is_unknown(status: &tonic::Status) -> bool {
    matches!(status.code(), tonic::Code::Unavailable | tonic::Code::DeadlineExceeded | tonic::Code::Cancelled)
}
