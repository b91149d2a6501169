//! The descriptor broker's side socket: one SOCK_SEQPACKET datagram each way, the answer with a descriptor in it.
//!
//! A connection lives for one request, so a restart of volnetd in between costs one retry and nothing else. gRPC cannot
//! carry descriptors; everything else about a request is the same: the peer is checked, its size is bounded, it has a
//! deadline.

use std::future::Future;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prost::Message as _;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tonic::Code;

use crate::peers::{Peer, PeerUsers, Role};
use crate::volnetd::credential::Kind as CredentialKind;
use crate::volnetd::{OpenReply, OpenRequest, PutContent, PutCredential, PutState, StateKind, open_request::Kind};

/// Largest datagram, bytes. Requests are ids; the longest is a few names.
pub const MAX_DATAGRAM_BYTES: usize = 8 * 1024;
/// How long one request may take, connection included.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// Requests in work at once; more wait in the socket's backlog.
const IN_FLIGHT: usize = 64;

/// Why no descriptor came.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// volnetd is away or stuck: try again later.
    #[error("descriptor broker at {} is not reachable", path.display())]
    Unreachable { path: PathBuf, source: std::io::Error },
    /// volnetd said no, and why.
    #[error("descriptor broker refused {what}: {message}")]
    Refused { what: &'static str, code: Code, message: String },
    #[error("descriptor broker answered {what} with something else: {problem}")]
    Protocol { what: &'static str, problem: &'static str },
}

impl BrokerError {
    /// The gRPC code in force; an unreachable broker is UNAVAILABLE.
    pub fn code(&self) -> Code {
        match self {
            BrokerError::Unreachable { .. } => Code::Unavailable,
            BrokerError::Refused { code, .. } => *code,
            BrokerError::Protocol { .. } => Code::Internal,
        }
    }
}

/// Asks volnetd for descriptors.
#[derive(Debug, Clone)]
pub struct BrokerClient {
    path: Arc<Path>,
}

impl BrokerClient {
    /// `path`: [`bulkhead_types::InstancePaths::broker_socket`].
    pub fn new(path: &Path) -> Self {
        BrokerClient { path: Arc::from(path) }
    }

    /// Opens what `kind` names.
    ///
    /// # Errors
    /// See [`BrokerError`]; all of it within [`DEADLINE`].
    pub async fn open(&self, kind: Kind) -> Result<OwnedFd, BrokerError> {
        let what = kind_name(&kind);
        let request = OpenRequest { id: next_id(), kind: Some(kind), ..Default::default() };
        self.call(what, request, None)
            .await?
            .ok_or(BrokerError::Protocol { what, problem: "success without a descriptor" })
    }

    /// Replaces a state file of upstream's name by the content of a sealed memfd.
    pub async fn put_state(&self, kind: StateKind, content: OwnedFd) -> Result<(), BrokerError> {
        let put_state = Some(PutState { kind: kind.into() });
        let request = OpenRequest { id: next_id(), put_state, ..Default::default() };
        self.call("PutState", request, Some(content)).await.map(|_| ())
    }

    /// Replaces all files of a content volume by the encoded `VolumeContent` of a sealed memfd.
    pub async fn put_content(&self, volume: PutContent, content: OwnedFd) -> Result<(), BrokerError> {
        let request = OpenRequest { id: next_id(), put_content: Some(volume), ..Default::default() };
        self.call("PutContent", request, Some(content)).await.map(|_| ())
    }

    /// Writes a credential that the node made, from the sealed memfd.
    pub async fn put_credential(&self, kind: CredentialKind, content: OwnedFd) -> Result<(), BrokerError> {
        let put_credential = Some(PutCredential { kind: kind.into() });
        let request = OpenRequest { id: next_id(), put_credential, ..Default::default() };
        self.call("PutCredential", request, Some(content)).await.map(|_| ())
    }

