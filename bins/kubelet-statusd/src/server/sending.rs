//! A socket, watched from below TLS: since when it takes nothing of what is to be sent. What waits in front of it, in HTTP
//! or TLS, waits for this.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::activity::Activity;

/// See the module.
#[derive(Debug)]
pub struct Sending<S> {
    inner: S,
    activity: Arc<Activity>,
    blocked: bool,
}

impl<S> Sending<S> {
    pub fn new(inner: S, activity: Arc<Activity>) -> Self {
        Sending { inner, activity, blocked: false }
    }

    /// The kernel's buffer is full (pending), or takes bytes again.
    fn wrote(&mut self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if self.blocked != polled.is_pending() {
            self.blocked = polled.is_pending();
            self.activity.blocked(self.blocked);
        }
        polled
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Sending<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Sending<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.wrote(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, slices);
        self.wrote(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::Instant;

    use super::super::connections::Connections;
    use super::super::source::Source;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_seen() {
        let slot = Connections::new(1, Duration::MAX).admit(Source::UNKNOWN).unwrap();
        let activity = slot.activity().clone();
        let (mut client, server) = tokio::io::duplex(10);
        let mut server = Sending::new(server, activity.clone());
        server.write_all(&[0; 10]).await.unwrap();
        assert_eq!(activity.stalled(), None, "all of it was taken");
        let full = Instant::now();
        let writing = tokio::spawn(async move {
            server.write_all(&[0; 10]).await.unwrap();
            server
        });
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert_eq!(activity.stalled(), Some(full));
        client.read_exact(&mut [0; 5]).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        // What came before the first pending byte was taken counts from then on.
        assert_eq!(activity.stalled(), Some(full + Duration::from_secs(9)));
        client.read_exact(&mut [0; 15]).await.unwrap();
        writing.await.unwrap();
        assert_eq!(activity.stalled(), None);
    }
}
