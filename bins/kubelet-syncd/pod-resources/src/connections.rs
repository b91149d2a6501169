//! Clients of a socket for agents: of this one, of the pods API's, and of the one where device plugins register. Whoever can reach it
//! may ask: its folder is root's, and what is told is no secret of a pod. So clients are bounded together, and who is one too many
//! waits in the listener's queue.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::server::Connected;

use crate::authority::{READ, Rewriter};

/// Clients that are talked to at a time: some agents, each with a connection that it keeps.
pub const CONNECTIONS: usize = 64;

/// Calls that one client may have open (libraries begin with 100 before they have heard of a bound), and the headers of one in bytes.
const STREAMS: u32 = 256;
const HEADER_BYTES: u32 = 16 << 10;
/// Silence after which a client is asked whether it still reads, and how long the answer may take.
const KEEPALIVE: Duration = Duration::from_secs(60);
const KEEPALIVE_PATIENCE: Duration = Duration::from_secs(20);

/// Before the next try to accept, where descriptors or memory have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// A client of any library, with its place.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    rewriter: Rewriter,
    /// What is to be read next, from `taken` on.
    ready: Vec<u8>,
    taken: usize,
    _place: OwnedSemaphorePermit,
}

impl Connected for Client {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl AsyncRead for Client {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let this = &mut *self;
        while this.taken == this.ready.len() {
            this.ready.clear();
            this.ready.shrink_to(READ);
            this.taken = 0;
            let mut bytes = [0; READ];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.rewriter.take(read.filled(), &mut this.ready);
        }
        let rest = &this.ready[this.taken..];
        let now = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..now]);
        this.taken += now;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
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

/// A server with these bounds.
pub fn server() -> tonic::transport::Server {
    tonic::transport::Server::builder()
        .max_concurrent_streams(STREAMS)
        .http2_max_header_list_size(HEADER_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_PATIENCE))
}

/// Clients, one after the other as there are places. Never ends.
pub fn clients(listener: UnixListener) -> impl Stream<Item = std::io::Result<Client>> {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    futures_util::stream::unfold((listener, places), |(listener, places)| async move {
        let place = places.clone().acquire_owned().await.ok()?;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (rewriter, ready) = (Rewriter::default(), Vec::new());
                    let client = Client { stream, rewriter, ready, taken: 0, _place: place };
                    return Some((Ok(client), (listener, places)));
                }
                Err(error) => {
                    tracing::warn!(%error, "accept on a socket for agents failed");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    })
}