    async fn call(
        &self,
        what: &'static str,
        request: OpenRequest,
        fd: Option<OwnedFd>,
    ) -> Result<Option<OwnedFd>, BrokerError> {
        let unreachable = |source| BrokerError::Unreachable { path: self.path.to_path_buf(), source };
        let exchange = async {
            let socket = bulkhead_sys::async_fd::register(bulkhead_sys::scm::connect(&self.path)?)?;
            let fds: Vec<BorrowedFd<'_>> = fd.iter().map(|fd| fd.as_fd()).collect();
            send(&socket, &request.encode_to_vec(), &fds).await?;
            recv(&socket).await
        };
        let (bytes, mut fds) = tokio::time::timeout(DEADLINE, exchange)
            .await
            .map_err(|_| unreachable(std::io::ErrorKind::TimedOut.into()))?
            .map_err(unreachable)?;
        if bytes.is_empty() {
            return Err(unreachable(std::io::ErrorKind::UnexpectedEof.into()));
        }
        let reply = OpenReply::decode(&*bytes)
            .map_err(|_| BrokerError::Protocol { what, problem: "answer is no OpenReply" })?;
        if reply.id != request.id {
            return Err(BrokerError::Protocol { what, problem: "answer to another request" });
        }
        match Code::from_i32(reply.code as i32) {
            Code::Ok => Ok(fds.pop()),
            code => Err(BrokerError::Refused { what, code, message: reply.message }),
        }
    }
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The kind's name, for logs and errors.
pub fn kind_name(kind: &Kind) -> &'static str {
    match kind {
        Kind::RuntimeSocket(_) => "RuntimeSocket",
        Kind::Manifest(_) => "Manifest",
        Kind::PrivateState(_) => "PrivateState",
        Kind::ContainerLog(_) => "ContainerLog",
        Kind::TerminationMessage(_) => "TerminationMessage",
        Kind::State(_) => "State",
        Kind::Kmsg(_) => "Kmsg",
        Kind::Psi(_) => "Psi",
        Kind::MemcgEvent(_) => "MemcgEvent",
        Kind::ProductUuid(_) => "ProductUuid",
        Kind::NodeLog(_) => "NodeLog",
        Kind::Credential(_) => "Credential",
        Kind::RegistryConfig(_) => "RegistryConfig",
        Kind::Listener(_) => "Listener",
        Kind::PluginSocket(_) => "PluginSocket",
        Kind::EnvFile(_) => "EnvFile",
    }
}

async fn send(socket: &AsyncFd<OwnedFd>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    socket.async_io(Interest::WRITABLE, |fd| bulkhead_sys::scm::send(fd, bytes, fds)).await
}

async fn recv(socket: &AsyncFd<OwnedFd>) -> std::io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
    let datagram = socket.async_io(Interest::READABLE, |fd| bulkhead_sys::scm::recv(fd, &mut buffer)).await?;
    buffer.truncate(datagram.len);
    Ok((buffer, datagram.fds))
}

/// What a request asks for, after the wire form is checked.
#[derive(Debug)]
pub enum BrokerRequest {
    Open(Kind),
    /// Replace a state file by what the descriptor holds.
    PutState(StateKind, OwnedFd),
    /// Replace a content volume's files by what the descriptor holds.
    PutContent(PutContent, OwnedFd),
    /// Write a credential from what the descriptor holds.
    PutCredential(CredentialKind, OwnedFd),
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    pub role: Role,
    pub uid: u32,
}

