//! A connection's bytes, watched: when a request begins, and how a connection ends whose client is still talking.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;

use super::activity::Activity;
use super::connections::Slot;

/// What a client may still send after our last word, so that it reads that word before it learns of the end: bytes, and
/// how long (Go's `net/http` waits for half a second, too).
const LINGER_BYTES: usize = 4 << 20;
const LINGER_TIME: Duration = Duration::from_millis(500);

/// Headers of more bytes are long: few connections may have such at a time.
const LONG_HEAD: usize = 16 << 10;

/// Too many clients send long headers at once.
#[derive(Debug, thiserror::Error)]
#[error("too many requests with long headers at a time")]
struct TooManyLongHeads;

/// Holds the connection's place for as long as it lives, also when it has left HTTP.
#[derive(Debug)]
pub struct Watched<S> {
    inner: S,
    slot: Slot,
    /// Whether bytes between requests are a request's beginning; in HTTP/2 they may be anything.
    heads: bool,
    head: Head,
    ending: Option<Ending>,
}

/// What has come of a request's headers.
#[derive(Debug, Default)]
struct Head {
    bytes: usize,
    long: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
struct Ending {
    left: usize,
    deadline: Pin<Box<Sleep>>,
}

impl<S> Watched<S> {
    pub fn new(inner: S, slot: Slot, heads: bool) -> Self {
        Watched { inner, slot, heads, head: Head::default(), ending: None }
    }

    pub fn activity(&self) -> &Arc<Activity> {
        self.slot.activity()
    }

    /// An answer is on its way: the headers were read, or refused.
    fn answering(&mut self) {
        self.head = Head::default();
    }

    fn received(&mut self, bytes: usize) -> io::Result<()> {
        if !self.slot.activity().received() {
            self.head = Head::default();
            return Ok(());
        }
        self.head.bytes = self.head.bytes.saturating_add(bytes);
        if self.head.bytes > LONG_HEAD && self.head.long.is_none() {
            let room = self.slot.long_head().ok_or_else(|| io::Error::other(TooManyLongHeads))?;
            self.head.long = Some(room);
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buffer);
        let received = buffer.filled().len() - before;
        if self.heads && received > 0 {
            self.received(received)?;
        }
        polled
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.answering();
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.answering();
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    /// Says the end, then takes what is still under way: a socket that is closed over unread bytes is reset, and the
    /// client may lose the answer.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        // A stream that ends one direction goes on in the other, whose bytes are not ours to take.
        if !this.heads || this.slot.activity().is_switched() {
            return Pin::new(&mut this.inner).poll_shutdown(cx);
        }
        if this.ending.is_none() {
            std::task::ready!(Pin::new(&mut this.inner).poll_shutdown(cx))?;
        }
        let ending = this
            .ending
            .get_or_insert_with(|| Ending { left: LINGER_BYTES, deadline: Box::pin(tokio::time::sleep(LINGER_TIME)) });
        let mut scratch = [0; 4096];
        loop {
            if ending.deadline.as_mut().poll(cx).is_ready() || ending.left == 0 {
                return Poll::Ready(Ok(()));
            }
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut this.inner).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    ending.left = ending.left.saturating_sub(buffer.filled().len());
                }
                // The client has nothing more to say, or is gone.
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::activity::Phase;
    use super::super::connections::Connections;
    use super::super::source::Source;
    use super::*;

    fn places(limit: usize) -> Arc<Connections> {
        Connections::new(limit, Duration::MAX)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_still_under_way_is_taken_before_the_end() {
        let connections = places(1);
        let (client, server) = tokio::io::duplex(1024);
        let mut server = Watched::new(server, connections.admit(Source::UNKNOWN).unwrap(), true);
        let (mut read, mut write) = tokio::io::split(client);
        write.write_all(&[b'x'; 1000]).await.unwrap();
        let ending = tokio::spawn(async move {
            server.write_all(b"no").await.unwrap();
            server.shutdown().await.unwrap();
        });
        write.write_all(&[b'x'; 100_000]).await.unwrap();
        let mut answer = String::new();
        read.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "no");
        drop((read, write));
        ending.await.unwrap();
        assert_eq!(connections.count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_stops_is_left_after_a_while() {
        let connections = places(1);
        let (client, server) = tokio::io::duplex(1024);
        let mut server = Watched::new(server, connections.admit(Source::UNKNOWN).unwrap(), true);
        let begun = tokio::time::Instant::now();
        server.shutdown().await.unwrap();
        assert_eq!(begun.elapsed(), LINGER_TIME);
        drop(client);
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_begin_a_request_where_they_can_be_nothing_else() {
        for (heads, expected) in [(true, true), (false, false)] {
            let (mut client, server) = tokio::io::duplex(1024);
            let mut server = Watched::new(server, places(1).admit(Source::UNKNOWN).unwrap(), heads);
            client.write_all(b"G").await.unwrap();
            server.read_u8().await.unwrap();
            assert_eq!(matches!(server.activity().phase(), Phase::Head(_)), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn few_have_long_headers_at_a_time() {
        let connections = places(1000);
        let mut held = Vec::new();
        let refused = loop {
            let (mut client, server) = tokio::io::duplex(1 << 16);
            let mut server = Watched::new(server, connections.admit(Source::UNKNOWN).unwrap(), true);
            client.write_all(&[b'x'; 20_000]).await.unwrap();
            match server.read_exact(&mut [0; 20_000]).await {
                Ok(_) => held.push((client, server)),
                Err(error) => break error,
            }
        };
        assert!(refused.to_string().contains("long headers") && held.len() == 64, "{refused} {}", held.len());
        // One that is answered makes room.
        held[0].1.write_all(b"yes").await.unwrap();
        assert!(connections.admit(Source::UNKNOWN).unwrap().long_head().is_some());
    }
}
