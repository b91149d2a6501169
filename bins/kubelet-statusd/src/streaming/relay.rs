//! Bytes both ways between a client and the runtime, as they come, until both sides have said that they are done.
//!
//! A side is read only when the other one has taken what was read before, so a client that stalls stops the command that
//! writes to it, and costs the kernel's socket buffers and at most one piece here. A stream on which nothing moves holds no
//! buffer at all: the piece that is read lies on the stack, and what of it could not be written at once is kept until it is.
//!
//! The end of one direction is passed on (over TLS as close_notify) and the other one goes on: upstream closes both, which
//! cuts off what was still under way. What the protocols above leave open then ends after [`Limits::linger`]. A client that
//! is gone ends both at once.

use std::future::{Future as _, poll_fn};
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Most bytes read at a time.
const PIECE: usize = 16 << 10;
/// Pieces of one direction before other tasks get their turn.
const PIECES: usize = 16;

/// How long nothing may move.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// In neither direction. `None`: for ever.
    pub idle: Option<Duration>,
    /// When one direction has ended.
    pub linger: Duration,
}

/// How it ended, and how many bytes went each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    pub to_runtime: u64,
    pub to_client: u64,
    pub end: End,
}

/// See [`Summary`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Both sides have closed their direction.
    Closed,
    /// The client takes no more: it is gone, and what the runtime still has is for nobody.
    ClientGone,
    /// Nothing moved for [`Limits::idle`].
    Idle,
    /// One side had closed, and on the other nothing moved for [`Limits::linger`].
    Lingered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The reader has ended: what was written is flushed, then the writer's direction is closed.
    Closing,
    /// The writer takes no more. What a client still sends is read and dropped, because closing a socket with something
    /// unread in it makes the kernel throw away what the other side has not read yet.
    Draining,
    Closed,
}

#[derive(Debug)]
struct Direction {
    state: State,
    /// What is left to read when the writer is lost matters.
    drains: bool,
    /// What the writer has not taken yet.
    rest: Vec<u8>,
    written: usize,
    needs_flush: bool,
    moved: u64,
}

impl Direction {
    fn new(drains: bool) -> Self {
        Direction { state: State::Open, drains, rest: Vec::new(), written: 0, needs_flush: false, moved: 0 }
    }