/// Answers requests until `shutdown` resolves. The handler gets checked requests of known peers only; which peer may
/// open which kind is the handler's table.
pub async fn serve<H, F>(
    listener: OwnedFd,
    users: Arc<PeerUsers>,
    handler: H,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()>
where
    H: Fn(Caller, BrokerRequest) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Option<OwnedFd>, tonic::Status>> + Send + 'static,
{
    let listener = bulkhead_sys::async_fd::register(listener)?;
    let slots = Arc::new(tokio::sync::Semaphore::new(IN_FLIGHT));
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => return Ok(()),
            accepted = listener.async_io(Interest::READABLE, |fd| bulkhead_sys::scm::accept(fd)) => accepted,
        };
        let socket = match accepted {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!(%error, "broker: accept failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(slot) = slots.clone().acquire_owned().await else { return Ok(()) };
        let (users, handler) = (users.clone(), handler.clone());
        tokio::spawn(async move {
            if tokio::time::timeout(DEADLINE, answer(socket, &users, handler)).await.is_err() {
                tracing::warn!("broker: a request was not finished in time");
            }
            drop(slot);
        });
    }
}

async fn answer<H, F>(socket: OwnedFd, users: &PeerUsers, handler: H)
where
    H: Fn(Caller, BrokerRequest) -> F,
    F: Future<Output = Result<Option<OwnedFd>, tonic::Status>>,
{
    let peer = match bulkhead_sys::peer::identify(&socket) {
        Ok(identity) => users.classify(&identity),
        Err(error) => return tracing::debug!(%error, "broker: could not identify a peer"),
    };
    let Ok(socket) = bulkhead_sys::async_fd::register(socket) else { return };
    let (bytes, fds) = match recv(&socket).await {
        Ok(received) => received,
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            let status = tonic::Status::resource_exhausted(format!("a request has at most {MAX_DATAGRAM_BYTES} bytes"));
            return reply(&socket, peer.uid, 0, Err(status)).await;
        }
        Err(error) => return tracing::debug!(%error, "broker: request could not be read"),
    };
    let (id, outcome) = match parse(&bytes, fds) {
        Err((id, status)) => (id, Err(status)),
        Ok((id, request)) => match caller(&peer) {
            Err(status) => (id, Err(status)),
            Ok(caller) => (id, handler(caller, request).await),
        },
    };
    reply(&socket, peer.uid, id, outcome).await;
}

async fn reply(socket: &AsyncFd<OwnedFd>, uid: u32, id: u64, outcome: Result<Option<OwnedFd>, tonic::Status>) {
    let (reply, fd) = match outcome {
        Ok(fd) => (OpenReply { id, code: 0, message: String::new() }, fd),
        Err(status) => {
            tracing::debug!(uid, code = ?status.code(), "broker refused: {}", status.message());
            (OpenReply { id, code: status.code() as u32, message: status.message().chars().take(1024).collect() }, None)
        }
    };
    let fds: Vec<BorrowedFd<'_>> = fd.iter().map(|fd| fd.as_fd()).collect();
    if let Err(error) = send(socket, &reply.encode_to_vec(), &fds).await {
        tracing::debug!(%error, "broker: the asking peer is gone");
    }
}

fn caller(peer: &Peer) -> Result<Caller, tonic::Status> {
    match peer.role {
        Ok(role) => Ok(Caller { role, uid: peer.uid }),
        Err(why) => Err(tonic::Status::permission_denied(format!("uid {}: {why}", peer.uid))),
    }
}

fn parse(bytes: &[u8], mut fds: Vec<OwnedFd>) -> Result<(u64, BrokerRequest), (u64, tonic::Status)> {
    let request = OpenRequest::decode(bytes)
        .map_err(|error| (0, tonic::Status::invalid_argument(format!("request is no OpenRequest: {error}"))))?;
    let id = request.id;
    let refuse = |message: String| Err((id, tonic::Status::invalid_argument(message)));
    match (request.kind, request.put_state, request.put_content, request.put_credential) {
        (Some(kind), None, None, None) => Ok((id, BrokerRequest::Open(kind))),
        (None, None, Some(put), None) => match fds.pop() {
            Some(fd) => Ok((id, BrokerRequest::PutContent(put, fd))),
            None => refuse("PutContent came without a descriptor".to_owned()),
        },
        (None, Some(put), None, None) => match (StateKind::try_from(put.kind), fds.pop()) {
            (Ok(StateKind::Unspecified) | Err(_), _) => refuse(format!("state kind {} is not known", put.kind)),
            (Ok(_), None) => refuse("PutState came without a descriptor".to_owned()),
            (Ok(kind), Some(fd)) => Ok((id, BrokerRequest::PutState(kind, fd))),
        },
        (None, None, None, Some(put)) => match (CredentialKind::try_from(put.kind), fds.pop()) {
            (Ok(CredentialKind::Unspecified) | Err(_), _) => {
                refuse(format!("credential kind {} is not known", put.kind))
            }
            (Ok(_), None) => refuse("PutCredential came without a descriptor".to_owned()),
            (Ok(kind), Some(fd)) => Ok((id, BrokerRequest::PutCredential(kind, fd))),
        },
        _ => refuse("a request names exactly one kind, or put_state, put_content or put_credential".to_owned()),
    }
}
