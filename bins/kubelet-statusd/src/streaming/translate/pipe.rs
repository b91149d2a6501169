//! Reading and writing under the frames: small buffers that follow what comes, and whole frames or nothing.

use std::io;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::websocket;

/// What an idle stream's buffer has, bytes.
const SMALLEST: usize = 1 << 10;
/// What a busy stream's buffer has: 2 TLS records.
const LARGEST: usize = 32 << 10;

/// Where bytes come from, and those that are not yet understood.
#[derive(Debug)]
pub struct Inlet<R> {
    read: R,
    pub buffer: BytesMut,
    next: usize,
}

impl<R: AsyncRead + Unpin> Inlet<R> {
    pub fn new(read: R) -> Self {
        Inlet { read, buffer: BytesMut::new(), next: SMALLEST }
    }

    /// Waits for more bytes; 0: there are no more.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn more(&mut self) -> io::Result<usize> {
        self.buffer.reserve(self.next);
        let count = self.read.read_buf(&mut (&mut self.buffer).limit(self.next)).await?;
        self.next = match count {
            _ if count == self.next => (self.next * 2).min(LARGEST),
            _ if count < self.next / 4 => (self.next / 2).max(SMALLEST),
            _ => self.next,
        };
        Ok(count)
    }

    /// Reads what still comes and throws it away, until the other side ends or the time is up: a connection that is closed
    /// with bytes unread is reset, and a reset may take what was written with it.
    pub async fn drain(&mut self, limit: Duration) {
        let all = async {
            loop {
                self.buffer.clear();
                if !matches!(self.more().await, Ok(1..)) {
                    return;
                }
            }
        };
        // Out of time is as good as all read.
        let _ = timeout(limit, all).await;
    }
}

/// Where a client's frames go. A frame that was begun and not finished makes all further ones impossible.
#[derive(Debug)]
pub struct ClientOutlet<W> {
    write: W,
    torn: bool,
}

impl<W: AsyncWrite + Unpin> ClientOutlet<W> {
    pub fn new(write: W) -> Self {
        ClientOutlet { write, torn: false }
    }

    /// A binary message. `channel` goes before its bytes.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn message(&mut self, channel: Option<u8>, bytes: Bytes) -> io::Result<()> {
        let mut head = BytesMut::with_capacity(websocket::MAX_HEAD + 1);
        websocket::message_head(&mut head, bytes.len() + usize::from(channel.is_some()));
        head.extend(channel);
        self.whole(head.chain(bytes)).await
    }

    /// Answers a ping, or says without one that this side lives.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn pong(&mut self, content: &[u8]) -> io::Result<()> {
        let mut frame = BytesMut::new();
        websocket::put_pong(&mut frame, content);
        self.whole(frame).await
    }

    /// The last frame, and the end of this direction; nothing when a frame before it was torn.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn close(&mut self, code: u16) -> io::Result<()> {
        if self.torn {
            return Ok(());
        }
        let mut frame = BytesMut::new();
        websocket::put_close(&mut frame, code);
        self.whole(frame).await?;
        self.write.shutdown().await
    }

    /// Whether further frames may be written.
    pub fn is_whole(&self) -> bool {
        !self.torn
    }

    async fn whole(&mut self, mut frame: impl bytes::Buf) -> io::Result<()> {
        self.torn = true;
        self.write.write_all_buf(&mut frame).await?;
        self.write.flush().await?;
        self.torn = false;
        Ok(())
    }
}

/// Answers to pings that may wait for the client's writer; more are left out, as the standard allows.
pub const PONGS: usize = 4;
/// A client counts on hearing of this side when what it sends is held up: kubectl gives up after 61 s without a pong.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// Waits for `work`, which what the client sends waits for; the client hears meanwhile that this side lives.
pub async fn with_signs_of_life<T>(work: impl Future<Output = T>, pongs: &mpsc::Sender<Bytes>) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            // Where many wait, the client gets one of them.
            () = sleep(SIGN_OF_LIFE) => drop(pongs.try_send(Bytes::new())),
        }
    }
}

/// When something was last read from the client or written to it.
#[derive(Debug)]
pub struct Activity(Mutex<Instant>);

impl Activity {
    pub fn now() -> Self {
        Activity(Mutex::new(Instant::now()))
    }

    pub fn seen(&self) {
        *self.0.lock() = Instant::now();
    }

    /// Returns once nothing was seen for `limit`; never without one.
    pub async fn idle(&self, limit: Option<Duration>) {
        let Some(limit) = limit else { return std::future::pending().await };
        loop {
            let until = *self.0.lock() + limit;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_buffer_follows_what_comes() {
        let (mut far, near) = tokio::io::duplex(1 << 20);
        let mut inlet = Inlet::new(near);
        far.write_all(&vec![7; 200_000]).await.unwrap();
        let mut sizes = Vec::new();
        while sizes.iter().sum::<usize>() < 200_000 {
            sizes.push(inlet.more().await.unwrap());
            inlet.buffer.clear();
        }
        assert_eq!(sizes[..6], [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10]);
        assert!(sizes.iter().all(|size| *size <= LARGEST));
        for _ in 0..10 {
            far.write_all(b"x").await.unwrap();
            assert_eq!(inlet.more().await.unwrap(), 1);
            inlet.buffer.clear();
        }
        assert_eq!(inlet.next, SMALLEST);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_is_the_time_since_the_last_sight() {
        let activity = Activity::now();
        let begin = Instant::now();
        let busy = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            activity.seen();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = activity.idle(Some(Duration::from_secs(4))) => {}
            () = busy => {}
        }
        assert_eq!(begin.elapsed(), Duration::from_secs(7));
        assert!(timeout(Duration::from_secs(99), activity.idle(None)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_follows_half_a_frame() {
        let (_far, near) = tokio::io::duplex(8);
        let mut outlet = ClientOutlet::new(near);
        let written = timeout(Duration::from_secs(1), outlet.message(Some(1), Bytes::from_static(&[0; 100]))).await;
        assert!(written.is_err() && !outlet.is_whole());
        outlet.close(1000).await.unwrap();
    }
}
