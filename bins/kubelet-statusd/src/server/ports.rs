//! Listening ports outlive this process: the supervisor keeps them while it is started again, so a client that connects in
//! between waits for its answer instead of being refused. A port that the configuration does not name any more is closed.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};

use bulkhead_daemon::{Daemon, kept};
use rustix::net::sockopt;
use tokio::net::TcpListener;

use super::listener;
use crate::routes::Surface;

/// Name under which the supervisor keeps a server's port.
const fn name(surface: Surface) -> &'static str {
    match surface {
        Surface::Main => "tcp-main",
        Surface::ReadOnly => "tcp-read-only",
        Surface::Healthz => "tcp-healthz",
    }
}

/// The port that an earlier start of this process left, if it listens where it should now. Any other is closed.
pub fn earlier(daemon: &Daemon, surface: Surface, address: SocketAddr) -> Option<TcpListener> {
    let listener = daemon.take_listener(name(surface))?;
    match take_up(listener, address) {
        Ok(listener) => {
            tracing::info!(%address, ?surface, "listening on the socket of the earlier start");
            Some(listener)
        }
        Err(error) => {
            tracing::info!(%address, ?surface, %error, "closed the listening socket of an earlier start");
            kept::let_go(name(surface));
            None
        }
    }
}

/// Has the supervisor keep the port.
pub fn keep(surface: Surface, listener: &TcpListener) {
    kept::keep(name(surface), listener.as_fd());
}

/// Closes the ports of servers that the configuration has switched off.
pub fn close_others(daemon: &Daemon, wanted: &[Surface]) {
    for surface in [Surface::Main, Surface::ReadOnly, Surface::Healthz] {
        if !wanted.contains(&surface) && daemon.take_listener(name(surface)).is_some() {
            tracing::info!(?surface, "server is switched off, closed its port");
            kept::let_go(name(surface));
        }
    }
}

fn take_up(listener: OwnedFd, address: SocketAddr) -> io::Result<TcpListener> {
    let other = |what: String| Err(io::Error::other(what));
    if !sockopt::socket_acceptconn(&listener)? {
        return other("does not listen".to_owned());
    }
    let listener = std::net::TcpListener::from(listener);
    let there = listener.local_addr()?;
    if !is_where(there, address, listener::has_ipv6()) {
        return other(format!("listens on {there}"));
    }
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Whether who listens there does so where it should ([`listener::listen`]).
fn is_where(there: SocketAddr, wanted: SocketAddr, has_ipv6: bool) -> bool {
    if wanted.ip().is_unspecified() && has_ipv6 {
        return there.ip().is_unspecified() && there.is_ipv6() && there.port() == wanted.port();
    }
    there == wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_port_should_be() {
        for (there, wanted, with_ipv6, without) in [
            ("[::]:1", "0.0.0.0:1", true, false),
            ("[::]:1", "[::]:1", true, true),
            ("0.0.0.0:1", "0.0.0.0:1", false, true),
            ("[::]:2", "0.0.0.0:1", false, false),
            ("127.0.0.1:1", "0.0.0.0:1", false, false),
            ("127.0.0.1:1", "127.0.0.1:1", true, true),
        ] {
            let (one, other) = (there.parse().unwrap(), wanted.parse().unwrap());
            assert_eq!(
                (is_where(one, other, true), is_where(one, other, false)),
                (with_ipv6, without),
                "{there} {wanted}"
            );
        }
    }

    #[tokio::test]
    async fn a_port_is_taken_up_with_who_waits_at_it() {
        let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = first.local_addr().unwrap();
        let copy = first.as_fd().try_clone_to_owned().unwrap();
        drop(first);
        // Nobody accepts now, and yet nobody is refused.
        let client = std::net::TcpStream::connect(address).unwrap();
        let second = take_up(copy, address).unwrap();
        let (_, peer) = second.accept().await.unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
    }

    #[tokio::test]
    async fn another_port_or_no_listener_is_not() {
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = held.local_addr().unwrap();
        let copy = || held.as_fd().try_clone_to_owned().unwrap();
        let elsewhere = SocketAddr::new([127, 0, 0, 2].into(), address.port());
        assert!(take_up(copy(), elsewhere).unwrap_err().to_string().contains(&address.to_string()));
        let client = std::net::TcpStream::connect(address).unwrap();
        assert!(take_up(client.into(), address).is_err());
        assert!(take_up(std::fs::File::open("/dev/null").unwrap().into(), address).is_err());
    }
}
