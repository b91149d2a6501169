//! TCP connections as probes and hooks make them: to an address without asking a name service, with no trip through the
//! reactor where the kernel has the connection at once, and failures in the words that Go has for them.
//!
//! Upstream sets `SO_LINGER` to one second (`pkg/probe/dialer_others.go`). On Linux that changes nothing about the
//! connection, but lets `close` wait for the other side, which here would hold up every pod: it is not set.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A socket that is connected, or is about to be.
struct Begun {
    socket: OwnedFd,
    connected: bool,
}

/// Between containers of one machine the handshake is over when `connect` returns, so one more question saves a wait.
fn begin(to: SocketAddr) -> io::Result<Begun> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    let connected = match rustix::net::connect(&socket, &to) {
        Ok(()) => true,
        Err(Errno::INPROGRESS) => match rustix::net::getpeername(&socket) {
            Ok(_) => true,
            Err(Errno::NOTCONN) => {
                rustix::net::sockopt::socket_error(&socket)??;
                false
            }
            Err(error) => return Err(error.into()),
        },
        Err(error) => return Err(error.into()),
    };
    Ok(Begun { socket, connected })
}

async fn finish(begun: Begun) -> io::Result<TcpStream> {
    let stream = TcpStream::from_std(begun.socket.into())?;
    if !begun.connected {
        stream.writable().await?;
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
    }
    Ok(stream)
}

/// Connects. No time limit: drop the future. What is written goes out at once, as with Go's dialer: the second small write of a
/// gRPC call would else wait for the acknowledgement of the first, which the other side delays by 40 ms.
///
/// # Errors
/// What the kernel says; see [`words`].
pub async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = finish(begin(to)?).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects and closes again.
///
/// # Errors
/// As [`connect`].
pub async fn reach(to: SocketAddr) -> io::Result<()> {
    let begun = begin(to)?;
    if !begun.connected {
        finish(begun).await?;
    }
    Ok(())
}

/// The addresses that `host` stands for; a literal address stands for itself.
///
/// # Errors
/// In Go's words (`lookup <host>: no such host`).
pub async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    match tokio::net::lookup_host((host, port)).await {
        Ok(found) => {
            let found: Vec<SocketAddr> = found.collect();
            if found.is_empty() { Err(format!("lookup {host}: no such host")) } else { Ok(found) }
        }
        Err(_) => Err(format!("lookup {host}: no such host")),
    }
}

/// Connects to the first address that can be had.
///
/// # Errors
/// In the words of Go's dialer: `dial tcp 10.0.0.1:80: connect: connection refused`.
pub async fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    each(host, port, async |to| connect(to).await).await
}

/// [`reach`] by host, with errors as [`dial`].
///
/// # Errors
/// As [`dial`].
pub async fn reach_host(host: &str, port: u16) -> Result<(), String> {
    each(host, port, async |to| reach(to).await).await
}

async fn each<T>(host: &str, port: u16, connect: impl AsyncFn(SocketAddr) -> io::Result<T>) -> Result<T, String> {
    if let Ok(address) = host.parse::<IpAddr>() {
        let to = SocketAddr::new(address, port);
        return connect(to).await.map_err(|error| format!("dial tcp {to}: connect: {}", words(&error)));
    }
    let mut first = None;
    for to in resolve(host, port).await.map_err(|error| format!("dial tcp: {error}"))? {
        match connect(to).await {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                first.get_or_insert_with(|| format!("dial tcp {to}: connect: {}", words(&error)));
            }
        }
    }
    Err(first.unwrap_or_else(|| format!("dial tcp: lookup {host}: no such host")))
}

/// `host:port`, with brackets around what has colons (Go's `net.JoinHostPort`).
pub fn join_host_port(host: &str, port: impl std::fmt::Display) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// A system error in Go's words: `connection refused`.
pub fn words(error: &io::Error) -> String {
    let Some(code) = error.raw_os_error() else { return error.to_string() };
    let text = io::Error::from_raw_os_error(code).to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => format!("errno {code}"),
    }
}

