//! Connections of a gRPC socket before the first call: who connected is decided before a byte is parsed, and who says
//! nothing is shown out.
//!
//! A refused peer gets two frames that were written before it came (SETTINGS and GOAWAY), so that a client says
//! PERMISSION_DENIED or RESOURCE_EXHAUSTED instead of "connection reset"; nothing that it sends is looked at.

use std::future::Future as _;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, Interest, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::Sleep;
use tonic::transport::server::Connected;

use crate::limits::{Gate, Taken};
use crate::peers::{self, Peer, PeerUsers};
use crate::refusals::Reason;

/// A client's preface (RFC 9113, 3.4): 24 fixed bytes and the 9 of a frame's head. Who has said that much is at work.
const PREFACE_BYTES: usize = 33;
/// Refused connections that wait for their peer to read why; more are closed at once.
const LEAVING: usize = 256;
/// How long a client may take to its first call, and about how many bytes that has.
const LISTENING_TIME: Duration = Duration::from_millis(100);
const LISTENING_BYTES: usize = 256;
/// How long it may take to read why, and how much of what it still sends is thrown away.
const LEAVING_TIME: Duration = Duration::from_secs(1);
const LEAVING_BYTES: usize = 64 * 1024;

/// An empty SETTINGS, which a server begins with.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

/// HTTP/2 error codes (RFC 9113, 7), and the gRPC codes that clients make of them.
#[derive(Debug, Clone, Copy)]
enum Goodbye {
    /// RESOURCE_EXHAUSTED.
    EnhanceYourCalm = 0xb,
    /// PERMISSION_DENIED.
    InadequateSecurity = 0xc,
}

/// SETTINGS, and a GOAWAY that accepted no stream. Pure.
fn farewell(code: Goodbye, why: &str) -> Vec<u8> {
    let why: &[u8] = why.as_bytes().get(..why.len().min(256)).unwrap_or_default();
    // At most 8 + 256: two bytes hold it.
    let [high, low] = u16::try_from(8 + why.len()).unwrap_or(8).to_be_bytes();
    let head = [0, high, low, 7, 0, 0, 0, 0, 0];
    let [a, b, c, d] = (code as u32).to_be_bytes();
    let body = [0, 0, 0, 0, a, b, c, d];
    [&SETTINGS[..], &head, &body, why].concat()
}

/// An accepted connection and who is behind it.
#[derive(Debug)]
pub struct PeerStream {
    stream: UnixStream,
    peer: Arc<Peer>,
    gate: Arc<Gate>,
    /// Bytes still to come, and until when; none once they came.
    preface: Option<(usize, Pin<Box<Sleep>>)>,
    /// The role's share of connections.
    _slot: Taken,
}

