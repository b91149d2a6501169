//! Sockets between a virtual machine and its host (vsock(7)): addresses are machines (CIDs) and ports, no names, no users.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, VsockAddr};

/// The machine itself, where the kernel can loop back (`vsock_loopback`).
pub const LOCAL_CID: u32 = libc::VMADDR_CID_LOCAL;
/// The machine that this one is a guest of.
pub const HOST_CID: u32 = libc::VMADDR_CID_HOST;

/// Listens for whoever reaches this machine.
///
/// # Errors
/// No vsock in this kernel (EAFNOSUPPORT), the port is taken (EADDRINUSE), or it is below 1024 without
/// CAP_NET_BIND_SERVICE (EACCES).
pub fn listen(port: u32) -> io::Result<OwnedFd> {
    let fd = stream()?;
    socket::bind(fd.as_raw_fd(), &VsockAddr::new(libc::VMADDR_CID_ANY, port))?;
    socket::listen(&fd, Backlog::new(64)?)?;
    Ok(fd)
}

/// The next connection, non-blocking, and the CID of the machine that it comes from.
///
/// # Errors
/// As accept4(2): WouldBlock where the listener is non-blocking and nobody waits.
pub fn accept(listener: impl AsFd) -> io::Result<(OwnedFd, u32)> {
    use rustix::net::SocketFlags;
    let fd = rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    let peer = socket::getpeername::<VsockAddr>(fd.as_raw_fd())?;
    Ok((fd, peer.cid()))
}

/// Connects to a port of a machine; blocks until that is done or refused.
///
/// # Errors
/// Nobody listens (ECONNRESET), or no such machine (ENODEV, ETIMEDOUT).
pub fn connect(cid: u32, port: u32) -> io::Result<OwnedFd> {
    let fd = stream()?;
    socket::connect(fd.as_raw_fd(), &VsockAddr::new(cid, port))?;
    Ok(fd)
}

fn stream() -> io::Result<OwnedFd> {
    Ok(socket::socket(AddressFamily::Vsock, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?)
}
