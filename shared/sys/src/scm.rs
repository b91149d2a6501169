//! One datagram and its descriptors over a Unix SEQPACKET socket: the wire of the descriptor broker.
//!
//! Every socket made here is close-on-exec and non-blocking; so are the descriptors that arrive (close-on-exec only).

use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// More descriptors than any message of ours carries; a message with more is refused.
pub const MAX_FDS: usize = 4;

/// Pending connections of a listener. The callers are three daemons and the operator's tool.
const BACKLOG: i32 = 64;

/// What arrived.
#[derive(Debug)]
pub struct Datagram {
    /// Bytes of the buffer that were filled. 0 with no descriptors means that the peer has closed.
    pub len: usize,
    pub fds: Vec<OwnedFd>,
}

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// A listening socket at `path`, replacing a stale one there. The mode is set before anyone can connect, because
/// `listen` comes last. Owner and group are the caller's to change.
pub fn listen(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    match std::fs::remove_file(path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
        _ => {}
    }
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(mode))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Takes one pending connection; `WouldBlock` when there is none.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener, FLAGS)?)
}

/// Connects to a listener of [`listen`]. A Unix connect is immediate, or fails with `WouldBlock` if the backlog is
/// full.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Two connected sockets.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?)
}

/// Sends one datagram, whole or not at all. Fails with `WouldBlock` when the socket's buffer is full, with
/// `InvalidInput` for more than [`MAX_FDS`] descriptors or for an empty datagram (which would look like a close).
pub fn send(socket: impl AsFd, data: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if fds.len() > MAX_FDS || data.is_empty() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let sent =
        rustix::net::sendmsg(socket, &[IoSlice::new(data)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    if sent == data.len() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::WriteZero)) }
}

/// Receives one datagram. A datagram longer than `buffer`, or with more than [`MAX_FDS`] descriptors, is an
/// `InvalidData` error and its descriptors are closed.
pub fn recv(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Datagram> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(buffer)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) || fds.len() > MAX_FDS {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a datagram larger than allowed"));
    }
    Ok(Datagram { len: got.bytes, fds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    #[test]
    fn a_descriptor_arrives_open_and_close_on_exec() {
        let (a, b) = pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"hello").unwrap();
        send(&a, b"take", &[file.as_fd()]).unwrap();
        let mut buffer = [0; 16];
        let mut got = recv(&b, &mut buffer).unwrap();
        assert_eq!(&buffer[..got.len], b"take");
        let fd = got.fds.pop().unwrap();
        assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        let mut received = std::fs::File::from(fd);
        received.rewind().unwrap();
        let mut text = String::new();
        received.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn bounds_hold() {
        let (a, b) = pair().unwrap();
        let mut small = [0; 4];
        assert_eq!(recv(&b, &mut small).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        send(&a, b"too long", &[]).unwrap();
        assert_eq!(recv(&b, &mut small).unwrap_err().kind(), io::ErrorKind::InvalidData);
        send(&a, b"ok", &[]).unwrap();
        assert_eq!(recv(&b, &mut small).unwrap().len, 2, "datagrams do not run into each other");
        let file = tempfile::tempfile().unwrap();
        assert!(send(&a, b"x", &[file.as_fd(); MAX_FDS + 1]).is_err());
        assert!(send(&a, b"", &[]).is_err());
        drop(a);
        assert_eq!(recv(&b, &mut small).unwrap().len, 0);
    }

    #[test]
    fn listener_replaces_a_stale_socket_and_has_its_mode() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        drop(listen(&path, 0o600).unwrap());
        let listener = listen(&path, 0o660).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        let client = connect(&path).unwrap();
        let server = accept(&listener).unwrap();
        send(&client, b"x", &[]).unwrap();
        assert_eq!(recv(&server, &mut [0; 2]).unwrap().len, 1);
    }
}