/// How many of the first bytes are remembered.
pub const FIRST_BYTES: usize = 8;

/// The first bytes that came from the other side: enough to tell which protocol it speaks.
#[derive(Debug, Clone, Default)]
pub struct FirstBytes(Arc<Noticed>);

#[derive(Debug, Default)]
struct Noticed {
    bytes: AtomicU64,
    count: AtomicU64,
    waiting: AtomicWaker,
}

impl FirstBytes {
    fn note(&self, bytes: &[u8]) {
        let have = self.0.count.load(Ordering::Relaxed);
        if have >= FIRST_BYTES as u64 {
            return;
        }
        let mut value = self.0.bytes.load(Ordering::Relaxed);
        let mut count = have;
        for byte in bytes.iter().take(FIRST_BYTES - usize::try_from(have).unwrap_or(FIRST_BYTES)) {
            value |= u64::from(*byte) << (8 * count);
            count += 1;
        }
        self.0.bytes.store(value, Ordering::Relaxed);
        self.0.count.store(count, Ordering::Relaxed);
        self.0.waiting.wake();
    }

    /// What has come; zeros where nothing has.
    pub fn get(&self) -> [u8; FIRST_BYTES] {
        self.0.bytes.load(Ordering::Relaxed).to_le_bytes()
    }

    /// The task is woken when more have come.
    pub fn wake(&self, context: &Context<'_>) {
        self.0.waiting.register(context.waker());
    }

    /// So many have come; it stops at [`FIRST_BYTES`].
    pub fn count(&self) -> usize {
        usize::try_from(self.0.count.load(Ordering::Relaxed)).unwrap_or(FIRST_BYTES)
    }
}

/// A stream whose first bytes are remembered.
#[derive(Debug)]
pub struct Noted<S> {
    inner: S,
    first: FirstBytes,
}

impl<S> Noted<S> {
    pub fn new(inner: S) -> (Self, FirstBytes) {
        let first = FirstBytes::default();
        (Noted { inner, first: first.clone() }, first)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Noted<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(context, buf);
        if let Some(new) = buf.filled().get(before..).filter(|new| !new.is_empty()) {
            self.first.note(new);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Noted<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn refused_in_gos_words() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = dial("127.0.0.1", free.port()).await.unwrap_err();
        assert_eq!(error, format!("dial tcp 127.0.0.1:{}: connect: connection refused", free.port()));
        let error = reach_host("127.0.0.1", free.port()).await.unwrap_err();
        assert_eq!(error, format!("dial tcp 127.0.0.1:{}: connect: connection refused", free.port()));
    }

    #[tokio::test]
    async fn names_and_addresses_are_reached() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        reach_host("127.0.0.1", port).await.unwrap();
        reach_host("localhost", port).await.unwrap();
        let error = dial("no.such.host.invalid", port).await.unwrap_err();
        assert_eq!(error, "dial tcp: lookup no.such.host.invalid: no such host");
        assert_eq!((join_host_port("::1", 80), join_host_port("a", "x")), ("[::1]:80".to_owned(), "a:x".to_owned()));
    }

    #[tokio::test]
    async fn small_writes_do_not_wait_for_each_other() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = connect(listener.local_addr().unwrap()).await.unwrap();
        assert!(stream.nodelay().unwrap());
    }

    #[tokio::test]
    async fn first_bytes_come_in_pieces() {
        let (mut ours, theirs) = tokio::io::duplex(64);
        let (mut noted, first) = Noted::new(theirs);
        for part in ["HT", "TP/1.1 20", "0 OK"] {
            ours.write_all(part.as_bytes()).await.unwrap();
            let mut buffer = vec![0; part.len()];
            noted.read_exact(&mut buffer).await.unwrap();
        }
        assert_eq!((&first.get()[..], first.count()), (&b"HTTP/1.1"[..], FIRST_BYTES));
    }
}