impl Connected for PeerStream {
    type ConnectInfo = Arc<Peer>;
    fn connect_info(&self) -> Arc<Peer> {
        self.peer.clone()
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        // What has arrived counts, however long this process did not look.
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let Some((missing, deadline)) = &mut self.preface else { return read };
        *missing = missing.saturating_sub(buf.filled().len() - before);
        if *missing == 0 {
            self.preface = None;
            return read;
        }
        if read.is_pending() && deadline.as_mut().poll(cx).is_ready() {
            self.gate.refuse(Reason::Handshake, &*self.peer, &"it connected and did not say what it wants");
            return Poll::Ready(Err(std::io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Connections of peers that have a role and a place. Never ends.
pub fn connections(
    listener: UnixListener,
    users: Arc<PeerUsers>,
    gate: Arc<Gate>,
) -> impl Stream<Item = std::io::Result<PeerStream>> {
    // Nothing of gRPC carries a descriptor. On older kernels what comes is closed as it is read.
    bulkhead_sys::scm::refuse_rights(&listener);
    let leaving = Arc::new(Semaphore::new(LEAVING));
    futures_util::stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    })
    .filter_map(move |accepted| {
        let (users, gate, leaving) = (users.clone(), gate.clone(), leaving.clone());
        async move {
            match accepted {
                Ok(stream) => admit(stream, &users, &gate, &leaving).map(Ok),
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    // Out of descriptors or memory: try again a little later instead of spinning.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    None
                }
            }
        }
    })
}

/// Connections over vsock, of peers that have a role and a place. Never ends.
///
/// # Errors
/// The reactor does not take the listener.
pub fn from_vsock(
    listener: OwnedFd,
    gate: Arc<Gate>,
) -> std::io::Result<impl Stream<Item = std::io::Result<PeerStream>>> {
    let listener = bulkhead_sys::async_fd::register(listener)?;
    let leaving = Arc::new(Semaphore::new(LEAVING));
    Ok(futures_util::stream::unfold(listener, |listener| async move {
        let accepted = listener.async_io(Interest::READABLE, |fd| bulkhead_sys::vsock::accept(fd)).await;
        Some((accepted, listener))
    })
    .filter_map(move |accepted| {
        let (gate, leaving) = (gate.clone(), leaving.clone());
        async move {
            // Of a Unix stream's type nothing is used but reading and writing, which are the same for every stream.
            let accepted = accepted.and_then(|(fd, cid)| Ok((UnixStream::from_std(fd.into())?, cid)));
            match accepted {
                Ok((stream, cid)) => {
                    let peer = peers::of_vsock(cid);
                    if let Err(why) = peer.role {
                        gate.refuse(Reason::Stranger, &format_args!("vsock {cid}"), &why);
                        return None;
                    }
                    enter(stream, peer, &gate, &leaving).map(Ok)
                }
                // The peer has gone before anybody asked who it is. Anybody may do that as often as he likes.
                Err(error) if error.kind() == std::io::ErrorKind::NotConnected => {
                    tracing::debug!(%error, "could not identify a peer on vsock, connection closed");
                    None
                }
                Err(error) => {
                    // Out of descriptors or memory: again, but without spinning.
                    tracing::warn!(%error, "accept on vsock failed");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    None
                }
            }
        }
    }))
}

fn admit(stream: UnixStream, users: &PeerUsers, gate: &Arc<Gate>, leaving: &Arc<Semaphore>) -> Option<PeerStream> {
    let peer = match bulkhead_sys::peer::identify(&stream) {
        Ok(identity) => users.classify(&identity),
        Err(error) => {
            // The peer may have gone already: nobody is left to answer.
            tracing::debug!(%error, "could not identify a peer, connection closed");
            return None;
        }
    };
    enter(stream, peer, gate, leaving)
}

fn enter(stream: UnixStream, peer: Peer, gate: &Arc<Gate>, leaving: &Arc<Semaphore>) -> Option<PeerStream> {
    let role = match peer.role {
        Ok(role) => role,
        Err(why) => {
            gate.refuse(Reason::Stranger, &peer, &why);
            show_out(stream, leaving, &farewell(Goodbye::InadequateSecurity, &format!("uid {}: {why}", peer.uid)));
            return None;
        }
    };
    let Some(slot) = gate.connection(role) else {
        let why = format!("{} has {} connections already", role.as_str(), gate.limits.connections);
        gate.refuse(Reason::Connections, &peer, &why);
        show_out(stream, leaving, &farewell(Goodbye::EnhanceYourCalm, &why));
        return None;
    };
    let deadline = Box::pin(tokio::time::sleep(gate.limits.handshake));
    let preface = Some((PREFACE_BYTES, deadline));
    Some(PeerStream { stream, peer: Arc::new(peer), gate: gate.clone(), preface, _slot: slot })
}

/// Says why and lets go. A client puts a reason to the call that it has made: before its first call, or when this end is
/// closed while it writes, it would only say that the connection is gone. So a few may finish their first words, unread.
fn show_out(stream: UnixStream, leaving: &Arc<Semaphore>, words: &[u8]) {
    let (settings, goaway) = words.split_at(SETTINGS.len().min(words.len()));
    // Into the empty buffer of a new connection: all of it, or the peer has gone.
    if stream.try_write(settings).is_err() {
        return;
    }
    let Ok(place) = leaving.clone().try_acquire_owned() else {
        let _ = stream.try_write(goaway);
        return;
    };
    let goaway = goaway.to_owned();
    tokio::spawn(async move {
        let mut stream = stream;
        let _ = tokio::time::timeout(LISTENING_TIME, throw_away(&mut stream, LISTENING_BYTES)).await;
        if stream.try_write(&goaway).is_ok() {
            let _ = tokio::time::timeout(LEAVING_TIME, throw_away(&mut stream, LEAVING_BYTES)).await;
        }
        drop((stream, place));
    });
}

/// Until the peer has closed its end, or has sent so many bytes.
async fn throw_away(stream: &mut UnixStream, bytes: usize) {
    let mut piece = [0; 512];
    let mut seen = 0;
    while seen < bytes {
        match stream.read(&mut piece).await {
            Ok(length @ 1..) => seen += length,
            Ok(_) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_farewell_is_two_frames() {
        let bytes = farewell(Goodbye::InadequateSecurity, "uid 7: no");
        let (settings, goaway) = bytes.split_at(9);
        assert_eq!(settings, [0, 0, 0, 4, 0, 0, 0, 0, 0]);
        assert_eq!(&goaway[..9], [0, 0, 17, 7, 0, 0, 0, 0, 0], "length, type, flags, stream");
        assert_eq!(&goaway[9..17], [0, 0, 0, 0, 0, 0, 0, 0xc], "last stream, code");
        assert_eq!(&goaway[17..], b"uid 7: no");
        let long = farewell(Goodbye::EnhanceYourCalm, &"x".repeat(1000));
        assert_eq!(long.len(), 9 + 9 + 8 + 256);
        assert_eq!(&long[9..12], [0, 1, 8]);
    }
}