    /// As far as it goes now. Ready: this direction is over.
    fn poll<R, W>(&mut self, cx: &mut Context<'_>, mut reader: Pin<&mut R>, mut writer: Pin<&mut W>) -> Poll<()>
    where
        R: AsyncRead + ?Sized,
        W: AsyncWrite + ?Sized,
    {
        for _ in 0..PIECES {
            match self.state {
                State::Open => match self.piece(cx, reader.as_mut(), writer.as_mut()) {
                    Poll::Ready(()) => {}
                    Poll::Pending => return Poll::Pending,
                },
                State::Closing => match writer.as_mut().poll_shutdown(cx) {
                    // Who cannot be told any more does not need to be.
                    Poll::Ready(_) => self.state = State::Closed,
                    Poll::Pending => return Poll::Pending,
                },
                State::Draining if !self.drains => return Poll::Ready(()),
                State::Draining => {
                    let mut scratch = [MaybeUninit::uninit(); PIECE];
                    let mut piece = ReadBuf::uninit(&mut scratch);
                    match reader.as_mut().poll_read(cx, &mut piece) {
                        Poll::Ready(Ok(())) if !piece.filled().is_empty() => {}
                        Poll::Ready(_) => self.state = State::Closed,
                        Poll::Pending => return Poll::Pending,
                    }
                }
                State::Closed => return Poll::Ready(()),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// One piece from the reader to the writer. Ready: something was moved, or the state has changed.
    fn piece<R, W>(&mut self, cx: &mut Context<'_>, reader: Pin<&mut R>, mut writer: Pin<&mut W>) -> Poll<()>
    where
        R: AsyncRead + ?Sized,
        W: AsyncWrite + ?Sized,
    {
        while let Some(rest) = self.rest.get(self.written..).filter(|rest| !rest.is_empty()) {
            match writer.as_mut().poll_write(cx, rest) {
                Poll::Ready(Ok(taken)) if taken > 0 => {
                    self.written += taken;
                    self.took(taken);
                }
                Poll::Ready(_) => return self.lost(),
                Poll::Pending => return Poll::Pending,
            }
        }
        // Given back: an idle stream holds none.
        self.rest = Vec::new();
        self.written = 0;
        let mut scratch = [MaybeUninit::uninit(); PIECE];
        let mut piece = ReadBuf::uninit(&mut scratch);
        match reader.poll_read(cx, &mut piece) {
            Poll::Ready(Ok(())) if !piece.filled().is_empty() => {}
            // Broken or closed: either way nothing more comes.
            Poll::Ready(_) => {
                self.state = State::Closing;
                return Poll::Ready(());
            }
            Poll::Pending => {
                // While nothing comes, what the writer holds back goes out.
                if self.needs_flush {
                    match writer.poll_flush(cx) {
                        Poll::Ready(Ok(())) => self.needs_flush = false,
                        Poll::Ready(Err(_)) => return self.lost(),
                        Poll::Pending => {}
                    }
                }
                return Poll::Pending;
            }
        }
        let piece = piece.filled();
        match writer.poll_write(cx, piece) {
            Poll::Ready(Ok(taken)) if taken > 0 => {
                self.took(taken);
                self.rest = piece.get(taken..).unwrap_or_default().to_vec();
            }
            Poll::Ready(_) => return self.lost(),
            Poll::Pending => self.rest = piece.to_vec(),
        }
        Poll::Ready(())
    }

    fn took(&mut self, bytes: usize) {
        self.moved += bytes as u64;
        self.needs_flush |= bytes > 0;
    }

    fn lost(&mut self) -> Poll<()> {
        self.rest = Vec::new();
        self.state = State::Draining;
        Poll::Ready(())
    }
}

/// Relays until both directions are over, or nothing has moved for too long. Both connections are closed then.
pub async fn relay<C, R>(client: C, runtime: R, limits: Limits) -> Summary
where
    C: AsyncRead + AsyncWrite,
    R: AsyncRead + AsyncWrite,
{
    let (mut client_read, mut client_write) = tokio::io::split(client);
    let (mut runtime_read, mut runtime_write) = tokio::io::split(runtime);
    let (mut there, mut back) = (Direction::new(true), Direction::new(false));
    let mut clock = pin!(Clock { timer: None, seen: (0, false), since: Instant::now() });
    poll_fn(|cx| {
        let to_runtime = there.poll(cx, Pin::new(&mut client_read), Pin::new(&mut runtime_write));
        let to_client = back.poll(cx, Pin::new(&mut runtime_read), Pin::new(&mut client_write));
        let ended = |end| Summary { to_runtime: there.moved, to_client: back.moved, end };
        if back.state == State::Draining {
            return Poll::Ready(ended(End::ClientGone));
        }
        if to_runtime.is_ready() && to_client.is_ready() {
            return Poll::Ready(ended(End::Closed));
        }
        let over = |direction: &Direction| matches!(direction.state, State::Draining | State::Closed);
        let half_closed = over(&there) || over(&back);
        let (limit, end) = if half_closed { (Some(limits.linger), End::Lingered) } else { (limits.idle, End::Idle) };
        match clock.as_mut().get_mut().poll(cx, (there.moved + back.moved, half_closed), limit) {
            Poll::Ready(()) => Poll::Ready(ended(end)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Since when nothing has changed, and whether that is too long. Its timer is set anew when it runs out and not with each
/// byte.
struct Clock {
    timer: Option<Pin<Box<Sleep>>>,
    /// Bytes moved, and whether a direction has ended.
    seen: (u64, bool),
    since: Instant,
}

impl Clock {
    fn poll(&mut self, cx: &mut Context<'_>, now: (u64, bool), limit: Option<Duration>) -> Poll<()> {
        if now != self.seen {
            self.since = Instant::now();
            if now.1 != self.seen.1 {
                self.timer = None;
            }
            self.seen = now;
        }
        let Some(limit) = limit else { return Poll::Pending };
        let Some(deadline) = self.since.checked_add(limit) else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::task::JoinHandle;

    const LIMITS: Limits = Limits { idle: Some(Duration::from_secs(60)), linger: Duration::from_secs(10) };

    fn relayed(buffer: usize, limits: Limits) -> (DuplexStream, DuplexStream, JoinHandle<Summary>) {
        let (client, near) = duplex(buffer);
        let (far, runtime) = duplex(buffer);
        (client, runtime, tokio::spawn(relay(near, far, limits)))
    }

    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|i| (i % 251) as u8).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_one_direction_leaves_the_other_open() {
        let (mut client, mut runtime, task) = relayed(64, LIMITS);
        client.write_all(b"input").await.unwrap();
        client.shutdown().await.unwrap();
        let mut input = Vec::new();
        runtime.read_to_end(&mut input).await.unwrap();
        assert_eq!(input, b"input");
        // The command answers only now, and slowly.
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_secs(8)).await;
            runtime.write_all(b"late ").await.unwrap();
        }
        runtime.shutdown().await.unwrap();
        let mut output = Vec::new();
        client.read_to_end(&mut output).await.unwrap();
        assert_eq!(output, b"late late late late late ");
        assert_eq!(task.await.unwrap(), Summary { to_runtime: 5, to_client: 25, end: End::Closed });
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_written_before_the_end_arrives_at_a_slow_client() {
        let (mut client, mut runtime, task) = relayed(1024, LIMITS);
        let sent = bytes(100_000);
        let writes = async {
            runtime.write_all(&sent).await.unwrap();
            runtime.shutdown().await.unwrap();
        };
        let reads = async {
            let (mut got, mut piece) = (Vec::new(), [0; 700]);
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                match client.read(&mut piece).await.unwrap() {
                    0 => return got,
                    n => got.extend_from_slice(&piece[..n]),
                }
            }
        };
        let ((), got) = tokio::join!(writes, reads);
        assert_eq!(got, bytes(100_000));
        drop(client);
        assert_eq!(task.await.unwrap().end, End::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_may_stall_before_the_last_bytes() {
        let (mut client, near) = duplex(64);
        let (far, mut runtime) = duplex(64);
        // As TLS does, this takes what it cannot send yet.
        let near = tokio::io::BufStream::with_capacity(1 << 10, 1 << 10, near);
        let task = tokio::spawn(relay(near, far, LIMITS));
        runtime.write_all(&bytes(900)).await.unwrap();
        drop(runtime);
        tokio::time::sleep(LIMITS.linger * 3).await;
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, bytes(900));
        drop(client);
        assert_eq!(task.await.unwrap().end, End::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_client_stops_the_runtime() {
        let (_client, mut runtime, _task) = relayed(1024, LIMITS);
        let mut written = 0;
        let stalled = tokio::time::timeout(Duration::from_secs(5), async {
            loop {
                written += runtime.write(&[7; 4096]).await.unwrap();
            }
        });
        assert!(stalled.await.is_err());
        // Two pipes and one piece.
        assert!(written <= 2 * 1024 + PIECE, "{written}");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_moves_for_too_long() {
        let (mut client, mut runtime, task) = relayed(64, LIMITS);
        let began = Instant::now();
        tokio::time::sleep(Duration::from_secs(45)).await;
        client.write_all(b"x").await.unwrap();
        runtime.read_u8().await.unwrap();
        assert_eq!(task.await.unwrap(), Summary { to_runtime: 1, to_client: 0, end: End::Idle });
        assert_eq!(began.elapsed().as_secs(), 105);
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "both are closed");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_an_idle_stream_stays() {
        let (mut client, mut runtime, task) = relayed(64, Limits { idle: None, ..LIMITS });
        tokio::time::sleep(Duration::from_secs(1_000_000)).await;
        client.write_all(b"x").await.unwrap();
        assert_eq!(runtime.read_u8().await.unwrap(), b'x');
        assert!(!task.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_keeps_its_side_open_is_left_in_the_end() {
        let (mut client, runtime, task) = relayed(64, LIMITS);
        drop(runtime);
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(task.await.unwrap().end, End::Lingered);
    }

    #[tokio::test(start_paused = true)]
    async fn output_for_a_client_that_is_gone_ends_the_command() {
        let (client, mut runtime, task) = relayed(64, LIMITS);
        drop(client);
        let began = Instant::now();
        while runtime.write_all(&[0; 100]).await.is_ok() {}
        assert_eq!(task.await.unwrap().end, End::ClientGone);
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn input_for_a_runtime_that_is_gone_is_read_and_dropped() {
        let (mut client, runtime, task) = relayed(64, LIMITS);
        drop(runtime);
        client.write_all(&bytes(10_000)).await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(task.await.unwrap().end, End::Closed);
    }

    proptest! {
        #[test]
        fn every_byte_arrives_in_order(there in 0..60_000_usize, back in 0..60_000_usize, buffer in 1..5_000_usize) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let (client, server, task) = relayed(buffer, LIMITS);
                let pump = |stream: DuplexStream, send: usize| async move {
                    let (mut read, mut write) = tokio::io::split(stream);
                    let mut got = Vec::new();
                    let sends = async {
                        write.write_all(&bytes(send)).await.unwrap();
                        write.shutdown().await.unwrap();
                    };
                    let (_, read) = tokio::join!(sends, read.read_to_end(&mut got));
                    read.unwrap();
                    got
                };
                let (at_client, at_server) = tokio::join!(pump(client, there), pump(server, back));
                assert_eq!((at_client.len(), at_server.len()), (back, there));
                assert!(at_client == bytes(back) && at_server == bytes(there));
                let expected = Summary { to_runtime: there as u64, to_client: back as u64, end: End::Closed };
                assert_eq!(task.await.unwrap(), expected);
            });
        }
    }
}
