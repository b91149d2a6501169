//! Reaching a process, and saying plainly why it could not be reached.

use std::path::PathBuf;
use std::time::Duration;

use bulkhead_ipc::client::{HELLO_DEADLINE, channel, vsock_channel};
use bulkhead_ipc::common::process_client::ProcessClient;
use bulkhead_ipc::common::{HelloReply, HelloRequest};
use bulkhead_ipc::context::CallContext;
use bulkhead_types::Process;
use tonic::transport::Channel;

use crate::instance::Instance;

/// For one call; statistics may have to be measured first.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// Why a process gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("{process} has no socket at {}: is the node running? Its log says why a process does not start", socket.display())]
    NoSocket { process: Process, socket: PathBuf },
    #[error("{process} does not listen on {}: it was stopped; start the node again", socket.display())]
    NotListening { process: Process, socket: PathBuf },
    #[error("no access to {process}'s socket {}: run kubelet-ctl as root", socket.display())]
    NoAccess { process: Process, socket: PathBuf },
    #[error("{process} does not answer on {}: it is starting, restarting or stuck; try again, then look at its log", socket.display())]
    NoAnswer { process: Process, socket: PathBuf },
    #[error("{process} refused: {message}")]
    Refused { process: Process, message: String },
    #[error("{process} could not answer ({code:?}): {message}")]
    Failed { process: Process, code: tonic::Code, message: String },
}

impl ConnectError {
    /// The process does not answer at all, as opposed to answering "no".
    pub(crate) fn unreachable(&self) -> bool {
        !matches!(self, ConnectError::Refused { .. } | ConnectError::Failed { .. })
    }

    /// A status of a call as trouble.
    pub(crate) fn of(process: Process, instance: &Instance, status: &tonic::Status) -> Self {
        // Who is refused before a call was read is told why in the connection's last words.
        let cause = std::error::Error::source(status).map(|cause| format!(": {}", bulkhead_types::chain(cause)));
        let message = crate::table::printable(&format!("{}{}", status.message(), cause.unwrap_or_default()));
        match status.code() {
            tonic::Code::PermissionDenied => ConnectError::Refused { process, message },
            tonic::Code::Unavailable | tonic::Code::DeadlineExceeded | tonic::Code::Cancelled => {
                ConnectError::NoAnswer { process, socket: instance.socket(process) }
            }
            // A connection that breaks half-way is "unknown" with the transport's error behind it.
            tonic::Code::Unknown if std::error::Error::source(status).is_some() => {
                ConnectError::NoAnswer { process, socket: instance.socket(process) }
            }
            code => ConnectError::Failed { process, code, message },
        }
    }
}

/// A process that said Hello.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) channel: Channel,
    pub(crate) hello: HelloReply,
}

/// Connects and says Hello: a supervisor holds the sockets, so a connection alone means nothing.
pub(crate) async fn connect(instance: &Instance, process: Process) -> Result<Connected, ConnectError> {
    let socket = instance.socket(process);
    let vsock = instance.vsock(process);
    // The channel's own errors do not tell these three apart. Over vsock there is only "nobody answers".
    if vsock.is_none()
        && let Err(error) = tokio::net::UnixStream::connect(&socket).await
    {
        return Err(match error.kind() {
            std::io::ErrorKind::NotFound => ConnectError::NoSocket { process, socket },
            std::io::ErrorKind::PermissionDenied => ConnectError::NoAccess { process, socket },
            _ => ConnectError::NotListening { process, socket },
        });
    }
    let channel = match vsock {
        Some((cid, port)) => vsock_channel(cid, port),
        None => channel(&socket),
    };
    let hello = HelloRequest { process: "kubelet-ctl".into(), version: env!("CARGO_PKG_VERSION").into() };
    let mut client = ProcessClient::new(channel.clone());
    let call = client.hello(CallContext::new().request(hello, HELLO_DEADLINE));
    match tokio::time::timeout(HELLO_DEADLINE, call).await {
        Ok(Ok(reply)) => Ok(Connected { channel, hello: reply.into_inner() }),
        Ok(Err(status)) => Err(ConnectError::of(process, instance, &status)),
        Err(_) => Err(ConnectError::NoAnswer { process, socket }),
    }
}

/// Waits for a call for at most [`DEADLINE`].
pub(crate) async fn within<T>(
    process: Process,
    instance: &Instance,
    call: impl Future<Output = Result<T, tonic::Status>>,
) -> Result<T, ConnectError> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(result) => result.map_err(|status| ConnectError::of(process, instance, &status)),
        Err(_) => Err(ConnectError::NoAnswer { process, socket: instance.socket(process) }),
    }
}

/// A message wrapped for a call with the usual deadline.
pub(crate) fn request<T>(message: T) -> tonic::Request<T> {
    CallContext::new().request(message, DEADLINE)
}
