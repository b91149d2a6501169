//! Listening and accepting: a port that is taken for a moment, descriptors that run out, clients that come and go.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_daemon::progress::LOOP_BOUND;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::connection::{self, Endpoint};
use super::connection_metrics::Closed;
use super::connections::Connections;

/// How long a port may still be held by an instance of this process that ends.
const TAKEN: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(100);
/// Clients that wait to be accepted, as tokio has it.
const BACKLOG: u32 = 1024;
/// As Go's listener has it: a client that vanished without a word is noticed after 15 s and nine questions more.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Descriptors or memory ran out: time for some to be given back.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// Listens on an address that may be taken for a while yet.
///
/// # Errors
/// It cannot be listened on, or is still taken after five seconds.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let deadline = Instant::now() + TAKEN;
    loop {
        match listen(address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                tracing::debug!(%address, "the port is still taken, trying again");
                tokio::time::sleep(AGAIN).await;
            }
            outcome => return outcome,
        }
    }
}

/// Listens. An address that stands for all of them does so for both families, whichever of the two it is written in, as with Go's
/// `net.Listen("tcp", …)`; where the machine has no IPv6, for its own.
///
/// # Errors
/// It cannot be listened on.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if address.ip().is_unspecified() && has_ipv6() {
        return both_families(address.port());
    }
    TcpListener::bind(address).await
}

/// The kernel has sockets of IPv6.
pub fn has_ipv6() -> bool {
    TcpSocket::new_v6().is_ok()
}

fn both_families(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    // The machine's default may be another one (`net.ipv6.bindv6only`).
    rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
    socket.listen(BACKLOG)
}

/// Accepts for ever; connections end with this future.
pub async fn accept(listener: TcpListener, endpoint: Arc<Endpoint>) {
    let connections = Connections::new(endpoint.limits.connections, endpoint.limits.stall_time);
    let mut tasks = JoinSet::new();
    let (mut exhausted, mut full) = (false, false);
    let heartbeat = endpoint.progress.register("accepting", LOOP_BOUND);
    loop {
        while tasks.try_join_next().is_some() {}
        let accepted = tokio::select! {
            () = heartbeat.asked() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => {
                exhausted = false;
                accepted
            }
            // The client was gone before we looked: nothing is wrong with the listener.
            Err(error) if is_of_the_client(&error) => continue,
            Err(error) => {
                // Once for as long as it lasts.
                if !std::mem::replace(&mut exhausted, true) {
                    tracing::warn!(%error, surface = ?endpoint.surface, "failed to accept connection");
                }
                tokio::time::sleep(EXHAUSTED).await;
                continue;
            }
        };
        let Some(slot) = connections.admit(from.into()) else {
            endpoint.metrics.closed(endpoint.surface, Closed::Refused);
            if !std::mem::replace(&mut full, true) {
                let connections = connections.count();
                tracing::warn!(connections, surface = ?endpoint.surface, "too many connections, refusing more");
            }
            continue;
        };
        full = false;
        if let Err(error) = prepare(&stream) {
            tracing::debug!(%error, "a connection ended at once");
            continue;
        }
        tasks.spawn(connection::serve(stream, from, slot, endpoint.clone()));
    }
}

fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEP_ALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE)?;
    sockopt::set_tcp_keepcnt(stream, 9)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_addresses_are_those_of_both_families() {
        if !has_ipv6() {
            return;
        }
        for all in ["0.0.0.0:0", "[::]:0"] {
            let listener = listen(all.parse().unwrap()).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            for client in [format!("127.0.0.1:{port}"), format!("[::1]:{port}")] {
                match TcpStream::connect(&client).await {
                    Ok(_) => drop(listener.accept().await.unwrap()),
                    // The machine's loopback may have no such address.
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable, "{client}"),
                }
            }
            assert_eq!(bind_once(port).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        }
        let own = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        assert!(own.local_addr().unwrap().is_ipv4());
    }

    async fn bind_once(port: u16) -> io::Result<TcpListener> {
        listen(SocketAddr::from(([0, 0, 0, 0], port))).await
    }

    #[tokio::test]
    async fn a_port_that_is_given_back_is_taken() {
        let held = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = held.local_addr().unwrap();
        let waiting = tokio::spawn(bind(address));
        tokio::task::yield_now().await;
        drop(held);
        assert_eq!(waiting.await.unwrap().unwrap().local_addr().unwrap(), address);
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_that_stays_taken_is_an_error_after_a_while() {
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let begun = Instant::now();
        assert_eq!(bind(held.local_addr().unwrap()).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(begun.elapsed() >= TAKEN);
        // Another's address is no matter of waiting.
        assert!(bind("198.51.100.1:1".parse().unwrap()).await.is_err());
    }
}
