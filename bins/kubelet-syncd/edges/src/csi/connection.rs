//! One connection for each call: a plugin's socket is root's, so the broker connects, and passes the connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::broker::{BrokerClient, BrokerError};
use bulkhead_ipc::volnetd::PluginSocket;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_types::FAR;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

/// gRPC's own bound on an answer, bytes. What is larger is RESOURCE_EXHAUSTED.
pub const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Error texts travel in the trailers, and drivers put whole outputs of mount there.
const HEADERS_BYTES_MAX: u32 = 128 << 10;
/// A call has one stream, and its answer is small.
const WINDOW_BYTES: u32 = 64 << 10;

/// Which socket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PluginAddress {
    /// A registration socket, relative to `plugins_registry`.
    Registration(String),
    /// What a plugin named in its answer to GetInfo: an absolute path.
    Endpoint(String),
}

impl std::fmt::Display for PluginAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PluginAddress::Registration(name) => write!(f, "plugins_registry/{name}"),
            PluginAddress::Endpoint(path) => f.write_str(path),
        }
    }
}

/// What a [`Dial`] answers with.
pub type DialFuture = Pin<Box<dyn Future<Output = io::Result<UnixStream>> + Send>>;

/// Where connections come from: the broker in production, the socket itself in tests.
pub trait Dial: Send + Sync + std::fmt::Debug + 'static {
    /// A connection of its own for each call.
    fn dial(&self, address: &PluginAddress) -> DialFuture;
}

/// Connections that kubelet-volnetd makes: it looks at owners and folders, and does not wait for a full backlog.
#[derive(Debug, Clone)]
pub struct BrokerDialer(pub BrokerClient);

impl Dial for BrokerDialer {
    fn dial(&self, address: &PluginAddress) -> DialFuture {
        let broker = self.0.clone();
        let socket = match address.clone() {
            PluginAddress::Registration(registration) => PluginSocket { registration, ..Default::default() },
            PluginAddress::Endpoint(endpoint) => PluginSocket { endpoint, ..Default::default() },
        };
        Box::pin(async move {
            let socket = broker.open(Kind::PluginSocket(socket)).await.map_err(|error| match error {
                BrokerError::Refused { code, message, .. } => io::Error::new(refused(code), message),
                other => io::Error::other(other),
            })?;
            let stream = std::os::unix::net::UnixStream::from(socket);
            stream.set_nonblocking(true)?;
            UnixStream::from_std(stream)
        })
    }
}

fn refused(code: Code) -> io::ErrorKind {
    match code {
        Code::NotFound => io::ErrorKind::NotFound,
        // A full backlog, or too much to do for the broker.
        Code::Unavailable => io::ErrorKind::WouldBlock,
        Code::FailedPrecondition | Code::PermissionDenied => io::ErrorKind::PermissionDenied,
        Code::InvalidArgument => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::Other,
    }
}

/// How long a connection may take; the broker answers sooner.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection of its own.
///
/// # Errors
/// UNAVAILABLE: nobody was reached.
async fn connect(dial: &Arc<dyn Dial>, address: &PluginAddress) -> Result<UnixStream, Status> {
    match tokio::time::timeout(DIAL_TIMEOUT, dial.dial(address)).await {
        Ok(dialed) => dialed.map_err(|error| not_reached(address, &error)),
        Err(_) => Err(not_reached(address, &io::ErrorKind::TimedOut.into())),
    }
}

/// Makes one call on a connection of its own. `deadline` begins when there is one.
///
/// # Errors
/// The server's status; UNAVAILABLE when it was not reached, DEADLINE_EXCEEDED, and RESOURCE_EXHAUSTED for an answer above
/// [`ANSWER_BYTES_MAX`].
pub async fn call<Q, R>(
    dial: &Arc<dyn Dial>,
    address: &PluginAddress,
    deadline: Duration,
    message: Q,
    call: impl AsyncFnOnce(Channel, Request<Q>) -> Result<Response<R>, Status>,
) -> Result<R, Status> {
    let stream = connect(dial, address).await?;
    let bounded = async {
        let channel = channel(stream).await?;
        let mut request = Request::new(message);
        request.set_timeout(deadline.min(FAR));
        call(channel, request).await.map(Response::into_inner).map_err(as_grpc_go)
    };
    match tokio::time::timeout(deadline, bounded).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Status::deadline_exceeded("context deadline exceeded")),
    }
}

/// In the words of grpc-go, which users search for.
pub(crate) fn not_reached(address: &PluginAddress, error: &io::Error) -> Status {
    Status::unavailable(format!(
        "connection error: desc = \"transport: Error while dialing: dial unix {address}: {error}\""
    ))
}

/// The connection is made already, and is never made anew: a call that broke off is its caller's to repeat.
pub(crate) async fn channel(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Channel, Status> {
    let mut once = Some(stream);
    // The host part becomes `:authority`. Upstream's client sends this one.
    Endpoint::from_static("http://localhost")
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .http2_max_header_list_size(HEADERS_BYTES_MAX)
        .buffer_size(1)
        .connect_with_connector(tower::service_fn(move |_: http::Uri| {
            let stream = once.take();
            async move { stream.map(TokioIo::new).ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
        }))
        .await
        .map_err(|error| {
            Status::unavailable(format!(
                "connection error: desc = \"error reading server preface: {}\"",
                source(&error)
            ))
        })
}

fn source(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(next) = last.source() {
        last = next;
    }
    last.to_string()
}

/// tonic's own refusals by the codes that grpc-go has for them: an answer that is too large leaves open what has happened.
pub(crate) fn as_grpc_go(status: Status) -> Status {
    let too_large = status.message().contains("message length too large");
    match status.code() {
        Code::OutOfRange if too_large => {
            Status::resource_exhausted(format!("grpc: received message larger than max ({ANSWER_BYTES_MAX} bytes)"))
        }
        // tonic calls a deadline that passed on our side a cancellation.
        Code::Cancelled if status.message() == "Timeout expired" => {
            Status::deadline_exceeded("context deadline exceeded")
        }
        // The transport broke off: grpc-go calls that UNAVAILABLE.
        Code::Unknown | Code::Internal if std::error::Error::source(&status).is_some() => {
            Status::unavailable(format!("error reading from server: {}", source(&status)))
        }
        _ => status,
    }
}
