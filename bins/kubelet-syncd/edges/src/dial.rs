//! TCP connections as probes and hooks make them: to an address without asking a name service, with no trip through the
//! reactor where the kernel has the connection at once, and failures in the words that Go has for them.
//!
//! Upstream sets `SO_LINGER` to one second (`pkg/probe/dialer_others.go`). On Linux that changes nothing about the
//! connection, but lets `close` wait for the other side, which here would hold up every pod: it is not set.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bulkhead_types::later;
use futures_util::future::{Either, select};
use futures_util::task::AtomicWaker;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use crate::resolver::{self, Resolver};

/// How long the addresses of a host's first family are tried alone (Go's `net.Dialer.FallbackDelay`).
const FALLBACK_DELAY: Duration = Duration::from_millis(300);

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
/// In the words of Go's dialer: `dial tcp: lookup <host>: no such host`.
async fn resolve(resolver: &Resolver, host: &str, port: u16, asker: &str) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let found = resolver.lookup(host, asker).await.unwrap_or_default();
    if found.is_empty() {
        return Err(format!("dial tcp: lookup {host}: no such host"));
    }
    Ok(found.into_iter().map(|address| SocketAddr::new(address, port)).collect())
}

/// Connects to the first address that can be had. No time limit: drop the future. `asker`: see [`resolver::lookup`].
///
/// # Errors
/// In the words of Go's dialer: `dial tcp 10.0.0.1:80: connect: connection refused`.
pub async fn dial(host: &str, port: u16, asker: &str) -> Result<TcpStream, String> {
    let addresses = resolve(resolver::of_the_machine(), host, port, asker).await?;
    each(&addresses, async |to| connect(to).await).await
}

/// [`reach`] by host within a time.
///
/// # Errors
/// As [`dial`], and in the same words where the time is over: `dial tcp 10.0.0.1:80: i/o timeout`.
pub async fn reach_host(host: &str, port: u16, asker: &str, timeout: Duration) -> Result<(), String> {
    reach_by(resolver::of_the_machine(), host, port, asker, timeout).await
}

async fn reach_by(resolver: &Resolver, host: &str, port: u16, asker: &str, timeout: Duration) -> Result<(), String> {
    let until = later(Instant::now(), timeout);
    let Ok(addresses) = timeout_at(until, resolve(resolver, host, port, asker)).await else {
        return Err(format!("dial tcp: lookup {host}: i/o timeout"));
    };
    match timeout_at(until, each(&addresses?, async |to| reach(to).await)).await {
        Ok(reached) => reached,
        Err(_) => Err(format!("dial tcp {}: i/o timeout", join_host_port(host, port))),
    }
}

/// To the first address that can be had: the addresses of the first one's family one after the other, and those of the other family
/// beside them after [`FALLBACK_DELAY`], or as soon as the first family has failed (Go's `net.Dialer`, RFC 6555). Where both fail it is
/// the first family's failure that counts.
async fn each<T>(addresses: &[SocketAddr], connect: impl AsyncFn(SocketAddr) -> io::Result<T>) -> Result<T, String> {
    let Some(first) = addresses.first() else { return Err("dial tcp: missing address".to_owned()) };
    let (primaries, fallbacks): (Vec<SocketAddr>, Vec<SocketAddr>) =
        addresses.iter().copied().partition(|address| address.is_ipv4() == first.is_ipv4());
    let mut primary = pin!(in_turn(&primaries, &connect));
    if fallbacks.is_empty() {
        return primary.await;
    }
    let fallback = in_turn(&fallbacks, &connect);
    match timeout(FALLBACK_DELAY, primary.as_mut()).await {
        Ok(Ok(stream)) => return Ok(stream),
        Ok(Err(error)) => return fallback.await.map_err(|_| error),
        Err(_) => {}
    }
    match select(primary, pin!(fallback)).await {
        Either::Left((Ok(stream), _)) | Either::Right((Ok(stream), _)) => Ok(stream),
        Either::Left((Err(error), fallback)) => fallback.await.map_err(|_| error),
        Either::Right((Err(_), primary)) => primary.await,
    }
}

