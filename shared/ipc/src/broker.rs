//! The descriptor broker's side socket: one SOCK_SEQPACKET datagram each way, the answer with a descriptor in it.
//!
//! A connection lives for one request, so a restart of volnetd in between costs one retry and nothing else. gRPC cannot
//! carry descriptors; everything else about a request is the same: the peer is checked before a byte is read, its size is
//! bounded, it has a deadline, and each peer has its own share of the requests in work ([`crate::limits`]).

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

use crate::limits::{Gate, Taken};
use crate::peers::{PeerUsers, Role};
use crate::refusals::Reason;
use crate::volnetd::credential::Kind as CredentialKind;
use crate::volnetd::{
    CompressedLog, OpenReply, OpenRequest, PutContent, PutCredential, PutState, StateKind, open_request::Kind,
};

/// Largest datagram, bytes. Requests are ids; the longest is a few names.
pub const MAX_DATAGRAM_BYTES: usize = 8 * 1024;
/// How long one request may take, connection included.
pub const DEADLINE: Duration = Duration::from_secs(10);

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

    /// Gives a file that [`Kind::CompressedLog`] opened its name.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub async fn link_compressed_log(&self, log: CompressedLog, file: OwnedFd) -> Result<(), BrokerError> {
        let request = OpenRequest { id: next_id(), link_compressed_log: Some(log), ..Default::default() };
        self.call("LinkCompressedLog", request, Some(file)).await.map(|_| ())
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
            match send(&socket, &request.encode_to_vec(), &fds).await {
                // Refused before it was sent: why is there to be read.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
                sent => sent?,
            }
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
        // 0: refused before the request was read.
        if reply.id != request.id && (reply.id != 0 || reply.code == 0) {
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
        Kind::RotatedLog(_) => "RotatedLog",
        Kind::CompressedLog(_) => "CompressedLog",
        Kind::ShutdownInhibitor(_) => "ShutdownInhibitor",
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
    /// Give the file its name.
    LinkCompressedLog(CompressedLog, OwnedFd),
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
    gate: Arc<Gate>,
    handler: H,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()>
where
    H: Fn(Caller, BrokerRequest) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Option<OwnedFd>, tonic::Status>> + Send + 'static,
{
    let listener = bulkhead_sys::async_fd::register(listener)?;
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
        let Some((socket, caller, place)) = admit(socket, &users, &gate) else { continue };
        let (gate, handler) = (gate.clone(), handler.clone());
        tokio::spawn(async move {
            let answered = answer(&socket, caller, &gate, handler);
            if tokio::time::timeout(DEADLINE, answered).await.is_err() {
                gate.refuse(Reason::Broker, &caller.role.as_str(), &"a request to the broker was not finished in time");
            }
            bulkhead_sys::scm::finish(socket.into_inner());
            drop(place);
        });
    }
}

/// Who asks, and a place in its queue; all others are answered here and now, unread.
fn admit(socket: OwnedFd, users: &PeerUsers, gate: &Arc<Gate>) -> Option<(AsyncFd<OwnedFd>, Caller, Taken)> {
    let refuse = |socket: OwnedFd, status: tonic::Status| {
        let reply = OpenReply { id: 0, code: status.code() as u32, message: status.message().to_owned() };
        // Into the empty buffer of a new connection.
        let _ = bulkhead_sys::scm::send(&socket, &reply.encode_to_vec(), &[]);
        bulkhead_sys::scm::finish(socket);
        None
    };
    let peer = match bulkhead_sys::peer::identify(&socket) {
        Ok(identity) => users.classify(&identity),
        Err(error) => {
            tracing::debug!(%error, "broker: could not identify a peer");
            bulkhead_sys::scm::finish(socket);
            return None;
        }
    };
    let role = match peer.role {
        Ok(role) => role,
        Err(why) => {
            gate.refuse(Reason::Stranger, &peer, &why);
            return refuse(socket, tonic::Status::permission_denied(format!("uid {}: {why}", peer.uid)));
        }
    };
    let Some(place) = gate.broker_request(role) else {
        let why = format!("{} asks the broker faster than it is answered", role.as_str());
        gate.refuse(Reason::Broker, &peer, &why);
        // "Ask again", as when nobody accepts.
        return refuse(socket, tonic::Status::unavailable(why));
    };
    let socket = bulkhead_sys::async_fd::register(socket).ok()?;
    Some((socket, Caller { role, uid: peer.uid }, place))
}

async fn answer<H, F>(socket: &AsyncFd<OwnedFd>, caller: Caller, gate: &Gate, handler: H)
where
    H: Fn(Caller, BrokerRequest) -> F,
    F: Future<Output = Result<Option<OwnedFd>, tonic::Status>>,
{
    let Ok(_active) = gate.broker_active(caller.role).acquire_owned().await else { return };
    let (bytes, fds) = match tokio::time::timeout(gate.limits.broker_request, recv(socket)).await {
        Ok(Ok(received)) => received,
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
            let status = tonic::Status::resource_exhausted(format!(
                "a request has at most {MAX_DATAGRAM_BYTES} bytes and {} descriptors",
                bulkhead_sys::scm::MAX_FDS
            ));
            return reply(socket, caller.uid, 0, Err(status)).await;
        }
        Ok(Err(error)) => return tracing::debug!(%error, "broker: request could not be read"),
        Err(_) => {
            let why = "it connected to the broker and asked for nothing";
            return gate.refuse(Reason::Handshake, &caller.role.as_str(), &why);
        }
    };
    let (id, outcome) = match parse(&bytes, fds) {
        Err((id, status)) => (id, Err(status)),
        Ok((id, request)) => tokio::select! {
            biased;
            () = hangs_up(socket) => return tracing::debug!("broker: the asking peer is gone"),
            outcome = handler(caller, request) => (id, outcome),
        },
    };
    reply(socket, caller.uid, id, outcome).await;
}

/// Until the caller has closed its end. Its request is dropped then, as one of gRPC is: it may have asked for something else since,
/// which this must not undo. What it sends that nobody asked it for stays unread.
async fn hangs_up(socket: &AsyncFd<OwnedFd>) {
    loop {
        let Ok(mut ready) = socket.readable().await else { return };
        if ready.ready().is_read_closed() {
            return;
        }
        ready.clear_ready();
    }
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

const ONE_KIND: &str =
    "a request names exactly one kind, or put_state, put_content, put_credential or link_compressed_log";

fn parse(bytes: &[u8], mut fds: Vec<OwnedFd>) -> Result<(u64, BrokerRequest), (u64, tonic::Status)> {
    let request = OpenRequest::decode(bytes)
        .map_err(|error| (0, tonic::Status::invalid_argument(format!("request is no OpenRequest: {error}"))))?;
    let id = request.id;
    let refuse = |message: String| Err((id, tonic::Status::invalid_argument(message)));
    if let Some(log) = request.link_compressed_log {
        let others = request.kind.is_some() || request.put_state.is_some() || request.put_content.is_some();
        return match fds.pop() {
            Some(_) if others || request.put_credential.is_some() => refuse(ONE_KIND.to_owned()),
            Some(fd) => Ok((id, BrokerRequest::LinkCompressedLog(log, fd))),
            None => refuse("LinkCompressedLog came without a descriptor".to_owned()),
        };
    }
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
        _ => refuse(ONE_KIND.to_owned()),
    }
}