/// One after the other; of failures the first counts.
async fn in_turn<T>(
    addresses: &[SocketAddr],
    connect: &impl AsyncFn(SocketAddr) -> io::Result<T>,
) -> Result<T, String> {
    let mut first = None;
    for to in addresses {
        match connect(*to).await {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                first.get_or_insert_with(|| format!("dial tcp {to}: connect: {}", words(&error)));
            }
        }
    }
    Err(first.unwrap_or_default())
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
    use crate::name_server::NameServer;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn refused_in_gos_words() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = dial("127.0.0.1", free.port(), "pod").await.unwrap_err();
        assert_eq!(error, format!("dial tcp 127.0.0.1:{}: connect: connection refused", free.port()));
        let error = reach_host("127.0.0.1", free.port(), "pod", SECOND).await.unwrap_err();
        assert_eq!(error, format!("dial tcp 127.0.0.1:{}: connect: connection refused", free.port()));
    }

    #[tokio::test]
    async fn names_and_addresses_are_reached() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        reach_host("127.0.0.1", port, "pod", SECOND).await.unwrap();
        reach_host("localhost", port, "pod", SECOND).await.unwrap();
        let error = dial("no.such.host.invalid", port, "pod").await.unwrap_err();
        assert_eq!(error, "dial tcp: lookup no.such.host.invalid: no such host");
        assert_eq!((join_host_port("::1", 80), join_host_port("a", "x")), ("[::1]:80".to_owned(), "a:x".to_owned()));
    }

    #[tokio::test]
    async fn a_name_that_nobody_answers_for_is_waited_for_no_longer_than_the_rest() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, resolver) = (listener.local_addr().unwrap().port(), NameServer::default().resolver());
        let reach = |host: &'static str| reach_by(&resolver, host, port, "pod", SECOND / 10);
        for silent in ["silent", "silent.too", "silent.as.well"] {
            let timed_out = format!("dial tcp: lookup {silent}: i/o timeout");
            assert_eq!(reach(silent).await, Err(timed_out));
        }
        assert_eq!(reach("127.0.0.1").await, Ok(()), "an address is no name");
        assert_eq!(reach("known").await, Err("dial tcp: lookup known: i/o timeout".to_owned()), "two are under way");
        assert_eq!(reach_by(&resolver, "known", port, "another", SECOND).await, Ok(()));
        let none = reach_by(&resolver, "none", port, "another", SECOND).await;
        assert_eq!(none, Err("dial tcp: lookup none: no such host".to_owned()));
    }

    /// Which address is connected to, or why none is, and after how many milliseconds. Each address does its own thing, by its last
    /// number: 0 says nothing, 1 refuses, 2 takes the connection at once, 3 after 400 ms, 4 refuses after 400 ms.
    async fn race(addresses: &[&str]) -> (Result<String, String>, u128) {
        let addresses: Vec<SocketAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let connect = async |to: SocketAddr| {
            let kind = to.ip().to_string().chars().last();
            if matches!(kind, Some('3' | '4')) {
                tokio::time::sleep(Duration::from_millis(400)).await;
            }
            match kind {
                Some('0') => std::future::pending().await,
                Some('1' | '4') => Err(Errno::CONNREFUSED.into()),
                _ => Ok(to.to_string()),
            }
        };
        let begun = Instant::now();
        let outcome = tokio::time::timeout(Duration::from_secs(30), each(&addresses, connect)).await;
        (outcome.unwrap_or_else(|_| Err("timeout".to_owned())), begun.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn the_other_family_is_tried_beside_the_first_after_a_while() {
        let refused = |address: &str| Err(format!("dial tcp {address}: connect: connection refused"));
        let table: [(&[&str], Result<String, String>, u128); 10] = [
            (&["[fd::2]:1", "10.0.0.2:1"], Ok("[fd::2]:1".into()), 0),
            (&["[fd::10]:1", "10.0.0.2:1"], Ok("10.0.0.2:1".into()), 300),
            (&["10.0.0.10:1", "10.0.0.2:1", "[fd::2]:1"], Ok("[fd::2]:1".into()), 300),
            (&["[fd::1]:1", "10.0.0.2:1"], Ok("10.0.0.2:1".into()), 0),
            (&["[fd::1]:1", "10.0.0.2:1", "[fd::2]:1"], Ok("[fd::2]:1".into()), 0),
            (&["[fd::3]:1", "10.0.0.10:1"], Ok("[fd::3]:1".into()), 400),
            (&["[fd::3]:1", "10.0.0.1:1"], Ok("[fd::3]:1".into()), 400),
            (&["[fd::4]:1", "10.0.0.3:1"], Ok("10.0.0.3:1".into()), 700),
            (&["[fd::4]:1", "10.0.0.1:1"], refused("[fd::4]:1"), 400),
            (&["10.0.0.1:1", "10.0.0.11:1"], refused("10.0.0.1:1"), 0),
        ];
        for (addresses, expected, after) in table {
            assert_eq!(race(addresses).await, (expected, after), "{addresses:?}");
        }
        assert_eq!(race(&[]).await.0, Err("dial tcp: missing address".to_owned()));
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
